//! The waits between attempts to reach the server of limits.
//!
//! They double from a quarter of a second, so a server that restarts is found soon, to a minute, so that many
//! clients do not keep down one that is overloaded. Each differs by chance, so that clients of one server spread out.

use std::time::Duration;

/// The wait after a first failure. The discovery protocol leaves it to the client.
pub(crate) const INITIAL: Duration = Duration::from_millis(250);
pub(crate) const MAX: Duration = Duration::from_secs(60);
/// The share by which a wait differs at most.
pub(crate) const JITTER: f64 = 0.5;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BackoffSettings {
    pub initial: Duration,
    pub max: Duration,
    /// From 0, for waits that do not differ, to 1.
    pub jitter: f64,
    /// A wait of its own after a connection that did not come about.
    pub connect: Option<Duration>,
}

impl Default for BackoffSettings {
    fn default() -> Self {
        BackoffSettings { initial: INITIAL, max: MAX, jitter: JITTER, connect: None }
    }
}

#[derive(Debug)]
pub(super) struct Backoff {
    settings: BackoffSettings,
    next: Duration,
}

impl Backoff {
    pub(super) fn new(settings: BackoffSettings) -> Backoff {
        Backoff { settings, next: settings.initial.min(settings.max) }
    }

    /// The server has answered.
    pub(super) fn reset(&mut self) {
        self.next = self.settings.initial.min(self.settings.max);
    }

    /// The next wait; `chance` is from 0 to 1.
    pub(super) fn wait(&mut self, is_connected: bool, chance: f64) -> Duration {
        let wait = match self.settings.connect {
            Some(wait) if !is_connected => wait,
            _ => {
                let wait = self.next;
                self.next = wait.saturating_mul(2).min(self.settings.max);
                wait
            }
        };
        wait.mul_f64(1.0 + self.settings.jitter * (2.0 * chance - 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_begin_anew_after_an_answer() {
        let mut backoff = Backoff::new(BackoffSettings::default());
        let waits: Vec<u64> = (0..10).map(|_| backoff.wait(true, 0.5).as_millis() as u64).collect();
        assert_eq!(waits, [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
        backoff.reset();
        assert_eq!(backoff.wait(true, 0.0), Duration::from_millis(125));
        assert_eq!(backoff.wait(true, 1.0), Duration::from_millis(750));
    }

    #[test]
    fn a_connection_may_have_a_wait_of_its_own() {
        let connect = Some(Duration::from_secs(3));
        let settings =
            BackoffSettings { initial: Duration::from_secs(10), connect, ..Default::default() };
        let mut backoff = Backoff::new(settings);
        for _ in 0..3 {
            assert_eq!(backoff.wait(false, 0.5), Duration::from_secs(3));
        }
        assert_eq!(backoff.wait(true, 0.5), Duration::from_secs(10));
    }
}
