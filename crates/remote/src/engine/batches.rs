//! Batches: updates that are committed together, while they form and while they are in flight.
//!
//! Owns which batch has which key. Runs no update and wakes nobody.

use super::MemberId;
use super::flight::{Change, Changes, Flight, FlightId};
use crate::image::Image;
use crate::slots::{Lane, Lanes, slot_of};
use hashbrown::HashMap;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use tidegate_core::Timestamp;
use tidegate_store::Hashed;

/// The bytes of images in batches, beyond the last one. Updates wait meanwhile.
const BYTES_MAX: usize = 64 * 1024 * 1024;

/// All batches, by number and by key.
#[derive(Debug)]
pub(super) struct Batches {
    keys_max: usize,
    next: u64,
    batches: HashMap<FlightId, Batch>,
    /// Those of all images in batches.
    bytes: usize,
    uses: HashMap<Hashed, Use>,
    lanes: Lanes,
    /// Batches that were ready to take off, by lane. Some may have been merged or dissolved since.
    ready: Vec<VecDeque<FlightId>>,
}

#[derive(Debug)]
pub(super) struct Batch {
    pub(super) changes: Arc<Changes>,
    pub(super) members: Members,
    /// The number of its keys that a flight has.
    blocked: usize,
    /// Whether it is in the queue of ready batches.
    is_queued: bool,
    pub(super) latest: Timestamp,
    earliest: Timestamp,
}

/// The updates of a batch.
pub(super) type Members = SmallVec<[MemberId; 2]>;

/// The batches that have a key, and its place in them.
#[derive(Debug, Clone, Copy, Default)]
struct Use {
    flying: Option<Place>,
    forming: Option<Place>,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    batch: FlightId,
    index: usize,
}

/// Forming batches that share keys with an update.
pub(super) type Joined = SmallVec<[FlightId; 2]>;

impl Batches {
    pub(super) fn new(keys_max: usize, lanes: Lanes) -> Batches {
        Batches {
            keys_max,
            next: 0,
            batches: HashMap::new(),
            bytes: 0,
            uses: HashMap::new(),
            lanes,
            ready: Vec::new(),
        }
    }

    /// Whether one flight can have all `keys`. Batches share keys with the updates in them, so that of a batch, too.
    pub(super) fn reaches(&self, keys: &[Hashed]) -> bool {
        match (&self.lanes, keys.split_first()) {
            (Lanes::One, _) | (_, None) => true,
            (Lanes::Slots(_), Some((first, others))) => {
                let slot = slot_of(first);
                others.iter().all(|key| slot_of(key) == slot)
            }
        }
    }

    /// The forming batches that an update of `keys` has to join, all as one. None if they have no room for all keys, or if images take too
    /// much memory.
    pub(super) fn joined(&self, keys: &[Hashed]) -> Option<Joined> {
        let (mut joined, mut new) = (Joined::new(), 0);
        for (index, key) in keys.iter().enumerate() {
            match self.uses.get(key).and_then(|used| used.forming) {
                Some(place) if !joined.contains(&place.batch) => joined.push(place.batch),
                Some(_) => {}
                None if keys[..index].contains(key) => {}
                None => new += 1,
            }
        }
        let size = |id: &FlightId| self.batches.get(id).map_or(0, |batch| batch.changes.len());
        let total = joined.iter().map(size).sum::<usize>() + new;
        let has_room = self.bytes <= BYTES_MAX && (joined.is_empty() || total <= self.keys_max);
        has_room.then_some(joined)
    }

    /// The batch that the batches `joined` are now, with one more update.
    pub(super) fn join(&mut self, joined: &Joined, member: MemberId, now: Timestamp) -> FlightId {
        let id = match joined.split_first() {
            None => self.create(now),
            Some((first, others)) => {
                others.iter().for_each(|other| self.merge(*first, *other));
                *first
            }
        };
        if let Some(batch) = self.batches.get_mut(&id) {
            batch.members.push(member);
            batch.latest = batch.latest.max(now);
            batch.earliest = batch.earliest.min(now);
        }
        id
    }

    fn create(&mut self, now: Timestamp) -> FlightId {
        let id = FlightId(self.next);
        self.next += 1;
        let batch = Batch {
            changes: Arc::default(),
            members: Members::new(),
            blocked: 0,
            is_queued: false,
            latest: now,
            earliest: now,
        };
        self.batches.insert(id, batch);
        id
    }

    fn merge(&mut self, into: FlightId, from: FlightId) {
        let Some(from) = self.batches.remove(&from) else { return };
        let Some(batch) = self.batches.get_mut(&into) else { return };
        let changes = Arc::make_mut(&mut batch.changes);
        for change in Arc::unwrap_or_clone(from.changes) {
            let place = Place { batch: into, index: changes.len() };
            self.uses.entry(change.key).or_default().forming = Some(place);
            changes.push(change);
        }
        batch.members.extend(from.members);
        batch.blocked += from.blocked;
        batch.latest = batch.latest.max(from.latest);
        batch.earliest = batch.earliest.min(from.earliest);
    }

    /// Makes a change part of a forming batch. If it has one of the same key, both become one.
    pub(super) fn change(&mut self, id: FlightId, change: Change) {
        let Some(batch) = self.batches.get_mut(&id) else { return };
        let changes = Arc::make_mut(&mut batch.changes);
        let used = self.uses.entry(change.key).or_default();
        self.bytes += change.after.len();
        match used.forming {
            Some(place) => {
                let own = &mut changes[place.index];
                self.bytes -= own.after.len();
                own.after = change.after;
            }
            None => {
                self.bytes += change.before.len();
                used.forming = Some(Place { batch: id, index: changes.len() });
                batch.blocked += usize::from(used.flying.is_some());
                changes.push(change);
            }
        }
    }

    /// The image of `key` after the latest batch that has it.
    pub(super) fn latest(&self, key: &Hashed) -> Option<&Image> {
        let used = self.uses.get(key)?;
        let place = used.forming.or(used.flying)?;
        Some(&self.batches.get(&place.batch)?.changes.get(place.index)?.after)
    }

    /// Queues batch `id` if no flight has one of its keys. Returns its lane then.
    pub(super) fn get_ready(&mut self, id: FlightId) -> Option<Lane> {
        let batch = self.batches.get_mut(&id)?;
        if batch.blocked > 0 || batch.is_queued {
            return None;
        }
        batch.is_queued = true;
        let lane = batch.changes.first().map_or(0, |change| self.lanes.of(&change.key));
        if self.ready.len() <= lane {
            self.ready.resize_with(lane + 1, VecDeque::new);
        }
        self.ready[lane].push_back(id);
        Some(lane)
    }

    pub(super) fn lane_of(&self, slot: usize) -> Lane {
        self.lanes.of_slot(slot)
    }

    /// Changes the lanes. Returns those in which batches are ready now.
    pub(super) fn set_lanes(&mut self, change: impl FnOnce(&mut Lanes)) -> Vec<Lane> {
        change(&mut self.lanes);
        let queued: Vec<FlightId> = self.ready.iter_mut().flat_map(|lane| lane.drain(..)).collect();
        let mut lanes = Vec::new();
        for id in queued {
            if let Some(batch) = self.batches.get_mut(&id) {
                batch.is_queued = false;
                lanes.extend(self.get_ready(id));
            }
        }
        lanes
    }

    /// Makes a flight of the batch that has been ready for longest in a lane.
    pub(super) fn depart(&mut self, lane: Lane) -> Option<Flight> {
        let ready = self.ready.get_mut(lane)?;
        let (id, batch) = loop {
            let id = ready.pop_front()?;
            let Some(batch) = self.batches.get_mut(&id) else { continue };
            batch.is_queued = false;
            // A batch that it was merged with may have to wait.
            if batch.blocked == 0 {
                break (id, batch);
            }
        };
        // Servers queue the clients of a group at its first key. As all groups are in order, no two wait for each other.
        let changes = Arc::make_mut(&mut batch.changes);
        changes.sort_unstable_by_key(|change| (change.key.hash, change.key.class));
        for (index, change) in changes.iter().enumerate() {
            let used = self.uses.entry(change.key).or_default();
            *used = Use { flying: Some(Place { batch: id, index }), forming: None };
        }
        let (latest, earliest) = (batch.latest, batch.earliest);
        let changes = batch.changes.clone();
        Some(Flight { id, latest, earliest, changes, hops: 0, is_asking: false, by_script: false })
    }

    /// Removes a flight. Its changes are still to be passed to [`Batches::unblock`] or [`Batches::dissolve`].
    pub(super) fn land(&mut self, id: FlightId) -> Option<Batch> {
        let batch = self.batches.remove(&id)?;
        for change in &*batch.changes {
            self.bytes -= change.before.len() + change.after.len();
            if let Some(used) = self.uses.get_mut(&change.key) {
                used.flying = None;
                if used.forming.is_none() {
                    self.uses.remove(&change.key);
                }
            }
        }
        Some(batch)
    }

    /// Queues the batches that are ready now that a flight with these changes has landed well. Returns their lanes.
    pub(super) fn unblock(&mut self, changes: &[Change]) -> SmallVec<[Lane; 4]> {
        let mut ready = SmallVec::new();
        for change in changes {
            let Some(place) = self.uses.get(&change.key).and_then(|used| used.forming) else {
                continue;
            };
            let Some(batch) = self.batches.get_mut(&place.batch) else { continue };
            batch.blocked -= 1;
            ready.extend(self.get_ready(place.batch));
        }
        ready
    }

    /// Removes the batches that formed on changes which did not take place.
    pub(super) fn dissolve(&mut self, changes: &[Change]) -> Vec<Batch> {
        let mut dissolved = Vec::new();
        for change in changes {
            let Some(place) = self.uses.get(&change.key).and_then(|used| used.forming) else {
                continue;
            };
            let Some(batch) = self.batches.remove(&place.batch) else { continue };
            for change in &*batch.changes {
                self.bytes -= change.before.len() + change.after.len();
                if let Some(used) = self.uses.get_mut(&change.key) {
                    used.forming = None;
                    if used.flying.is_none() {
                        self.uses.remove(&change.key);
                    }
                }
            }
            dissolved.push(batch);
        }
        dissolved
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty() && self.uses.is_empty() && self.bytes == 0
    }
}
