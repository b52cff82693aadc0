//! A world of engines and one server, in which one thing happens at a time. All chance comes from a seed.

use super::history::{History, Step};
use super::*;
use std::collections::HashMap as StdHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

/// For how many moments a reservation holds.
const RESERVED: u64 = 50;

/// xorshift64*.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }
}

/// The server: the script of the Redis driver, in Rust.
#[derive(Default)]
pub(super) struct Server {
    pub(super) values: StdHashMap<Hashed, Image>,
    reserved: StdHashMap<Hashed, (usize, u64)>,
}

impl Server {
    fn execute(&mut self, client: usize, flight: &Flight, moment: u64) -> Landing {
        let present = |key| self.values.get(key).cloned().unwrap_or_default();
        let is_taken = |key| {
            let other = self.reserved.get(key).filter(|(owner, _)| *owner != client);
            other.is_some_and(|(_, until)| *until > moment)
        };
        let values: Vec<Image> = flight.changes.iter().map(|change| present(&change.key)).collect();
        let differs = |(change, value): (&Change, &Image)| change.before != *value;
        let is_lost = flight.changes.iter().zip(&values).any(differs)
            || flight.changes.iter().any(|change| is_taken(&change.key));
        if is_lost {
            let is_stale = |pair: (&Change, &Image)| differs(pair) && !pair.0.before.is_empty();
            let first = flight.changes.iter().zip(&values).find(|(_, value)| !value.is_empty());
            if let Some((change, _)) = first
                && flight.changes.iter().zip(&values).any(is_stale)
                && !is_taken(&change.key)
            {
                self.reserved.insert(change.key, (client, moment + RESERVED));
            }
            return Landing::Lost(values);
        }
        for change in &*flight.changes {
            self.reserved.remove(&change.key);
            self.values.insert(change.key, change.after.clone());
        }
        Landing::Done
    }
}

/// A request, whose update is run as often as its engine wants.
pub(super) struct Request {
    engine: usize,
    pub(super) keys: Vec<Hashed>,
    /// A request that only looks changes nothing.
    pub(super) looks: bool,
    /// None once it is over.
    member: Option<MemberId>,
    flag: Arc<Flag>,
    pub(super) result: Option<Result<(), Undecided>>,
    /// What each run saw and made of it.
    pub(super) runs: Vec<Vec<Step>>,
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A flight between an engine and the server.
struct Transit {
    engine: usize,
    flight: Flight,
    answer: Option<Landing>,
}

pub(super) struct World {
    pub(super) engines: Vec<Engine>,
    pub(super) server: Server,
    pub(super) requests: Vec<Request>,
    transits: Vec<Transit>,
    pub(super) random: Random,
    pub(super) moment: u64,
}

impl World {
    pub(super) fn new(engines: usize, seed: u64) -> World {
        World {
            engines: (0..engines).map(|_| Engine::new(rules(u64::MAX), Lanes::One)).collect(),
            server: Server::default(),
            requests: Vec::new(),
            transits: Vec::new(),
            random: Random::new(seed),
            moment: 0,
        }
    }

    pub(super) fn begin(&mut self, engine: usize, keys: Vec<Hashed>, looks: bool) {
        let member = self.engines[engine].begin(&keys, self.moment).unwrap();
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        let (member, result, runs) = (Some(member), None, Vec::new());
        self.requests.push(Request { engine, keys, looks, member, flag, result, runs });
    }

    /// Polls a request if it has been woken. Returns whether it has.
    pub(super) fn poll(&mut self, index: usize) -> bool {
        let request = &mut self.requests[index];
        let Some(member) = request.member else { return false };
        if !request.flag.0.swap(false, Ordering::Relaxed) {
            return false;
        }
        let Request { keys, looks, runs, .. } = request;
        let mut update = |entries: &mut tidegate_store::Entries<'_>| {
            let mut run = Vec::new();
            for (position, key) in keys.iter().enumerate() {
                // Equal keys share one entry.
                if !keys[..position].contains(key) {
                    run.push(Step::make(*key, &mut entries.get(position), index as u64, *looks));
                }
            }
            runs.push(run);
        };
        let waker = Waker::from(request.flag.clone());
        let now = Timestamp::from_secs(1_000);
        let engine = &mut self.engines[request.engine];
        let ask = Ask { keys, now, update: &mut update, waker: &waker, at: self.moment };
        if let Poll::Ready(result) = engine.poll(member, ask) {
            (request.member, request.result) = (None, Some(result));
        }
        self.effects(self.requests[index].engine);
        true
    }

    pub(super) fn drop_future(&mut self, index: usize) {
        let request = &mut self.requests[index];
        if let Some(member) = request.member.take() {
            self.engines[request.engine].leave(member);
        }
    }

    /// Lets ready flights of an engine take off.
    pub(super) fn depart(&mut self, engine: usize) -> bool {
        let flights: Vec<_> = std::iter::from_fn(|| self.engines[engine].depart(0)).collect();
        let any = !flights.is_empty();
        let transit = |flight| Transit { engine, flight, answer: None };
        self.transits.extend(flights.into_iter().map(transit));
        self.effects(engine);
        any
    }

    /// Has a flight that is under way move on: to the server, or back with its answer. Some fail.
    pub(super) fn travel(&mut self, fails_one_in: u64) -> bool {
        if self.transits.is_empty() {
            return false;
        }
        let index = self.random.below(self.transits.len() as u64) as usize;
        let fails = fails_one_in > 0 && self.random.below(fails_one_in) == 0;
        self.step(index, fails);
        true
    }

    /// The same for the oldest flight of an engine.
    pub(super) fn travel_of(&mut self, engine: usize) {
        if let Some(index) = self.transits.iter().position(|transit| transit.engine == engine) {
            self.step(index, false);
        }
    }

    /// The engines of the requests that were acknowledged since the last call. They are forgotten.
    pub(super) fn take_acknowledged(&mut self) -> Vec<usize> {
        let is_over = |request: &mut Request| request.result == Some(Ok(()));
        self.requests.extract_if(.., is_over).map(|request| request.engine).collect()
    }

    fn step(&mut self, index: usize, fails: bool) {
        let transit = &mut self.transits[index];
        let (engine, landing) = match transit.answer.take() {
            // The flight or its answer is lost.
            _ if fails => (transit.engine, Landing::Failed(Cause::new("lost in a test"))),
            Some(answer) => (transit.engine, answer),
            None => {
                let Transit { engine, flight, .. } = &transit;
                let answer = self.server.execute(*engine, flight, self.moment);
                transit.answer = Some(answer);
                return;
            }
        };
        let Transit { flight, .. } = self.transits.swap_remove(index);
        self.engines[engine].land(flight.id, landing);
        self.effects(engine);
    }

    fn effects(&mut self, engine: usize) {
        let Effects { wakes, .. } = self.engines[engine].effects();
        wakes.into_iter().for_each(Waker::wake);
    }

    /// Lets everything end, without further failures.
    pub(super) fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 100_000, "something never ends");
            self.moment += 1;
            let mut has_moved = false;
            for index in 0..self.requests.len() {
                has_moved |= self.poll(index);
            }
            for engine in 0..self.engines.len() {
                has_moved |= self.depart(engine);
            }
            while self.travel(0) {
                has_moved = true;
            }
            if !has_moved {
                return;
            }
        }
    }

    /// Everything has ended, nothing is left behind, and the server has a serial history of all that was acknowledged.
    pub(super) fn check(&self) {
        for (index, request) in self.requests.iter().enumerate() {
            assert!(request.member.is_none(), "request {index} is stuck");
        }
        for engine in &self.engines {
            assert!(engine.batches.is_empty() && engine.members.is_empty());
        }
        History::of(self).check();
    }
}
