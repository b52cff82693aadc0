//! The database on SQLite, PostgreSQL and MariaDB: the same scenarios on each, in databases of their own.

mod answers;
mod bounds;
mod errors;
mod killed;
mod scene;
mod sums;
mod thinning;
mod writers;

use crate::testing::Kind;

tidegate_sql::scenarios! {
    writers::eight_writers_lose_and_double_nothing,
    writers::a_part_counts_once_however_often_it_is_sent,
    writers::counts_stop_at_their_bound,
    writers::a_sketch_that_was_damaged_is_replaced,
    thinning::thinning_keeps_every_count,
    thinning::answers_stay_right_while_minutes_are_rolled_up,
    thinning::one_sidecar_thins,
    thinning::writers_go_on_while_it_is_thinned,
    bounds::series_beyond_the_bound_are_others,
    bounds::the_least_used_make_room,
    bounds::a_series_that_was_removed_is_made_again,
    answers::the_largest_series_come_first,
    answers::the_largest_of_many_series_come_first,
    answers::leaders_are_few,
    answers::filters_and_sums,
    answers::distinct_values_merge_over_time_and_series,
    answers::the_database_knows_its_statistics,
    answers::what_has_too_many_sketches_is_not_counted,
    answers::busy_readers_delay_no_writer,
    answers::hostile_values_come_back_as_they_were,
    sums::sums_of_a_value_are_those_of_all_its_series,
    errors::tables_are_made_once,
    errors::tables_of_another_program_are_left_alone,
    killed::a_killed_writer_leaves_whole_parts,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres() {
    all(Kind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb() {
    all(Kind::Mariadb).await;
}
