//! Calls to the sidecar that are under way, and the requests that wait for their answers, or for a call.
//!
//! Invariants: a paused request is in exactly one call, as its asker or as a waiter, or in the queue; a
//! waiter is only in a call that ends before the waiter's own time is over; and there are never more than
//! [`WAITING_MAX`] of them, nor more bytes than [`WAITING_BYTES_MAX`]. A request may be gone before its
//! answer comes.

use crate::host::{CallId, StreamId};
use crate::leases::local_table::ReturnableTokens;
use crate::request::descriptors::{DescriptorRef, LeaseKey, RequestDescriptors};
use crate::worker::tick_clock::Tick;
use std::collections::{BTreeMap, VecDeque};

/// Of a worker, those that are decided and not told yet included.
pub(crate) const WAITING_MAX: usize = 8_192;
/// A request has a few hundred bytes of descriptors, unless a client wants it to have more.
const WAITING_BYTES_MAX: usize = 8 << 20;
/// Calls of a worker at a time. Envoy lets 1,024 requests of all workers be under way to a cluster, and
/// fails those above at once. At a round trip of 1 ms it is 128,000 calls a second.
pub(crate) const CALLS_MAX: usize = 128;

/// Who is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requester {
    /// A paused request.
    Stream(StreamId),
    /// Descriptors in shadow, whose request went on long ago.
    Shadow,
}

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// Who waits.
    pub(crate) requester: Requester,
    /// What it needs.
    pub(crate) descriptors: RequestDescriptors,
    /// Its last tick.
    pub(crate) deadline: Tick,
}

/// What a call is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To decide its asker.
    Decide,
    /// For a new lease before the old one is used up.
    Refresh,
    /// To see whether the sidecar answers again.
    Probe,
    /// To give tokens back.
    Return,
}

/// Tokens that were asked for beyond the hits of the asker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LeaseWish {
    /// In advance: a share of what is left.
    pub(crate) wanted: u64,
    /// For requests that wait: granted as far as any are left, if any are granted at all.
    pub(crate) waiting: u64,
}

/// A call under way.
#[derive(Debug)]
pub(crate) struct PendingCall {
    /// What it is for.
    pub(crate) purpose: Purpose,
    /// Who is decided by its verdict; none when that request is gone, or there was none.
    pub(crate) requester: Option<Requester>,
    /// What is asked about.
    pub(crate) descriptors: RequestDescriptors,
    /// For each descriptor, what was asked for beyond the hits of the asker.
    pub(crate) wish: Vec<LeaseWish>,
    /// Its last tick.
    pub(crate) ends: Tick,
    /// Who is decided again when it has.
    pub(crate) waiters: Vec<Waiter>,
    /// The tick that it was sent in.
    pub(crate) sent_at: Tick,
    /// Its number, by which the sidecar names what it grants.
    pub(crate) name: u64,
    /// The tokens that it gives back.
    pub(crate) returned: Vec<ReturnableTokens>,
}

impl PendingCall {
    fn waiting(&self) -> usize {
        self.waiters.len().saturating_add(usize::from(self.requester.is_some()))
    }

    fn bytes(&self) -> usize {
        let waiters = self.waiters.iter().map(|waiter| waiter.descriptors.bytes());
        waiters.fold(self.descriptors.bytes(), usize::saturating_add)
    }

    /// The hits that the waiters need of `key`.
    pub(crate) fn waiting_for(&self, key: LeaseKey) -> u64 {
        needed_by(self.waiters.iter(), key)
    }
}

/// The hits that these need of `key`.
pub(crate) fn needed_by<'a>(waiters: impl Iterator<Item = &'a Waiter>, key: LeaseKey) -> u64 {
    waiters.map(|waiter| needed(&waiter.descriptors, key)).fold(0, u64::saturating_add)
}

/// The hits that a request needs of `key`: it may have the same descriptor twice.
pub(crate) fn needed(descriptors: &RequestDescriptors, key: LeaseKey) -> u64 {
    let same = descriptors.iter().filter(|descriptor| descriptor.key == key);
    same.map(|descriptor| descriptor.hits).fold(0, u64::saturating_add)
}

/// As [`needed`], for one of the request's own descriptors.
pub(crate) fn needed_there(
    descriptors: &RequestDescriptors,
    descriptor: &DescriptorRef<'_>,
) -> u64 {
    if descriptors.has_duplicates() { needed(descriptors, descriptor.key) } else { descriptor.hits }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct PendingCalls {
    calls: BTreeMap<CallId, PendingCall>,
    /// The call that calls for a key.
    call_by_key: BTreeMap<LeaseKey, CallId>,
    /// Who could not ask, as there were too many calls; the first has the least time left.
    queue: VecDeque<Waiter>,
    /// Calls that failed at once and whose reason is on its way.
    unsent: VecDeque<PendingCall>,
    /// Whether Envoy takes no more calls for now.
    overflowed: bool,
    waiting: usize,
    bytes: usize,
}

impl PendingCalls {
    /// Whether another request may wait, beside so many that are decided.
    pub(crate) fn has_room(&self, decided: usize) -> bool {
        self.waiting.saturating_add(decided) < WAITING_MAX && self.bytes < WAITING_BYTES_MAX
    }

    /// Whether another call may be made.
    pub(crate) fn may_call(&self) -> bool {
        !self.overflowed && self.calls.len() < CALLS_MAX
    }

    /// Envoy takes no more calls until one of those under way has ended, or for a while.
    pub(crate) fn overflow(&mut self) {
        self.overflowed = true;
    }

    /// Envoy may take calls again.
    pub(crate) fn try_again(&mut self) {
        self.overflowed = false;
    }

    /// Keeps a call that failed at once until its reason comes.
    pub(crate) fn keep_unsent(&mut self, pending: PendingCall) {
        self.add_counts(pending.waiting(), pending.bytes());
        self.unsent.push_back(pending);
    }

    /// The first call that failed at once.
    pub(crate) fn take_unsent(&mut self) -> Option<PendingCall> {
        let pending = self.unsent.pop_front()?;
        self.subtract_counts(pending.waiting(), pending.bytes());
        Some(pending)
    }

    /// Has a request wait until another call may be made, before those that have more time left.
    pub(crate) fn queue(&mut self, waiter: Waiter) {
        self.add_counts(1, waiter.descriptors.bytes());
        let index = self.queue.partition_point(|queued| queued.deadline <= waiter.deadline);
        self.queue.insert(index, waiter);
    }

    /// Whether the first of the queue may ask, or its time is over.
    pub(crate) fn may_unqueue(&self, now: Tick) -> bool {
        self.queue.front().is_some_and(|first| self.may_call() || first.deadline < now)
    }

    /// Whether none is in the queue.
    pub(crate) fn is_queue_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes the first out of the queue.
    pub(crate) fn unqueue(&mut self) -> Option<Waiter> {
        let waiter = self.queue.pop_front()?;
        if self.queue.is_empty() {
            self.queue.shrink_to(CALLS_MAX);
        }
        self.subtract_counts(1, waiter.descriptors.bytes());
        Some(waiter)
    }

    /// How many wait, for others or for their own ask.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether a call calls for `key`.
    pub(crate) fn is_pending(&self, key: LeaseKey) -> bool {
        self.call_by_key.contains_key(&key)
    }

    /// The call to wait for when all of `keys` are being asked for: the last of them to end, if that
    /// is by `deadline`.
    pub(crate) fn call_for(
        &self,
        keys: impl Iterator<Item = LeaseKey>,
        deadline: Tick,
    ) -> Option<CallId> {
        let mut last = None;
        for key in keys {
            let call = *self.call_by_key.get(&key)?;
            let ends = self.calls.get(&call)?.ends;
            if ends > deadline {
                return None;
            }
            last = last.max(Some((ends, call)));
        }
        last.map(|(_, call)| call)
    }

    /// Notes a call that was sent. Gives back the one that had its number, which has ended unseen.
    pub(crate) fn sent(&mut self, call: CallId, pending: PendingCall) -> Option<PendingCall> {
        let lost = self.take(call);
        for descriptor in pending.descriptors.iter() {
            self.call_by_key.insert(descriptor.key, call);
        }
        self.add_counts(pending.waiting(), pending.bytes());
        self.calls.insert(call, pending);
        lost
    }

    /// Has a request wait for a call.
    pub(crate) fn wait(&mut self, call: CallId, waiter: Waiter) -> Result<(), Waiter> {
        let Some(pending) = self.calls.get_mut(&call) else {
            return Err(waiter);
        };
        let bytes = waiter.descriptors.bytes();
        pending.waiters.push(waiter);
        self.add_counts(1, bytes);
        Ok(())
    }

    /// Takes a call out that has ended, with all who waited for it.
    pub(crate) fn take(&mut self, call: CallId) -> Option<PendingCall> {
        let pending = self.calls.remove(&call)?;
        for descriptor in pending.descriptors.iter() {
            if self.call_by_key.get(&descriptor.key) == Some(&call) {
                self.call_by_key.remove(&descriptor.key);
            }
        }
        self.subtract_counts(pending.waiting(), pending.bytes());
        Some(pending)
    }

    fn add_counts(&mut self, waiting: usize, bytes: usize) {
        self.waiting = self.waiting.saturating_add(waiting);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn subtract_counts(&mut self, waiting: usize, bytes: usize) {
        self.waiting = self.waiting.saturating_sub(waiting);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// The first of all calls.
    pub(crate) fn first(&self) -> Option<CallId> {
        self.calls.first_key_value().map(|(call, _)| *call)
    }

    /// Takes any call out, as if it had ended.
    pub(crate) fn take_any(&mut self) -> Option<PendingCall> {
        match self.first() {
            Some(call) => self.take(call),
            None => self.take_unsent(),
        }
    }

    /// The tick in which the oldest call under way was sent.
    pub(crate) fn oldest_sent_at(&self) -> Option<Tick> {
        self.calls.values().map(|pending| pending.sent_at).min()
    }

    /// Who is decided by a call.
    #[cfg(test)]
    pub(crate) fn asker_of(&self, call: CallId) -> Option<Requester> {
        self.calls.get(&call)?.requester
    }

    /// How many calls are under way.
    #[cfg(test)]
    pub(crate) fn calls(&self) -> usize {
        self.calls.len()
    }

    /// A call whose time is over.
    pub(crate) fn overdue(&self, now: Tick) -> Option<CallId> {
        self.calls.iter().find(|(_, pending)| pending.ends < now).map(|(call, _)| *call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(tick: u64) -> Tick {
        Tick::new(tick)
    }

    fn descriptors(values: &[&str]) -> RequestDescriptors {
        let mut descriptors = RequestDescriptors::default();
        for value in values {
            descriptors.entry("k", value);
            descriptors.finish(7, 1);
        }
        descriptors
    }

    fn pending(stream: u32, values: &[&str], ends: u64) -> PendingCall {
        PendingCall {
            purpose: Purpose::Decide,
            requester: Some(Requester::Stream(StreamId(stream))),
            descriptors: descriptors(values),
            wish: vec![LeaseWish::default(); values.len()],
            ends: at(ends),
            waiters: Vec::new(),
            sent_at: at(0),
            name: 0,
            returned: Vec::new(),
        }
    }

    fn waiter(stream: u32, values: &[&str]) -> Waiter {
        Waiter {
            requester: Requester::Stream(StreamId(stream)),
            descriptors: descriptors(values),
            deadline: at(99),
        }
    }

    #[test]
    fn a_request_waits_for_the_last_call_of_all_that_it_lacks_or_for_none() {
        let mut calls = PendingCalls::default();
        assert!(calls.sent(CallId(1), pending(1, &["a"], 10)).is_none());
        assert!(calls.sent(CallId(2), pending(2, &["b"], 20)).is_none());
        let keys = |values: &[&str]| descriptors(values).iter().map(|d| d.key).collect::<Vec<_>>();
        let call = |values: &[&str], deadline| {
            calls.call_for(keys(values).into_iter(), at(deadline)).map(|call| call.0)
        };
        assert_eq!(call(&["a"], 20), Some(1));
        assert_eq!(call(&["a", "b"], 20), Some(2));
        assert_eq!(call(&["a", "b"], 19), None);
        assert_eq!(call(&["a", "c"], 20), None);
        assert_eq!(call(&[], 20), None);
    }

    #[test]
    fn the_queue_moves_when_there_is_room_for_a_call_or_no_time_left() {
        let mut calls = PendingCalls::default();
        for call in 0..u32::try_from(CALLS_MAX).unwrap() {
            assert!(calls.may_call());
            calls.sent(CallId(call), pending(call, &["a"], 10));
        }
        let before = (calls.waiting, calls.bytes);
        calls.queue(waiter(1_000, &["b"]));
        calls.queue(waiter(1_001, &["b"]));
        assert!(!calls.may_call() && !calls.may_unqueue(at(99)) && calls.may_unqueue(at(100)));
        assert_eq!(calls.unqueue().map(|w| w.requester), Some(Requester::Stream(StreamId(1_000))));
        calls.take(CallId(0));
        assert!(calls.may_unqueue(at(0)));
        assert_eq!(calls.unqueue().map(|w| w.requester), Some(Requester::Stream(StreamId(1_001))));
        assert_eq!((calls.waiting + 1, calls.is_queue_empty()), (before.0, true));
        for call in 1..u32::try_from(CALLS_MAX).unwrap() {
            calls.take(CallId(call));
        }
        assert_eq!((calls.waiting, calls.bytes), (0, 0));
    }

    #[test]
    fn those_who_wait_are_bounded_in_bytes_too() {
        let mut calls = PendingCalls::default();
        let long = "x".repeat(15_000);
        calls.sent(CallId(1), pending(1, &[&long], 10));
        let mut waiting = 1;
        assert!(calls.has_room(WAITING_MAX - 2) && !calls.has_room(WAITING_MAX - 1));
        while calls.has_room(0) {
            calls.wait(CallId(1), waiter(waiting, &[&long])).unwrap();
            waiting += 1;
        }
        assert!((500..600).contains(&waiting), "{waiting}");
    }

    #[test]
    fn a_call_is_overdue_after_its_last_tick() {
        let mut calls = PendingCalls::default();
        calls.sent(CallId(1), pending(1, &["a"], 10));
        assert_eq!(calls.overdue(at(10)), None);
        assert_eq!(calls.overdue(at(11)), Some(CallId(1)));
    }
}
