//! What is written is what is read, until it expires or is removed.

use super::*;
use tidegate_store::{STATE_WORDS_MAX, STATE_WORDS_WIDE};

pub(super) async fn narrow_and_wide_states_come_back(server: &Server) {
    let cold = cold(server, "states").await;
    let states: [(Hashed, Vec<u64>); 8] = [
        (key(1), vec![]),
        (key(2), vec![1]),
        (key(3), vec![u64::MAX; 4]),
        (key(4), vec![0, 0, 0, 1 << 63]),
        (Hashed::wide(key(4).hash), vec![7; STATE_WORDS_WIDE as usize]),
        (Hashed::wide(0), (0..33).chain([1]).map(|word| word << 40).collect()),
        (Hashed::wide(u128::MAX), vec![u64::MAX; STATE_WORDS_MAX as usize]),
        (Hashed::narrow(u128::MAX), vec![255, 256]),
    ];
    let row = |(key, state): &(Hashed, Vec<u64>), expires_at| Row {
        key: *key,
        state: state.iter().copied().collect(),
        expires_at,
        moved_at: NOW,
    };
    let rows: Vec<Row> = states.iter().map(|state| row(state, u32::MAX)).collect();
    cold.put(0, &rows, NOW).await.unwrap();
    let keys: Vec<Hashed> = rows.iter().map(|row| row.key).collect();
    let found = cold.fetch(0, &keys, NOW).await.unwrap();
    assert_eq!(found.into_iter().flatten().collect::<Vec<_>>(), rows);
    // Of one hash, the classes are different keys.
    assert_eq!(cold.remove(0, &[(Hashed::wide(key(4).hash), NOW)], NOW).await.unwrap(), 1);
    assert!(cold.fetch(0, &[key(4)], NOW).await.unwrap()[0].is_some());
    // Zero words at the end are left out.
    let mut row = row(&(key(9), vec![5, 0, 0, 0]), NOW + 1);
    cold.put(0, std::slice::from_ref(&row), NOW).await.unwrap();
    row.state.truncate(1);
    assert_eq!(cold.fetch(0, &[key(9)], NOW).await.unwrap(), [Some(row)]);
}

pub(super) async fn many_keys_come_back_in_their_order(server: &Server) {
    let mut settings = settings(server, "many").await;
    settings.buckets_log2 = 20;
    let cold = Cold::open(&settings, 1).unwrap();
    let rows: Vec<Row> = (0..3_000).map(|number| row(number, 1)).collect();
    cold.put(0, &rows, NOW).await.unwrap();
    let keys: Vec<Hashed> = (0..6_000).rev().map(key).collect();
    let found = cold.fetch(0, &keys, NOW).await.unwrap();
    for (index, found) in found.into_iter().enumerate() {
        let number = 5_999 - index as u128;
        assert_eq!(found, (number < 3_000).then(|| row(number, 1)), "{number}");
    }
    assert!(cold.fetch(0, &[], NOW).await.unwrap().is_empty());
    cold.put(0, &[], NOW).await.unwrap();
    let versions: Vec<(Hashed, u32)> = (0..6_000).map(|number| (key(number), NOW)).collect();
    assert_eq!(cold.remove(0, &versions, NOW).await.unwrap(), 3_000);
    assert_eq!(cold.size(0).await.unwrap(), crate::Size::default());
}

pub(super) async fn a_row_takes_the_place_of_an_older_or_newer_one(server: &Server) {
    let cold = cold(server, "replaced").await;
    for (count, moved_at) in [(1, NOW), (2, NOW + 5), (3, NOW - 5), (4, NOW - 5)] {
        let row = Row { moved_at, ..row(1, count) };
        cold.put(0, std::slice::from_ref(&row), NOW).await.unwrap();
        assert_eq!(cold.fetch(0, &[key(1)], NOW).await.unwrap(), [Some(row)]);
    }
    // Of two in one call the later one counts.
    cold.put(0, &[row(1, 5), row(2, 1), row(1, 6)], NOW).await.unwrap();
    assert_eq!(cold.fetch(0, &[key(1)], NOW).await.unwrap(), [Some(row(1, 6))]);
    assert_eq!(cold.size(0).await.unwrap().counters, 2);
}

pub(super) async fn what_has_expired_is_absent_and_goes_with_its_bucket(server: &Server) {
    let mut settings = settings(server, "expired").await;
    settings.buckets_log2 = 0;
    let cold = Cold::open(&settings, 1).unwrap();
    cold.put(0, &[row(1, 1), Row { expires_at: NOW + 90, ..row(2, 1) }], NOW).await.unwrap();
    let found = async |now| cold.fetch(0, &[key(1)], now).await.unwrap()[0].is_some();
    assert!(found(NOW + 59).await);
    assert!(!found(NOW + 60).await);
    assert_eq!(cold.size(0).await.unwrap().counters, 2);
    // Any change of the bucket drops it, and what is written too late never gets there.
    cold.put(0, &[Row { expires_at: NOW + 70, ..row(3, 1) }], NOW + 80).await.unwrap();
    assert_eq!(cold.size(0).await.unwrap().counters, 1);
    assert!(!found(NOW).await);
    // A bucket without counters is none.
    assert_eq!(cold.remove(0, &[(key(9), NOW)], NOW + 90).await.unwrap(), 0);
    assert_eq!(cold.size(0).await.unwrap(), crate::Size::default());
    assert!(cold.page(0, None, NOW).await.unwrap().rows.is_empty());
}

pub(super) async fn a_newer_version_is_not_removed(server: &Server) {
    let cold = cold(server, "versions").await;
    let newer = Row { moved_at: NOW + 1, ..row(2, 2) };
    cold.put(0, &[row(1, 1), newer.clone()], NOW).await.unwrap();
    let versions = [(key(1), NOW), (key(2), NOW), (key(3), NOW)];
    assert_eq!(cold.remove(0, &versions, NOW).await.unwrap(), 1);
    assert_eq!(cold.remove(0, &versions, NOW).await.unwrap(), 0);
    assert_eq!(cold.fetch(0, &[key(1), key(2)], NOW).await.unwrap(), [None, Some(newer)]);
}
