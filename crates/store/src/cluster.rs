//! The MMAP cluster: what callers do with keys and entries.
//!
//! Owns the operations. Every one of them that changes something is a [`Step`] over the key-nodes
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
use crate::memory::{ClassMemory, Memory, Spot};
use crate::open::{self, Opened, Place};
use crate::options::{Eviction, Options};
use crate::snapshot::Synced;
use crate::transaction::commit::Change;
use crate::transaction::placement::free_expired;
use crate::transaction::{Ask, Step, Was};
use crate::writers::backoff::PATIENCE_OF_UPKEEP;
use crate::writers::slot::{Count, Seat};
use crate::writers::stall::Stuck;
use crate::writers::stats::Stats;
use crate::writers::{Crew, Seated};
use update::{hold_one, prefetch_single, prefetch_tagged};

/// How many keys of a batch are fetched ahead: more than a processor has lines in flight, and few
/// enough to stay in its first cache.
const BATCH: usize = 32;
/// How often work on the whole cluster looks again whether a stuck holder goes on.
const PAUSE_OF_UPKEEP: Duration = Duration::from_millis(1);

/// An open cluster. Threads share it; processes each open it.
pub struct Cluster {
    memory: Arc<Memory>,
    crew: Crew,
    eviction: Eviction,
    /// None in tests over memory without files.
    place: Option<Place>,
    /// See [`Cluster::trust_clock_until`].
    trusted_secs: AtomicU32,
    opened: Instant,
    /// When the last pass of this process was complete, in milliseconds since it was opened.
    saved_millis: AtomicU64,
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
        let Opened { memory, crew, place } = open::open(dir, options)?;
        Ok(Self::over(Arc::new(memory), crew, options.eviction, Some(place)))
    }

    fn over(memory: Arc<Memory>, crew: Crew, eviction: Eviction, place: Option<Place>) -> Self {
        let (opened, saved_millis) = (Instant::now(), AtomicU64::new(0));
        let trusted_secs = AtomicU32::new(u32::MAX);
        Self { memory, crew, eviction, place, trusted_secs, opened, saved_millis }
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
        self.memory.identity.geometry(class)
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
    pub fn sync(&self) -> io::Result<Option<Synced>> {
        let Some(place) = &self.place else { return Ok(None) };
        place.check_memory(&self.memory)?;
        let hold = |spot: Spot<'_>, copy: &mut dyn FnMut(KeyNode<'_>)| {
            self.hold_within(Duration::ZERO, spot, |_| copy(spot.node)).is_ok()
        };
        let saved = place.snapshot.save(&self.memory, hold, || place.check_memory(&self.memory));
        if let Err(error) = &saved
            && error.kind() == io::ErrorKind::InvalidData
        {
            self.memory.spoil();
        }
        if let Ok(Some(_)) = &saved {
            let millis = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.saved_millis.store(millis, Ordering::Relaxed);
        }
        saved
    }

    /// For how long [`Cluster::sync`] has not come to its end in this process, or not been called.
    #[must_use]
    pub fn unsaved_for(&self) -> Duration {
        let saved = Duration::from_millis(self.saved_millis.load(Ordering::Relaxed));
        self.opened.elapsed().saturating_sub(saved)
    }

    /// Asks the system to keep the memory in large pages, which makes updates of many counters faster, if it was made
    /// by this process; else it was asked already. Takes some 2 ms for each MiB.
    ///
    /// Whoever updates meanwhile may wait for milliseconds, so this is for the time before.
    pub fn use_large_pages(&self) {
        if self.place.as_ref().is_some_and(|place| place.is_made) {
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
        let Some(place) = &self.place else { return Ok(()) };
        place.check(&self.memory)
    }

    /// The processes that hold locks and do not move: stopped, in a debugger, frozen, or without a
    /// processor. Whoever needs one of these locks gets [`UpdateError::Busy`] at once.
    ///
    /// Cheap: a look at every seat. One that nobody has waited for yet is found by the second call.
    #[must_use]
    pub fn stuck(&self) -> Vec<Stuck> {
        self.crew.stuck(&self.memory)
    }

    /// How long the threads of this process have waited for locks and seats since it opened the cluster, all
    /// together.
    #[must_use]
    pub fn blocked(&self) -> Duration {
        self.crew.blocked()
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
        let ask = self.ask(key)?;
        prefetch_single(&ask);
        let seated = self.sit()?;
        self.update_asked(&seated, key, &ask, secs_down(now), decide)
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
        let seated = match self.sit() {
            Ok(seated) => seated,
            Err(error) => {
                return (0..keys.len()).for_each(|index| decide(index, Err(error.clone())));
            }
        };
        for (batch, keys) in keys.chunks(BATCH).enumerate() {
            let mut asks: SmallVec<[Option<Ask<'_>>; BATCH]> = SmallVec::new();
            for key in keys {
                let ask = self.ask_if_any(key);
                if let Some(ask) = &ask {
                    prefetch(ask.home.node.words(), 0);
                }
                asks.push(ask);
            }
            asks.iter().flatten().for_each(prefetch_tagged);
            for (index, (key, ask)) in keys.iter().zip(&asks).enumerate() {
                let index = batch * BATCH + index;
                let decide_one = |entry: EntryMut<'_>| decide(index, Ok(entry));
                let result = match ask {
                    Some(ask) => self.update_asked(&seated, key, ask, now_secs, decide_one),
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
        self.update_together(keys, now, decide)
    }

    /// The entry of a key, if it has one which has not expired at `now`.
    ///
    /// # Errors
    ///
    /// If the cluster cannot be used.
    pub fn find<K: Key + ?Sized>(&self, key: &K, now: u64) -> Result<Option<Entry>, UpdateError> {
        // A look that leaves everything as it is: nothing is written, and no node is taken.
        let ask = self.ask(key)?;
        let seated = self.sit()?;
        let mut step = Step::new(&self.memory, &self.crew, seated.seat);
        let place = hold_one(&mut step, &ask, |step| step.find(key, &ask, secs_down(now)))?;
        let live = place.filter(|place| place.was == Was::Live);
        let entry = live.map(|place| entry_at(place.spot.node, place.slot));
        drop(step);
        self.refuse_if_lost()?;
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
        let ask = self.ask(key)?;
        let now_secs = secs_down(now);
        let seated = self.sit()?;
        let mut step = Step::new(&self.memory, &self.crew, seated.seat);
        let place = hold_one(&mut step, &ask, |step| step.find(key, &ask, now_secs))?;
        if let Some(place) = place {
            step.commit(std::iter::once(Change { place, home: ask.home, image: None }));
        }
        drop(step);
        self.refuse_if_lost()?;
        Ok(place.is_some_and(|place| place.was == Was::Live))
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
        for (class, spot) in self.spots() {
            self.hold(spot, |_| {
                let node = spot.node;
                found.extend(node.occupied().map(|slot| (node.stored(slot), entry_at(node, slot))));
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
        for (class, spot) in self.spots() {
            total += self.hold(spot, |seat| {
                let freed = free_expired(class, spot, Slots::default(), now_secs);
                seat.count(count, freed);
                freed
            })?;
        }
        Ok(total)
    }

    /// A seat for this thread, unless nothing can be relied on any more.
    #[inline]
    fn sit(&self) -> Result<Seated<'_>, UpdateError> {
        self.refuse_if_lost()?;
        self.crew.sit(&self.memory)
    }

    #[inline]
    fn refuse_if_lost(&self) -> Result<(), UpdateError> {
        if self.memory.is_lost() { Err(UpdateError::Lost) } else { Ok(()) }
    }

    fn spots(&self) -> impl Iterator<Item = (&ClassMemory, Spot<'_>)> {
        self.memory.classes().flat_map(|class| class.spots().map(move |spot| (class, spot)))
    }

    /// Runs `act` with one key-node locked. Waits longer than an update, as no client waits for it.
    fn hold<T>(&self, spot: Spot<'_>, act: impl FnOnce(&Seat<'_>) -> T) -> Result<T, UpdateError> {
        self.hold_within(PATIENCE_OF_UPKEEP, spot, act)
    }

    /// The same, trying again for so long.
    fn hold_within<T>(
        &self,
        patience: Duration,
        spot: Spot<'_>,
        act: impl FnOnce(&Seat<'_>) -> T,
    ) -> Result<T, UpdateError> {
        let since = Instant::now();
        loop {
            let seated = self.sit()?;
            let mut step = Step::new(&self.memory, &self.crew, seated.seat);
            match step.lock_all(&[spot]) {
                Ok(()) => {
                    let answer = act(&seated.seat);
                    drop(step);
                    self.refuse_if_lost()?;
                    return Ok(answer);
                }
                Err(error) if since.elapsed() >= patience => return Err(error),
                Err(_) => {}
            }
            drop(step);
            drop(seated);
            thread::sleep(PAUSE_OF_UPKEEP);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(place) = &self.place {
            place.leave(&self.memory, self.crew.lives(), || {
                matches!(self.sync(), Ok(Some(Synced { held: 0, .. })))
            });
        }
        self.crew.leave(&self.memory);
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
fn entry_at(node: KeyNode<'_>, slot: u32) -> Entry {
    let mut image: SmallVec<[u64; NARROW_WORDS]> = SmallVec::from_elem(0, node.layout().node_words);
    node.read(slot, &mut image);
    let last = image.len() - 1;
    Entry::new(&image[STATE..last], nanos(expires_secs(image[last])))
}

#[cfg(all(test, not(loom)))]
mod tests;
