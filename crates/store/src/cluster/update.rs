//! How an update of one key, or of several together, goes: from keys to places, to the caller, to a commit.
//!
//! Owns the two ways of an update: the short one, which nearly all take, and the one that can do
//! everything. Where a new key goes and how nodes are written is in [`crate::transaction`].

use smallvec::SmallVec;

use super::Cluster;
use crate::entry::{Draft, Entries, EntryMut, Outcome, Room, nanos, secs_down, secs_up};
use crate::error::UpdateError;
use crate::format::journal::RECORD_WORDS_BESIDES_IMAGE;
use crate::format::key::{Key, StoredKey};
use crate::format::node::{ESTIMATE, IDENTITY, NARROW_WORDS, STATE, expires_secs, is_sealed, seal};
use crate::memory::Spot;
use crate::memory::region::{prefetch, prefetch_run};
use crate::memory::sync::{AtomicU64, get};
use crate::transaction::commit::{AtHome, Change, is_worth_keeping};
use crate::transaction::placement::NoPlace;
use crate::transaction::{Ask, Blocked, Place, Step, Was};
use crate::writers::Seated;
use crate::writers::slot::{Count, JOURNAL_WORDS, KEYS_MAX};

/// Updates with up to this many keys do not allocate. A request seldom meets more limits.
const KEYS_INLINE: usize = 4;

impl Cluster {
    #[inline]
    pub(super) fn ask<K: Key + ?Sized>(&self, key: &K) -> Result<Ask<'_>, UpdateError> {
        self.ask_if_any(key).ok_or_else(|| self.no_class(key))
    }

    /// Nothing if there are no nodes of the key's class.
    #[inline]
    pub(super) fn ask_if_any<K: Key + ?Sized>(&self, key: &K) -> Option<Ask<'_>> {
        Some(Ask::new(self.memory.class(key.class())?, key.stored(self.seed())))
    }

    #[cold]
    pub(super) fn no_class<K: Key + ?Sized>(&self, key: &K) -> UpdateError {
        UpdateError::NoClass { key: key.stored(self.seed()), class: key.class() }
    }

    #[inline]
    pub(super) fn update_asked<'a, K: Key + ?Sized, T>(
        &'a self,
        seated: &Seated<'a>,
        key: &K,
        ask: &Ask<'a>,
        now_secs: u32,
        decide: impl FnOnce(EntryMut<'_>) -> T,
    ) -> Result<T, UpdateError> {
        match self.update_at_home(seated, key, ask, now_secs, decide) {
            Ok(answer) => {
                self.refuse_if_lost()?;
                Ok(answer)
            }
            Err(decide) => self.update_anywhere(seated, key, ask, now_secs, decide),
        }
    }

    /// The update that nearly all are: of a live narrow node in one piece, at home, with nobody there.
    /// As [`Cluster::update_anywhere`], which does the same if this gives `decide` back.
    #[inline(always)]
    fn update_at_home<'a, K: Key + ?Sized, T, D: FnOnce(EntryMut<'_>) -> T>(
        &'a self,
        seated: &Seated<'a>,
        key: &K,
        ask: &Ask<'a>,
        now_secs: u32,
        decide: D,
    ) -> Result<T, D> {
        let Some(mut live) = self.live_at_home(seated, key, ask, now_secs) else {
            return Err(decide);
        };
        let answer = decide(EntryMut {
            state: &mut live.image[STATE..NARROW_WORDS - 1],
            expires_at: &mut live.expires_at,
            is_new: false,
            room: Room::There,
        });
        self.settle_at_home(live, now_secs);
        Ok(answer)
    }

    /// The live narrow node of a key, if it is in one piece at home and nobody is there.
    #[inline(always)]
    fn live_at_home<'a, K: Key + ?Sized>(
        &'a self,
        seated: &Seated<'a>,
        key: &K,
        ask: &Ask<'a>,
        now_secs: u32,
    ) -> Option<LiveAtHome<'a>> {
        let held = AtHome::try_hold(seated.seat, ask.home)?;
        let (slot, words) = ask.home.node.find_narrow(key, &ask.stored)?;
        let mut image = words.each_ref().map(get);
        let expires = expires_secs(image[NARROW_WORDS - 1]);
        let expires_at = nanos(expires);
        // A damaged node is for the other way, too.
        let is_live = expires > now_secs && is_sealed(&mut image, self.seed());
        is_live.then_some(LiveAtHome { held, slot, words, image, expires_at })
    }

    #[inline(always)]
    fn settle_at_home(&self, live: LiveAtHome<'_>, now_secs: u32) {
        let LiveAtHome { held, slot, words, mut image, expires_at } = live;
        let expires = secs_up(expires_at);
        if is_worth_keeping(&image, expires, now_secs) {
            seal(&mut image, expires, self.seed());
            held.replace(slot, words, &image);
        } else {
            held.erase(&self.memory, slot);
        }
    }

    #[cold]
    fn update_anywhere<'a, K: Key + ?Sized, T>(
        &'a self,
        seated: &Seated<'a>,
        key: &K,
        ask: &Ask<'a>,
        now_secs: u32,
        decide: impl FnOnce(EntryMut<'_>) -> T,
    ) -> Result<T, UpdateError> {
        let mut step = Step::new(&self.memory, &self.crew, seated.seat);
        let place = hold_one(&mut step, ask, |step| match step.find(key, ask, now_secs)? {
            Some(place) => Ok(Some(place)),
            None => self.place_new(step, ask, now_secs),
        })?;
        let Some(place) = place else { return Err(self.full(&step, ask)) };
        let (mut narrow, mut wide) = ([0; NARROW_WORDS], Vec::new());
        let words = ask.class.layout.node_words;
        let image: &mut [u64] = if words == NARROW_WORDS {
            &mut narrow
        } else {
            wide.resize(words, 0);
            &mut wide
        };
        let (is_new, mut expires_at) = self.load(Some(&place), &ask.stored, image)?;
        let state = &mut image[STATE..words - 1];
        let answer = decide(EntryMut {
            state,
            expires_at: &mut expires_at,
            is_new,
            room: room(Some(&place)),
        });
        let change = Change { place, home: ask.home, image: None };
        match self.settle(Some(&place), expires_at, now_secs, image) {
            Outcome::Keep => {}
            Outcome::Write => step.commit(std::iter::once(Change { image: Some(image), ..change })),
            Outcome::Erase => step.commit(std::iter::once(change)),
        }
        drop(step);
        self.refuse_if_lost()?;
        Ok(answer)
    }

    /// Locks the key-nodes of all keys, and finds the place of each, if it has one or there is room for
    /// it. Of a repeated key, the place is that of its first mention.
    fn hold_many<'a, K: Key>(
        &'a self,
        step: &mut Step<'a>,
        keys: &[K],
        asks: &[Ask<'a>],
        drafts: &[Draft],
        now_secs: u32,
    ) -> Result<Places<'a>, UpdateError> {
        let mut spots: SmallVec<[Spot<'a>; KEYS_INLINE]> =
            asks.iter().map(|ask| ask.home).collect();
        loop {
            spots.sort_unstable_by_key(|spot| spot.id);
            spots.dedup_by_key(|spot| spot.id);
            step.lock_all(&spots)?;
            match self.find_places(step, keys, asks, drafts, now_secs) {
                Ok(places) => return Ok(places),
                Err(Blocked(spot)) => {
                    step.let_go();
                    spots.push(spot);
                }
            }
        }
    }

    fn find_places<'a, K: Key>(
        &'a self,
        step: &mut Step<'a>,
        keys: &[K],
        asks: &[Ask<'a>],
        drafts: &[Draft],
        now_secs: u32,
    ) -> Result<Places<'a>, Blocked<'a>> {
        // All keys are looked for before any gets a new place: an expired node in which a later key
        // lives must not be given to an earlier one.
        let mut found: SmallVec<[Option<Place<'a>>; KEYS_INLINE]> =
            SmallVec::with_capacity(keys.len());
        for (index, (key, ask)) in keys.iter().zip(asks).enumerate() {
            let first = drafts[index].first;
            let place = if first == index { step.find(key, ask, now_secs)? } else { found[first] };
            found.push(place);
        }
        let mut places = Places::with_capacity(keys.len());
        for (index, (ask, found)) in asks.iter().zip(found).enumerate() {
            let first = drafts[index].first;
            let place = match found {
                Some(place) => Some(place),
                None if first < index => places[first],
                None => self.place_new(step, ask, now_secs)?,
            };
            places.push(place);
        }
        Ok(places)
    }

    /// A place for a key that has none; nothing if there is no room.
    #[cold]
    fn place_new<'a>(
        &self,
        step: &mut Step<'a>,
        ask: &Ask<'a>,
        now_secs: u32,
    ) -> Result<Option<Place<'a>>, Blocked<'a>> {
        match step.place(ask, self.freed_until(now_secs), self.eviction) {
            Ok(place) => Ok(Some(place)),
            Err(NoPlace::Blocked(blocked)) => Err(blocked),
            Err(NoPlace::Full) => Ok(None),
        }
    }

    /// Fills in the image of a node as it is before the update. Says whether the key is new, and when its
    /// entry expires. A node that is damaged must not be sealed anew, and nothing can be relied on any more.
    #[inline]
    fn load(
        &self,
        place: Option<&Place<'_>>,
        stored: &StoredKey,
        image: &mut [u64],
    ) -> Result<(bool, u64), UpdateError> {
        if let Some(place) = place.filter(|place| place.was == Was::Live) {
            place.spot.node.read(place.slot, image);
            if !is_sealed(image, self.seed()) {
                self.memory.spoil();
                return Err(UpdateError::Lost);
            }
            return Ok((false, nanos(expires_secs(image[image.len() - 1]))));
        }
        image.fill(0);
        (image[ESTIMATE], image[IDENTITY]) = (stored.estimate, stored.identity);
        Ok((true, 0))
    }

    /// A key that is to be written has no place.
    #[cold]
    fn full(&self, step: &Step<'_>, ask: &Ask<'_>) -> UpdateError {
        step.count(Count::Refused);
        let (key, class) = (ask.stored, ask.home.id.class);
        UpdateError::Full { key, class, nodes: ask.nodes() }
    }

    /// Completes the image of a node, and says what is to be done with it.
    #[inline]
    fn settle(
        &self,
        place: Option<&Place<'_>>,
        expires_at: u64,
        now_secs: u32,
        image: &mut [u64],
    ) -> Outcome {
        let expires = secs_up(expires_at);
        let live = place.filter(|place| place.was == Was::Live);
        if !is_worth_keeping(image, expires, now_secs) {
            return if live.is_some() { Outcome::Erase } else { Outcome::Keep };
        }
        seal(image, expires, self.seed());
        let is_same = live.is_some_and(|place| place.spot.node.is(place.slot, image));
        if is_same { Outcome::Keep } else { Outcome::Write }
    }

    /// [`Cluster::update_many`].
    pub(super) fn update_together<K: Key, T>(
        &self,
        keys: &[K],
        now: u64,
        decide: impl FnOnce(&mut Entries<'_>) -> T,
    ) -> Result<T, UpdateError> {
        if let [key] = keys {
            // Nearly all updates are of one key that has its node.
            let (ask, now_secs) = (self.ask(key)?, secs_down(now));
            prefetch_single(&ask);
            let seated = self.sit()?;
            if let Some(mut live) = self.live_at_home(&seated, key, &ask, now_secs) {
                let answer = live.decide(decide);
                self.settle_at_home(live, now_secs);
                self.refuse_if_lost()?;
                return Ok(answer);
            }
        }
        self.update_all(keys, now, decide)
    }

    fn update_all<K: Key, T>(
        &self,
        keys: &[K],
        now: u64,
        decide: impl FnOnce(&mut Entries<'_>) -> T,
    ) -> Result<T, UpdateError> {
        let mut asks: SmallVec<[Ask<'_>; KEYS_INLINE]> = SmallVec::with_capacity(keys.len());
        let mut drafts: SmallVec<[Draft; KEYS_INLINE]> = SmallVec::with_capacity(keys.len());
        let mut words = 0;
        // Before anything that takes longer the more keys there are.
        check_size(keys.len(), keys.len() * NARROW_WORDS)?;
        for (index, key) in keys.iter().enumerate() {
            let ask = self.ask(key)?;
            prefetch(ask.home.node.words(), 0);
            let first = asks.iter().zip(keys).position(|(earlier, other)| {
                earlier.home.id.class == ask.home.id.class
                    && other.compare(&earlier.stored, &ask.stored)
            });
            let first = first.unwrap_or(index);
            let len = if first == index { ask.class.layout.node_words } else { 0 };
            drafts.push(Draft { first, start: words, end: words + len, ..Draft::default() });
            words += len;
            asks.push(ask);
        }
        check_size(keys.len(), words)?;
        asks.iter().for_each(prefetch_tagged);
        let mut images: SmallVec<[u64; KEYS_INLINE * NARROW_WORDS]> = SmallVec::from_elem(0, words);
        let now_secs = secs_down(now);
        let seated = self.sit()?;
        let mut step = Step::new(&self.memory, &self.crew, seated.seat);
        let places = self.hold_many(&mut step, keys, &asks, &drafts, now_secs)?;
        for (index, (draft, place)) in drafts.iter_mut().zip(&places).enumerate() {
            if draft.first == index {
                let image = &mut images[draft.start..draft.end];
                let loaded = self.load(place.as_ref(), &asks[index].stored, image)?;
                (draft.is_new, draft.expires_at) = loaded;
                draft.room = room(place.as_ref());
            }
        }
        let answer = decide(&mut Entries { drafts: &mut drafts, words: &mut images });
        for (draft, place) in
            drafts.iter_mut().zip(&places).filter(|(draft, _)| draft.end > draft.start)
        {
            let image = &mut images[draft.start..draft.end];
            draft.outcome = self.settle(place.as_ref(), draft.expires_at, now_secs, image);
        }
        let mut all = drafts.iter().zip(&places).zip(&asks);
        let homeless =
            all.find(|((draft, place), _)| draft.outcome != Outcome::Keep && place.is_none());
        if let Some((_, ask)) = homeless {
            return Err(self.full(&step, ask));
        }
        let changes = drafts.iter().zip(&places).zip(&asks).filter_map(|((draft, place), ask)| {
            let image = match draft.outcome {
                Outcome::Keep => return None,
                Outcome::Write => Some(&images[draft.start..draft.end]),
                Outcome::Erase => None,
            };
            Some(Change { place: (*place)?, home: ask.home, image })
        });
        if changes.clone().next().is_some() {
            step.commit(changes);
        }
        drop(step);
        self.refuse_if_lost()?;
        Ok(answer)
    }
}

/// A live narrow node that is in one piece at the home of its key, held.
struct LiveAtHome<'a> {
    held: AtHome<'a>,
    slot: u32,
    words: &'a [AtomicU64; NARROW_WORDS],
    image: [u64; NARROW_WORDS],
    expires_at: u64,
}

impl LiveAtHome<'_> {
    #[inline(always)]
    fn decide<T>(&mut self, decide: impl FnOnce(&mut Entries<'_>) -> T) -> T {
        let (end, expires_at) = (NARROW_WORDS, self.expires_at);
        let mut draft = [Draft { end, expires_at, ..Draft::default() }];
        let answer = decide(&mut Entries { drafts: &mut draft, words: &mut self.image });
        self.expires_at = draft[0].expires_at;
        answer
    }
}

type Places<'a> = SmallVec<[Option<Place<'a>>; KEYS_INLINE]>;

/// Locks the home of a key, and its other key-node if `act` needs it and cannot get it as it is.
#[inline]
pub(super) fn hold_one<'a, T>(
    step: &mut Step<'a>,
    ask: &Ask<'a>,
    mut act: impl FnMut(&mut Step<'a>) -> Result<T, Blocked<'a>>,
) -> Result<T, UpdateError> {
    step.lock_all(&[ask.home])?;
    loop {
        match act(step) {
            Ok(value) => return Ok(value),
            Err(Blocked(other)) => {
                step.let_go();
                let (first, second) =
                    if other.id < ask.home.id { (other, ask.home) } else { (ask.home, other) };
                step.lock_all(&[first, second])?;
            }
        }
    }
}

#[inline]
fn room(place: Option<&Place<'_>>) -> Room {
    match place.map(|place| place.was) {
        Some(Was::Live | Was::Expired | Was::Free) => Room::There,
        Some(Was::Victim) => Room::Taken,
        None => Room::Full,
    }
}

/// Fetches the head of a key's home and, before the tags in it can say where the node is, the place
/// that it most likely has.
#[inline]
pub(super) fn prefetch_single(ask: &Ask<'_>) {
    let (words, layout) = (ask.home.node.words(), ask.home.node.layout());
    let favourite = layout.favourite(&ask.stored);
    prefetch(words, 0);
    prefetch(words, layout.node_at(favourite).first);
    prefetch(words, layout.node_at(layout.next_to(favourite)).first);
}

/// Fetches the node that the head of a key's home, which is there already, names for the key. Only a
/// hint: no lock is held.
#[inline]
pub(super) fn prefetch_tagged(ask: &Ask<'_>) {
    let (node, layout) = (ask.home.node, ask.home.node.layout());
    if let Some(slot) = node.guess(&ask.stored) {
        let at = layout.node_at(slot);
        if at.step == 1 {
            prefetch_run(node.words(), at.first, layout.node_words);
        }
    }
}

fn check_size(keys: usize, words: usize) -> Result<(), UpdateError> {
    let words = words + keys * RECORD_WORDS_BESIDES_IMAGE;
    if keys <= KEYS_MAX && words <= JOURNAL_WORDS {
        return Ok(());
    }
    Err(UpdateError::TooMuch { keys, words, keys_max: KEYS_MAX, words_max: JOURNAL_WORDS })
}
