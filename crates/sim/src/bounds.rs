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
    /// The bound of a limit that changes between these two, if leases last up to `ttl`.
    #[must_use]
    pub(crate) fn of(one: &Limit, other: &Limit, ttl: u64) -> Bound {
        let limit = &one.max(*other);
        let (requests, period) = (limit.requests, limit.period);
        match limit.algorithm {
            Algorithm::FixedWindow => Bound::Windows(Windows::new(limit, 0)),
            Algorithm::Borrow => Bound::Windows(Windows {
                borrow: limit.borrow,
                inherited: one.borrow.min(other.borrow),
                ..Windows::new(limit, 0)
            }),
            Algorithm::Zone => {
                Bound::Windows(Windows::new(limit, limit.zone_minutes * 60_000_000_000))
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
                Bound::Span(Span { requests, period, lag: 0, hits: VecDeque::new(), gone: 0 })
            }
        }
    }

    /// The sidecar charged hits to a window that ends at `end`.
    pub(crate) fn charged(&mut self, end: u64) {
        if let Bound::FirstHit(windows) = self
            && !windows.windows.iter().any(|(known, _)| *known == end)
        {
            let place = windows.windows.partition_point(|(known, _)| *known < end);
            windows.windows.insert(place, (end, Count::default()));
            if windows.windows.len() > 8 {
                windows.windows.pop_front();
            }
        }
    }

    /// Hits were admitted.
    ///
    /// # Errors
    /// If that exceeds the limit: the hits, the place, and the limit.
    pub(crate) fn admit(&mut self, admitted: Admitted) -> Result<(), String> {
        match self {
            Bound::Windows(windows) => windows.admit(admitted),
            Bound::FirstHit(windows) => windows.admit(admitted),
            Bound::LeakyBucket(bucket) => bucket.admit(admitted),
            Bound::Span(span) => span.admit(admitted),
        }
    }
}

/// Hits, and when they may count: a sidecar knows the time of shared counters with a lag.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Admitted {
    pub(crate) hits: u64,
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Hits beyond the limit that a failover has made room for.
    pub(crate) extra: u64,
}

/// Hits of a window.
#[derive(Debug, Default, Clone, Copy)]
struct Count {
    own: u64,
    /// Hits that count in it or in the next one.
    or_next: u64,
}

/// Aligned windows: k consecutive windows admit at most k limits, and what may be borrowed.
#[derive(Debug)]
pub(crate) struct Windows {
    requests: u64,
    period: u64,
    borrow: u64,
    /// The most debt that a window passes on. What was borrowed under a larger limit is not collected under a smaller
    /// one.
    inherited: u64,
    shift: u64,
    counts: BTreeMap<u64, Count>,
    /// The debt of the windows before the first of `counts`.
    debt: u64,
}

impl Windows {
    /// Windows that borrow nothing.
    fn new(limit: &Limit, shift: u64) -> Windows {
        let (requests, period) = (limit.requests, limit.period);
        let (borrow, inherited, debt) = (0, 0, 0);
        Windows { requests, period, borrow, inherited, shift, counts: BTreeMap::new(), debt }
    }

    fn admit(&mut self, admitted: Admitted) -> Result<(), String> {
        let Admitted { hits, from, to, extra } = admitted;
        let (first, last) = ((from + self.shift) / self.period, (to + self.shift) / self.period);
        if first == last {
            self.counts.entry(last).or_default().own += hits;
        } else {
            self.counts.entry(last - 1).or_default().or_next += hits;
            self.counts.entry(last).or_default();
        }
        let (mut debt, mut moved, mut before) = (self.debt, 0, None);
        for (window, count) in &self.counts {
            if let Some(before) = before {
                debt = self.after(debt, window - before - 1);
            }
            (debt, moved) = self.next(debt, moved, *count, extra).map_err(|(count, debt)| {
                let (requests, borrow) = (self.requests, self.borrow);
                format!(
                    "{count} hits in window {window} after a debt of {debt}, of {requests} and {borrow} to \
                     borrow"
                )
            })?;
            before = Some(*window);
        }
        // Windows longer than `LATE` need one before the last, shorter ones some more.
        let kept = 2 + usize::try_from(LATE / self.period).unwrap_or(0);
        while self.counts.len() > kept {
            let Some((window, count)) = self.counts.pop_first() else { break };
            let (debt, moved) = self.next(self.debt, 0, count, extra).unwrap_or_default();
            let Some(mut next) = self.counts.first_entry() else { break };
            next.get_mut().own += moved;
            let gap = next.key() - window - 1;
            self.debt = self.after(debt, gap);
        }
        Ok(())
    }

    /// The debt after a window, and the hits of it that the next one must take. Those that may be in either are in this
    /// one if it has room.
    fn next(
        &self,
        debt: u64,
        moved: u64,
        count: Count,
        extra: u64,
    ) -> Result<(u64, u64), (u64, u64)> {
        let (own, most) = (count.own + moved, self.requests + self.borrow + extra);
        let Some(room) = most.checked_sub(debt + own) else { return Err((own, debt)) };
        let here = count.or_next.min(room);
        let debt = (debt + own + here).saturating_sub(self.requests + extra);
        Ok((debt.min(self.inherited), count.or_next - here))
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
    /// Their ends, in their order.
    windows: VecDeque<(u64, Count)>,
}

impl FirstHit {
    fn admit(&mut self, admitted: Admitted) -> Result<(), String> {
        let Admitted { hits, from, to, extra } = admitted;
        let within = |(end, _): &(u64, Count)| from < *end && to >= end.saturating_sub(self.period);
        let Some(first) = self.windows.iter().position(within) else {
            return Err(format!("{hits} hits at {from}, when no window was open"));
        };
        let is_either = self.windows.get(first + 1).is_some_and(within);
        let count = &mut self.windows[first].1;
        *(if is_either { &mut count.or_next } else { &mut count.own }) += hits;
        let mut moved = 0;
        for (end, count) in &self.windows {
            let (own, requests) = (count.own + moved, self.requests);
            let Some(room) = (requests + extra).checked_sub(own) else {
                return Err(format!("{own} hits in the window that ends at {end}, of {requests}"));
            };
            moved = count.or_next.saturating_sub(room);
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
    /// The longest lag of a hit.
    lag: u64,
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
        LeakyBucket { requests, period, capacity, lag: 0, settled: None, recent: VecDeque::new() }
    }

    fn admit(&mut self, admitted: Admitted) -> Result<(), String> {
        let Admitted { hits, from, to, extra } = admitted;
        self.lag = self.lag.max(to - from);
        let capacity =
            self.capacity + u128::from(extra) * self.period + self.requests * u128::from(self.lag);
        let at = self.settled.map_or(from, |settled| from.max(settled.at));
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
            if hit.level > capacity {
                let over = (hit.level - capacity).div_ceil(self.period);
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
    /// The longest lag of a hit.
    lag: u64,
    /// Times, with the hits up to and at each.
    hits: VecDeque<(u64, u64)>,
    /// The hits before the oldest one that is kept.
    gone: u64,
}

impl Span {
    fn admit(&mut self, admitted: Admitted) -> Result<(), String> {
        let Admitted { hits, from: at, to, extra } = admitted;
        self.lag = self.lag.max(to - at);
        let period = self.period.saturating_sub(self.lag);
        let index = self.hits.partition_point(|(time, _)| *time <= at);
        let before = self.up_to(index);
        self.hits.insert(index, (at, before));
        for (_, sum) in self.hits.range_mut(index..) {
            *sum += hits;
        }
        for end in index..self.hits.len() {
            let (time, sum) = self.hits[end];
            if time > at + period {
                break;
            }
            let start = time.saturating_sub(period);
            let before = self.up_to(self.hits.partition_point(|(time, _)| *time < start));
            if sum - before > self.requests + extra {
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
        let limit = limit(algorithm);
        let mut bound = Bound::of(&limit, &limit, SECOND / 10);
        // First-hit windows, by their ends.
        bound.charged(2 * SECOND);
        bound.charged(65 * SECOND / 10);
        let admitted = |(at, hits): &(u64, u64)| {
            let at = at * SECOND / 10;
            Admitted { hits: *hits, from: at, to: at, extra: 0 }
        };
        let first = hits.iter().position(|hits| bound.admit(admitted(hits)).is_err());
        assert_eq!(first, broken, "{algorithm:?} {hits:?}");
    }

    /// Hits from one tenth of a second to another, beside two hits more, and the index of the first one above the bound.
    #[track_caller]
    fn check_late(algorithm: Algorithm, hits: &[(u64, u64, u64)], broken: Option<usize>) {
        let limit = limit(algorithm);
        let mut bound = Bound::of(&limit, &limit, SECOND / 10);
        bound.charged(2 * SECOND);
        bound.charged(4 * SECOND);
        let admitted = |(from, to, hits): &(u64, u64, u64)| {
            let (from, to) = (from * SECOND / 10, to * SECOND / 10);
            Admitted { hits: *hits, from, to, extra: 2 }
        };
        let first = hits.iter().position(|hits| bound.admit(admitted(hits)).is_err());
        assert_eq!(first, broken, "{algorithm:?} {hits:?}");
    }

    #[test]
    fn hits_with_a_lag_count_where_there_is_room() {
        for algorithm in [Algorithm::FixedWindow, Algorithm::FirstHitWindow] {
            check_late(algorithm, &[(1, 1, 11), (19, 21, 1), (19, 22, 12), (30, 30, 1)], Some(3));
            check_late(algorithm, &[(19, 21, 12), (1, 1, 12), (30, 30, 1)], Some(2));
            check_late(algorithm, &[(19, 21, 24), (1, 1, 1)], Some(1));
        }
        check_late(Algorithm::SlidingBuckets, &[(10, 11, 12), (30, 30, 12), (25, 25, 1)], Some(2));
    }

    /// A run was reported as broken where a limit shrank while its window began, and grew again.
    #[test]
    fn a_window_owes_at_most_what_the_smaller_limit_could_borrow() {
        let base = limit(Algorithm::Borrow);
        for (per_cent, first, next) in [(10, 15, 14), (80, 15, 11), (100, 15, 10), (200, 30, 25)] {
            let mut bound = Bound::of(&base, &base.scaled(per_cent), SECOND);
            let mut admit = |second, hits| {
                let at = second * SECOND;
                bound.admit(Admitted { hits, from: at, to: at, extra: 0 })
            };
            assert_eq!(admit(1, first), Ok(()));
            assert_eq!(admit(2, next), Ok(()));
            assert!(admit(3, 1).is_err(), "{per_cent} %");
        }
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
