//! Sliding window estimated from two counters: the hits of the current aligned window, and those of the
//! previous window. The latter count by the share of it that the last `period` still overlaps, as if its
//! hits had been evenly spread.
//!
//! With Q `requests` in the period P, at `elapsed` into the window: `estimate = ceil(previous × (P −
//! elapsed) / P) + current`. A charge fits if `estimate + hits ≤ Q`.
//!
//! Accuracy: for evenly spread traffic, the estimate is the count of the last P to within one hit. At
//! worst, between a first and a last hit T apart (at least 1 ns), it admits `Q + floor(Q × (T − 1) / P)`:
//! as much as a token bucket of burst Q, and always less than 2Q in a span of P, around a boundary as
//! anywhere else. Proof: let `e` be the time of the last hit in its window. By then, that window has
//! admitted at most `Q − ceil(p × (P − e) / P)` hits, so together with the `p ≤ Q` hits before it at most
//! `Q + floor(Q × e / P)`. Every window in between admits at most Q, and the first hit came at least 1 ns
//! before a boundary. An adversary reaches exactly this bound: Q hits in the last nanosecond of a window,
//! then more as the first hits fade out.
//!
//! State words: the start of the window (ns since the epoch, a multiple of P; at least 1), its hits
//! (`current`), those of the window before (`previous`), and `last` (ns of the last hit that was taken or
//! forced; zero if not recorded). `last` is used only to decide whether a daily reset came since (see
//! `daily_reset`). Only a take or a refund advances the window. A refund returns hits from `current`, then
//! from `previous`. A forced charge may overdraw `current`, to less than 2Q.
//!
//! A clock that steps back stays at the start of the newest window, where all of `previous` counts. The
//! same holds after a clock was far ahead: the hits since then share one window, which ends when the clock
//! gets there.
//!
//! Hits that are charged ahead may be spent until the end of the window that counts them. The bound stays
//! the same: all hits spent by `e`, the time of the last one in its window, were charged by then. At the
//! last of these charges, at c ≤ e, the window had counted at most `Q − ceil(p × (P − c) / P)` ≤ `Q −
//! ceil(p × (P − e) / P)`; and the `p` hits before it were spent in their own window.

use super::daily_reset::{DailyReset, Resettable};
use super::{is_forced_hit, taken};
use crate::decision::{Decision, Outcome};
use crate::rate::{Period, QuotaError, Rate, checked_period};
use crate::state::{narrow, narrow_mut};
use crate::units::{Charge, Nanos, Timestamp};
use std::num::NonZeroU64;

/// The numbers of a sliding window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlidingWindow {
    requests: u32,
    period: Nanos,
    pub(crate) reset: Option<DailyReset>,
}

/// The two counters, advanced to the time of the charge.
struct Window {
    start: u64,
    current: u64,
    previous: u64,
    last: u64,
}

impl SlidingWindow {
    /// `requests` hits in the last `period`, estimated from two counters.
    ///
    /// # Errors
    /// If a number is out of range.
    pub fn new(requests: u32, period: Nanos) -> Result<Self, QuotaError> {
        Ok(SlidingWindow { requests, period: checked_period(period)?, reset: None })
    }

    /// Forgets all hits at `reset` each day.
    #[must_use]
    pub fn with_reset(mut self, reset: DailyReset) -> Self {
        self.reset = Some(reset);
        self
    }

    pub(crate) fn rate(&self) -> Rate {
        let requests = self.requests;
        Rate { requests, period: Period::Span(self.period), capacity: requests }
    }

    #[inline(always)]
    pub(crate) fn decide(&self, state: &mut [u64; 4], charge: Charge, now: Timestamp) -> Decision {
        if let Some(hits) = charge.taken()
            && let Some(decision) = self.take(state, hits, now.as_nanos())
        {
            return decision;
        }
        self.decide_any(state, charge, now)
    }

    /// The common case, in one word and few instructions: the hits fit into the current window. Decides
    /// like [`decide_any`](Self::decide_any); none in all other cases.
    #[inline(always)]
    fn take(&self, state: &mut [u64; 4], hits: u64, now: u64) -> Option<Decision> {
        let [start, current, previous, _] = *state;
        let period = self.period.as_nanos();
        let elapsed = now.checked_sub(start)?;
        if start <= 1 || current | previous == 0 || elapsed >= period || hits == 0 {
            return None;
        }
        let faded = match previous {
            0 => 0,
            _ => previous.checked_mul(elapsed)? / period,
        };
        let before = current.checked_add(previous - faded)?;
        let estimate = before.checked_add(hits)?;
        let left = u64::from(self.requests).checked_sub(estimate)?;
        // One more hit than `left` fits when one counted hit less counts: when all but `staying` of the
        // `counted` hits that fade from `boundary` on are gone.
        let (boundary, staying, counted) = match previous - faded {
            0 => (start.checked_add(period)?, current + hits - 1, current + hits),
            weighted => (start, weighted - 1, previous),
        };
        let still = period.checked_mul(staying)? / NonZeroU64::new(counted)?;
        let end = start.checked_add(period)?.checked_add(period)?;
        state[1] = current + hits;
        state[3] = state[3].max(now);
        Some(Decision {
            outcome: Outcome::Allow,
            remaining: left,
            reset_at: Timestamp::from_nanos(boundary + period - still),
            keep_until: Timestamp::from_nanos(end),
        })
    }

    #[inline(never)]
    fn decide_any(&self, state: &mut [u64; 4], charge: Charge, now: Timestamp) -> Decision {
        let mut window = self.advanced(state, now.as_nanos());
        let before = self.left(&window, now);
        let mut left = before;
        let allowed = match charge {
            Charge::Take(hits) | Charge::Force(hits) => {
                let taken = taken(charge, left, self.requests.into());
                if taken > 0 {
                    // Less than twice the limit, because `left` accounts for all of `current`.
                    window.current += taken;
                    window.last = window.last.max(now.as_nanos()).max(1);
                    left = left.saturating_sub(taken);
                    window.store(state);
                } else if is_forced_hit(charge) && window.holds_hits() {
                    state[3] = state[3].max(now.as_nanos());
                }
                hits.needed() <= before
            }
            Charge::Refund(hits) => {
                let from_current = hits.get().min(window.current);
                let from_previous = (hits.get() - from_current).min(window.previous);
                if from_current > 0 || from_previous > 0 {
                    window.current -= from_current;
                    window.previous -= from_previous;
                    window.store(state);
                    left = self.left(&window, now);
                }
                true
            }
        };
        Decision {
            outcome: Outcome::new(allowed, now, || {
                self.fits_at(&window, charge.hits().needed(), now)
            }),
            remaining: left,
            reset_at: self.fits_at(&window, left + 1, now),
            keep_until: self.empty_at(&window, now),
        }
    }

    /// The window at `now`. Counters without hits are as good as new.
    #[inline]
    fn advanced(&self, state: &[u64; 4], now: u64) -> Window {
        let [start, current, previous, last] = *state;
        let period = self.period.as_nanos();
        let new = || Window { start: now - now % period, current: 0, previous: 0, last: 0 };
        if start == 0 || current | previous == 0 {
            return new();
        }
        // Only the very first window has no start of at least 1: it is stored as 1 and starts at 0.
        let start = if start == 1 { 0 } else { start };
        let since = now.saturating_sub(start);
        if since < period {
            Window { start, current, previous, last }
        } else if since - period < period {
            Window { start: start + period, current: 0, previous: current, last }
        } else {
            new()
        }
    }

    #[inline]
    fn left(&self, window: &Window, now: Timestamp) -> u64 {
        let period = self.period.as_nanos();
        let elapsed = now.as_nanos().saturating_sub(window.start);
        // Subtracting the faded part, rounded down, is the same as adding the rest, rounded up.
        let faded = scaled(window.previous, elapsed, period);
        let estimate = window.current.saturating_add(window.previous - faded);
        u64::from(self.requests).saturating_sub(estimate)
    }

    /// The first nanosecond at which `hits` fit that do not fit now.
    #[inline]
    fn fits_at(&self, window: &Window, hits: u64, now: Timestamp) -> Timestamp {
        let period = self.period.as_nanos();
        let Some(others) = u64::from(self.requests).checked_sub(hits) else {
            return self.full_at(window, now);
        };
        // `counted` hits at the start of a window have faded to `room` when counted × (P − elapsed) ≤ room
        // × P. The end of a window is the start of the next.
        let (boundary, room, counted) = match others.checked_sub(window.current) {
            Some(room) => (window.start, room, window.previous),
            None => (window.start.saturating_add(period), others, window.current),
        };
        let still = if counted > room { scaled(period, room, counted) } else { period };
        Timestamp::from_nanos(boundary.saturating_add(period - still)).max(now)
    }

    /// When no hits count any more. A limit of zero is never full; the answer is a period.
    fn full_at(&self, window: &Window, now: Timestamp) -> Timestamp {
        if self.requests == 0 {
            now.saturating_add(self.period)
        } else {
            self.empty_at(window, now)
        }
    }

    #[inline]
    fn empty_at(&self, window: &Window, now: Timestamp) -> Timestamp {
        let periods = match window {
            Window { current: 0, previous: 0, .. } => return now,
            Window { current: 0, .. } => 1,
            _ => 2,
        };
        Timestamp::from_nanos(window.start.saturating_add(periods * self.period.as_nanos()))
    }
}

impl Resettable for SlidingWindow {
    fn decide(&self, state: &mut [u64], charge: Charge, now: Timestamp) -> Decision {
        self.decide_any(narrow_mut(state), charge, now)
    }

    fn last_hit(&self, state: &[u64]) -> Option<u64> {
        let [start, current, previous, last] = *narrow(state);
        Some(if last > 0 { last } else { start }).filter(|_| start > 0 && current | previous > 0)
    }

    fn spendable_until(&self, state: &[u64], now: Timestamp) -> Timestamp {
        let start = self.advanced(narrow(state), now.as_nanos()).start;
        Timestamp::from_nanos(start).saturating_add(self.period)
    }
}

impl Window {
    fn holds_hits(&self) -> bool {
        self.current | self.previous > 0
    }

    fn store(&self, state: &mut [u64; 4]) {
        *state = [self.start.max(1), self.current, self.previous, self.last];
    }
}

/// `number × part / whole`, rounded down; `part ≤ whole`, so that the result is at most `number`.
#[inline]
fn scaled(number: u64, part: u64, whole: u64) -> u64 {
    match number.checked_mul(part) {
        Some(product) => product / whole,
        None => (u128::from(number) * u128::from(part) / u128::from(whole)) as u64,
    }
}
