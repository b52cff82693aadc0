//! A bound on how often the same thing is logged.

use std::time::{Duration, Instant};

/// Allows one log line a second.
#[derive(Debug, Default)]
pub struct OncePerSecond(Option<Instant>);

impl OncePerSecond {
    /// Whether a line may be logged now. The next one may be a second later.
    pub fn is_due(&mut self) -> bool {
        let is_due = self.0.is_none_or(|logged| logged.elapsed() >= Duration::from_secs(1));
        if is_due {
            self.0 = Some(Instant::now());
        }
        is_due
    }
}
