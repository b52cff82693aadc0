//! The operations of a cluster.
//!
//! Owns the operations on keys and entries. Every operation that changes something is a [`Transaction`]
//! over the key-nodes of its keys: all or nothing for other threads, other processes and after a kill. Where
//! nodes are and how they are written is elsewhere.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

mod update;

use crate::entry::{Entry, EntryMut, nanos, secs_down};
use crate::error::{OpenError, UpdateError};
use crate::format::node::{NARROW_WORDS, STATE, expires_secs};
use crate::format::{Class, Geometry, Key, StoredKey, io_error};
use crate::inspect::{Occupancy, facts};
use crate::memory::control::{PASS, clock_words, word};
use crate::memory::region::prefetch;
use crate::memory::sync::{get, put, swap_if};
use crate::memory::{ClassMemory, KeyNode, Memory, Slots};
use crate::open::{self, ClusterFiles, Opened};
use crate::options::{Eviction, Options};
use crate::shared_words::SharedWords;
use crate::snapshot::SyncReport;
use crate::transaction::{Change, Lookup, Transaction, free_expired};
use crate::writers::backoff::MAINTENANCE_WAIT_MAX;
use crate::writers::stall::StuckProcess;
use crate::writers::{Count, HeldSlot, Stats, WriterSlot, Writers};
use update::{lock_one, prefetch_single, prefetch_tagged};

/// How many keys of a batch are prefetched: more than a processor has lines in flight, and few enough to stay
/// in its L1 cache.
const BATCH: usize = 32;
/// How often maintenance checks again whether a stuck holder has moved on.
const MAINTENANCE_PAUSE: Duration = Duration::from_millis(1);

/// An open cluster. Threads share one; each process opens its own.
pub struct Cluster {
    memory: Arc<Memory>,
    /// None over memory of this process alone. Dropped before `writers`: a process that counts as dead must
    /// not hold the lock on the snapshot, or the next one to open the cluster takes it for served elsewhere.
    files: Option<ClusterFiles>,
    writers: Writers,
    eviction: Eviction,
    /// See [`Cluster::trust_clock_until`].
    trusted_secs: AtomicU32,
    opened: Instant,
    /// When this process last completed a snapshot pass, in milliseconds since it opened the cluster.
    synced_millis: AtomicU64,
}

impl Cluster {
    /// Opens the cluster in `dir`. Creates the directory and the cluster if they are missing.
    ///
    /// The geometry of an existing cluster wins over `options`. The first process to open a cluster checks
    /// every node; torn or misplaced nodes are dropped, and counted in [`Stats`].
    ///
    /// ```
    /// use tidegate_store::{Cluster, Geometry, Options};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let cluster = Cluster::open(dir.path(), &Options::narrow(Geometry::by_capacity(1000, 0.8)?))?;
    /// let now = 1_700_000_000_000_000_000;
    /// for expected in 1..=3 {
    ///     let count = cluster.update("a key", now, |entry| {
    ///         entry.state[0] += 1;
    ///         *entry.expires_at = now + 60_000_000_000;
    ///         entry.state[0]
    ///     })?;
    ///     assert_eq!(count, expected);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the files are not those of a cluster of this format (they stay unchanged), or the system refuses an
    /// operation.
    pub fn open(dir: &Path, options: &Options) -> Result<Self, OpenError> {
        let Opened { memory, writers, files } = open::open(dir, options)?;
        Ok(Self::over(Arc::new(memory), writers, options.eviction, Some(files)))
    }

    /// A new cluster in the memory of this process, for threads alone. It ends with the process: no other one sees
    /// it, and there is no snapshot.
    ///
    /// ```
    /// use tidegate_store::{Cluster, Geometry, Options};
    ///
    /// let cluster = Cluster::in_memory(&Options::narrow(Geometry::by_capacity(1000, 0.8)?))?;
    /// assert_eq!(cluster.update("a key", 0, |entry| entry.state[0])?, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the system refuses the memory.
    #[cfg(target_os = "linux")]
    pub fn in_memory(options: &Options) -> Result<Self, OpenError> {
        let (memory, writers) = open::in_memory(options)?;
        Ok(Self::over(Arc::new(memory), writers, options.eviction, None))
    }

    fn over(
        memory: Arc<Memory>,
        writers: Writers,
        eviction: Eviction,
        files: Option<ClusterFiles>,
    ) -> Self {
        let (opened, synced_millis) = (Instant::now(), AtomicU64::new(0));
        let trusted_secs = AtomicU32::new(u32::MAX);
        Self { memory, writers, eviction, files, trusted_secs, opened, synced_millis }
    }

    /// How many bytes of memory [`Cluster::open`] would allocate with these arguments; 0 if the memory of a
    /// running or killed process is there.
    ///
    /// # Errors
    ///
    /// As [`Cluster::open`].
    pub fn memory_needed(dir: &Path, options: &Options) -> Result<u64, OpenError> {
        open::memory_needed(dir, options)
    }

    /// Never frees another key's node that expires after this second since the Unix epoch, whatever `now` a
    /// caller passes. So a clock that is briefly ahead erases no live entry. The updated key itself still
    /// goes by `now`. Applies to this process until the next call; by default `now` is trusted.
    ///
    /// ```
    /// use tidegate_store::{Cluster, Entry, Geometry, Options};
    ///
    /// const SECOND: u64 = 1_000_000_000;
    /// let dir = tempfile::tempdir()?;
    /// let cluster = Cluster::open(dir.path(), &Options::narrow(Geometry::by_capacity(1000, 0.8)?))?;
    /// cluster.create("a key", 100 * SECOND, &Entry::new(&[1], 160 * SECOND))?;
    /// cluster.trust_clock_until(100);
    /// assert_eq!(cluster.sweep(1_000_000 * SECOND)?, 0);
    /// assert!(cluster.find("a key", 101 * SECOND)?.is_some());
    /// cluster.trust_clock_until(160);
    /// assert_eq!(cluster.sweep(1_000_000 * SECOND)?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn trust_clock_until(&self, secs: u32) {
        // Relaxed: a slightly stale bound is as good.
        self.trusted_secs.store(secs, Ordering::Relaxed);
    }

    /// The second up to which nodes of other keys may be freed by a caller whose clock says `now_secs`.
    fn freed_until(&self, now_secs: u32) -> u32 {
        now_secs.min(self.trusted_secs.load(Ordering::Relaxed))
    }

    /// Two words in which the processes of this cluster keep their knowledge of the clock: a value, and the mark
    /// of its validity. Initially zero; the cluster does not interpret them.
    #[must_use]
    pub fn clock_words(&self) -> [u64; 2] {
        clock_words(&self.memory.control).map(get)
    }

    /// Replaces [`Cluster::clock_words`], unless another process has replaced the value since it was
    /// `before`. Returns whether it did.
    ///
    /// A kill in the middle leaves the old words, the new words, or a second word of 0, which is never valid.
    pub fn replace_clock_words(&self, before: [u64; 2], after: [u64; 2]) -> bool {
        let [value, valid_for] = clock_words(&self.memory.control);
        let is_other = before[1] != after[1];
        if is_other {
            put(valid_for, 0);
        }
        let is_replaced = swap_if(value, before[0], after[0]).is_ok();
        if is_other {
            put(valid_for, after[1]);
        }
        is_replaced
    }

    /// Copies the changes since the last pass to the snapshot in the data directory, and waits until they are
    /// on disk. Returns nothing if another process is doing so.
    ///
    /// This guards only against the end of the machine; a kill loses nothing anyway. Updates proceed
    /// meanwhile, and wait for nothing.
    ///
    /// # Errors
    ///
    /// If the disk fails, or the memory is found damaged. The previous snapshot remains valid.
    pub fn sync(&self) -> io::Result<Option<SyncReport>> {
        let Some(files) = &self.files else { return Ok(None) };
        files.check_memory(&self.memory)?;
        let locked = |key_node: KeyNode<'_>, copy: &mut dyn FnMut(KeyNode<'_>)| {
            self.with_locked(Duration::ZERO, key_node, |_| copy(key_node)).is_ok()
        };
        let synced = files.snapshot.save(&self.memory, locked, || files.check_memory(&self.memory));
        if let Err(error) = &synced
            && error.kind() == io::ErrorKind::InvalidData
        {
            self.memory.poison();
        }
        if let Ok(Some(_)) = &synced {
            let millis = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.synced_millis.store(millis, Ordering::Relaxed);
        }
        synced
    }

    /// The number of the last complete snapshot pass, of any process. Each is larger than the one before.
    #[must_use]
    pub fn completed_pass(&self) -> u64 {
        get(word(&self.memory.control, PASS))
    }

    /// Words that the processes of this cluster have in common beside its nodes, under a name. They are zero in new
    /// memory, live as long as the memory, and are in no snapshot. Of processes that ask for different numbers of words,
    /// the first decides.
    ///
    /// ```
    /// use tidegate_store::{Cluster, Geometry, Options};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let cluster = Cluster::open(dir.path(), &Options::narrow(Geometry::by_capacity(1000, 0.8)?))?;
    /// let words = cluster.shared_words("marks", 1024)?;
    /// words.set_bits(7, 0b101);
    /// assert_eq!(cluster.shared_words("marks", 1024)?.get(7), 0b101);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the system refuses the file or its memory.
    pub fn shared_words(&self, name: &str, words: usize) -> Result<SharedWords, OpenError> {
        match &self.files {
            Some(files) => files.shared_words(name, words),
            None => {
                let place = Path::new("the memory of this process");
                SharedWords::private(words).map_err(io_error("allocate", place))
            }
        }
    }

    /// How long ago this process last completed [`Cluster::sync`], or opened the cluster.
    #[must_use]
    pub fn unsaved_for(&self) -> Duration {
        let synced = Duration::from_millis(self.synced_millis.load(Ordering::Relaxed));
        self.opened.elapsed().saturating_sub(synced)
    }

    /// Asks the system to use large pages, which makes updates of many counters faster. Does nothing unless
    /// this process created the memory. Takes some 2 ms per MiB.
    ///
    /// Concurrent updates may wait for milliseconds, so call this before serving.
    pub fn use_large_pages(&self) {
        if self.files.as_ref().is_some_and(|files| files.created_memory) {
            self.memory.use_large_pages();
        }
    }

    /// Whether this process emptied the cluster when it opened it, as its memory was lost: see
    /// [`AfterLoss::Nothing`](crate::AfterLoss::Nothing).
    #[must_use]
    pub fn was_emptied(&self) -> bool {
        self.files.as_ref().is_some_and(|files| files.was_emptied)
    }

    /// Checks that the files of the memory and of the snapshot are in place, and were not changed from outside.
    ///
    /// If the memory was changed, every later update fails, in all processes: see [`Cluster::is_lost`]. Once
    /// they have all ended, the next process to open the cluster gets the last snapshot. If the snapshot was
    /// moved or replaced, updates go on, but no later process will see them.
    ///
    /// # Errors
    ///
    /// Names the file that is gone, replaced, changed or of another length.
    pub fn check_files(&self) -> io::Result<()> {
        let Some(files) = &self.files else { return Ok(()) };
        files.check(&self.memory)
    }

    /// The processes that hold locks and make no progress: stopped, in a debugger, frozen, or without a
    /// processor. Updates that need one of these locks fail with [`UpdateError::Busy`] at once.
    ///
    /// Cheap: reads every writer slot. A holder without waiters so far is found by the second call.
    #[must_use]
    pub fn stuck(&self) -> Vec<StuckProcess> {
        self.writers.stuck(&self.memory)
    }

    /// How long the threads of this process have waited for locks and writer slots since it opened the
    /// cluster, in total.
    #[must_use]
    pub fn blocked_time(&self) -> Duration {
        self.writers.blocked_time()
    }

    /// Whether a file of the memory was truncated or changed from outside. If so, every update fails.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.memory.is_lost()
    }

    /// Passes the entry of `key` to `decide`, then writes it if it changed.
    ///
    /// A new key, or one whose entry has expired at `now` (nanoseconds since the Unix epoch), has an entry of
    /// zeros. It takes a node only if `decide` leaves something to remember.
    ///
    /// `decide` runs under the key's lock, so it must be quick and must not call the cluster. If it panics,
    /// nothing is written.
    ///
    /// # Errors
    ///
    /// If there is no room for a new key ([`UpdateError::Full`]), another writer holds the lock
    /// ([`UpdateError::is_contention`], after 5 ms, or 100 for a thread of this process), or the cluster is unusable. No entry changes then.
    #[inline]
    pub fn update<K: Key + ?Sized, T>(
        &self,
        key: &K,
        now: u64,
        decide: impl FnOnce(EntryMut<'_>) -> T,
    ) -> Result<T, UpdateError> {
        let lookup = self.lookup(key)?;
        prefetch_single(&lookup);
        let held = self.acquire()?;
        self.update_one(&held, key, &lookup, secs_down(now), decide)
    }

    /// Updates many keys, each in its own transaction. Prefetches the memory of later keys while earlier ones
    /// are decided.
    ///
    /// `decide` gets the index of each key with its entry, as in [`Cluster::update`], or with the error for
    /// this key. If a file is lost in the middle, a key already decided gets that error too.
    pub fn update_each<K: Key>(
        &self,
        keys: &[K],
        now: u64,
        mut decide: impl FnMut(usize, Result<EntryMut<'_>, UpdateError>),
    ) {
        let now_secs = secs_down(now);
        let held = match self.acquire() {
            Ok(held) => held,
            Err(error) => {
                return (0..keys.len()).for_each(|index| decide(index, Err(error.clone())));
            }
        };
        for (batch, keys) in keys.chunks(BATCH).enumerate() {
            let mut lookups: SmallVec<[Option<Lookup<'_>>; BATCH]> = SmallVec::new();
            for key in keys {
                let lookup = self.try_lookup(key);
                if let Some(lookup) = &lookup {
                    prefetch(lookup.home.words(), 0);
                }
                lookups.push(lookup);
            }
            lookups.iter().flatten().for_each(prefetch_tagged);
            for (index, (key, lookup)) in keys.iter().zip(&lookups).enumerate() {
                let index = batch * BATCH + index;
                let decide_one = |entry: EntryMut<'_>| decide(index, Ok(entry));
                let result = match lookup {
                    Some(lookup) => self.update_one(&held, key, lookup, now_secs, decide_one),
                    None => Err(self.no_class(key)),
                };
                if let Err(error) = result {
                    decide(index, Err(error));
                }
            }
        }
    }

    /// The entry of a key, if it has one that has not expired at `now`.
    ///
    /// # Errors
    ///
    /// If the cluster is unusable, or another writer holds the lock.
    pub fn find<K: Key + ?Sized>(&self, key: &K, now: u64) -> Result<Option<Entry>, UpdateError> {
        let entry = self.with_node(key, now, |_, Change { key_slot, .. }| {
            key_slot.is_live().then(|| entry_at(key_slot.key_node, key_slot.slot))
        })?;
        Ok(entry.flatten())
    }

    /// Creates the entry of a key that has none. Returns whether it did. Missing state words are zero.
    ///
    /// # Errors
    ///
    /// As [`Cluster::update`], and if the state has more words than a node.
    pub fn create<K: Key + ?Sized>(
        &self,
        key: &K,
        now: u64,
        entry: &Entry,
    ) -> Result<bool, UpdateError> {
        self.update(key, now, |found| {
            let (words, words_max) = (entry.state.len(), found.state.len());
            let Some(state) = found.state.get_mut(..words) else {
                return Err(UpdateError::StateTooLong { words, words_max });
            };
            if found.is_new {
                state.copy_from_slice(&entry.state);
                *found.expires_at = entry.expires_at;
            }
            Ok(found.is_new)
        })?
    }

    /// Erases the entry of a key. Returns whether there was one that had not expired.
    ///
    /// # Errors
    ///
    /// If the cluster is unusable, or another writer holds the lock.
    pub fn erase<K: Key + ?Sized>(&self, key: &K, now: u64) -> Result<bool, UpdateError> {
        let was_live = self.with_node(key, now, |transaction, erasure| {
            transaction.commit(std::iter::once(erasure));
            erasure.key_slot.is_live()
        })?;
        Ok(was_live.unwrap_or(false))
    }

    /// Calls `act` with the erasure of the key's node, live or expired, if there is one. Its locks are held
    /// meanwhile.
    fn with_node<'a, K: Key + ?Sized, T>(
        &'a self,
        key: &K,
        now: u64,
        act: impl FnOnce(&mut Transaction<'a>, Change<'a, 'static>) -> T,
    ) -> Result<Option<T>, UpdateError> {
        let lookup = self.lookup(key)?;
        let held = self.acquire()?;
        let mut transaction = Transaction::new(&self.memory, &self.writers, held.writer);
        let key_slot = lock_one(&mut transaction, &lookup, |transaction| {
            transaction.find(key, &lookup, secs_down(now))
        })?;
        let erasure = key_slot.map(|key_slot| Change { key_slot, home: lookup.home, image: None });
        let answer = erasure.map(|erasure| act(&mut transaction, erasure));
        drop(transaction);
        self.check_intact()?;
        Ok(answer)
    }

    /// Visits every node, expired ones included, one key-node after the other. May miss an entry that is
    /// created or erased meanwhile. `visit` may call the cluster.
    ///
    /// # Errors
    ///
    /// If the cluster is unusable, or a lock was held for a second.
    pub fn for_each(
        &self,
        mut visit: impl FnMut(Class, StoredKey, Entry),
    ) -> Result<(), UpdateError> {
        let mut found = Vec::new();
        for (class, key_node) in self.key_nodes() {
            self.with_locked(MAINTENANCE_WAIT_MAX, key_node, |_| {
                let entry = |slot| (key_node.stored(slot), entry_at(key_node, slot));
                found.extend(key_node.occupied().map(entry));
            })?;
            found.drain(..).for_each(|(key, entry)| visit(class.class, key, entry));
        }
        Ok(())
    }

    /// Frees every node that has expired at `now`, as far as the clock is trusted
    /// ([`Cluster::trust_clock_until`]). Returns how many.
    ///
    /// Not needed for correctness, as new keys reuse expired nodes. Afterwards occupancy counts live entries only.
    ///
    /// # Errors
    ///
    /// If the cluster is unusable, or a lock was held for a second.
    pub fn sweep(&self, now: u64) -> Result<u64, UpdateError> {
        self.free_all(self.freed_until(secs_down(now)), Count::EvictedExpired)
    }

    /// Erases every entry. Returns how many there were.
    ///
    /// # Errors
    ///
    /// If the cluster is unusable, or a lock was held for a second.
    pub fn reset_all(&self) -> Result<u64, UpdateError> {
        // At the end of time, everything has expired.
        self.free_all(u32::MAX, Count::Erased)
    }

    fn free_all(&self, now_secs: u32, count: Count) -> Result<u64, UpdateError> {
        let mut total = 0;
        for (class, key_node) in self.key_nodes() {
            total += self.with_locked(MAINTENANCE_WAIT_MAX, key_node, |writer| {
                let freed = free_expired(class, key_node, Slots::default(), now_secs);
                writer.count(count, freed);
                freed
            })?;
        }
        Ok(total)
    }

    /// Acquires a writer slot for this thread, unless the memory is lost.
    #[inline]
    fn acquire(&self) -> Result<HeldSlot<'_>, UpdateError> {
        self.check_intact()?;
        self.writers.acquire(&self.memory)
    }

    #[inline]
    fn check_intact(&self) -> Result<(), UpdateError> {
        if self.memory.is_lost() { Err(UpdateError::DataLoss) } else { Ok(()) }
    }

    fn key_nodes(&self) -> impl Iterator<Item = (&ClassMemory, KeyNode<'_>)> {
        let of_class = |class| ClassMemory::key_nodes(class).map(move |key_node| (class, key_node));
        self.memory.classes().flat_map(of_class)
    }

    /// Runs `act` with one key-node locked, retrying for `wait_max`.
    fn with_locked<T>(
        &self,
        wait_max: Duration,
        key_node: KeyNode<'_>,
        act: impl FnOnce(&WriterSlot<'_>) -> T,
    ) -> Result<T, UpdateError> {
        let since = Instant::now();
        loop {
            let held = self.acquire()?;
            let mut transaction = Transaction::new(&self.memory, &self.writers, held.writer);
            match transaction.lock_all(&[key_node]) {
                Ok(()) => {
                    let answer = act(&held.writer);
                    drop(transaction);
                    self.check_intact()?;
                    return Ok(answer);
                }
                Err(error) if since.elapsed() >= wait_max => return Err(error),
                Err(_) => {}
            }
            drop(transaction);
            drop(held);
            thread::sleep(MAINTENANCE_PAUSE);
        }
    }
}

facts!(Cluster);

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(files) = &self.files {
            files.leave(&self.memory, self.writers.liveness(), || {
                matches!(self.sync(), Ok(Some(SyncReport { locked: 0, .. })))
            });
        }
        self.writers.leave(&self.memory);
    }
}

impl fmt::Debug for Cluster {
    /// Omits the seed: readers of a log must not learn how to aim keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (narrow, wide) = (self.geometry(Class::Narrow), self.geometry(Class::Wide));
        f.debug_struct("Cluster")
            .field("narrow", &narrow)
            .field("wide", &wide)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

fn entry_at(key_node: KeyNode<'_>, slot: u32) -> Entry {
    let mut image: SmallVec<[u64; NARROW_WORDS]> =
        SmallVec::from_elem(0, key_node.layout().node_words);
    key_node.read(slot, &mut image);
    let last = image.len() - 1;
    Entry::new(&image[STATE..last], nanos(expires_secs(image[last])))
}

#[cfg(all(test, not(loom)))]
mod tests;
