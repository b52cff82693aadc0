//! Many updates, few commands: a state machine that commits the updates of a process in groups.
//!
//! An update runs at once, on speculative images: what the server is known to have, changed by the flight that has
//! its key, changed by the batch that forms behind it. It joins that batch. A batch is ready as soon as no flight has
//! one of its keys, so at once on an idle key, and takes off when the driver asks for it. A flight that lands has
//! committed all its updates, or none: then they run again, on what the server says that it has.
//!
//! A key belongs to at most one flight and to at most one forming batch. Owns no clock, socket or task: time is an
//! argument, and the caller does what [`Effects`] say once it has released the engine. Knows no limit. Refuses to keep
//! more than [`UPDATES_MAX`] updates.

mod batches;
mod flight;
mod known;
#[cfg(test)]
mod tests;

pub(crate) use flight::{Cause, Change, Flight, FlightId, Landing};

use crate::image::{Image, Retention};
use crate::layout::Layout;
use crate::slots::{Lane, Lanes};
use batches::{Batches, Members};
use hashbrown::HashMap;
use known::{Known, Seen};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::task::{Poll, Waker};
use tidegate_authority::{Undecided, Update};
use tidegate_core::Timestamp;
use tidegate_store::{Entry, Hashed, LoadedEntries, UPDATE_KEYS_MAX, UpdateError};

/// The updates that may be under way at once.
pub(crate) const UPDATES_MAX: usize = 65_536;

/// The number of an update under way. Never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct MemberId(u64);

/// What the caller has to do after a call, without the engine's lock.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Batches have become ready in these lanes: a driver that sleeps has to ask for flights.
    pub(crate) ready: SmallVec<[Lane; 4]>,
    pub(crate) wakes: Vec<Waker>,
}

/// The state machine.
#[derive(Debug)]
pub(crate) struct Engine {
    known: Known,
    batches: Batches,
    members: HashMap<MemberId, Member>,
    next_member: u64,
    /// Updates that wait for room in a batch. Those whose futures are gone are passed over.
    queue: VecDeque<MemberId>,
    effects: Effects,
    rules: Rules,
}

/// What the engine has to respect.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// How long an update is run again after losses, in nanoseconds.
    pub(crate) patience: u64,
    pub(crate) retention: Retention,
    pub(crate) layout: Layout,
    /// The keys of one batch. Only a single update may have more.
    pub(crate) keys_max: usize,
}

/// An update under way.
#[derive(Debug)]
struct Member {
    stage: Stage,
    waker: Option<Waker>,
    begun: u64,
    /// Whether it has run in vain, or has waited for room.
    was_delayed: bool,
}

#[derive(Debug)]
enum Stage {
    /// To be run when its future is polled.
    Unrun,
    /// Is in a batch, or waits for room in one.
    Waits,
    Landed(Result<(), Undecided>),
}

/// One poll of an update.
pub(crate) struct Ask<'p, 'u> {
    pub(crate) keys: &'p [Hashed],
    /// The time of the decision.
    pub(crate) now: Timestamp,
    pub(crate) update: &'p mut Update<'u>,
    pub(crate) waker: &'p Waker,
    /// The time of the poll by a monotonic clock, in nanoseconds.
    pub(crate) at: u64,
}

impl Engine {
    pub(crate) fn new(rules: Rules, lanes: Lanes) -> Engine {
        Engine {
            known: Known::new(),
            batches: Batches::new(rules.keys_max, lanes),
            members: HashMap::new(),
            next_member: 0,
            queue: VecDeque::new(),
            effects: Effects::default(),
            rules,
        }
    }

    /// Takes what the last calls have left to do.
    pub(crate) fn effects(&mut self) -> Effects {
        std::mem::take(&mut self.effects)
    }

    /// Begins an update of `keys`, which runs when it is polled.
    pub(crate) fn begin(&mut self, keys: &[Hashed], at: u64) -> Result<MemberId, Undecided> {
        let (keys_max, words, words_max) = (UPDATE_KEYS_MAX, 0, 0);
        if keys.len() > keys_max {
            let keys = keys.len();
            return Err(UpdateError::TooLarge { keys, words, keys_max, words_max }.into());
        }
        if !self.batches.reaches(keys) {
            return Err(unreachable_by("no single update reaches keys in several slots"));
        }
        if self.members.len() >= UPDATES_MAX {
            return Err(unreachable_by(&format!(
                "{UPDATES_MAX} updates wait for the server already"
            )));
        }
        let id = MemberId(self.next_member);
        self.next_member += 1;
        self.members
            .insert(id, Member { stage: Stage::Unrun, waker: None, begun: at, was_delayed: false });
        Ok(id)
    }

    /// The result of update `id`, which is over then. Otherwise its waker is woken when it has to be polled again.
    pub(crate) fn poll(&mut self, id: MemberId, ask: Ask<'_, '_>) -> Poll<Result<(), Undecided>> {
        let Some(member) = self.members.get_mut(&id) else {
            return Poll::Ready(Err(unreachable_by("the update was polled after its end")));
        };
        match &mut member.stage {
            Stage::Landed(result) => {
                let result = std::mem::replace(result, Ok(()));
                self.members.remove(&id);
                return Poll::Ready(result);
            }
            Stage::Waits => {
                if !member.waker.as_ref().is_some_and(|waker| waker.will_wake(ask.waker)) {
                    member.waker = Some(ask.waker.clone());
                }
                return Poll::Pending;
            }
            Stage::Unrun => {}
        }
        if ask.keys.is_empty() {
            (ask.update)(&mut LoadedEntries::new(&[], |_| Entry::default()).entries());
            self.members.remove(&id);
            return Poll::Ready(Ok(()));
        }
        let waited = ask.at.saturating_sub(member.begun);
        if member.was_delayed && waited > self.rules.patience {
            self.leave(id);
            return Poll::Ready(Err(contended(waited)));
        }
        member.waker = Some(ask.waker.clone());
        self.run(id, ask);
        Poll::Pending
    }

    /// The future of update `id` is gone. What it has changed may be committed.
    pub(crate) fn leave(&mut self, id: MemberId) {
        if self.members.remove(&id).is_some_and(|member| member.was_delayed) {
            self.admit(1);
        }
    }

    /// The next flight to send in a lane, if a batch is ready.
    pub(crate) fn depart(&mut self, lane: Lane) -> Option<Flight> {
        let flight = self.batches.depart(lane)?;
        self.admit(self.rules.keys_max);
        Some(flight)
    }

    /// Slots have moved to other lanes.
    pub(crate) fn set_lanes(&mut self, change: impl FnOnce(&mut Lanes)) {
        let ready = self.batches.set_lanes(change);
        self.note_ready(ready);
    }

    /// The lane of a slot.
    pub(crate) fn lane_of(&self, slot: usize) -> Lane {
        self.batches.lane_of(slot)
    }

    /// Flight `id` has ended.
    pub(crate) fn land(&mut self, id: FlightId, landing: Landing) {
        let Some(batch) = self.batches.land(id) else { return };
        match landing {
            Landing::Done => {
                for change in &*batch.changes {
                    let seen = Seen { image: change.after.clone(), at: batch.latest };
                    self.known.insert(change.key, seen);
                }
                self.finish(batch.members, &Ok(()));
                let ready = self.batches.unblock(&batch.changes);
                self.note_ready(ready);
            }
            Landing::Lost(present) => {
                let mut damaged = None;
                for (change, image) in batch.changes.iter().zip(present) {
                    if !image.is_empty() && !self.rules.layout.is_good(&image, &change.key) {
                        damaged.get_or_insert(change.key);
                    }
                    self.known.insert(change.key, Seen { image, at: batch.latest });
                }
                match damaged {
                    // The value is known from now on, so the next update replaces it.
                    Some(key) => self.finish(batch.members, &Err(damaged_value(&key))),
                    None => self.run_again(batch.members),
                }
                for behind in self.batches.dissolve(&batch.changes) {
                    self.run_again(behind.members);
                }
            }
            Landing::Failed(cause) => {
                batch.changes.iter().for_each(|change| self.known.forget(&change.key));
                // Those behind it would only fail one after the other, and each failure would have the rest run again.
                let failed = Err(unreachable_by(cause.as_str()));
                self.finish(batch.members, &failed);
                for behind in self.batches.dissolve(&batch.changes) {
                    self.finish(behind.members, &failed);
                }
            }
        }
        self.admit(self.rules.keys_max);
    }

    /// Lets up to `most` updates that wait for room run. Each that goes away instead passes that on to another one.
    fn admit(&mut self, most: usize) {
        let mut admitted = 0;
        while admitted < most
            && let Some(id) = self.queue.pop_front()
        {
            if let Some(member) = self.members.get_mut(&id) {
                (member.stage, member.was_delayed) = (Stage::Unrun, true);
                self.wake(id);
                admitted += 1;
            }
        }
    }

    /// Runs an update, and lets it join a batch. If that batch is full, it waits without having run.
    fn run(&mut self, id: MemberId, ask: Ask<'_, '_>) {
        let Ask { keys, now, update, .. } = ask;
        let layout = self.rules.layout;
        let mut values: SmallVec<[Hashed; 4]> = SmallVec::new();
        for value in keys.iter().map(|key| layout.value_of(key)) {
            if !values.contains(&value) {
                values.push(value);
            }
        }
        let Some(joined) = self.batches.joined(&values) else {
            self.queue.push_back(id);
            self.set(id, Stage::Waits);
            return;
        };
        // Before anything changes: an update that panics leaves the engine as it was.
        let before = values.iter().map(|value| self.speculative(value, now));
        let before: SmallVec<[Image; 4]> = before.collect();
        let value_with =
            |key: &Hashed| values.iter().position(|value| *value == layout.value_of(key));
        let mut loaded = LoadedEntries::new(keys, |key| {
            let value = value_with(key).and_then(|index| before.get(index));
            layout.entry(value.map_or(&[], |value| value), key, now)
        });
        update(&mut loaded.entries());
        let mut entries = loaded.entries();
        let batch = self.batches.join(&joined, id, now);
        for (key, before) in values.into_iter().zip(before) {
            let after = layout.changed(&before, &key, keys, &mut entries, now);
            self.batches.change(batch, Change { key, before, after });
        }
        self.set(id, Stage::Waits);
        let ready = self.batches.get_ready(batch);
        self.note_ready(ready);
    }

    fn note_ready(&mut self, lanes: impl IntoIterator<Item = Lane>) {
        for lane in lanes {
            if !self.effects.ready.contains(&lane) {
                self.effects.ready.push(lane);
            }
        }
    }

    /// The image that `key` will have when all that is under way lands well.
    fn speculative(&mut self, key: &Hashed, now: Timestamp) -> Image {
        if let Some(image) = self.batches.latest(key) {
            return image.clone();
        }
        let Rules { retention, layout, .. } = self.rules;
        // Something else than its end may keep an image, so one that was there after its end counts.
        let is_gone = |seen: &&Seen| {
            let end = layout.ends(&seen.image, key, retention).map(Timestamp::from_secs);
            end.is_some_and(|end| seen.at < end && end <= now)
        };
        let seen = self.known.get(key).filter(|seen| !is_gone(seen));
        seen.map(|seen| seen.image.clone()).unwrap_or_default()
    }

    fn run_again(&mut self, members: Members) {
        for id in members {
            if let Some(member) = self.members.get_mut(&id) {
                (member.stage, member.was_delayed) = (Stage::Unrun, true);
            }
            self.wake(id);
        }
    }

    fn finish(&mut self, members: Members, result: &Result<(), Undecided>) {
        for id in members {
            self.set(id, Stage::Landed(result.clone()));
            self.wake(id);
        }
    }

    /// Does nothing for an update whose future is gone.
    fn set(&mut self, id: MemberId, stage: Stage) {
        if let Some(member) = self.members.get_mut(&id) {
            member.stage = stage;
        }
    }

    fn wake(&mut self, id: MemberId) {
        let waker = self.members.get_mut(&id).and_then(|member| member.waker.take());
        self.effects.wakes.extend(waker);
    }
}

pub(crate) fn unreachable_by(cause: &str) -> Undecided {
    Undecided::Unreachable { cause: cause.to_owned() }
}

fn contended(waited: u64) -> Undecided {
    let millis = waited / 1_000_000;
    unreachable_by(&format!(
        "too many other requests change the same counters; gave up after {millis} ms"
    ))
}

fn damaged_value(key: &Hashed) -> Undecided {
    unreachable_by(&format!(
        "the server has a value for key {:032x} that is no counter; the next request replaces it",
        key.hash
    ))
}
