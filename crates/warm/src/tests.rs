//! Warm counters in a real Redis.

mod faults;
mod rows;
mod server;

use crate::{Settings, Warm};
use server::Server;
use std::time::Duration;
use tidegate_cold::{Cursor, Row};
use tidegate_store::{Class, Hashed};

/// 25 November 2026, 10:00 UTC.
const NOW: u32 = 1_795_600_800;
/// Many times what an operation takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

fn settings(server: &Server, timeout: Duration) -> Settings {
    let mut settings = tidegate_remote::Settings::at(&server.address()).unwrap();
    (settings.timeout, settings.patience) = (timeout, timeout);
    Settings { buckets_log2: 6, ..Settings::new(settings, 10_000) }
}

fn warm(server: &Server) -> Warm {
    Warm::open(&settings(server, LONG), 1).unwrap()
}

/// A key; keys that follow each other are in different buckets.
fn key(number: u128) -> Hashed {
    Hashed::narrow(number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

fn row(number: u128, count: u64) -> Row {
    let state = [count, 60].into_iter().collect();
    Row { key: key(number), state, expires_at: NOW + 600, moved_at: NOW }
}

fn wide(number: u128) -> Row {
    let state = (0..33).map(|word| u64::MAX - word).collect();
    Row { key: Hashed { class: Class::Wide, ..key(number) }, state, ..row(number, 1) }
}

fn keys(rows: &[Row]) -> Vec<Hashed> {
    rows.iter().map(|row| row.key).collect()
}

fn versions(rows: &[Row]) -> Vec<(Hashed, u32)> {
    rows.iter().map(|row| (row.key, row.moved_at)).collect()
}

/// All rows, in ascending order of their keys, and how many pages they were.
async fn all(warm: &Warm, now: u32) -> (Vec<Row>, u32) {
    let (mut rows, mut pages, mut after): (Vec<Row>, u32, Option<Cursor>) = (Vec::new(), 0, None);
    loop {
        let page = warm.page(after, now).await.unwrap();
        rows.extend(page.rows);
        (pages, after) = (pages + 1, page.next);
        if after.is_none() {
            break;
        }
    }
    rows.sort_by_key(|row| row.key);
    (rows, pages)
}
