//! The arrival of requests, and what they are about.

use super::World;
use crate::limits::SECOND;
use crate::state::{Event, SimStream, State, StreamState};
use tidegate::host::{RequestFacts, StreamId};

/// The headers of a request.
pub(super) struct Facts(pub(super) Vec<(String, String)>);

impl RequestFacts for Facts {
    fn header<T>(&self, name: &str, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| read(value.as_bytes()))
    }

    fn property<T>(&self, _path: &[&str], _read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        None
    }
}

impl World {
    pub(super) fn arrive(&self) {
        let mut state = self.state.borrow_mut();
        if state.closed {
            return;
        }
        let rate = (self.rate(&state) * state.traffic / 100).max(1);
        let idle = state.idle.1.saturating_sub(state.now);
        let next = idle + state.rng.wait(SECOND / rate);
        state.after(next, Event::Arrive);
        if idle > 0 {
            return;
        }
        let worker = state.rng.below(self.workers.len() as u64) as usize;
        drop(state);
        self.request(worker);
    }

    /// Requests per second.
    fn rate(&self, state: &State) -> u64 {
        match &state.usage {
            // Three times the room of the limit.
            Some(usage) => (usage.room * 3 * SECOND / (usage.until - usage.from)).max(50),
            None => self.scenario.rate,
        }
    }

    /// A request arrives at this worker, unless the worker is down or busy.
    pub(super) fn request(&self, worker: usize) {
        let Ok(mut running) = self.workers[worker].try_borrow_mut() else { return };
        let Some(running) = running.as_mut() else { return };
        let mut state = self.state.borrow_mut();
        if state.closed {
            return;
        }
        let (mut facts, mut needs) = self.make_request(&mut state);
        let (meters, cost) = self.add_costs(&mut state, &mut facts, &mut needs);
        let stream = state.worker_states[worker].next_stream();
        state.tally.requests += 1;
        let (key, hits) = needs.first().copied().unwrap_or_default();
        state.note(
            "request (worker, number, first counter, hits)",
            [worker as u64, stream.into(), key.into(), hits],
        );
        let (entering, passed) = (StreamState::Entering, false);
        let coming = SimStream { needs, state: entering, passed, meters, cost };
        state.worker_states[worker].streams.insert(stream, coming);
        drop(state);
        let status = running.on_request(StreamId(stream), &facts);
        self.entered(worker, stream, status);
    }

    fn make_request(&self, state: &mut State) -> (Facts, Vec<(u32, u64)>) {
        let (mut headers, mut needs) = (Vec::new(), Vec::new());
        let rng = &mut state.rng;
        let rules = &self.scenario.rules;
        let (mut rule, mut count) = (0, 1);
        if state.usage.is_none() {
            rule = if rng.chance(600) { 0 } else { rng.below(rules.len() as u64) as usize };
            count = rng.between(1, rules.len().min(3) as u64) as usize;
        }
        for _ in 0..count {
            let found = &rules[rule];
            let hot = state.usage.is_some() || rng.chance(self.scenario.hot);
            let value = if hot { 0 } else { rng.below(found.values.into()) as u32 };
            let twice = state.usage.is_none() && rng.chance(100);
            headers.push((format!("k{rule}"), format!("v{value}")));
            if twice {
                headers.push((format!("again{rule}"), format!("v{value}")));
            }
            needs.push((found.first + value, if twice { 2 } else { 1 }));
            rule = (rule + 1) % rules.len();
        }
        (Facts(headers), needs)
    }
}
