//! Fetches: counters that are not hot are brought up, or found to have no row.
//!
//! A fetch takes three steps: a record with a token says that it has begun while the counter was not hot; then the shards
//! are asked that may have a row (`queue`); then the counter gets the state of the newest row, if the record still has the
//! token (`steps`). A counter can only have been hot meanwhile if another process has taken the record's place. So a row that
//! comes late is never taken for the truth.
//!
//! All updates of a process that need a counter wait for one fetch of it. It ends in any case, also by a panic, or when the
//! engine is dropped.
//!
//! Bounds: fetches that wait, also for one shard, keys of a query, queries of a shard, and the time in its queue. Beyond
//! them an update fails.

mod look_up;
mod queue;
mod steps;

use crate::tiered::Inner;
use look_up::{Level, LookUp};
use queue::{Queue, Waiting};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use steps::Begun;
use tidegate_authority::Undecided;
use tidegate_store::Hashed;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::yield_now;

/// Counters that are waited for: some 900 bytes each, and a node for the record.
const FETCHES_MAX: usize = 65_536;
/// The keys of a query, and the counters that begin together.
const KEYS_MAX: usize = 128;
/// The pauses before another process's fetch is looked at again: each twice the one before.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(64);

/// The fetches of a process.
#[derive(Debug)]
pub(crate) struct Fetches {
    under_way: Arc<UnderWay>,
    asked: UnboundedSender<Asked>,
    /// One for each shard.
    queues: Vec<Queue>,
}

/// The other ends of the queues, for the tasks that fetch. Fetches that are left in them end when they are dropped.
pub(crate) struct Intake {
    asked: UnboundedReceiver<Asked>,
    queues: Vec<UnboundedReceiver<Waiting>>,
}

type UnderWay = Mutex<HashMap<Hashed, watch::Receiver<Ended>>>;

/// How a fetch has ended: none while it has not, and otherwise why it failed, if it did.
type Ended = Option<Result<(), Undecided>>;

/// A counter that is asked for, until it is dropped.
#[derive(Debug)]
struct Asked {
    key: Hashed,
    /// None if it is given up.
    result: Ended,
    ended: watch::Sender<Ended>,
    under_way: Arc<UnderWay>,
}

impl Fetches {
    /// Of the shards with these names, for a store with so many nodes.
    pub(crate) fn new(shards: &[String], nodes: u64) -> (Fetches, Intake) {
        let (asked, to_begin) = unbounded_channel();
        let places = queue::places(shards.len(), nodes);
        let of_shard = |name: &String| Queue::new(name.clone(), places);
        let (queues, waiting) = shards.iter().map(of_shard).unzip();
        let fetches = Fetches { under_way: Arc::default(), asked, queues };
        (fetches, Intake { asked: to_begin, queues: waiting })
    }

    /// Waits for the fetch of a counter, which begins now unless it is under way. An error says why it failed.
    pub(crate) fn join(
        &self,
        key: &Hashed,
    ) -> Result<impl Future<Output = Result<(), Undecided>> + Send + use<>, Undecided> {
        let mut under_way = lock(&self.under_way);
        let receiver = match under_way.get(key) {
            Some(receiver) => receiver.clone(),
            None if under_way.len() >= FETCHES_MAX => {
                let cause = format!("{FETCHES_MAX} cold counters are waited for already");
                return Err(Undecided::Unreachable { cause });
            }
            None => {
                let (ended, receiver) = watch::channel(None);
                under_way.insert(*key, receiver.clone());
                // What ends takes the lock.
                drop(under_way);
                let under_way = self.under_way.clone();
                // Without a receiver the engine is being dropped: the fetch has ended.
                let _ = self.asked.send(Asked { key: *key, result: None, ended, under_way });
                receiver
            }
        };
        Ok(wait_for(receiver))
    }
}

async fn wait_for(mut receiver: watch::Receiver<Ended>) -> Result<(), Undecided> {
    match receiver.wait_for(Option::is_some).await {
        Ok(ended) => ended.clone().unwrap_or(Ok(())),
        Err(_) => Err(Undecided::Unreachable { cause: "the fetch was given up".to_owned() }),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Asked {
    fn end(mut self, result: Result<(), Undecided>) {
        self.result = Some(result);
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        lock(&self.under_way).remove(&self.key);
        // Otherwise those who wait hear that nobody will answer.
        if self.result.is_some() {
            self.ended.send_replace(self.result.take());
        }
    }
}

/// Fetches the counters that updates ask for, until the engine is dropped. Does not keep the store open while it waits.
pub(crate) fn start(inner: &Arc<Inner>, intake: Intake, runtime: &Runtime) {
    runtime.spawn(serve(Arc::downgrade(inner), intake.asked));
    for (shard, waiting) in intake.queues.into_iter().enumerate() {
        runtime.spawn(queue::serve(Arc::downgrade(inner), shard, waiting));
    }
}

async fn serve(inner: Weak<Inner>, mut asked: UnboundedReceiver<Asked>) {
    while let Some(first) = asked.recv().await {
        // After all that is being asked for now, so that it goes in one query.
        yield_now().await;
        tokio::spawn(fetch(inner.clone(), batch(first, &mut asked)));
    }
}

/// The first one of a queue, and those that wait behind it, as far as they go in one query.
fn batch<T>(first: T, behind: &mut UnboundedReceiver<T>) -> Vec<T> {
    let mut batch = vec![first];
    while batch.len() < KEYS_MAX
        && let Ok(next) = behind.try_recv()
    {
        batch.push(next);
    }
    batch
}

/// Begins the fetches of a batch. Those of other processes are waited for, and what these do not fetch is fetched then.
async fn fetch(inner: Weak<Inner>, mut batch: Vec<Asked>) {
    let (start, mut pause) = (Instant::now(), PAUSE);
    loop {
        {
            let Some(inner) = inner.upgrade() else { return };
            // The process may have been killed, or stand still.
            let must_take_over = start.elapsed() >= inner.settings.timeout;
            batch = inner.begin_all(batch, must_take_over);
        }
        if batch.is_empty() {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(PAUSE_MAX);
    }
}

impl Inner {
    /// Begins the fetch of each counter, and ends those that need none. Returns those that another process fetches.
    fn begin_all(&self, batch: Vec<Asked>, must_take_over: bool) -> Vec<Asked> {
        let token = self.tokens.take();
        let mut elsewhere = Vec::new();
        for asked in batch {
            match self.begin(&asked.key, token, must_take_over) {
                Ok(Begun::Settled) => asked.end(Ok(())),
                Ok(Begun::Now) => self.ask(&Arc::new(LookUp::new(asked, token)), Level::Upper),
                Ok(Begun::Elsewhere) => elsewhere.push(asked),
                Err(error) => asked.end(Err(error.into())),
            }
        }
        elsewhere
    }
}
