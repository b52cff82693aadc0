//! Every hit counts once, wherever its counter is and whatever fails.

mod faults;
mod fetches;
mod history;
mod levels;
mod memory_rows;
mod threads;

use crate::mover::{Mover, MovesSettings, Pressure};
use crate::rows::Rows;
use crate::tiered::{Settings, Tiered};
use memory_rows::MemoryRows;
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tempfile::TempDir;
use tidegate_authority::{Counters, Undecided, clock, wait};
use tidegate_store::{Cluster, Entries, Geometry, Hashed, Options, default_memory_dir};
use xxhash_rust::xxh3::xxh3_128;

const DAY: u64 = 86_400_000_000_000;
/// Whatever was not used since the last pass moves.
const ALL: Pressure =
    Pressure { idle_min: 1, spares_single: false, pause: Duration::from_millis(10) };

/// A process of a data directory.
struct Process {
    hot: Arc<Cluster>,
    tiered: Tiered,
    mover: Mover,
}

impl Process {
    fn start(dir: &Path, rows: &Arc<MemoryRows>, settings: Settings) -> Process {
        Process::over(dir, rows.clone(), settings, MovesSettings::default())
    }

    fn over(dir: &Path, rows: Arc<dyn Rows>, settings: Settings, moves: MovesSettings) -> Process {
        Process::with_room(1_000, dir, rows, settings, moves)
    }

    fn with_room(
        counters: u64,
        dir: &Path,
        rows: Arc<dyn Rows>,
        settings: Settings,
        moves: MovesSettings,
    ) -> Process {
        let narrow = Geometry::by_capacity(counters, 0.8).unwrap();
        // The memory goes with the directory, however the process ends.
        let options = Options { memory_dir: Some(dir.into()), ..Options::narrow(narrow) };
        let hot = Arc::new(Cluster::open(dir, &options).unwrap());
        let tiered = Tiered::new(hot.clone(), rows, settings).unwrap();
        let mover = tiered.mover(moves).unwrap();
        Process { hot, tiered, mover }
    }

    /// Moves down whatever is idle. The first pass only sees that it is, and keys with the same byte of heat take several.
    fn move_all(&mut self) {
        for _ in 0..5 {
            let _ = self.mover.whole_pass_at(ALL);
        }
    }

    /// One hit of a counter of a day. Returns the count with it.
    fn hit(&self, number: u64) -> Result<u64, Undecided> {
        self.change(number, |count| *count += 1)
    }

    fn count(&self, number: u64) -> Result<u64, Undecided> {
        self.change(number, |_| {})
    }

    fn change(&self, number: u64, change: impl Fn(&mut u64) + Sync) -> Result<u64, Undecided> {
        let (keys, now, mut count) = ([key(number)], clock::now(), 0);
        let mut update = |entries: &mut Entries<'_>| {
            let entry = entries.get(0);
            change(&mut entry.state[0]);
            *entry.expires_at = now.as_nanos() + DAY;
            count = entry.state[0];
        };
        wait(self.tiered.update(&keys, now, &mut update))?;
        Ok(count)
    }

    fn is_hot(&self, number: u64) -> bool {
        self.hot.find(&key(number), clock::now().as_nanos()).unwrap().is_some()
    }
}

fn key(number: u64) -> Hashed {
    Hashed::narrow(xxh3_128(&number.to_le_bytes()))
}

/// A data directory in memory, where there is some.
fn directory() -> TempDir {
    TempDir::new_in(default_memory_dir()).or_else(|_| TempDir::new()).unwrap()
}

/// A data directory with a process, and its rows.
struct World {
    rows: Arc<MemoryRows>,
    process: Process,
    settings: Settings,
    dir: TempDir,
}

impl World {
    fn new(shards: usize) -> World {
        World::with(shards, Settings { capacity: 10_000, ..Settings::default() })
    }

    fn with(shards: usize, settings: Settings) -> World {
        let (dir, rows) = (directory(), Arc::new(MemoryRows::new(shards)));
        let mut process = Process::start(dir.path(), &rows, settings);
        process.mover.whole_pass_at(ALL).unwrap();
        World { rows, process, settings, dir }
    }

    /// Another process of the data directory.
    fn another(&self) -> Process {
        Process::start(self.dir.path(), &self.rows, self.settings)
    }
}

#[test]
fn an_idle_counter_moves_down_and_comes_back_with_its_count() {
    let mut world = World::new(2);
    for number in 0..100 {
        for count in 1..=3 {
            assert_eq!(world.process.hit(number), Ok(count));
        }
    }
    world.process.move_all();
    assert_eq!(world.rows.len(), 100);
    assert!((0..100).all(|number| !world.process.is_hot(number)));
    for number in 0..100 {
        assert_eq!(world.process.hit(number), Ok(4));
        assert!(world.process.is_hot(number));
    }
    let counts = world.process.tiered.counts();
    assert_eq!((counts.moved, counts.fetched, counts.without_state), (100, 100, 0));
}

#[test]
fn new_counters_cost_no_look_up() {
    let mut world = World::new(2);
    (0..100).for_each(|number| _ = world.process.hit(number));
    world.process.move_all();
    let before = world.rows.fetches();
    (1_000..1_500).for_each(|number| _ = world.process.hit(number));
    let looked_up = world.rows.fetches() - before;
    assert!(looked_up < 15, "{looked_up}");
    assert!(world.process.tiered.counts().spared >= 500 - 15);
}

#[test]
fn what_is_used_or_ends_soon_or_had_a_single_use_stays() {
    let mut world = World::new(1);
    let lively = Pressure { spares_single: true, ..ALL };
    (0..2).for_each(|_| _ = world.process.hit(1));
    world.process.hit(2).unwrap();
    world.process.mover.whole_pass_at(lively).unwrap();
    world.process.hit(1).unwrap();
    world.process.mover.whole_pass_at(lively).unwrap();
    assert!(world.process.is_hot(1) && world.process.is_hot(2));
    let now = clock::now();
    let keys = [key(3)];
    let mut soon = |entries: &mut Entries<'_>| {
        let entry = entries.get(0);
        entry.state[0] = 5;
        *entry.expires_at = now.as_nanos() + DAY / 86_400 * 50;
    };
    wait(world.process.tiered.update(&keys, now, &mut soon)).unwrap();
    world.process.move_all();
    assert!(world.process.is_hot(3) && !world.process.is_hot(1) && !world.process.is_hot(2));
}

#[test]
fn stale_rows_are_removed_once_the_snapshot_has_their_counters() {
    let mut world = World::new(2);
    (0..50).for_each(|number| _ = world.process.hit(number));
    world.process.move_all();
    (0..50).for_each(|number| _ = world.process.hit(number));
    let quiet = Pressure { idle_min: 30, ..ALL };
    world.process.mover.whole_pass_at(quiet).unwrap();
    assert_eq!(world.rows.len(), 50);
    // A pass may have begun before the counters came back, so the second one has them.
    for number in 100..102 {
        assert_eq!(world.rows.len(), 50);
        // A pass without a change would be none.
        world.process.hit(number).unwrap();
        world.process.hot.sync().unwrap();
        world.process.mover.whole_pass_at(quiet).unwrap();
    }
    assert_eq!(world.rows.len(), 0);
    assert_eq!(world.process.tiered.counts().removed, 50);
    (0..50).for_each(|number| assert_eq!(world.process.hit(number), Ok(3)));
}

#[test]
fn a_counter_that_is_given_back_whole_is_new_although_its_stale_row_is_there() {
    let mut world = World::new(1);
    (0..5).for_each(|_| _ = world.process.hit(1));
    world.process.move_all();
    assert_eq!(world.process.change(1, |count| *count = 0), Ok(0));
    assert!(!world.process.is_hot(1) && world.rows.len() == 1);
    assert_eq!(world.process.hit(1), Ok(1));
    // Also after it has moved again, and the row is the truth.
    world.process.move_all();
    assert_eq!(world.process.hit(1), Ok(2));
}

#[test]
fn what_waits_does_not_happen_if_it_is_dropped() {
    let mut world = World::new(1);
    world.process.hit(1).unwrap();
    world.process.move_all();
    world.rows.hold();
    let (keys, now) = ([key(1)], clock::now());
    let mut update = |entries: &mut Entries<'_>| entries.get(0).state[0] += 1;
    let mut updating = world.process.tiered.update(&keys, now, &mut update);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert_eq!(std::pin::Pin::new(&mut updating).poll(&mut context), Poll::Pending);
    drop(updating);
    world.rows.release();
    assert_eq!(world.process.hit(1), Ok(2));
}

#[test]
fn counters_of_one_update_come_back_together() {
    let mut world = World::new(3);
    (0..20).for_each(|number| _ = world.process.hit(number));
    world.process.move_all();
    let before = world.rows.fetches();
    let keys: Vec<Hashed> = (0..20).map(key).collect();
    let (now, mut counts) = (clock::now(), Vec::new());
    let mut update = |entries: &mut Entries<'_>| {
        counts = (0..20).map(|index| entries.get(index).state[0]).collect();
    };
    wait(world.process.tiered.update(&keys, now, &mut update)).unwrap();
    assert_eq!(counts, vec![1; 20]);
    // A filter may be wrong.
    assert!(world.rows.fetches() - before < 24);
}

/// Symptom: a request that meets more than 128 cold counters was refused as too large, though a request may meet 256.
/// Cause: the update had the record of each as well. Now it has those of counters that did not come back.
#[test]
fn as_many_counters_come_back_together_as_an_update_may_have() {
    const MOST: u64 = tidegate_store::UPDATE_KEYS_MAX as u64;
    let mut world = World::new(2);
    (0..MOST).for_each(|number| _ = world.process.hit(number));
    world.process.move_all();
    assert_eq!(world.rows.len() as u64, MOST);
    let keys: Vec<Hashed> = (0..MOST).map(key).collect();
    let (now, mut sum) = (clock::now(), 0);
    let mut update = |entries: &mut Entries<'_>| {
        sum = (0..keys.len()).map(|index| entries.get(index).state[0]).sum();
    };
    wait(world.process.tiered.update(&keys, now, &mut update)).unwrap();
    assert_eq!(sum, MOST);
}

#[test]
fn counters_stay_where_they_are_when_a_process_follows_another() {
    let mut world = World::new(2);
    (0..100).for_each(|number| _ = world.process.hit(number));
    world.process.move_all();
    let next = world.another();
    assert!(next.tiered.is_complete(), "the filters are shared");
    drop(std::mem::replace(&mut world.process, next));
    (0..100).for_each(|number| assert_eq!(world.process.hit(number), Ok(2)));
    let before = world.rows.fetches();
    (500..600).for_each(|number| assert_eq!(world.process.hit(number), Ok(1)));
    assert!(world.rows.fetches() - before < 10);
}

#[test]
fn after_the_memory_was_lost_rows_are_found_again() {
    let mut world = World::new(2);
    (0..100).for_each(|number| _ = world.process.hit(number));
    world.process.move_all();
    let World { rows, process, settings, dir } = world;
    // The last process saves, and removes the memory with the filters.
    drop(process);
    let mut process = Process::start(dir.path(), &rows, settings);
    assert!(!process.tiered.is_complete());
    assert_eq!(process.hit(0), Ok(2));
    process.mover.whole_pass_at(Pressure { idle_min: 30, ..ALL }).unwrap();
    assert!(process.tiered.is_complete());
    (1..100).for_each(|number| assert_eq!(process.hit(number), Ok(2)));
    let before = rows.fetches();
    (500..600).for_each(|number| assert_eq!(process.hit(number), Ok(1)));
    assert!(rows.fetches() - before < 10);
}

#[test]
fn the_fuller_the_store_the_sooner_counters_move() {
    let hour = Duration::from_secs(3_600);
    let at: Vec<Pressure> =
        [0, 69, 70, 80, 90, 96, 100].map(|percent| Pressure::at(percent, hour)).into();
    assert!(
        at.windows(2).all(|two| two[1].idle_min <= two[0].idle_min && two[1].pause <= two[0].pause)
    );
    assert_eq!(at[0].pause * u32::from(at[0].idle_min), hour);
    assert!(at[4].spares_single && !at[5].spares_single);
}

#[test]
fn databases_have_a_bound_and_counters_with_a_single_use_stay_first() {
    let world = World::with(1, Settings { capacity: 100, ..Settings::default() });
    let room = world.process.tiered.inner.filters[0].capacity();
    // A few set no new bit in a filter that is nearly full.
    let most = 3 * room;
    for number in 0..most {
        world.process.hit(number).unwrap();
        if number % 2 == 0 {
            world.process.hit(number).unwrap();
        }
    }
    // In batches, as the bound is looked at before each pass.
    for _ in 0..200 {
        world.process.mover.find_some(ALL, 10).unwrap();
    }
    let cold = (0..most).filter(|number| !world.process.is_hot(*number));
    let (used, single): (Vec<u64>, Vec<u64>) = cold.partition(|number| number % 2 == 0);
    assert!((used.len() + single.len()) as u64 <= 2 * room + 40, "{used:?} {single:?}");
    assert!(single.len() as u64 <= room && used.len() > single.len(), "{used:?} {single:?}");
    assert!(world.process.tiered.counts().kept > 0);
    (0..most).step_by(7).for_each(|number| {
        assert_eq!(world.process.count(number), Ok(2 - number % 2));
    });
}

/// Symptom: while a million counters came back, memory filled up and refused keys for half a minute. Cause: all stale rows
/// were removed before anything moved. Now idle counters move first, and their rows replace stale ones.
#[test]
fn counters_move_before_stale_rows_are_removed() {
    let mut world = World::new(2);
    let hit_all = |process: &Process, count| {
        (0..100).for_each(|number| assert_eq!(process.hit(number), Ok(count)));
    };
    hit_all(&world.process, 1);
    hit_all(&world.process, 2);
    world.process.move_all();
    hit_all(&world.process, 3);
    // Their rows are stale for good.
    (0..3).for_each(|_| _ = world.process.hot.sync().unwrap());
    (0..5).for_each(|_| world.process.mover.pass_at(ALL).unwrap());
    let counts = world.process.tiered.counts();
    assert_eq!((counts.moved, counts.fetched, counts.removed), (200, 100, 0));
    hit_all(&world.process, 4);
}

/// Symptom: with fifty million rows nothing moved for half a minute after a start, and memory filled up. Cause: they were all
/// listed before the first move. Now they are listed between passes.
#[test]
fn counters_move_while_it_is_listed_which_are_cold() {
    let World { rows, mut process, settings, dir } = World::new(2);
    let hit = |process: &Process, numbers: std::ops::Range<u64>, count| {
        for number in numbers {
            assert_eq!(process.hit(number), Ok(count));
        }
    };
    (1..=2).for_each(|count| hit(&process, 0..100, count));
    process.move_all();
    // With the last process goes what is known of the rows.
    drop(process);
    let mut process = Process::start(dir.path(), &rows, settings);
    (1..=2).for_each(|count| hit(&process, 100..150, count));
    (0..5).for_each(|_| process.mover.pass_at(ALL).unwrap());
    assert!(!process.tiered.is_complete());
    assert_eq!((process.tiered.counts().moved, rows.len()), (50, 150));
    // Some more, while it is known of some.
    (0..2).for_each(|shard| process.mover.list_a_page(shard).unwrap());
    (1..=2).for_each(|count| hit(&process, 150..200, count));
    (0..5).for_each(|_| process.mover.pass_at(ALL).unwrap());
    assert!(!process.tiered.is_complete());
    assert_eq!(process.tiered.counts().moved, 100);
    process.mover.build_all();
    assert!(process.tiered.is_complete());
    hit(&process, 0..200, 3);
    hit(&process, 200..300, 1);
    assert_eq!(process.tiered.counts().fetched, 200);
}

/// Symptom: after a flood of invented keys, a store of which 95 % was taken refused others for weeks. Cause: a key has room
/// in two key-nodes, which were full of counters with a single use, and these did not move before the whole store was
/// fuller. Now they move when keys are refused.
#[test]
fn counters_with_a_single_use_make_room_for_keys_that_are_refused() {
    let mut world = World::new(1);
    let mut numbers = 0..;
    let refused = numbers.find(|number| world.process.hit(*number).is_err()).unwrap();
    assert!(world.process.mover.percent_taken() < 96);
    let is_decided = |process: &mut Process| {
        process.mover.pass().unwrap();
        process.hit(refused) == Ok(1)
    };
    assert!((0..20).any(|_| is_decided(&mut world.process)));
    let counts = world.process.tiered.counts();
    assert_eq!(counts.spared, refused + 1, "refused ones do not count");
    let has_its_count = |process: &mut Process, number| {
        process.mover.pass().unwrap();
        process.count(number) == Ok(1)
    };
    let mut some = (0..refused).step_by(50);
    assert!(some.all(|number| (0..20).any(|_| has_its_count(&mut world.process, number))));
}
