//! Debits and refunds that wait for a call to the sidecar.
//!
//! Grouped: streams with the same descriptors wait as one. The descriptors of one stream stay
//! together, since a rule of one may replace the limits of another. Bounded: new groups beyond
//! [`GROUPS_MAX`] or [`BYTES_MAX`] are refused, and the oldest are dropped after [`WAIT_MAX`].

use crate::config::encoded::domain_of;
use crate::request::descriptors::LeaseKey;
use crate::worker::streams::IdHasher;
use std::collections::VecDeque;
use std::hash::BuildHasherDefault;
use tidegate_core::{Direction, Nanos, Timestamp};

/// Groups that wait in a worker.
const GROUPS_MAX: usize = 4_096;
/// Their descriptors. Most have about a hundred bytes.
const BYTES_MAX: usize = 4 << 20;
/// Descriptors in a call.
const CALL_MAX: usize = 32;
/// Longer, and most windows have ended. The sidecar remembers the last call for twice as long.
pub(crate) const WAIT_MAX: Nanos = Nanos::from_secs(60);

/// The hits of one descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Debit {
    pub(crate) key: LeaseKey,
    pub(crate) entries: Box<[u8]>,
    pub(crate) hits: u64,
}

/// The descriptors of one stream, with the hits of all streams that have the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    /// Whether the hits are taken or refunded.
    pub(crate) direction: Direction,
    pub(crate) debits: Vec<Debit>,
    /// When the oldest hits were taken that are to be refunded.
    pub(crate) taken_at: Timestamp,
    /// When the first stream ended.
    pub(crate) since: Timestamp,
}

/// Identifies a group by the secret hashes of its descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct GroupKey(u64);

/// The groups of one call.
#[derive(Debug)]
pub(crate) struct DebitCall {
    /// Its number, unchanged when it is sent again.
    pub(crate) number: u64,
    pub(crate) groups: Vec<Group>,
    /// Whether the sidecar may have counted it, as an answer was lost.
    pub(crate) may_be_counted: bool,
}

/// Groups without room, or that waited for too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lost {
    /// The debited hits among them.
    pub(crate) hits: u64,
}

/// The groups of a worker that wait for a call, or for the answer to one.
#[derive(Debug, Default)]
pub(crate) struct Debits {
    /// In the order in which their first streams ended.
    waiting: VecDeque<Group>,
    /// The number of each of them: that of the first is `first`.
    numbers: hashbrown::HashMap<GroupKey, u64, BuildHasherDefault<IdHasher>>,
    first: u64,
    /// How many of them take hits.
    taking: usize,
    /// Groups that the sidecar refused together with others; each gets a call of its own.
    alone: VecDeque<Group>,
    /// Those of them that may be sent before the next tick.
    alone_due: usize,
    /// Whether the last call had one of them. The others get every second call.
    was_alone: bool,
    /// A call without an answer. No other call is sent before it, since the sidecar would take it
    /// for one that it has counted.
    unanswered: Option<DebitCall>,
    /// Whether it may be sent before the next tick.
    unanswered_due: bool,
    /// The call that is under way. There is one at a time, so that the sidecar can tell whether it
    /// has counted a call that it gets again.
    pub(crate) under_way: Option<DebitCall>,
    /// The bytes of `waiting` and `alone`.
    bytes: usize,
    /// Whether refunds are worth a call.
    refunds_due: bool,
}

impl Group {
    fn key(&self) -> GroupKey {
        let keys = self.debits.iter().map(|debit| debit.key.0);
        // The order of several counts.
        let hash = keys.fold(0_u128, |hash, key| hash.rotate_left(1) ^ key);
        let folded = (hash >> 64) ^ hash;
        let hash = u64::try_from(folded & u128::from(u64::MAX)).unwrap_or(0);
        GroupKey(if self.direction == Direction::Refund { !hash } else { hash })
    }

    fn bytes(&self) -> usize {
        let debits = self.debits.iter().map(|debit| debit.entries.len());
        debits.fold(size_of::<Group>(), |bytes, more| {
            bytes.saturating_add(more).saturating_add(size_of::<Debit>())
        })
    }

    fn takes(&self) -> bool {
        self.direction == Direction::Take
    }

    /// The domain of its descriptors, unless it is the filter's.
    fn domain(&self) -> Option<&str> {
        domain_of(&self.debits.first()?.entries)
    }

    /// The hits that are taken.
    pub(crate) fn hits(&self) -> u64 {
        let hits = self.debits.iter().filter(|_| self.takes()).map(|debit| debit.hits);
        hits.fold(0, u64::saturating_add)
    }

    fn is_same(&self, other: &Group) -> bool {
        let keys = |group: &Group| group.debits.iter().map(|debit| debit.key).collect::<Vec<_>>();
        self.direction == other.direction && keys(self) == keys(other)
    }

    fn merge(&mut self, other: &Group) {
        for (debit, more) in self.debits.iter_mut().zip(&other.debits) {
            debit.hits = debit.hits.saturating_add(more.hits);
        }
        self.taken_at = self.taken_at.min(other.taken_at);
        self.since = self.since.min(other.since);
    }
}

impl Lost {
    const NOTHING: Lost = Lost { hits: 0 };

    fn and(self, group: &Group) -> Lost {
        Lost { hits: self.hits.saturating_add(group.hits()) }
    }
}

impl Debits {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.alone.is_empty() && self.unanswered.is_none()
    }

    /// One of those that wait.
    pub(crate) fn any(&self) -> Option<&Debit> {
        let unanswered = self.unanswered.iter().flat_map(|call| &call.groups);
        let group = unanswered.chain(&self.waiting).chain(&self.alone).next()?;
        group.debits.first()
    }

    /// Whether a new group may find no room.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting() >= GROUPS_MAX || self.bytes >= BYTES_MAX
    }

    /// The groups that wait, without those of a call.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len().saturating_add(self.alone.len())
    }

    /// Adds a group to those that wait.
    pub(crate) fn add(&mut self, group: Group) -> Result<(), Lost> {
        let key = group.key();
        if let Some(number) = self.numbers.get(&key) {
            let index = usize::try_from(number.saturating_sub(self.first)).unwrap_or(usize::MAX);
            return match self.waiting.get_mut(index) {
                Some(same) if same.is_same(&group) => {
                    same.merge(&group);
                    Ok(())
                }
                // Another list with this hash, which no client can aim at.
                _ => Err(Lost::NOTHING.and(&group)),
            };
        }
        let bytes = self.bytes.saturating_add(group.bytes());
        if self.waiting() >= GROUPS_MAX || bytes > BYTES_MAX {
            return Err(Lost::NOTHING.and(&group));
        }
        let count = u64::try_from(self.waiting.len()).unwrap_or(u64::MAX);
        self.numbers.insert(key, self.first.saturating_add(count));
        self.bytes = bytes;
        self.taking = self.taking.saturating_add(usize::from(group.takes()));
        self.waiting.push_back(group);
        Ok(())
    }

    fn take_first(&mut self) -> Option<Group> {
        let group = self.waiting.pop_front()?;
        self.first = self.first.saturating_add(1);
        self.numbers.remove(&group.key());
        self.taking = self.taking.saturating_sub(usize::from(group.takes()));
        self.bytes = self.bytes.saturating_sub(group.bytes());
        if self.waiting.is_empty() {
            // What a flood has needed is not kept.
            self.waiting.shrink_to(CALL_MAX);
            self.numbers.shrink_to(CALL_MAX);
        }
        Some(group)
    }

    /// A tick has passed: refunds may be sent, and groups that go alone. Drops what waited too
    /// long.
    pub(crate) fn tick(&mut self, now: Timestamp) -> Lost {
        const ALONE_PER_TICK: usize = 8;
        (self.refunds_due, self.unanswered_due) = (true, true);
        let is_old = |group: &Group| now.saturating_since(group.since) > WAIT_MAX;
        let mut lost = Lost::NOTHING;
        while self.waiting.front().is_some_and(is_old) {
            lost = self.take_first().iter().fold(lost, Lost::and);
        }
        while self.alone.front().is_some_and(is_old) {
            lost = self.take_alone().iter().fold(lost, Lost::and);
        }
        if self.unanswered.as_ref().is_some_and(|call| call.groups.iter().any(is_old)) {
            let call = self.unanswered.take();
            lost = call.iter().flat_map(|call| &call.groups).fold(lost, Lost::and);
        }
        self.alone_due = ALONE_PER_TICK.min(self.alone.len());
        lost
    }

    /// Whether a call is worth sending now.
    pub(crate) fn is_due(&self) -> bool {
        let has_new = self.alone_due > 0
            || self.taking > 0
            // Refunds alone wait for a tick, so that one call has many.
            || (self.refunds_due && !self.waiting.is_empty());
        self.under_way.is_none()
            && if self.unanswered.is_some() { self.unanswered_due } else { has_new }
    }

    /// A call that is to be sent again, unchanged.
    pub(crate) fn take_unanswered(&mut self) -> Option<DebitCall> {
        self.unanswered_due = false;
        self.unanswered.take()
    }

    /// The groups of the next call.
    pub(crate) fn take_groups(&mut self) -> Vec<Group> {
        if (self.waiting.is_empty() || !self.was_alone)
            && let Some(due) = self.alone_due.checked_sub(1)
        {
            self.alone_due = due;
            if let Some(group) = self.take_alone() {
                self.was_alone = true;
                return vec![group];
            }
        }
        self.was_alone = false;
        self.refunds_due = false;
        let mut groups: Vec<Group> = Vec::new();
        let mut descriptors = 0_usize;
        while let Some(group) = self.waiting.front() {
            descriptors = descriptors.saturating_add(group.debits.len());
            // A call has one domain.
            let is_of_it = groups.first().is_none_or(|first| first.domain() == group.domain());
            if !is_of_it || (descriptors > CALL_MAX && !groups.is_empty()) {
                break;
            }
            groups.extend(self.take_first());
        }
        groups
    }

    fn take_alone(&mut self) -> Option<Group> {
        let group = self.alone.pop_front()?;
        self.bytes = self.bytes.saturating_sub(group.bytes());
        Some(group)
    }

    /// Keeps a call without an answer, which may have been counted.
    pub(crate) fn keep_unanswered(&mut self, call: DebitCall) {
        self.unanswered = Some(call);
    }

    /// The sidecar refused these together, and has counted none. Each of them is sent alone.
    pub(crate) fn separate(&mut self, groups: Vec<Group>) {
        for group in groups {
            self.bytes = self.bytes.saturating_add(group.bytes());
            self.alone.push_back(group);
        }
    }

    /// Takes out everything that waits. Calls without an answer may have been counted, so their
    /// refunds are dropped: a second refund would open a limit, and a second debit does not.
    pub(crate) fn take_all(&mut self) -> Vec<Group> {
        let calls = self.unanswered.take().into_iter().chain(self.under_way.take());
        let mut groups: Vec<Group> = calls.flat_map(|call| call.groups).collect();
        groups.retain(Group::takes);
        while let Some(group) = self.take_first().or_else(|| self.take_alone()) {
            groups.push(group);
        }
        groups
    }
}

#[cfg(test)]
mod tests;
