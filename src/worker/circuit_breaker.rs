//! Keeps an unresponsive sidecar from costing every request a timeout.
//!
//! After [`FAILURES`] failed calls in a row, requests neither call nor wait. From time to time one
//! call in the background probes whether the sidecar answers again.

use tidegate_core::{Nanos, Timestamp};

const FAILURES: u32 = 5;
const PAUSE_MIN: Nanos = Nanos::from_secs(1);
const PAUSE_MAX: Nanos = Nanos::from_secs(8);

/// Whether the sidecar may be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CircuitBreaker {
    /// It may; counts failures in a row.
    Closed { failures: u32 },
    /// It may not until then.
    Open { until: Timestamp, pause: Nanos },
    /// A probe is pending.
    Probing { pause: Nanos },
}

impl CircuitBreaker {
    pub(crate) fn new() -> CircuitBreaker {
        CircuitBreaker::Closed { failures: 0 }
    }

    /// Whether requests may call the sidecar.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self, CircuitBreaker::Closed { .. })
    }

    /// Whether a probe is due; then it counts as pending.
    pub(crate) fn probe(&mut self, now: Timestamp) -> bool {
        match *self {
            CircuitBreaker::Open { until, pause } if now >= until => {
                *self = CircuitBreaker::Probing { pause };
                true
            }
            _ => false,
        }
    }

    /// A call was answered. Returns whether this closed the breaker.
    pub(crate) fn answered(&mut self) -> bool {
        let was_closed = self.is_closed();
        *self = CircuitBreaker::Closed { failures: 0 };
        !was_closed
    }

    /// A call failed. Returns whether this opened the breaker. Calls that were pending when it
    /// opened change nothing.
    pub(crate) fn failed(&mut self, now: Timestamp, random: u64) -> bool {
        let CircuitBreaker::Closed { failures } = self else { return false };
        *failures = failures.saturating_add(1);
        *failures >= FAILURES && self.silent(now, random)
    }

    /// The sidecar answers no call at all. Returns whether this opened the breaker.
    pub(crate) fn silent(&mut self, now: Timestamp, random: u64) -> bool {
        let was_closed = self.is_closed();
        if was_closed {
            self.open(PAUSE_MIN, now, random);
        }
        was_closed
    }

    pub(crate) fn probe_failed(&mut self, now: Timestamp, random: u64) {
        if let CircuitBreaker::Probing { pause } = *self {
            let pause = Nanos::new(pause.as_nanos().saturating_mul(2)).min(PAUSE_MAX);
            self.open(pause, now, random);
        }
    }

    /// The pause is up to a quarter longer, so that the workers of many proxies do not probe
    /// simultaneously.
    fn open(&mut self, pause: Nanos, now: Timestamp, random: u64) {
        let most = pause.as_nanos().checked_div(4).unwrap_or(0).max(1);
        let jitter = Nanos::new(random.checked_rem(most).unwrap_or(0));
        let until = now.saturating_add(pause).saturating_add(jitter);
        *self = CircuitBreaker::Open { until, pause };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn it_opens_after_failures_in_a_row_and_only_then() {
        let mut breaker = CircuitBreaker::new();
        for _ in 0..4 {
            assert!(!breaker.failed(at(0), 0));
        }
        assert!(!breaker.answered());
        for _ in 0..4 {
            assert!(!breaker.failed(at(0), 0));
        }
        assert!(breaker.is_closed());
        assert!(breaker.failed(at(0), 0));
        assert!(!breaker.failed(at(0), 0));
        assert!(!breaker.is_closed());
    }

    #[test]
    fn probes_back_off_one_at_a_time_and_a_response_closes() {
        let mut breaker = CircuitBreaker::new();
        for _ in 0..5 {
            breaker.failed(at(0), 0);
        }
        let mut now = 0;
        for pause in [1_000, 2_000, 4_000, 8_000, 8_000] {
            assert!(!breaker.probe(at(now + pause - 1)));
            now += pause;
            assert!(breaker.probe(at(now)));
            assert!(!breaker.probe(at(now)));
            assert!(!breaker.failed(at(now), 0));
            breaker.probe_failed(at(now), 0);
        }
        // At most a quarter of 8 s later.
        assert!(breaker.probe(at(now + 8_000)));
        breaker.probe_failed(at(now), 1_999_999_999);
        assert!(!breaker.probe(at(now + 9_999)));
        assert!(breaker.probe(at(now + 10_000)));
        assert!(breaker.answered());
        assert!(breaker.is_closed());
    }
}
