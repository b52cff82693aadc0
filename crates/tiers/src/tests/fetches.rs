//! A counter waits for its own databases, and for no longer than it should.

use super::memory_rows::{Fault, Faults};
use super::*;
use crate::levels::Levels;
use crate::record::Record;
use crate::tiered::Inner;
use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Weak;
use std::task::{Context, Waker};
use tidegate_cold::Row;

/// More than the queries of a shard may have: eight of 128.
const MANY: u64 = 4_000;
const IN_QUERIES: u64 = 1_024;
/// A store of so many counters has room for the records of all that may wait for three shards, in an eighth of its nodes.
const ROOM: u64 = 100_000;
/// No test waits for so long unless it fails.
const NEVER: Duration = Duration::from_secs(3_600);
const FAILED: Duration = Duration::from_secs(60);
const MOVED_AT: u32 = 100;

fn row(number: u64, count: u64, moved_at: u32) -> Row {
    let expires_at = (clock::now().as_nanos() + DAY) / 1_000_000_000;
    Row {
        key: key(number),
        state: [count].into_iter().collect(),
        expires_at: expires_at as u32,
        moved_at,
    }
}

fn with_timeout(timeout: Duration) -> Settings {
    Settings { capacity: 50_000, timeout, ..Settings::default() }
}

/// Counters of 1 that are cold in these shards, by their numbers.
struct Cold {
    rows: Arc<MemoryRows>,
    process: Process,
    dir: TempDir,
}

impl Cold {
    fn new(shards: usize, timeout: Duration, is_in: impl Fn(u64, usize) -> bool) -> Cold {
        Cold::with_room(ROOM, shards, timeout, is_in)
    }

    fn with_room(
        counters: u64,
        shards: usize,
        timeout: Duration,
        is_in: impl Fn(u64, usize) -> bool,
    ) -> Cold {
        let (dir, rows) = (directory(), Arc::new(MemoryRows::new(shards)));
        for number in 0..MANY {
            let shards = (0..shards).filter(|shard| is_in(number, *shard));
            shards.for_each(|shard| rows.insert(shard, row(number, 1, MOVED_AT)));
        }
        let process = Cold::process(counters, dir.path(), &rows, timeout);
        Cold { rows, process, dir }
    }

    fn process(counters: u64, dir: &Path, rows: &Arc<MemoryRows>, timeout: Duration) -> Process {
        let (settings, moves) = (with_timeout(timeout), MovesSettings::default());
        let mut process = Process::with_room(counters, dir, rows.clone(), settings, moves);
        process.mover.build_all();
        process
    }

    fn inner(&self) -> &Inner {
        &self.process.tiered.inner
    }

    /// Begins the fetches of these counters, all at once.
    fn ask(&self, numbers: impl IntoIterator<Item = u64>) -> Vec<(u64, Fetching)> {
        let ask = |number| -> (u64, Fetching) {
            (number, Box::pin(self.inner().fetches.join(&key(number)).unwrap()))
        };
        numbers.into_iter().map(ask).collect()
    }

    /// The numbers that one filter alone has: there are wrong answers.
    fn only_in(&self, shard: usize) -> Vec<u64> {
        let filters = &self.inner().filters;
        let others = |number: &u64| {
            let mut has =
                (0..filters.len()).filter(|shard| filters[*shard].may_have(&key(*number)));
            has.next() == Some(shard) && has.next().is_none()
        };
        (0..MANY).filter(others).collect()
    }

    fn until_queries(&self, queries: u64) {
        while self.rows.queries() < queries {
            std::thread::yield_now();
        }
    }
}

type Fetching = Pin<Box<dyn Future<Output = Result<(), Undecided>> + Send>>;

/// The outcome of something that must not wait for a database that stands still.
fn promptly<T>(operation: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let outcome = runtime.block_on(async { tokio::time::timeout(FAILED, operation).await });
    outcome.expect("it waits for a database that stands still")
}

async fn all(fetches: Vec<(u64, Fetching)>) -> Vec<(u64, Result<(), Undecided>)> {
    let mut ended = Vec::new();
    for (number, fetch) in fetches {
        ended.push((number, fetch.await));
    }
    ended
}

fn is_pending(fetch: &mut Fetching) -> bool {
    fetch.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// Symptom: on a busy machine some requests waited until the timeout, with databases that answered at once. Cause: the lock of a
/// counter was held by a thread without a processor, so the end of its fetch could not be noted, and the record that stayed was
/// taken for a fetch of another process.
#[test]
fn a_record_that_this_process_left_delays_nothing_and_one_of_another_does() {
    let cold = Cold::new(1, NEVER, |_, _| true);
    let another = Cold::process(ROOM, cold.dir.path(), &cold.rows, NEVER);
    let left_by = |process: &Process, number| {
        let (inner, key) = (&process.tiered.inner, key(number));
        let token = inner.tokens.take();
        let left = inner.with_record(&key, |_, entries, now| {
            let record = entries.get(1);
            Record::Fetching { token }.write(&key, record.state);
            *record.expires_at = now.as_nanos() + DAY;
        });
        left.unwrap();
    };
    left_by(&cold.process, 0);
    left_by(&another, 1);
    let ended = promptly(all(cold.ask([0])));
    assert_eq!(ended, [(0, Ok(()))]);
    assert_eq!(cold.process.count(0), Ok(1));
    let mut elsewhere = cold.ask([1]).pop().unwrap().1;
    // Fetches begin in turn: the one before this has begun, too.
    assert_eq!(promptly(all(cold.ask([2]))), [(2, Ok(()))]);
    assert!(is_pending(&mut elsewhere));
    another
        .tiered
        .inner
        .with_record(&key(1), |_, entries, _| entries.get(1).state.fill(0))
        .unwrap();
    assert_eq!(promptly(elsewhere), Ok(()));
    assert_eq!(cold.process.count(1), Ok(1));
}

/// Symptom: while one database stood still, counters of the others waited as long as it did. Cause: all had one queue and
/// eight queries, and a query of several databases ended with the slowest. Now each has its own, and a counter waits for its
/// databases alone.
#[test]
fn counters_do_not_wait_for_another_database_that_stands_still() {
    let cold = Cold::new(2, NEVER, |number, shard| number % 2 == shard as u64);
    let (frozen, healthy) = (cold.only_in(0), cold.only_in(1));
    assert!(frozen.len() as u64 > IN_QUERIES + 500 && healthy.len() > 1_500);
    cold.rows.hold_shard(0);
    let (some, more) = healthy.split_at(500);
    // In the same batches, and behind more than the queries of the one that stands still may have.
    let mixed = frozen.iter().zip(some).flat_map(|(one, other)| [*one, *other]);
    let together: BTreeSet<u64> = mixed.clone().collect();
    let rest = frozen.iter().copied().filter(|number| !together.contains(number));
    let (waiting, coming): (Vec<_>, Vec<_>) = cold
        .ask(mixed.chain(rest).chain(more.iter().copied()))
        .into_iter()
        .partition(|(number, _)| number % 2 == 0);
    let came = promptly(all(coming));
    assert_eq!(came.len(), healthy.len());
    assert!(came.iter().all(|(_, result)| result.is_ok()));
    healthy.iter().for_each(|number| assert_eq!(cold.process.hit(*number), Ok(2)));
    assert!(frozen.iter().all(|number| !cold.process.is_hot(*number)));
    cold.rows.release();
    assert!(promptly(all(waiting)).iter().all(|(_, result)| result.is_ok()));
    frozen.iter().for_each(|number| assert_eq!(cold.process.hit(*number), Ok(2)));
}

#[test]
fn a_counter_that_waits_for_too_long_fails_without_a_query() {
    let cold = Cold::new(1, Duration::from_millis(20), |_, _| true);
    cold.rows.hold();
    let mut asked = cold.ask(0..MANY);
    // As many as the queries have may be in them, and none of those that come last.
    let late = asked.split_off(IN_QUERIES as usize);
    let late = promptly(all(late));
    assert!(cold.rows.fetches() <= IN_QUERIES && cold.rows.queries() <= 8);
    let cause = "shard 0 has not answered others within 20ms, and was not asked".to_owned();
    let expected = Err(Undecided::Unreachable { cause });
    assert!(late.iter().all(|(_, result)| *result == expected), "{:?}", late[0]);
    cold.rows.release();
    // Nothing is under way any more that could hold a lock.
    promptly(all(asked));
    // Their records are given up: nobody waits for them.
    let patient = Cold::process(ROOM, cold.dir.path(), &cold.rows, NEVER);
    late.iter().for_each(|(number, _)| assert_eq!(patient.hit(*number), Ok(2)));
}

#[test]
fn a_database_that_stands_still_leaves_room_for_counters_of_others() {
    let is_in = |number, shard| usize::from(number % 16 == 0) == shard;
    let cold = Cold::with_room(40_000, 2, NEVER, is_in);
    let (frozen, healthy) = (cold.only_in(0), cold.only_in(1));
    // Its part of an eighth of the nodes.
    let room = cold.process.hot.geometry(tidegate_store::Class::Narrow).unwrap().nodes() / 16;
    assert!(frozen.len() as u64 > room && room > IN_QUERIES, "{} {room}", frozen.len());
    cold.rows.hold_shard(0);
    let mut waiting = cold.ask(frozen.iter().copied());
    let refused = waiting.split_off(room as usize);
    let cause = format!("{room} cold counters wait for shard 0 already");
    let expected = Err(Undecided::Unreachable { cause });
    assert!(promptly(all(refused)).iter().all(|(_, result)| *result == expected));
    let came = promptly(all(cold.ask(healthy)));
    assert!(!came.is_empty() && came.iter().all(|(_, result)| result.is_ok()));
    assert!(waiting.iter_mut().all(|(_, fetch)| is_pending(fetch)));
    cold.rows.release();
    assert!(promptly(all(waiting)).iter().all(|(_, result)| result.is_ok()));
    // There is room again.
    assert!(promptly(all(cold.ask(frozen))).iter().all(|(_, result)| result.is_ok()));
}

#[test]
fn a_counter_of_two_databases_waits_for_both_and_takes_the_newest_row() {
    for (newest, held) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let free = 1 - held;
        let cold = Cold::new(2, NEVER, |number, shard| number < IN_QUERIES || shard == free);
        (0..IN_QUERIES).for_each(|number| cold.rows.insert(newest, row(number, 5, MOVED_AT + 1)));
        cold.rows.hold_shard(held);
        let mut waiting = cold.ask(0..IN_QUERIES);
        // When the other one answers for those that come later, it has answered for all.
        let later = promptly(all(cold.ask(cold.only_in(free))));
        assert!(later.len() > 500 && later.iter().all(|(_, result)| result.is_ok()));
        assert!(waiting.iter_mut().all(|(_, fetch)| is_pending(fetch)));
        cold.rows.release();
        assert!(promptly(all(waiting)).iter().all(|(_, result)| result.is_ok()));
        (0..IN_QUERIES).for_each(|number| assert_eq!(cold.process.hit(number), Ok(6)));
    }
}

#[test]
fn a_counter_of_two_databases_fails_with_the_first_that_fails() {
    let cold = Cold::new(2, NEVER, |_, _| true);
    cold.rows.hold_shard(0);
    cold.rows.set_faults(Faults { reads: Fault::Refused, ..Faults::default() });
    let failed = promptly(all(cold.ask(0..MANY)));
    assert!(failed.iter().all(|(_, result)| result.is_err()));
    cold.rows.set_faults(Faults::default());
    cold.rows.release();
    (0..MANY).for_each(|number| assert_eq!(cold.process.hit(number), Ok(2)));
}

#[test]
fn a_query_that_panics_ends_its_fetches_and_the_next_one_is_made() {
    let cold = Cold::new(2, Duration::from_millis(100), |number, shard| number % 2 == shard as u64);
    cold.rows.set_panics(true);
    let failed = promptly(all(cold.ask(0..MANY)));
    assert!(failed.iter().all(|(_, result)| result.is_err()));
    cold.rows.set_panics(false);
    // Their records stay for a moment, as those of a process that was killed.
    let came = promptly(all(cold.ask(0..IN_QUERIES)));
    assert!(came.iter().all(|(_, result)| result.is_ok()));
    (0..IN_QUERIES).for_each(|number| assert_eq!(cold.process.hit(number), Ok(2)));
}

#[test]
fn those_who_wait_hear_of_the_end_of_the_engine_and_keep_no_store_open() {
    let cold = Cold::new(2, NEVER, |number, shard| number % 2 == shard as u64);
    cold.rows.hold();
    let waiting = cold.ask(0..MANY);
    cold.until_queries(16);
    let Process { hot, tiered, mover } = cold.process;
    let inner: Weak<Inner> = Arc::downgrade(&tiered.inner);
    // The mover still has the store.
    drop(tiered);
    let cause = "the fetch was given up".to_owned();
    let given_up = Err(Undecided::Unreachable { cause });
    assert!(promptly(all(waiting)).iter().all(|(_, result)| *result == given_up));
    let joined = mover.inner().fetches.join(&key(1)).unwrap();
    assert_eq!(promptly(joined), given_up);
    drop((mover, hot));
    while inner.strong_count() > 0 {
        std::thread::yield_now();
    }
}

/// A row that is not on the upper level any more when that is asked is below.
#[test]
fn a_row_that_goes_on_while_its_counter_waits_is_found() {
    let (warm, cold) = (Arc::new(MemoryRows::new(1)), Arc::new(MemoryRows::new(2)));
    (0..MANY).for_each(|number| warm.insert(0, row(number, 1, MOVED_AT)));
    let levels: Arc<dyn Rows> = Arc::new(Levels::new(warm.clone(), cold));
    let (dir, moves) = (directory(), MovesSettings::default());
    let moves = MovesSettings { warm: Duration::ZERO, ..moves };
    let mut process = Process::with_room(ROOM, dir.path(), levels, with_timeout(NEVER), moves);
    process.mover.build_all();
    warm.hold();
    let inner = process.tiered.inner.clone();
    let waiting: Vec<_> =
        (0..MANY).map(|number| inner.fetches.join(&key(number)).unwrap()).collect();
    while warm.queries() < 8 {
        std::thread::yield_now();
    }
    while warm.len() > 0 {
        process.mover.age().unwrap();
    }
    warm.release();
    promptly(async {
        for fetch in waiting {
            assert_eq!(fetch.await, Ok(()));
        }
    });
    (0..MANY).for_each(|number| assert_eq!(process.hit(number), Ok(2)));
}
