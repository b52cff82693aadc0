//! Fetches: counters that are not hot are brought up, or found to have no row.
//!
//! A fetch takes three steps: a record with a token says that it has begun while the counter was not hot; then the shards
//! are asked that may have a row; then the counter gets the state of the newest row, if the record still has the token.
//! A counter can only have been hot meanwhile if another process has taken the record's place. So a row that comes late is
//! never taken for the truth.
//!
//! All updates of a process that need a counter wait for one fetch of it. The next query has all counters that were asked for
//! meanwhile.
//! Bounds: fetches that wait, keys of a query, queries under way. Beyond them an update fails.

use crate::record::{Record, record_key};
use crate::tally::add;
use crate::tiered::Inner;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tidegate_authority::{Undecided, clock};
use tidegate_cold::Row;
use tidegate_core::Timestamp;
use tidegate_store::{Entries, Hashed, UpdateError};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::{JoinSet, yield_now};

/// Counters that are waited for: some 200 bytes each.
const FETCHES_MAX: usize = 65_536;
/// The keys of a query.
const KEYS_MAX: usize = 128;
/// Queries under way.
const QUERIES_MAX: usize = 8;
/// How long a record of a fetch, or of what one found, is kept, and at least so many times the time that a fetch may take.
const KEPT: u64 = 10;
const KEPT_TIMES: u64 = 3;
/// The pauses before another process's fetch is looked at again: each twice the one before.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(64);
const SECOND: u64 = 1_000_000_000;

/// The fetches of a process.
#[derive(Debug)]
pub(crate) struct Fetches {
    state: Mutex<State>,
    asked: Arc<Notify>,
    queries: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct State {
    under_way: HashMap<Hashed, watch::Receiver<Ended>>,
    queue: Vec<Asked>,
}

/// How a fetch has ended: none while it has not, and otherwise why it failed, if it did.
type Ended = Option<Result<(), Undecided>>;

/// A counter that is asked for. It ends in any case, also by a panic.
#[derive(Debug)]
struct Asked {
    key: Hashed,
    ended: watch::Sender<Ended>,
}

/// What a look at a counter before its fetch has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begun {
    /// It is hot, or a record says that no row counts.
    Settled,
    Now,
    /// Another process fetches it.
    Elsewhere,
}

impl Default for Fetches {
    fn default() -> Fetches {
        let queries = Arc::new(Semaphore::new(QUERIES_MAX));
        Fetches { state: Mutex::default(), asked: Arc::default(), queries }
    }
}

impl Fetches {
    /// Waits for the fetch of a counter, which begins now unless it is under way. An error says why it failed.
    pub(crate) fn join(
        &self,
        key: &Hashed,
    ) -> Result<impl Future<Output = Result<(), Undecided>> + Send + use<>, Undecided> {
        let mut state = self.state();
        let receiver = match state.under_way.get(key) {
            Some(receiver) => receiver.clone(),
            None if state.under_way.len() >= FETCHES_MAX => {
                let cause = format!("{FETCHES_MAX} cold counters are waited for already");
                return Err(Undecided::Unreachable { cause });
            }
            None => {
                let (ended, receiver) = watch::channel(None);
                state.under_way.insert(*key, receiver.clone());
                state.queue.push(Asked { key: *key, ended });
                self.asked.notify_one();
                receiver
            }
        };
        drop(state);
        Ok(wait_for(receiver))
    }

    fn take(&self) -> Vec<Asked> {
        let mut state = self.state();
        let most = state.queue.len().min(KEYS_MAX);
        state.queue.drain(..most).collect()
    }

    fn end(&self, asked: &Asked, result: Result<(), Undecided>) {
        self.state().under_way.remove(&asked.key);
        asked.ended.send_replace(Some(result));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn wait_for(mut receiver: watch::Receiver<Ended>) -> Result<(), Undecided> {
    match receiver.wait_for(Option::is_some).await {
        Ok(ended) => ended.clone().unwrap_or(Ok(())),
        Err(_) => Err(given_up()),
    }
}

fn given_up() -> Undecided {
    Undecided::Unreachable { cause: "the fetch was given up".to_owned() }
}

/// Counters of one query. Those that have not ended when it is dropped have failed.
struct Batch {
    inner: Arc<Inner>,
    asked: Vec<Asked>,
}

impl Batch {
    /// Begins the fetch of each counter, and ends those that need none. Returns the fetches that have begun, and those of
    /// counters that another process fetches.
    fn begin(mut self, token: u64, must: bool) -> (Batch, Batch) {
        let inner = self.inner.clone();
        let empty = || Batch { inner: inner.clone(), asked: Vec::new() };
        let (mut begun, mut elsewhere) = (empty(), empty());
        for asked in self.asked.drain(..) {
            match inner.begin(&asked.key, token, must) {
                Ok(Begun::Settled) => inner.fetches.end(&asked, Ok(())),
                Ok(Begun::Now) => begun.asked.push(asked),
                Ok(Begun::Elsewhere) => elsewhere.asked.push(asked),
                Err(error) => inner.fetches.end(&asked, Err(error.into())),
            }
        }
        (begun, elsewhere)
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        for asked in self.asked.drain(..) {
            self.inner.fetches.end(&asked, Err(given_up()));
        }
    }
}

/// Fetches the counters that updates ask for, until the engine is dropped. Does not keep the store open while it waits.
pub(crate) async fn serve(inner: Weak<Inner>) {
    let Some((asked, queries)) =
        inner.upgrade().map(|inner| (inner.fetches.asked.clone(), inner.fetches.queries.clone()))
    else {
        return;
    };
    loop {
        asked.notified().await;
        // After all that is being asked for now, so that it goes in one query.
        yield_now().await;
        loop {
            let Ok(permit) = queries.clone().acquire_owned().await else { return };
            let Some(inner) = inner.upgrade() else { return };
            let asked = inner.fetches.take();
            if asked.is_empty() {
                break;
            }
            tokio::spawn(async move {
                fetch(Batch { inner, asked }).await;
                drop(permit);
            });
        }
    }
}

/// Fetches a batch. Counters that another process fetches are waited for apart from the others.
async fn fetch(batch: Batch) {
    let token = batch.inner.token();
    let (begun, elsewhere) = batch.begin(token, false);
    if !elsewhere.asked.is_empty() {
        tokio::spawn(fetch_after_others(elsewhere));
    }
    fetch_begun(begun, token).await;
}

/// Waits for the fetches of other processes, and fetches what these have not.
async fn fetch_after_others(mut batch: Batch) {
    let inner = batch.inner.clone();
    let (start, mut pause) = (Instant::now(), PAUSE);
    while !batch.asked.is_empty() {
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(PAUSE_MAX);
        // The process may have been killed, or stand still.
        let must_take_over = start.elapsed() >= inner.settings.timeout;
        let token = inner.token();
        let begun;
        (begun, batch) = batch.begin(token, must_take_over);
        fetch_begun(begun, token).await;
    }
}

/// Asks the shards for counters whose fetch has begun with this token.
async fn fetch_begun(mut batch: Batch, token: u64) {
    let inner = batch.inner.clone();
    if batch.asked.is_empty() {
        return;
    }
    let now = (clock::now().as_nanos() / SECOND) as u32;
    let mut found: HashMap<Hashed, Row> = HashMap::new();
    let mut failed: HashMap<Hashed, String> = HashMap::new();
    let mut queries = JoinSet::new();
    for (shard, filter) in inner.filters.iter().enumerate() {
        let may_have = batch.asked.iter().map(|asked| asked.key).filter(|key| filter.may_have(key));
        let keys: Vec<Hashed> = may_have.collect();
        if !keys.is_empty() {
            let rows = inner.rows.clone();
            queries.spawn(async move {
                let fetched = rows.fetch(shard, &keys, now).await;
                (shard, keys, fetched)
            });
        }
    }
    while let Some(query) = queries.join_next().await {
        // A panic is a failure of the whole batch, which ends when it is dropped.
        let Ok((shard, keys, fetched)) = query else { return };
        match inner.noted(shard, fetched) {
            Ok(rows) => {
                for row in rows.into_iter().flatten() {
                    // Several shards have one only while counters move from one to the other: the newest counts.
                    let is_newer = |other: &Row| other.moved_at < row.moved_at;
                    if found.get(&row.key).is_none_or(is_newer) {
                        found.insert(row.key, row);
                    }
                }
            }
            Err(away) => failed.extend(keys.into_iter().map(|key| (key, away.to_string()))),
        }
    }
    for asked in batch.asked.drain(..) {
        let result = match failed.remove(&asked.key) {
            Some(cause) => {
                inner.give_up(&asked.key, token);
                Err(Undecided::Unreachable { cause })
            }
            None => {
                let settled = inner.settle(&asked.key, token, found.get(&asked.key));
                if settled.is_err() {
                    // Without room for the counter, say.
                    inner.give_up(&asked.key, token);
                }
                settled.map_err(Into::into)
            }
        };
        inner.fetches.end(&asked, result);
    }
}

impl Inner {
    /// In seconds.
    fn kept(&self) -> u64 {
        KEPT.max(self.settings.timeout.as_secs().saturating_add(1).saturating_mul(KEPT_TIMES))
    }

    /// Begins a fetch, if nothing is known of the counter. Takes the place of another process's fetch if it must.
    fn begin(&self, key: &Hashed, token: u64, must: bool) -> Result<Begun, UpdateError> {
        // A counter that comes back has had uses before, and must not move again at once.
        self.heat.used(key);
        self.with_record(key, |counter_is_new, entries, now| {
            if !counter_is_new {
                return Begun::Settled;
            }
            let record = entries.get(1);
            match Record::read(record.state) {
                Some((_, Record::Absent | Record::Fetched { .. })) => Begun::Settled,
                Some((_, Record::Fetching { .. })) if !must => Begun::Elsewhere,
                Some((_, Record::Fetching { .. })) | None => {
                    Record::Fetching { token }.write(key, record.state);
                    *record.expires_at = now.as_nanos() + self.kept() * SECOND;
                    Begun::Now
                }
            }
        })
    }

    /// Ends a fetch: the counter gets the state of its row, or is known to have none.
    fn settle(&self, key: &Hashed, token: u64, row: Option<&Row>) -> Result<(), UpdateError> {
        let pass = self.hot.completed_pass() as u32;
        let brought = self.with_record(key, |counter_is_new, entries, now| {
            if !is_own(entries.get(1).state, token) {
                // Another process has it, or has had it. The update looks again.
                return false;
            }
            let row = row.filter(|row| u64::from(row.expires_at) * SECOND > now.as_nanos());
            let has_room = row.is_none_or(|row| row.state.len() <= entries.get(0).state.len());
            if let (true, true, Some(row)) = (counter_is_new, has_room, row) {
                let counter = entries.get(0);
                counter.state[..row.state.len()].copy_from_slice(&row.state);
                *counter.expires_at = u64::from(row.expires_at) * SECOND;
            }
            let record = entries.get(1);
            match row {
                Some(row) => {
                    Record::Fetched { moved_at: row.moved_at, pass }.write(key, record.state);
                    *record.expires_at = u64::from(row.expires_at) * SECOND;
                }
                None if counter_is_new => {
                    Record::Absent.write(key, record.state);
                    *record.expires_at = now.as_nanos() + self.kept() * SECOND;
                }
                None => record.state.fill(0),
            }
            row.is_some()
        })?;
        match brought {
            true => add(&self.tally.fetched, 1),
            false => add(&self.tally.fetched_in_vain, 1),
        }
        Ok(())
    }

    /// Ends a fetch that failed, so that the next one need not wait for it.
    fn give_up(&self, key: &Hashed, token: u64) {
        let given_up = self.with_record(key, |_, entries, _| {
            let record = entries.get(1);
            if is_own(record.state, token) {
                record.state.fill(0);
            }
        });
        if let Err(error) = given_up {
            // The next fetch waits for a moment.
            tracing::debug!(%error, "the record of a fetch stays");
        }
    }

    /// One transaction over a counter, entry 0, and its record, entry 1.
    pub(crate) fn with_record<T>(
        &self,
        key: &Hashed,
        act: impl FnOnce(bool, &mut Entries<'_>, Timestamp) -> T,
    ) -> Result<T, UpdateError> {
        let (keys, now) = ([*key, record_key(self.hot.seed(), key)], clock::now());
        self.hot.update_many(&keys, now.as_nanos(), |entries| {
            let counter_is_new = entries.get(0).is_new();
            act(counter_is_new, entries, now)
        })
    }
}

/// Whether a record is of the fetch with this token.
fn is_own(record: &[u64], token: u64) -> bool {
    matches!(Record::read(record), Some((_, Record::Fetching { token: of })) if of == token)
}
