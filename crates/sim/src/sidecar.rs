//! The sidecar: the real engine on a real store, with checks of its answers.

use crate::limits;
use crate::local::Local;
use crate::machine::Machine;
use crate::meters::{self, Change, Costs};
use crate::mutation::Mutation;
use crate::scenario::Scenario;
use crate::state::{Call, Decided, State, value_of};
use anyhow::Context;
use prost::Message;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tempfile::TempDir;
use tidegate_authority::{Authority, Modes, Shared, Undecided, open_standalone, open_store, wait};
use tidegate_core::{
    Answer, DebitRequest, Descriptor, Direction, Entry, Hits, Lease, LeaseRequest, LeaseReturn,
    Nanos, Request, Timestamp, Verdict,
};
use tidegate_limits::{Rules, SameDomain, load};
use tidegate_remote::simulation::Engine;
use tidegate_wire::{lease_request_from, request_from_wire, response_to_wire, rls};

/// gRPC status: no room for a counter.
const EXHAUSTED: u32 = 8;

/// The bytes of a response or a gRPC status, and the decision.
pub(crate) type Handled = (Result<Vec<u8>, u32>, Option<Decided>);

/// Room for the counters of a scenario.
const COUNTERS: u64 = 16_384;

/// The seed of shared counters.
pub(crate) const SHARED_SEED: u64 = 99;

pub(crate) struct Sidecar {
    index: usize,
    authority: Option<Arc<Authority>>,
    /// If its counters are shared.
    pub(crate) machine: Option<Machine>,
    local: Option<Arc<Local>>,
    /// The time of the shared counters that it knew when it crashed, and the local time.
    known: Option<(u64, u64)>,
    dir: TempDir,
    data: PathBuf,
    lease_ttl: u64,
    starts: u32,
}

impl Sidecar {
    /// A stopped sidecar with a directory for its files.
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub(crate) fn new(scenario: &Scenario, index: usize) -> anyhow::Result<Sidecar> {
        // Counters in memory: nothing here is about disks.
        let memory = Path::new("/dev/shm");
        let dir = match memory.is_dir() {
            true => tempfile::tempdir_in(memory),
            false => tempfile::tempdir(),
        };
        let dir = dir.context("a directory for the counters")?;
        let data = dir.path().join("data");
        let lease_ttl = scenario.lease_ttl;
        let (machine, local, known, starts) = (None, None, None, 0);
        let authority = None;
        Ok(Sidecar { index, authority, machine, local, known, dir, data, lease_ttl, starts })
    }

    #[must_use]
    pub(crate) fn is_up(&self) -> bool {
        self.authority.is_some()
    }

    /// Stops without any cleanup.
    pub(crate) fn crash(&mut self) {
        if let Some(machine) = self.machine.take()
            && let Some(now) = machine.engine.now()
        {
            self.known = Some((now.as_nanos(), machine.engine.local()));
        }
        (self.authority, self.local) = (None, None);
    }

    /// Starts on its existing files.
    ///
    /// # Errors
    /// If it cannot start.
    pub(crate) fn start(&mut self, mutation: Option<Mutation>) -> anyhow::Result<()> {
        if mutation == Some(Mutation::CountsAreForgotten) {
            self.starts += 1;
            self.data = self.dir.path().join(format!("data{}", self.starts));
        }
        let (limits, ttl) = (self.limits(), Nanos::new(self.lease_ttl));
        self.authority = Some(Arc::new(open_standalone(COUNTERS, &self.data, &limits, ttl)?));
        Ok(())
    }

    /// Starts on its existing files, with counters that are in a server.
    ///
    /// # Errors
    /// If it cannot start.
    pub(crate) fn start_sharing(
        &mut self,
        scenario: &Scenario,
        state: &mut State,
    ) -> anyhow::Result<()> {
        let Some(machines) = &scenario.machines else { return Ok(()) };
        let timeout = Duration::from_nanos(machines.timeout);
        let engine = Engine::new(SHARED_SEED, state.rng.bits(), timeout);
        let monotonic = machines.clocks[self.index].at(state.now);
        engine.set_local(monotonic);
        // Of its data directory, or nothing, as after a start of the machine.
        let is_known = state.rng.chance(500);
        if let Some((time, at)) = self.known.filter(|_| is_known) {
            let passed = monotonic - at;
            engine.observe((time + passed - passed / 1_000) / 1_000);
        }
        let machine = Machine::new(engine);
        let clock = machine.engine.clone();
        let own_clock = state.mutation == Some(Mutation::OwnClock);
        let skew = machines.skews[self.index] + state.stepped[self.index];
        let (wall, of) = (scenario.wall, machines.clocks[self.index]);
        let shared = Shared {
            counters: machine.engine.clone(),
            clock: Arc::new(move || match own_clock {
                false => clock.now(),
                true => clock.now().map(|_| {
                    let now = wall + clock.local() - of.origin;
                    Timestamp::from_nanos(now.saturating_add_signed(skew))
                }),
            }),
            spawn: machine.spawn(),
            sidecar: self.index as u64 + 1,
            failure: machines.failure,
        };
        let store = open_store(COUNTERS, &self.data)?;
        let local = Arc::new(Local::new(store, self.index as u64, state.mutation));
        let modes = Modes { lease_ttl: Some(Nanos::new(self.lease_ttl)), ..Modes::default() };
        let rules = self.rules()?;
        let authority = Authority::with_shared(local.clone(), shared, rules, modes, Arc::new(()))?;
        self.authority = Some(Arc::new(authority));
        (self.machine, self.local) = (Some(machine), Some(local));
        Ok(())
    }

    /// Begins with a call that is answered when the shared counters are.
    pub(crate) fn begin(&mut self, scenario: &Scenario, state: &mut State, call: &Rc<Call>) {
        let Some((authority, machine)) = self.authority.clone().zip(self.machine.as_mut()) else {
            return;
        };
        let Some((request, ask)) = parse(state, call) else { return };
        let now = state.timestamp(scenario, self.index);
        let call = Rc::clone(call);
        let about = Rc::clone(&call);
        let answering = Box::pin(async move {
            match (&call.back, &ask) {
                (Some(back), _) => authority.return_tokens(&request, back, now).await,
                (None, Some(ask)) => authority.decide_leasing(&request, ask, now).await,
                (None, None) => authority.decide(&request, now).await,
            }
        });
        machine.answer(&about, answering);
    }

    /// The answer to a call that was begun.
    pub(crate) fn finish(
        &self,
        scenario: &Scenario,
        state: &mut State,
        call: &Call,
        answer: Result<Answer, Undecided>,
    ) -> Handled {
        let Ok(mut answer) = answer else {
            state.tally.refused += 1;
            return (Err(EXHAUSTED), None);
        };
        let now = self.machine.as_ref().and_then(|machine| machine.engine.now());
        let now = now.unwrap_or(state.timestamp(scenario, self.index));
        let lag = state.wall(scenario).saturating_sub(now.as_nanos());
        if call.back.is_none()
            && let Some((_, ask)) = parse(state, call)
        {
            self.judge(state, &answer, ask.as_ref(), call);
        }
        let decided = decided(&answer, now, lag);
        if call.back.is_none() {
            account(state, call, &answer, &decided);
        }
        mutate(&mut answer, state.mutation);
        (Ok(response_to_wire(&answer).encode_to_vec()), Some(decided))
    }

    /// Looks for unused tokens.
    pub(crate) fn tend(&self) {
        let Some((authority, local)) = self.authority.as_ref().zip(self.local.as_ref()) else {
            return;
        };
        local.is_tending.store(true, Ordering::Relaxed);
        while authority.tend_holdings() {}
        local.is_tending.store(false, Ordering::Relaxed);
    }

    /// Sets the limits, now or at the next start.
    ///
    /// # Errors
    /// If the limits are invalid.
    pub(crate) fn set_limits(&self, scenario: &Scenario, state: &State) -> anyhow::Result<()> {
        let file = limits::file(&scenario.rules, &state.forms);
        std::fs::write(self.limits(), &file).context("the limits file")?;
        match &self.authority {
            Some(authority) => {
                let rules = self.rules().with_context(|| file.clone())?;
                authority.replace_limits(rules).with_context(|| file)
            }
            None => Ok(()),
        }
    }

    pub(crate) fn rules(&self) -> anyhow::Result<Rules> {
        Ok(load(&self.limits(), SameDomain::Refuse)?.rules)
    }

    fn limits(&self) -> PathBuf {
        self.dir.path().join("limits.yaml")
    }

    /// Handles a call; none if the sidecar is down.
    pub(crate) fn handle(
        &self,
        scenario: &Scenario,
        state: &mut State,
        call: &Call,
    ) -> Option<Handled> {
        let authority = self.authority.as_ref()?;
        let now = state.timestamp(scenario, self.index);
        let (request, ask) = parse(state, call)?;
        let answer = match (&call.back, &call.debit) {
            (Some(back), _) => take_back(authority, state, &request, (call, back), now),
            (None, Some(debit)) => {
                let process = (call.worker / scenario.workers, call.life);
                let first = scenario.first_meter();
                let debited = Debited { call, debit, ask: ask.as_ref(), process, first };
                count(authority, state, &request, &debited, now)
            }
            (None, None) => decide(authority, &request, ask.as_ref(), now),
        };
        let Ok(mut answer) = answer else {
            state.tally.refused += 1;
            return Some((Err(EXHAUSTED), None));
        };
        if call.back.is_none() {
            self.judge(state, &answer, ask.as_ref(), call);
        }
        let decided = decided(&answer, now, 0);
        if call.back.is_none() {
            account(state, call, &answer, &decided);
        }
        mutate(&mut answer, state.mutation);
        Some((Ok(response_to_wire(&answer).encode_to_vec()), Some(decided)))
    }

    /// The hits that a limit of costs has counted.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn metered(&self, meter: usize, now: Timestamp) -> anyhow::Result<u64> {
        let authority = self.authority.as_ref().context("the sidecar is down")?;
        let descriptor = Descriptor::new(vec![Entry::new(format!("m{meter}"), "v0")]);
        let (domain, hits) = ("sim".to_owned(), Hits::PEEK);
        let request = Request { domain, descriptors: vec![descriptor], hits };
        let left: u64 = look(authority, &request, now)?.iter().sum();
        Ok(meters::ROOM - left)
    }

    /// Checks that the sidecar may give this answer.
    fn judge(&self, state: &mut State, answer: &Answer, ask: Option<&LeaseRequest>, call: &Call) {
        if answer.statuses.len() != call.about.len() {
            let (statuses, asked) = (answer.statuses.len(), call.about.len());
            state.fail(format!("{statuses} statuses for {asked} descriptors"));
        }
        for (index, (status, (key, _))) in answer.statuses.iter().zip(&call.about).enumerate() {
            let Some(lease) = status.lease else { continue };
            let Some(ask) = ask else {
                state.fail(format!("counter {key}: a lease that nobody asked for"));
                continue;
            };
            if lease.tokens == 0 || lease.tokens == Lease::UNLIMITED {
                continue;
            }
            let lasts = lease.valid_until.saturating_since(ask.clock);
            if lasts.as_nanos() > self.lease_ttl {
                state.fail(format!("counter {key}: a lease of {lasts}"));
            }
            let asked = ask.wanted[index].saturating_add(ask.waiting[index]);
            if u64::from(lease.tokens) > asked {
                state.fail(format!("counter {key}: {} tokens for {asked} asked", lease.tokens));
            }
            if answer.verdict == Verdict::Deny {
                state.fail(format!("counter {key}: {} tokens on a denied request", lease.tokens));
            }
        }
    }
}

/// The request of a call, and its ask for leases.
fn parse(state: &mut State, call: &Call) -> Option<(Request, Option<LeaseRequest>)> {
    let message = rls::RateLimitRequest::decode(call.message.as_slice()).ok()?;
    let request = request_from_wire(message).ok()?;
    match lease_request_from(call.about.len(), |name| value_of(&call.metadata, name)) {
        Ok(ask) => Some((request, ask)),
        Err(error) => {
            state.fail(format!("worker {}: an ask that is refused: {error}", call.worker));
            None
        }
    }
}

fn decided(answer: &Answer, now: Timestamp, lag: u64) -> Decided {
    let statuses = answer.statuses.iter().map(|status| (status.limit.is_some(), status.lease));
    Decided {
        allowed: answer.verdict == Verdict::Allow,
        at: now.as_nanos(),
        lag,
        statuses: statuses.collect(),
    }
}

/// Records the charges of an allowed call.
fn account(state: &mut State, call: &Call, answer: &Answer, decided: &Decided) {
    if !decided.allowed {
        return;
    }
    for ((key, hits), status) in call.about.iter().zip(&answer.statuses) {
        let tokens = match status.lease {
            Some(lease) if lease.tokens != Lease::UNLIMITED => u64::from(lease.tokens),
            _ => 0,
        };
        state.tally.leases += u64::from(tokens > 0);
        if let Some(lease) = status.lease.filter(|_| tokens > 0) {
            *state.grants.entry(lease.id).or_default() += 1;
        }
        if status.limit.is_none() {
            continue;
        }
        // The hits of debits are in accounts of their own.
        let hits = if call.debit.is_some() { 0 } else { *hits };
        state.ledger.charge(*key, hits + tokens);
        // Holdings round the ends of windows.
        if hits + tokens > 0 && !state.is_sharing {
            let end = decided.at + status.reset.as_nanos();
            for bound in &mut state.bounds[*key as usize] {
                bound.charged(end);
            }
        }
    }
}

/// A call of debits.
struct Debited<'a> {
    call: &'a Call,
    debit: &'a DebitRequest,
    ask: Option<&'a LeaseRequest>,
    process: meters::Process,
    /// The counter of the first limit of costs.
    first: usize,
}

/// Counts debits, and checks the effect on the counters.
fn count(
    authority: &Authority,
    state: &mut State,
    request: &Request,
    debited: &Debited<'_>,
    now: Timestamp,
) -> anyhow::Result<Answer> {
    let Debited { call, debit, ask, process, first } = *debited;
    let before = look(authority, request, now)?;
    let answer = match state.mutation {
        Some(Mutation::DebitsCountTwice) => {
            let again = DebitRequest { sequence: state.rng.bits(), ..debit.clone() };
            wait(authority.debit(request, &again, ask, now))?
        }
        Some(Mutation::DebitsAreForgotten) => {
            wait(authority.debit(&peek(request), debit, None, now))?
        }
        _ => wait(authority.debit(request, debit, ask, now))?,
    };
    let after = look(authority, request, now)?;
    let mut changes: Vec<Change> = Vec::new();
    for (index, ((key, hits), descriptor)) in
        call.about.iter().zip(&request.descriptors).enumerate()
    {
        let meter = *key as usize - first;
        let place = changes.iter().position(|change| change.meter == meter);
        let place = place.unwrap_or_else(|| {
            let rose = before[index] as i64 - after[index] as i64;
            changes.push(Change { meter, asked: Costs::default(), rose });
            changes.len() - 1
        });
        let Change { asked, rose, .. } = &mut changes[place];
        match descriptor.direction {
            Direction::Take => asked.taken += hits,
            Direction::Refund => asked.refunded += hits,
        }
        let lease = answer.statuses[index].lease.filter(|lease| lease.tokens != Lease::UNLIMITED);
        *rose -= i64::from(lease.map_or(0, |lease| lease.tokens));
        state.note(
            "debited (counter, hits, left before, after)",
            [(*key).into(), *hits, before[index], after[index]],
        );
    }
    state.tally.debits += 1;
    if let Err(broken) = state.meters.count(process, (debit.sequence, debit.call), &changes) {
        state.fail(format!("worker {}: {broken}", call.worker));
    }
    match state.mutation {
        Some(Mutation::CountedDebitsAreRefused) => anyhow::bail!("refused"),
        _ => Ok(answer),
    }
}

/// Returns tokens, and checks the effect on the counters.
fn take_back(
    authority: &Authority,
    state: &mut State,
    request: &Request,
    (call, back): (&Call, &LeaseReturn),
    now: Timestamp,
) -> anyhow::Result<Answer> {
    let before = look(authority, request, now)?;
    let answer = wait(authority.return_tokens(request, back, now))?;
    if state.mutation == Some(Mutation::ReturnsCountTwice) {
        wait(authority.decide(request, now))?;
    }
    let after = look(authority, request, now)?;
    for ((index, (key, hits)), (before, after)) in
        call.about.iter().enumerate().zip(before.into_iter().zip(after))
    {
        let taken = after.saturating_sub(before);
        // A counter that occurs twice gets both.
        let first = call.about.iter().position(|(other, _)| other == key) == Some(index);
        let all = call.about.iter().filter(|(other, _)| other == key).map(|(_, hits)| hits).sum();
        if taken > all {
            state.fail(format!("counter {key}: {taken} given back to it of {hits} returned"));
        }
        if first {
            state.ledger.give_back(*key, taken);
            *state.given_back.entry(back.call).or_default() += taken;
        }
        state.note(
            "given back (counter, hits, left before, after)",
            [(*key).into(), taken, before, after],
        );
    }
    // A call that arrives again after its leases were returned in full is granted and charged for
    // them again, and then a late duplicate of the return counts again too.
    let grants = |lease| state.grants.get(lease).copied().unwrap_or(1);
    let each = call.about.iter().zip(&back.leases);
    let returned: u64 = each.map(|((_, hits), lease)| hits.saturating_mul(grants(lease))).sum();
    let given = state.given_back.get(&back.call).copied().unwrap_or(0);
    if given > returned {
        state.fail(format!("{given} given back by one return of {returned}, which came twice"));
    }
    Ok(answer)
}

fn decide(
    authority: &Authority,
    request: &Request,
    ask: Option<&LeaseRequest>,
    now: Timestamp,
) -> anyhow::Result<Answer> {
    Ok(match ask {
        Some(ask) => wait(authority.decide_leasing(request, ask, now))?,
        None => wait(authority.decide(request, now))?,
    })
}

/// The hits left of each counter; none without a limit.
fn look(authority: &Authority, request: &Request, now: Timestamp) -> anyhow::Result<Vec<u64>> {
    let answer = wait(authority.decide(&peek(request), now))?;
    let left = |status: &tidegate_core::Status| match status.limit {
        Some(_) => u64::from(status.remaining),
        None => 0,
    };
    Ok(answer.statuses.iter().map(left).collect())
}

/// A request that only asks what is left.
fn peek(request: &Request) -> Request {
    let mut request = request.clone();
    for descriptor in &mut request.descriptors {
        descriptor.hits = Some(Hits::PEEK);
        descriptor.direction = Direction::Take;
    }
    request
}

fn mutate(answer: &mut Answer, mutation: Option<Mutation>) {
    for status in &mut answer.statuses {
        match (mutation, &mut status.lease) {
            (Some(Mutation::LeasesLast), Some(lease)) if lease.tokens > 0 => {
                lease.valid_until = lease.valid_until.saturating_add(Nanos::from_secs(2));
            }
            (Some(Mutation::LeasesGrow), Some(lease)) if (1..1_000_000).contains(&lease.tokens) => {
                lease.tokens += 1;
            }
            (Some(Mutation::DenialsAreIgnored), lease) if status.verdict == Verdict::Deny => {
                status.verdict = Verdict::Allow;
                *lease = None;
            }
            _ => {}
        }
    }
    if mutation == Some(Mutation::DenialsAreIgnored) {
        answer.verdict = Verdict::Allow;
    }
}
