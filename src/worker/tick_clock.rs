//! Deadlines and the detection of a silent sidecar, counted in ticks of the worker instead of the
//! clock.
//!
//! A delayed timer says nothing about the sidecar: the worker may have been busy with requests
//! while responses lay unread. Envoy's own timers even fire early after a long callback. But before
//! each tick, Envoy's event loop has read all that had arrived; and a long callback delays the
//! ticks into a single one.
//!
//! The sidecar is *silent* if it left a call unanswered over several ticks and answered no other
//! call. A call is *late* some ticks after that, so that silence is detected first.

use std::time::Duration;

/// Ticks beyond the timeout, so that neither a pause of the sidecar's processor nor one round of
/// Envoy's event loop looks like an outage.
const TICKS_BEYOND: u64 = 3;

/// Further ticks for a sidecar that answers other calls. With the rest of the current tick, a
/// request waits less than a second beyond the timeout.
const LATE_TICKS: u64 = 3;

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
}

impl TickClock {
    /// For calls that should be answered within `timeout`, with a tick each `period`.
    pub(crate) fn new(timeout: Duration, period: Duration) -> TickClock {
        let ticks = timeout.as_nanos().div_ceil(period.as_nanos().max(1));
        let ticks = u64::try_from(ticks).unwrap_or(u64::MAX);
        let silent_ticks_max = ticks.saturating_add(TICKS_BEYOND);
        TickClock { now: Tick::default(), heard: true, silent_ticks: 0, silent_ticks_max }
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

    /// Ends a tick; returns whether the sidecar is silent. `oldest` is the tick in which the oldest
    /// pending call was sent.
    pub(crate) fn end_tick(&mut self, oldest: Option<Tick>) -> bool {
        let left_unanswered = oldest.is_some_and(|oldest| oldest < self.now);
        let heard = std::mem::take(&mut self.heard);
        self.now = Tick(self.now.0.saturating_add(1));
        self.silent_ticks =
            if heard || !left_unanswered { 0 } else { self.silent_ticks.saturating_add(1) };
        self.silent_ticks >= self.silent_ticks_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_millis(100);

    /// Ticks until the sidecar counts as silent; `heard` selects those with a response.
    fn ticks(timeout_ms: u64, heard: impl Fn(u32) -> bool) -> Option<u32> {
        let mut tick_clock = TickClock::new(Duration::from_millis(timeout_ms), PERIOD);
        tick_clock.end_tick(None);
        let call = tick_clock.now();
        let deadline = tick_clock.deadline();
        (1..1_000).find(|tick| {
            if heard(*tick) {
                tick_clock.answered();
            }
            let is_late = tick_clock.now() > deadline;
            let silent = tick_clock.end_tick(Some(call));
            assert!(!silent || !is_late || (1..1_000).any(&heard), "late before silent");
            silent
        })
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
        assert!((0..100).all(|_| !tick_clock.end_tick(None)));
        // Each call is answered before the next tick, or was sent since the last.
        assert!((0..100).all(|_| {
            let call = tick_clock.now();
            !tick_clock.end_tick(Some(call))
        }));
    }
}
