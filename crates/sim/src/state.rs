//! The state of a run apart from the real code in it: time, what is going to happen, processes, network,
//! and the books.
//!
//! Nothing here calls a worker or the sidecar, so it may be borrowed whenever they call back.

use crate::bounds::Bound;
use crate::ledger::{Asked, Key, Ledger};
use crate::limits::{Form, SECOND};
use crate::mutation::Mutation;
use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::shared::Shared;
use crate::tally::{Tally, Usage};
use crate::trace::Trace;
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::rc::Rc;
use tidegate_core::{Lease, LeaseReturn, Timestamp};

/// A call to the sidecar, on its way or answered.
#[derive(Debug)]
pub(crate) struct Call {
    /// The worker's number for it.
    pub(crate) id: u32,
    /// The worker, and which life of its process.
    pub(crate) worker: usize,
    /// Which life of the process.
    pub(crate) life: u32,
    /// The message.
    pub(crate) message: Vec<u8>,
    /// Its metadata.
    pub(crate) metadata: Vec<(&'static str, String)>,
    /// The counters and hits that it is about.
    pub(crate) about: Vec<(Key, u64)>,
    /// What it gives back, if it does.
    pub(crate) back: Option<LeaseReturn>,
}

/// What the sidecar decided, before anything happened to its answer.
#[derive(Debug)]
pub(crate) struct Decided {
    /// Whether the request may pass.
    pub(crate) allowed: bool,
    /// The sidecar's clock.
    pub(crate) at: u64,
    /// For each descriptor: whether a limit applied, and the lease.
    pub(crate) statuses: Vec<(bool, Option<Lease>)>,
}

/// An answer on its way.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    /// Of this call.
    pub(crate) call: Rc<Call>,
    /// The bytes, or a gRPC status.
    pub(crate) outcome: Result<Rc<[u8]>, u32>,
    /// What was decided.
    pub(crate) decided: Option<Rc<Decided>>,
}

/// What is going to happen.
#[derive(Debug)]
pub(crate) enum Event {
    /// A request comes.
    Arrive,
    /// A worker looks after its leases.
    Tick(usize, u32),
    /// Envoy's event loop comes round for this worker.
    Wake(usize, u32),
    /// A call reaches the sidecar.
    Reach(Rc<Call>),
    /// An answer reaches the worker.
    Answer(Reply),
    /// Time is up for a call.
    Deadline(Rc<Call>),
    /// By now the request must be decided.
    Overdue(usize, u32, u32),
    /// The response of a request, and its end.
    Respond(usize, u32, u32),
    /// The client has gone away.
    Hangup(usize, u32, u32),
    /// Traffic changes.
    Phase,
    /// Something breaks.
    Fault,
    /// The sidecar starts.
    SidecarUp,
    /// A process starts.
    ProxyUp(usize),
}

#[derive(Debug)]
struct Scheduled {
    at: u64,
    order: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// How a request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Its headers are at hand.
    Entering,
    /// It is paused.
    Waiting,
    /// It went on, or was answered.
    Over,
}

/// A request.
#[derive(Debug)]
pub(crate) struct Stream {
    /// The counters that it hits.
    pub(crate) needs: Vec<(Key, u64)>,
    /// How it stands.
    pub(crate) standing: Standing,
}

/// A worker, as the world sees it.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    /// Its requests.
    pub(crate) streams: BTreeMap<u32, Stream>,
    /// How many of them wait.
    pub(crate) waiting: usize,
    /// Its calls.
    pub(crate) calls: BTreeMap<u32, Rc<Call>>,
    /// Hits of the answer at hand.
    pub(crate) asked: Vec<Asked>,
    streams_used: u32,
    calls_used: u32,
}

impl Machine {
    /// A number for a request.
    pub(crate) fn next_stream(&mut self) -> u32 {
        self.streams_used += 1;
        self.streams_used
    }

    /// A number for a call.
    pub(crate) fn next_call(&mut self) -> u32 {
        self.calls_used += 1;
        self.calls_used
    }
}

/// All of it.
#[derive(Debug)]
pub(crate) struct State {
    /// True time.
    pub(crate) now: u64,
    queue: BinaryHeap<Reverse<Scheduled>>,
    order: u64,
    /// Chance.
    pub(crate) rng: Rng,
    /// The last events.
    pub(crate) trace: Trace,
    /// Shared data of each process.
    pub(crate) shared: Vec<Shared>,
    /// Which life of each process it is.
    pub(crate) lives: Vec<u32>,
    /// The workers.
    pub(crate) machines: Vec<Machine>,
    /// Who may spend what.
    pub(crate) ledger: Ledger,
    /// What each limit of each counter promises.
    pub(crate) bounds: Vec<Vec<Bound>>,
    /// What each rule is at the moment.
    pub(crate) forms: Vec<Form>,
    /// Until when the sidecar does nothing.
    pub(crate) frozen_until: u64,
    /// How far its clock was stepped.
    pub(crate) stepped: i64,
    /// Traffic in per cent of the scenario's.
    pub(crate) traffic: u64,
    /// Until when nobody comes; and from when on workers sleep too.
    pub(crate) idle: (u64, u64),
    /// Faults are over.
    pub(crate) calm: bool,
    /// How much of a limit is used then.
    pub(crate) usage: Option<Usage>,
    /// The numbers of all returns that were sent.
    pub(crate) returns_sent: BTreeSet<u64>,
    /// What each return has given back, by its number, however often it was sent and arrived.
    pub(crate) given_back: BTreeMap<u64, u64>,
    /// The deliberate fault.
    pub(crate) mutation: Option<Mutation>,
    /// Workers that run inside another's call.
    pub(crate) depth: u32,
    /// What happened.
    pub(crate) tally: Tally,
    /// What must not be.
    pub(crate) broken: Option<String>,
}

impl State {
    /// The beginning of a run.
    #[must_use]
    pub(crate) fn new(scenario: &Scenario, rng: Rng, mutation: Option<Mutation>) -> State {
        let machines = scenario.proxies * scenario.workers;
        State {
            now: 0,
            queue: BinaryHeap::new(),
            order: 0,
            rng,
            trace: Trace::default(),
            shared: (0..scenario.proxies).map(|_| Shared::default()).collect(),
            lives: vec![0; scenario.proxies],
            machines: (0..machines).map(|_| Machine::default()).collect(),
            ledger: Ledger::new(scenario.proxies, scenario.keys()),
            bounds: bounds(scenario),
            forms: vec![Form::Base; scenario.rules.len()],
            frozen_until: 0,
            stepped: 0,
            traffic: 100,
            idle: (0, 0),
            calm: false,
            usage: None,
            returns_sent: BTreeSet::new(),
            given_back: BTreeMap::new(),
            mutation,
            depth: 0,
            tally: Tally::default(),
            broken: None,
        }
    }

    /// Has `event` happen after `delay`.
    pub(crate) fn after(&mut self, delay: u64, event: Event) {
        self.order += 1;
        let at = self.now + delay;
        self.queue.push(Reverse(Scheduled { at, order: self.order, event }));
    }

    /// The next event; it is then.
    pub(crate) fn next(&mut self) -> Option<Event> {
        let Reverse(Scheduled { at, event, .. }) = self.queue.pop()?;
        self.now = at;
        Some(event)
    }

    /// What a process's clock says.
    #[must_use]
    pub(crate) fn clock(&self, scenario: &Scenario, proxy: usize) -> u64 {
        scenario.clocks[proxy].at(self.now)
    }

    /// What the sidecar's clock says.
    #[must_use]
    pub(crate) fn wall(&self, scenario: &Scenario) -> u64 {
        (scenario.wall + self.now).saturating_add_signed(self.stepped)
    }

    /// The same as the sidecar takes it.
    #[must_use]
    pub(crate) fn timestamp(&self, scenario: &Scenario) -> Timestamp {
        Timestamp::from_nanos(self.wall(scenario))
    }

    /// Notes an event.
    pub(crate) fn note(&mut self, what: &'static str, numbers: [u64; 4]) {
        self.trace.note(self.now, what, numbers);
    }

    /// Something is as it must not be. The first of it is kept.
    pub(crate) fn fail(&mut self, message: String) {
        if self.broken.is_none() {
            self.broken = Some(message);
        }
    }

    /// How long a message takes.
    pub(crate) fn delay(&mut self, scenario: &Scenario) -> u64 {
        let network = &scenario.network;
        if self.calm {
            return network.delay_min.min(SECOND / 2_000) + self.rng.wait(SECOND / 10_000);
        }
        let delay = network.delay_min + self.rng.wait(network.delay_mean);
        if self.rng.chance(network.slow) {
            return delay + self.rng.below(3 * scenario.timeout_ms * 1_000_000);
        }
        delay
    }

    /// Whether this happens, which no longer does when all is calm.
    pub(crate) fn mishap(&mut self, per_mille: u64) -> bool {
        !self.calm && self.rng.chance(per_mille)
    }

    /// A worker lets a request pass: from its leases, or from the answer at hand.
    pub(crate) fn admit(&mut self, scenario: &Scenario, worker: usize, needs: &[(Key, u64)]) {
        let proxy = worker / scenario.workers;
        let (clock, wall) = (self.clock(scenario, proxy), self.wall(scenario));
        for (key, hits) in needs {
            let asked = &mut self.machines[worker].asked;
            let spent = match self.ledger.admit(proxy, *key, *hits, asked, clock) {
                Ok(spent) => spent,
                Err(broken) => return self.fail(format!("worker {worker}: {broken}")),
            };
            for spent in spent {
                let at = spent.decided_at.unwrap_or(wall);
                if let Some(usage) = &mut self.usage {
                    usage.add(*key, at, spent.hits);
                }
                for bound in &mut self.bounds[*key as usize] {
                    if let Err(broken) = bound.admit(at, spent.hits) {
                        return self.fail(format!("counter {key}: {broken}"));
                    }
                }
            }
        }
        self.tally.admitted += 1;
    }
}

fn bounds(scenario: &Scenario) -> Vec<Vec<Bound>> {
    let mut bounds = Vec::with_capacity(scenario.keys());
    for rule in &scenario.rules {
        for _ in 0..rule.values {
            let limits = rule.limits.iter().filter(|_| scenario.is_bounded()).map(|limit| {
                let most = match scenario.faults.limits_change {
                    true => limit.max(limit.scaled(rule.change_per_cent)),
                    false => *limit,
                };
                Bound::of(&most, scenario.lease_ttl)
            });
            bounds.push(limits.collect());
        }
    }
    bounds
}
