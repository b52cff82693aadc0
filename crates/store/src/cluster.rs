//! The MMAP cluster: what callers do with keys and entries.
//!
//! Owns the operations. Every one of them that changes something is a [`Transaction`] over the key-nodes
//! of its keys: all or nothing for other threads, for other processes, and for a kill. Where nodes are
//! and how they are written is elsewhere.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

mod update;

use crate::entry::{Entries, Entry, EntryMut, nanos, secs_down};
use crate::error::{OpenError, UpdateError};
use crate::format::geometry::{Class, Geometry};
use crate::format::key::{Key, StoredKey};
use crate::format::node::{NARROW_WORDS, STATE, expires_secs};
use crate::inspect::Occupancy;
use crate::memory::control::clock_words;
use crate::memory::key_node::{KeyNode, Slots};
use crate::memory::region::prefetch;
use crate::memory::sync::{get, put, swap_if};
use crate::memory::{ClassMemory, Memory};
use crate::open::{self, ClusterFiles, Opened};
use crate::options::{Eviction, Options};
use crate::snapshot::SyncReport;
use crate::transaction::commit::Change;
use crate::transaction::placement::free_expired;
use crate::transaction::{Lookup, Occupant, Transaction};
use crate::writers::backoff::MAINTENANCE_WAIT_MAX;
use crate::writers::slot::{Count, WriterSlot};
use crate::writers::stall::StuckProcess;
use crate::writers::stats::Stats;
use crate::writers::{HeldSlot, Writers};
use update::{lock_one, prefetch_single, prefetch_tagged};

/// How many keys of a batch are fetched ahead: more than a processor has lines in flight, and few
/// enough to stay in its first cache.
const BATCH: usize = 32;
/// How often work on the whole cluster looks again whether a stuck holder goes on.
const MAINTENANCE_PAUSE: Duration = Duration::from_millis(1);

/// An open cluster. Threads share it; processes each open it.
pub struct Cluster {
    memory: Arc<Memory>,
    writers: Writers,
    eviction: Eviction,
    /// None in tests over memory without files.
    files: Option<ClusterFiles>,
    /// See [`Cluster::trust_clock_until`].
    trusted_secs: AtomicU32,
    opened: Instant,
    /// When the last pass of this process was complete, in milliseconds since it was opened.
    synced_millis: AtomicU64,
}

impl Cluster {
    /// Opens the cluster in `dir`, and makes the directory and the cluster if they are missing.
    ///
    /// The geometry of an existing cluster wins over `options`. Who opens it while nobody else has it
    /// open checks every node; what is torn or out of place is dropped, and counted in [`Stats`].
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
    /// If the files are not those of a cluster of this format (they stay as they are), or the system
    /// refuses something.
    pub fn open(dir: &Path, options: &Options) -> Result<Self, OpenError> {
        let Opened { memory, writers, files } = open::open(dir, options)?;
        Ok(Self::over(Arc::new(memory), writers, options.eviction, Some(files)))
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

    /// How many bytes of memory [`Cluster::open`] would make with these arguments; 0 if another process has them
    /// already, or left them when it was killed.
    ///
    /// # Errors
    ///
    /// As [`Cluster::open`].
    pub fn memory_needed(dir: &Path, options: &Options) -> Result<u64, OpenError> {
        open::memory_needed(dir, options)
    }

    /// Frees no node of another key that expires after this second since the Unix epoch, whatever `now`
    /// a caller brings: a clock that is ahead for a moment erases no live entry. The key of an update
    /// itself goes by `now` as ever. Holds for this process, and until it is said anew; without it, `now`
    /// is trusted.
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
        // Relaxed: a bound that is a moment old is as good.
        self.trusted_secs.store(secs, Ordering::Relaxed);
    }

    /// The second up to which nodes of other keys may be freed by a caller whose clock says `now_secs`.
    fn freed_until(&self, now_secs: u32) -> u32 {
        now_secs.min(self.trusted_secs.load(Ordering::Relaxed))
    }

    /// Two words for the processes of this cluster to keep what they know of the clock in: a value, and
    /// what it is valid for. Zeros at first; the cluster makes no sense of them.
    #[must_use]
    pub fn clock_words(&self) -> [u64; 2] {
        clock_words(&self.memory.control).map(get)
    }

    /// Replaces the words of [`Cluster::clock_words`], unless another process has replaced the value since
    /// they were `before`. Says whether it did.
    ///
    /// A process that is killed in it leaves the words as they were, or as they are to be, or a second word
    /// of 0, which is valid for nothing.
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

    /// The random seed of this cluster, to hash keys with. Never changes during its life.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.memory.seed()
    }

    /// The geometry of a class of nodes, if the cluster has it.
    #[must_use]
    pub fn geometry(&self, class: Class) -> Option<Geometry> {
        self.memory.info.geometry(class)
    }

    /// What the cluster has done since it was made, by all processes together.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats::of(&self.memory.control)
    }

    /// How full a class is: a look at every head, or at an even sample of them if they are many.
    #[must_use]
    pub fn occupancy(&self, class: Class) -> Option<Occupancy> {
        Some(Occupancy::of(self.memory.class(class)?))
    }

    /// Copies what changed since the last time to the snapshot in the data directory, and waits until it is on
    /// the disk. Says nothing if another process is doing so.
    ///
    /// Only against the end of the machine: what a killed process wrote is safe without. Updates go on
    /// meanwhile, and wait for nothing.
    ///
    /// # Errors
    ///
    /// If the disk fails, or the memory was found damaged. What the snapshot had before still counts.
    pub fn sync(&self) -> io::Result<Option<SyncReport>> {
        let Some(files) = &self.files else { return Ok(None) };
        files.check_memory(&self.memory)?;
        let with_locked = |key_node: KeyNode<'_>, copy: &mut dyn FnMut(KeyNode<'_>)| {
            self.with_locked_within(Duration::ZERO, key_node, |_| copy(key_node)).is_ok()
        };
        let synced =
            files.snapshot.save(&self.memory, with_locked, || files.check_memory(&self.memory));
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

    /// For how long [`Cluster::sync`] has not come to its end in this process, or not been called.
    #[must_use]
    pub fn unsaved_for(&self) -> Duration {
        let synced = Duration::from_millis(self.synced_millis.load(Ordering::Relaxed));
        self.opened.elapsed().saturating_sub(synced)
    }

    /// Asks the system to keep the memory in large pages, which makes updates of many counters faster, if it was made
    /// by this process; else it was asked already. Takes some 2 ms for each MiB.
    ///
    /// Whoever updates meanwhile may wait for milliseconds, so this is for the time before.
    pub fn use_large_pages(&self) {
        if self.files.as_ref().is_some_and(|files| files.created_memory) {
            self.memory.use_large_pages();
        }
    }

    /// Checks that the files of the memory and of the snapshot are still where they were, and that nobody
    /// changed them from outside.
    ///
    /// If the memory was changed, every update fails from now on, in all processes: see
    /// [`Cluster::is_lost`]. Whoever opens the cluster once they have ended gets the last snapshot. If the
    /// snapshot was moved or replaced, updates go on, but no later process will know of them.
    ///
    /// # Errors
    ///
    /// Says which file is gone, replaced, of another length or changed.
    pub fn check_files(&self) -> io::Result<()> {
        let Some(files) = &self.files else { return Ok(()) };
        files.check(&self.memory)
    }

    /// The processes that hold locks and do not move: stopped, in a debugger, frozen, or without a
    /// processor. Whoever needs one of these locks gets [`UpdateError::Busy`] at once.
    ///
    /// Cheap: a look at every seat. One that nobody has waited for yet is found by the second call.
    #[must_use]
    pub fn stuck(&self) -> Vec<StuckProcess> {
        self.writers.stuck(&self.memory)
    }

    /// How long the threads of this process have waited for locks and seats since it opened the cluster, all
    /// together.
    #[must_use]
    pub fn blocked_time(&self) -> Duration {
        self.writers.blocked()
    }

    /// Whether a file of the memory was cut short or changed from outside: no update can be made.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.memory.is_lost()
    }

    /// Gives the entry of `key` to `decide`, then writes it if it changed.
    ///
    /// A key that is new, or whose entry has expired at `now` (nanoseconds since the Unix epoch), has
    /// an entry of zeros; it takes up a node only if `decide` leaves something to remember.
    ///
    /// `decide` runs under the lock of the key, so it must be quick, and must not call the cluster. If
    /// it panics, nothing is written.
    ///
    /// # Errors
    ///
    /// If there is no place for a new key ([`UpdateError::Full`]), another process stands in the way
    /// ([`UpdateError::Busy`], after 5 ms at most), or the cluster cannot be used. No entry changes then.
    #[inline]
    pub fn update<K: Key + ?Sized, T>(
        &self,
        key: &K,
        now: u64,
        decide: impl FnOnce(EntryMut<'_>) -> T,
    ) -> Result<T, UpdateError> {
        let lookup = self.lookup(key)?;
        prefetch_single(&lookup);
        let held_slot = self.acquire()?;
        self.update_one(&held_slot, key, &lookup, secs_down(now), decide)
    }

    /// Updates many keys, each as a step of its own, with the memory of later ones fetched while
    /// earlier ones are decided.
    ///
    /// `decide` gets the index of each key with its entry, as [`Cluster::update`] does, or with the
    /// error which stands in the way of this one key. If a file is lost under it, a key that was decided
    /// is told so as well.
    pub fn update_each<K: Key>(
        &self,
        keys: &[K],
        now: u64,
        mut decide: impl FnMut(usize, Result<EntryMut<'_>, UpdateError>),
    ) {
        let now_secs = secs_down(now);
        let held_slot = match self.acquire() {
            Ok(held_slot) => held_slot,
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
                    Some(lookup) => self.update_one(&held_slot, key, lookup, now_secs, decide_one),
                    None => Err(self.no_class(key)),
                };
                if let Err(error) = result {
                    decide(index, Err(error));
                }
            }
        }
    }

    /// Gives the entries of `keys`, in their order, to `decide`, then writes those it changed: all or
    /// none of them, for other threads and processes and for a kill. A key may come several times; its
    /// entry is one. Keys of both classes may come together.
    ///
    /// A new key that there is no room for has an entry of zeros as well: so a caller can find out by the
    /// other keys that there is nothing to remember. Only if `decide` leaves something in it, the update
    /// fails.
    ///
    /// Otherwise as [`Cluster::update`]. One update has at most 256 narrow keys, or some 90 wide ones.
    ///
    /// # Errors
    ///
    /// As [`Cluster::update`], and if the keys are too many.
    pub fn update_many<K: Key, T>(
        &self,
        keys: &[K],
        now: u64,
        decide: impl FnOnce(&mut Entries<'_>) -> T,
    ) -> Result<T, UpdateError> {
        self.update_keys(keys, now, decide)
    }

    /// The entry of a key, if it has one which has not expired at `now`.
    ///
    /// # Errors
    ///
    /// If the cluster cannot be used.
    pub fn find<K: Key + ?Sized>(&self, key: &K, now: u64) -> Result<Option<Entry>, UpdateError> {
        // A look that leaves everything as it is: nothing is written, and no node is taken.
        let lookup = self.lookup(key)?;
        let held_slot = self.acquire()?;
        let mut transaction = Transaction::new(&self.memory, &self.writers, held_slot.writer);
        let key_slot = lock_one(&mut transaction, &lookup, |transaction| {
            transaction.find(key, &lookup, secs_down(now))
        })?;
        let live = key_slot.filter(|key_slot| key_slot.occupant == Occupant::Live);
        let entry = live.map(|key_slot| entry_at(key_slot.key_node, key_slot.slot));
        drop(transaction);
        self.check_intact()?;
        Ok(entry)
    }

    /// Gives a key that has no entry this one. Says whether it did. Words that the state lacks are zero.
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

    /// Erases the entry of a key. Says whether there was one that had not expired.
    ///
    /// # Errors
    ///
    /// If the cluster cannot be used.
    pub fn erase<K: Key + ?Sized>(&self, key: &K, now: u64) -> Result<bool, UpdateError> {
        let lookup = self.lookup(key)?;
        let now_secs = secs_down(now);
        let held_slot = self.acquire()?;
        let mut transaction = Transaction::new(&self.memory, &self.writers, held_slot.writer);
        let key_slot = lock_one(&mut transaction, &lookup, |transaction| {
            transaction.find(key, &lookup, now_secs)
        })?;
        if let Some(key_slot) = key_slot {
            transaction.commit(std::iter::once(Change {
                key_slot,
                home: lookup.home,
                image: None,
            }));
        }
        drop(transaction);
        self.check_intact()?;
        Ok(key_slot.is_some_and(|key_slot| key_slot.occupant == Occupant::Live))
    }

    /// Visits every node, also those that have expired, key-node after key-node. An entry that is
    /// created or erased meanwhile may or may not be visited. `visit` may call the cluster.
    ///
    /// # Errors
    ///
    /// If the cluster cannot be used.
    pub fn for_each(
        &self,
        mut visit: impl FnMut(Class, StoredKey, Entry),
    ) -> Result<(), UpdateError> {
        let mut found = Vec::new();
        for (class, key_node) in self.key_nodes() {
            self.with_locked(key_node, |_| {
                found.extend(
                    key_node
                        .occupied()
                        .map(|slot| (key_node.stored(slot), entry_at(key_node, slot))),
                );
            })?;
            found.drain(..).for_each(|(key, entry)| visit(class.class, key, entry));
        }
        Ok(())
    }

    /// Frees every node that has expired at `now`, as far as the clock is trusted
    /// ([`Cluster::trust_clock_until`]). Returns how many.
    ///
    /// Not needed for correctness: a new key reuses expired nodes. It makes occupancy tell of live
    /// entries alone.
    ///
    /// # Errors
    ///
    /// If the cluster cannot be used.
    pub fn sweep(&self, now: u64) -> Result<u64, UpdateError> {
        self.free_all(self.freed_until(secs_down(now)), Count::EvictedExpired)
    }

    /// Erases every entry. Returns how many there were.
    ///
    /// # Errors
    ///
    /// If the cluster cannot be used.
    pub fn reset_all(&self) -> Result<u64, UpdateError> {
        // At the end of time, everything has expired.
        self.free_all(u32::MAX, Count::Erased)
    }

    fn free_all(&self, now_secs: u32, count: Count) -> Result<u64, UpdateError> {
        let mut total = 0;
        for (class, key_node) in self.key_nodes() {
            total += self.with_locked(key_node, |writer| {
                let freed = free_expired(class, key_node, Slots::default(), now_secs);
                writer.count(count, freed);
                freed
            })?;
        }
        Ok(total)
    }

    /// A seat for this thread, unless nothing can be relied on any more.
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
        self.memory
            .classes()
            .flat_map(|class| class.key_nodes().map(move |key_node| (class, key_node)))
    }

    /// Runs `act` with one key-node locked. Waits longer than an update, as no client waits for it.
    fn with_locked<T>(
        &self,
        key_node: KeyNode<'_>,
        act: impl FnOnce(&WriterSlot<'_>) -> T,
    ) -> Result<T, UpdateError> {
        self.with_locked_within(MAINTENANCE_WAIT_MAX, key_node, act)
    }

    /// The same, trying again for so long.
    fn with_locked_within<T>(
        &self,
        backoff: Duration,
        key_node: KeyNode<'_>,
        act: impl FnOnce(&WriterSlot<'_>) -> T,
    ) -> Result<T, UpdateError> {
        let since = Instant::now();
        loop {
            let held_slot = self.acquire()?;
            let mut transaction = Transaction::new(&self.memory, &self.writers, held_slot.writer);
            match transaction.lock_all(&[key_node]) {
                Ok(()) => {
                    let answer = act(&held_slot.writer);
                    drop(transaction);
                    self.check_intact()?;
                    return Ok(answer);
                }
                Err(error) if since.elapsed() >= backoff => return Err(error),
                Err(_) => {}
            }
            drop(transaction);
            drop(held_slot);
            thread::sleep(MAINTENANCE_PAUSE);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(files) = &self.files {
            files.leave(&self.memory, self.writers.locks(), || {
                matches!(self.sync(), Ok(Some(SyncReport { locked: 0, .. })))
            });
        }
        self.writers.leave(&self.memory);
    }
}

impl fmt::Debug for Cluster {
    /// Leaves out the seed: who reads a log must not learn how to aim keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (narrow, wide) = (self.geometry(Class::Narrow), self.geometry(Class::Wide));
        f.debug_struct("Cluster")
            .field("narrow", &narrow)
            .field("wide", &wide)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// A copy of the entry of a node.
fn entry_at(key_node: KeyNode<'_>, slot: u32) -> Entry {
    let mut image: SmallVec<[u64; NARROW_WORDS]> =
        SmallVec::from_elem(0, key_node.layout().node_words);
    key_node.read(slot, &mut image);
    let last = image.len() - 1;
    Entry::new(&image[STATE..last], nanos(expires_secs(image[last])))
}

#[cfg(all(test, not(loom)))]
mod tests;
