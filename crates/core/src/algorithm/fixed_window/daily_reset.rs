//! An agreed time of day at which counters start anew, by a local clock.
//!
//! A day that skips the time on the clock's face has its reset at the first instant after it; one that
//! shows it twice has it at the first. Windows of a day that begin at that time say all of this.

use super::calendar::{Cut, LocalWindows};
use super::zone::Zone;
use crate::quota::QuotaError;
use crate::units::Nanos;

/// A time of day by a local clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DailyReset {
    time_of_day: Nanos,
    days: LocalWindows,
}

const DAY: Nanos = Nanos::from_secs(86_400);

impl DailyReset {
    /// Each day at `time_of_day` after midnight, by the clock of `zone`.
    ///
    /// # Errors
    /// When that is a day or more.
    pub fn new(time_of_day: Nanos, zone: &Zone) -> Result<Self, QuotaError> {
        if time_of_day >= DAY {
            return Err(QuotaError::ResetAfterDay(time_of_day));
        }
        let origin = i128::from(time_of_day.as_nanos());
        let cut = Cut::Spans { period: DAY.as_nanos(), origin };
        Ok(DailyReset { time_of_day, days: LocalWindows::new(cut, zone) })
    }

    /// How long after midnight.
    #[must_use]
    pub fn time_of_day(&self) -> Nanos {
        self.time_of_day
    }

    /// The last reset up to the instant `at`, in nanoseconds since the Unix epoch.
    pub(in crate::algorithm) fn previous(&self, at: u64) -> u64 {
        self.days.window(at).start
    }

    /// The first reset after the instant `at`.
    pub(in crate::algorithm) fn next(&self, at: u64) -> u64 {
        self.days.window(at).end
    }
}
