//! The time of the server, without asking it.
//!
//! An answer that carries the server's time T and arrives at the local monotonic time m proves that the server has
//! reached T at m. So T - m is a lower bound of the offset between the two clocks, and the largest one is the best.
//! A bound gets worse by a thousandth of its age, since the clocks may run at different speeds. The result is a time
//! that the server has reached for certain. Steps of the system's clock have no effect. Refuses to read the system's
//! clock.

use std::sync::atomic::{AtomicI64, Ordering};
use tidegate_core::Timestamp;

/// Two clocks differ by at most one part in so many. NTP adjusts by up to 0.5 parts in a thousand.
const DRIFT: u64 = 1_000;
const UNKNOWN: i64 = i64::MIN;
/// The year 2200. A server that claims a later time is not believed.
const LATEST_MICROS: u64 = 7_258_118_400_000_000;

/// The clock. Local times are nanoseconds of a monotonic clock.
#[derive(Debug)]
pub(crate) struct Clock {
    /// The time of the server at the local time 0, if its clock ran slower than ours by [`DRIFT`].
    base: AtomicI64,
}

impl Clock {
    pub(crate) const fn new() -> Clock {
        Clock { base: AtomicI64::new(UNKNOWN) }
    }

    /// The server has said that its time is `micros`, which arrived at `local`.
    pub(crate) fn observe(&self, micros: u64, local: u64) {
        if let Some(base) = base(micros, local) {
            self.base.fetch_max(base, Ordering::Relaxed);
        }
    }

    /// The server has a clock that is behind the one observed before, so that does not count any more.
    pub(crate) fn set_back(&self, micros: u64, local: u64) {
        if let Some(base) = base(micros, local) {
            self.base.store(base, Ordering::Relaxed);
        }
    }

    /// A time that the server has reached. None before its first answer.
    pub(crate) fn at(&self, local: u64) -> Option<Timestamp> {
        let base = self.base.load(Ordering::Relaxed);
        if base == UNKNOWN {
            return None;
        }
        Some(Timestamp::from_nanos(base.saturating_add_unsigned(slow(local)).max(0).unsigned_abs()))
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
            clock.observe(*micros, *local);
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
        clock.observe(70_000_000, SECOND);
        clock.observe(60_000_000, SECOND);
        assert_eq!(clock.at(SECOND), Some(Timestamp::from_secs(70)));
        clock.set_back(60_000_000, SECOND);
        assert_eq!(clock.at(SECOND), Some(Timestamp::from_secs(60)));
    }
}
