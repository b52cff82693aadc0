//! Daily resets: at a time of day, all counters become as if never used.
//!
//! Nothing runs at that time. A counter whose last hit came before the last reset is treated as new, and no
//! answer extends beyond the next reset. Peeks, denials and refunds still write nothing. A day on which the
//! clock skips the time has its reset at the first instant after it; a day on which the clock shows it
//! twice, at the first.
//!
//! The first-hit window and the exact sliding window implement resets themselves: one knows when it opened,
//! the other when each of its hits came. A token bucket has no resets.
//!
//! Invariant: a reset never forgets a later hit. If the last hit was not recorded to the nanosecond, hits
//! of the same millisecond before the reset stay. Hits that are charged ahead must be spent before the next
//! reset.
//!
//! Source: the self-update of the Frequency Restrict Service (at an agreed point in time all nodes are
//! reset to factory state).

use super::calendar::{Cut, LocalWindows};
use super::zone::Zone;
use crate::quota::{Decision, Outcome, Quota, QuotaError, WIDE_WORDS};
use crate::units::{Nanos, Timestamp};

/// A time of day by a local clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DailyReset {
    time_of_day: Nanos,
    days: LocalWindows,
}

const DAY: Nanos = Nanos::from_secs(86_400);

impl DailyReset {
    /// A reset each day at `time_of_day` after midnight, by the clock of `zone`.
    ///
    /// # Errors
    /// If `time_of_day` is a day or more.
    pub fn new(time_of_day: Nanos, zone: &Zone) -> Result<Self, QuotaError> {
        if time_of_day >= DAY {
            return Err(QuotaError::ResetAfterDay(time_of_day));
        }
        let origin = i128::from(time_of_day.as_nanos());
        let cut = Cut::Fixed { period: DAY.as_nanos(), origin };
        Ok(DailyReset { time_of_day, days: LocalWindows::new(cut, zone) })
    }

    /// The time after midnight.
    #[must_use]
    pub fn time_of_day(&self) -> Nanos {
        self.time_of_day
    }

    /// The last reset at or before the instant `at`, in nanoseconds since the Unix epoch.
    pub(super) fn previous(&self, at: u64) -> u64 {
        self.days.window(at).start
    }

    /// The first reset after the instant `at`.
    pub(super) fn next(&self, at: u64) -> u64 {
        self.days.window(at).end
    }
}

/// Decides for a window with a reset. `plain` decides on a state without regard to resets.
#[cold]
#[inline(never)]
pub(super) fn decide(
    reset: &DailyReset,
    quota: &Quota,
    state: &mut [u64],
    now: Timestamp,
    plain: impl Fn(&mut [u64]) -> Decision,
) -> Decision {
    let (decision, last) = if is_over(reset, quota.recorded_hit(state), now) {
        let mut new = [0; WIDE_WORDS];
        let new = &mut new[..quota.state_size().words()];
        let decision = plain(new);
        if new.iter().any(|word| *word != 0) {
            state[..new.len()].copy_from_slice(new);
        }
        (decision, quota.recorded_hit(new))
    } else {
        let decision = plain(state);
        (decision, quota.recorded_hit(state))
    };
    let end = next(reset, last.unwrap_or(0), now);
    Decision {
        outcome: match decision.outcome {
            Outcome::Deny { retry_after } => {
                Outcome::Deny { retry_after: retry_after.min(end.saturating_since(now)) }
            }
            Outcome::Allow => Outcome::Allow,
        },
        reset_at: decision.reset_at.min(end),
        keep_until: decision.keep_until.min(end),
        ..decision
    }
}

/// [`Quota::spendable_until`] for a window with a reset. `until` computes it for a state without regard to
/// resets.
pub(crate) fn spendable_until(
    reset: &DailyReset,
    quota: &Quota,
    state: &[u64],
    now: Timestamp,
    until: impl Fn(&[u64]) -> Timestamp,
) -> Timestamp {
    let last = quota.recorded_hit(state);
    if is_over(reset, last, now) {
        return until(&[0; WIDE_WORDS]).min(next(reset, 0, now));
    }
    until(state).min(next(reset, last.unwrap_or(0), now))
}

/// Whether a reset came after the last hit.
pub(crate) fn is_over(reset: &DailyReset, last: Option<u64>, now: Timestamp) -> bool {
    last.is_some_and(|last| {
        let next = reset.next(last);
        next <= now.as_nanos() && next != u64::MAX
    })
}

/// The reset that ends the current window. If the clock was ahead at the last hit, the first reset after
/// that hit.
fn next(reset: &DailyReset, last: u64, now: Timestamp) -> Timestamp {
    Timestamp::from_nanos(reset.next(last.max(now.as_nanos())))
}
