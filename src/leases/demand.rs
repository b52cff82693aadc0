//! How many tokens a second are needed, by those of the last moments.
//!
//! Two numbers: the tokens of the window that runs now, and the rate of the one before. A burst
//! counts at once: its tokens over the time since the window began, though never less than
//! [`BURST`], so that two hits at the same instant are no endless rate.

use tidegate_core::{Nanos, Timestamp};

/// Long enough for a rate of 4 hits a second to show, short enough to follow a change.
const WINDOW: Nanos = Nanos::new(250_000_000);
const BURST: Nanos = Nanos::new(100_000_000);
/// After so long without any, what was before says nothing.
const FORGOTTEN: Nanos = Nanos::new(500_000_000);
/// Below it a lease would end unspent rather than save an ask.
const WORTH_LEASING: u64 = 4;
const SECOND: u64 = 1_000_000_000;

/// The demand for one descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Demand {
    /// When the window began.
    pub(crate) since: Timestamp,
    /// When the last tokens were needed.
    pub(crate) last: Timestamp,
    /// Tokens needed since it began.
    pub(crate) tokens: u32,
    /// Tokens a second in the window before.
    pub(crate) rate: u32,
}

impl Demand {
    /// Counts tokens that are needed now.
    pub(crate) fn note(&mut self, tokens: u64, now: Timestamp) {
        if tokens == 0 {
            return;
        }
        let elapsed = now.saturating_since(self.since);
        if elapsed >= FORGOTTEN {
            // One request alone, of however many hits, says nothing about the next.
            *self = Demand { since: now, last: now, tokens: 0, rate: 0 };
            return;
        }
        if elapsed >= WINDOW {
            let rate = per_second(u64::from(self.tokens), elapsed);
            self.rate = u32::try_from(rate).unwrap_or(u32::MAX);
            (self.since, self.tokens) = (now, 0);
        }
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        self.tokens = self.tokens.saturating_add(tokens);
        self.last = now;
    }

    /// Takes back tokens that were not needed after all.
    pub(crate) fn take_back(&mut self, tokens: u64) {
        self.tokens = self.tokens.saturating_sub(u32::try_from(tokens).unwrap_or(u32::MAX));
    }

    /// Tokens a second.
    pub(crate) fn per_second(&self, now: Timestamp) -> u64 {
        let elapsed = now.saturating_since(self.since);
        let before = if elapsed < FORGOTTEN { u64::from(self.rate) } else { 0 };
        before.max(per_second(u64::from(self.tokens), elapsed.max(BURST)))
    }

    /// How many tokens are worth asking for in advance: those of one second.
    pub(crate) fn wanted(&self, now: Timestamp) -> u64 {
        let rate = self.per_second(now);
        if rate < WORTH_LEASING { 0 } else { rate }
    }

    /// Tokens that are needed in `span`, at this rate.
    pub(crate) fn within(&self, span: Nanos, now: Timestamp) -> u64 {
        self.per_second(now).saturating_mul(span.as_nanos()).checked_div(SECOND).unwrap_or(0)
    }

    /// How long nothing was needed.
    pub(crate) fn idle(&self, now: Timestamp) -> Nanos {
        now.saturating_since(self.last)
    }
}

fn per_second(tokens: u64, elapsed: Nanos) -> u64 {
    tokens.saturating_mul(SECOND).checked_div(elapsed.as_nanos()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hits at these milliseconds, and what is wanted right after the last.
    fn check(hits_ms: &[u64], wanted: u64) {
        let mut demand = Demand::default();
        let at = |ms: u64| Timestamp::from_nanos((1_000_000 + ms) * 1_000_000);
        for ms in hits_ms {
            demand.note(1, at(*ms));
        }
        assert_eq!(demand.wanted(at(*hits_ms.last().unwrap())), wanted, "for {hits_ms:?}");
    }

    #[test]
    fn what_is_wanted_follows_the_rate_and_is_nothing_for_rare_keys() {
        check(&[0], 0);
        check(&[0, 500], 0);
        check(&[0, 1_000, 2_000, 3_000], 0);
        check(&[0, 0], 10);
        check(&[0, 100], 10);
        check(&[0, 200], 5);
        let steady: Vec<u64> = (0..100).map(|hit| hit * 10).collect();
        // 25 in 240 ms: the one at the start of the window counts.
        check(&steady, 104);
        let burst: Vec<u64> = (0..100).map(|hit| hit / 10).collect();
        check(&burst, 990);
    }
}
