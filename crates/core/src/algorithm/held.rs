//! Held tokens: hits that one of several machines has taken from a counter that they share, and decides with by
//! itself. The shared counter has its own algorithm; a refill takes tokens from it, and this state keeps them.
//!
//! A charge that fits takes tokens. One that does not fit is denied: with certainty while a refill that found no
//! room for so many hits is recent enough (`denied`), and otherwise for want of a refill, which the caller asks for
//! first (see [`Held::lacks`]).
//!
//! State words: tokens (low half) and older tokens (high half); `end` (ns since the epoch); what the shared counter
//! had left after the last refill (low half) and when it has more (high half, in seconds, rounded up); and, from high
//! to low bits, the end of the denial (44 bits, in 2^20 ns, rounded down), the hits that it is for (15 bits, rounded
//! up) and the low-water mark (5 bits). If the older tokens are 2^32 - 1, the first half counts hits that are owed.
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
//! the limit in each of a sequence of windows, whose length is the time in which the whole limit recovers. What is owed
//! from an earlier window is forgotten.
//!
//! Invariant: tokens and older tokens were charged to the shared counter, and are in no other place.

use crate::decision::{Decision, Outcome};
use crate::units::{Charge, Nanos, Timestamp};

/// The time between the ends of tokens of a bucket.
pub(crate) const GENERATION: Nanos = Nanos::from_secs(1);
/// How long hits are owed while the shared counter does not answer.
const OWED_FOR: Nanos = Nanos::from_secs(3_600);
/// How long a state without tokens is kept: leased tokens may come back to it.
const EMPTY_FOR: Nanos = Nanos::from_secs(10);
/// The wait of a charge that was denied for want of a refill.
const UNKNOWN_WAIT: Nanos = Nanos::from_secs(1);
/// Stands in the place of older tokens if hits are owed.
const OWED: u64 = u32::MAX as u64;
/// In place of the low-water mark, if the state decides alone. Then `left` is its share.
const ALONE: u64 = 31;
/// More tokens are never held.
const TOKENS_MAX: u64 = u32::MAX as u64 - 1;
const HALF: u64 = u32::MAX as u64;
const SECOND: u64 = 1_000_000_000;
const UNTIL_UNIT: u32 = 20;

/// The numbers of held tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    capacity: u32,
    ends: Ends,
    /// The time in which the whole capacity recovers; at least 1 ns.
    recovery: Nanos,
}

/// When tokens end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    /// With the window that counts them.
    Window,
    /// After a time.
    Generation,
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
    /// The tokens with which no refill is due before they run low; their share of `tokens` was not asked for yet.
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

/// A state in its parts, as it is at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Parts {
    tokens: u64,
    older: u64,
    owed: u64,
    end: u64,
    left: u64,
    more_at: u64,
    /// The least hits that are denied.
    denied: u64,
    denied_until: u64,
    /// The exponent of the low-water mark, plus one; 0 if there is none.
    low: u64,
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
        self.parts(state, now).left
    }

    /// Lets the state decide alone, as one of `sidecars`, until the next refill.
    pub fn decide_alone(&self, state: &mut [u64; 4], sidecars: u32, now: Timestamp) {
        let mut parts = self.parts(state, now);
        let length = self.recovery.as_nanos();
        let end = (now.as_nanos() / length).saturating_add(1).saturating_mul(length);
        if parts.tokens + parts.older > 0 {
            // They are spent first.
            return;
        }
        if parts.low != ALONE || parts.end != end {
            parts.owed = if parts.low == ALONE { 0 } else { parts.owed };
            (parts.end, parts.more_at, parts.low) = (end, end, ALONE);
        }
        parts.left = u64::from(self.capacity / sidecars.max(1));
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
        let parts = self.parts(state, now);
        parts.tokens + parts.older
    }

    /// The hits that are owed to the shared counter.
    #[must_use]
    pub fn owed(&self, state: &[u64; 4], now: Timestamp) -> u64 {
        self.parts(state, now).owed
    }

    /// What the state lacks for a charge of `hits`.
    #[must_use]
    pub fn lacks(&self, state: &[u64; 4], hits: u64, now: Timestamp) -> Lack {
        let parts = self.parts(state, now);
        if hits <= parts.tokens + parts.older {
            Lack::Nothing
        } else if parts.denies(hits, now) {
            Lack::Denied
        } else {
            Lack::Tokens
        }
    }

    /// Until when a charge of `hits` that does not fit is denied without a refill.
    #[must_use]
    pub fn denied_until(&self, state: &[u64; 4], hits: u64, now: Timestamp) -> Timestamp {
        let parts = self.parts(state, now);
        let until = if parts.denies(hits, now) { parts.denied_until } else { 0 };
        Timestamp::from_nanos(until)
    }

    /// Adds what a refill brought, and returns the time to keep the state until.
    pub fn add(&self, state: &mut [u64; 4], refill: &Refill, now: Timestamp) -> Timestamp {
        let mut parts = self.parts(state, now);
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

    /// Takes out all but `keep` tokens.
    pub fn take_out(&self, state: &mut [u64; 4], keep: u64, now: Timestamp) -> GivenBack {
        let mut parts = self.parts(state, now);
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
        let parts = self.parts(state, now);
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
        let parts = self.parts(state, now);
        let earlier = if parts.older > 0 { GENERATION.as_nanos() } else { 0 };
        Timestamp::from_nanos(parts.end.saturating_sub(earlier))
    }

    /// When the last tokens end.
    pub(crate) fn last_end(state: &[u64; 4]) -> Timestamp {
        Timestamp::from_nanos(state[1])
    }

    pub(crate) fn decide(&self, state: &mut [u64; 4], charge: Charge, now: Timestamp) -> Decision {
        let mut parts = self.parts(state, now);
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
        if now.as_nanos() >= parts.end || parts.owed > 0 {
            return;
        }
        let room = u64::from(self.capacity).saturating_sub(parts.tokens + parts.older + parts.left);
        let back = (hits - unpaid).min(room);
        match parts.older_end(self.ends) {
            Some(end) if now.as_nanos() < end => parts.older += back,
            _ => parts.tokens += back,
        }
    }

    /// The parts of a state at `now`: without what has ended.
    fn parts(&self, state: &[u64; 4], now: Timestamp) -> Parts {
        let [tokens, end, left, denial] = *state;
        let (low_half, high_half, now) = (tokens & HALF, tokens >> 32, now.as_nanos());
        let (tokens, older, owed) = match high_half {
            OWED => (0, 0, low_half),
            older => (low_half, older, 0),
        };
        let denied = (denial >> 5) & ((1 << 15) - 1);
        let mut parts = Parts {
            tokens,
            older,
            owed,
            end,
            left: left & HALF,
            more_at: (left >> 32).saturating_mul(SECOND),
            denied: (denied & 1_023) << (denied >> 10),
            denied_until: (denial >> 20) << UNTIL_UNIT,
            low: denial & 31,
        };
        if now >= end {
            let is_alone = parts.low == ALONE;
            (parts.tokens, parts.older, parts.left) = (0, 0, 0);
            parts.low = if is_alone { ALONE } else { 0 };
        } else if parts.older_end(self.ends).is_none_or(|end| now >= end) {
            parts.older = 0;
        }
        parts
    }
}

impl Parts {
    /// When older tokens end; none if there cannot be any.
    fn older_end(&self, ends: Ends) -> Option<u64> {
        match ends {
            Ends::Window => None,
            Ends::Generation => self.end.checked_sub(GENERATION.as_nanos()),
        }
    }

    /// Whether a recent refill found no room for `hits`.
    fn denies(&self, hits: u64, now: Timestamp) -> bool {
        self.denied > 0 && hits >= self.denied && now.as_nanos() < self.denied_until
    }

    /// Takes `hits`, which are there, the older ones first.
    fn spend(&mut self, hits: u64) {
        let older = hits.min(self.older);
        self.older -= older;
        self.tokens = self.tokens.saturating_sub(hits - older);
    }

    /// Adds tokens that end at `end`.
    fn add(&mut self, ends: Ends, tokens: u64, end: u64) {
        if end > self.end {
            // Tokens of another window have ended with it.
            let is_next = Parts { end, ..*self }.older_end(ends) == Some(self.end);
            self.older = if is_next { self.tokens } else { 0 };
            (self.tokens, self.end) = (tokens, end);
        } else if end == self.end {
            self.tokens += tokens;
        } else if self.older_end(ends) == Some(end) {
            self.older += tokens;
        }
        self.tokens = self.tokens.min(TOKENS_MAX);
        self.older = self.older.min(TOKENS_MAX - self.tokens);
    }

    /// Pays what is owed from tokens, which the shared counter has counted.
    fn pay(&mut self) {
        let paid = self.owed.min(self.tokens + self.older);
        self.spend(paid);
        self.owed -= paid;
    }

    fn keep_until(&self, now: Timestamp) -> Timestamp {
        let held = match self.tokens + self.older {
            0 => now.saturating_add(EMPTY_FOR).as_nanos().min(self.end),
            _ => self.end,
        };
        let owed = if self.owed > 0 { now.saturating_add(OWED_FOR).as_nanos() } else { 0 };
        let denied = if self.denied > 0 { self.denied_until } else { 0 };
        Timestamp::from_nanos(held.max(owed).max(denied))
    }

    fn write(&self, state: &mut [u64; 4]) {
        let tokens = match self.owed {
            0 => self.tokens | self.older << 32,
            owed => owed | OWED << 32,
        };
        let until = if self.denied > 0 { self.denied_until >> UNTIL_UNIT } else { 0 };
        let more_at = self.more_at.div_ceil(SECOND).min(HALF);
        let denial = until << 20 | rounded_up(self.denied) << 5 | self.low;
        *state = [tokens, self.end, self.left.min(HALF) | more_at << 32, denial];
    }
}

/// The exponent of a quarter of `tokens`, plus one; 0 if that is less than one token.
fn low_water(tokens: u64) -> u64 {
    (tokens / 4).checked_ilog2().map_or(0, |exponent| u64::from(exponent + 1).min(ALONE - 1))
}

/// A number as ten bits above and a shift of five bits, rounded up.
fn rounded_up(number: u64) -> u64 {
    let mut shift = u64::from((u64::BITS - number.leading_zeros()).saturating_sub(10));
    if number.div_ceil(1 << shift) > 1_023 {
        shift += 1;
    }
    match shift {
        0..=31 => number.div_ceil(1 << shift) | shift << 10,
        // Above all limits.
        _ => 1_023 | 31 << 10,
    }
}
