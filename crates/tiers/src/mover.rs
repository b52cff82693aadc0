//! Moves: idle counters go down to their shards, stale rows are removed, filters are built.
//!
//! One process of a data directory moves at a time, in a thread of its own, and passes over all nodes again and again. The
//! fuller the store is, the sooner passes follow each other, and the less idle a counter has to be to move. A move is
//! three steps: the filter gets the key, the shard gets the row, and the counter's node goes if it is as it was. A kill in
//! between leaves the counter hot and its row stale.
//!
//! What stays hot: counters whose end is near, counters in use, and counters with a single use, which anybody can make,
//! unless there is hardly any room left. Bounds: moves per second, and rows of one operation.

use crate::ageing::Ageing;
use crate::filter::Filter;
use crate::heat::{IDLE_MAX, Use};
use crate::record::Record;
use crate::rows::Away;
use crate::tally::add;
use crate::tiered::{Inner, Tiered};
use rustix::fs::{FlockOperation, flock};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tidegate_authority::clock;
use tidegate_cold::Row;
use tidegate_store::{Class, Entry, Hashed};
use tokio::runtime::Handle;

/// Locked by the process that moves.
const LOCK: &str = "tiers.lock";
/// A counter with less time left is not worth a move.
pub(crate) const LEFT_MIN: u32 = 60;
/// The rows of one operation.
pub(crate) const ROWS: usize = 1_000;
/// The rows of a pass: some 100 bytes each.
const PASS_MAX: usize = 100_000;
/// The passes without a use after which a counter of a store with room is idle.
const IDLE_PASSES: u32 = 16;
/// The pause after an operation that failed.
const AWAY: Duration = Duration::from_secs(2);
/// How long a process that ends waits for a database.
const END_MAX: Duration = Duration::from_secs(3);
/// The pause between steps of a round over the warm shards.
const AGEING_PAUSE: Duration = Duration::from_secs(1);
/// How often a process that does not move tries to become the one that does.
const LOCK_PAUSE: Duration = Duration::from_secs(1);
/// A filter is built again when it has got as many keys as it has room for, but not before this time.
const BUILD_MIN: Duration = Duration::from_secs(600);
const SECOND: u64 = 1_000_000_000;

#[derive(Debug, Clone, Copy)]
pub struct MovesSettings {
    /// How long a counter has to be without use to move from a store with room.
    pub idle: Duration,
    /// The most moves in a second.
    pub per_second: u32,
    /// For how long a row stays on the warm level, if there is one.
    pub warm: Duration,
}

impl Default for MovesSettings {
    fn default() -> MovesSettings {
        let warm = Duration::from_secs(3_600);
        MovesSettings { idle: Duration::from_secs(600), per_second: 20_000, warm }
    }
}

/// The thread that moves. Dropping it waits until its operation under way has ended, for three seconds at most.
#[derive(Debug)]
pub struct Moves {
    stop: Option<Sender<()>>,
    is_ending: Arc<AtomicBool>,
    /// Closed when the thread ends.
    ended: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

/// How full a store is, and what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pressure {
    /// The passes without a use after which a counter moves.
    pub(crate) idle_min: u8,
    /// Whether counters with a single use stay.
    pub(crate) spares_single: bool,
    /// The time from one pass to the next.
    pub(crate) pause: Duration,
}

impl Pressure {
    /// The pressure on a store with so many percent of its nodes taken.
    pub(crate) fn at(percent: u64, idle: Duration) -> Pressure {
        let seconds = Duration::from_secs;
        let (idle_min, spares_single, pause) = match percent {
            0..70 => (IDLE_PASSES as u8, true, idle / IDLE_PASSES),
            70..80 => (8, true, seconds(5)),
            80..90 => (4, true, seconds(2)),
            90..96 => (2, true, seconds(1)),
            _ => (1, false, seconds(1)),
        };
        // However short the time is after which counters are idle, a pass has to end.
        let pause = pause.min(idle / IDLE_PASSES).max(Duration::from_millis(10));
        Pressure { idle_min: idle_min.min(IDLE_MAX), spares_single, pause }
    }

    /// Whether a counter with this use moves.
    fn moves(self, of: Use) -> bool {
        // Nothing is known of the uses of a counter from a snapshot.
        let is_spared = self.spares_single && of.uses == 1;
        of.idle >= self.idle_min && !is_spared
    }

    /// The same after keys were refused. A key has room in two key-nodes only, and these may be full of counters with a
    /// single use long before the store is.
    fn after_refusals(self) -> Pressure {
        Pressure { spares_single: false, ..self }
    }
}

/// What databases have room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    ForAll,
    /// For counters that had more than one use: anybody can invent keys, and use each once.
    ForUsed,
    /// For none: the eviction policy of the store decides, as without databases.
    None,
}

impl Room {
    fn is_for(self, of: Use) -> bool {
        match self {
            Room::ForAll => true,
            Room::ForUsed => of.uses != 1,
            Room::None => false,
        }
    }
}

/// What a pass has found to do.
#[derive(Default)]
struct Found {
    idle: Vec<Candidate>,
    stale: Vec<(Hashed, u32)>,
}

struct Candidate {
    of: Use,
    row: Row,
}

pub(crate) struct Mover {
    inner: Arc<Inner>,
    runtime: Handle,
    settings: MovesSettings,
    /// When each filter was built by this process.
    built: Vec<Option<Instant>>,
    ageing: Ageing,
    /// Whether the pass under way is to end soon.
    is_ending: Arc<AtomicBool>,
    /// The updates that had been refused for lack of room before the last pass.
    refused: u64,
    next_pass: Instant,
}

impl Tiered {
    pub(crate) fn mover(&self, settings: MovesSettings) -> io::Result<Mover> {
        let (inner, built) = (self.inner.clone(), vec![None; self.inner.filters.len()]);
        let ageing = Ageing::new(settings.warm);
        let refused = inner.hot.stats().refused;
        Ok(Mover {
            inner,
            runtime: self.runtime()?,
            settings,
            built,
            ageing,
            is_ending: Arc::default(),
            refused,
            next_pass: Instant::now(),
        })
    }

    /// Moves counters now, whatever their use, as far as they are worth it. Returns how many; none if another process of
    /// the data directory moves.
    ///
    /// # Errors
    /// If a database does not do it, or there is no lock file.
    pub fn move_now(
        &self,
        data_dir: &Path,
        is_to_move: impl Fn(&Hashed) -> bool,
    ) -> io::Result<Option<u64>> {
        let lock = open_lock(data_dir)?;
        if !try_lock(&lock) {
            return Ok(None);
        }
        let mut mover =
            self.mover(MovesSettings { per_second: u32::MAX, ..MovesSettings::default() })?;
        let moved = || self.inner.tally.moved_down.load(Ordering::Relaxed);
        let (start, mut before) = (moved(), None);
        mover.build_filters().map_err(io::Error::other)?;
        // As many as a pass may have, until none is left.
        while before != Some(moved()) {
            before = Some(moved());
            let found = mover.find(|key, _| is_to_move(key));
            mover.move_down(found.idle).map_err(io::Error::other)?;
        }
        Ok(Some(moved() - start))
    }

    /// Begins to move counters of the store whose data directory this is, as soon as no other process does.
    pub fn start_moves(&self, data_dir: &Path, settings: MovesSettings) -> io::Result<Moves> {
        let lock = open_lock(data_dir)?;
        let mut mover = self.mover(settings)?;
        let (stop, stopped) = mpsc::channel();
        let (ending, ended) = mpsc::channel::<()>();
        let is_ending = mover.is_ending.clone();
        let run = move || {
            let mut pause = Duration::ZERO;
            let mut is_locked = false;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                is_locked = is_locked || try_lock(&lock);
                pause = if is_locked { mover.step() } else { LOCK_PAUSE };
            }
            // The store is given back before anybody hears of the end.
            drop(mover);
            drop(ending);
        };
        let thread = thread::Builder::new().name("tidegate-moves".to_owned()).spawn(run)?;
        Ok(Moves { stop: Some(stop), is_ending, ended, thread: Some(thread) })
    }
}

fn open_lock(data_dir: &Path) -> io::Result<File> {
    let path = data_dir.join(LOCK);
    OpenOptions::new().create(true).write(true).truncate(false).mode(0o600).open(path)
}

fn try_lock(lock: &File) -> bool {
    flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok()
}

impl Drop for Moves {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Relaxed);
        self.stop.take();
        if self.ended.recv_timeout(END_MAX) == Err(RecvTimeoutError::Timeout) {
            // It may be killed at any moment.
            tracing::warn!(
                "a database of cold counters does not answer, and is left while counters move"
            );
            return;
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that moves counters has panicked");
        }
    }
}

impl Mover {
    /// Does what is due. Returns the pause until something is due again.
    fn step(&mut self) -> Duration {
        if Instant::now() >= self.next_pass {
            self.next_pass = Instant::now() + self.pass();
        } else if self.ageing.pass(&self.inner, &self.runtime).is_err() {
            return AWAY;
        }
        let pause = self.next_pass.saturating_duration_since(Instant::now());
        if self.ageing.is_under_way() { pause.min(AGEING_PAUSE) } else { pause }
    }

    /// Passes over all nodes once. Returns the pause until the next pass.
    pub(crate) fn pass(&mut self) -> Duration {
        let start = Instant::now();
        let mut pressure = Pressure::at(self.percent_taken(), self.settings.idle);
        let refused = self.inner.hot.stats().refused;
        if std::mem::replace(&mut self.refused, refused) != refused {
            pressure = pressure.after_refusals();
        }
        match self.pass_at(pressure) {
            Ok(()) => pressure.pause.saturating_sub(start.elapsed()),
            Err(_) => AWAY,
        }
    }

    pub(crate) fn pass_at(&mut self, pressure: Pressure) -> Result<(), Away> {
        self.build_filters()?;
        self.move_idle(pressure)?;
        self.ageing.pass(&self.inner, &self.runtime)
    }

    pub(crate) fn move_idle(&self, pressure: Pressure) -> Result<(), Away> {
        let found = self.find_idle(pressure);
        self.remove(&found.stale)?;
        self.move_down(found.idle)
    }

    fn find_idle(&self, pressure: Pressure) -> Found {
        let room = self.room();
        let mut kept = 0;
        let found = self.find(|_, of| {
            let (is_idle, has_room) = (pressure.moves(of), room.is_for(of));
            kept += u64::from(is_idle && !has_room);
            is_idle && has_room
        });
        add(&self.inner.tally.kept, kept);
        found
    }

    /// Of the class that is fuller.
    pub(crate) fn percent_taken(&self) -> u64 {
        let percent = |class| {
            let occupancy = self.inner.hot.occupancy(class)?;
            Some(occupancy.occupied * 100 / occupancy.nodes.max(1))
        };
        let fullest = || Class::ALL.into_iter().filter_map(percent).max().unwrap_or(0);
        let taken = fullest();
        // Expired nodes are free for new keys.
        match taken >= 70 && self.inner.hot.sweep(clock::now().as_nanos()).is_ok() {
            true => fullest(),
            false => taken,
        }
    }

    /// What the databases have room for: `--cold-capacity` is the bound of what clients can fill them with.
    fn room(&self) -> Room {
        let sum = |of: fn(&Filter) -> u64| self.inner.filters.iter().map(of).sum::<u64>();
        let (rows, capacity) = (sum(Filter::added), sum(Filter::capacity));
        match rows {
            rows if rows < capacity => Room::ForAll,
            rows if rows < capacity * 2 => Room::ForUsed,
            _ => Room::None,
        }
    }

    /// Builds the filters of shards that have none, or a full one. An error says that a shard is away; others are built
    /// nevertheless.
    fn build_filters(&mut self) -> Result<(), Away> {
        let mut done = Ok(());
        for shard in 0..self.inner.filters.len() {
            let filter = &self.inner.filters[shard];
            let was_built = self.built[shard];
            let is_old = was_built.is_none_or(|built| built.elapsed() >= BUILD_MIN);
            if !filter.is_complete() || (filter.added() > filter.capacity() && is_old) {
                match self.inner.noted(shard, self.build(shard)) {
                    Ok(()) => self.built[shard] = Some(Instant::now()),
                    Err(away) => done = Err(away),
                }
            }
        }
        done
    }

    pub(crate) fn build(&self, shard: usize) -> Result<(), Away> {
        let filter: &Filter = &self.inner.filters[shard];
        filter.begin();
        let mut after = None;
        loop {
            if self.is_ending.load(Ordering::Relaxed) {
                return Ok(());
            }
            let page = self.runtime.block_on(self.inner.rows.page(shard, after, now_secs()))?;
            page.rows.iter().for_each(|row| filter.add_to_next(&row.key));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        filter.complete();
        let (rows, capacity) = (filter.added(), filter.capacity());
        let name = &self.inner.rows.shards()[shard];
        tracing::info!(shard = name, rows, "it is known which counters are cold");
        if rows > capacity {
            tracing::warn!(
                shard = name,
                rows,
                capacity,
                "more counters are cold than filters have room for, so new ones are looked up in vain; raise \
                 --cold-capacity, and restart all processes of the data directory"
            );
        }
        Ok(())
    }

    /// Looks at all nodes: which counters are to move, and which rows are stale for good.
    fn find(&self, mut is_to_move: impl FnMut(&Hashed, Use) -> bool) -> Found {
        let (mut found, now) = (Found::default(), now_secs());
        let mut versions: HashMap<Hashed, u32> = HashMap::new();
        let (seed, pass) = (self.inner.hot.seed(), self.inner.hot.completed_pass() as u32);
        let looked = self.inner.hot.for_each(|class, stored, entry| {
            let key = Hashed { hash: stored.bits(), class };
            if let Some((counter, record)) = Record::of_node(seed, &key, &entry.state) {
                if let Record::Fetched { moved_at, pass: before } = record {
                    versions.insert(counter, moved_at);
                    if is_saved(before, pass) {
                        found.stale.push((counter, moved_at));
                    }
                }
                return;
            }
            let of = self.inner.heat.pass(&key);
            let row = row_of(key, &entry, now);
            let is_worth_it = row.expires_at.saturating_sub(now) >= LEFT_MIN;
            if is_worth_it && is_to_move(&key, of) {
                found.idle.push(Candidate { of, row });
                if found.idle.len() >= 2 * PASS_MAX {
                    keep_best(&mut found.idle);
                }
            }
        });
        if let Err(error) = looked {
            tracing::debug!(%error, "not all nodes were looked at");
        }
        keep_best(&mut found.idle);
        // A row is newer than any before it, whatever the clock did, since the newest one counts.
        for Candidate { row, .. } in &mut found.idle {
            if let Some(before) = versions.get(&row.key) {
                row.moved_at = row.moved_at.max(before.saturating_add(1));
            }
        }
        found
    }

    /// Removes rows that are stale, now that the snapshot has their counters. Their records go after them.
    fn remove(&self, stale: &[(Hashed, u32)]) -> Result<(), Away> {
        for stale in stale.chunks(ROWS) {
            for shard in 0..self.inner.filters.len() {
                let filter = &self.inner.filters[shard];
                let may_have = stale.iter().filter(|(key, _)| filter.may_have(key)).copied();
                let rows: Vec<(Hashed, u32)> = may_have.collect();
                if !rows.is_empty() {
                    let removing = self.inner.rows.remove(shard, &rows, now_secs());
                    self.inner.noted(shard, self.runtime.block_on(removing))?;
                }
            }
            for (key, version) in stale {
                let gone = self.inner.with_record(key, |_, entries, _| {
                    let record = entries.get(1);
                    let read = Record::read(record.state);
                    if matches!(read, Some((_, Record::Fetched { moved_at, .. })) if moved_at == *version)
                    {
                        record.state.fill(0);
                    }
                });
                if gone.is_ok() {
                    add(&self.inner.tally.removed, 1);
                }
            }
        }
        Ok(())
    }

    /// Moves counters down, as many as the rate allows until the next pass.
    fn move_down(&self, idle: Vec<Candidate>) -> Result<(), Away> {
        let start = Instant::now();
        let mut shards: Vec<Vec<Row>> = vec![Vec::new(); self.inner.filters.len()];
        for Candidate { row, .. } in idle {
            shards[self.inner.rows.shard_of(&row.key)].push(row);
        }
        let (mut done, mut moved) = (Ok(()), 0);
        for (shard, rows) in shards.into_iter().enumerate() {
            for rows in rows.chunks(ROWS) {
                if self.is_ending.load(Ordering::Relaxed) {
                    return done;
                }
                // No faster than the rate.
                let due = Duration::from_secs_f64(
                    f64::from(moved) / f64::from(self.settings.per_second.max(1)),
                );
                thread::sleep(due.saturating_sub(start.elapsed()));
                moved += rows.len() as u32;
                if let Err(away) = self.move_rows(shard, rows) {
                    done = Err(away);
                    break;
                }
            }
        }
        done
    }

    fn move_rows(&self, shard: usize, rows: &[Row]) -> Result<(), Away> {
        rows.iter().for_each(|row| self.inner.filters[shard].add(&row.key));
        let written = self.runtime.block_on(self.inner.rows.put(shard, rows, now_secs()));
        let written = self.inner.noted(shard, written);
        for row in rows {
            let is_written = written.is_ok();
            match self.inner.leave_to(row, is_written) {
                Ok(true) => {
                    self.inner.heat.forget(&row.key);
                    add(&self.inner.tally.moved_down, 1);
                }
                Ok(false) => {}
                Err(error) => tracing::debug!(%error, "a counter stays hot, and its row is stale"),
            }
        }
        written
    }
}

impl Inner {
    /// Erases a counter whose row was written, if it is as it was. Otherwise the row is stale. Returns whether the row
    /// is the truth now.
    fn leave_to(&self, row: &Row, is_written: bool) -> Result<bool, tidegate_store::UpdateError> {
        let pass = self.hot.completed_pass() as u32;
        self.with_record(&row.key, |_, entries, _| {
            let counter = entries.get(0);
            let is_same = row.state[..] == *counter.state
                && *counter.expires_at == u64::from(row.expires_at) * SECOND;
            if is_same && is_written {
                counter.state.fill(0);
                entries.get(1).state.fill(0);
                return true;
            }
            let record = entries.get(1);
            Record::Fetched { moved_at: row.moved_at, pass }.write(&row.key, record.state);
            *record.expires_at = u64::from(row.expires_at) * SECOND;
            false
        })
    }
}

/// Whether the snapshot has what was hot when pass `before` was the last complete one. The next pass may have begun
/// already then.
fn is_saved(before: u32, completed: u32) -> bool {
    (completed.wrapping_sub(before) as i32) >= 2
}

fn row_of(key: Hashed, entry: &Entry, now: u32) -> Row {
    let expires_at = u32::try_from(entry.expires_at / SECOND).unwrap_or(u32::MAX);
    Row { key, state: entry.state.clone(), expires_at, moved_at: now }
}

/// Keeps those that are idle for longest; of these, those that have most time left.
fn keep_best(candidates: &mut Vec<Candidate>) {
    if candidates.len() > PASS_MAX {
        let last = PASS_MAX - 1;
        candidates.select_nth_unstable_by_key(last, |Candidate { of, row }| {
            Reverse((of.idle, row.expires_at))
        });
        candidates.truncate(PASS_MAX);
    }
}

pub(crate) fn now_secs() -> u32 {
    (clock::now().as_nanos() / SECOND) as u32
}

#[cfg(test)]
impl Mover {
    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }

    /// Moves a few idle counters.
    pub(crate) fn find_some(&self, pressure: Pressure, most: usize) -> Result<(), Away> {
        let mut found = self.find_idle(pressure);
        found.idle.truncate(most);
        self.move_down(found.idle)
    }

    pub(crate) fn build_all(&mut self) {
        self.build_filters().unwrap();
    }

    pub(crate) fn age(&mut self) -> Result<(), Away> {
        self.ageing.pass(&self.inner, &self.runtime)
    }
}
