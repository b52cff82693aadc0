//! The words of held tokens, and their parts.
//!
//! State words: tokens (low half) and older tokens (high half); `end` (ns since the epoch); what the shared counter
//! had left after the last refill (low half) and when it has more (high half, in seconds, rounded up); and, from high
//! to low bits, the end of the denial (44 bits, in 2^20 ns, rounded down), the hits that it is for (15 bits, rounded
//! up) and the low-water mark (5 bits). If the older tokens are 2^32 - 1, the first half counts hits that are owed.

use crate::units::{Nanos, Timestamp};

/// The time between the ends of tokens of a bucket.
pub(crate) const GENERATION: Nanos = Nanos::from_secs(1);
/// How long hits are owed while the shared counter does not answer.
const OWED_FOR: Nanos = Nanos::from_secs(3_600);
/// How long a state without tokens is kept: leased tokens may come back to it.
const EMPTY_FOR: Nanos = Nanos::from_secs(10);
/// Stands in the place of older tokens if hits are owed.
const OWED: u64 = u32::MAX as u64;
/// In place of the low-water mark, if the state decides alone. Then `left` is its share.
pub(super) const ALONE: u64 = 31;
/// The bits of the low-water mark. The other bits of their word are of the denial.
pub(super) const LOW: u64 = 31;
/// More tokens are never held.
const TOKENS_MAX: u64 = u32::MAX as u64 - 1;
pub(super) const HALF: u64 = u32::MAX as u64;
const SECOND: u64 = 1_000_000_000;
const UNTIL_UNIT: u32 = 20;

/// When tokens end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    /// With the window that counts them.
    Window,
    /// After a time.
    Generation,
}

/// A state in its parts, as it is at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Parts {
    pub(super) tokens: u64,
    pub(super) older: u64,
    pub(super) owed: u64,
    pub(super) end: u64,
    pub(super) left: u64,
    pub(super) more_at: u64,
    /// The least hits that are denied.
    pub(super) denied: u64,
    /// 0 if none are.
    pub(super) denied_until: u64,
    /// The exponent of the low-water mark, plus one; 0 if there is none.
    pub(super) low: u64,
}

impl Parts {
    /// The parts of a state at `now`: without what has ended.
    pub(super) fn read(state: &[u64; 4], ends: Ends, now: Timestamp) -> Parts {
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
            denied: unpacked(denied),
            denied_until: (denial >> 20) << UNTIL_UNIT,
            low: denial & LOW,
        };
        if now >= end {
            let is_alone = parts.low == ALONE;
            (parts.tokens, parts.older, parts.left) = (0, 0, 0);
            parts.low = if is_alone { ALONE } else { 0 };
        } else if parts.older_end(ends).is_none_or(|end| now >= end) {
            parts.older = 0;
        }
        parts
    }

    /// When older tokens end; none if there cannot be any.
    pub(super) fn older_end(&self, ends: Ends) -> Option<u64> {
        match ends {
            Ends::Window => None,
            Ends::Generation => self.end.checked_sub(GENERATION.as_nanos()),
        }
    }

    /// Whether a recent refill found no room for `hits`.
    pub(super) fn denies(&self, hits: u64, now: Timestamp) -> bool {
        // The number was rounded up, so the very hits that were denied may be fewer.
        let is_rounded = || hits > self.tokens + self.older + self.left;
        let is_denied =
            hits >= self.denied || (unpacked(rounded_up(hits)) >= self.denied && is_rounded());
        self.denied > 0 && now.as_nanos() < self.denied_until && is_denied
    }

    /// Takes `hits`, which are there, the older ones first.
    pub(super) fn spend(&mut self, hits: u64) {
        let older = hits.min(self.older);
        self.older -= older;
        self.tokens = self.tokens.saturating_sub(hits - older);
    }

    /// Adds tokens that end at `end`.
    pub(super) fn add(&mut self, ends: Ends, tokens: u64, end: u64) {
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
    pub(super) fn pay(&mut self) {
        let paid = self.owed.min(self.tokens + self.older);
        self.spend(paid);
        self.owed -= paid;
    }

    pub(super) fn keep_until(&self, now: Timestamp) -> Timestamp {
        let held = match self.tokens + self.older {
            0 => now.saturating_add(EMPTY_FOR).as_nanos().min(self.end),
            _ => self.end,
        };
        let owed = if self.owed > 0 { now.saturating_add(OWED_FOR).as_nanos() } else { 0 };
        Timestamp::from_nanos(held.max(owed).max(self.denied_until))
    }

    pub(super) fn write(&self, state: &mut [u64; 4]) {
        let tokens = match self.owed {
            0 => self.tokens | self.older << 32,
            owed => owed | OWED << 32,
        };
        let more_at = self.more_at.div_ceil(SECOND).min(HALF);
        let denial =
            self.denied_until >> UNTIL_UNIT << 20 | rounded_up(self.denied) << 5 | self.low;
        *state = [tokens, self.end, self.left.min(HALF) | more_at << 32, denial];
    }
}

/// The exponent of a quarter of `tokens`, plus one; 0 if that is less than one token.
pub(super) fn low_water(tokens: u64) -> u64 {
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

/// The number that [`rounded_up`] made of another one.
fn unpacked(rounded: u64) -> u64 {
    (rounded & 1_023) << (rounded >> 10)
}
