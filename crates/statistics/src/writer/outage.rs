//! An outage of the database: when to try again, and what the log says of it.

use std::time::Duration;
use tokio::time::Instant;

/// Failures that are no outage yet: a deadlock, or a connection that the server has closed.
const TRIES: u32 = 2;
const WAIT_FIRST: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(15);

#[derive(Debug, Default)]
pub(super) struct Outage {
    /// Failures since the last success, and the time of the first.
    failures: u32,
    since: Option<Instant>,
}

impl Outage {
    /// Returns how long to wait, and whether the log has to name the cause: once in an outage.
    pub(super) fn failed(&mut self, now: Instant) -> (Duration, bool) {
        self.since.get_or_insert(now);
        self.failures = self.failures.saturating_add(1);
        let wait = WAIT_FIRST.saturating_mul(1 << self.failures.saturating_sub(1).min(16));
        (wait.min(WAIT_MAX), self.failures == TRIES + 1)
    }

    /// Returns how many seconds the outage took, if the log named it.
    pub(super) fn succeeded(&mut self, now: Instant) -> Option<u64> {
        let failures = std::mem::take(&mut self.failures);
        let since = self.since.take()?;
        (failures > TRIES).then(|| now.saturating_duration_since(since).as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_logged_once() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut outage = Outage::default();
        assert_eq!(outage.succeeded(at(0)), None);
        // One failure is none.
        assert_eq!(outage.failed(at(1)), (Duration::from_millis(100), false));
        assert_eq!(outage.succeeded(at(2)), None);
        let mut logged = 0;
        let mut waits = Vec::new();
        for second in 10..100 {
            let (wait, is_logged) = outage.failed(at(second));
            logged += u32::from(is_logged);
            waits.push(wait.as_millis());
        }
        assert_eq!(logged, 1);
        assert_eq!(waits[..9], [100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 15_000]);
        assert!(waits[9..].iter().all(|wait| *wait == 15_000));
        assert_eq!(outage.succeeded(at(110)), Some(100));
        assert_eq!(outage.succeeded(at(111)), None);
    }
}
