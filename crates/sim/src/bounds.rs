//! The bounds that limits promise, checked for each admitted hit.
//!
//! Times are those of the sidecar's wall clock, which never steps in scenarios with bounds and so
//! is true time. Hits may arrive slightly out of order: those of a call count at the time of the
//! sidecar's decision, and are known once the response has arrived.

use crate::limits::{Algorithm, Limit};
use std::collections::{BTreeMap, VecDeque};

/// The most that a hit may be backdated: longer than any call takes.
const LATE: u64 = 2_000_000_000;

#[derive(Debug)]
pub(crate) enum Bound {
    /// Aligned windows, with borrowing.
    Windows(Windows),
    /// Windows as the sidecar opens them.
    FirstHit(FirstHit),
    /// Burst and rate.
    LeakyBucket(LeakyBucket),
    /// Any span of one period.
    Span(Span),
}

impl Bound {
    /// The bound of `limit` if leases last up to `ttl`.
    #[must_use]
    pub(crate) fn of(limit: &Limit, ttl: u64) -> Bound {
        let (requests, period) = (limit.requests, limit.period);
        match limit.algorithm {
            Algorithm::FixedWindow => Bound::Windows(Windows::new(limit, 0, 0)),
            Algorithm::Borrow => Bound::Windows(Windows::new(limit, limit.borrow, 0)),
            Algorithm::Zone => {
                Bound::Windows(Windows::new(limit, 0, limit.zone_minutes * 60_000_000_000))
            }
            Algorithm::FirstHitWindow => {
                Bound::FirstHit(FirstHit { requests, period, windows: VecDeque::new() })
            }
            Algorithm::TokenBucket => {
                let burst = u128::from(limit.burst) * u128::from(period);
                Bound::LeakyBucket(LeakyBucket::new(
                    limit,
                    burst + u128::from(requests) * u128::from(ttl),
                ))
            }
            Algorithm::SlidingWindow => Bound::LeakyBucket(LeakyBucket::new(
                limit,
                u128::from(requests) * u128::from(period),
            )),
            Algorithm::SlidingBuckets | Algorithm::Exact => {
                Bound::Span(Span { requests, period, hits: VecDeque::new(), gone: 0 })
            }
        }
    }

    /// The sidecar charged hits to a window that ends at `end`.
    pub(crate) fn charged(&mut self, end: u64) {
        if let Bound::FirstHit(windows) = self
            && !windows.windows.iter().any(|(known, _)| *known == end)
        {
            windows.windows.push_back((end, 0));
            if windows.windows.len() > 8 {
                windows.windows.pop_front();
            }
        }
    }

    /// `hits` were admitted at `at`.
    ///
    /// # Errors
    /// If that exceeds the limit: the hits, the place, and the limit.
    pub(crate) fn admit(&mut self, at: u64, hits: u64) -> Result<(), String> {
        match self {
            Bound::Windows(windows) => windows.admit(at, hits),
            Bound::FirstHit(windows) => windows.admit(at, hits),
            Bound::LeakyBucket(bucket) => bucket.admit(at, hits),
            Bound::Span(span) => span.admit(at, hits),
        }
    }
}

/// Aligned windows: k consecutive windows admit at most k limits, and what may be borrowed.
#[derive(Debug)]
pub(crate) struct Windows {
    requests: u64,
    period: u64,
    borrow: u64,
    shift: u64,
    counts: BTreeMap<u64, u64>,
    /// The debt of the windows before the first of `counts`.
    debt: u64,
}

impl Windows {
    fn new(limit: &Limit, borrow: u64, shift: u64) -> Windows {
        let (requests, period) = (limit.requests, limit.period);
        Windows { requests, period, borrow, shift, counts: BTreeMap::new(), debt: 0 }
    }

    fn admit(&mut self, at: u64, hits: u64) -> Result<(), String> {
        let window = (at + self.shift) / self.period;
        *self.counts.entry(window).or_default() += hits;
        let mut debt = self.debt;
        let mut before = None;
        for (window, count) in &self.counts {
            if let Some(before) = before {
                debt = self.after(debt, window - before - 1);
            }
            if debt + count > self.requests + self.borrow {
                let (requests, borrow) = (self.requests, self.borrow);
                return Err(format!(
                    "{count} hits in window {window} after a debt of {debt}, of {requests} and {borrow} to \
                     borrow"
                ));
            }
            debt = (debt + count).saturating_sub(self.requests);
            before = Some(*window);
        }
        // Windows longer than `LATE` need one before the last, shorter ones some more.
        let kept = 2 + usize::try_from(LATE / self.period).unwrap_or(0);
        while self.counts.len() > kept {
            let Some((window, count)) = self.counts.pop_first() else { break };
            let gap = self.counts.first_key_value().map_or(0, |(next, _)| next - window - 1);
            self.debt = self.after((self.debt + count).saturating_sub(self.requests), gap);
        }
        Ok(())
    }

    fn after(&self, debt: u64, windows: u64) -> u64 {
        debt.saturating_sub(self.requests.saturating_mul(windows))
    }
}

/// Windows that open at the first hit.
#[derive(Debug)]
pub(crate) struct FirstHit {
    requests: u64,
    period: u64,
    windows: VecDeque<(u64, u64)>,
}

impl FirstHit {
    fn admit(&mut self, at: u64, hits: u64) -> Result<(), String> {
        let within =
            |(end, _): &&mut (u64, u64)| at < *end && at >= end.saturating_sub(self.period);
        let Some((end, count)) = self.windows.iter_mut().rev().find(within) else {
            return Err(format!("{hits} hits at {at}, when no window was open"));
        };
        *count += hits;
        if *count > self.requests {
            let requests = self.requests;
            return Err(format!("{count} hits in the window that ends at {end}, of {requests}"));
        }
        Ok(())
    }
}

/// A leaky bucket that drains at the limit's rate: no span admits more than `capacity` and what the
/// rate gives. Its unit is a hit in nanoseconds of the period, so that nothing is rounded.
#[derive(Debug)]
pub(crate) struct LeakyBucket {
    requests: u128,
    period: u128,
    capacity: u128,
    /// The last hit that no later hit can precede.
    settled: Option<BucketHit>,
    recent: VecDeque<BucketHit>,
}

#[derive(Debug, Clone, Copy)]
struct BucketHit {
    at: u64,
    hits: u64,
    level: u128,
}

impl LeakyBucket {
    fn new(limit: &Limit, capacity: u128) -> LeakyBucket {
        let (requests, period) = (limit.requests.into(), limit.period.into());
        LeakyBucket { requests, period, capacity, settled: None, recent: VecDeque::new() }
    }

    fn admit(&mut self, at: u64, hits: u64) -> Result<(), String> {
        let at = self.settled.map_or(at, |settled| at.max(settled.at));
        let index = self.recent.partition_point(|hit| hit.at <= at);
        self.recent.insert(index, BucketHit { at, hits, level: 0 });
        for index in index..self.recent.len() {
            let before =
                index.checked_sub(1).map_or(self.settled, |index| Some(self.recent[index]));
            let hit = &mut self.recent[index];
            let left = before.map_or(0, |before| {
                let drained = self.requests * u128::from(hit.at - before.at);
                before.level.saturating_sub(drained)
            });
            hit.level = left + u128::from(hit.hits) * self.period;
            if hit.level > self.capacity {
                let over = (hit.level - self.capacity).div_ceil(self.period);
                return Err(format!("{over} hits more than burst and rate allow at {}", hit.at));
            }
        }
        let newest = self.recent.back().map_or(0, |hit| hit.at);
        while self.recent.len() > 1 && self.recent[0].at + LATE < newest {
            self.settled = self.recent.pop_front();
        }
        Ok(())
    }
}

/// Any span of one period, both ends included.
#[derive(Debug)]
pub(crate) struct Span {
    requests: u64,
    period: u64,
    /// Times, with the hits up to and at each.
    hits: VecDeque<(u64, u64)>,
    /// The hits before the oldest one that is kept.
    gone: u64,
}

impl Span {
    fn admit(&mut self, at: u64, hits: u64) -> Result<(), String> {
        let index = self.hits.partition_point(|(time, _)| *time <= at);
        let before = self.up_to(index);
        self.hits.insert(index, (at, before));
        for (_, sum) in self.hits.range_mut(index..) {
            *sum += hits;
        }
        for end in index..self.hits.len() {
            let (time, sum) = self.hits[end];
            if time > at + self.period {
                break;
            }
            let start = time.saturating_sub(self.period);
            let before = self.up_to(self.hits.partition_point(|(time, _)| *time < start));
            if sum - before > self.requests {
                let (count, requests) = (sum - before, self.requests);
                return Err(format!(
                    "{count} hits in the period that ends at {time}, of {requests}"
                ));
            }
        }
        let newest = self.hits.back().map_or(0, |(time, _)| *time);
        while let Some((time, sum)) = self.hits.front()
            && time + self.period + LATE < newest
        {
            self.gone = *sum;
            self.hits.pop_front();
        }
        Ok(())
    }

    /// The hits before this index.
    fn up_to(&self, index: usize) -> u64 {
        index.checked_sub(1).map_or(self.gone, |before| self.hits[before].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::SECOND;

    fn limit(algorithm: Algorithm) -> Limit {
        let (requests, period) = (10, 2 * SECOND);
        Limit { algorithm, requests, period, burst: 4, initial: 4, borrow: 5, zone_minutes: 0 }
    }

    /// Hits at tenths of a second, and the index of the first one above the bound.
    #[track_caller]
    fn check(algorithm: Algorithm, hits: &[(u64, u64)], broken: Option<usize>) {
        let mut bound = Bound::of(&limit(algorithm), SECOND / 10);
        // First-hit windows, by their ends.
        bound.charged(2 * SECOND);
        bound.charged(65 * SECOND / 10);
        let first =
            hits.iter().position(|(at, hits)| bound.admit(at * SECOND / 10, *hits).is_err());
        assert_eq!(first, broken, "{algorithm:?} {hits:?}");
    }

    #[test]
    fn each_bound_holds_to_its_last_hit() {
        use Algorithm as A;
        for algorithm in [A::FixedWindow, A::Zone] {
            check(algorithm, &[(1, 5), (19, 5), (20, 10), (39, 1)], Some(3));
            check(algorithm, &[(20, 10), (19, 10), (19, 1)], Some(2));
        }
        check(A::Borrow, &[(1, 15), (20, 10), (41, 10), (80, 15), (81, 1)], Some(4));
        check(A::Borrow, &[(1, 15), (20, 11)], Some(1));
        check(A::FirstHitWindow, &[(19, 10), (45, 10), (64, 1)], Some(2));
        check(A::FirstHitWindow, &[(19, 10), (21, 1)], Some(1));
        // Four at once, half a token for the lease, and five a second.
        check(A::TokenBucket, &[(10, 4), (12, 1), (13, 1), (13, 1)], Some(3));
        check(A::TokenBucket, &[(12, 1), (10, 4), (20, 4), (20, 1)], Some(3));
        check(A::SlidingWindow, &[(10, 10), (12, 1), (13, 1)], Some(2));
        for algorithm in [A::SlidingBuckets, A::Exact] {
            check(algorithm, &[(10, 10), (30, 1)], Some(1));
            check(algorithm, &[(10, 10), (31, 10), (50, 1)], Some(2));
            check(algorithm, &[(31, 5), (10, 5), (30, 1), (20, 4), (29, 1)], Some(4));
        }
    }
}
