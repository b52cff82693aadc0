//! A run: takes one event after the other, calls the real code, and keeps the ledger.
//!
//! A worker is single-threaded and never entered twice; but between two host calls of one worker,
//! another worker of its process may run. So the state is borrowed only for the length of a host
//! call.

mod costs;
mod faults;
mod machines;
mod requests;

use crate::host::SimHost;
use crate::ledger::Asked;
use crate::limits::SECOND;
use crate::mutation::Mutation;
use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::sidecar::{Handled, Sidecar};
use crate::state::{Call, Event, MachineEvent, Reply, State, StreamState};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use tidegate::config::Config;
use tidegate::host::{CallId, NoFacts, StreamId};
use tidegate::worker::call_error::CallError;
use tidegate::worker::{HeadersStatus, TICK, Worker};
use tidegate_core::Lease;
use tidegate_remote::simulation::Server;
use tidegate_store::Hashed;

/// The longest wait of a request beyond its timeout, until the sidecar is known to be silent or
/// late. The filter counts ticks, and the first one has begun when the request arrives.
const WAIT_BEYOND: u64 = 9 * TICK.as_nanos() as u64;

/// The most waiting requests of a worker, far above the traffic.
const WAITING_MAX: usize = 2_048;

/// The most pending calls of a worker.
const CALLS_MAX: usize = 2_048;

/// Workers do not tick in an idle time after this long.
const SLEEP_AFTER: u64 = 8 * SECOND;

/// gRPC status: unreachable.
const UNAVAILABLE: u32 = 14;

pub(crate) struct World {
    scenario: Rc<Scenario>,
    pub(crate) state: Rc<RefCell<State>>,
    workers: Vec<RefCell<Option<Worker<SimHost>>>>,
    sidecars: Vec<RefCell<Sidecar>>,
    /// The server of shared counters.
    server: RefCell<Server>,
    /// The counters of first-hit windows in it, each with its number.
    first_hits: RefCell<BTreeMap<Hashed, u32>>,
    config: String,
    own: Weak<World>,
}

impl World {
    /// A world that has just started.
    ///
    /// # Errors
    /// If the sidecar cannot be created or started.
    pub(crate) fn new(
        mut scenario: Scenario,
        mut rng: Rng,
        mutation: Option<Mutation>,
    ) -> anyhow::Result<Rc<World>> {
        let rng = Rng::new(rng.bits());
        if mutation.is_some_and(|mutation| !mutation.is_of_debits()) {
            scenario.metered = 0;
        }
        let scenario = Rc::new(scenario);
        let state = Rc::new(RefCell::new(State::new(&scenario, rng, mutation)));
        let sidecars = (0..scenario.sidecars()).map(|index| Sidecar::new(&scenario, index));
        let sidecars = sidecars.map(|sidecar| sidecar.map(RefCell::new));
        let sidecars = sidecars.collect::<anyhow::Result<_>>()?;
        let workers = (0..scenario.proxies * scenario.workers).map(|_| RefCell::new(None));
        let (workers, config) = (workers.collect(), scenario.config());
        let world = Rc::new_cyclic(|own| World {
            scenario,
            state,
            workers,
            sidecars,
            server: RefCell::default(),
            first_hits: RefCell::default(),
            config,
            own: Weak::clone(own),
        });
        if mutation == Some(Mutation::KeysExpireEarly) {
            world.server.borrow_mut().forgets_early_secs = 12;
        }
        world.set_limits(&world.state.borrow())?;
        world.find_first_hits()?;
        for sidecar in 0..world.sidecars.len() {
            world.start_sidecar(sidecar)?;
        }
        for proxy in 0..world.scenario.proxies {
            world.start_proxy(proxy)?;
        }
        let mut state = world.state.borrow_mut();
        state.after(0, Event::Arrive);
        state.after(0, Event::Traffic);
        if world.scenario.faults.every > 0 {
            let first = state.rng.wait(world.scenario.faults.every);
            state.after(first, Event::Fault);
        }
        drop(state);
        Ok(world)
    }

    /// Handles one event.
    ///
    /// # Errors
    /// If the simulator itself cannot continue.
    pub(crate) fn step(&self) -> anyhow::Result<()> {
        let event = self.state.borrow_mut().next();
        self.state.borrow_mut().tally.steps += 1;
        match event {
            None => anyhow::bail!("nothing is going to happen any more"),
            Some(Event::Arrive) => self.arrive(),
            Some(Event::Tick(worker, life)) => self.tick(worker, life),
            Some(Event::Wake(worker, life)) => self.wake(worker, life),
            Some(Event::Reach(call)) => self.reach(&call),
            Some(Event::Answer(reply)) => self.answer(&reply),
            Some(Event::Deadline(call)) => self.deadline(&call),
            Some(Event::Overdue(worker, life, stream)) => self.overdue(worker, life, stream),
            Some(Event::Respond(worker, life, stream)) => self.gone(worker, life, stream, true),
            Some(Event::Hangup(worker, life, stream)) => self.gone(worker, life, stream, false),
            Some(Event::Traffic) => self.change_traffic(),
            Some(Event::Fault) => self.fault()?,
            Some(Event::SidecarUp(sidecar)) => self.start_sidecar(sidecar)?,
            Some(Event::Machine(sidecar, life, event)) => self.machine(sidecar, life, event),
            Some(Event::ProxyUp(proxy)) => self.start_proxy(proxy)?,
        }
        Ok(())
    }

    fn life_of(&self, worker: usize) -> u32 {
        self.state.borrow().lives[worker / self.scenario.workers]
    }

    fn start_proxy(&self, proxy: usize) -> anyhow::Result<()> {
        for index in 0..self.scenario.workers {
            let worker = proxy * self.scenario.workers + index;
            let mut config = Config::from_envoy(self.config.as_bytes())?;
            config.lease_slots = self.scenario.slots;
            let own = Weak::clone(&self.own);
            let host = SimHost {
                scenario: Rc::clone(&self.scenario),
                state: Rc::clone(&self.state),
                worker,
                interleave: Box::new(move || {
                    if let Some(world) = own.upgrade() {
                        world.interleave(worker);
                    }
                }),
            };
            *self.workers[worker].borrow_mut() = Some(Worker::new(host, config));
            let mut state = self.state.borrow_mut();
            let (life, delay) = (state.lives[proxy], state.rng.below(TICK.as_nanos() as u64));
            state.after(delay, Event::Tick(worker, life));
        }
        Ok(())
    }

    fn crash_proxy(&self, proxy: usize) {
        if self.workers[proxy * self.scenario.workers].borrow().is_none() {
            // It is down already.
            return;
        }
        let mut state = self.state.borrow_mut();
        state.lives[proxy] += 1;
        state.shared[proxy] = Default::default();
        state.ledger.forget(proxy);
        for worker in proxy * self.scenario.workers..(proxy + 1) * self.scenario.workers {
            state.worker_states[worker].streams.clear();
            state.worker_states[worker].calls.clear();
            state.worker_states[worker].waiting = 0;
            state.worker_states[worker].asked.clear();
            state.worker_states[worker].will_wake = false;
            *self.workers[worker].borrow_mut() = None;
        }
        let down = state.rng.between(SECOND / 100, SECOND);
        state.after(down, Event::ProxyUp(proxy));
    }

    fn start_sidecar(&self, index: usize) -> anyhow::Result<()> {
        let mut sidecar = self.sidecars[index].borrow_mut();
        if sidecar.is_up() {
            return Ok(());
        }
        let mut state = self.state.borrow_mut();
        state.note("sidecar starts (number)", [index as u64, 0, 0, 0]);
        if self.scenario.machines.is_none() {
            return sidecar.start(state.mutation);
        }
        sidecar.start_sharing(&self.scenario, &mut state)?;
        let life = state.sidecar_lives[index];
        state.after(SECOND / 1_000, Event::Machine(index, life, MachineEvent::Connect));
        state.after(SECOND / 10, Event::Machine(index, life, MachineEvent::Tend));
        Ok(())
    }

    fn set_limits(&self, state: &State) -> anyhow::Result<()> {
        self.sidecars
            .iter()
            .try_for_each(|sidecar| sidecar.borrow().set_limits(&self.scenario, state))
    }

    /// The sidecar of a worker.
    fn sidecar_of(&self, worker: usize) -> usize {
        worker / self.scenario.workers % self.sidecars.len()
    }

    /// The worker has returned from a request's headers.
    fn entered(&self, worker: usize, stream: u32, status: HeadersStatus) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let life = state.lives[worker / self.scenario.workers];
        let Some(found) = state.worker_states[worker].streams.get_mut(&stream) else { return };
        match (status, found.state) {
            (HeadersStatus::Continue, StreamState::Entering) => {
                (found.state, found.passed) = (StreamState::Over, true);
                let needs = found.needs.clone();
                state.tally.local += 1;
                state.note("passed (worker, request)", [worker as u64, stream.into(), 0, 0]);
                state.admit(&self.scenario, worker, &needs);
                state.respond(&self.scenario, worker, stream);
            }
            (HeadersStatus::Continue, _) => {
                state.fail(format!("worker {worker}: request {stream} passes, but was answered"));
            }
            (HeadersStatus::Pause, StreamState::Entering) => {
                found.state = StreamState::Waiting;
                state.worker_states[worker].waiting += 1;
                let waiting = state.worker_states[worker].waiting;
                if waiting > WAITING_MAX {
                    state.fail(format!("worker {worker}: {waiting} requests wait"));
                }
                let timeout = self.scenario.timeout_ms * 1_000_000;
                state.after(timeout + WAIT_BEYOND, Event::Overdue(worker, life, stream));
                if state.rng.chance(30) {
                    let patience = state.rng.below(timeout);
                    state.after(patience, Event::Hangup(worker, life, stream));
                }
            }
            (HeadersStatus::Pause, _) => {}
        }
        let calls = state.worker_states[worker].calls.len();
        if calls > CALLS_MAX {
            state.fail(format!("worker {worker}: {calls} calls under way"));
        }
    }

    /// Lets another worker of the same process run during a host call of `worker`.
    fn interleave(&self, worker: usize) {
        let mut state = self.state.borrow_mut();
        let first = worker / self.scenario.workers * self.scenario.workers;
        let other = first + state.rng.below(self.scenario.workers as u64) as usize;
        let requests = state.rng.between(1, 3);
        let tick = state.rng.chance(200);
        // Workers may not tick then, and a request that came would wait for the end of the idle time.
        let is_idle = state.now < state.idle.1;
        state.depth += 1;
        drop(state);
        if other != worker {
            if tick && let Ok(mut running) = self.workers[other].try_borrow_mut() {
                if let Some(running) = running.as_mut() {
                    running.on_tick();
                }
            } else if !is_idle {
                for _ in 0..requests {
                    self.request(other);
                }
            }
        }
        self.state.borrow_mut().depth -= 1;
    }

    fn tick(&self, worker: usize, life: u32) {
        if life != self.life_of(worker) {
            return;
        }
        let mut state = self.state.borrow_mut();
        let tick = TICK.as_nanos() as u64;
        let (from, until) = state.idle;
        if state.now > from + SLEEP_AFTER && state.now < until {
            let later = until - state.now + state.rng.below(tick);
            state.after(later, Event::Tick(worker, life));
            return;
        }
        state.after(tick, Event::Tick(worker, life));
        drop(state);
        if let Some(running) = self.workers[worker].borrow_mut().as_mut() {
            running.on_tick();
        }
    }

    fn wake(&self, worker: usize, life: u32) {
        self.state.borrow_mut().tally.steps -= 1;
        if life != self.life_of(worker) {
            return;
        }
        self.state.borrow_mut().worker_states[worker].will_wake = false;
        if let Some(running) = self.workers[worker].borrow_mut().as_mut() {
            running.on_wake();
        }
        self.response_is_handled(worker);
    }

    /// What the response granted is spent, unless a wake goes on with it.
    fn response_is_handled(&self, worker: usize) {
        let state = &mut self.state.borrow_mut().worker_states[worker];
        if !state.will_wake {
            state.asked.clear();
        }
    }

    fn reach(&self, call: &Rc<Call>) {
        let index = self.sidecar_of(call.worker);
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let frozen = state.frozen_until[index].saturating_sub(state.now);
        let sidecar = self.sidecars[index].borrow();
        if frozen > 0 && sidecar.is_up() {
            return state.after(frozen, Event::Reach(Rc::clone(call)));
        }
        if sidecar.machine.is_some() {
            drop(sidecar);
            self.set_local(state, index);
            self.sidecars[index].borrow_mut().begin(&self.scenario, state, call);
            return self.drive(state, index);
        }
        let handled = sidecar.handle(&self.scenario, state, call);
        self.reply(state, call, handled.unwrap_or((Err(UNAVAILABLE), None)));
    }

    /// Sends the answer to a call.
    fn reply(&self, state: &mut State, call: &Rc<Call>, (outcome, decided): Handled) {
        let (outcome, decided) = (outcome.map(Rc::from), decided.map(Rc::new));
        state.note(
            "sidecar (worker, call, status, tokens)",
            [
                call.worker as u64,
                call.id.into(),
                outcome.as_ref().err().copied().unwrap_or(0).into(),
                decided.as_ref().map_or(0, |decided| {
                    let tokens = decided.statuses.iter().filter_map(|(_, lease)| *lease);
                    tokens.map(|lease| u64::from(lease.tokens)).sum()
                }),
            ],
        );
        let reply = Reply { call: Rc::clone(call), outcome, decided };
        let of = [call.worker as u64, call.id.into(), 0, 0];
        state.transmit(&self.scenario, ("answer lost (worker, call)", of), || {
            Event::Answer(reply.clone())
        });
    }

    fn answer(&self, reply: &Reply) {
        let (worker, id) = (reply.call.worker, reply.call.id);
        if reply.call.life != self.life_of(worker) {
            return;
        }
        let mut state = self.state.borrow_mut();
        let proxy = worker / self.scenario.workers;
        let live = state.worker_states[worker].calls.remove(&id).is_some();
        let allowed = reply.decided.as_ref().map_or(2, |decided| u64::from(decided.allowed));
        let of = [worker as u64, id.into(), u64::from(live), allowed];
        state.note("answer (worker, call, awaited, allowed)", of);
        if live && let Some(decided) = &reply.decided {
            let clock = state.clock(&self.scenario, proxy);
            for ((key, hits), (limited, lease)) in reply.call.about.iter().zip(&decided.statuses) {
                let is_ask = reply.call.back.is_none() && reply.call.debit.is_none();
                if decided.allowed && is_ask {
                    let (key, hits, limited) = (*key, *hits, *limited);
                    let (decided_at, lag) = (decided.at, decided.lag);
                    let asked = Asked { key, hits, decided_at, lag, limited };
                    state.worker_states[worker].asked.push(asked);
                }
                if let Some(lease) = lease.filter(|lease| lease.tokens > 0) {
                    let lasts = lease.valid_until.as_nanos().saturating_sub(clock);
                    let tokens = if lease.tokens == Lease::UNLIMITED { 0 } else { lease.tokens };
                    let of = [(*key).into(), tokens.into(), lasts, lease.id];
                    state.note("lease (counter, tokens, lasts, id)", of);
                    state.ledger.receive(proxy, *key, (&lease, decided.lag), clock);
                }
            }
        }
        drop(state);
        if let Some(running) = self.workers[worker].borrow_mut().as_mut() {
            let outcome = reply.outcome.as_ref().map(|bytes| &**bytes);
            running.on_answer(
                CallId(id),
                outcome.map_err(|status| CallError::from_grpc_close(*status, b"")),
            );
        }
        self.response_is_handled(worker);
    }

    fn deadline(&self, call: &Rc<Call>) {
        if call.life != self.life_of(call.worker) {
            return;
        }
        let mut state = self.state.borrow_mut();
        if state.worker_states[call.worker].calls.remove(&call.id).is_none() {
            // It has ended, so this does not count as an event.
            state.tally.steps -= 1;
            return;
        }
        state.note("time is up (worker, call)", [call.worker as u64, call.id.into(), 0, 0]);
        drop(state);
        if let Some(running) = self.workers[call.worker].borrow_mut().as_mut() {
            running.on_answer(CallId(call.id), Err(CallError::Late));
        }
    }

    fn overdue(&self, worker: usize, life: u32, stream: u32) {
        let current = self.life_of(worker);
        let mut state = self.state.borrow_mut();
        state.tally.steps -= 1;
        let found = state.worker_states[worker].streams.get(&stream);
        if life == current && found.is_some_and(|found| found.state == StreamState::Waiting) {
            state.fail(format!("worker {worker}: request {stream} waits too long"));
        }
    }

    /// A request ends: after its response, or because its client left while it waited.
    fn gone(&self, worker: usize, life: u32, stream: u32, responded: bool) {
        if life != self.life_of(worker) {
            return;
        }
        let mut state = self.state.borrow_mut();
        let worker_state = &mut state.worker_states[worker];
        let Some(found) = worker_state.streams.get(&stream) else { return };
        if !responded && found.state != StreamState::Waiting {
            return;
        }
        if found.state == StreamState::Waiting {
            worker_state.waiting -= 1;
        }
        state.note("gone (worker, request)", [worker as u64, stream.into(), 0, 0]);
        drop(state);
        let mut running = self.workers[worker].borrow_mut();
        let Some(running) = running.as_mut() else { return };
        if responded {
            running.on_response(StreamId(stream), &NoFacts);
        }
        // Removed first: the end of a waiting request must not admit it.
        let ended = self.state.borrow_mut().worker_states[worker].streams.remove(&stream);
        let Some(ended) = ended else { return };
        let cost = self.owe(worker, &ended);
        running.on_gone(StreamId(stream), &cost);
    }

    /// Whether the measurement is complete, or there is none.
    #[must_use]
    pub(crate) fn is_measured(&self) -> bool {
        let state = self.state.borrow();
        let wait = self.scenario.timeout_ms * 1_000_000 + WAIT_BEYOND;
        state.usage.is_none_or(|usage| state.wall(&self.scenario) > usage.until + wait)
    }
}
