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
pub(crate) struct CircuitBreaker {
    state: BreakerState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BreakerState {
    /// It may; counts failures in a row.
    Closed { failures: u32 },
    /// It may not until then.
    Open { until: Timestamp, pause: Nanos },
    /// A probe is pending.
    Probing { pause: Nanos },
}

/// The effect of a call's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transition {
    /// No more calls from now on.
    Opened,
    /// Calls are allowed again.
    Closed,
    None,
}

impl CircuitBreaker {
    pub(crate) fn new() -> CircuitBreaker {
        CircuitBreaker { state: BreakerState::Closed { failures: 0 } }
    }

    /// Whether requests may call the sidecar.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.state, BreakerState::Closed { .. })
    }

    /// Whether a probe is due; then it counts as pending.
    pub(crate) fn probe(&mut self, now: Timestamp) -> bool {
        match self.state {
            BreakerState::Open { until, pause } if now >= until => {
                self.state = BreakerState::Probing { pause };
                true
            }
            _ => false,
        }
    }

    pub(crate) fn answered(&mut self) -> Transition {
        let change = if self.is_closed() { Transition::None } else { Transition::Closed };
        self.state = BreakerState::Closed { failures: 0 };
        change
    }

    /// A call failed. Calls that were pending when the breaker opened change nothing.
    pub(crate) fn failed(&mut self, now: Timestamp, random: u64) -> Transition {
        let BreakerState::Closed { failures } = &mut self.state else { return Transition::None };
        *failures = failures.saturating_add(1);
        if *failures < FAILURES {
            return Transition::None;
        }
        self.open(PAUSE_MIN, now, random);
        Transition::Opened
    }

    /// The sidecar answers no call at all: opens at once.
    pub(crate) fn silent(&mut self, now: Timestamp, random: u64) -> Transition {
        if !self.is_closed() {
            return Transition::None;
        }
        self.open(PAUSE_MIN, now, random);
        Transition::Opened
    }

    pub(crate) fn probe_failed(&mut self, now: Timestamp, random: u64) {
        if let BreakerState::Probing { pause } = self.state {
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
        self.state = BreakerState::Open { until, pause };
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
            assert_eq!(breaker.failed(at(0), 0), Transition::None);
        }
        assert_eq!(breaker.answered(), Transition::None);
        for _ in 0..4 {
            assert_eq!(breaker.failed(at(0), 0), Transition::None);
        }
        assert!(breaker.is_closed());
        assert_eq!(breaker.failed(at(0), 0), Transition::Opened);
        assert_eq!(breaker.failed(at(0), 0), Transition::None);
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
            assert_eq!(breaker.failed(at(now), 0), Transition::None);
            breaker.probe_failed(at(now), 0);
        }
        // At most a quarter of 8 s later.
        assert!(breaker.probe(at(now + 8_000)));
        breaker.probe_failed(at(now), 1_999_999_999);
        assert!(!breaker.probe(at(now + 9_999)));
        assert!(breaker.probe(at(now + 10_000)));
        assert_eq!(breaker.answered(), Transition::Closed);
        assert!(breaker.is_closed());
    }
}
