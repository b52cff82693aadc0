//! An Envoy with several workers and a manual clock: calls are recorded, and nothing happens by
//! itself.

use crate::config::encoded::encoded;
use crate::config::{Config, HeaderStyle, UndecidedMode};
pub(super) use crate::host::NoFacts;
use crate::host::stats::MetricKind;
use crate::host::{Call, CallId, Conflict, Host, LogLevel, SharedValue, StreamId, Unsent};
use crate::host::{Header, NamedHeader, Reply};
use crate::leases::descriptor_state::DescriptorState;
use crate::leases::local_table::LocalRecord;
use crate::leases::shared_table::Write;
use crate::request::descriptors::{Descriptors, LeaseKey};
use crate::worker::{HeadersStatus, Worker};
use std::cell::{Ref, RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use tidegate_core::Timestamp;

/// A call that was sent.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub(super) worker: usize,
    pub(super) id: CallId,
    pub(super) metadata: Vec<(&'static str, String)>,
    pub(super) message: Vec<u8>,
    pub(super) ends: u64,
    /// The sidecar's response, once the call has reached it.
    pub(super) answer: Option<Vec<u8>>,
}

impl Sent {
    pub(super) fn metadata(&self, name: &str) -> Option<&str> {
        let found = self.metadata.iter().find(|(other, _)| *other == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// The shared state of a test.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) now: u64,
    pub(super) shared: BTreeMap<String, SharedValue>,
    versions: u32,
    /// This many of the next writes of shared data lose to another worker.
    pub(super) conflicts: u32,
    pub(super) sent: Vec<Sent>,
    /// The id of the last call.
    pub(super) calls: u32,
    /// Whether Envoy refuses calls.
    pub(super) unsendable: bool,
    /// Whether calls fail at once, with a cause that arrives later.
    pub(super) fails_at_once: bool,
    /// The workers that requested a wake.
    pub(super) wakes: Vec<usize>,
    /// Whether Envoy refuses wakes.
    pub(super) no_wakes: bool,
    /// The metrics, and what was added to each since the last look.
    metrics: Vec<(String, i64)>,
    pub(super) resumed: Vec<StreamId>,
    pub(super) replies: Vec<(StreamId, u32, Vec<Header>)>,
    /// Of each reply, the headers besides the filter's own, and the body.
    pub(super) added: Vec<Vec<NamedHeader>>,
    pub(super) bodies: Vec<String>,
    pub(super) headers: Vec<Header>,
    /// Headers of the service, on responses and on requests.
    pub(super) appended: Vec<NamedHeader>,
    pub(super) added_to_requests: Vec<(StreamId, NamedHeader)>,
    pub(super) filter_state: Vec<(StreamId, String, String)>,
    /// Headers of all requests, for replies.
    pub(super) request_headers: Vec<(&'static str, &'static str)>,
    pub(super) header_reads: u32,
    pub(super) logs: Vec<String>,
    /// Readings of the clock, and reads or writes of shared data.
    pub(super) clock_reads: u32,
    pub(super) shared_uses: u32,
    random: u64,
}

/// Envoy, for one worker.
#[derive(Debug)]
pub(super) struct FakeHost {
    world: Rc<RefCell<World>>,
    worker: usize,
}

impl Host for FakeHost {
    fn now(&self) -> Timestamp {
        let mut world = self.world.borrow_mut();
        world.clock_reads += 1;
        Timestamp::from_nanos(world.now)
    }

    fn random(&self) -> u64 {
        let mut world = self.world.borrow_mut();
        world.random = world.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        world.random.wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    fn shared(&self, key: &str) -> SharedValue {
        let mut world = self.world.borrow_mut();
        world.shared_uses += 1;
        world.shared.get(key).cloned().unwrap_or_default()
    }

    fn set_shared(&self, key: &str, value: &[u8], version: u32) -> Result<(), Conflict> {
        let mut world = self.world.borrow_mut();
        world.shared_uses += 1;
        world.versions += 1;
        let next = world.versions;
        if world.conflicts > 0 {
            // Another worker wrote the current value.
            world.conflicts -= 1;
            if let Some(value) = world.shared.get_mut(key) {
                value.version = next;
            }
            return Err(Conflict);
        }
        if world.shared.get(key).map_or(0, |value| value.version) != version {
            return Err(Conflict);
        }
        let value = SharedValue { bytes: Some(value.to_vec()), version: next };
        world.shared.insert(key.to_owned(), value);
        Ok(())
    }

    fn call(&self, call: &Call<'_>) -> Result<CallId, Unsent> {
        let mut world = self.world.borrow_mut();
        if world.unsendable {
            return Err(Unsent::Refused);
        }
        if world.fails_at_once {
            return Err(Unsent::FailedAtOnce);
        }
        assert!(call.timeout >= Duration::from_millis(1), "a call without a timeout");
        world.calls += 1;
        let id = CallId(world.calls);
        let ends = world.now + u64::try_from(call.timeout.as_nanos()).unwrap();
        let (metadata, message) = (call.metadata.to_vec(), call.message.to_vec());
        let worker = self.worker;
        world.sent.push(Sent { worker, id, metadata, message, ends, answer: None });
        Ok(id)
    }

    fn cancel(&self, call: CallId) {
        self.world.borrow_mut().sent.retain(|sent| (sent.worker, sent.id) != (self.worker, call));
    }

    fn wake(&self) -> bool {
        let mut world = self.world.borrow_mut();
        if !world.no_wakes {
            world.wakes.push(self.worker);
        }
        !world.no_wakes
    }

    fn resume(&self, stream: StreamId) {
        self.world.borrow_mut().resumed.push(stream);
    }

    fn reply(&self, stream: StreamId, reply: &Reply) {
        let mut world = self.world.borrow_mut();
        world.replies.push((stream, reply.status, reply.headers.clone()));
        world.added.push(reply.added.clone());
        world.bodies.push(reply.body.clone());
    }

    fn request_header<T>(
        &self,
        _stream: StreamId,
        name: &str,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Option<T> {
        let mut world = self.world.borrow_mut();
        world.header_reads += 1;
        let value = world.request_headers.iter().find(|(known, _)| *known == name)?.1;
        Some(read(value.as_bytes()))
    }

    fn add_response_headers(&self, headers: &[Header]) {
        self.world.borrow_mut().headers.extend_from_slice(headers);
    }

    fn append_response_headers(&self, headers: &[NamedHeader]) {
        self.world.borrow_mut().appended.extend_from_slice(headers);
    }

    fn append_request_headers(&self, stream: StreamId, headers: &[NamedHeader]) {
        let headers = headers.iter().map(|header| (stream, header.clone()));
        self.world.borrow_mut().added_to_requests.extend(headers);
    }

    fn set_filter_state(&self, stream: StreamId, name: &str, value: &str) {
        let state = (stream, name.to_owned(), value.to_owned());
        self.world.borrow_mut().filter_state.push(state);
    }

    fn define_metric(&self, _kind: MetricKind, name: &str) -> Option<u32> {
        let metrics = &mut self.world.borrow_mut().metrics;
        let known = metrics.iter().position(|(known, _)| known == name);
        if known.is_none() {
            metrics.push((name.to_owned(), 0));
        }
        u32::try_from(known.unwrap_or(metrics.len() - 1)).ok()
    }

    fn add_to_metric(&self, metric: u32, amount: i64) {
        self.world.borrow_mut().metrics[metric as usize].1 += amount;
    }

    fn log(&self, _level: LogLevel, message: &str) {
        self.world.borrow_mut().logs.push(message.to_owned());
    }
}

/// The timeout of requests in all tests.
pub(super) const TIMEOUT_MS: u64 = 20;
/// The longest wait: one tick for the timeout, six beyond it, and the rest of the current one.
pub(super) const WAIT_MS_MAX: u64 = 800;
pub(super) const MILLI: u64 = 1_000_000;

/// An Envoy.
pub(super) struct Envoy {
    world: Rc<RefCell<World>>,
    pub(super) workers: Vec<Worker<FakeHost>>,
    streams: u32,
}

/// A request's descriptors, each `k=<name>` with its hits.
pub(super) type Needs<'a> = &'a [(&'a str, u64)];

impl Envoy {
    /// With this many workers and slots, at 1,000 s. It denies undecided requests, so that requests
    /// that pass were allowed.
    pub(super) fn new(workers: usize, slots: u32) -> Envoy {
        Envoy::with(workers, |config| config.lease_slots = slots)
    }

    pub(super) fn with(workers: usize, change: impl Fn(&mut Config)) -> Envoy {
        let world = World { now: 1_000_000 * MILLI, ..World::default() };
        let world = Rc::new(RefCell::new(world));
        let worker = |worker| {
            let mut config = config();
            change(&mut config);
            Worker::new(FakeHost { world: Rc::clone(&world), worker }, config)
        };
        let workers = (0..workers).map(worker).collect();
        Envoy { workers, streams: 0, world }
    }

    pub(super) fn world(&self) -> Ref<'_, World> {
        self.world.borrow()
    }

    pub(super) fn world_mut(&self) -> RefMut<'_, World> {
        self.world.borrow_mut()
    }

    pub(super) fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.world().now)
    }

    /// The metrics that changed since the last look, without their prefix.
    pub(super) fn counted(&mut self) -> Vec<(String, i64)> {
        for worker in &mut self.workers {
            worker.stats.flush(&worker.host);
        }
        let mut counted = Vec::new();
        for (name, amount) in &mut self.world_mut().metrics {
            let name = name.trim_start_matches("tidegate.").to_owned();
            match std::mem::take(amount) {
                0 => {}
                amount => counted.push((name, amount)),
            }
        }
        counted.sort_unstable();
        counted
    }

    pub(super) fn key(&self, name: &str) -> LeaseKey {
        self.descriptors(0, &[(name, 1)]).iter().next().unwrap().key
    }

    /// A worker's record of a name, inserted if it has none.
    pub(super) fn record(&mut self, worker: usize, name: &str) -> &mut LocalRecord {
        let (key, now) = (self.key(name), self.now());
        let (index, evicted) = self.workers[worker].local.find_or_insert(key, now);
        if let Some(tally) = evicted.tally {
            self.workers[worker].keep_tally(tally);
        }
        self.workers[worker].local.get_mut(index).unwrap()
    }

    /// The state of a name in the slot that all workers share.
    pub(super) fn slot(&mut self, name: &str) -> DescriptorState {
        let (key, now) = (self.key(name), self.now());
        self.workers[0].change_slot(key, now, |slot| (*slot, Write::Keep)).unwrap()
    }

    pub(super) fn change_slot(&mut self, name: &str, change: impl Fn(&mut DescriptorState)) {
        let (key, now) = (self.key(name), self.now());
        self.workers[0]
            .change_slot(key, now, |slot| {
                change(slot);
                ((), Write::Store)
            })
            .unwrap();
    }

    pub(super) fn descriptors(&self, worker: usize, needs: Needs<'_>) -> Descriptors {
        let mut descriptors = Descriptors::default();
        for (name, hits) in needs {
            descriptors.append(&encoded(&["k", name]));
            descriptors.finish(self.workers[worker].process.seed, *hits);
        }
        descriptors
    }

    /// A request arrives at a worker.
    pub(super) fn request(&mut self, worker: usize, needs: Needs<'_>) -> (StreamId, HeadersStatus) {
        self.request_with_shadow(worker, needs, &[])
    }

    pub(super) fn request_with_shadow(
        &mut self,
        worker: usize,
        enforced: Needs<'_>,
        shadowed: Needs<'_>,
    ) -> (StreamId, HeadersStatus) {
        self.streams += 1;
        let stream = StreamId(self.streams);
        let (enforced, shadowed) =
            (self.descriptors(worker, enforced), self.descriptors(worker, shadowed));
        (stream, self.workers[worker].decide_request(stream, &enforced, &shadowed))
    }

    pub(super) fn pass_ms(&self, ms: u64) {
        self.world_mut().now += ms * MILLI;
    }

    pub(super) fn tick_all(&mut self) {
        for worker in &mut self.workers {
            worker.on_tick();
        }
        self.wake_all();
    }

    /// Runs the event loop until no worker requests another wake; returns the number of wakes.
    pub(super) fn wake_all(&mut self) -> usize {
        let mut rounds = 0;
        loop {
            let wakes = std::mem::take(&mut self.world_mut().wakes);
            if wakes.is_empty() {
                return rounds;
            }
            rounds += 1;
            for worker in wakes {
                self.workers[worker].on_wake();
            }
        }
    }
}

fn config() -> Config {
    Config {
        failure_mode: UndecidedMode::Deny,
        timeout: Duration::from_millis(TIMEOUT_MS),
        headers: HeaderStyle::Off,
        lease_slots: 64,
        ..Config::from_envoy(
            br#"{"domain": "d", "sidecar": {"cluster": "c"},
                "rate_limits": [{"actions": [{"remote_address": {}}]}]}"#,
        )
        .unwrap()
    }
}
