//! The cached state of one descriptor and the decision that follows from it. Slots of the shared
//! table and the table of a worker store the same type.
//!
//! Pure: no clock, no host. Tokens at hand are used before a denial applies, since they are charged
//! already.

use super::demand::Demand;
use super::limit_info::LimitInfo;
use super::token_pool::{LeaseTokens, TokenPool};
use tidegate_core::{Nanos, Timestamp};

/// The cached state of one descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct DescriptorState {
    /// Tokens at hand.
    pub(crate) pool: TokenPool,
    /// End of the cached denial.
    pub(crate) denied_until: Timestamp,
    /// The fewest hits that were denied; fewer might fit.
    pub(crate) denied_hits: u64,
    /// End of the time in which no limit applies.
    pub(crate) unlimited_until: Timestamp,
    /// From here on a new lease is worth requesting even if tokens are left: after two thirds of
    /// the last lease's time.
    pub(crate) stale_from: Timestamp,
    /// Until then another call for a new lease is pending.
    pub(crate) refreshing_until: Timestamp,
    pub(crate) limit: LimitInfo,
    pub(crate) demand: Demand,
}

/// The decision for a request by local state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LocalDecision {
    /// It passes.
    Allow,
    /// It is denied.
    Deny,
    /// Only the sidecar can decide.
    Ask,
}

/// Tokens unused for this long go back to the sidecar.
pub(crate) const IDLE: Nanos = Nanos::new(300_000_000);
/// The longest denial while tokens are at hand.
const DENIED_WHILE_HELD: Nanos = Nanos::new(200_000_000);
/// A worker takes tokens for about this time.
const CHUNK: Nanos = Nanos::new(50_000_000);
/// A worker takes at most this fraction (one in four) of the tokens left, so that all workers get
/// some.
const CHUNK_SHARE: u64 = 4;
/// A new lease is requested when less than this fraction (one in three) of the tokens are left.
const LOW_WATER: u64 = 3;
/// Tokens are returned beyond this multiple of the expected demand, since demand may rise.
const SURPLUS: u64 = 2;

impl DescriptorState {
    /// The decision for a request of `hits`; 0 hits only checks whether one would pass.
    pub(crate) fn decide(&self, hits: u64, now: Timestamp) -> LocalDecision {
        if now < self.unlimited_until || self.pool.left(now) >= hits.max(1) {
            LocalDecision::Allow
        } else if self.is_denied(hits, now) {
            LocalDecision::Deny
        } else {
            LocalDecision::Ask
        }
    }

    /// Whether the sidecar would deny `hits`, regardless of tokens at hand.
    pub(crate) fn is_denied(&self, hits: u64, now: Timestamp) -> bool {
        // 0 hits are denied if one hit is.
        now < self.denied_until && hits.max(1) >= self.denied_hits
    }

    /// Spends what [`DescriptorState::decide`] allowed.
    pub(crate) fn spend(&mut self, hits: u64, now: Timestamp) -> bool {
        now < self.unlimited_until || self.pool.spend(hits, now)
    }

    /// Caches a denial of `hits`, unless a cached one implies it. Short while tokens are at hand,
    /// as they may go back.
    pub(crate) fn deny(&mut self, hits: u64, until: Timestamp, now: Timestamp) {
        let hits = hits.max(1);
        let until = match self.pool.left(now) {
            0 => until,
            _ => Self::denied_while_held(until, now),
        };
        let follows = self.denied_hits <= hits && self.denied_until >= until;
        if !follows {
            (self.denied_hits, self.denied_until) = (hits, until);
        }
    }

    /// The end of a denial until `until` while tokens are at hand, here or in the slot.
    pub(crate) fn denied_while_held(until: Timestamp, now: Timestamp) -> Timestamp {
        until.min(now.saturating_add(DENIED_WHILE_HELD))
    }

    /// Records that `hits` were allowed, which ends a denial of that many.
    pub(crate) fn allowed(&mut self, hits: u64) {
        if hits >= self.denied_hits {
            self.denied_until = Timestamp::default();
        }
    }

    pub(crate) fn grant(&mut self, lease: LeaseTokens, now: Timestamp) -> Result<(), LeaseTokens> {
        self.pool.put(lease, now)?;
        self.fresh_until(lease.expires_at, now);
        Ok(())
    }

    /// Records that no limit applies until then.
    pub(crate) fn set_unlimited(&mut self, until: Timestamp, now: Timestamp) {
        self.unlimited_until = until;
        self.fresh_until(until, now);
    }

    /// Adopts a longer time without a limit from a slot.
    pub(crate) fn copy_unlimited(&mut self, slot: &DescriptorState) {
        if slot.unlimited_until > self.unlimited_until {
            (self.unlimited_until, self.stale_from) = (slot.unlimited_until, slot.stale_from);
        }
    }

    fn fresh_until(&mut self, ends: Timestamp, now: Timestamp) {
        let lasts = ends.saturating_since(now).as_nanos();
        let fresh = lasts.saturating_sub(lasts.checked_div(3).unwrap_or(0));
        self.stale_from = now.saturating_add(Nanos::new(fresh));
        self.refreshing_until = Timestamp::default();
    }

    /// Whether no limit applies, and a call should check whether that is still so.
    pub(crate) fn is_unlimited_and_stale(&self, now: Timestamp) -> bool {
        now < self.unlimited_until && now >= self.stale_from && now >= self.refreshing_until
    }

    /// The tokens that a worker with this demand takes when it lacks `needed`.
    pub(crate) fn chunk(&self, needed: u64, demand: &Demand, now: Timestamp) -> u64 {
        let share = self.pool.left(now).checked_div(CHUNK_SHARE).unwrap_or(0);
        demand.within(CHUNK, now).min(share).max(needed)
    }

    /// Whether to request a new lease, if this one had `granted` tokens.
    pub(crate) fn is_low(&self, granted: u32, now: Timestamp) -> bool {
        let low = self.pool.left(now).saturating_mul(LOW_WATER) < u64::from(granted);
        (low || now >= self.stale_from) && now >= self.refreshing_until
    }

    /// Takes out the tokens that will expire unspent.
    pub(crate) fn take_surplus(&mut self, now: Timestamp) -> TokenPool {
        let demand = self.demand;
        let surplus = |lease: &LeaseTokens| {
            if demand.idle(now) >= IDLE {
                return lease.left;
            }
            let kept = demand.within(lease.lasts(now), now).saturating_mul(SURPLUS);
            let over = u64::from(lease.left).saturating_sub(kept.saturating_add(SURPLUS));
            // Less than half of a lease is not worth a call.
            if over.saturating_mul(2) < u64::from(lease.left) { 0 } else { saturate(over) }
        };
        self.pool.take_out(surplus, now)
    }

    /// Whether a worker can decide anything by it.
    pub(crate) fn is_informative(&self, now: Timestamp) -> bool {
        self.pool.left(now) > 0 || now < self.denied_until || now < self.unlimited_until
    }
}

fn saturate(tokens: u64) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    fn lease(left: u32, ends: u64) -> LeaseTokens {
        LeaseTokens { id: ends, left, granted: left, expires_at: at(ends) }
    }

    #[test]
    fn each_part_of_the_state_decides_until_its_expiry() {
        let mut tokens = DescriptorState::default();
        tokens.grant(lease(2, 100), at(0)).unwrap();
        tokens.grant(lease(1, 50), at(0)).unwrap();
        let mut denied = DescriptorState::default();
        denied.deny(3, at(100), at(0));
        let mut both = tokens;
        both.deny(1, at(100), at(0));
        let free = DescriptorState { unlimited_until: at(100), ..DescriptorState::default() };
        use LocalDecision::{Allow, Ask, Deny};
        let table = [
            ("nothing known", DescriptorState::default(), 1, 0, Ask),
            ("nothing known, looking", DescriptorState::default(), 0, 0, Ask),
            ("both leases together", tokens, 3, 0, Allow),
            ("more than both", tokens, 4, 0, Ask),
            ("one has ended", tokens, 3, 50, Ask),
            ("the other has not", tokens, 2, 99, Allow),
            ("both have ended", tokens, 1, 100, Ask),
            ("looking at tokens", tokens, 0, 99, Allow),
            ("looking at ended tokens", tokens, 0, 100, Ask),
            ("as many were denied", denied, 3, 99, Deny),
            ("more than were denied", denied, 9, 99, Deny),
            ("fewer may fit", denied, 2, 99, Ask),
            ("looking, when one hit may fit", denied, 0, 99, Ask),
            ("the denial has ended", denied, 3, 100, Ask),
            ("tokens come before a denial", both, 3, 0, Allow),
            ("a denial for what tokens do not suffice for", both, 4, 0, Deny),
            ("looking at a denial", both, 0, 100, Ask),
            ("free", free, u64::MAX, 99, Allow),
            ("no longer free", free, 1, 100, Ask),
        ];
        for (name, state, hits, now, expected) in table {
            assert_eq!(state.decide(hits, at(now)), expected, "{name}");
        }
    }

    #[test]
    fn no_denial_is_extended_and_an_allowed_call_ends_it() {
        let mut state = DescriptorState::default();
        state.deny(2, at(100), at(0));
        state.deny(5, at(50), at(10));
        assert_eq!((state.denied_hits, state.denied_until), (2, at(100)));
        state.deny(1, at(50), at(10));
        assert_eq!((state.denied_hits, state.denied_until), (1, at(50)));
        state.deny(2, at(200), at(10));
        state.allowed(1);
        assert_eq!(state.decide(2, at(60)), LocalDecision::Deny);
        state.allowed(2);
        assert_eq!(state.decide(2, at(60)), LocalDecision::Ask);
    }

    #[test]
    fn a_denial_is_short_while_tokens_are_at_hand() {
        let second = 1_000_000_000;
        let mut state = DescriptorState::default();
        state.deny(5, at(second), at(0));
        assert_eq!(state.denied_until, at(second));
        let mut state = DescriptorState::default();
        state.grant(lease(2, 9 * second), at(0)).unwrap();
        state.deny(5, at(second), at(0));
        assert_eq!(state.denied_until, at(second / 5));
    }

    #[test]
    fn an_allowed_peek_ends_no_denial() {
        let mut state = DescriptorState::default();
        state.deny(1, at(100), at(0));
        state.allowed(0);
        assert_eq!(state.decide(1, at(99)), LocalDecision::Deny);
    }

    #[test]
    fn a_key_without_a_limit_is_checked_again_in_the_last_third_of_its_time() {
        let mut state = DescriptorState::default();
        state.set_unlimited(at(900), at(0));
        let stale = |now| state.is_unlimited_and_stale(at(now));
        assert_eq!([599, 600, 899, 900].map(stale), [false, true, true, false]);
        state.refreshing_until = at(700);
        let stale = |now| state.is_unlimited_and_stale(at(now));
        assert_eq!([600, 699, 700].map(stale), [false, false, true]);
        state.set_unlimited(at(900), at(600));
        assert!(state.is_unlimited_and_stale(at(800)), "the refresh has ended");
    }

    #[test]
    fn a_longer_time_without_a_limit_is_adopted_with_its_mark() {
        let slot = |until| {
            let mut slot = DescriptorState::default();
            slot.set_unlimited(at(until), at(0));
            slot
        };
        let mut state = slot(600);
        state.stale_from = at(7);
        for other in [slot(300), slot(600)] {
            state.copy_unlimited(&other);
            assert_eq!((state.unlimited_until, state.stale_from), (at(600), at(7)));
        }
        state.copy_unlimited(&slot(900));
        assert_eq!((state.unlimited_until, state.stale_from), (at(900), at(600)));
    }

    #[test]
    fn a_state_informs_until_its_last_part_ends() {
        let mut tokens = DescriptorState::default();
        tokens.grant(lease(1, 100), at(0)).unwrap();
        let mut denied = DescriptorState::default();
        denied.deny(1, at(100), at(0));
        let free = DescriptorState { unlimited_until: at(100), ..DescriptorState::default() };
        for state in [tokens, denied, free] {
            assert!(state.is_informative(at(99)) && !state.is_informative(at(100)), "{state:?}");
        }
        assert!(!DescriptorState::default().is_informative(at(0)));
    }

    #[test]
    fn chunks_shrink_as_the_lease_runs_out() {
        let second = 1_000_000_000;
        let mut demand = Demand::default();
        for hit in 0..1_000 {
            demand.note(1, at(second + hit * 1_000_000));
        }
        let now = at(2 * second);
        // (tokens left, needed) and the chunk: 50 of a demand of 1,000 a second.
        for (left, needed, chunk) in
            [(1_000, 1, 50), (100, 1, 25), (8, 1, 2), (4, 1, 1), (1, 1, 1), (100, 70, 70)]
        {
            let mut state = DescriptorState::default();
            state.grant(lease(left, 9 * second), now).unwrap();
            assert_eq!(state.chunk(needed, &demand, now), chunk, "of {left} for {needed}");
        }
    }

    #[test]
    fn a_new_lease_is_worth_asking_for_when_tokens_or_time_run_out() {
        let mut state = DescriptorState::default();
        state.grant(lease(90, 900), at(0)).unwrap();
        assert!(!state.is_low(90, at(599)));
        assert!(state.is_low(90, at(600)));
        assert!(state.spend(60, at(0)));
        assert!(!state.is_low(90, at(0)));
        assert!(state.spend(1, at(0)));
        assert!(state.is_low(90, at(0)));
        state.refreshing_until = at(10);
        assert!(!state.is_low(90, at(9)));
        assert!(state.is_low(90, at(10)));
        state.refreshing_until = at(800);
        state.grant(lease(9, 900), at(0)).unwrap();
        assert!(state.is_low(900, at(0)), "a lease that was granted ends the request for it");
    }

    #[test]
    fn tokens_go_back_when_idle_or_far_more_than_the_demand() {
        let second = 1_000_000_000;
        let mut state = DescriptorState::default();
        for hit in 0..10 {
            state.demand.note(1, at(second + hit * 100_000_000));
        }
        let now = at(2 * second - 100_000_000);
        state.grant(lease(100, 3 * second), now).unwrap();
        // 10 a second for 1.1 s, twice over, and 2.
        assert_eq!(state.clone().take_surplus(now).left(now), 100 - 24);
        assert!(state.spend(52, now));
        assert_eq!(state.clone().take_surplus(now).left(now), 24, "half of it is worth a call");
        assert!(state.spend(1, now));
        assert_eq!(state.clone().take_surplus(now).left(now), 0);
        assert!(state.spend(7, now));
        let idle = at(2 * second + 200_000_000);
        assert_eq!(state.take_surplus(idle).left(idle), 40);
        assert_eq!(state.pool.left(idle), 0);
    }
}
