//! Calls to the sidecar that are under way, and the requests that wait for their answers, or for a call.
//!
//! Invariants: a paused request is in exactly one call, as its asker or as a waiter, or in the queue; a
//! waiter is only in a call that ends before the waiter's own time is over; and there are never more than
//! [`WAITING_MAX`] of them, nor more bytes than [`WAITING_BYTES_MAX`]. A request may be gone before its
//! answer comes.

use crate::host::{CallId, StreamId};
use crate::leases::local_table::Loose;
use crate::request::descriptors::{Drawing, Drawn, LeaseKey};
use crate::worker::tick_clock::Tick;
use std::collections::{BTreeMap, VecDeque};

/// Of a worker, those that are decided and not told yet included.
pub(crate) const WAITING_MAX: usize = 8_192;
/// A request has a few hundred bytes of descriptors, unless a client wants it to have more.
const WAITING_BYTES_MAX: usize = 8 << 20;
/// Calls of a worker at a time. Envoy lets 1,024 requests of all workers be under way to a cluster, and
/// fails those above at once. At a round trip of 1 ms it is 128,000 asks a second.
pub(crate) const CALLS_MAX: usize = 128;

/// Who is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// A paused request.
    Stream(StreamId),
    /// Descriptors in shadow, whose request went on long ago.
    Shadow,
}

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// Who waits.
    pub(crate) who: Who,
    /// What it needs.
    pub(crate) drawn: Drawn,
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
pub(crate) struct Hoped {
    /// In advance: a share of what is left.
    pub(crate) wanted: u64,
    /// For requests that wait: granted as far as any are left, if any are granted at all.
    pub(crate) waiting: u64,
}

/// A call under way.
#[derive(Debug)]
pub(crate) struct Ask {
    /// What it is for.
    pub(crate) purpose: Purpose,
    /// Who is decided by its verdict; none when that request is gone, or there was none.
    pub(crate) asker: Option<Who>,
    /// What is asked about.
    pub(crate) drawn: Drawn,
    /// For each descriptor, what was asked for beyond the hits of the asker.
    pub(crate) hoped: Vec<Hoped>,
    /// Its last tick.
    pub(crate) ends: Tick,
    /// Who is decided again when it has.
    pub(crate) waiters: Vec<Waiter>,
    /// The tick that it was sent in.
    pub(crate) sent_in: Tick,
    /// Its number, by which the sidecar names what it grants.
    pub(crate) name: u64,
    /// The tokens that it gives back.
    pub(crate) returned: Vec<Loose>,
}

impl Ask {
    fn waiting(&self) -> usize {
        self.waiters.len().saturating_add(usize::from(self.asker.is_some()))
    }

    fn bytes(&self) -> usize {
        let waiters = self.waiters.iter().map(|waiter| waiter.drawn.bytes());
        waiters.fold(self.drawn.bytes(), usize::saturating_add)
    }

    /// The hits that the waiters need of `key`.
    pub(crate) fn waiting_for(&self, key: LeaseKey) -> u64 {
        needed_by(self.waiters.iter(), key)
    }
}

/// The hits that these need of `key`.
pub(crate) fn needed_by<'a>(waiters: impl Iterator<Item = &'a Waiter>, key: LeaseKey) -> u64 {
    waiters.map(|waiter| needed(&waiter.drawn, key)).fold(0, u64::saturating_add)
}

/// The hits that a request needs of `key`: it may have the same descriptor twice.
pub(crate) fn needed(drawn: &Drawn, key: LeaseKey) -> u64 {
    let same = drawn.iter().filter(|drawing| drawing.key == key);
    same.map(|drawing| drawing.hits).fold(0, u64::saturating_add)
}

/// As [`needed`], for one of the request's own descriptors.
pub(crate) fn needed_there(drawn: &Drawn, drawing: &Drawing<'_>) -> u64 {
    if drawn.repeats() { needed(drawn, drawing.key) } else { drawing.hits }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    calls: BTreeMap<CallId, Ask>,
    /// The call that asks for a key.
    asking: BTreeMap<LeaseKey, CallId>,
    /// Who could not ask, as there were too many calls; the first has the least time left.
    queue: VecDeque<Waiter>,
    /// Calls that failed at once and whose reason is on its way.
    unsent: VecDeque<Ask>,
    /// Whether Envoy takes no more calls for now.
    overflowed: bool,
    waiting: usize,
    bytes: usize,
}

impl Asks {
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
    pub(crate) fn keep_unsent(&mut self, ask: Ask) {
        self.count_in(ask.waiting(), ask.bytes());
        self.unsent.push_back(ask);
    }

    /// The first call that failed at once.
    pub(crate) fn take_unsent(&mut self) -> Option<Ask> {
        let ask = self.unsent.pop_front()?;
        self.count_out(ask.waiting(), ask.bytes());
        Some(ask)
    }

    /// Has a request wait until another call may be made, before those that have more time left.
    pub(crate) fn queue(&mut self, waiter: Waiter) {
        self.count_in(1, waiter.drawn.bytes());
        let place = self.queue.partition_point(|queued| queued.deadline <= waiter.deadline);
        self.queue.insert(place, waiter);
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
        self.count_out(1, waiter.drawn.bytes());
        Some(waiter)
    }

    /// How many wait, for others or for their own ask.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether a call asks for `key`.
    pub(crate) fn asks_for(&self, key: LeaseKey) -> bool {
        self.asking.contains_key(&key)
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
            let call = *self.asking.get(&key)?;
            let ends = self.calls.get(&call)?.ends;
            if ends > deadline {
                return None;
            }
            last = last.max(Some((ends, call)));
        }
        last.map(|(_, call)| call)
    }

    /// Notes a call that was sent. Gives back the one that had its number, which has ended unseen.
    pub(crate) fn sent(&mut self, call: CallId, ask: Ask) -> Option<Ask> {
        let lost = self.take(call);
        for drawing in ask.drawn.iter() {
            self.asking.insert(drawing.key, call);
        }
        self.count_in(ask.waiting(), ask.bytes());
        self.calls.insert(call, ask);
        lost
    }

    /// Has a request wait for a call.
    pub(crate) fn wait(&mut self, call: CallId, waiter: Waiter) -> Result<(), Waiter> {
        let Some(ask) = self.calls.get_mut(&call) else {
            return Err(waiter);
        };
        let bytes = waiter.drawn.bytes();
        ask.waiters.push(waiter);
        self.count_in(1, bytes);
        Ok(())
    }

    /// Takes a call out that has ended, with all who waited for it.
    pub(crate) fn take(&mut self, call: CallId) -> Option<Ask> {
        let ask = self.calls.remove(&call)?;
        for drawing in ask.drawn.iter() {
            if self.asking.get(&drawing.key) == Some(&call) {
                self.asking.remove(&drawing.key);
            }
        }
        self.count_out(ask.waiting(), ask.bytes());
        Some(ask)
    }

    fn count_in(&mut self, waiting: usize, bytes: usize) {
        self.waiting = self.waiting.saturating_add(waiting);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn count_out(&mut self, waiting: usize, bytes: usize) {
        self.waiting = self.waiting.saturating_sub(waiting);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// The first of all calls.
    pub(crate) fn first(&self) -> Option<CallId> {
        self.calls.first_key_value().map(|(call, _)| *call)
    }

    /// Takes any call out, as if it had ended.
    pub(crate) fn take_any(&mut self) -> Option<Ask> {
        match self.first() {
            Some(call) => self.take(call),
            None => self.take_unsent(),
        }
    }

    /// The tick in which the oldest call under way was sent.
    pub(crate) fn oldest_sent_in(&self) -> Option<Tick> {
        self.calls.values().map(|ask| ask.sent_in).min()
    }

    /// Who is decided by a call.
    #[cfg(test)]
    pub(crate) fn asker_of(&self, call: CallId) -> Option<Who> {
        self.calls.get(&call)?.asker
    }

    /// How many calls are under way.
    #[cfg(test)]
    pub(crate) fn calls(&self) -> usize {
        self.calls.len()
    }

    /// A call whose time is over.
    pub(crate) fn overdue(&self, now: Tick) -> Option<CallId> {
        self.calls.iter().find(|(_, ask)| ask.ends < now).map(|(call, _)| *call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(tick: u64) -> Tick {
        Tick::new(tick)
    }

    fn drawn(values: &[&str]) -> Drawn {
        let mut drawn = Drawn::default();
        for value in values {
            drawn.entry("k", value);
            drawn.finish(7, 1);
        }
        drawn
    }

    fn ask(stream: u32, values: &[&str], ends: u64) -> Ask {
        Ask {
            purpose: Purpose::Decide,
            asker: Some(Who::Stream(StreamId(stream))),
            drawn: drawn(values),
            hoped: vec![Hoped::default(); values.len()],
            ends: at(ends),
            waiters: Vec::new(),
            sent_in: at(0),
            name: 0,
            returned: Vec::new(),
        }
    }

    fn waiter(stream: u32, values: &[&str]) -> Waiter {
        Waiter { who: Who::Stream(StreamId(stream)), drawn: drawn(values), deadline: at(99) }
    }

    #[test]
    fn a_request_waits_for_the_last_call_of_all_that_it_lacks_or_for_none() {
        let mut asks = Asks::default();
        assert!(asks.sent(CallId(1), ask(1, &["a"], 10)).is_none());
        assert!(asks.sent(CallId(2), ask(2, &["b"], 20)).is_none());
        let keys = |values: &[&str]| drawn(values).iter().map(|d| d.key).collect::<Vec<_>>();
        let call = |values: &[&str], deadline| {
            asks.call_for(keys(values).into_iter(), at(deadline)).map(|call| call.0)
        };
        assert_eq!(call(&["a"], 20), Some(1));
        assert_eq!(call(&["a", "b"], 20), Some(2));
        assert_eq!(call(&["a", "b"], 19), None);
        assert_eq!(call(&["a", "c"], 20), None);
        assert_eq!(call(&[], 20), None);
    }

    #[test]
    fn the_queue_moves_when_there_is_room_for_a_call_or_no_time_left() {
        let mut asks = Asks::default();
        for call in 0..u32::try_from(CALLS_MAX).unwrap() {
            assert!(asks.may_call());
            asks.sent(CallId(call), ask(call, &["a"], 10));
        }
        let before = (asks.waiting, asks.bytes);
        asks.queue(waiter(1_000, &["b"]));
        asks.queue(waiter(1_001, &["b"]));
        assert!(!asks.may_call() && !asks.may_unqueue(at(99)) && asks.may_unqueue(at(100)));
        assert_eq!(asks.unqueue().map(|w| w.who), Some(Who::Stream(StreamId(1_000))));
        asks.take(CallId(0));
        assert!(asks.may_unqueue(at(0)));
        assert_eq!(asks.unqueue().map(|w| w.who), Some(Who::Stream(StreamId(1_001))));
        assert_eq!((asks.waiting + 1, asks.is_queue_empty()), (before.0, true));
        for call in 1..u32::try_from(CALLS_MAX).unwrap() {
            asks.take(CallId(call));
        }
        assert_eq!((asks.waiting, asks.bytes), (0, 0));
    }

    #[test]
    fn those_who_wait_are_bounded_in_bytes_too() {
        let mut asks = Asks::default();
        let long = "x".repeat(15_000);
        asks.sent(CallId(1), ask(1, &[&long], 10));
        let mut waiting = 1;
        assert!(asks.has_room(WAITING_MAX - 2) && !asks.has_room(WAITING_MAX - 1));
        while asks.has_room(0) {
            asks.wait(CallId(1), waiter(waiting, &[&long])).unwrap();
            waiting += 1;
        }
        assert!((500..600).contains(&waiting), "{waiting}");
    }

    #[test]
    fn a_call_is_overdue_after_its_last_tick() {
        let mut asks = Asks::default();
        asks.sent(CallId(1), ask(1, &["a"], 10));
        assert_eq!(asks.overdue(at(10)), None);
        assert_eq!(asks.overdue(at(11)), Some(CallId(1)));
    }
}
