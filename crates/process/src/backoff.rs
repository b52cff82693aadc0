//! How long to wait before a worker that ended is started again.

use std::time::Duration;

/// The first wait; the first start of all is at once.
const FIRST: Duration = Duration::from_millis(100);
const MOST: Duration = Duration::from_secs(10);
/// A worker that lived so long ended for a reason of its own, not for one of its start.
const LIVED: Duration = Duration::from_secs(30);

/// Doubles from one end to the next.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    /// How long to wait after the end of a worker that lived so long.
    pub(crate) fn after(&mut self, lived: Duration) -> Duration {
        if lived >= LIVED {
            self.next = Duration::ZERO;
        }
        let wait = self.next;
        self.next = (wait * 2).clamp(FIRST, MOST);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_until_a_worker_lives() {
        let mut backoff = Backoff::default();
        let mut waits = |lived, count| -> Vec<u128> {
            (0..count).map(|_| backoff.after(lived).as_millis()).collect()
        };
        let expected = [0, 100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000];
        assert_eq!(waits(Duration::ZERO, 10), expected);
        assert_eq!(waits(LIVED, 2), [0, 0]);
        assert_eq!(waits(Duration::ZERO, 2), [100, 200]);
    }
}
