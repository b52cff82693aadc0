//! Merging at bounds.

use super::*;
use crate::sketch::Sketch;

fn batch(series: impl IntoIterator<Item = (&'static str, u64)>) -> Batch {
    let mut batch = Batch::default();
    for (value, allowed) in series {
        let counts = Counts { allowed, denied: 0, hits: allowed };
        let mut sketch = Sketch::default();
        sketch.add(value);
        let tally = Tally { counts, sketch: Some(sketch) };
        batch.add(&Arc::from("s"), 60, Series::new(&[value]), tally);
    }
    batch
}

#[test]
fn merged_batches_can_be_bounded_again() {
    let mut all = batch([("a", 1), ("b", 2), ("c", 3)]);
    all.merge(batch([("a", 5), ("d", 4), ("e", 1)]));
    let total = all.total();
    all.bound(Bounds { series_max: 2, ..Bounds::default() });
    let found = |series: &Series| all.counts("s", 60, series).map(|counts| counts.allowed);
    assert_eq!(found(&Series::new(&["a"])), Some(6));
    assert_eq!(found(&Series::new(&["d"])), Some(4));
    assert_eq!(found(&Series::Other), Some(6));
    assert_eq!((all.len(), all.total()), (3, total));
    let group = all.groups.values().next().unwrap();
    assert_eq!(group[&Series::Other].sketch.as_ref().unwrap().count(), 3);
}

#[test]
fn counts_saturate() {
    let mut all = batch([("a", u64::MAX)]);
    all.merge(batch([("a", 5)]));
    let found = all.counts("s", 60, &Series::new(&["a"])).unwrap();
    assert_eq!((found.allowed, found.hits), (u64::MAX, u64::MAX));
}
