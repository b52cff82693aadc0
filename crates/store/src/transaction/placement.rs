//! Where a new key goes, and what gives way for it.
//!
//! Owns the search (docs/store-format.md, "A place for a new key"). Writes nothing but that it frees expired nodes.

use super::{Ask, Blocked, Place, Step, Was};
use crate::format::key::StoredKey;
use crate::format::node::expires_secs;
use crate::memory::key_node::Slots;
use crate::memory::sync::add;
use crate::memory::{ClassMemory, Spot};
use crate::options::Eviction;
use crate::writers::slot::Count;

/// Why there is no place.
pub(crate) enum NoPlace<'a> {
    Blocked(Blocked<'a>),
    Full,
}

impl<'a> Step<'a> {
    /// Finds a place for a key that has no node (docs/store-format.md, "A place for a new key"). All
    /// keys of the step have been looked for. Nodes that expire after `until_secs` are not freed.
    pub(crate) fn place(
        &mut self,
        ask: &Ask<'a>,
        until_secs: u32,
        eviction: Eviction,
    ) -> Result<Place<'a>, NoPlace<'a>> {
        let (preferred, chain) = (ask.class.layout.preferred, ask.class.layout.geometry.chain());
        let mut in_home = self.occupied(ask.home).len();
        if in_home >= preferred && self.free_expired(ask.class, ask.home, until_secs) {
            in_home = self.occupied(ask.home).len();
        }
        if in_home < preferred {
            return Ok(self.mean(self.free_place(ask.home, &ask.stored)));
        }
        // With room at home, the other one matters only if it has more.
        if let Some(other) = ask.alternate()
            && (in_home == chain || other.node.occupied().len() < in_home)
        {
            self.lock_now(other).map_err(NoPlace::Blocked)?;
            let mut in_other = self.occupied(other).len();
            if in_other == chain && self.free_expired(ask.class, other, until_secs) {
                in_other = self.occupied(other).len();
            }
            if in_other < in_home {
                return Ok(self.mean(self.free_place(other, &ask.stored)));
            }
        }
        if in_home < chain {
            return Ok(self.mean(self.free_place(ask.home, &ask.stored)));
        }
        match eviction {
            Eviction::Refuse => Err(NoPlace::Full),
            Eviction::EvictSoonestExpiry => {
                let home = ask.home.node;
                let candidates = home.occupied().without(self.meant(ask.home));
                let soonest = candidates.min_by_key(|&slot| expires_secs(home.tail(slot)));
                let slot = soonest.ok_or(NoPlace::Full)?;
                Ok(self.mean(Place { spot: ask.home, slot, was: Was::Victim }))
            }
        }
    }

    /// The slots that have a node, or are going to.
    fn occupied(&self, spot: Spot<'a>) -> Slots {
        Slots(spot.node.occupied().0 | self.meant(spot).0)
    }

    /// A free slot; there is one. If possible one of the two that the key would like best, which are
    /// fetched before the tags are known; else the first.
    fn free_place(&self, spot: Spot<'a>, stored: &StoredKey) -> Place<'a> {
        let free = spot.node.free().without(self.meant(spot));
        let layout = spot.node.layout();
        let favourite = layout.favourite(stored);
        let likes = [favourite, layout.next_to(favourite)];
        let liked = likes.into_iter().find(|&slot| free.has(slot));
        Place { spot, slot: liked.or(free.first()).unwrap_or(0), was: Was::Free }
    }

    /// Frees the nodes that have expired by then, unless nothing can have. Says whether it freed any.
    ///
    /// All of them and not one, so that a key-node is seldom searched.
    fn free_expired(&mut self, class: &ClassMemory, spot: Spot<'a>, until_secs: u32) -> bool {
        if spot.node.earliest() > until_secs {
            return false;
        }
        let freed = free_expired(class, spot, self.meant(spot), until_secs);
        self.seat.count(Count::EvictedExpired, freed);
        freed > 0
    }
}

/// Frees the nodes of a key-node, which is held, that have expired by then, but for those in `meant`.
/// Returns how many.
pub(crate) fn free_expired(
    class: &ClassMemory,
    spot: Spot<'_>,
    meant: Slots,
    until_secs: u32,
) -> u64 {
    let (mut freed, mut earliest) = (0, u32::MAX);
    for slot in spot.node.occupied() {
        let expires = expires_secs(spot.node.tail(slot));
        if expires > until_secs || meant.has(slot) {
            earliest = earliest.min(expires);
            continue;
        }
        let home = class.home(&spot.node.stored(slot));
        spot.node.clear(slot);
        if home.id != spot.id {
            add(home.node.away(), u64::MAX);
        }
        freed += 1;
    }
    // 0 says that nothing is known.
    spot.node.set_earliest(earliest.max(1));
    freed
}
