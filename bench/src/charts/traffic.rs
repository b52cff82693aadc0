//! The traffic on the charts, and the part of it that an algorithm admits.
//!
//! Two bursts of 100 requests, just before and just after a boundary of the minute, then twice the limit's
//! rate to the end of the chart. One early request, 61 seconds before the boundary, makes a window from the
//! first hit end between the bursts, as a caller may choose where such windows end.

use crate::counter::Counter;
use tidegate_core::{Charge, Nanos, Quota, Timestamp};

/// Requests per period.
pub(super) const LIMIT: u32 = 60;
pub(super) const PERIOD: Nanos = Nanos::from_secs(60);
/// 2026-01-01 00:00:00 UTC, where a minute, an hour and a day begin.
pub(super) const BOUNDARY_SECS: u64 = 1_767_225_600;
/// The range of the charts, in seconds from the boundary.
pub(super) const FROM_SECS: i64 = -71;
pub(super) const TO_SECS: i64 = 131;

/// Start, end and interval, in milliseconds from the boundary.
const WAVES: [(i64, i64, usize); 4] =
    [(-61_000, -60_999, 1), (-11_000, -1_000, 100), (1_000, 11_000, 100), (21_000, 131_000, 500)];

/// Times of requests, in milliseconds from the boundary.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) offered: Vec<i64>,
    pub(super) admitted: Vec<i64>,
}

/// Decides every request of the traffic.
pub(super) fn admit(quota: &Quota) -> Admission {
    let waves = WAVES.into_iter().flat_map(|(from, to, apart)| (from..to).step_by(apart));
    let offered: Vec<i64> = waves.collect();
    let mut counter = Counter::default();
    let mut admitted = offered.clone();
    admitted.retain(|at| counter.decide(quota, Charge::ONE, timestamp(*at)).is_allow());
    Admission { offered, admitted }
}

fn timestamp(millis: i64) -> Timestamp {
    let boundary = BOUNDARY_SECS * 1_000_000_000;
    Timestamp::from_nanos(boundary.saturating_add_signed(millis * 1_000_000))
}

impl Admission {
    /// The number admitted in the period that ends at `at`, both ends included.
    pub(super) fn in_period_until(&self, at: i64) -> u64 {
        let from = at - (PERIOD.as_nanos() / 1_000_000) as i64;
        self.admitted.iter().filter(|admitted| (from..=at).contains(admitted)).count() as u64
    }

    /// The first end of a period with the most hits, and their number.
    pub(super) fn peak(&self) -> (i64, u64) {
        let ends = self.admitted.iter().map(|&at| (at, self.in_period_until(at)));
        ends.reduce(|most, end| if end.1 > most.1 { end } else { most }).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_includes_both_of_its_ends() {
        let admission = Admission { offered: vec![], admitted: vec![0, 1, 60_000, 60_001] };
        assert_eq!(admission.in_period_until(59_999), 2);
        assert_eq!(admission.in_period_until(60_000), 3);
        assert_eq!(admission.in_period_until(60_001), 3);
        assert_eq!(admission.peak(), (60_000, 3));
        assert_eq!(Admission { offered: vec![], admitted: vec![] }.peak(), (0, 0));
    }

    #[test]
    fn all_ask_for_the_same_traffic() {
        let [early, before, after, steady] =
            WAVES.map(|(from, to, apart)| (from..to).step_by(apart).count());
        assert_eq!((early, before, after, steady), (1, 100, 100, 220));
    }
}
