//! Held tokens: hits that one of several machines has taken from a counter that they share, and decides with by
//! itself. The shared counter has its own algorithm; a refill takes tokens from it, and this state keeps them.
//!
//! A charge that fits takes tokens. One that does not fit is denied: with certainty while a refill that found no
//! room for so many hits is recent enough (`denied`), and otherwise for want of a refill, which the caller asks for
//! first (see [`Held::lacks`]).
//!
//! Tokens are spent before `end`, so hits happen in the window that counted them. A window has one end, so the
//! tokens of all refills in it are alike. The tokens of a bucket do not end with a window. They get one of the
//! ends that are a [`GENERATION`] apart, one to two generations after their refill, and a state has room for two of
//! them: *older* tokens end one generation before the others and are spent first. So tokens of a bucket are spent
//! within two generations, and the bound of `token_bucket` holds with this time as its `ttl`.
//!
//! A forced charge that does not fit takes all tokens, and the rest is owed: the next refill charges it to the shared
//! counter, which decides what becomes of it. A refund adds tokens with the earliest end that there is.
//!
//! While the shared counter is away, a state may decide *alone* (low-water mark 31): hits are owed, at most a share of
//! the limit in each of a sequence of windows, whose length is the time in which the whole limit recovers, and in the first
//! one no more than the shared counter had left. What is owed from an earlier window is forgotten.
//!
//! Invariant: tokens and older tokens were charged to the shared counter, and are in no other place.

mod parts;

pub(crate) use parts::{Ends, GENERATION};

use crate::decision::{Decision, Outcome};
use crate::units::{Charge, Nanos, Timestamp};
use parts::{ALONE, HALF, LOW, Parts, low_water};

/// The wait of a charge that was denied for want of a refill.
const UNKNOWN_WAIT: Nanos = Nanos::from_secs(1);

/// The numbers of held tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    capacity: u32,
    ends: Ends,
    /// The time in which the whole capacity recovers; at least 1 ns.
    recovery: Nanos,
}

/// Whether a charge can be decided with what is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// There are enough tokens.
    Nothing,
    /// There are not, and there was no room for so many hits a moment ago.
    Denied,
    /// There are not, and the shared counter may have some.
    Tokens,
}

/// What a refill brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refill {
    /// The tokens that were charged to the shared counter.
    pub tokens: u64,
    /// The part of them that no request waits for. Without it no refill is due before tokens are missing.
    pub ahead: u64,
    /// When they end; see [`Held::end`].
    pub end: Timestamp,
    /// What the shared counter has left.
    pub left: u64,
    /// When it has more.
    pub more_at: Timestamp,
    /// At least so many hits do not fit, until then.
    pub denied: Option<(u64, Timestamp)>,
    /// The owed hits that were charged.
    pub paid: u64,
}

/// Tokens that were taken out of a state, to be given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GivenBack {
    /// Tokens.
    pub tokens: u64,
    /// Tokens of the generation before.
    pub older: u64,
    /// The end of `tokens`.
    pub end: Timestamp,
}

impl Held {
    pub(crate) fn new(capacity: u32, ends: Ends, recovery: Nanos) -> Held {
        Held { capacity, ends, recovery: recovery.max(Nanos::new(1)) }
    }

    /// The time in which the whole capacity recovers.
    #[must_use]
    pub fn recovery(&self) -> Nanos {
        self.recovery
    }

    /// What the shared counter had left after the last refill.
    #[must_use]
    pub fn left(&self, state: &[u64; 4], now: Timestamp) -> u64 {
        Parts::read(state, self.ends, now).left
    }

    /// Lets the state decide alone, as one of `sidecars`, until the next refill. If the shared counter had less left than
    /// the share and has no more in this window, that is the share.
    pub fn decide_alone(&self, state: &mut [u64; 4], sidecars: u32, now: Timestamp) {
        let mut parts = Parts::read(state, self.ends, now);
        let length = self.recovery.as_nanos();
        let end = (now.as_nanos() / length).saturating_add(1).saturating_mul(length);
        if parts.tokens + parts.older > 0 {
            // They are spent first.
            return;
        }
        let share = u64::from(self.capacity / sidecars.max(1));
        let was_alone = parts.low == ALONE;
        if !was_alone || parts.end != end {
            let is_left = !was_alone && now.as_nanos() < parts.end && parts.more_at >= end;
            parts.left = if is_left { parts.left } else { share };
            parts.owed = if was_alone { 0 } else { parts.owed };
            (parts.end, parts.more_at, parts.low) = (end, end, ALONE);
        }
        parts.left = parts.left.min(share);
        (parts.denied, parts.denied_until) = (0, 0);
        parts.write(state);
    }

    pub(crate) fn ends(&self) -> Ends {
        self.ends
    }

    /// The end of tokens that are charged at `now` and may be spent until `spendable_until` by the shared counter.
    #[must_use]
    pub fn end(&self, spendable_until: Timestamp, now: Timestamp) -> Timestamp {
        match self.ends {
            Ends::Window => spendable_until,
            Ends::Generation => {
                let generation = GENERATION.as_nanos();
                let number = (now.as_nanos() / generation).saturating_add(2);
                Timestamp::from_nanos(number.saturating_mul(generation)).min(spendable_until)
            }
        }
    }

    /// No token of a bucket that ends at `end` was charged before this time.
    pub(crate) fn charged_since(&self, end: Timestamp) -> Timestamp {
        Timestamp::from_nanos(end.as_nanos().saturating_sub(2 * GENERATION.as_nanos()))
    }

    /// The tokens that may be spent.
    #[must_use]
    pub fn tokens(&self, state: &[u64; 4], now: Timestamp) -> u64 {
        let parts = Parts::read(state, self.ends, now);
        parts.tokens + parts.older
    }

    /// The hits that are owed to the shared counter.
    #[must_use]
    pub fn owed(&self, state: &[u64; 4], now: Timestamp) -> u64 {
        Parts::read(state, self.ends, now).owed
    }

    /// What the state lacks for a charge of `hits`.
    #[must_use]
    pub fn lacks(&self, state: &[u64; 4], hits: u64, now: Timestamp) -> Lack {
        let parts = Parts::read(state, self.ends, now);
        if hits <= parts.tokens + parts.older {
            Lack::Nothing
        } else if self.capacity == 0 || parts.denies(hits, now) {
            Lack::Denied
        } else {
            Lack::Tokens
        }
    }

    /// Until when a charge of `hits` that does not fit is denied without a refill.
    #[must_use]
    pub fn denied_until(&self, state: &[u64; 4], hits: u64, now: Timestamp) -> Timestamp {
        let parts = Parts::read(state, self.ends, now);
        let until = if parts.denies(hits, now) { parts.denied_until } else { 0 };
        Timestamp::from_nanos(until)
    }

    /// Adds what a refill brought, and returns the time to keep the state until.
    pub fn add(&self, state: &mut [u64; 4], refill: &Refill, now: Timestamp) -> Timestamp {
        let mut parts = Parts::read(state, self.ends, now);
        if refill.tokens > 0 || parts.tokens + parts.older == 0 {
            parts.add(self.ends, refill.tokens, refill.end.as_nanos());
        }
        parts.owed = parts.owed.saturating_sub(refill.paid);
        parts.pay();
        (parts.left, parts.more_at) = (refill.left, refill.more_at.as_nanos());
        (parts.denied, parts.denied_until) = match refill.denied {
            Some((hits, until)) => (hits.max(1), until.as_nanos()),
            None => (0, 0),
        };
        parts.low = low_water(if refill.ahead > 0 { parts.tokens + parts.older } else { 0 });
        parts.write(state);
        parts.keep_until(now)
    }

    /// Ends the denial of a state, as there may be room again.
    pub fn end_denial(state: &mut [u64; 4]) {
        state[3] &= LOW;
    }

    /// Takes out all but `keep` tokens.
    pub fn take_out(&self, state: &mut [u64; 4], keep: u64, now: Timestamp) -> GivenBack {
        let mut parts = Parts::read(state, self.ends, now);
        let before = parts;
        parts.spend((parts.tokens + parts.older).saturating_sub(keep));
        parts.low = parts.low.min(low_water(parts.tokens + parts.older));
        parts.write(state);
        GivenBack {
            tokens: before.tokens - parts.tokens,
            older: before.older - parts.older,
            end: Timestamp::from_nanos(parts.end),
        }
    }

    /// Whether a refill is due although nobody waits for it: tokens run low, or hits are owed. It is due once; the
    /// next refill sets a new mark.
    pub fn is_refill_due(&self, state: &mut [u64; 4], now: Timestamp) -> bool {
        let parts = Parts::read(state, self.ends, now);
        if parts.low == ALONE {
            // Each request tries.
            return false;
        }
        if parts.owed > 0 {
            return true;
        }
        let is_low = parts.low > 0 && parts.tokens + parts.older <= 1 << (parts.low - 1);
        if is_low {
            Parts { low: 0, ..parts }.write(state);
        }
        is_low
    }

    /// When the tokens that are spent first end.
    pub(crate) fn first_end(&self, state: &[u64; 4], now: Timestamp) -> Timestamp {
        let parts = Parts::read(state, self.ends, now);
        let earlier = if parts.older > 0 { GENERATION.as_nanos() } else { 0 };
        Timestamp::from_nanos(parts.end.saturating_sub(earlier))
    }

    /// When the last tokens end.
    pub(crate) fn last_end(state: &[u64; 4]) -> Timestamp {
        Timestamp::from_nanos(state[1])
    }

    pub(crate) fn decide(&self, state: &mut [u64; 4], charge: Charge, now: Timestamp) -> Decision {
        let mut parts = Parts::read(state, self.ends, now);
        let before = parts;
        let held = parts.tokens + parts.older;
        let (needed, hits) = (charge.hits().needed(), charge.hits().get());
        let is_alone = parts.low == ALONE;
        let share = if is_alone { parts.left.saturating_sub(parts.owed) } else { 0 };
        let fits = needed <= held.max(share) || matches!(charge, Charge::Refund(_));
        match charge {
            Charge::Take(_) | Charge::Force(_) if fits && is_alone => parts.owed += hits,
            Charge::Take(_) | Charge::Force(_) if fits => parts.spend(hits),
            Charge::Take(_) => {}
            Charge::Force(_) => {
                parts.spend(held);
                parts.owed = parts.owed.saturating_add(hits.saturating_sub(held)).min(HALF);
            }
            Charge::Refund(_) => self.refund(&mut parts, hits, now),
        }
        if parts != before {
            parts.write(state);
        }
        let more_at = Timestamp::from_nanos(parts.more_at);
        let denied = Timestamp::from_nanos(parts.denied_until);
        Decision {
            outcome: Outcome::new(fits, now, || match parts.denies(needed, now) || is_alone {
                true => more_at.max(denied),
                false if self.capacity == 0 => now.saturating_add(self.recovery),
                false => now.saturating_add(UNKNOWN_WAIT),
            }),
            remaining: (parts.tokens + parts.older + parts.left).saturating_sub(parts.owed),
            reset_at: more_at.max(now),
            keep_until: parts.keep_until(now),
        }
    }

    /// Adds tokens that come back. They were charged no earlier than the oldest tokens that may still be here.
    fn refund(&self, parts: &mut Parts, hits: u64, now: Timestamp) {
        let unpaid = hits.min(parts.owed);
        parts.owed -= unpaid;
        if now.as_nanos() >= parts.end {
            return;
        }
        let room = u64::from(self.capacity).saturating_sub(parts.tokens + parts.older + parts.left);
        let back = (hits - unpaid).min(room);
        match parts.older_end(self.ends) {
            Some(end) if now.as_nanos() < end => parts.older += back,
            _ => parts.tokens += back,
        }
    }
}
