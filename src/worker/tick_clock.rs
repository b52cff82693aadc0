//! Deadlines and the detection of a silent sidecar, counted in ticks of the worker instead of the
//! clock.
//!
//! A delayed timer says nothing about the sidecar: the worker may have been busy with requests
//! while responses lay unread. Envoy's own timers even fire early after a long callback. But a round
//! of Envoy's event loop reads what has arrived before it ticks; and a long callback delays the ticks
//! into a single one.
//!
//! With thousands of connections at once, more is ready to be read than a round takes, and responses
//! lie unread for several rounds. Such rounds are long, so their ticks are *delayed*. Delayed ticks do
//! not count, for a while.
//!
//! The sidecar is *silent* if it left a call unanswered over several ticks and answered no other
//! call. A call is *late* some ticks after that, so that silence is detected first.

use std::time::Duration;
use tidegate_core::{Nanos, Timestamp};

/// Ticks beyond the timeout, so that neither a pause of the sidecar's processor nor one round of
/// Envoy's event loop looks like an outage.
const TICKS_BEYOND: u64 = 3;

/// Further ticks for a sidecar that answers other calls. With the rest of the current tick, a
/// request waits less than a second beyond the timeout, and the time of the delayed ticks.
const LATE_TICKS: u64 = 3;

/// How long delayed ticks do not count since the last response. So thousands of requests that keep a
/// worker busy wait so much longer if the sidecar is gone.
const DELAYED_MAX: Nanos = Nanos::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Tick(u64);

impl Tick {
    #[cfg(test)]
    pub(crate) const fn new(number: u64) -> Tick {
        Tick(number)
    }
}

/// Counts ticks, and those without any response.
#[derive(Debug)]
pub(crate) struct TickClock {
    now: Tick,
    heard: bool,
    silent_ticks: u64,
    silent_ticks_max: u64,
    /// A tick that ends so much later than the one before is delayed.
    in_time: Nanos,
    ended_at: Option<Timestamp>,
    delayed: Nanos,
}

impl TickClock {
    /// For calls that should be answered within `timeout`, with a tick each `period`.
    pub(crate) fn new(timeout: Duration, period: Duration) -> TickClock {
        let period = nanos(period);
        let ticks = nanos(timeout).div_ceil(period.max(1));
        let silent_ticks_max = ticks.saturating_add(TICKS_BEYOND);
        TickClock {
            now: Tick::default(),
            heard: true,
            silent_ticks: 0,
            silent_ticks_max,
            in_time: Nanos::new(period.saturating_add(period / 4)),
            ended_at: None,
            delayed: Nanos::ZERO,
        }
    }

    pub(crate) fn now(&self) -> Tick {
        self.now
    }

    /// The last tick of a request that arrives now.
    pub(crate) fn deadline(&self) -> Tick {
        Tick(self.now.0.saturating_add(self.silent_ticks_max).saturating_add(LATE_TICKS))
    }

    pub(crate) fn answered(&mut self) {
        self.heard = true;
    }

    /// Ends a tick at `at`; returns whether the sidecar is silent. `oldest` is the tick in which the
    /// oldest pending call was sent.
    pub(crate) fn end_tick(&mut self, oldest: Option<Tick>, at: Timestamp) -> bool {
        let left_unanswered = oldest.is_some_and(|oldest| oldest < self.now);
        let took = at.saturating_since(self.ended_at.replace(at).unwrap_or(at));
        let heard = std::mem::take(&mut self.heard);
        if heard {
            self.delayed = Nanos::ZERO;
        } else if left_unanswered && took > self.in_time && self.delayed < DELAYED_MAX {
            self.delayed = Nanos::new(self.delayed.as_nanos().saturating_add(took.as_nanos()));
            return false;
        }
        self.now = Tick(self.now.0.saturating_add(1));
        self.silent_ticks =
            if heard || !left_unanswered { 0 } else { self.silent_ticks.saturating_add(1) };
        self.silent_ticks >= self.silent_ticks_max
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_millis(100);

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_nanos(ms * 1_000_000)
    }

    /// Ticks until the sidecar counts as silent; `heard` selects those with a response, and `lasts`
    /// says how many milliseconds each takes.
    fn ticks_of(
        timeout_ms: u64,
        heard: impl Fn(u32) -> bool,
        lasts: impl Fn(u32) -> u64,
    ) -> Option<u32> {
        let mut tick_clock = TickClock::new(Duration::from_millis(timeout_ms), PERIOD);
        tick_clock.end_tick(None, at(0));
        let call = tick_clock.now();
        let deadline = tick_clock.deadline();
        let mut now = 0;
        (1..1_000).find(|tick| {
            if heard(*tick) {
                tick_clock.answered();
            }
            now += lasts(*tick);
            let is_late = tick_clock.now() > deadline;
            let silent = tick_clock.end_tick(Some(call), at(now));
            assert!(!silent || !is_late || (1..1_000).any(&heard), "late before silent");
            silent
        })
    }

    fn ticks(timeout_ms: u64, heard: impl Fn(u32) -> bool) -> Option<u32> {
        ticks_of(timeout_ms, heard, |_| 100)
    }

    /// Symptom: a burst of 5,000 connections on a slow machine had `failure_mode` decide all of them,
    /// beside a sidecar that had answered. Cause: its answer lay unread for four long rounds of
    /// the event loop.
    #[test]
    fn ticks_of_a_worker_that_is_behind_do_not_count() {
        let behind = |tick| if tick <= 6 { 300 } else { 100 };
        // The call was sent in the first of them.
        assert_eq!(ticks_of(20, |_| false, behind), Some(5 + 5));
        // Each tick is delayed, and the sidecar is gone.
        assert_eq!(ticks_of(20, |_| false, |_| 300), Some(7 + 5));
        assert_eq!(ticks_of(20, |_| false, |_| 1_000), Some(2 + 5));
        // A response is a new beginning.
        assert_eq!(ticks_of(20, |tick| tick == 5, |_| 1_000), Some(5 + 2 + 4));
        assert_eq!(ticks_of(20, |_| false, |_| 125), Some(5));
        // The system clock is set back.
        let back = |tick: u32| if tick == 3 { 0 } else { 100 };
        assert_eq!(ticks_of(20, |_| false, back), Some(5));
    }

    #[test]
    fn deadlines_move_with_the_delayed_ticks() {
        let mut tick_clock = TickClock::new(Duration::from_millis(20), PERIOD);
        let call = tick_clock.now();
        tick_clock.end_tick(Some(call), at(0));
        let before = tick_clock.now();
        for round in 1..=5 {
            assert!(!tick_clock.end_tick(Some(call), at(round * 400)));
            assert_eq!(tick_clock.now(), before, "{round}");
        }
        tick_clock.end_tick(Some(call), at(6 * 400));
        assert!(tick_clock.now() > before);
    }

    #[test]
    fn it_takes_the_timeout_and_some_ticks_in_a_row() {
        assert_eq!(ticks(1, |_| false), Some(5));
        assert_eq!(ticks(20, |_| false), Some(5));
        assert_eq!(ticks(100, |_| false), Some(5));
        assert_eq!(ticks(101, |_| false), Some(6));
        assert_eq!(ticks(5_000, |_| false), Some(54));
        assert_eq!(ticks(20, |tick| tick == 4), Some(8));
        assert_eq!(ticks(20, |tick| tick % 4 == 0), None);
    }

    #[test]
    fn without_a_pending_call_the_sidecar_is_not_silent() {
        let mut tick_clock = TickClock::new(Duration::from_millis(20), PERIOD);
        assert!((0..100).all(|tick| !tick_clock.end_tick(None, at(tick * 100))));
        // Each call is answered before the next tick, or was sent since the last.
        assert!((100..200).all(|tick| {
            let call = tick_clock.now();
            !tick_clock.end_tick(Some(call), at(tick * 100))
        }));
    }
}
