//! Idle counters on SQLite, PostgreSQL and MariaDB: the same scenarios on each, in databases of their own.

mod damage;
mod owners;
mod paging;
mod rows;
mod servers;
mod twin;
mod writers;

use crate::{Cold, Row, Settings};
use std::time::Duration;
use tidegate_sql::testing::{Kind, Server};
use tidegate_store::Hashed;

/// 25 November 2026, 10:00 UTC.
const NOW: u32 = 1_795_600_800;
/// Many times what an operation takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Settings of a new database.
async fn settings(server: &Server, name: &str) -> Settings {
    let mut settings = Settings::new([server.create_database(name).await]);
    (settings.timeout, settings.patience) = (LONG, LONG);
    settings.buckets_log2 = 4;
    settings
}

async fn cold(server: &Server, name: &str) -> Cold {
    Cold::open(&settings(server, name).await, 1).unwrap()
}

/// A key; keys that follow each other are in different buckets.
fn key(number: u128) -> Hashed {
    Hashed::narrow(number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

fn row(number: u128, count: u64) -> Row {
    let state = [count, 60].into_iter().collect();
    Row { key: key(number), state, expires_at: NOW + 60, moved_at: NOW }
}

/// A statement of the test's own.
async fn execute(settings: &Settings, sql: &'static str) {
    use sqlx::{Connection, Executor};
    sqlx::any::install_default_drivers();
    let mut connection = sqlx::AnyConnection::connect(&settings.urls[0]).await.unwrap();
    connection.execute(sql).await.unwrap();
    connection.close().await.unwrap();
}

tidegate_sql::scenarios! {
    rows::narrow_and_wide_states_come_back,
    rows::many_keys_come_back_in_their_order,
    rows::a_row_takes_the_place_of_an_older_or_newer_one,
    rows::what_has_expired_is_absent_and_goes_with_its_bucket,
    rows::a_newer_version_is_not_removed,
    writers::writers_of_one_bucket_lose_nothing,
    writers::writers_of_all_buckets_lose_nothing,
    paging::pages_have_every_key_once,
    paging::pages_drop_what_expired_long_ago,
    paging::a_size_is_exact_for_few_and_close_for_many,
    owners::owners_do_not_see_each_other,
    owners::tables_are_made_once,
    owners::the_buckets_of_an_owner_stay_as_they_were,
    owners::tables_of_a_newer_program_are_left_alone,
    owners::an_empty_database_in_place_of_the_old_one_is_used,
    damage::damage_is_named_and_changes_nothing,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres() {
    all(Kind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb() {
    all(Kind::Mariadb).await;
}
