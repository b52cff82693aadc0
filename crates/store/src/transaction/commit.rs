//! How changes of nodes are written: all or none of them.
//!
//! Owns the order of the writes, and the short way of an update of one key at home.

use super::{Place, Was};
use crate::format::journal::Record;
use crate::format::node::{NARROW_WORDS, STATE, expires_secs};
use crate::memory::sync::{AtomicU64, add, get, put};
use crate::memory::{Memory, Spot};
use crate::writers::lock::{release, try_acquire};
use crate::writers::slot::{Count, Seat};

/// A change of one node: where it goes, the home of its key, and its sealed image. Without an image, the
/// slot becomes free.
#[derive(Clone, Copy)]
pub(crate) struct Change<'a, 'i> {
    pub(crate) place: Place<'a>,
    pub(crate) home: Spot<'a>,
    pub(crate) image: Option<&'i [u64]>,
}

/// Makes changes to key-nodes that are held from `seat`, all or none of them.
pub(super) fn commit<'a, 'i>(
    memory: &'a Memory,
    seat: &Seat<'_>,
    changes: impl Iterator<Item = Change<'a, 'i>> + Clone,
) {
    let mut journal = seat.journal();
    for Change { place, home, image } in changes.clone() {
        let before = place.spot.node.tail(place.slot);
        journal.push(&Record { id: place.spot.id, slot: place.slot, before, image });
        if place.was == Was::Free && place.spot.id != home.id {
            // Before the node is there: the home must never say 0 while a key is away.
            add(home.node.away(), 1);
        }
    }
    journal.commit();
    for change in changes {
        make(memory, seat, change);
    }
    seat.clear_journal();
}

#[inline(always)]
fn make<'a>(memory: &'a Memory, seat: &Seat<'_>, Change { place, home, image }: Change<'a, '_>) {
    let node = place.spot.node;
    let mut left = None;
    let Some(image) = image else {
        node.clear(place.slot);
        if place.spot.id != home.id {
            add(home.node.away(), u64::MAX);
        }
        seat.count(Count::Erased, 1);
        return;
    };
    seat.count(Count::Updates, 1);
    match place.was {
        Was::Live => {}
        Was::Free => seat.count(Count::Created, 1),
        Was::Expired => {
            seat.count(Count::Created, 1);
            seat.count(Count::EvictedExpired, 1);
        }
        Was::Victim => {
            seat.count(Count::Created, 1);
            seat.count(Count::EvictedLive, 1);
            let class = memory.class(place.spot.id.class);
            left = class.map(|class| class.home(&node.stored(place.slot)));
        }
    }
    node.install(place.slot, image);
    // After the node is gone, as it came before the node was there.
    if let Some(home) = left.filter(|home| home.id != place.spot.id) {
        add(home.node.away(), u64::MAX);
    }
}

/// The home of a key, held by itself: all that most updates need. Given back when dropped.
pub(crate) struct AtHome<'a> {
    seat: Seat<'a>,
    home: Spot<'a>,
}

impl<'a> AtHome<'a> {
    /// Locks the home of a key, if that is possible at once.
    #[inline]
    pub(crate) fn try_hold(seat: Seat<'a>, home: Spot<'a>) -> Option<Self> {
        seat.list_lock(0, home.id);
        try_acquire(home.node.lock(), seat.lock_word()).ok()?;
        Some(Self { seat, home })
    }

    /// Replaces the live narrow node in `slot`, whose words these are, unless it is `image` already. As
    /// [`commit`], which does the same for whatever else can happen.
    #[inline(always)]
    pub(crate) fn replace(
        &self,
        slot: u32,
        words: &[AtomicU64; NARROW_WORDS],
        image: &[u64; NARROW_WORDS],
    ) {
        // Key and tag stay as they are.
        let changes = || words[STATE..].iter().zip(&image[STATE..]);
        if changes().fold(0, |difference, (word, value)| difference | (get(word) ^ value)) == 0 {
            return;
        }
        let mut journal = self.seat.journal();
        let before = get(&words[NARROW_WORDS - 1]);
        journal.push(&Record { id: self.home.id, slot, before, image: Some(image) });
        journal.commit();
        changes().for_each(|(word, value)| put(word, *value));
        self.home.node.note_update(expires_secs(image[NARROW_WORDS - 1]));
        self.seat.count(Count::Updates, 1);
        self.seat.clear_journal();
    }

    /// Frees the slot of a live node.
    #[cold]
    pub(crate) fn erase(&self, memory: &'a Memory, slot: u32) {
        let place = Place { spot: self.home, slot, was: Was::Live };
        let change = Change { place, home: self.home, image: None };
        commit(memory, &self.seat, std::iter::once(change));
    }
}

impl Drop for AtHome<'_> {
    #[inline]
    fn drop(&mut self) {
        release(self.home.node.lock(), self.seat.lock_word());
        self.seat.clear_locks();
    }
}

/// Whether an image is worth a node: something to remember, for longer than now.
#[inline]
pub(crate) fn is_worth_keeping(image: &[u64], expires_secs: u32, now_secs: u32) -> bool {
    expires_secs > now_secs && image[STATE..image.len() - 1].iter().any(|word| *word != 0)
}
