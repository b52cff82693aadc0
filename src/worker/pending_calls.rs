//! Pending calls to the sidecar, and the requests that wait for their responses or for a call of
//! their own.
//!
//! Invariants: a paused request is in exactly one call, as its requester or as a waiter, or in the
//! queue; a waiter is only in a call that ends by the waiter's deadline; at most [`WAITING_MAX`]
//! requests with at most [`WAITING_BYTES_MAX`] bytes wait. A request may be gone before its
//! response arrives.

use crate::host::{CallId, StreamId};
use crate::leases::local_table::ReturnableTokens;
use crate::request::descriptors::{DescriptorRef, Descriptors, LeaseKey};
use crate::worker::tallies::SentReport;
use crate::worker::tick_clock::Tick;
use std::collections::{BTreeMap, VecDeque};

/// Per worker, including decided requests that are still paused.
pub(crate) const WAITING_MAX: usize = 8_192;
/// Descriptors have a few hundred bytes, unless a client inflates them.
const WAITING_BYTES_MAX: usize = 8 << 20;
/// Pending calls of a worker. By default Envoy allows 1,024 requests of all workers to a cluster,
/// and fails those above at once. At a round trip of 1 ms it is 128,000 calls a second.
pub(crate) const CALLS_MAX: usize = 128;

/// The subject of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requester {
    Stream(StreamId),
    /// Descriptors in shadow; their request has already continued.
    Shadow(StreamId),
}

#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) requester: Requester,
    pub(crate) descriptors: Descriptors,
    pub(crate) deadline: Tick,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Decides its requester.
    Decide,
    /// Requests a new lease before the old one is used up.
    Refresh,
    /// Checks whether the sidecar answers again.
    Probe,
    Return,
    /// Counts hits of streams that have ended.
    Debit,
    /// Only carries a report.
    Report,
}

/// Tokens requested beyond the hits of the requester.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LeaseWish {
    /// In advance: a share of what is left.
    pub(crate) wanted: u64,
    /// For waiting requests: granted as far as any are left, if any are granted at all.
    pub(crate) waiting: u64,
}

#[derive(Debug)]
pub(crate) struct PendingCall {
    pub(crate) purpose: Purpose,
    /// Decided by the verdict; none if that request is gone, or there was none.
    pub(crate) requester: Option<Requester>,
    pub(crate) descriptors: Descriptors,
    /// For each descriptor, the tokens requested.
    pub(crate) wishes: Vec<LeaseWish>,
    pub(crate) deadline: Tick,
    /// Decided again when the call has ended.
    pub(crate) waiters: Vec<Waiter>,
    pub(crate) sent_at: Tick,
    /// Its number, from which the sidecar derives the ids of its leases.
    pub(crate) number: u64,
    pub(crate) returned: Vec<ReturnableTokens>,
    /// Decisions of this worker that it tells of.
    pub(crate) report: Option<Box<SentReport>>,
}

impl PendingCall {
    fn waiting(&self) -> usize {
        self.waiters.len().saturating_add(usize::from(self.requester.is_some()))
    }

    fn bytes(&self) -> usize {
        let waiters = self.waiters.iter().map(|waiter| waiter.descriptors.bytes());
        waiters.fold(self.descriptors.bytes(), usize::saturating_add)
    }

    /// The hits of `key` that the waiters need.
    pub(crate) fn waiting_for(&self, key: LeaseKey) -> u64 {
        needed_by(self.waiters.iter(), key)
    }
}

/// The hits of `key` that these need.
pub(crate) fn needed_by<'a>(waiters: impl Iterator<Item = &'a Waiter>, key: LeaseKey) -> u64 {
    waiters.map(|waiter| needed(&waiter.descriptors, key)).fold(0, u64::saturating_add)
}

/// The hits of `key` that a request needs: the same descriptor may occur twice.
pub(crate) fn needed(descriptors: &Descriptors, key: LeaseKey) -> u64 {
    let same = descriptors.iter().filter(|descriptor| descriptor.key == key);
    same.map(|descriptor| descriptor.hits).fold(0, u64::saturating_add)
}

/// [`needed`] for one of the request's own descriptors.
pub(crate) fn needed_by_own(descriptors: &Descriptors, descriptor: &DescriptorRef<'_>) -> u64 {
    if descriptors.has_duplicates() { needed(descriptors, descriptor.key) } else { descriptor.hits }
}

/// All pending calls and waiting requests of a worker.
#[derive(Debug, Default)]
pub(crate) struct PendingCalls {
    calls: BTreeMap<CallId, PendingCall>,
    /// The call that will bring a key's lease.
    call_by_key: BTreeMap<LeaseKey, CallId>,
    /// Requests that could not call, as there were too many calls; the earliest deadline first.
    queue: VecDeque<Waiter>,
    /// Calls that failed at once and whose cause has not arrived yet.
    unsent: VecDeque<PendingCall>,
    /// Whether Envoy currently refuses calls.
    overflowed: bool,
    waiting: usize,
    bytes: usize,
}

impl PendingCalls {
    /// Whether another request may wait, besides this number of decided ones.
    pub(crate) fn has_room(&self, decided: usize) -> bool {
        self.waiting.saturating_add(decided) < WAITING_MAX && self.bytes < WAITING_BYTES_MAX
    }

    pub(crate) fn may_call(&self) -> bool {
        !self.overflowed && self.calls.len() < CALLS_MAX
    }

    /// Envoy refuses calls until a pending one has ended, or for a while.
    pub(crate) fn overflow(&mut self) {
        self.overflowed = true;
    }

    /// Envoy may accept calls again.
    pub(crate) fn clear_overflow(&mut self) {
        self.overflowed = false;
    }

    /// Keeps a call that failed at once until its cause arrives.
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

    /// Queues a request until another call may be made, by its deadline.
    pub(crate) fn queue(&mut self, waiter: Waiter) {
        self.add_counts(1, waiter.descriptors.bytes());
        let index = self.queue.partition_point(|queued| queued.deadline <= waiter.deadline);
        self.queue.insert(index, waiter);
    }

    /// Whether the first queued request may call, or its deadline has passed.
    pub(crate) fn may_unqueue(&self, now: Tick) -> bool {
        self.queue.front().is_some_and(|first| self.may_call() || first.deadline < now)
    }

    pub(crate) fn is_queue_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes the first request out of the queue.
    pub(crate) fn unqueue(&mut self) -> Option<Waiter> {
        let waiter = self.queue.pop_front()?;
        if self.queue.is_empty() {
            self.queue.shrink_to(CALLS_MAX);
        }
        self.subtract_counts(1, waiter.descriptors.bytes());
        Some(waiter)
    }

    /// The number of waiting requests, including requesters.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether a call about `key` is pending.
    pub(crate) fn is_pending(&self, key: LeaseKey) -> bool {
        self.call_by_key.contains_key(&key)
    }

    /// The call to wait for if calls about all of `keys` are pending: the last of them to end, if
    /// that is by `deadline`.
    pub(crate) fn call_for(
        &self,
        keys: impl Iterator<Item = LeaseKey>,
        deadline: Tick,
    ) -> Option<CallId> {
        let mut last = None;
        for key in keys {
            let call = *self.call_by_key.get(&key)?;
            let ends = self.calls.get(&call)?.deadline;
            if ends > deadline {
                return None;
            }
            last = last.max(Some((ends, call)));
        }
        last.map(|(_, call)| call)
    }

    /// Adds a call that was sent. Returns the call that had its id, whose end was lost.
    pub(crate) fn sent(&mut self, call: CallId, pending: PendingCall) -> Option<PendingCall> {
        let lost = self.take(call);
        for (descriptor, wish) in pending.descriptors.iter().zip(&pending.wishes) {
            // A debit without a wish brings nothing to wait for.
            if pending.purpose != Purpose::Debit || wish.wanted > 0 {
                self.call_by_key.insert(descriptor.key, call);
            }
        }
        self.add_counts(pending.waiting(), pending.bytes());
        self.calls.insert(call, pending);
        lost
    }

    pub(crate) fn wait(&mut self, call: CallId, waiter: Waiter) -> Result<(), Waiter> {
        let Some(pending) = self.calls.get_mut(&call) else { return Err(waiter) };
        let bytes = waiter.descriptors.bytes();
        pending.waiters.push(waiter);
        self.add_counts(1, bytes);
        Ok(())
    }

    /// Removes a call that has ended, with all its waiters.
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

    pub(crate) fn first(&self) -> Option<CallId> {
        self.calls.first_key_value().map(|(call, _)| *call)
    }

    /// Removes any call, as if it had ended.
    pub(crate) fn take_any(&mut self) -> Option<PendingCall> {
        match self.first() {
            Some(call) => self.take(call),
            None => self.take_unsent(),
        }
    }

    /// The tick in which the oldest pending call was sent.
    pub(crate) fn oldest_sent_at(&self) -> Option<Tick> {
        self.calls.values().map(|pending| pending.sent_at).min()
    }

    #[cfg(test)]
    pub(crate) fn requester_of(&self, call: CallId) -> Option<Requester> {
        self.calls.get(&call)?.requester
    }

    #[cfg(test)]
    pub(crate) fn calls(&self) -> usize {
        self.calls.len()
    }

    pub(crate) fn overdue(&self, now: Tick) -> Option<CallId> {
        self.calls.iter().find(|(_, pending)| pending.deadline < now).map(|(call, _)| *call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::encoded::encoded;

    fn at(tick: u64) -> Tick {
        Tick::new(tick)
    }

    fn descriptors(values: &[&str]) -> Descriptors {
        let mut descriptors = Descriptors::default();
        for value in values {
            descriptors.append(&encoded(&["k", value]));
            descriptors.finish(7, 1);
        }
        descriptors
    }

    fn pending(stream: u32, values: &[&str], deadline: u64) -> PendingCall {
        PendingCall {
            purpose: Purpose::Decide,
            requester: Some(Requester::Stream(StreamId(stream))),
            descriptors: descriptors(values),
            wishes: vec![LeaseWish::default(); values.len()],
            deadline: at(deadline),
            waiters: Vec::new(),
            sent_at: at(0),
            number: 0,
            returned: Vec::new(),
            report: None,
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
    fn a_request_waits_for_the_last_call_about_its_keys_or_for_none() {
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
    fn waiting_requests_are_bounded_in_bytes_too() {
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
    fn the_last_place_and_the_last_byte_are_used_and_no_more() {
        let with = |waiting, bytes| PendingCalls { waiting, bytes, ..PendingCalls::default() };
        for (waiting, bytes, has_room) in [
            (WAITING_MAX - 1, WAITING_BYTES_MAX - 1, true),
            (WAITING_MAX, 0, false),
            (0, WAITING_BYTES_MAX, false),
        ] {
            assert_eq!(with(waiting, bytes).has_room(0), has_room, "{waiting}, {bytes}");
        }
        assert!(with(5, 0).has_room(WAITING_MAX - 6) && !with(5, 0).has_room(WAITING_MAX - 5));
    }

    #[test]
    fn the_bytes_of_a_call_are_those_of_all_that_wait_for_it() {
        let mut calls = PendingCalls::default();
        let one = descriptors(&["a"]).bytes();
        calls.sent(CallId(1), pending(1, &["a"], 10));
        calls.wait(CallId(1), waiter(2, &["a", "b"])).unwrap();
        assert_eq!((calls.waiting, calls.bytes), (2, 3 * one));
        let taken = calls.take(CallId(1)).unwrap();
        assert_eq!((calls.waiting, calls.bytes), (0, 0));
        calls.keep_unsent(taken);
        assert_eq!((calls.waiting, calls.bytes), (2, 3 * one));
        calls.take_unsent();
        assert_eq!((calls.waiting, calls.bytes), (0, 0));
    }

    #[test]
    fn the_oldest_call_is_the_one_that_was_sent_first() {
        let mut calls = PendingCalls::default();
        assert_eq!(calls.oldest_sent_at(), None);
        for (call, sent_at) in [(1, 8), (2, 6), (3, 7)] {
            calls.sent(CallId(call), PendingCall { sent_at: at(sent_at), ..pending(1, &[], 10) });
        }
        assert_eq!(calls.oldest_sent_at(), Some(at(6)));
    }

    #[test]
    fn a_call_is_overdue_after_its_last_tick() {
        let mut calls = PendingCalls::default();
        calls.sent(CallId(1), pending(1, &["a"], 10));
        assert_eq!(calls.overdue(at(10)), None);
        assert_eq!(calls.overdue(at(11)), Some(CallId(1)));
    }
}
