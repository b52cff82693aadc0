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
use crate::decision::{Decision, Outcome};
use crate::rate::QuotaError;
use crate::state::WIDE_WORDS;
use crate::units::{Charge, Nanos, Timestamp};

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

/// A window whose hits a reset can forget. None of these functions regards resets.
pub(crate) trait Resettable {
    fn decide(&self, state: &mut [u64], charge: Charge, now: Timestamp) -> Decision;

    /// When the last hit came; the start of its window if no time was recorded.
    fn last_hit(&self, state: &[u64]) -> Option<u64>;

    /// The end of the window or bucket that counts a charge at `now`; the same before and after the charge.
    fn spendable_until(&self, state: &[u64], now: Timestamp) -> Timestamp;
}

/// Decides for a window with a reset.
#[cold]
#[inline(never)]
pub(crate) fn decide(
    window: &dyn Resettable,
    reset: &DailyReset,
    state: &mut [u64],
    charge: Charge,
    now: Timestamp,
) -> Decision {
    let (decision, last) = if is_over(reset, window.last_hit(state), now) {
        let mut new = [0; WIDE_WORDS];
        let new = &mut new[..state.len().min(WIDE_WORDS)];
        let decision = window.decide(new, charge, now);
        if new.iter().any(|word| *word != 0) {
            state[..new.len()].copy_from_slice(new);
        }
        (decision, window.last_hit(new))
    } else {
        let decision = window.decide(state, charge, now);
        (decision, window.last_hit(state))
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

/// Until when hits charged at `now` may be spent.
pub(crate) fn spendable_until(
    window: &dyn Resettable,
    reset: Option<&DailyReset>,
    state: &[u64],
    now: Timestamp,
) -> Timestamp {
    let Some(reset) = reset else { return window.spendable_until(state, now) };
    let last = window.last_hit(state);
    if is_over(reset, last, now) {
        return window.spendable_until(&[0; WIDE_WORDS], now).min(next(reset, 0, now));
    }
    window.spendable_until(state, now).min(next(reset, last.unwrap_or(0), now))
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
