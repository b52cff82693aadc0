//! The placement of new keys, and the evictions for it.
//!
//! Owns the search for a slot (docs/internals/store-format.md, "A slot for a new key"). Writes nothing except to free
//! expired nodes.

use super::{KeySlot, Lookup, Occupant, Transaction, WouldBlock};
use crate::format::StoredKey;
use crate::format::node::expires_secs;
use crate::memory::sync::add;
use crate::memory::{ClassMemory, KeyNode, Slots};
use crate::options::Eviction;
use crate::writers::Count;

impl<'a> Transaction<'a> {
    /// Finds a slot for a key that has no node; none if there is no room. All keys of the transaction have been
    /// looked up before. Does not free nodes that expire after `until_secs`.
    #[cold]
    pub(crate) fn allocate(
        &mut self,
        lookup: &Lookup<'a>,
        until_secs: u32,
        eviction: Eviction,
    ) -> Result<Option<KeySlot<'a>>, WouldBlock<'a>> {
        let (home, class, layout) = (lookup.home, lookup.class, &lookup.class.layout);
        let (primary_slots, chain) = (layout.primary_slots, layout.geometry.chain());
        let mut in_home = self.occupied(home).len();
        if in_home >= primary_slots && self.free_expired(class, home, until_secs) {
            in_home = self.occupied(home).len();
        }
        if in_home < primary_slots {
            return Ok(Some(self.reserve_free(home, &lookup.stored)));
        }
        // While home has room, the alternate is of use only if it has more.
        if let Some(other) = lookup.alternate()
            && (in_home == chain || other.occupied().len() < in_home)
        {
            self.try_lock_unless_held(other)?;
            let mut in_other = self.occupied(other).len();
            if in_other == chain && self.free_expired(class, other, until_secs) {
                in_other = self.occupied(other).len();
            }
            if in_other < in_home {
                return Ok(Some(self.reserve_free(other, &lookup.stored)));
            }
        }
        if in_home < chain {
            return Ok(Some(self.reserve_free(home, &lookup.stored)));
        }
        let candidates = match eviction {
            Eviction::Refuse => Slots::default(),
            Eviction::EvictSoonestExpiry => home.occupied().without(self.reserved(home)),
        };
        let victim = candidates.min_by_key(|&slot| expires_secs(home.tail(slot)));
        let occupant = Occupant::Victim;
        Ok(victim.map(|slot| self.reserve(KeySlot { key_node: home, slot, occupant })))
    }

    /// The slots that have a node or are reserved.
    fn occupied(&self, key_node: KeyNode<'a>) -> Slots {
        Slots(key_node.occupied().0 | self.reserved(key_node).0)
    }

    /// Reserves a free slot; the caller has checked that there is one. Prefers the two that are prefetched before
    /// the tags are known, then the lowest.
    fn reserve_free(&mut self, key_node: KeyNode<'a>, stored: &StoredKey) -> KeySlot<'a> {
        let free = key_node.free().without(self.reserved(key_node));
        let layout = key_node.layout();
        let first_choice = layout.first_choice(stored);
        let choices = [first_choice, layout.second_choice(first_choice)];
        let choice = choices.into_iter().find(|&slot| free.contains(slot));
        let slot = choice.or(free.first()).unwrap_or(0);
        self.reserve(KeySlot { key_node, slot, occupant: Occupant::Free })
    }

    /// Frees the nodes that have expired by then, unless the hint rules that out. Returns whether it freed any.
    ///
    /// Frees all of them, so that a key-node is searched seldom.
    fn free_expired(&self, class: &ClassMemory, key_node: KeyNode<'a>, until_secs: u32) -> bool {
        if key_node.earliest_expiry() > until_secs {
            return false;
        }
        let freed = free_expired(class, key_node, self.reserved(key_node), until_secs);
        self.writer.count(Count::EvictedExpired, freed);
        freed > 0
    }
}

/// Frees the nodes of a locked key-node that have expired by then, except `reserved` slots. Returns how many.
pub(crate) fn free_expired(
    class: &ClassMemory,
    key_node: KeyNode<'_>,
    reserved: Slots,
    until_secs: u32,
) -> u64 {
    let (mut freed, mut earliest_expiry) = (0, u32::MAX);
    for slot in key_node.occupied() {
        let expires = expires_secs(key_node.tail(slot));
        if expires > until_secs || reserved.contains(slot) {
            earliest_expiry = earliest_expiry.min(expires);
            continue;
        }
        let home = class.home(&key_node.stored(slot));
        key_node.clear(slot);
        if home.id != key_node.id {
            add(home.displaced(), u64::MAX);
        }
        freed += 1;
    }
    // 0 means unknown.
    key_node.set_earliest_expiry(earliest_expiry.max(1));
    freed
}
