//! Envoy, as one simulated worker sees it.

use crate::ledger::Key;
use crate::mutation::Mutation;
use crate::scenario::Scenario;
use crate::state::{Call, Event, State, StreamState, value_of};
use prost::Message;
use std::cell::RefCell;
use std::rc::Rc;
use tidegate::host::stats::MetricKind;
use tidegate::host::{
    self, CallId, Conflict, Header, Host, LogLevel, NamedHeader, Reply, SharedValue, StreamId,
    Unsent,
};
use tidegate_core::{LeaseReturn, Timestamp};
use tidegate_wire::{debit_from, report_of, request_from_wire, returned_from, rls};

/// Statuses of a reply without a decision: the sidecar did not answer, or overload.
const UNDECIDED: [u32; 2] = [500, 503];

/// The host of one worker, in one life of its process.
pub(crate) struct SimHost {
    pub(crate) scenario: Rc<Scenario>,
    pub(crate) state: Rc<RefCell<State>>,
    pub(crate) worker: usize,
    /// Lets another worker of the process run.
    pub(crate) interleave: Box<dyn Fn()>,
}

impl SimHost {
    /// The index of the worker's process.
    fn proxy(&self) -> usize {
        self.worker / self.scenario.workers
    }

    /// Removes returned tokens from the ledger. A return that is sent again equals the first one; a
    /// recalled lease, all of whose tokens are returned, must not have been received. A return of
    /// nothing carries a report.
    fn send_back(&self, state: &mut State, proxy: usize, call: &Call, back: &LeaseReturn) {
        state.tally.returns += 1;
        let is_new = state.returns_sent.insert(back.call);
        for ((key, hits), lease) in call.about.iter().zip(&back.leases) {
            state.note(
                "return (worker, counter, hits, lease)",
                [self.worker as u64, (*key).into(), *hits, *lease],
            );
            let recalled = u64::from(u32::MAX);
            let sent = match (is_new, *hits) {
                (false, _) => Ok(()),
                (true, 0) if report_of(&call.message).is_some() => Ok(()),
                (true, hits) if hits == recalled => state.ledger.recall(proxy, *key, *lease),
                (true, hits) => state.ledger.send_back(proxy, *key, *lease, hits),
            };
            if let Err(broken) = sent {
                state.fail(format!("worker {}: counter {key}: {broken}", self.worker));
            }
        }
    }

    /// Ends the wait of a request: allowed once, and only while the request exists.
    fn end(&self, state: &mut State, stream: StreamId, how: &str) -> Option<Vec<(Key, u64)>> {
        let worker_state = &mut state.worker_states[self.worker];
        let Some(found) = worker_state.streams.get_mut(&stream.0) else {
            let broken =
                format!("worker {}: request {} {how}, which is gone", self.worker, stream.0);
            state.fail(broken);
            return None;
        };
        match found.state {
            StreamState::Over => {
                let broken = format!("worker {}: request {} {how} again", self.worker, stream.0);
                state.fail(broken);
                return None;
            }
            StreamState::Waiting => worker_state.waiting -= 1,
            StreamState::Entering => {}
        }
        if found.state == StreamState::Entering {
            state.tally.local += 1;
        }
        found.state = StreamState::Over;
        Some(found.needs.clone())
    }
}

impl Host for SimHost {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.state.borrow().clock(&self.scenario, self.proxy()))
    }

    fn random(&self) -> u64 {
        self.state.borrow_mut().rng.bits()
    }

    fn shared(&self, key: &str) -> SharedValue {
        let mut state = self.state.borrow_mut();
        let value = state.shared[self.proxy()].get(key);
        let interleave = state.depth < 2 && state.rng.chance(self.scenario.interleaved);
        drop(state);
        // Workers are threads: another may run between this read and the write that follows.
        if interleave {
            (self.interleave)();
        }
        value
    }

    fn set_shared(&self, key: &str, value: &[u8], version: u32) -> Result<(), Conflict> {
        let mut state = self.state.borrow_mut();
        let proxy = self.proxy();
        if state.mutation == Some(Mutation::WritesAlwaysSucceed) {
            state.shared[proxy].overwrite(key, value);
            return Ok(());
        }
        let written = state.shared[proxy].set(key, value, version);
        state.tally.conflicts += u64::from(written.is_err());
        let (keys, slots) = (state.shared[proxy].count(), self.scenario.slots as usize);
        if keys > slots + 1 {
            state.fail(format!("process {proxy}: {keys} keys of shared data for {slots} slots"));
        }
        written
    }

    fn call(&self, call: &host::Call<'_>) -> Result<CallId, Unsent> {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if state.mishap(self.scenario.network.unsent) {
            return Err(Unsent::Refused);
        }
        let proxy = self.proxy();
        let id = state.worker_states[self.worker].next_call();
        let life = state.lives[proxy];
        let call_made = match read(&self.scenario, call, id, self.worker, life) {
            Ok(call_made) => Rc::new(call_made),
            Err(broken) => {
                state.fail(format!("worker {}: {broken}", self.worker));
                return Err(Unsent::Refused);
            }
        };
        let hits = call_made.about.iter().map(|(_, hits)| hits).sum();
        match &call_made.back {
            None => {
                state.tally.asks += 1;
                state.note(
                    "ask (worker, call, hits, descriptors)",
                    [self.worker as u64, id.into(), hits, call_made.about.len() as u64],
                );
            }
            Some(back) => self.send_back(state, proxy, &call_made, back),
        }
        state.worker_states[self.worker].calls.insert(id, Rc::clone(&call_made));
        state.after(call.timeout.as_nanos() as u64, Event::Deadline(Rc::clone(&call_made)));
        let of = [self.worker as u64, id.into(), 0, 0];
        state.transmit(&self.scenario, ("lost (worker, call)", of), || {
            Event::Reach(Rc::clone(&call_made))
        });
        Ok(CallId(id))
    }

    fn cancel(&self, call: CallId) {
        let mut state = self.state.borrow_mut();
        let was_live = state.worker_states[self.worker].calls.remove(&call.0).is_some();
        state.note("given up (worker, call)", [self.worker as u64, call.0.into(), 0, 0]);
        if !was_live {
            state.fail(format!("worker {}: call {} is given up twice", self.worker, call.0));
        }
    }

    fn wake(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let life = state.lives[self.proxy()];
        state.after(0, Event::Wake(self.worker, life));
        state.worker_states[self.worker].will_wake = true;
        true
    }

    fn resume(&self, stream: StreamId) {
        let mut state = self.state.borrow_mut();
        if let Some(needs) = self.end(&mut state, stream, "resumed") {
            let of = [self.worker as u64, stream.0.into(), 0, 0];
            state.note("resumed (worker, request)", of);
            if let Some(found) = state.worker_states[self.worker].streams.get_mut(&stream.0) {
                found.passed = true;
            }
            state.admit(&self.scenario, self.worker, &needs);
            state.respond(&self.scenario, self.worker, stream.0);
        }
    }

    fn reply(&self, stream: StreamId, reply: &Reply) {
        let mut state = self.state.borrow_mut();
        if self.end(&mut state, stream, "answered").is_some() {
            let of = [self.worker as u64, stream.0.into(), reply.status.into(), 0];
            state.note("answered (worker, request, status)", of);
            match UNDECIDED.contains(&reply.status) {
                true => state.tally.failed += 1,
                false => state.tally.denied += 1,
            }
            state.respond(&self.scenario, self.worker, stream.0);
        }
    }

    fn request_header<T>(
        &self,
        _stream: StreamId,
        _name: &str,
        _read: impl FnOnce(&[u8]) -> T,
    ) -> Option<T> {
        None
    }

    fn add_response_headers(&self, _headers: &[Header]) {}

    fn append_response_headers(&self, _headers: &[NamedHeader]) {}

    fn append_request_headers(&self, _stream: StreamId, _headers: &[NamedHeader]) {}

    fn set_filter_state(&self, _stream: StreamId, _name: &str, _value: &str) {}

    fn define_metric(&self, _kind: MetricKind, name: &str) -> Option<u32> {
        u32::try_from(name.len()).ok()
    }

    fn add_to_metric(&self, _metric: u32, _amount: i64) {}

    fn log(&self, _level: LogLevel, _message: &str) {}
}

/// Decodes a call.
fn read(
    scenario: &Scenario,
    call: &host::Call<'_>,
    id: u32,
    worker: usize,
    life: u32,
) -> Result<Call, String> {
    let message = rls::RateLimitRequest::decode(call.message)
        .map_err(|error| format!("a call that is no RateLimitRequest: {error}"))?;
    let request =
        request_from_wire(message).map_err(|error| format!("a call that is refused: {error}"))?;
    let metadata = call.metadata.to_vec();
    let mut about = Vec::with_capacity(request.descriptors.len());
    for descriptor in &request.descriptors {
        let [entry] = descriptor.entries.as_slice() else {
            return Err(format!("a descriptor of {} entries", descriptor.entries.len()));
        };
        let number = |prefix| entry.key.strip_prefix(prefix)?.parse::<usize>().ok();
        let rule = number('k').and_then(|rule| scenario.rules.get(rule));
        let meter =
            number('m').and_then(|meter| u32::try_from(scenario.first_meter() + meter).ok());
        let value: Option<u32> = entry.value.trim_start_matches('v').parse().ok();
        let (Some(first), Some(value)) = (rule.map(|rule| rule.first).or(meter), value) else {
            return Err(format!("a descriptor that no request has: {entry:?}"));
        };
        about.push((first + value, request.charge_of(descriptor).hits().get()));
    }
    let back = returned_from(about.len(), |name| value_of(&metadata, name))
        .map_err(|error| format!("a return that is refused: {error}"))?;
    let debit = debit_from(about.len(), |name| value_of(&metadata, name))
        .map_err(|error| format!("a debit that is refused: {error}"))?;
    Ok(Call { id, worker, life, message: call.message.to_vec(), metadata, about, back, debit })
}
