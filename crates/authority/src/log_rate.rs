//! A bound on how often the same thing is logged.

use std::time::{Duration, Instant};

/// Allows one log line a second, or in another time.
#[derive(Debug, Default)]
pub struct OncePerSecond(Option<Instant>);

impl OncePerSecond {
    /// Whether a line may be logged now. The next one may be a second later.
    pub fn is_due(&mut self) -> bool {
        self.is_due_each(Duration::from_secs(1))
    }

    /// The same with the next one after this time.
    pub fn is_due_each(&mut self, time: Duration) -> bool {
        self.is_due_at(Instant::now(), time)
    }

    fn is_due_at(&mut self, now: Instant, time: Duration) -> bool {
        let is_due = self.0.is_none_or(|logged| now - logged >= time);
        if is_due {
            self.0 = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_due_at_first_and_then_a_second_after_the_last() {
        let (mut rate, start) = (OncePerSecond::default(), Instant::now());
        let due = [0, 0, 999, 1_000, 1_001, 1_999, 2_000, 5_000, 5_999].map(|millis| {
            let now = start + Duration::from_millis(millis);
            rate.is_due_at(now, Duration::from_secs(1)).then_some(millis)
        });
        assert_eq!(due.iter().flatten().collect::<Vec<_>>(), [&0, &1_000, &2_000, &5_000]);
    }
}
