//! The state of a run outside of the real code: time, future events, processes, network, and
//! ledger.
//!
//! Nothing here calls a worker or the sidecar, so it can be borrowed whenever they call back.

use crate::bounds::{Admitted, Bound};
use crate::ledger::{Asked, Key, Ledger};
use crate::limits::{Form, SECOND};
use crate::meters::{METERS, Meters};
use crate::mutation::Mutation;
use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::shared::Shared;
use crate::tally::{Tally, Usage};
use crate::trace::Trace;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use tidegate_core::{DebitRequest, Lease, LeaseReturn, Timestamp};
use tidegate_remote::simulation::{Answer, Command};

/// A call to the sidecar, pending or answered.
#[derive(Debug)]
pub(crate) struct Call {
    /// The worker's id of it.
    pub(crate) id: u32,
    /// The worker that sent it.
    pub(crate) worker: usize,
    /// The life of its process: the number of crashes before it.
    pub(crate) life: u32,
    pub(crate) message: Vec<u8>,
    pub(crate) metadata: Vec<(&'static str, String)>,
    /// Its counters and hits.
    pub(crate) about: Vec<(Key, u64)>,
    /// The return that it makes, if any.
    pub(crate) back: Option<LeaseReturn>,
    /// The debit that it makes, if any.
    pub(crate) debit: Option<DebitRequest>,
}

/// The sidecar's decision, before the network changes the response.
#[derive(Debug)]
pub(crate) struct Decided {
    /// Whether the request may pass.
    pub(crate) allowed: bool,
    /// By the time of the counters, as the sidecar knows it.
    pub(crate) at: u64,
    /// How far that is behind.
    pub(crate) lag: u64,
    /// For each descriptor: whether a limit applied, and the lease.
    pub(crate) statuses: Vec<(bool, Option<Lease>)>,
}

/// A response on the network.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) call: Rc<Call>,
    /// The bytes, or a gRPC status.
    pub(crate) outcome: Result<Rc<[u8]>, u32>,
    pub(crate) decided: Option<Rc<Decided>>,
}

#[derive(Debug)]
pub(crate) enum Event {
    Arrive,
    Tick(usize, u32),
    /// A worker's wake is due.
    Wake(usize, u32),
    Reach(Rc<Call>),
    Answer(Reply),
    Deadline(Rc<Call>),
    /// The request must be decided by now.
    Overdue(usize, u32, u32),
    /// The response of a request, and its end.
    Respond(usize, u32, u32),
    Hangup(usize, u32, u32),
    Traffic,
    Fault,
    SidecarUp(usize),
    ProxyUp(usize),
    /// Of a sidecar in one of its lives, with shared counters.
    Machine(usize, u32, MachineEvent),
}

/// Between a sidecar and the server of the shared counters.
#[derive(Debug)]
pub(crate) enum MachineEvent {
    /// A command reaches the server.
    Command(Rc<Command>),
    /// Its answer arrives.
    Landing(Rc<Command>, Answer),
    /// It should have been answered.
    Deadline(Rc<Command>),
    Connect,
    /// Unused tokens are looked for.
    Tend,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamState {
    /// Its headers callback runs.
    Entering,
    Waiting,
    /// It was resumed or answered.
    Over,
}

#[derive(Debug)]
pub(crate) struct SimStream {
    /// Its counters and hits.
    pub(crate) needs: Vec<(Key, u64)>,
    pub(crate) state: StreamState,
    /// Whether it reached the upstream.
    pub(crate) passed: bool,
    /// The limits that count its cost.
    pub(crate) meters: Vec<usize>,
    pub(crate) cost: u64,
}

/// A worker, as the world sees it.
#[derive(Debug, Default)]
pub(crate) struct SimWorker {
    pub(crate) streams: BTreeMap<u32, SimStream>,
    pub(crate) waiting: usize,
    pub(crate) calls: BTreeMap<u32, Rc<Call>>,
    /// Hits granted by the response being handled, and by those before it that have left requests to a wake.
    pub(crate) asked: Vec<Asked>,
    /// Whether a wake is due.
    pub(crate) will_wake: bool,
    streams_used: u32,
    calls_used: u32,
}

impl SimWorker {
    /// The id of the next request.
    pub(crate) fn next_stream(&mut self) -> u32 {
        self.streams_used += 1;
        self.streams_used
    }

    /// The id of the next call.
    pub(crate) fn next_call(&mut self) -> u32 {
        self.calls_used += 1;
        self.calls_used
    }
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) now: u64,
    /// Events by their time, and by their order within it.
    queue: BTreeMap<(u64, u64), Event>,
    order: u64,
    pub(crate) rng: Rng,
    pub(crate) trace: Trace,
    pub(crate) shared: Vec<Shared>,
    /// The current life of each process.
    pub(crate) lives: Vec<u32>,
    pub(crate) worker_states: Vec<SimWorker>,
    /// The accounts for tokens.
    pub(crate) ledger: Ledger,
    /// The accounts for costs at the end of streams.
    pub(crate) meters: Meters,
    /// The bounds of each limit of each counter.
    pub(crate) bounds: Vec<Vec<Bound>>,
    /// The current form of each rule.
    pub(crate) forms: Vec<Form>,
    /// Whether sidecars share their counters.
    pub(crate) is_sharing: bool,
    /// What failovers have made room for, of each limit of each counter.
    pub(crate) extras: Vec<Vec<u64>>,
    /// Each sidecar is frozen until then.
    pub(crate) frozen_until: Vec<u64>,
    /// The current life of each sidecar.
    pub(crate) sidecar_lives: Vec<u32>,
    /// Each sidecar cannot reach the shared counters until then.
    pub(crate) parted_until: Vec<u64>,
    /// The server of the shared counters stands still until then.
    pub(crate) server_frozen_until: u64,
    /// The sum of all steps of each sidecar's clock.
    pub(crate) stepped: Vec<i64>,
    /// Traffic in per cent of the scenario's.
    pub(crate) traffic: u64,
    /// Start and end of an idle time without requests.
    pub(crate) idle: (u64, u64),
    /// Faults are over.
    pub(crate) calm: bool,
    /// No more requests arrive.
    pub(crate) closed: bool,
    /// The usage of a limit during that time.
    pub(crate) usage: Option<Usage>,
    /// The numbers of all returns sent.
    pub(crate) returns_sent: BTreeSet<u64>,
    /// How often each lease was granted, by its id.
    pub(crate) grants: BTreeMap<u64, u64>,
    /// The tokens that each return has returned, by its number, over all its arrivals.
    pub(crate) given_back: BTreeMap<u64, u64>,
    pub(crate) mutation: Option<Mutation>,
    /// Nesting of workers in other workers' host calls.
    pub(crate) depth: u32,
    pub(crate) tally: Tally,
    /// The first violation.
    pub(crate) broken: Option<String>,
}

impl State {
    #[must_use]
    pub(crate) fn new(scenario: &Scenario, rng: Rng, mutation: Option<Mutation>) -> State {
        let count = scenario.proxies * scenario.workers;
        State {
            rng,
            shared: (0..scenario.proxies).map(|_| Shared::default()).collect(),
            lives: vec![0; scenario.proxies],
            worker_states: (0..count).map(|_| SimWorker::default()).collect(),
            ledger: Ledger::new(scenario.proxies, scenario.keys()),
            bounds: bounds(scenario),
            is_sharing: scenario.machines.is_some(),
            extras: bounds(scenario).iter().map(|bounds| vec![0; bounds.len()]).collect(),
            frozen_until: vec![0; scenario.sidecars()],
            sidecar_lives: vec![0; scenario.sidecars()],
            parted_until: vec![0; scenario.sidecars()],
            stepped: vec![0; scenario.sidecars()],
            forms: vec![Form::Base; scenario.rules.len()],
            traffic: 100,
            mutation,
            ..State::default()
        }
    }

    /// Schedules `event` after `delay`.
    pub(crate) fn after(&mut self, delay: u64, event: Event) {
        self.order += 1;
        self.queue.insert((self.now + delay, self.order), event);
    }

    /// Advances to the next event.
    pub(crate) fn next(&mut self) -> Option<Event> {
        let ((at, _), event) = self.queue.pop_first()?;
        self.now = at;
        Some(event)
    }

    /// The clock of a process.
    #[must_use]
    pub(crate) fn clock(&self, scenario: &Scenario, proxy: usize) -> u64 {
        scenario.clocks[proxy].at(self.now)
    }

    /// The clock that counts: of the one sidecar, or of the server of the shared counters.
    #[must_use]
    pub(crate) fn wall(&self, scenario: &Scenario) -> u64 {
        match scenario.machines {
            None => (scenario.wall + self.now).saturating_add_signed(self.stepped[0]),
            Some(_) => scenario.wall + self.now,
        }
    }

    /// A sidecar's own clock.
    #[must_use]
    pub(crate) fn timestamp(&self, scenario: &Scenario, sidecar: usize) -> Timestamp {
        Timestamp::from_nanos(match &scenario.machines {
            None => self.wall(scenario),
            Some(machines) => (scenario.wall + self.now)
                .saturating_add_signed(machines.skews[sidecar] + self.stepped[sidecar]),
        })
    }

    pub(crate) fn note(&mut self, what: &'static str, numbers: [u64; 4]) {
        self.trace.note(self.now, what, numbers);
    }

    /// Records a violation; the first one is kept.
    pub(crate) fn fail(&mut self, message: String) {
        if self.broken.is_none() {
            self.broken = Some(message);
        }
    }

    /// The delay of a message.
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

    /// Sends a message over the network, which may lose, delay or duplicate it. `lost` is the note of a loss.
    pub(crate) fn transmit(
        &mut self,
        scenario: &Scenario,
        (lost, numbers): (&'static str, [u64; 4]),
        message: impl Fn() -> Event,
    ) {
        if self.mishap(scenario.network.lost) {
            return self.note(lost, numbers);
        }
        let copies = if self.mishap(scenario.network.twice) { 2 } else { 1 };
        for _ in 0..copies {
            let delay = self.delay(scenario);
            self.after(delay, message());
        }
    }

    /// The response to a request follows some time after the request was resumed or answered.
    pub(crate) fn respond(&mut self, scenario: &Scenario, worker: usize, stream: u32) {
        let life = self.lives[worker / scenario.workers];
        let delay = self.rng.wait(SECOND / 100);
        self.after(delay, Event::Respond(worker, life, stream));
    }

    /// True with this probability; never in the calm at the end.
    pub(crate) fn mishap(&mut self, per_mille: u64) -> bool {
        !self.calm && self.rng.chance(per_mille)
    }

    /// A worker admits a request, by its leases or by the response being handled.
    pub(crate) fn admit(&mut self, scenario: &Scenario, worker: usize, needs: &[(Key, u64)]) {
        let proxy = worker / scenario.workers;
        let (clock, wall) = (self.clock(scenario, proxy), self.wall(scenario));
        for (key, hits) in needs {
            let asked = &mut self.worker_states[worker].asked;
            let spent = match self.ledger.admit(proxy, *key, *hits, asked, clock) {
                Ok(spent) => spent,
                Err(broken) => return self.fail(format!("worker {worker}: {broken}")),
            };
            for spent in spent {
                let from = spent.decided_at.unwrap_or(wall.saturating_sub(spent.lag));
                if let Some(usage) = &mut self.usage {
                    usage.add(*key, from, spent.hits);
                }
                let (hits, to) = (spent.hits, from + spent.lag);
                let extras = &self.extras[*key as usize];
                for (bound, extra) in self.bounds[*key as usize].iter_mut().zip(extras) {
                    let admitted = Admitted { hits, from, to, extra: *extra };
                    if let Err(broken) = bound.admit(admitted) {
                        return self.fail(format!("counter {key}: {broken}"));
                    }
                }
            }
        }
        self.tally.admitted += 1;
    }
}

/// The value of a call's metadata.
pub(crate) fn value_of<'a>(metadata: &'a [(&'static str, String)], name: &str) -> Option<&'a [u8]> {
    metadata.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_bytes())
}

fn bounds(scenario: &Scenario) -> Vec<Vec<Bound>> {
    let mut bounds = Vec::with_capacity(scenario.keys());
    for rule in &scenario.rules {
        for _ in 0..rule.values {
            let limits = rule.limits.iter().filter(|_| scenario.is_bounded()).map(|limit| {
                let other = match scenario.faults.limits_change {
                    true => limit.scaled(rule.change_per_cent),
                    false => *limit,
                };
                Bound::of(limit, &other, scenario.held_for())
            });
            bounds.push(limits.collect());
        }
    }
    bounds.extend((0..METERS).map(|_| Vec::new()));
    bounds
}
