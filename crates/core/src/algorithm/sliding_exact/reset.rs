//! The daily reset of an exact window, in whole seconds: seconds before the last reset do not count. Also
//! the time of the last hit, which is in the last word of the root.

use super::{DailyReset, Levels, SECOND, SlidingExact, WIDE_WORDS};
use crate::units::Timestamp;

/// The word of the root with the last hit; 26 hours leave it free.
const LAST_WORD: usize = WIDE_WORDS - 1;

impl SlidingExact {
    /// When the last hit came, if recorded.
    pub(crate) fn last_hit(state: &[u64]) -> Option<u64> {
        state.get(LAST_WORD).copied().filter(|last| *last > 0)
    }
}

impl Levels<'_> {
    /// Records a hit, unless a later one that still counts is recorded.
    pub(super) fn record(&mut self, now: Timestamp, used: u64) {
        let last = &mut self.words_mut(Self::ROOT)[LAST_WORD];
        let noted = if used > 0 { *last } else { 0 };
        *last = now.as_nanos().max(noted).max(1);
    }

    /// The second `at`, or that of the first reset from `second` on if it is earlier.
    #[inline]
    pub(super) fn unless_reset(&self, second: u64, at: u64) -> u64 {
        match self.reset {
            None => at,
            Some(reset) => reset_from(reset, second).min(at),
        }
    }
}

/// The second of the last reset up to `second`.
#[cold]
#[inline(never)]
pub(super) fn last_reset(reset: &DailyReset, second: u64) -> u64 {
    reset.previous(second.saturating_mul(SECOND)) / SECOND
}

/// The second from which the first reset after `second` is in effect.
#[cold]
#[inline(never)]
fn reset_from(reset: &DailyReset, second: u64) -> u64 {
    match reset.next(second.saturating_mul(SECOND).saturating_sub(1)) {
        u64::MAX => u64::MAX,
        next => next.div_ceil(SECOND),
    }
}
