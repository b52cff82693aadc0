//! Random schedules: requests, ticks, responses that are late, out of order, lost or wrong, streams
//! that end, colliding writes of shared data, and time.
//!
//! Invariants: no token is spent twice or after its expiry, so in each window no more hits pass by
//! leases than were leased and not returned; every paused request is decided within its timeout;
//! every hit that local state decided is reported exactly once; all state is bounded.

use super::authority::{Authority, window_of};
use super::world::{Envoy, MILLI, NoFacts, WAIT_MS_MAX};
use crate::host::StreamId;
use crate::leases::slot::Slot;
use crate::worker::HeadersStatus;
use crate::worker::call_error::CallError;
use crate::worker::pending_calls::{Requester, WAITING_MAX};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use tidegate_wire::report_of;

const NAMES: [&str; 7] = ["100000", "300", "40", "40a", "9", "free", "never"];
/// These many more share one set of the local table, which has eight records.
const CROWD: usize = 12;

fn name(number: usize) -> &'static str {
    static CROWDED: LazyLock<Vec<String>> = LazyLock::new(|| super::names_of_one_set("60", CROWD));
    NAMES.get(number).copied().unwrap_or_else(|| &CROWDED[number - NAMES.len()])
}

#[derive(Debug, Clone)]
enum Event {
    /// A request with descriptors in shadow.
    Shadow {
        worker: usize,
        needs: Needed,
    },
    Request {
        worker: usize,
        needs: Needed,
        times: u8,
    },
    /// A few requests for each name of the crowd, answered at once.
    Crowd(usize),
    /// A call reaches the sidecar.
    Arrive(prop::sample::Index),
    /// The response to such a call arrives.
    Answer(prop::sample::Index),
    /// A call ends with this status.
    Fail(prop::sample::Index, u32),
    /// A call is answered with these bytes.
    Nonsense(prop::sample::Index, Vec<u8>),
    Gone(prop::sample::Index),
    Tick(usize),
    Conflicts(u32),
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let index = any::<prop::sample::Index>;
    let needs = || prop::collection::vec((0..NAMES.len(), 0_u64..4), 1..4);
    let one = (0..NAMES.len()).prop_map(|name| vec![(name, 1)]);
    let crowd = (NAMES.len()..NAMES.len() + CROWD).prop_map(|name| vec![(name, 1)]);
    prop_oneof![
        12 => (0_usize..4, prop_oneof![3 => one, 1 => needs(), 2 => crowd], 1_u8..12)
            .prop_map(|(worker, needs, times)| Event::Request { worker, needs, times }),
        1 => (0_usize..4, needs()).prop_map(|(worker, needs)| Event::Shadow { worker, needs }),
        2 => (0_usize..4).prop_map(Event::Crowd),
        12 => index().prop_map(Event::Arrive),
        12 => index().prop_map(Event::Answer),
        1 => (index(), prop_oneof![Just(3_u32), Just(8), Just(14)])
            .prop_map(|(call, status)| Event::Fail(call, status)),
        1 => (index(), prop::collection::vec(any::<u8>(), 0..8))
            .prop_map(|(call, bytes)| Event::Nonsense(call, bytes)),
        1 => index().prop_map(Event::Gone),
        4 => (0_usize..4).prop_map(Event::Tick),
        1 => (1_u32..12).prop_map(Event::Conflicts),
        8 => (0_u64..8).prop_map(Event::Pass),
        2 => (0_u64..600).prop_map(Event::Pass),
    ]
}

/// Whether a call only carries a report, or probes for one.
fn is_report(call: &super::Sent) -> bool {
    report_of(&call.message).is_some()
        && (call.metadata("tidegate-return") == Some("0000000000000000")
            || call.metadata("tidegate-lease").is_some_and(|wanted| wanted == "0"))
}

/// The needs of a request: names and hits.
type Needed = Vec<(usize, u64)>;

/// The worker of a paused request, its needs, and its deadline.
type Paused = (usize, Needed, u64);

struct Run {
    envoy: Envoy,
    authority: Authority,
    paused: BTreeMap<StreamId, Paused>,
    /// Hits that passed by leases, by name and window.
    spent: BTreeMap<(String, u64), u64>,
    /// Hits of requests that were denied by local state, by name.
    denied: BTreeMap<String, u64>,
    /// Names with hits in shadow, of which it is not known what became.
    shadowed: BTreeSet<&'static str>,
}

impl Run {
    fn new(workers: usize, slots: u32) -> Run {
        Run {
            envoy: Envoy::new(workers, slots),
            authority: Authority::default(),
            paused: BTreeMap::new(),
            spent: BTreeMap::new(),
            denied: BTreeMap::new(),
            shadowed: BTreeSet::new(),
        }
    }

    fn now(&self) -> u64 {
        self.envoy.world().now
    }

    fn apply(&mut self, event: Event) {
        let workers = self.envoy.workers.len();
        match event {
            Event::Request { worker, needs, times } => {
                for _ in 0..times {
                    self.request(worker % workers, &needs);
                }
            }
            Event::Shadow { worker, needs } => {
                let named: Vec<(&str, u64)> =
                    needs.iter().map(|(number, hits)| (name(*number), *hits)).collect();
                self.shadowed.extend(named.iter().map(|(name, _)| name));
                let (_, step) = self.envoy.request_with_shadow(worker % workers, &[], &named);
                assert_eq!(step, HeadersStatus::Continue);
            }
            Event::Crowd(worker) => self.crowd(worker % workers),
            Event::Arrive(index) => self.arrive(&index),
            Event::Answer(index) => {
                let answered = |sent: &super::Sent| sent.answer.is_some();
                if let Some(call) = self.pick(&index, answered) {
                    let answer = call.answer.clone().unwrap();
                    self.finish_call(&call, Ok(&answer));
                }
            }
            Event::Fail(index, status) => {
                // A call with nothing but a report is never refused, and such a report is dropped.
                let is_possible = |call: &super::Sent| status != 3 || !is_report(call);
                if let Some(call) = self.pick(&index, is_possible) {
                    self.finish_call(&call, Err(CallError::from_grpc_close(status, b"")));
                }
            }
            Event::Nonsense(index, bytes) => {
                if let Some(call) = self.pick(&index, |_| true) {
                    self.finish_call(&call, Ok(&bytes));
                }
            }
            Event::Gone(index) => {
                if !self.paused.is_empty() {
                    let stream = *self.paused.keys().nth(index.index(self.paused.len())).unwrap();
                    let (worker, ..) = self.paused.remove(&stream).unwrap();
                    self.envoy.workers[worker].on_gone(stream, &NoFacts);
                }
            }
            Event::Tick(worker) => {
                self.envoy.workers[worker % workers].on_tick();
                self.collect(None);
            }
            Event::Conflicts(count) => self.envoy.world_mut().conflicts = count,
            Event::Pass(ms) => self.pass(ms * MILLI),
        }
        self.check();
    }

    fn request(&mut self, worker: usize, needs: &[(usize, u64)]) {
        let named: Vec<(&str, u64)> =
            needs.iter().map(|(number, hits)| (name(*number), *hits)).collect();
        let (stream, step) = self.envoy.request(worker, &named);
        let replies = std::mem::take(&mut self.envoy.world_mut().replies);
        let replied = replies.iter().find(|(other, ..)| *other == stream);
        match step {
            HeadersStatus::Continue => self.spend(needs),
            HeadersStatus::Pause if replied.is_some_and(|(_, status, _)| *status == 429) => {
                self.deny(needs);
            }
            HeadersStatus::Pause if replied.is_some() => {}
            HeadersStatus::Pause => {
                let deadline = self.now() + WAIT_MS_MAX * MILLI;
                self.paused.insert(stream, (worker, needs.to_vec(), deadline));
            }
        }
    }

    fn crowd(&mut self, worker: usize) {
        for number in NAMES.len()..NAMES.len() + CROWD {
            for _ in 0..4 {
                self.request(worker, &[(number, 1)]);
            }
            for _ in 0..3 {
                let calls = std::mem::take(&mut self.envoy.world_mut().sent);
                for call in calls {
                    let now = self.now();
                    let decide = || self.authority.decide(&call, now);
                    let answer = call.answer.clone().unwrap_or_else(decide);
                    self.finish_call(&call, Ok(&answer));
                }
            }
            self.request(worker, &[(number, 1)]);
        }
    }

    fn spend(&mut self, needs: &[(usize, u64)]) {
        let window = window_of(self.now());
        for (number, hits) in needs {
            *self.spent.entry((name(*number).to_owned(), window)).or_default() += hits;
        }
    }

    fn deny(&mut self, needs: &[(usize, u64)]) {
        for (number, hits) in needs {
            *self.denied.entry(name(*number).to_owned()).or_default() += hits;
        }
    }

    /// The sidecar answers every call for longer than a round of reports takes.
    fn settle(&mut self) {
        for _ in 0..200 {
            self.pass(100 * MILLI);
            let calls = std::mem::take(&mut self.envoy.world_mut().sent);
            for call in calls {
                let answer = self.authority.decide(&call, self.now());
                self.finish_call(&call, Ok(&answer));
            }
        }
    }

    /// Every hit that was decided by local state was reported once.
    fn check_reported(&mut self) {
        for worker in &self.envoy.workers {
            assert!(worker.tallies.is_empty() && !worker.local.has_tallies());
        }
        let lost = self.envoy.counted().into_iter().find(|(name, _)| name == "reports_lost");
        assert_eq!(lost, None);
        let mut spent: BTreeMap<&str, u64> = BTreeMap::new();
        for ((name, _), hits) in &self.spent {
            *spent.entry(name).or_default() += hits;
        }
        for number in 0..NAMES.len() + CROWD {
            let name = name(number);
            let of = |hits: &BTreeMap<&str, u64>| hits.get(name).copied().unwrap_or(0);
            let reported = self.authority.reported.get(name).copied().unwrap_or_default();
            let allowed = of(&spent);
            let denied = self.denied.get(name).copied().unwrap_or(0);
            let reported_denied = reported.denied + reported.denied_elsewhere;
            match self.shadowed.contains(name) {
                true => {
                    assert!(reported.allowed >= allowed && reported_denied >= denied, "{name}");
                }
                false => {
                    assert_eq!((reported.allowed, reported_denied), (allowed, denied), "{name}")
                }
            }
        }
    }

    fn pick(
        &mut self,
        index: &prop::sample::Index,
        wanted: impl Fn(&super::Sent) -> bool,
    ) -> Option<super::Sent> {
        let mut world = self.envoy.world_mut();
        let indexes: Vec<usize> =
            (0..world.sent.len()).filter(|index| wanted(&world.sent[*index])).collect();
        if indexes.is_empty() {
            return None;
        }
        let index = indexes[index.index(indexes.len())];
        Some(world.sent.remove(index))
    }

    fn arrive(&mut self, index: &prop::sample::Index) {
        if let Some(mut call) = self.pick(index, |sent| sent.answer.is_none()) {
            call.answer = Some(self.authority.decide(&call, self.now()));
            self.envoy.world_mut().sent.push(call);
        }
    }

    /// A call ends. Its requester is decided by the verdict, all others by leases.
    fn finish_call(&mut self, call: &super::Sent, answer: Result<&[u8], CallError>) {
        let requester = self.envoy.workers[call.worker].calls.requester_of(call.id);
        self.envoy.workers[call.worker].on_answer(call.id, answer);
        self.collect(requester);
    }

    /// Collects the outcomes of paused requests; the requester was not decided by tokens.
    fn collect(&mut self, requester: Option<Requester>) {
        self.envoy.wake_all();
        let resumed = std::mem::take(&mut self.envoy.world_mut().resumed);
        let replies = std::mem::take(&mut self.envoy.world_mut().replies);
        for stream in resumed {
            let (_, needs, _) = self.paused.remove(&stream).expect("resumed while paused");
            if requester != Some(Requester::Stream(stream)) {
                self.spend(&needs);
            }
        }
        for (stream, status, _) in replies {
            let (_, needs, _) = self.paused.remove(&stream).expect("answered while paused");
            if status == 429 && requester != Some(Requester::Stream(stream)) {
                self.deny(&needs);
            }
        }
    }

    /// Time passes; on the way calls time out and workers tick.
    fn pass(&mut self, nanos: u64) {
        const TICK: u64 = 100 * MILLI;
        let until = self.now() + nanos;
        loop {
            let tick = (self.now() / TICK + 1) * TICK;
            let next = self.envoy.world().sent.iter().map(|call| (call.ends, call.id)).min();
            let next = next.filter(|(ends, _)| *ends <= until.min(tick));
            let Some((ends, id)) = next else {
                if tick > until {
                    break;
                }
                self.envoy.world_mut().now = tick;
                for worker in 0..self.envoy.workers.len() {
                    self.apply(Event::Tick(worker));
                }
                continue;
            };
            let index = self.envoy.world().sent.iter().position(|call| call.id == id).unwrap();
            let call = self.envoy.world_mut().sent.remove(index);
            self.envoy.world_mut().now = ends;
            self.finish_call(&call, Err(CallError::Late));
            self.check();
        }
        self.envoy.world_mut().now = until;
        self.check();
    }

    fn check(&self) {
        for (count, spent) in &self.spent {
            if count.0 != "free" {
                let leased = self.authority.leased.get(count).copied().unwrap_or(0);
                assert!(*spent <= leased, "{count:?}: {spent} spent of {leased} leased");
            }
        }
        for (stream, (.., deadline)) in &self.paused {
            assert!(self.now() <= *deadline, "{stream:?} still waits");
        }
        let waiting: usize = self.envoy.workers.iter().map(|worker| worker.paused()).sum();
        assert_eq!(waiting, self.paused.len());
        for worker in &self.envoy.workers {
            assert!(worker.calls.waiting() <= WAITING_MAX);
            assert!(worker.to_return.len() <= 256);
            assert!(worker.streams.len() <= self.paused.len());
        }
        let world = self.envoy.world();
        assert!(world.shared.len() <= 6);
        let bytes = |value: &crate::host::SharedValue| value.bytes.as_ref().map_or(0, Vec::len);
        assert!(world.shared.values().all(|value| bytes(value) <= Slot::BYTES_MAX));
        let calls: usize = self.envoy.workers.iter().map(|worker| worker.calls.calls()).sum();
        assert_eq!(calls, world.sent.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_token_is_spent_twice_or_late_and_no_request_waits_too_long(
        workers in 1_usize..5,
        slots in 1_u32..6,
        events in prop::collection::vec(event(), 1..200),
    ) {
        let mut run = Run::new(workers, slots);
        for event in events {
            run.apply(event);
        }
        // Pending calls end by their timeouts.
        run.pass(2_000 * MILLI);
        assert_eq!(run.paused.len(), 0);
        // Returns are sent again until their leases end, at most a minute.
        run.pass(70_000 * MILLI);
        assert!(run.envoy.world().sent.iter().all(is_report));
        run.settle();
        run.check_reported();
    }
}
