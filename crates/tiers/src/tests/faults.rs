//! What fails loses no hit, and opens no limit unless that is asked for.

use super::memory_rows::{Fault, Faults};
use super::*;
use crate::tiered::Missing;

const AWAY: Faults = Faults { reads: Fault::Refused, writes: Fault::Refused };

fn settings(missing: Missing) -> Settings {
    let timeout = Duration::from_millis(20);
    Settings { capacity: 10_000, missing, timeout }
}

/// A world with a counter of three that is cold, whose shard is away.
fn with_cold(missing: Missing) -> World {
    let mut world = World::with(1, settings(missing));
    (0..3).for_each(|_| _ = world.process.hit(1));
    world.process.move_all();
    world.rows.set_faults(AWAY);
    world
}

#[test]
fn a_counter_whose_row_cannot_be_read_is_undecided() {
    let world = with_cold(Missing::Deny);
    let error = world.process.hit(1).unwrap_err();
    assert_eq!(error, Undecided::Unreachable { cause: "broken for this test".to_owned() });
    assert_eq!(world.process.tiered.trouble().unwrap(), "shard 0: broken for this test");
    // Hot and new ones are decided.
    assert_eq!((world.process.hit(2), world.process.hit(2)), (Ok(1), Ok(2)));
    world.rows.set_faults(Faults::default());
    assert_eq!(world.process.hit(1), Ok(4));
    assert_eq!(world.process.tiered.trouble(), None);
}

#[test]
fn a_limit_that_lets_pass_counts_nothing_meanwhile() {
    let world = with_cold(Missing::Allow);
    assert_eq!((world.process.hit(1), world.process.hit(1)), (Ok(1), Ok(1)));
    assert!(!world.process.is_hot(1));
    world.rows.set_faults(Faults::default());
    assert_eq!(world.process.hit(1), Ok(4));
    assert_eq!(world.process.tiered.counts().without_state, 2);
}

#[test]
fn a_counter_that_begins_anew_goes_on_and_its_row_is_stale() {
    let mut world = with_cold(Missing::Fresh);
    assert_eq!((world.process.hit(1), world.process.hit(1)), (Ok(1), Ok(2)));
    world.rows.set_faults(Faults::default());
    assert_eq!(world.process.hit(1), Ok(3));
    assert_eq!(world.process.change(1, |count| *count = 0), Ok(0));
    assert_eq!(world.process.hit(1), Ok(1));
    world.process.move_all();
    assert_eq!(world.process.hit(1), Ok(2));
}

#[test]
fn the_next_row_of_a_counter_that_began_anew_is_not_taken_for_a_stale_one() {
    let mut world = with_cold(Missing::Fresh);
    assert_eq!(world.process.hit(1), Ok(1));
    // While the shard is away the counter becomes idle. So one pass finds both: a counter that is to move, and a stale row
    // that is to go.
    for _ in 0..5 {
        world.process.hit(2).unwrap();
        world.process.hot.sync().unwrap();
        world.process.mover.pass_at(Pressure { idle_min: 30, ..ALL }).unwrap();
    }
    world.rows.set_faults(Faults::default());
    for count in 2..5 {
        world.process.move_all();
        assert_eq!(world.process.hit(1), Ok(count));
    }
    assert!(world.process.tiered.counts().moved > 0);
}

#[test]
fn other_counters_of_the_update_count_as_they_should() {
    let world = with_cold(Missing::Allow);
    world.process.hit(2).unwrap();
    let (keys, now, mut counts) = ([key(1), key(2), key(3)], clock::now(), [0; 3]);
    let mut update = |entries: &mut Entries<'_>| {
        for (index, count) in counts.iter_mut().enumerate() {
            let entry = entries.get(index);
            entry.state[0] += 1;
            *entry.expires_at = now.as_nanos() + DAY;
            *count = entry.state[0];
        }
    };
    wait(world.process.tiered.update(&keys, now, &mut update)).unwrap();
    assert_eq!(counts, [1, 2, 1]);
    assert_eq!((world.process.count(2), world.process.count(3)), (Ok(2), Ok(1)));
    world.rows.set_faults(Faults::default());
    assert_eq!(world.process.count(1), Ok(3));
}

#[test]
fn a_move_that_fails_leaves_counters_hot() {
    for writes in [Fault::Refused, Fault::DoneUnheard] {
        let mut world = World::new(1);
        (0..50).for_each(|number| _ = world.process.hit(number));
        world.rows.set_faults(Faults { writes, ..Faults::default() });
        world.process.move_all();
        assert!((0..50).all(|number| world.process.is_hot(number)));
        (0..50).for_each(|number| assert_eq!(world.process.hit(number), Ok(2)));
        // The rows that were written are stale, also for counters that are given back.
        assert_eq!(world.process.change(7, |count| *count = 0), Ok(0));
        world.rows.set_faults(Faults::default());
        assert_eq!(world.process.hit(7), Ok(1));
        world.process.move_all();
        assert!((0..50).all(|number| !world.process.is_hot(number)));
        assert_eq!((world.process.hit(7), world.process.hit(8)), (Ok(2), Ok(3)));
    }
}

#[test]
fn a_row_that_comes_late_is_not_the_truth() {
    let mut world = World::with(1, settings(Missing::Deny));
    world.process.hit(1).unwrap();
    world.process.move_all();
    // One process reads the row, and hears of it late.
    let other = world.another();
    let hit = |process: &Process| loop {
        match process.hit(1) {
            // A thread of the other one had no processor while it held a lock. Nothing was counted.
            Err(Undecided::Store(error)) if error.is_contention() => {}
            hit => return hit,
        }
    };
    world.rows.hold();
    let late = std::thread::scope(|scope| {
        let late = scope.spawn(|| hit(&other));
        while world.rows.queries() == 0 {
            std::thread::yield_now();
        }
        // Meanwhile another one takes over, counts, and the counter moves down again.
        let taken_over = scope.spawn(|| hit(&world.process));
        while world.rows.queries() == 1 {
            std::thread::yield_now();
        }
        world.rows.release();
        assert!(taken_over.join().unwrap().is_ok());
        late.join().unwrap()
    });
    assert!(late.is_ok());
    assert_eq!(world.process.count(1), Ok(3));
    world.process.move_all();
    assert_eq!((other.hit(1), world.process.hit(1)), (Ok(4), Ok(5)));
}

#[test]
fn a_filter_that_is_not_complete_keeps_no_counter_from_its_row() {
    let mut world = with_cold(Missing::Deny);
    // A new process whose memory is new, too.
    let World { rows, process, settings, dir } = world;
    drop(process);
    let mut process = Process::start(dir.path(), &rows, settings);
    let _ = process.mover.whole_pass_at(ALL);
    assert!(!process.tiered.is_complete());
    assert!(process.hit(1).is_err() && process.hit(9).is_err());
    rows.set_faults(Faults::default());
    assert_eq!((process.hit(1), process.hit(9)), (Ok(4), Ok(1)));
    process.move_all();
    assert!(process.tiered.is_complete());
    world = World { rows, process, settings, dir };
    assert_eq!((world.process.hit(1), world.process.hit(9)), (Ok(5), Ok(2)));
}

/// Symptom: a database that had come back was said to be away, and one that had gone was said to answer, as long as no
/// counter of it was asked for and none moved. Cause: only these operations were noted. Now it is asked when it is silent.
#[test]
fn it_is_noticed_that_a_silent_database_goes_and_comes_back() {
    let world = World::with(1, settings(Missing::Deny));
    for faults in [AWAY, Faults::default(), AWAY] {
        world.rows.set_faults(faults);
        let is_away = faults.reads != Fault::None;
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while world.process.tiered.trouble().is_some() != is_away {
            assert!(std::time::Instant::now() < deadline, "{faults:?}");
            std::thread::yield_now();
        }
    }
}

/// Symptom: a process that had ended was in its data directory for another moment, so that its memory stayed, and the next
/// process did not begin with a new one. Cause: a task that asked whether a database answers had the store, and was dropped
/// later. Now the engine waits for its tasks when it is dropped.
#[test]
fn nothing_has_the_store_once_the_engine_is_dropped() {
    let World { rows, process, dir: _dir, .. } = World::new(1);
    rows.hold();
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while rows.asked() == 0 {
        assert!(std::time::Instant::now() < deadline);
        std::thread::yield_now();
    }
    let store = Arc::downgrade(&process.hot);
    drop(process);
    assert!(store.upgrade().is_none());
}

/// Symptom: in a store that was full for a moment, some requests took as long as a fetch of another process is waited for.
/// Cause: a fetch had begun, and found no room for the counter. Its record stayed, and later fetches took it for the one
/// of another process. Now it is given up.
#[test]
fn a_fetch_that_finds_no_room_delays_no_later_one() {
    const COLD: u64 = 50;
    // Who waits for another process does not end.
    let timeout = Duration::from_secs(3_600);
    let mut world = World::with(1, Settings { capacity: 10_000, timeout, ..Settings::default() });
    (0..COLD).for_each(|number| _ = world.process.hit(number));
    world.process.move_all();
    let is_full = |hit: Result<u64, Undecided>| match hit {
        Ok(_) => false,
        Err(Undecided::Store(tidegate_store::UpdateError::Full { .. })) => true,
        Err(error) => panic!("{error}"),
    };
    let mut hot: Vec<u64> = (1_000..5_000).collect();
    hot.retain(|number| !is_full(world.process.hit(*number)));
    let mut waiting: Vec<u64> = (0..COLD).collect();
    assert!(waiting.iter().any(|number| is_full(world.process.hit(*number))));
    // Some have room for a record alone.
    while !waiting.is_empty() {
        waiting.retain(|number| is_full(world.process.hit(*number)));
        let erased = hot.pop().unwrap();
        assert_eq!(world.process.change(erased, |count| *count = 0), Ok(0));
    }
    (0..COLD).for_each(|number| assert_eq!(world.process.count(number), Ok(2)));
}

#[test]
fn the_end_of_moves_does_not_wait_for_a_database_that_hangs() {
    let world = World::new(1);
    (0..10).for_each(|number| _ = (world.process.hit(number), world.process.hit(number)));
    world.rows.hold_writes();
    let settings = MovesSettings { idle: Duration::from_millis(160), ..MovesSettings::default() };
    let moves = world.process.tiered.start_moves(world.dir.path(), settings).unwrap();
    while world.rows.held_writes() == 0 {
        std::thread::yield_now();
    }
    drop(moves);
    world.rows.release();
    // The thread goes on by itself, and loses nothing.
    (0..10).for_each(|number| assert_eq!(world.process.hit(number), Ok(3)));
}
