//! Batches that wait for the database, in bounded memory.
//!
//! All that waits is one batch. A part of it that was sent once stays as it is, with its number, until its fate is known: it
//! may be in the database already. When there is no room left, hours are merged; then the oldest is dropped, and counted.

use crate::batch::{Batch, Point};
use crate::database::PartId;
use crate::series::Counts;
use std::collections::VecDeque;
use std::sync::Arc;

/// Rows of a transaction: some tens of milliseconds.
const PART_POINTS: usize = 4_000;

#[derive(Debug)]
pub(crate) struct Backlog {
    waiting: Batch,
    parts: VecDeque<(PartId, Arc<[Point]>)>,
    next: PartId,
    bytes_max: usize,
    /// What was dropped since the start.
    dropped: Counts,
}

impl Backlog {
    /// `writer` is a number that no other writer has had.
    pub(crate) fn new(writer: u64, bytes_max: usize) -> Backlog {
        Backlog {
            waiting: Batch::default(),
            parts: VecDeque::new(),
            next: PartId { writer, sequence: 0 },
            bytes_max,
            dropped: Counts::default(),
        }
    }

    pub(crate) fn add(&mut self, batch: Batch) {
        self.waiting.merge(batch);
        if self.bytes() > self.bytes_max {
            self.waiting.coarsen();
        }
        while self.bytes() > self.bytes_max && !self.waiting.is_empty() {
            let dropped = self.waiting.drop_oldest();
            self.dropped.add(dropped);
        }
    }

    /// The part to send: the same one until it is settled.
    pub(crate) fn next(&mut self) -> Option<(PartId, Arc<[Point]>)> {
        if self.parts.is_empty() {
            let waiting = std::mem::take(&mut self.waiting);
            for points in waiting.into_parts(PART_POINTS) {
                self.parts.push_back((self.next, points.into()));
                self.next.sequence += 1;
            }
        }
        self.parts.front().cloned()
    }

    /// The part is in the database.
    pub(crate) fn written(&mut self) {
        self.parts.pop_front();
    }

    /// The part will never be in the database.
    pub(crate) fn refused(&mut self) {
        for point in self.parts.pop_front().iter().flat_map(|(_, points)| points.iter()) {
            self.dropped.add(point.tally.counts);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.waiting.is_empty()
    }

    pub(crate) fn dropped(&self) -> Counts {
        self.dropped
    }

    /// About its size in memory.
    pub(crate) fn bytes(&self) -> usize {
        let parts = self.parts.iter().flat_map(|(_, points)| points.iter());
        self.waiting.bytes() + parts.map(Point::bytes).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::{Series, Tally};
    use proptest::prelude::*;

    fn batch(minute: u64, series: std::ops::Range<u32>) -> Batch {
        let mut batch = Batch::default();
        for n in series {
            let counts = Counts { allowed: 1, denied: 2, hits: 3 };
            let tally = Tally { counts, sketch: None };
            batch.add(&Arc::from("s"), minute * 60, Series::new(&[&n.to_string()]), tally);
        }
        batch
    }

    fn sum(points: &[Point]) -> Counts {
        let mut sum = Counts::default();
        points.iter().for_each(|point| sum.add(point.tally.counts));
        sum
    }

    #[test]
    fn a_part_keeps_its_number_until_it_is_settled() {
        let mut backlog = Backlog::new(7, 1 << 30);
        assert!(backlog.next().is_none());
        backlog.add(batch(0, 0..10));
        let (id, points) = backlog.next().unwrap();
        assert_eq!((id, points.len()), (PartId { writer: 7, sequence: 0 }, 10));
        // What comes later is no part of it.
        backlog.add(batch(0, 0..10));
        backlog.add(batch(0, 5..20));
        assert_eq!(backlog.next().unwrap(), (id, points));
        backlog.written();
        let (id, points) = backlog.next().unwrap();
        assert_eq!((id.sequence, points.len()), (1, 20));
        assert_eq!(sum(&points).allowed, 25);
        backlog.refused();
        assert!(backlog.is_empty());
        assert_eq!(backlog.dropped(), Counts { allowed: 25, denied: 50, hits: 75 });
    }

    #[test]
    fn a_large_batch_is_several_parts() {
        let mut backlog = Backlog::new(7, 1 << 30);
        backlog.add(batch(0, 0..10_000));
        let mut sizes = Vec::new();
        while let Some((id, points)) = backlog.next() {
            sizes.push((id.sequence, points.len()));
            backlog.written();
        }
        assert_eq!(sizes, [(0, 4_000), (1, 4_000), (2, 2_000)]);
    }

    #[test]
    fn a_day_without_a_database_keeps_its_sums_in_hours() {
        let mut backlog = Backlog::new(7, 2 * 1024 * 1024);
        for minute in 0..24 * 60 {
            backlog.add(batch(minute, 0..100));
            assert!(backlog.bytes() <= 2 * 1024 * 1024);
        }
        assert_eq!(backlog.dropped(), Counts::default());
        let mut all = Counts::default();
        while let Some((_, points)) = backlog.next() {
            all.add(sum(&points));
            backlog.written();
        }
        assert_eq!(all.allowed, 24 * 60 * 100);
    }

    proptest! {
        #[test]
        fn all_is_written_dropped_or_kept(
            steps in prop::collection::vec((0..600_u64, 0..200_u32, 0..4_u8), 1..60),
            bytes_max in 1_000..100_000_usize,
        ) {
            let mut backlog = Backlog::new(1, bytes_max);
            let (mut added, mut written) = (Counts::default(), Counts::default());
            for (minute, series, then) in steps {
                let batch = batch(minute, 0..series);
                added.add(batch.total());
                backlog.add(batch);
                let part = backlog.next();
                match (then, part) {
                    (0, Some((_, points))) => {
                        written.add(sum(&points));
                        backlog.written();
                    }
                    (1, Some(_)) => backlog.refused(),
                    _ => {}
                }
            }
            while let Some((_, points)) = backlog.next() {
                written.add(sum(&points));
                backlog.written();
            }
            written.add(backlog.dropped());
            prop_assert_eq!(written, added);
        }
    }
}
