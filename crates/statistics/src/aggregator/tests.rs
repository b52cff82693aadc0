//! The aggregator beside a slow twin, at its bounds, and under many threads.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn counts(allowed: u64, denied: u64, hits: u64) -> Counts {
    Counts { allowed, denied, hits }
}

/// All that was recorded, one by one.
#[derive(Debug, Default)]
struct Slow(BTreeMap<(String, Vec<String>), (Counts, BTreeSet<String>)>);

impl Slow {
    fn record(&mut self, statistic: &str, values: &[&str], distinct: Option<&str>, of: Counts) {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        let entry = self.0.entry((statistic.to_owned(), values)).or_default();
        entry.0.add(of);
        entry.1.extend(distinct.map(str::to_owned));
    }
}

proptest! {
    #[test]
    fn counts_are_those_of_the_slow_twin(
        records in prop::collection::vec(
            (0..3_u8, 0..4_u8, 0..4_u8, prop::option::of(0..9_u8), 0..3_u64, 0..3_u64, 0..5_u64), 0..200),
        takes in 1..4_usize,
    ) {
        let aggregator = Aggregator::new(Bounds::default());
        let mut slow = Slow::default();
        let mut batch = Batch::default();
        for records in records.chunks(records.len().div_ceil(takes).max(1)) {
            for (statistic, a, b, user, allowed, denied, hits) in records {
                let (statistic, a, b) = (format!("s{statistic}"), a.to_string(), b.to_string());
                let user = user.map(|user| user.to_string());
                let of = counts(*allowed, *denied, *hits);
                aggregator.record(&statistic, &[&a, &b], user.as_deref(), of);
                slow.record(&statistic, &[&a, &b], user.as_deref(), of);
            }
            batch.merge(aggregator.take(90));
        }
        prop_assert_eq!(batch.len(), slow.0.len());
        let points: Vec<_> = batch.clone().into_parts(7).into_iter().flatten().collect();
        prop_assert_eq!(points.len(), slow.0.len());
        for point in points {
            prop_assert_eq!(point.minute, 60);
            let values = point.series.values().unwrap().into_iter().map(str::to_owned).collect();
            let (of, users) = &slow.0[&(point.statistic.to_string(), values)];
            prop_assert_eq!(point.tally.counts, *of);
            let distinct = point.tally.sketch.map_or(0, |sketch| sketch.count());
            prop_assert_eq!(distinct, users.len() as u64);
        }
        prop_assert!(aggregator.take(90).is_empty());
    }

    #[test]
    fn nothing_is_lost_at_the_bounds(
        records in prop::collection::vec((0..1_000_u32, 1..4_u64), 1..3_000),
        series_max in 1..50_usize,
    ) {
        let aggregator = Aggregator::new(Bounds { series_max, ..Bounds::default() });
        let mut total = Counts::default();
        for (value, requests) in records {
            let of = counts(requests, value.into(), 7);
            aggregator.record("s", &[&value.to_string()], Some("u"), of);
            total.add(of);
        }
        let batch = aggregator.take(60);
        prop_assert_eq!(batch.total(), total);
        prop_assert!(batch.len() <= series_max + 1, "{}", batch.len());
    }
}

#[test]
fn the_most_used_series_keep_their_names() {
    let aggregator = Aggregator::new(Bounds { series_max: 100, ..Bounds::default() });
    // Ten apps of a hundred requests each, among thousands of values that a client makes up.
    for round in 0..100 {
        for app in 0..10 {
            aggregator.record("s", &[&format!("app-{app}")], None, counts(1, 0, 1));
        }
        for junk in 0..100 {
            aggregator.record("s", &[&format!("junk-{round}-{junk}")], None, counts(0, 1, 0));
        }
    }
    let batch = aggregator.take(60);
    for app in 0..10 {
        let series = Series::new(&[&format!("app-{app}")]);
        assert_eq!(batch.counts("s", 0, &series), Some(counts(100, 0, 100)), "{app}");
    }
    assert_eq!(batch.total(), counts(1_000, 10_000, 1_000));
    assert_eq!(batch.len(), 101);
    assert!(batch.counts("s", 0, &Series::Other).unwrap().denied >= 9_900);
}

#[test]
fn sketches_are_bounded_by_their_bytes() {
    let bounds = Bounds { series_max: 1_000, bytes_max: 1024 * 1024 };
    let aggregator = Aggregator::new(bounds);
    // 300 series of 10,000 values each would take 300 sketches of 8 KB and more.
    for series in 0..300 {
        let name = format!("series-{series}");
        for user in 0..2_000 {
            aggregator.record("s", &[&name], Some(&format!("{series}/{user}")), counts(1, 0, 1));
        }
    }
    let batch = aggregator.take(60);
    assert_eq!(batch.total().allowed, 600_000);
    assert!(batch.bytes() <= bounds.bytes_max + 128 * 1024, "{}", batch.bytes());
    // The distinct values of the others are not lost either.
    let points: Vec<_> = batch.into_parts(10_000).into_iter().flatten().collect();
    let mut all = Sketch::default();
    points.iter().for_each(|point| all.merge(point.tally.sketch.as_ref().unwrap()));
    assert!(all.count().abs_diff(600_000) <= 12_000, "{}", all.count());
}

#[test]
fn many_threads_record_while_batches_are_taken() {
    let aggregator = Aggregator::new(Bounds { series_max: 500, ..Bounds::default() });
    let mut all = Batch::default();
    std::thread::scope(|scope| {
        let recording: Vec<_> = (0..4)
            .map(|thread| {
                let aggregator = &aggregator;
                scope.spawn(move || {
                    for n in 0..20_000_u64 {
                        let value = (n * 7 + thread) % 2_000;
                        aggregator.record("s", &[&value.to_string()], None, counts(1, 2, 3));
                    }
                })
            })
            .collect();
        while recording.iter().any(|thread| !thread.is_finished()) {
            all.merge(aggregator.take(60));
        }
    });
    all.merge(aggregator.take(60));
    assert_eq!(all.total(), counts(80_000, 160_000, 240_000));
}

#[test]
fn a_slot_belongs_to_the_minute_of_its_middle() {
    for (now, minute) in [(0, 0), (66, 0), (67, 60), (120, 60), (126, 60), (127, 120)] {
        let aggregator = Aggregator::new(Bounds::default());
        aggregator.record("s", &["v"], None, counts(1, 0, 1));
        let batch = aggregator.take(now);
        assert_eq!(batch.counts("s", minute, &Series::new(&["v"])), Some(counts(1, 0, 1)), "{now}");
    }
}
