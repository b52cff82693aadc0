//! Tokens of up to two leases: the one that is being spent, and one that a refresh has already
//! brought.
//!
//! Invariants: the lease that expires first is spent first; expired tokens do not count; no
//! operation creates tokens, and none loses tokens that have not expired.

use tidegate_core::{Nanos, Timestamp};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LeaseTokens {
    pub(crate) id: u64,
    /// Tokens that may be spent; with 0, the place is unused.
    pub(crate) left: u32,
    /// Tokens that the lease had when it was granted.
    pub(crate) granted: u32,
    /// From here on none may be spent.
    pub(crate) expires_at: Timestamp,
}

impl LeaseTokens {
    fn is_live(&self, now: Timestamp) -> bool {
        self.left > 0 && now < self.expires_at
    }

    /// How long it may still be spent.
    pub(crate) fn lasts(&self, now: Timestamp) -> Nanos {
        self.expires_at.saturating_since(now)
    }
}

/// Tokens of up to [`TokenPool::LEASES_MAX`] leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TokenPool {
    pub(crate) leases: [LeaseTokens; TokenPool::LEASES_MAX],
}

impl TokenPool {
    /// One that is being spent and its successor. A third can only come from workers that call at
    /// the same moment.
    pub(crate) const LEASES_MAX: usize = 2;

    pub(crate) fn left(&self, now: Timestamp) -> u64 {
        let live = self.leases.iter().filter(|lease| lease.is_live(now));
        live.map(|lease| u64::from(lease.left)).fold(0, u64::saturating_add)
    }

    /// The size at grant of the largest live lease.
    pub(crate) fn granted(&self, now: Timestamp) -> u32 {
        let live = self.leases.iter().filter(|lease| lease.is_live(now));
        live.map(|lease| lease.granted).max().unwrap_or(0)
    }

    /// The leases with tokens, expired or not.
    pub(crate) fn each(&self) -> impl Iterator<Item = LeaseTokens> {
        self.leases.into_iter().filter(|lease| lease.left > 0)
    }

    /// Spends `hits` tokens, or none if there are fewer.
    pub(crate) fn spend(&mut self, hits: u64, now: Timestamp) -> bool {
        if self.left(now) < hits {
            return false;
        }
        let mut missing = hits;
        while missing > 0 {
            let Some(lease) = self.first_to_end(now) else { return false };
            let spent = u32::try_from(missing).unwrap_or(u32::MAX).min(lease.left);
            lease.left = lease.left.saturating_sub(spent);
            missing = missing.saturating_sub(u64::from(spent));
        }
        true
    }

    fn first_to_end(&mut self, now: Timestamp) -> Option<&mut LeaseTokens> {
        self.leases
            .iter_mut()
            .filter(|lease| lease.is_live(now))
            .min_by_key(|lease| lease.expires_at)
    }

    /// Adds tokens, to the same lease if it is here. Returns them if there is no place. Expired
    /// tokens are dropped.
    pub(crate) fn put(&mut self, tokens: LeaseTokens, now: Timestamp) -> Result<(), LeaseTokens> {
        if !tokens.is_live(now) {
            return Ok(());
        }
        if let Some(lease) =
            self.leases.iter_mut().find(|lease| lease.left > 0 && lease.id == tokens.id)
        {
            // A lease has one expiry; if two are reported, the earlier is safe.
            let expires_at = lease.expires_at.min(tokens.expires_at);
            let left = lease.left.saturating_add(tokens.left);
            *lease = LeaseTokens { left, expires_at, ..*lease };
            return Ok(());
        }
        match self.leases.iter_mut().find(|lease| !lease.is_live(now)) {
            Some(unused) => {
                *unused = tokens;
                Ok(())
            }
            None => Err(tokens),
        }
    }

    /// Moves up to `tokens` tokens into `other`, as far as it has places; returns their number.
    pub(crate) fn move_to(&mut self, other: &mut TokenPool, tokens: u64, now: Timestamp) -> u64 {
        let mut moved = 0_u64;
        let mut by_end = self.leases;
        by_end.sort_unstable_by_key(|lease| lease.expires_at);
        for lease in by_end.iter_mut().filter(|lease| lease.is_live(now)) {
            let wanted = tokens.saturating_sub(moved);
            let part = u32::try_from(wanted).unwrap_or(u32::MAX).min(lease.left);
            if part > 0 && other.put(LeaseTokens { left: part, ..*lease }, now).is_ok() {
                lease.left = lease.left.saturating_sub(part);
                moved = moved.saturating_add(u64::from(part));
            }
        }
        self.leases = by_end;
        moved
    }

    /// Takes `surplus` tokens out of each lease.
    pub(crate) fn take_out(
        &mut self,
        surplus: impl Fn(&LeaseTokens) -> u32,
        now: Timestamp,
    ) -> TokenPool {
        let mut out = TokenPool::default();
        for (lease, taken) in self.leases.iter_mut().zip(&mut out.leases) {
            let part = if lease.is_live(now) { surplus(lease).min(lease.left) } else { 0 };
            *taken = LeaseTokens { left: part, ..*lease };
            lease.left = lease.left.saturating_sub(part);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(nanos: u64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    fn lease(id: u64, left: u32, ends: u64) -> LeaseTokens {
        LeaseTokens { id, left, granted: left, expires_at: at(ends) }
    }

    #[test]
    fn the_lease_that_ends_first_is_spent_first_and_both_together_suffice() {
        let mut pool = TokenPool::default();
        pool.put(lease(1, 5, 200), at(0)).unwrap();
        pool.put(lease(2, 3, 100), at(0)).unwrap();
        assert!(pool.spend(2, at(0)));
        assert_eq!(
            pool.each().collect::<Vec<_>>(),
            [lease(1, 5, 200), LeaseTokens { left: 1, ..lease(2, 3, 100) }]
        );
        assert!(!pool.spend(7, at(0)));
        assert!(pool.spend(6, at(0)));
        assert_eq!(pool.left(at(0)), 0);
    }

    #[test]
    fn nothing_is_spent_at_or_after_the_end() {
        let mut pool = TokenPool::default();
        pool.put(lease(1, 5, 100), at(0)).unwrap();
        assert!(pool.spend(1, at(99)));
        assert!(!pool.spend(1, at(100)));
        assert_eq!(pool.put(lease(2, 1, 100), at(100)), Ok(()));
        assert_eq!(pool.left(at(100)), 0);
    }

    #[test]
    fn a_third_lease_has_no_place_until_one_has_ended_or_is_spent() {
        let mut pool = TokenPool::default();
        pool.put(lease(1, 5, 100), at(0)).unwrap();
        pool.put(lease(2, 5, 200), at(0)).unwrap();
        assert_eq!(pool.put(lease(3, 1, 300), at(0)), Err(lease(3, 1, 300)));
        assert_eq!(pool.put(lease(1, 2, 90), at(0)), Ok(()));
        assert_eq!(pool.put(lease(3, 1, 300), at(90)), Ok(()));
    }

    #[test]
    fn a_grant_is_that_of_the_largest_lease_that_lasts() {
        let mut pool = TokenPool::default();
        assert_eq!(pool.granted(at(0)), 0);
        pool.put(lease(1, 50, 100), at(0)).unwrap();
        pool.put(lease(2, 30, 200), at(0)).unwrap();
        assert!(pool.spend(49, at(0)));
        assert_eq!([0, 99, 100, 200].map(|now| pool.granted(at(now))), [50, 50, 30, 0]);
    }

    #[test]
    fn the_tokens_that_end_first_are_moved_first() {
        let mut pool = TokenPool::default();
        pool.put(lease(1, 5, 200), at(0)).unwrap();
        pool.put(lease(2, 3, 100), at(0)).unwrap();
        let mut other = TokenPool::default();
        assert_eq!(pool.move_to(&mut other, 2, at(0)), 2);
        assert_eq!(other.each().collect::<Vec<_>>(), [LeaseTokens { left: 2, ..lease(2, 3, 100) }]);
        assert_eq!(pool.left(at(0)), 6);
    }

    #[test]
    fn a_place_without_tokens_is_no_lease_to_add_to() {
        let mut pool = TokenPool::default();
        pool.put(lease(1, 5, 100), at(0)).unwrap();
        assert!(pool.spend(5, at(0)));
        // The same lease again, with another end and grant, as another worker holds it.
        pool.put(lease(1, 9, 300), at(0)).unwrap();
        assert_eq!(pool.each().collect::<Vec<_>>(), [lease(1, 9, 300)]);
    }

    proptest! {
        /// Tokens only move: those that leave one pool are in the other, for any amounts and
        /// expiries.
        #[test]
        fn moving_neither_makes_nor_loses_tokens(
            here in prop::collection::vec((0_u64..4, 0_u32..9, 0_u64..5), 0..3),
            there in prop::collection::vec((0_u64..4, 0_u32..9, 0_u64..5), 0..3),
            tokens in 0_u64..20,
            now in 0_u64..4,
        ) {
            let pool = |leases: &[(u64, u32, u64)]| {
                let mut pool = TokenPool::default();
                for (id, left, _) in leases {
                    // One expiry for each lease, as the sidecar reports it.
                    let _ = pool.put(lease(*id, *left, *id + 2), at(now));
                }
                pool
            };
            let (mut from, mut to) = (pool(&here), pool(&there));
            let before = from.left(at(now)) + to.left(at(now));
            let had = from.left(at(now));
            let moved = from.move_to(&mut to, tokens, at(now));
            prop_assert!(moved <= tokens);
            prop_assert_eq!(from.left(at(now)), had - moved);
            prop_assert_eq!(from.left(at(now)) + to.left(at(now)), before);
        }
    }
}
