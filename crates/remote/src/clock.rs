//! The time of the server, without asking it.
//!
//! An answer that carries the server's time T and arrives at the local monotonic time m proves that the server has
//! reached T at m. So T - m is a lower bound of the offset between the two clocks, and the largest one is the best.
//! A bound gets worse by a thousandth of its age, since the clocks may run at different speeds. The result is a time
//! that the server has reached for certain. Steps of the system's clock have no effect. Refuses to read the system's
//! clock.
//!
//! Each server of a cluster has a clock of its own, and a counter may be at any of them. So the time is one that all
//! servers which answer have reached.

use crate::slots::{Lane, NOWHERE};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use tidegate_core::Timestamp;

/// Two clocks differ by at most one part in so many. NTP adjusts by up to 0.5 parts in a thousand.
const DRIFT: u64 = 1_000;
const UNKNOWN: i64 = i64::MIN;
/// The year 2200. A server that claims a later time is not believed.
const LATEST_MICROS: u64 = 7_258_118_400_000_000;

/// The clock. Local times are nanoseconds of a monotonic clock.
#[derive(Debug)]
pub(crate) struct Clock {
    /// The time of the servers at the local time 0, if their clocks ran slower than ours by [`DRIFT`].
    base: AtomicI64,
    /// Whether it is that of servers which answer.
    is_live: AtomicBool,
    /// The same of each server.
    lanes: Mutex<Vec<Base>>,
}

/// A time that servers have reached. The least of several is one that all have reached which answer: the time of a server
/// that does not goes on too slowly, and would keep back the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reached {
    is_old: bool,
    pub(crate) time: Timestamp,
}

#[derive(Debug, Clone, Copy)]
struct Base {
    nanos: i64,
    /// Whether the server answers.
    is_up: bool,
}

impl Clock {
    pub(crate) const fn new() -> Clock {
        Clock {
            base: AtomicI64::new(UNKNOWN),
            is_live: AtomicBool::new(false),
            lanes: Mutex::new(Vec::new()),
        }
    }

    /// A server has said that its time is `micros`, which arrived at `local`.
    pub(crate) fn observe(&self, lane: Lane, micros: u64, local: u64) {
        if let Some(base) = base(micros, local) {
            self.set(lane, |before| Base { nanos: before.nanos.max(base), is_up: true });
        }
    }

    /// A server has a clock that is behind the one observed before, so that does not count any more.
    pub(crate) fn set_back(&self, lane: Lane, micros: u64, local: u64) {
        if let Some(base) = base(micros, local) {
            self.set(lane, |_| Base { nanos: base, is_up: true });
        }
    }

    /// A server does not answer any more, so its clock does not keep back the time.
    pub(crate) fn leave_out(&self, lane: Lane) {
        self.set(lane, |before| Base { is_up: false, ..before });
    }

    /// Another server has this lane from now on.
    pub(crate) fn forget(&self, lane: Lane) {
        self.set(lane, |_| Base { nanos: UNKNOWN, is_up: false });
    }

    /// The servers had reached this time at `local`, as an earlier process knew. It counts until one answers; the only
    /// server keeps it if its first answer says less.
    pub(crate) fn remember(&self, micros: u64, local: u64) {
        if let Some(base) = base(micros, local) {
            // No node of a cluster has this lane.
            self.set(NOWHERE, |before| Base { nanos: before.nanos.max(base), ..before });
            let order = Ordering::Relaxed;
            let _ = self.base.compare_exchange(UNKNOWN, base, order, order);
        }
    }

    fn set(&self, lane: Lane, change: impl FnOnce(Base) -> Base) {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if lanes.len() <= lane {
            lanes.resize(lane + 1, Base { nanos: UNKNOWN, is_up: false });
        }
        lanes[lane] = change(lanes[lane]);
        // The last time goes on while no server answers.
        let live = lanes.iter().filter(|base| base.is_up).map(|base| base.nanos).min();
        if let Some(base) = live {
            self.base.store(base, Ordering::Relaxed);
        }
        self.is_live.store(live.is_some(), Ordering::Relaxed);
    }

    /// A time that the server has reached. None before its first answer.
    pub(crate) fn at(&self, local: u64) -> Option<Timestamp> {
        let base = self.base.load(Ordering::Relaxed);
        if base == UNKNOWN {
            return None;
        }
        Some(Timestamp::from_nanos(base.saturating_add_unsigned(slow(local)).max(0).unsigned_abs()))
    }

    pub(crate) fn reached(&self, local: u64) -> Option<Reached> {
        let is_old = !self.is_live.load(Ordering::Relaxed);
        self.at(local).map(|time| Reached { is_old, time })
    }
}

const fn slow(local: u64) -> u64 {
    local - local / DRIFT
}

fn base(micros: u64, local: u64) -> Option<i64> {
    if micros > LATEST_MICROS {
        return None;
    }
    i64::try_from(micros * 1_000).ok()?.checked_sub_unsigned(slow(local))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn check(observed: &[(u64, u64)], local: u64, expected_micros: Option<u64>) {
        let clock = Clock::new();
        for (micros, local) in observed {
            clock.observe(0, *micros, *local);
        }
        let expected = expected_micros.map(|micros| Timestamp::from_nanos(micros * 1_000));
        assert_eq!(clock.at(local), expected, "{observed:?} at {local}");
    }

    #[test]
    fn the_time_is_the_latest_that_the_server_has_reached() {
        check(&[], 5, None);
        check(&[(70_000_000, SECOND)], SECOND, Some(70_000_000));
        // One thousandth less than the second that has passed.
        check(&[(70_000_000, SECOND)], 2 * SECOND, Some(70_999_000));
        // An answer that took longer says less, until the other one is old.
        check(
            &[(70_000_000, SECOND), (70_000_500, SECOND + 1_000_000)],
            2 * SECOND,
            Some(70_999_000),
        );
        check(&[(70_000_000, SECOND), (71_000_000, 2 * SECOND)], 2 * SECOND, Some(71_000_000));
        check(&[(u64::MAX, SECOND)], SECOND, None);
    }

    #[test]
    fn a_server_whose_clock_is_behind_sets_the_time_back() {
        let clock = Clock::new();
        clock.observe(0, 70_000_000, SECOND);
        clock.observe(0, 60_000_000, SECOND);
        assert_eq!(clock.at(SECOND), Some(Timestamp::from_secs(70)));
        clock.set_back(0, 60_000_000, SECOND);
        assert_eq!(clock.at(SECOND), Some(Timestamp::from_secs(60)));
    }

    #[test]
    fn the_time_is_one_that_all_servers_that_answer_have_reached() {
        let clock = Clock::new();
        let check = |secs| assert_eq!(clock.at(SECOND), Some(Timestamp::from_secs(secs)));
        clock.observe(1, 70_000_000, SECOND);
        check(70);
        clock.observe(2, 60_000_000, SECOND);
        check(60);
        clock.observe(2, 65_000_000, SECOND);
        check(65);
        clock.leave_out(2);
        check(70);
        clock.observe(2, 66_000_000, SECOND);
        clock.leave_out(1);
        check(66);
        clock.forget(2);
        check(66);
        clock.observe(2, 50_000_000, SECOND);
        check(50);
    }

    #[test]
    fn a_remembered_time_counts_until_a_server_answers() {
        let clock = Clock::new();
        let check = |secs| assert_eq!(clock.at(SECOND), Some(Timestamp::from_secs(secs)));
        clock.remember(60_000_000, SECOND);
        check(60);
        // A node of a cluster. The remembered time would keep it back for ever.
        clock.observe(1, 70_000_000, SECOND);
        check(70);
        clock.remember(50_000_000, SECOND);
        check(70);

        let clock = Clock::new();
        clock.remember(60_000_000, SECOND);
        // The only server, whose answer was long under way.
        clock.observe(0, 59_000_000, SECOND);
        assert_eq!(clock.at(SECOND), Some(Timestamp::from_secs(60)));
    }

    /// A server that was away for three hours kept the time of all others ten seconds behind theirs, so they refused
    /// every update as too late.
    #[test]
    fn a_server_that_does_not_answer_keeps_no_others_back() {
        let (away, up) = (Clock::new(), Clock::new());
        away.observe(0, 70_000_000, SECOND);
        away.leave_out(0);
        let later = 10_801 * SECOND;
        let reached = |clocks: [&Clock; 2]| {
            let reached = clocks.iter().filter_map(|clock| clock.reached(later)).min();
            reached.map(|reached| reached.time.as_nanos() / SECOND)
        };
        assert_eq!(reached([&away, &up]), Some(10_859));
        up.observe(0, 10_870_000_000, later);
        assert_eq!(reached([&away, &up]), Some(10_870));
        away.observe(0, 10_869_000_000, later);
        assert_eq!(reached([&away, &up]), Some(10_869));
    }
}
