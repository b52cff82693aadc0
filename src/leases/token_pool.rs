//! Tokens that are held, of up to two leases: the one that is being spent, and the one that a
//! refresh brought meanwhile.
//!
//! Invariants: the lease that ends first is spent first; what has ended counts for nothing; no
//! operation makes tokens, and none loses any that have not ended.

use tidegate_core::{Nanos, Timestamp};

/// Tokens of one lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Held {
    /// The lease.
    pub(crate) id: u64,
    /// Tokens that may be spent; none makes it an empty place.
    pub(crate) left: u32,
    /// Tokens that the lease had when it was granted.
    pub(crate) granted: u32,
    /// From when on none may be spent.
    pub(crate) ends: Timestamp,
}

impl Held {
    fn is_live(&self, now: Timestamp) -> bool {
        self.left > 0 && now < self.ends
    }

    /// How long it may still be spent.
    pub(crate) fn lasts(&self, now: Timestamp) -> Nanos {
        self.ends.saturating_since(now)
    }
}

/// Tokens of up to [`Purse::LEASES`] leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Purse {
    held: [Held; Purse::LEASES],
}

impl Purse {
    /// A purse of these leases.
    pub(crate) fn of(held: [Held; Purse::LEASES]) -> Purse {
        Purse { held }
    }

    /// One that is being spent and one for after it. A third can only come from workers that ask
    /// at the same moment.
    pub(crate) const LEASES: usize = 2;

    /// The tokens that may be spent.
    pub(crate) fn left(&self, now: Timestamp) -> u64 {
        let live = self.held.iter().filter(|held| held.is_live(now));
        live.map(|held| u64::from(held.left)).fold(0, u64::saturating_add)
    }

    /// The tokens of the largest of the leases when it was granted.
    pub(crate) fn granted(&self, now: Timestamp) -> u32 {
        let live = self.held.iter().filter(|held| held.is_live(now));
        live.map(|held| held.granted).max().unwrap_or(0)
    }

    /// The leases with tokens, ended or not.
    pub(crate) fn each(&self) -> impl Iterator<Item = Held> {
        self.held.into_iter().filter(|held| held.left > 0)
    }

    /// Spends `hits` tokens, or none when there are not so many.
    pub(crate) fn spend(&mut self, hits: u64, now: Timestamp) -> bool {
        if self.left(now) < hits {
            return false;
        }
        let mut missing = hits;
        while missing > 0 {
            let Some(held) = self.first_to_end(now) else {
                return false;
            };
            let spent = u32::try_from(missing).unwrap_or(u32::MAX).min(held.left);
            held.left = held.left.saturating_sub(spent);
            missing = missing.saturating_sub(u64::from(spent));
        }
        true
    }

    fn first_to_end(&mut self, now: Timestamp) -> Option<&mut Held> {
        self.held.iter_mut().filter(|held| held.is_live(now)).min_by_key(|held| held.ends)
    }

    /// Adds tokens; those of a lease that is here go to it. Gives them back when there is no place.
    /// Nothing is kept of what has ended.
    pub(crate) fn put(&mut self, tokens: Held, now: Timestamp) -> Result<(), Held> {
        if !tokens.is_live(now) {
            return Ok(());
        }
        if let Some(held) = self.held.iter_mut().find(|held| held.left > 0 && held.id == tokens.id)
        {
            // A lease has one end; if told two, the earlier is safe.
            let ends = held.ends.min(tokens.ends);
            let left = held.left.saturating_add(tokens.left);
            *held = Held { left, ends, ..*held };
            return Ok(());
        }
        match self.held.iter_mut().find(|held| !held.is_live(now)) {
            Some(place) => {
                *place = tokens;
                Ok(())
            }
            None => Err(tokens),
        }
    }

    /// Moves up to `tokens` tokens into `other`, as far as it has places; tells how many.
    pub(crate) fn move_to(&mut self, other: &mut Purse, tokens: u64, now: Timestamp) -> u64 {
        let mut moved = 0_u64;
        let mut places = self.held;
        places.sort_unstable_by_key(|held| held.ends);
        for held in places.iter_mut().filter(|held| held.is_live(now)) {
            let wanted = tokens.saturating_sub(moved);
            let part = u32::try_from(wanted).unwrap_or(u32::MAX).min(held.left);
            if part > 0 && other.put(Held { left: part, ..*held }, now).is_ok() {
                held.left = held.left.saturating_sub(part);
                moved = moved.saturating_add(u64::from(part));
            }
        }
        self.held = places;
        moved
    }

    /// Takes out what `surplus` finds too much of each lease.
    pub(crate) fn take_out(&mut self, surplus: impl Fn(&Held) -> u32, now: Timestamp) -> Purse {
        let mut out = Purse::default();
        for (held, taken) in self.held.iter_mut().zip(&mut out.held) {
            let part = if held.is_live(now) { surplus(held).min(held.left) } else { 0 };
            *taken = Held { left: part, ..*held };
            held.left = held.left.saturating_sub(part);
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

    fn held(id: u64, left: u32, ends: u64) -> Held {
        Held { id, left, granted: left, ends: at(ends) }
    }

    #[test]
    fn the_lease_that_ends_first_is_spent_first_and_both_together_suffice() {
        let mut purse = Purse::default();
        purse.put(held(1, 5, 200), at(0)).unwrap();
        purse.put(held(2, 3, 100), at(0)).unwrap();
        assert!(purse.spend(2, at(0)));
        assert_eq!(
            purse.each().collect::<Vec<_>>(),
            [held(1, 5, 200), Held { left: 1, ..held(2, 3, 100) }]
        );
        assert!(!purse.spend(7, at(0)));
        assert!(purse.spend(6, at(0)));
        assert_eq!(purse.left(at(0)), 0);
    }

    #[test]
    fn nothing_is_spent_at_or_after_the_end() {
        let mut purse = Purse::default();
        purse.put(held(1, 5, 100), at(0)).unwrap();
        assert!(purse.spend(1, at(99)));
        assert!(!purse.spend(1, at(100)));
        assert_eq!(purse.put(held(2, 1, 100), at(100)), Ok(()));
        assert_eq!(purse.left(at(100)), 0);
    }

    #[test]
    fn a_third_lease_has_no_place_until_one_has_ended_or_is_spent() {
        let mut purse = Purse::default();
        purse.put(held(1, 5, 100), at(0)).unwrap();
        purse.put(held(2, 5, 200), at(0)).unwrap();
        assert_eq!(purse.put(held(3, 1, 300), at(0)), Err(held(3, 1, 300)));
        assert_eq!(purse.put(held(1, 2, 90), at(0)), Ok(()));
        assert_eq!(purse.put(held(3, 1, 300), at(90)), Ok(()));
    }

    proptest! {
        /// Tokens only move: what leaves one purse is in the other, for any amounts and ends.
        #[test]
        fn moving_neither_makes_nor_loses_tokens(
            here in prop::collection::vec((0_u64..4, 0_u32..9, 0_u64..5), 0..3),
            there in prop::collection::vec((0_u64..4, 0_u32..9, 0_u64..5), 0..3),
            tokens in 0_u64..20,
            now in 0_u64..4,
        ) {
            let purse = |leases: &[(u64, u32, u64)]| {
                let mut purse = Purse::default();
                for (id, left, _) in leases {
                    // One end for each lease, as the sidecar tells it.
                    let _ = purse.put(held(*id, *left, *id + 2), at(now));
                }
                purse
            };
            let (mut from, mut to) = (purse(&here), purse(&there));
            let before = from.left(at(now)) + to.left(at(now));
            let had = from.left(at(now));
            let moved = from.move_to(&mut to, tokens, at(now));
            prop_assert!(moved <= tokens);
            prop_assert_eq!(from.left(at(now)), had - moved);
            prop_assert_eq!(from.left(at(now)) + to.left(at(now)), before);
        }
    }
}
