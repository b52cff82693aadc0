//! The counters that wait for one shard, and its queries.
//!
//! Each shard has its own, so one that does not answer delays no counter of another. The next query has all counters that
//! were asked for meanwhile. A counter that has waited for too long fails without a query. Otherwise the queue of a shard
//! that stands still would get older and older.

use super::look_up::LookUp;
use super::{FETCHES_MAX, KEYS_MAX, batch};
use crate::mover::now_secs;
use crate::tiered::Inner;
use std::sync::{Arc, Weak};
use tidegate_store::Hashed;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Queries of a shard that are under way.
const QUERIES_MAX: usize = 8;
/// The record of a counter that waits takes a node. Those that wait for shards take at most this part of all nodes, so that
/// a shard that stands still does not fill a small store.
const NODES_PART: u64 = 8;

#[derive(Debug)]
pub(super) struct Queue {
    shard: String,
    waiting: UnboundedSender<Waiting>,
    /// For the counters that wait, also those of queries.
    places: Arc<Semaphore>,
    places_max: usize,
}

/// A fetch that waits for a shard.
#[derive(Debug)]
pub(super) struct Waiting {
    look_up: Arc<LookUp>,
    _place: OwnedSemaphorePermit,
}

/// How many counters may wait for each shard: its part of all, so that others have theirs, and at least what its queries
/// have room for.
pub(super) fn places(shards: usize, nodes: u64) -> usize {
    let nodes = usize::try_from(nodes / NODES_PART).unwrap_or(FETCHES_MAX);
    (FETCHES_MAX.min(nodes) / shards.max(1)).max(QUERIES_MAX * KEYS_MAX)
}

impl Queue {
    pub(super) fn new(shard: String, places_max: usize) -> (Queue, UnboundedReceiver<Waiting>) {
        let (waiting, receiver) = unbounded_channel();
        let places = Arc::new(Semaphore::new(places_max));
        (Queue { shard, waiting, places, places_max }, receiver)
    }

    /// An error says why there is no place.
    pub(super) fn push(&self, look_up: &Arc<LookUp>) -> Result<(), String> {
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            return Err(format!(
                "{} cold counters wait for {} already",
                self.places_max, self.shard
            ));
        };
        // Without a receiver the engine is being dropped, and the fetch ends.
        let _ = self.waiting.send(Waiting { look_up: look_up.clone(), _place: place });
        Ok(())
    }
}

/// Asks a shard for the counters that wait for it, until the engine is dropped.
pub(super) async fn serve(
    inner: Weak<Inner>,
    shard: usize,
    mut waiting: UnboundedReceiver<Waiting>,
) {
    let queries = Arc::new(Semaphore::new(QUERIES_MAX));
    while let Some(first) = waiting.recv().await {
        let Some(within) = inner.upgrade().map(|inner| inner.settings.timeout) else { return };
        // The first one has waited for longest: if it is in time, so are the others.
        let query = timeout(first.look_up.left(within), queries.clone().acquire_owned());
        let Ok(permit) = query.await else {
            tokio::spawn(fail_late(inner.clone(), shard, first));
            continue;
        };
        let batch = batch(first, &mut waiting);
        let inner = inner.clone();
        tokio::spawn(async move {
            ask_all(inner, shard, batch).await;
            drop(permit);
        });
    }
}

async fn fail_late(inner: Weak<Inner>, shard: usize, waiting: Waiting) {
    let Some(inner) = inner.upgrade() else { return };
    let (name, within) = (&inner.fetches.queues[shard].shard, inner.settings.timeout);
    let cause = format!("{name} has not answered others within {within:?}, and was not asked");
    inner.fail(&waiting.look_up, cause);
}

/// Asks for a batch in one query. Its fetches end if this panics.
async fn ask_all(inner: Weak<Inner>, shard: usize, mut batch: Vec<Waiting>) {
    let Some(rows) = inner.upgrade().map(|inner| inner.rows.clone()) else { return };
    // Another shard may have failed.
    batch.retain(|waiting| waiting.look_up.is_open());
    if batch.is_empty() {
        return;
    }
    let keys: Vec<Hashed> = batch.iter().map(|waiting| waiting.look_up.key).collect();
    let fetched = rows.fetch(shard, &keys, now_secs()).await;
    let Some(inner) = inner.upgrade() else { return };
    match inner.noted(shard, fetched) {
        Ok(rows) => {
            let answers = batch.into_iter().zip(rows);
            answers.for_each(|(waiting, row)| inner.answered(&waiting.look_up, row));
        }
        Err(away) => {
            batch.iter().for_each(|waiting| inner.fail(&waiting.look_up, away.to_string()));
        }
    }
}
