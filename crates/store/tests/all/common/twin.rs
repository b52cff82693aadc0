//! The twin of a cluster: chains of nodes in plain vectors, and the rules by which keys get and lose them
//! (docs/internals/store-format.md, "A slot for a new key").

use tidegate_store::{Class, Eviction, Key, Options, Stats, StoredKey};

use super::SECOND;
use super::format::Layout;

/// A live or expired entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) key: StoredKey,
    pub(crate) state: Vec<u64>,
    pub(crate) expires_secs: u64,
}

/// A slot: class, key-node, and which node of its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    class: usize,
    key_node: usize,
    node: usize,
}

/// What the slot of a key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Occupant {
    Live,
    Expired,
    Free,
    Victim,
}

struct TwinClass {
    layout: Layout,
    key_nodes: Vec<Vec<Option<Node>>>,
}

/// What a caller sees of an entry: whether it is new, its state, its expiry.
pub(crate) type Seen = (bool, Vec<u64>, u64);

/// Why the twin refuses an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Full { key: StoredKey, class: Class, nodes: u32 },
    NoClass { key: StoredKey, class: Class },
}

pub(crate) struct Twin {
    classes: Vec<TwinClass>,
    seed: u64,
    pub(crate) stats: Stats,
    /// How often rare events happened.
    pub(crate) met: Met,
    /// Nodes of other keys that expire later are not freed.
    pub(crate) trusted_secs: u64,
}

/// How often events happened that no result shows.
#[derive(Debug, Default)]
pub(crate) struct Met {
    pub(crate) placed_displaced: u64,
    pub(crate) found_displaced: u64,
    pub(crate) repeated: u64,
}

/// Which new keys of an update need a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// All of them: updates of one key.
    ForAll,
    /// Those that are written: updates of several keys.
    ForWritten,
}

impl Twin {
    pub(crate) fn new(options: &Options, seed: u64) -> Self {
        let classes = super::format::layouts(options)
            .into_iter()
            .map(|layout| TwinClass {
                layout,
                key_nodes: (0..layout.geometry.key_nodes_total())
                    .map(|_| vec![None; layout.chain()])
                    .collect(),
            })
            .collect();
        let trusted_secs = u64::MAX;
        Self { classes, seed, stats: Stats::default(), met: Met::default(), trusted_secs }
    }

    /// Updates the keys in one transaction; `decide` changes the entry of the key at an index.
    pub(crate) fn update<K: Key>(
        &mut self,
        keys: &[K],
        now: u64,
        eviction: Eviction,
        room: Room,
        decide: impl FnOnce(&mut [Seen], &[usize]),
    ) -> Result<(), Refused> {
        let now = now / SECOND;
        let stored: Vec<_> = keys.iter().map(|key| key.stored(self.seed)).collect();
        for (key, stored) in keys.iter().zip(&stored) {
            self.check_class(key, stored)?;
        }
        let same = |a: usize, b: usize| {
            keys[a].class() == keys[b].class() && keys[b].compare(&stored[b], &stored[a])
        };
        let firsts: Vec<usize> =
            (0..keys.len()).map(|b| (0..b).find(|&a| same(a, b)).unwrap_or(b)).collect();
        self.met.repeated += firsts.iter().enumerate().filter(|(b, a)| b != *a).count() as u64;
        let key_slots = self.key_slots(keys, &stored, &firsts, now, eviction);
        let full = (0..keys.len()).find(|&index| key_slots[index].is_none());
        if let (Some(index), Room::ForAll) = (full, room) {
            return Err(self.full(&keys[index], &stored[index]));
        }
        let mut seen: Vec<Seen> = (0..keys.len())
            .map(|index| self.seen(&keys[index], key_slots[firsts[index]].as_ref()))
            .collect();
        decide(&mut seen, &firsts);
        let first_ones = || (0..keys.len()).filter(|&index| firsts[index] == index);
        let homeless =
            first_ones().find(|&index| key_slots[index].is_none() && is_kept(&seen[index], now));
        if let Some(index) = homeless {
            return Err(self.full(&keys[index], &stored[index]));
        }
        for index in first_ones() {
            if let Some(key_slot) = key_slots[index] {
                self.settle(key_slot, stored[index], &seen[index], now);
            }
        }
        Ok(())
    }

    fn full<K: Key>(&mut self, key: &K, stored: &StoredKey) -> Refused {
        self.stats.refused += 1;
        let class = self.class_of(key.class()).unwrap();
        let key_nodes = 1 + u32::from(self.homes(class, stored).1.is_some());
        let nodes = key_nodes * self.classes[class].layout.chain() as u32;
        Refused::Full { key: *stored, class: key.class(), nodes }
    }

    pub(crate) fn find<K: Key>(&mut self, key: &K, now: u64) -> Result<Option<Seen>, Refused> {
        let stored = key.stored(self.seed);
        self.check_class(key, &stored)?;
        let found = self.slot_of(key, &stored);
        Ok(found.filter(|slot| self.is_live(*slot, now / SECOND)).map(|slot| {
            let node = self.node(slot).as_ref().unwrap();
            (false, node.state.clone(), node.expires_secs * SECOND)
        }))
    }

    pub(crate) fn erase<K: Key>(&mut self, key: &K, now: u64) -> Result<bool, Refused> {
        let stored = key.stored(self.seed);
        self.check_class(key, &stored)?;
        let Some(slot) = self.slot_of(key, &stored) else { return Ok(false) };
        let was_live = self.is_live(slot, now / SECOND);
        *self.node_mut(slot) = None;
        self.stats.erased += 1;
        Ok(was_live)
    }

    pub(crate) fn sweep(&mut self, now: u64) -> u64 {
        let slots = self.slots();
        let freed = self.free_expired(&slots, &[], self.trusted_secs.min(now / SECOND));
        self.stats.evicted_expired += freed;
        freed
    }

    pub(crate) fn reset_all(&mut self) -> u64 {
        let slots = self.slots();
        let freed = self.free_expired(&slots, &[], u64::MAX);
        self.stats.erased += freed;
        freed
    }

    /// Every node, in order.
    pub(crate) fn all(&self) -> Vec<(Class, Node)> {
        let nodes = self.slots().into_iter().filter_map(|slot| {
            Some((self.classes[slot.class].layout.class, self.node(slot).clone()?))
        });
        nodes.collect()
    }

    /// How many key-nodes of each class have 0, 1, 2 … nodes, and how many have displaced keys.
    pub(crate) fn occupancy(&self) -> Vec<(Class, Vec<u64>, u64)> {
        let of = |class: &TwinClass| {
            let mut chains = vec![0; class.layout.chain() + 1];
            let mut crowded = vec![false; class.key_nodes.len()];
            for (number, key_node) in class.key_nodes.iter().enumerate() {
                chains[key_node.iter().flatten().count()] += 1;
                for node in key_node.iter().flatten() {
                    let home = class.layout.home(&node.key) as usize;
                    crowded[home] |= home != number;
                }
            }
            let crowded = crowded.into_iter().filter(|is_crowded| *is_crowded).count() as u64;
            (class.layout.class, chains, crowded)
        };
        self.classes.iter().map(of).collect()
    }

    fn check_class<K: Key>(&self, key: &K, stored: &StoredKey) -> Result<(), Refused> {
        match self.class_of(key.class()) {
            Some(_) => Ok(()),
            None => Err(Refused::NoClass { key: *stored, class: key.class() }),
        }
    }

    fn class_of(&self, class: Class) -> Option<usize> {
        self.classes.iter().position(|other| other.layout.class == class)
    }

    fn slots(&self) -> Vec<Slot> {
        let mut slots = Vec::new();
        for (class, nodes) in self.classes.iter().enumerate() {
            for key_node in 0..nodes.key_nodes.len() {
                slots.extend(self.slots_of(class, key_node));
            }
        }
        slots
    }

    fn slots_of(&self, class: usize, key_node: usize) -> Vec<Slot> {
        (0..self.classes[class].layout.chain()).map(|node| Slot { class, key_node, node }).collect()
    }

    fn node(&self, slot: Slot) -> &Option<Node> {
        &self.classes[slot.class].key_nodes[slot.key_node][slot.node]
    }

    fn node_mut(&mut self, slot: Slot) -> &mut Option<Node> {
        &mut self.classes[slot.class].key_nodes[slot.key_node][slot.node]
    }

    fn is_live(&self, slot: Slot, now: u64) -> bool {
        self.node(slot).as_ref().is_some_and(|node| node.expires_secs > now)
    }

    /// The key-nodes of a key: its home, and its alternate if it has one.
    fn homes(&self, class: usize, stored: &StoredKey) -> (usize, Option<usize>) {
        let layout = &self.classes[class].layout;
        let (home, other) = (layout.home(stored) as usize, layout.alternate(stored) as usize);
        (home, Some(other).filter(|other| *other != home))
    }

    fn slot_of<K: Key>(&mut self, key: &K, stored: &StoredKey) -> Option<Slot> {
        let class = self.class_of(key.class()).unwrap();
        let (home, other) = self.homes(class, stored);
        for key_node in [Some(home), other].into_iter().flatten() {
            let is_key = |slot: &Slot| {
                self.node(*slot).as_ref().is_some_and(|node| key.compare(stored, &node.key))
            };
            if let Some(slot) = self.slots_of(class, key_node).into_iter().find(is_key) {
                self.met.found_displaced += u64::from(key_node != home);
                return Some(slot);
            }
        }
        None
    }

    /// Frees expired nodes, except reserved ones. Returns how many.
    fn free_expired(&mut self, slots: &[Slot], reserved: &[Slot], now: u64) -> u64 {
        let mut freed = 0;
        for &slot in slots.iter().filter(|slot| !reserved.contains(slot)) {
            if self.node(slot).is_some() && !self.is_live(slot, now) {
                *self.node_mut(slot) = None;
                freed += 1;
            }
        }
        freed
    }

    fn key_slots<K: Key>(
        &mut self,
        keys: &[K],
        stored: &[StoredKey],
        firsts: &[usize],
        now: u64,
        eviction: Eviction,
    ) -> Vec<Option<(Slot, Occupant)>> {
        let mut reserved = Vec::new();
        let mut found = Vec::new();
        for (index, key) in keys.iter().enumerate() {
            let slot =
                if firsts[index] == index { self.slot_of(key, &stored[index]) } else { None };
            reserved.extend(slot);
            let occupant =
                |slot| if self.is_live(slot, now) { Occupant::Live } else { Occupant::Expired };
            found.push(slot.map(|slot| (slot, occupant(slot))));
        }
        let mut key_slots: Vec<Option<(Slot, Occupant)>> = Vec::new();
        for (index, key) in keys.iter().enumerate() {
            let key_slot = match found[index] {
                Some(key_slot) => Some(key_slot),
                None if firsts[index] < index => key_slots[firsts[index]],
                None => {
                    let class = self.class_of(key.class()).unwrap();
                    let key_slot = self.key_slot(class, &stored[index], &reserved, now, eviction);
                    reserved.extend(key_slot.map(|key_slot| key_slot.0));
                    key_slot
                }
            };
            key_slots.push(key_slot);
        }
        key_slots
    }

    fn key_slot(
        &mut self,
        class: usize,
        stored: &StoredKey,
        reserved: &[Slot],
        now: u64,
        eviction: Eviction,
    ) -> Option<(Slot, Occupant)> {
        let (home, other) = self.homes(class, stored);
        let (preferred, chain) =
            (self.classes[class].layout.preferred(), self.classes[class].layout.chain());
        if self.occupied(class, home, reserved) >= preferred {
            self.free_expired_for(class, home, reserved, now);
        }
        let in_home = self.occupied(class, home, reserved);
        if in_home < preferred {
            return Some(self.free_slot(class, home, stored, reserved));
        }
        if let Some(other) = other
            && (in_home == chain || self.occupied(class, other, &[]) < in_home)
        {
            if self.occupied(class, other, reserved) == chain {
                self.free_expired_for(class, other, reserved, now);
            }
            if self.occupied(class, other, reserved) < in_home {
                self.met.placed_displaced += 1;
                return Some(self.free_slot(class, other, stored, reserved));
            }
        }
        if in_home < chain {
            return Some(self.free_slot(class, home, stored, reserved));
        }
        if eviction == Eviction::Refuse {
            return None;
        }
        let candidates =
            self.slots_of(class, home).into_iter().filter(|slot| !reserved.contains(slot));
        // Of equals, the lowest slot.
        let victim = candidates
            .filter(|slot| self.node(*slot).is_some())
            .min_by_key(|slot| self.node(*slot).as_ref().unwrap().expires_secs)?;
        Some((victim, Occupant::Victim))
    }

    fn free_expired_for(&mut self, class: usize, key_node: usize, reserved: &[Slot], now: u64) {
        let slots = self.slots_of(class, key_node);
        let until = self.trusted_secs.min(now);
        self.stats.evicted_expired += self.free_expired(&slots, reserved, until);
    }

    fn occupied(&self, class: usize, key_node: usize, reserved: &[Slot]) -> usize {
        let slots = self.slots_of(class, key_node);
        slots.iter().filter(|slot| self.node(**slot).is_some() || reserved.contains(slot)).count()
    }

    fn free_slot(
        &self,
        class: usize,
        key_node: usize,
        stored: &StoredKey,
        reserved: &[Slot],
    ) -> (Slot, Occupant) {
        let is_free = |slot: &Slot| self.node(*slot).is_none() && !reserved.contains(slot);
        let slots = self.slots_of(class, key_node);
        let liked = self.classes[class].layout.liked(stored).map(|node| slots[node]);
        (liked.into_iter().chain(slots).find(is_free).unwrap(), Occupant::Free)
    }

    fn seen<K: Key>(&self, key: &K, key_slot: Option<&(Slot, Occupant)>) -> Seen {
        if let Some(&(slot, Occupant::Live)) = key_slot {
            let node = self.node(slot).as_ref().unwrap();
            return (false, node.state.clone(), node.expires_secs * SECOND);
        }
        let class = self.class_of(key.class()).unwrap();
        let words = self.classes[class].layout.geometry.state_words();
        (true, vec![0; words as usize], 0)
    }

    fn settle(
        &mut self,
        (slot, occupant): (Slot, Occupant),
        stored: StoredKey,
        seen: &Seen,
        now: u64,
    ) {
        let (_, state, expires_at) = seen;
        let expires_secs = expires_secs(*expires_at);
        if !is_kept(seen, now) {
            if occupant == Occupant::Live {
                *self.node_mut(slot) = None;
                self.stats.erased += 1;
            }
            return;
        }
        // A live node keeps the key words that it was made with.
        let key = match self.node(slot) {
            Some(node) if occupant == Occupant::Live => node.key,
            _ => stored,
        };
        let node = Some(Node { key, state: state.clone(), expires_secs });
        if occupant == Occupant::Live && *self.node(slot) == node {
            return;
        }
        *self.node_mut(slot) = node;
        self.stats.updates += 1;
        self.stats.created += u64::from(occupant != Occupant::Live);
        self.stats.evicted_expired += u64::from(occupant == Occupant::Expired);
        self.stats.evicted_live += u64::from(occupant == Occupant::Victim);
    }
}

fn expires_secs(expires_at: u64) -> u64 {
    expires_at.div_ceil(SECOND).min(u64::from(u32::MAX))
}

/// Whether an entry deserves a node at `now`, in seconds.
fn is_kept((_, state, expires_at): &Seen, now: u64) -> bool {
    expires_secs(*expires_at) > now && state.iter().any(|word| *word != 0)
}
