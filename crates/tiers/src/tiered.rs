//! The engine of counters that requests see.
//!
//! An update of hot counters is one transaction of the store, as without tiers. One that meets a counter which is not hot,
//! but may have a row, changes nothing: it waits until that is settled (`fetch`), and runs then, in a transaction that has
//! the record of the counter as well. So between the look at a record and the update nothing can move.

use crate::fetch::{self, Fetches};
use crate::filter::Filter;
use crate::heat::Heat;
use crate::probe;
use crate::record::{ALL_ROWS, Record, record_key};
use crate::rows::{Away, Rows};
use crate::tally::{Counts, Tally, add};
use crate::totals::{self, Totals};
use smallvec::SmallVec;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_authority::{Answers, Counters, Undecided, Update, Updating};
use tidegate_core::Timestamp;
use tidegate_store::{Class, Cluster, Entries, Hashed, OpenError};
use tokio::runtime::{Builder, Handle, Runtime};

/// How often an update waits for its counters until it is given up. They come at the first time, unless other processes
/// fetch the same ones, or they are idle at once.
const TRIES_MAX: u32 = 8;
/// How long an engine that is dropped waits for its tasks.
const END_MAX: Duration = Duration::from_secs(3);
/// Why an update is refused after so many fetches.
pub(crate) const FETCHED_ELSEWHERE: &str = "other processes fetch the same counters";
/// How long a record of rows that cannot be read is kept: longer than any window.
const FOR_EVER: u64 = 2 * 366 * 24 * 3600;
const SECOND: u64 = 1_000_000_000;

/// What becomes of requests whose counters may be cold while their database is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Missing {
    /// They are denied.
    #[default]
    Deny,
    /// These limits let them pass, and count nothing.
    Allow,
    /// These limits begin to count anew, whatever the rows say.
    Fresh,
}

#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// How many cold counters the filters have room for.
    pub capacity: u64,
    pub missing: Missing,
    /// How long a fetch of another process is waited for. Longer than an operation of the database takes.
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        let timeout = Duration::from_secs(1);
        Settings { capacity: 10_000_000, missing: Missing::Deny, timeout }
    }
}

/// What requests, fetches and moves have in common.
pub(crate) struct Inner {
    pub(crate) hot: Arc<Cluster>,
    pub(crate) heat: Heat,
    /// One for each shard.
    pub(crate) filters: Vec<Filter>,
    pub(crate) rows: Arc<dyn Rows>,
    pub(crate) settings: Settings,
    pub(crate) tally: Tally,
    pub(crate) totals: Totals,
    pub(crate) fetches: Fetches,
    /// What is known of each shard.
    heard: Mutex<Vec<Heard>>,
    pub(crate) tokens: Tokens,
}

/// Distinguishes the fetches of this process from one another, and from those of others: numbers in a row, from one at random.
pub(crate) struct Tokens {
    first: u64,
    next: AtomicU64,
}

impl Tokens {
    fn new() -> Tokens {
        let first = RandomState::new().hash_one("token");
        Tokens { first, next: AtomicU64::new(first) }
    }

    pub(crate) fn take(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether this process has taken it.
    pub(crate) fn has_taken(&self, token: u64) -> bool {
        let taken = self.next.load(Ordering::Relaxed).wrapping_sub(self.first);
        token.wrapping_sub(self.first) < taken
    }
}

/// What is known of a shard.
#[derive(Debug, Clone, Default)]
struct Heard {
    /// Why its last operation failed, if it did.
    trouble: Option<String>,
    /// Whether an operation has succeeded since the last look.
    is_recent: bool,
}

/// Counters in a store, of which the idle ones are in databases. Dropping it ends its thread.
pub struct Tiered {
    pub(crate) inner: Arc<Inner>,
    /// None only while it is dropped.
    runtime: Option<Runtime>,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TiersError {
    #[error(transparent)]
    Memory(#[from] OpenError),
    #[error("cannot start a thread for cold counters: {0}")]
    Thread(#[from] io::Error),
}

/// What came of an update.
enum Attempt {
    Done(Result<(), Undecided>),
    /// Nothing: these counters must be fetched first.
    Missing(Keys),
}

type Keys = SmallVec<[Hashed; 2]>;

/// What is known of the counters of an update after fetches.
#[derive(Default)]
struct Known {
    /// Their records are part of the update.
    settled: Keys,
    /// Their rows could not be read.
    failed: Keys,
}

impl Tiered {
    /// Over a store of this process, and databases that may be away.
    pub fn new(
        hot: Arc<Cluster>,
        rows: Arc<dyn Rows>,
        settings: Settings,
    ) -> Result<Tiered, TiersError> {
        let shards = rows.shards();
        let for_each = settings.capacity.div_ceil(shards.len().max(1) as u64);
        // Hashing makes some shards larger than others.
        let words = Filter::words_for(for_each + for_each / 5);
        let filter = |name: &String| {
            let name =
                format!("filter-{:016x}", tidegate_core::fingerprint(name.as_bytes()) as u64);
            hot.shared_words(&name, words).map(Filter::over)
        };
        let filters = shards.iter().map(filter).collect::<Result<Vec<_>, _>>()?;
        let nodes = |class| hot.geometry(class).map_or(0, |geometry| geometry.nodes());
        let nodes = nodes(Class::Narrow) + nodes(Class::Wide);
        let heat = hot.shared_words("heat", Heat::words_for(nodes))?;
        // Each update reads a byte of it, and they are all over it.
        heat.use_large_pages();
        let heat = Heat::over(heat);
        let (fetches, intake) = Fetches::new(&shards, hot.capacity());
        let inner = Arc::new(Inner {
            heat,
            heard: Mutex::new(vec![Heard::default(); filters.len()]),
            filters,
            rows,
            settings,
            tally: Tally::default(),
            totals: Totals::of(&hot)?,
            fetches,
            tokens: Tokens::new(),
            hot,
        });
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("tidegate-tiers")
            .enable_all()
            .build()?;
        fetch::start(&inner, intake, &runtime);
        runtime.spawn(totals::serve(Arc::downgrade(&inner)));
        for shard in 0..inner.filters.len() {
            runtime.spawn(probe::serve(Arc::downgrade(&inner), shard));
        }
        Ok(Tiered { inner, runtime: Some(runtime) })
    }

    /// Where operations of databases run.
    pub(crate) fn runtime(&self) -> io::Result<Handle> {
        let runtime = self.runtime.as_ref().map(|runtime| runtime.handle().clone());
        runtime.ok_or_else(|| io::Error::other("the tiers are being closed"))
    }

    #[must_use]
    pub fn counts(&self) -> Counts {
        self.inner.tally.counts()
    }

    /// Why a database does not answer, if one does not.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.inner.trouble()
    }

    /// Why counters may be lost from a database, if they may, as far as it is known.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        self.inner.rows.warning()
    }

    /// Whether it is known which counters are cold. Before that, each new counter is looked up.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.inner.filters.iter().all(Filter::is_complete)
    }
}

impl Drop for Tiered {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A task may have the store right now. It must not have it when the caller goes on, and perhaps opens it again.
            match Handle::try_current() {
                Err(_) => runtime.shutdown_timeout(END_MAX),
                // Here nothing may wait.
                Ok(_) => runtime.shutdown_background(),
            }
        }
        self.inner.add_to_totals();
    }
}

impl fmt::Debug for Tiered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tiered").field("rows", &self.inner.rows).finish_non_exhaustive()
    }
}

impl Inner {
    /// Whether a shard may have a row of this key.
    #[inline]
    pub(crate) fn may_be_cold(&self, key: &Hashed) -> bool {
        self.filters.iter().any(|filter| filter.may_have(key))
    }

    /// Notes how an operation of a shard has ended.
    fn note(&self, shard: usize, failed: Option<String>) {
        let mut heard = self.heard();
        let Some(heard) = heard.get_mut(shard) else { return };
        if let Some(cause) = &failed {
            add(&self.tally.failed, 1);
            if heard.trouble.is_none() {
                tracing::warn!(
                    shard = self.rows.shards()[shard],
                    cause,
                    "a database of cold counters does not answer"
                );
            }
        } else if heard.trouble.is_some() {
            tracing::info!(
                shard = self.rows.shards()[shard],
                "the database of cold counters answers again"
            );
        }
        heard.is_recent = failed.is_none();
        heard.trouble = failed;
    }

    /// Whether a shard has answered since the last look, and not failed after that.
    pub(crate) fn was_heard_of(&self, shard: usize) -> bool {
        let mut heard = self.heard();
        heard.get_mut(shard).is_some_and(|heard| std::mem::take(&mut heard.is_recent))
    }

    /// Notes how an operation of a shard has ended, and returns its answer.
    pub(crate) fn noted<T>(&self, shard: usize, done: Result<T, Away>) -> Result<T, Away> {
        self.note(shard, done.as_ref().err().map(ToString::to_string));
        done
    }

    fn trouble(&self) -> Option<String> {
        let heard = self.heard();
        let shards = self.rows.shards();
        let mut each = shards.iter().zip(&*heard);
        each.find_map(|(shard, heard)| Some(format!("{shard}: {}", heard.trouble.as_ref()?)))
    }

    fn heard(&self) -> MutexGuard<'_, Vec<Heard>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes an update, unless a counter that is not hot has to be settled first. Nothing is known of its counters.
    #[inline]
    fn attempt_first(&self, keys: &[Hashed], now: Timestamp, update: &mut Update<'_>) -> Attempt {
        let [key] = keys else { return self.attempt(keys, &Known::default(), now, update) };
        // Most updates are of one counter that is hot. The same with less to keep in mind.
        let place = self.heat.prefetch(key);
        let (mut is_new, mut is_missing) = (false, false);
        let updated = self.hot.update_many(keys, now.as_nanos(), |entries| {
            is_new = entries.get(0).is_new();
            is_missing = is_new && self.may_be_cold(key);
            if !is_missing {
                update(entries);
            }
        });
        match updated {
            Err(error) => Attempt::Done(Err(error.into())),
            Ok(()) if is_missing => Attempt::Missing(Keys::from_slice(keys)),
            Ok(()) => {
                self.heat.used_at(place);
                add_if_any(&self.tally.spared, is_new.into());
                Attempt::Done(Ok(()))
            }
        }
    }

    /// The same, with what is known of its counters.
    fn attempt(
        &self,
        keys: &[Hashed],
        known: &Known,
        now: Timestamp,
        update: &mut Update<'_>,
    ) -> Attempt {
        let settled = &*known.settled;
        keys.iter().for_each(|key| _ = self.heat.prefetch(key));
        let mut all = Keys::new();
        if !settled.is_empty() {
            let seed = self.hot.seed();
            all.extend_from_slice(keys);
            all.extend(settled.iter().map(|key| record_key(seed, key)));
        }
        let mut missing = Keys::new();
        let (mut spared, mut without_state) = (0, 0);
        let run = |entries: &mut Entries<'_>| {
            let (mut new, mut rowless) = (0, Keys::new());
            for (index, key) in keys.iter().enumerate() {
                if !entries.get(index).is_new() {
                    continue;
                }
                new += 1;
                if self.may_be_cold(key) && !is_settled(entries, keys.len(), settled, key) {
                    let to = if known.failed.contains(key) { &mut rowless } else { &mut missing };
                    if !to.contains(key) {
                        to.push(*key);
                    }
                }
            }
            if !missing.is_empty() {
                return;
            }
            update(entries);
            if new > 0 {
                (spared, without_state) = (new - rowless.len() as u64, rowless.len() as u64);
                self.do_without(entries, keys, settled, &rowless, now);
                self.leave_records(entries, keys, settled, now);
            }
        };
        let nanos = now.as_nanos();
        let updated = match settled.is_empty() {
            true => self.hot.update_many(keys, nanos, run),
            false => self.hot.update_many(&all, nanos, run),
        };
        match updated {
            Err(error) => Attempt::Done(Err(error.into())),
            Ok(()) if !missing.is_empty() => Attempt::Missing(missing),
            Ok(()) => {
                keys.iter().for_each(|key| self.heat.used(key));
                add_if_any(&self.tally.spared, spared);
                add_if_any(&self.tally.without_state, without_state);
                Attempt::Done(Ok(()))
            }
        }
    }

    /// After an update: a counter that is hot now has no record of its absence.
    fn leave_records(
        &self,
        entries: &mut Entries<'_>,
        keys: &[Hashed],
        settled: &[Hashed],
        now: Timestamp,
    ) {
        for (index, key) in settled.iter().enumerate() {
            let Some(of) = keys.iter().position(|other| other == key) else { continue };
            let is_hot = {
                let entry = entries.get(of);
                *entry.expires_at > now.as_nanos() && entry.state.iter().any(|word| *word != 0)
            };
            let record = entries.get(keys.len() + index);
            if is_hot && matches!(Record::read(record.state), Some((_, Record::Absent))) {
                record.state.fill(0);
            }
        }
    }

    /// After an update on counters whose rows could not be read, as if they had none.
    fn do_without(
        &self,
        entries: &mut Entries<'_>,
        keys: &[Hashed],
        settled: &[Hashed],
        rowless: &[Hashed],
        now: Timestamp,
    ) {
        for key in rowless {
            if self.settings.missing == Missing::Allow {
                let Some(index) = keys.iter().position(|other| other == key) else { continue };
                entries.get(index).state.fill(0);
            } else if let Some(index) = settled.iter().position(|other| other == key) {
                // Whatever the rows say, they are stale from now on.
                let record = entries.get(keys.len() + index);
                let pass = self.hot.completed_pass() as u32;
                Record::Fetched { moved_at: ALL_ROWS, pass }.write(key, record.state);
                *record.expires_at = now.as_nanos().saturating_add(FOR_EVER * SECOND);
            }
        }
    }

    /// Makes an update whose counters must be fetched first.
    async fn update_later(
        &self,
        keys: &[Hashed],
        now: Timestamp,
        update: &mut Update<'_>,
        mut missing: Keys,
    ) -> Result<(), Undecided> {
        let (mut fetched, mut failed) = (Keys::new(), Keys::new());
        for _ in 0..TRIES_MAX {
            // All are asked for before the first is waited for.
            let fetches: Result<SmallVec<[_; 4]>, _> =
                missing.iter().map(|key| self.fetches.join(key)).collect();
            for (key, fetch) in missing.iter().zip(fetches?) {
                match fetch.await {
                    Ok(()) => {}
                    Err(Undecided::Unreachable { .. })
                        if self.settings.missing != Missing::Deny =>
                    {
                        failed.push(*key);
                    }
                    Err(error) => {
                        let is_away = matches!(error, Undecided::Unreachable { .. });
                        add(&self.tally.without_state, u64::from(is_away));
                        return Err(error);
                    }
                }
                fetched.push(*key);
            }
            // Those that came back need no record: with that of each, an update might be too large.
            let rest = match self.attempt(keys, &Known::default(), now, update) {
                Attempt::Done(result) => return result,
                Attempt::Missing(rest) => rest,
            };
            let settled = rest.into_iter().filter(|key| fetched.contains(key)).collect();
            let known = Known { settled, failed: failed.clone() };
            match self.attempt(keys, &known, now, update) {
                Attempt::Done(result) => return result,
                Attempt::Missing(more) => missing = more,
            }
        }
        Err(Undecided::Unreachable { cause: FETCHED_ELSEWHERE.to_owned() })
    }
}

/// Whether a record says that a counter which is not hot has no row that counts.
fn is_settled(entries: &mut Entries<'_>, first: usize, settled: &[Hashed], key: &Hashed) -> bool {
    let Some(index) = settled.iter().position(|other| other == key) else { return false };
    match Record::read(entries.get(first + index).state) {
        Some((of, Record::Absent | Record::Fetched { .. })) => of == *key,
        Some((_, Record::Fetching { .. })) | None => false,
    }
}

#[inline]
fn add_if_any(count: &AtomicU64, more: u64) {
    if more > 0 {
        add(count, more);
    }
}

impl Counters for Tiered {
    fn seed(&self) -> u64 {
        self.inner.hot.seed()
    }

    fn state_words(&self) -> usize {
        Counters::state_words(&*self.inner.hot)
    }

    fn capacity(&self) -> u64 {
        Counters::capacity(&*self.inner.hot)
    }

    fn answers(&self) -> Answers {
        Answers::MostlyAtOnce
    }

    fn update<'u>(
        &'u self,
        keys: &'u [Hashed],
        now: Timestamp,
        update: &'u mut Update<'u>,
    ) -> Updating<'u> {
        match self.inner.attempt_first(keys, now, update) {
            Attempt::Done(result) => Updating::Done(result),
            Attempt::Missing(missing) => {
                // Begun now, also if nobody waits: a caller that cannot wait comes again.
                missing.iter().for_each(|key| drop(self.inner.fetches.join(key)));
                Updating::Later(Box::pin(self.inner.update_later(keys, now, update, missing)))
            }
        }
    }
}
