//! Moves: idle counters go down to their shards.
//!
//! One process of a data directory moves at a time, in a thread of its own, and passes over all nodes again and again. The
//! fuller the store is, the sooner passes follow each other, and the less idle a counter has to be to move. A move is
//! three steps: the filter gets the key, the shard gets the row, and the counter's node goes if it is as it was. A kill in
//! between leaves the counter hot and its row stale. Between passes filters
//! are built (`build`), and stale rows removed (`stale`).
//!
//! What stays hot: counters whose end is near, and counters in use. Counters that began anew while their row could not be
//! read stay until it is removed. Counters with a single use, which anybody can make, stay unless there is hardly any room
//! left. Bounds: moves per second, and rows of one operation.

use crate::ageing::Ageing;
use crate::build::Builds;
use crate::filter::Filter;
use crate::heat::{IDLE_MAX, Use};
use crate::record::{ALL_ROWS, Record};
use crate::rows::Away;
use crate::stale::Stale;
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
pub(crate) const AWAY: Duration = Duration::from_secs(2);
/// How long a process that ends waits for a database.
const END_MAX: Duration = Duration::from_secs(3);
/// How often it is looked how full a store is that was found to have room.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The pause between steps of a round over the warm shards.
const AGEING_PAUSE: Duration = Duration::from_secs(1);
/// How often a process that does not move tries to become the one that does.
const LOCK_PAUSE: Duration = Duration::from_secs(1);
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
    builds: Builds,
    ageing: Ageing,
    stale: Stale,
    /// Whether the pass under way is to end soon.
    is_ending: Arc<AtomicBool>,
    /// The updates that had been refused for lack of room before the last pass.
    refused: u64,
    /// When the last pass began, and when it ended.
    last_pass: Option<[Instant; 2]>,
    /// After an operation that failed, nothing is done before.
    rests_until: Instant,
}

impl Tiered {
    pub(crate) fn mover(&self, settings: MovesSettings) -> io::Result<Mover> {
        let (inner, runtime) = (self.inner.clone(), self.runtime()?);
        let builds = Builds::new(inner.clone(), runtime.clone());
        let ageing = Ageing::new(settings.warm);
        let refused = inner.hot.stats().refused;
        Ok(Mover {
            inner,
            runtime,
            settings,
            builds,
            ageing,
            stale: Stale::default(),
            is_ending: Arc::default(),
            refused,
            last_pass: None,
            rests_until: Instant::now(),
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
        let moved = || self.inner.tally.moved.load(Ordering::Relaxed);
        let (start, mut before) = (moved(), None);
        mover.builds.list_all().map_err(io::Error::other)?;
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
    /// Does what is due. Returns the pause until it is looked again whether something is.
    fn step(&mut self) -> Duration {
        let rest = self.rests_until.saturating_duration_since(Instant::now());
        if !rest.is_zero() {
            return rest;
        }
        let due = self.due_in();
        let done = if due.is_zero() {
            self.pass()
        } else if self.builds.is_due() {
            self.builds.list_some();
            Ok(())
        } else if !self.stale.is_empty() {
            self.stale.remove_some(&self.inner, &self.runtime)
        } else {
            self.ageing.pass(&self.inner, &self.runtime)
        };
        if done.is_err() {
            self.rests_until = Instant::now() + AWAY;
            AWAY
        } else if self.builds.is_due() || !self.stale.is_empty() {
            Duration::ZERO
        } else if self.ageing.is_under_way() {
            self.due_in().min(AGEING_PAUSE)
        } else {
            self.due_in().min(LOOK_EVERY)
        }
    }

    /// The time until the next pass. Memory may fill up meanwhile. A fifth of the time is left to what is done between
    /// passes, however long they take.
    fn due_in(&self) -> Duration {
        let Some([begun, ended]) = self.last_pass else { return Duration::ZERO };
        let pause = Pressure::at(self.percent_occupied(), self.settings.idle).pause;
        let left = pause.saturating_sub(begun.elapsed());
        left.max((ended.duration_since(begun) / 4).saturating_sub(ended.elapsed()))
    }

    /// Passes over all nodes once.
    pub(crate) fn pass(&mut self) -> Result<(), Away> {
        let begun = Instant::now();
        let done = self.pass_now();
        self.last_pass = Some([begun, Instant::now()]);
        done
    }

    fn pass_now(&mut self) -> Result<(), Away> {
        let mut pressure = Pressure::at(self.percent_taken(), self.settings.idle);
        let refused = self.inner.hot.stats().refused;
        if std::mem::replace(&mut self.refused, refused) != refused {
            pressure = pressure.after_refusals();
        }
        self.pass_at(pressure)
    }

    pub(crate) fn pass_at(&mut self, pressure: Pressure) -> Result<(), Away> {
        self.move_idle(pressure)?;
        self.ageing.pass(&self.inner, &self.runtime)
    }

    pub(crate) fn move_idle(&mut self, pressure: Pressure) -> Result<(), Away> {
        let found = self.find_idle(pressure);
        self.stale.found(found.stale);
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

    /// Without nodes that have expired, which are free for new keys.
    pub(crate) fn percent_taken(&self) -> u64 {
        let occupied = self.percent_occupied();
        match occupied >= 70 && self.inner.hot.sweep(clock::now().as_nanos()).is_ok() {
            true => self.percent_occupied(),
            false => occupied,
        }
    }

    /// Of the class that is fuller, also by nodes that have expired.
    fn percent_occupied(&self) -> u64 {
        let percent = |class| {
            let occupancy = self.inner.hot.rough_occupancy(class)?;
            Some(occupancy.occupied * 100 / occupancy.nodes.max(1))
        };
        Class::ALL.into_iter().filter_map(percent).max().unwrap_or(0)
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
                    // A row that could not be read does not count again, whatever becomes of the counter.
                    let is_stale = moved_at == ALL_ROWS || is_saved(before, pass);
                    if is_stale && found.stale.len() < PASS_MAX {
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
        // No row is newer than all there may be: these counters stay until their stale rows are removed.
        found.idle.retain(|candidate| versions.get(&candidate.row.key) != Some(&ALL_ROWS));
        keep_best(&mut found.idle);
        // A row is newer than any before it, whatever the clock did, since the newest one counts.
        for Candidate { row, .. } in &mut found.idle {
            if let Some(before) = versions.get(&row.key) {
                row.moved_at = row.moved_at.max(before.saturating_add(1));
            }
        }
        found
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
                    add(&self.inner.tally.moved, 1);
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

    pub(crate) fn list_a_page(&mut self, shard: usize) -> Result<(), Away> {
        self.builds.list(shard)
    }

    /// Builds all filters, passes over all nodes, and removes what is stale.
    pub(crate) fn whole_pass_at(&mut self, pressure: Pressure) -> Result<(), Away> {
        self.builds.list_all()?;
        self.pass_and_remove(pressure)
    }

    pub(crate) fn pass_and_remove(&mut self, pressure: Pressure) -> Result<(), Away> {
        self.pass_at(pressure)?;
        while !self.stale.is_empty() {
            self.stale.remove_some(&self.inner, &self.runtime)?;
        }
        Ok(())
    }

    pub(crate) fn build_all(&mut self) {
        self.builds.list_all().unwrap();
    }

    pub(crate) fn age(&mut self) -> Result<(), Away> {
        self.ageing.pass(&self.inner, &self.runtime)
    }
}
