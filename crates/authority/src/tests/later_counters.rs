//! Counters for tests that answer later, as an engine across a network does: from another thread, out of order, and
//! with every update run at least twice, since its first compare-and-set always loses.

use crate::counters::{Answers, Counters, Update, Updating};
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;
use tidegate_core::{StateSize, Timestamp};
use tidegate_store::{Class, Entry, Hashed, LoadedEntries, UPDATE_KEYS_MAX, UpdateError};

/// The engine. Dropping it ends its thread.
#[expect(missing_debug_implementations, reason = "for tests")]
pub struct LaterCounters {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Desk {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: Vec<Job>,
    is_held: bool,
    is_closed: bool,
}

/// A load or a commit. It wakes its update when it is done.
type Job = Box<dyn FnOnce(&mut States) + Send>;
type States = HashMap<Hashed, Entry>;

impl Default for LaterCounters {
    fn default() -> Self {
        let desk = Arc::new(Desk::default());
        let own = desk.clone();
        LaterCounters { thread: Some(std::thread::spawn(move || own.work())), desk }
    }
}

impl LaterCounters {
    /// Answers nothing until [`LaterCounters::release`].
    pub fn hold(&self) {
        self.desk.queue().is_held = true;
    }

    pub fn release(&self) {
        self.desk.queue().is_held = false;
        self.desk.changed.notify_all();
    }

    /// How many updates wait for an answer.
    pub fn waiting(&self) -> usize {
        self.desk.queue().jobs.len()
    }

    /// Has `job` done by the thread of the engine.
    async fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut States) -> T + Send + 'static,
    ) -> T {
        let reply = Arc::new(Mutex::new((None, None::<Waker>)));
        let own = reply.clone();
        let answered = move |states: &mut States| {
            let done = job(states);
            let mut reply = own.lock().unwrap_or_else(PoisonError::into_inner);
            reply.0 = Some(done);
            if let Some(waker) = reply.1.take() {
                waker.wake();
            }
        };
        self.desk.queue().jobs.push(Box::new(answered));
        self.desk.changed.notify_all();
        poll_fn(|context| {
            let mut reply = reply.lock().unwrap_or_else(PoisonError::into_inner);
            reply.1 = Some(context.waker().clone());
            reply.0.take().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    async fn load(&self, keys: &[Hashed], now: Timestamp) -> Vec<Entry> {
        let keys = keys.to_vec();
        self.ask(move |states| keys.iter().map(|key| entry(states, key, now)).collect()).await
    }

    /// Replaces `before` by `after`, unless a state has changed meanwhile.
    async fn compare_and_set(
        &self,
        keys: &[Hashed],
        now: Timestamp,
        before: Vec<Entry>,
        after: Vec<Entry>,
    ) -> bool {
        let keys = keys.to_vec();
        let set = move |states: &mut States| {
            let mut each = keys.iter().zip(&before);
            let is_same = each.all(|(key, before)| entry(states, key, now) == *before);
            if is_same {
                // An expired state stays until its key changes: clocks go back.
                let changes = keys.into_iter().zip(after).zip(before);
                let changed = changes.filter(|((_, after), before)| after != before);
                states.extend(changed.map(|(change, _)| change));
            }
            is_same
        };
        self.ask(set).await
    }
}

impl Counters for LaterCounters {
    fn seed(&self) -> u64 {
        17
    }

    fn state_words(&self) -> usize {
        StateSize::Wide.words()
    }

    fn capacity(&self) -> u64 {
        4_096
    }

    fn answers(&self) -> Answers {
        Answers::Later
    }

    fn update<'u>(
        &'u self,
        keys: &'u [Hashed],
        now: Timestamp,
        update: &'u mut Update<'u>,
    ) -> Updating<'u> {
        Updating::Later(Box::pin(async move {
            let (keys_max, words, words_max) = (UPDATE_KEYS_MAX, 0, 0);
            if keys.len() > keys_max {
                let keys = keys.len();
                let too_large = UpdateError::TooLarge { keys, words, keys_max, words_max };
                return Err(too_large.into());
            }
            // As if another client had written in between: these states were never committed.
            let mut stale = keys.iter().map(new_entry).collect::<Vec<_>>();
            for entry in &mut stale {
                entry.expires_at = now.as_nanos() + 1;
                entry.state[0] = 1;
            }
            let mut before = stale;
            loop {
                let mut loads = before.iter();
                let mut loaded = LoadedEntries::new(keys, |key| match loads.next() {
                    Some(entry) => entry.clone(),
                    None => new_entry(key),
                });
                update(&mut loaded.entries());
                let mut entries = loaded.entries();
                let after = |index| {
                    let entry = entries.get(index);
                    Entry::new(entry.state, *entry.expires_at)
                };
                let after = (0..keys.len()).map(after).collect();
                if self.compare_and_set(keys, now, before, after).await {
                    return Ok(());
                }
                before = self.load(keys, now).await;
            }
        }))
    }
}

impl Drop for LaterCounters {
    fn drop(&mut self) {
        self.desk.queue().is_closed = true;
        self.desk.changed.notify_all();
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
            std::panic::resume_unwind(panic);
        }
    }
}

impl Desk {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does jobs, the latest first.
    fn work(&self) {
        let mut states = States::new();
        loop {
            let idle =
                |queue: &mut Queue| !queue.is_closed && (queue.is_held || queue.jobs.is_empty());
            let queue = self.changed.wait_while(self.queue(), idle);
            let mut queue = queue.unwrap_or_else(PoisonError::into_inner);
            if queue.is_closed {
                return;
            }
            let jobs = std::mem::take(&mut queue.jobs);
            drop(queue);
            jobs.into_iter().rev().for_each(|job| job(&mut states));
        }
    }
}

/// The live entry of a key, or a new one.
fn entry(states: &States, key: &Hashed, now: Timestamp) -> Entry {
    let is_live = |entry: &&Entry| {
        !entry.is_expired(now.as_nanos()) && entry.state.iter().any(|word| *word != 0)
    };
    states.get(key).filter(is_live).cloned().unwrap_or_else(|| new_entry(key))
}

fn new_entry(key: &Hashed) -> Entry {
    let size = match key.class {
        Class::Narrow => StateSize::Narrow,
        Class::Wide => StateSize::Wide,
    };
    Entry::new(&vec![0; size.words()], 0)
}
