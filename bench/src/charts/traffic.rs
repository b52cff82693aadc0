//! The traffic that every algorithm gets, and what it admits of it.
//!
//! Two bursts of 100 requests, one just before a boundary of the minute and one just after, and
//! then twice as many requests as the limit allows, for as long as the chart goes on. One early
//! request, a minute and a second before the boundary, makes the window that opens at its first
//! hit end between the bursts too: where such windows end is up to the caller.

use crate::counter::Counter;
use tidegate_core::{Charge, Nanos, Quota, Timestamp};

/// Requests per period.
pub(super) const LIMIT: u32 = 60;
pub(super) const PERIOD: Nanos = Nanos::from_secs(60);
/// 2026-01-01 00:00:00 UTC, where a minute begins as well as an hour and a day.
pub(super) const BOUNDARY_SECS: u64 = 1_767_225_600;
/// What is shown, in seconds from the boundary.
pub(super) const FROM_SECS: i64 = -71;
pub(super) const TO_SECS: i64 = 131;

/// In milliseconds from the boundary: from when, up to when, and how far apart.
const WAVES: [(i64, i64, usize); 4] =
    [(-61_000, -60_999, 1), (-11_000, -1_000, 100), (1_000, 11_000, 100), (21_000, 131_000, 500)];

/// When requests came, in milliseconds from the boundary.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) offered: Vec<i64>,
    pub(super) admitted: Vec<i64>,
}

/// Asks for every request of the traffic.
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
    /// How many were admitted in the period up to `at`, both ends included.
    pub(super) fn in_period_until(&self, at: i64) -> u64 {
        let from = at - (PERIOD.as_nanos() / 1_000_000) as i64;
        self.admitted.iter().filter(|admitted| (from..=at).contains(admitted)).count() as u64
    }

    /// The first time at which the period up to then has the most, and how many it has.
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
