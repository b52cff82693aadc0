//! A world in virtual time: a server of counters, sidecars with holdings, a network between them. Futures are polled
//! one after the other, so a run is repeatable.

use crate::holdings::{Failure, Shared, Task};
use crate::{
    Answers, Authority, Counters, Modes, NodeWindows, Reach, Undecided, Update, Updating, Use,
};
use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use tidegate_core::{
    Answer, Descriptor, Entry, Hits, KeyHash, Request, StateSize, Timestamp, Verdict,
};
use tidegate_limits::{Rules, SameDomain, load};
use tidegate_store::{Class, Entry as Stored, Hashed, LoadedEntries};

/// A Thursday, at midnight: every window starts here.
pub(super) const START: u64 = 1_700_092_800_000;

/// Counters in the memory of this process.
pub(super) struct Memory {
    states: Mutex<HashMap<Hashed, Stored>>,
    seed: u64,
}

impl Memory {
    pub(super) fn new(seed: u64) -> Arc<Memory> {
        Arc::new(Memory { states: Mutex::default(), seed })
    }

    fn run(&self, keys: &[Hashed], now: Timestamp, update: &mut Update<'_>) {
        let mut states = self.states.lock().unwrap();
        let mut loaded = LoadedEntries::new(keys, |key| {
            let live = states.get(key).filter(|entry| !entry.is_expired(now.as_nanos()));
            live.cloned().unwrap_or_else(|| Stored::new(&vec![0; words(key)], 0))
        });
        update(&mut loaded.entries());
        let mut entries = loaded.entries();
        for (index, key) in keys.iter().enumerate() {
            let entry = entries.get(index);
            let is_gone =
                entry.state.iter().all(|word| *word == 0) || *entry.expires_at <= now.as_nanos();
            match is_gone {
                true => states.remove(key),
                false => states.insert(*key, Stored::new(entry.state, *entry.expires_at)),
            };
        }
    }

    pub(super) fn keys(&self) -> usize {
        self.states.lock().unwrap().len()
    }
}

fn words(key: &Hashed) -> usize {
    match key.class {
        Class::Narrow => StateSize::Narrow.words(),
        Class::Wide => StateSize::Wide.words(),
    }
}

impl Counters for Memory {
    fn seed(&self) -> u64 {
        self.seed
    }

    fn state_words(&self) -> usize {
        StateSize::Wide.words()
    }

    fn capacity(&self) -> u64 {
        100_000
    }

    fn answers(&self) -> Answers {
        Answers::AtOnce
    }

    fn update<'u>(
        &'u self,
        keys: &'u [Hashed],
        now: Timestamp,
        update: &'u mut Update<'u>,
    ) -> Updating<'u> {
        self.run(keys, now, update);
        Updating::Done(Ok(()))
    }
}

/// What the network does with the updates to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Network {
    Up,
    /// Nothing arrives.
    Down,
    /// Updates arrive, answers do not.
    Deaf,
}

/// The server of the shared counters.
pub(super) struct Server {
    memory: Arc<Memory>,
    pub(super) commands: AtomicU64,
    pub(super) network: Mutex<Network>,
    /// The time that the next updates take each way, in nanoseconds.
    pub(super) delay: AtomicU64,
    clock: Arc<AtomicU64>,
}

impl Server {
    async fn wait(&self, time: u64) {
        let until = self.clock.load(Ordering::Relaxed) + time;
        poll_fn(|_| match self.clock.load(Ordering::Relaxed) >= until {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }
}

impl Counters for Server {
    fn seed(&self) -> u64 {
        self.memory.seed
    }

    fn state_words(&self) -> usize {
        StateSize::Wide.words()
    }

    fn capacity(&self) -> u64 {
        u64::MAX
    }

    fn answers(&self) -> Answers {
        Answers::Later
    }

    /// As a cluster with a node for each place.
    fn reach(&self) -> Reach {
        Reach::Place
    }

    fn update<'u>(
        &'u self,
        keys: &'u [Hashed],
        now: Timestamp,
        update: &'u mut Update<'u>,
    ) -> Updating<'u> {
        let place = |key: &Hashed| KeyHash(key.hash).place();
        assert!(keys.iter().all(|key| place(key) == place(&keys[0])), "several places");
        Updating::Later(Box::pin(async move {
            self.commands.fetch_add(1, Ordering::Relaxed);
            let (network, delay) =
                (*self.network.lock().unwrap(), self.delay.load(Ordering::Relaxed));
            self.wait(delay).await;
            if network != Network::Down {
                assert!(now.as_nanos() <= self.clock.load(Ordering::Relaxed), "a time to come");
                // An engine may run an update on states that it guesses.
                let mut guessed =
                    LoadedEntries::new(keys, |key| Stored::new(&vec![0; words(key)], 0));
                update(&mut guessed.entries());
                self.memory.run(keys, now, update);
            }
            self.wait(delay).await;
            match network {
                Network::Up => Ok(()),
                _ => Err(Undecided::Unreachable { cause: "no answer".into() }),
            }
        }))
    }
}

/// A machine with a sidecar.
pub(super) struct Sidecar {
    pub(super) authority: Arc<Authority>,
    local: Arc<Memory>,
    tasks: Arc<Mutex<Vec<Task>>>,
    /// How far its time is behind that of the server, in nanoseconds.
    pub(super) lag: Arc<AtomicU64>,
    /// The latest time that it has read.
    reached: Arc<AtomicU64>,
    requests: Vec<Pending>,
}

struct Pending {
    id: usize,
    asked: Pin<Box<dyn Future<Output = Result<Answer, Undecided>>>>,
}

/// A request that was answered.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) id: usize,
    /// The time of the sidecar, in nanoseconds.
    pub(super) at: u64,
    /// The time of the server.
    pub(super) true_at: u64,
    pub(super) answer: Result<Answer, Undecided>,
}

impl Answered {
    pub(super) fn is_allow(&self) -> bool {
        self.answer.as_ref().is_ok_and(|answer| answer.verdict == Verdict::Allow)
    }
}

pub(super) struct World {
    pub(super) clock: Arc<AtomicU64>,
    pub(super) server: Arc<Server>,
    pub(super) sidecars: Vec<Sidecar>,
    pub(super) answered: Vec<Answered>,
    limits: String,
    modes: Modes,
    failure: Failure,
    next_id: usize,
    dir: tempfile::TempDir,
}

impl World {
    pub(super) fn new(sidecars: usize, limits: &str) -> World {
        World::with(sidecars, limits, Modes::default(), Failure::Deny)
    }

    pub(super) fn with(sidecars: usize, limits: &str, modes: Modes, failure: Failure) -> World {
        let clock = Arc::new(AtomicU64::new((START + 3_600_000) * 1_000_000));
        let server = Arc::new(Server {
            memory: Memory::new(99),
            commands: AtomicU64::new(0),
            network: Mutex::new(Network::Up),
            delay: AtomicU64::new(500_000),
            clock: clock.clone(),
        });
        let mut world = World {
            clock,
            server,
            sidecars: Vec::new(),
            answered: Vec::new(),
            limits: limits.to_owned(),
            modes,
            failure,
            next_id: 0,
            dir: tempfile::TempDir::new().expect("a directory"),
        };
        for index in 0..sidecars {
            let lag = Arc::new(AtomicU64::new(0));
            let sidecar = world.sidecar(Memory::new(index as u64), lag);
            world.sidecars.push(sidecar);
        }
        world
    }

    fn sidecar(&mut self, local: Arc<Memory>, lag: Arc<AtomicU64>) -> Sidecar {
        let rules = self.rules();
        let tasks = Arc::new(Mutex::new(Vec::new()));
        let (queue, clock, behind) = (tasks.clone(), self.clock.clone(), lag.clone());
        let reached = Arc::new(AtomicU64::new(0));
        let has_reached = reached.clone();
        self.next_id += 1;
        let shared = Shared {
            counters: self.server.clone(),
            clock: Arc::new(move || {
                let now = clock.load(Ordering::Relaxed) - behind.load(Ordering::Relaxed);
                // Time never goes back.
                let before = has_reached.fetch_max(now, Ordering::Relaxed);
                Some(Timestamp::from_nanos(now.max(before)))
            }),
            spawn: Arc::new(move |task| queue.lock().unwrap().push(task)),
            sidecar: self.next_id as u64,
            failure: self.failure,
        };
        let authority =
            Authority::with_shared(local.clone(), shared, rules, self.modes, Arc::new(()));
        let authority = Arc::new(authority.expect("an authority"));
        Sidecar { authority, local, tasks, lag, reached, requests: Vec::new() }
    }

    pub(super) fn rules(&self) -> Rules {
        let file = self.dir.path().join("limits.yaml");
        std::fs::write(&file, format!("domain: d\ndescriptors:\n{}", self.limits)).expect("a file");
        load(&file, SameDomain::Refuse).expect("good rules").rules
    }

    /// Kills a sidecar and starts another one on its local counters.
    pub(super) fn kill(&mut self, index: usize) {
        let (local, lag) = (self.sidecars[index].local.clone(), self.sidecars[index].lag.clone());
        self.sidecars[index] = self.sidecar(local, lag);
    }

    pub(super) fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.clock.load(Ordering::Relaxed))
    }

    pub(super) fn commands(&self) -> u64 {
        self.server.commands.load(Ordering::Relaxed)
    }

    /// Asks a sidecar, and polls the request once.
    pub(super) fn ask(&mut self, index: usize, hits: u64, descriptors: Vec<Descriptor>) -> usize {
        self.next_id += 1;
        let (id, now) = (self.next_id, self.now());
        let authority = self.sidecars[index].authority.clone();
        let request = Request { domain: "d".into(), descriptors, hits: Hits::new(hits) };
        let asked = Box::pin(async move { authority.decide(&request, now).await });
        self.poll(index, Pending { id, asked });
        id
    }

    fn poll(&mut self, index: usize, mut pending: Pending) {
        let mut context = Context::from_waker(Waker::noop());
        match pending.asked.as_mut().poll(&mut context) {
            Poll::Pending => self.sidecars[index].requests.push(pending),
            Poll::Ready(answer) => {
                let lag = self.sidecars[index].lag.load(Ordering::Relaxed);
                let reached = self.sidecars[index].reached.load(Ordering::Relaxed);
                let true_at = self.now().as_nanos();
                let at = (true_at - lag).max(reached);
                self.answered.push(Answered { id: pending.id, at, true_at, answer });
            }
        }
    }

    /// Sets the time that updates take each way, in nanoseconds.
    pub(super) fn set_delay(&mut self, nanos: u64) {
        self.server.delay.store(nanos, Ordering::Relaxed);
    }

    /// Sets how far the time of a sidecar is behind, in nanoseconds.
    pub(super) fn set_lag(&mut self, index: usize, nanos: u64) {
        self.sidecars[index].lag.store(nanos, Ordering::Relaxed);
    }

    /// Drops the tasks of a sidecar unfinished.
    pub(super) fn drop_tasks(&mut self, index: usize) {
        let tasks = std::mem::take(&mut *self.sidecars[index].tasks.lock().unwrap());
        drop(tasks);
    }

    /// The output of an operation; time passes meanwhile.
    pub(super) fn finish<T>(&mut self, mut operation: Pin<Box<dyn Future<Output = T>>>) -> T {
        loop {
            let mut context = Context::from_waker(Waker::noop());
            match operation.as_mut().poll(&mut context) {
                Poll::Ready(output) => return output,
                Poll::Pending => self.pass(250),
            }
        }
    }

    /// Lets all tasks and requests go on.
    pub(super) fn work(&mut self) {
        for index in 0..self.sidecars.len() {
            // Tasks may spawn others.
            let mut tasks = std::mem::take(&mut *self.sidecars[index].tasks.lock().unwrap());
            let mut context = Context::from_waker(Waker::noop());
            tasks.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
            self.sidecars[index].tasks.lock().unwrap().append(&mut tasks);
            for pending in std::mem::take(&mut self.sidecars[index].requests) {
                self.poll(index, pending);
            }
        }
    }

    /// Lets time pass, in steps of a quarter of a millisecond.
    pub(super) fn pass(&mut self, micros: u64) {
        let end = self.now().as_nanos() + micros * 1_000;
        while self.now().as_nanos() < end {
            let step = (end - self.now().as_nanos()).min(250_000);
            self.clock.fetch_add(step, Ordering::Relaxed);
            self.work();
        }
    }

    pub(super) fn tend(&mut self) {
        for sidecar in &self.sidecars {
            while sidecar.authority.tend_holdings() {}
        }
        self.work();
    }

    /// Lets time pass without requests, so that unused tokens go back.
    pub(super) fn rest(&mut self, millis: u64) {
        for _ in 0..millis.div_ceil(100) {
            self.clock.fetch_add(98_000_000, Ordering::Relaxed);
            self.tend();
            self.pass(2_000);
        }
    }

    pub(super) fn allowed(&self) -> usize {
        self.answered.iter().filter(|answered| answered.is_allow()).count()
    }

    pub(super) fn waiting(&self) -> usize {
        self.sidecars.iter().map(|sidecar| sidecar.requests.len()).sum()
    }

    /// What the shared counters have left of the limit of a descriptor.
    pub(super) fn left(&mut self, descriptors: Vec<Descriptor>) -> u32 {
        let other = self.sidecar(Memory::new(0), Arc::default());
        let request = Request { domain: "d".into(), descriptors, hits: Hits::PEEK };
        let now = self.now();
        // Without a command of the sidecars that are counted, and in no time.
        let (commands, delay) = (self.commands(), self.server.delay.swap(0, Ordering::Relaxed));
        let network = std::mem::replace(&mut *self.server.network.lock().unwrap(), Network::Up);
        let left = |_: Verdict, windows: &NodeWindows<'_>| {
            windows.iter().map(|window| window.decision.remaining).min().unwrap_or(0)
        };
        let left = crate::wait(other.authority.use_node(&request, Use::Look, now, left));
        self.server.commands.store(commands, Ordering::Relaxed);
        self.server.delay.store(delay, Ordering::Relaxed);
        *self.server.network.lock().unwrap() = network;
        left.expect("an answer") as u32
    }

    pub(super) fn server_keys(&self) -> usize {
        self.server.memory.keys()
    }

    /// The states that a sidecar has in its own memory.
    pub(super) fn local_keys(&self, index: usize) -> usize {
        self.sidecars[index].local.keys()
    }
}

pub(super) fn key(value: &str) -> Vec<Descriptor> {
    vec![Descriptor::new(vec![Entry::new("k", value)])]
}
