//! All rows of a shard, and how many there are.

use super::*;
use crate::Cursor;
use std::collections::BTreeSet;

/// All rows, by pages.
async fn list(cold: &Cold, now: u32) -> Vec<Row> {
    let mut all = Vec::new();
    let mut after: Option<Cursor> = None;
    loop {
        let page = cold.page(0, after, now).await.unwrap();
        all.extend(page.rows);
        after = page.next;
        if after.is_none() {
            return all;
        }
    }
}

pub(super) async fn pages_have_every_key_once(server: &Server) {
    let settings = Settings { buckets_log2: 8, ..settings(server, "pages").await };
    let cold = Cold::open(&settings, 1).unwrap();
    assert!(list(&cold, NOW).await.is_empty());
    // Those of an owner with a number above and below are not among them.
    for owner in 2..6 {
        Cold::open(&settings, owner).unwrap().put(0, &[row(1, 1)], NOW).await.unwrap();
    }
    let rows: Vec<Row> = (0..2_000).map(|number| row(number, 1)).collect();
    cold.put(0, &rows, NOW).await.unwrap();
    let listed = list(&cold, NOW).await;
    assert!(listed.is_sorted_by(|a, b| a.key < b.key));
    let expected: BTreeSet<Hashed> = rows.iter().map(|row| row.key).collect();
    assert_eq!(listed.iter().map(|listed| listed.key).collect::<BTreeSet<_>>(), expected);
    assert_eq!(listed.len(), rows.len());
    assert!(listed.iter().all(|listed| (listed.expires_at, listed.moved_at) == (NOW + 60, NOW)));
    assert!(list(&cold, NOW + 60).await.is_empty());
}

pub(super) async fn pages_drop_what_expired_long_ago(server: &Server) {
    let cold = cold(server, "tidied").await;
    let rows: Vec<Row> = (0..100).map(|number| row(number, 1)).collect();
    cold.put(0, &rows, NOW).await.unwrap();
    let lasting = Row { expires_at: NOW + 100_000, ..row(1_000, 1) };
    cold.put(0, &[lasting], NOW).await.unwrap();
    assert_eq!(list(&cold, NOW + 60 + 3_599).await.len(), 1);
    assert_eq!(cold.size(0).await.unwrap().counters, 101);
    assert_eq!(list(&cold, NOW + 60 + 3_600).await.len(), 1);
    assert_eq!(cold.size(0).await.unwrap().counters, 1);
}

pub(super) async fn a_size_is_exact_for_few_and_close_for_many(server: &Server) {
    let settings = Settings { buckets_log2: 12, ..settings(server, "size").await };
    let cold = Cold::open(&settings, 1).unwrap();
    let rows: Vec<Row> = (0..12_000).map(|number| row(number, 1)).collect();
    cold.put(0, &rows[..300], NOW).await.unwrap();
    let few = cold.size(0).await.unwrap();
    assert_eq!(few.counters, 300);
    for rows in rows.chunks(4_000) {
        cold.put(0, rows, NOW).await.unwrap();
    }
    let many = cold.size(0).await.unwrap();
    assert!(many.counters.abs_diff(12_000) < 1_200, "{many:?}");
    assert!((18..36).contains(&(many.bytes / many.counters)), "{many:?}");
}
