//! The rate at which a descriptor's tokens are needed, estimated from the last moments.
//!
//! Two numbers: the tokens of the current window, and the rate of the previous one. A burst counts
//! at once: its tokens over the time since the window began, but at least [`BURST`], so that two
//! simultaneous hits are not an infinite rate.

use tidegate_core::{Nanos, Timestamp};

/// Long enough to measure 4 hits a second, short enough to follow a change.
const WINDOW: Nanos = Nanos::new(250_000_000);
const BURST: Nanos = Nanos::new(100_000_000);
/// After this time without hits, the previous rate is discarded.
const FORGOTTEN: Nanos = Nanos::new(500_000_000);
/// Below this rate, a lease would expire unspent rather than save a call.
const WORTH_LEASING: u64 = 4;
const SECOND: u64 = 1_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Demand {
    pub(crate) since: Timestamp,
    /// Time of the last hit.
    pub(crate) last: Timestamp,
    /// Tokens needed in the window.
    pub(crate) tokens: u32,
    /// Tokens a second in the previous window.
    pub(crate) rate: u32,
}

impl Demand {
    /// Counts tokens needed now.
    pub(crate) fn note(&mut self, tokens: u64, now: Timestamp) {
        if tokens == 0 {
            return;
        }
        let elapsed = now.saturating_since(self.since);
        if elapsed >= FORGOTTEN {
            // A single request, of however many hits, does not predict the next.
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

    /// Removes tokens that were not needed after all.
    pub(crate) fn take_back(&mut self, tokens: u64) {
        self.tokens = self.tokens.saturating_sub(u32::try_from(tokens).unwrap_or(u32::MAX));
    }

    pub(crate) fn per_second(&self, now: Timestamp) -> u64 {
        let elapsed = now.saturating_since(self.since);
        let before = if elapsed < FORGOTTEN { u64::from(self.rate) } else { 0 };
        before.max(per_second(u64::from(self.tokens), elapsed.max(BURST)))
    }

    /// The tokens worth requesting in advance: those of one second.
    pub(crate) fn wanted(&self, now: Timestamp) -> u64 {
        let rate = self.per_second(now);
        if rate < WORTH_LEASING { 0 } else { rate }
    }

    /// Tokens needed in `span` at this rate.
    pub(crate) fn within(&self, span: Nanos, now: Timestamp) -> u64 {
        self.per_second(now).saturating_mul(span.as_nanos()).checked_div(SECOND).unwrap_or(0)
    }

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

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_nanos((1_000_000 + ms) * 1_000_000)
    }

    /// Hits at these milliseconds, and the tokens wanted right after the last.
    fn check(hits_ms: &[u64], wanted: u64) {
        let mut demand = Demand::default();
        for ms in hits_ms {
            demand.note(1, at(*ms));
        }
        assert_eq!(demand.wanted(at(*hits_ms.last().unwrap())), wanted, "for {hits_ms:?}");
    }

    #[test]
    fn wanted_tokens_follow_the_rate_and_are_none_for_rare_keys() {
        check(&[0], 0);
        check(&[0, 500], 0);
        check(&[0, 1_000, 2_000, 3_000], 0);
        check(&[0, 0], 10);
        check(&[0, 100], 10);
        check(&[0, 200], 5);
        let steady: Vec<u64> = (0..100).map(|hit| hit * 10).collect();
        // 25 in 240 ms: the hit at the start of the window counts.
        check(&steady, 104);
        let burst: Vec<u64> = (0..100).map(|hit| hit / 10).collect();
        check(&burst, 990);
    }

    /// A demand that began at 0 and needed so many tokens at 100 ms.
    fn needed_at_100_ms(tokens: u64) -> Demand {
        let mut demand = Demand::default();
        demand.note(1, at(0));
        demand.note(tokens, at(100));
        demand
    }

    #[test]
    fn the_rate_of_the_last_window_counts_for_half_a_second() {
        let mut demand = needed_at_100_ms(50);
        demand.note(1, at(250));
        // 50 in the 250 ms of the first window, 1 in the second.
        assert_eq!(demand.per_second(at(250)), 200);
        assert_eq!(demand.per_second(at(749)), 200);
        assert_eq!(demand.per_second(at(750)), 2);
    }

    #[test]
    fn four_tokens_a_second_are_worth_leasing_and_fewer_are_not() {
        let demand = needed_at_100_ms(2);
        assert_eq!(demand.wanted(at(500)), 4);
        assert_eq!(demand.wanted(at(501)), 0);
    }

    #[test]
    fn tokens_taken_back_are_no_demand() {
        let mut demand = needed_at_100_ms(50);
        demand.take_back(30);
        assert_eq!(demand.per_second(at(100)), 200);
        demand.take_back(u64::MAX);
        assert_eq!(demand.per_second(at(100)), 0);
    }
}
