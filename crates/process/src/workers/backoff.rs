//! The wait before a worker that ended is started again.

use std::time::Duration;

/// The first wait. The first restart is immediate.
const WAIT_MIN: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(10);
/// A worker that ran for this long did not fail because of its start.
const LIFETIME_MIN: Duration = Duration::from_secs(30);

/// Doubles with each short-lived worker.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    /// The wait after the end of a worker that ran for `lifetime`.
    pub(crate) fn wait_after(&mut self, lifetime: Duration) -> Duration {
        if lifetime >= LIFETIME_MIN {
            self.next = Duration::ZERO;
        }
        let wait = self.next;
        self.next = (wait * 2).clamp(WAIT_MIN, WAIT_MAX);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_until_a_worker_stays_up() {
        let mut backoff = Backoff::default();
        let mut waits = |lifetime, count| -> Vec<u128> {
            (0..count).map(|_| backoff.wait_after(lifetime).as_millis()).collect()
        };
        let expected = [0, 100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000];
        assert_eq!(waits(Duration::ZERO, 10), expected);
        assert_eq!(waits(LIFETIME_MIN, 2), [0, 0]);
        assert_eq!(waits(Duration::ZERO, 2), [100, 200]);
    }
}
