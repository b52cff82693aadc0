//! `kill -9` at any moment, hundreds of times, of one of several processes that share a cluster, with stops
//! in between.
//!
//! Every process counts on keys that all of them share, each in a word of its own, and acknowledges completed
//! updates through a pipe. Whatever is killed, the others go on: what was acknowledged is there, what belongs
//! together changes together, and no process waits for a dead one.

use std::fs::File;
use std::hint;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{self, ChildStdout, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tidegate_store::{Class, Cluster, Entries, EntryMut, Eviction, Hashed, Options, UpdateError};

use crate::common::child::{command, role};
use crate::common::format::{dropped, layouts};
use crate::common::random::{Random, mixed};
use crate::common::{
    SECOND, check_sound, directory, geometry, repetitions, test_seed, until_decided,
};

const TEST: &str = "kill::a_kill_at_any_moment_loses_nothing_and_stops_no_other_process";
/// The total number of kills.
const KILLS: &str = "TIDEGATE_STORE_TEST_KILLS";
const KILLS_DEFAULT: u64 = 200;
/// How often all processes are killed, so that the next one finds none.
const ALL_KILLED_EVERY: u64 = 20;
const SIGKILL: i32 = 9;

/// The number of processes: one less than the words of a narrow entry, so that one word is to spare.
const PROCESSES: usize = 3;
/// The number of a process that only opens the cluster.
const IDLE: usize = PROCESSES;
/// Far longer than any process should wait for another.
const STUCK: Duration = Duration::from_secs(20);
const CYCLE: u64 = 7;

/// What is counted together: the number of keys that one update changes.
const SINGLES: usize = 4;
const WIDE: usize = 4;
const TRIPLE: usize = 5;
const PAIR: usize = 6;
const CROWD: usize = 7;
const COMING_AND_GOING: usize = 8;
const EACH: usize = 9;
const UNITS: usize = 10;

/// Small, so that passing keys evict one another and are displaced from home.
fn options() -> Options {
    Options {
        narrow: geometry(2, 3, 8, 4),
        wide: Some(geometry(1, 3, 4, 20)),
        eviction: Eviction::EvictSoonestExpiry,
        ..Options::default()
    }
}

/// The keys that are counted on. They never expire, so none is ever evicted while fewer than a chain of them
/// share a home.
fn key(number: u64, class: Class) -> Hashed {
    let high = mixed(number);
    Hashed { hash: u128::from(high) << 64 | u128::from(number), class }
}

fn keys(unit: usize, process: usize) -> Vec<Hashed> {
    let narrow = |numbers: std::ops::Range<u64>| numbers.map(|number| key(number, Class::Narrow));
    let wide = |numbers: std::ops::Range<u64>| numbers.map(|number| key(number, Class::Wide));
    match unit {
        0..SINGLES => narrow(unit as u64..unit as u64 + 1).collect(),
        WIDE => wide(100..101).collect(),
        TRIPLE => narrow(10..12).chain(wide(101..102)).collect(),
        PAIR => narrow(20..22).collect(),
        CROWD => narrow(30..36).chain(wide(102..104)).collect(),
        COMING_AND_GOING => narrow(50 + process as u64..51 + process as u64).collect(),
        _ => narrow(60..63).collect(),
    }
}

/// The sum of what the processes have counted in an entry. Each word without a process contains the same sum.
fn sum(state: &[u64]) -> u64 {
    state[..PROCESSES].iter().sum()
}

/// Counts in the word of a process.
#[expect(clippy::needless_pass_by_value, reason = "as an update hands it over")]
fn count(entry: EntryMut<'_>, process: usize) {
    entry.state[process] += 1;
    let sum = sum(entry.state);
    entry.state[PROCESSES..].fill(sum);
    *entry.expires_at = u64::MAX;
}

#[track_caller]
fn check_whole(state: &[u64]) {
    let sum = sum(state);
    assert!(state[PROCESSES..].iter().all(|word| *word == sum), "a mixed entry: {state:?}");
}

/// The entries of a unit, which must agree.
#[track_caller]
fn check_together(unit: usize, entries: &mut Entries<'_>) -> [u64; PROCESSES] {
    let first: [u64; PROCESSES] = entries.get(0).state[..PROCESSES].try_into().unwrap();
    for index in 0..entries.len() {
        let state = &entries.get(index).state[..];
        assert_eq!(state[..PROCESSES], first, "unit {unit}, entry {index}: half an update");
        if unit != PAIR {
            check_whole(state);
        }
    }
    if unit == PAIR {
        let total = entries.get(0).state[3].wrapping_add(entries.get(1).state[3]);
        assert_eq!(total, 0, "half a transfer");
    }
    first
}

/// The child: counts until it is killed. On any error it exits with a status that the parent does not accept.
fn count_until_killed(cluster: &Cluster, process: usize, batch: usize, seed: u64) -> ! {
    // A panic of one thread must not leave the other one running.
    std::panic::set_hook(Box::new(move |panic| {
        eprintln!("process {process}: {panic}");
        process::exit(3);
    }));
    thread::scope(|scope| {
        // One thread only evicts, reads and sweeps, so that a kill leaves two writer slots.
        scope.spawn(|| {
            let mut random = Random::new(!seed);
            for step in 0.. {
                let now = SECOND * (1000 + step / 64);
                if let Err(error) = pass_by(cluster, now, &mut random) {
                    assert!(error.is_contention(), "{error}");
                }
            }
        });
        let mut random = Random::new(seed);
        let mut pipe = File::from(std::io::stdout().as_fd().try_clone_to_owned().unwrap());
        let mut completed = Vec::new();
        for step in 0.. {
            let now = SECOND * (1000 + step / 64);
            let unit = random.below(UNITS as u64) as usize;
            until_decided(|| count_once(cluster, unit, process, now, &mut random)).unwrap();
            completed.push(0x80 | unit as u8);
            if completed.len() == batch {
                pipe.write_all(&completed).unwrap();
                completed.clear();
            }
        }
    });
    unreachable!("the threads do not return")
}

/// One acknowledged operation.
fn count_once(
    cluster: &Cluster,
    unit: usize,
    process: usize,
    now: u64,
    random: &mut Random,
) -> Result<(), UpdateError> {
    let keys = keys(unit, process);
    match unit {
        0..SINGLES if random.once_in(2) => {
            // Between two passing keys, in one update.
            let keys = [passer(random, Class::Narrow), keys[0], passer(random, Class::Wide)];
            cluster.update_many(&keys, now, |entries| {
                check_whole(entries.get(1).state);
                count(entries.get(1), process);
                for index in [0, 2] {
                    pass(&keys[index], entries.get(index), now);
                }
            })
        }
        0..=WIDE => cluster.update(&keys[0], now, |entry| {
            check_whole(entry.state);
            count(entry, process);
        }),
        TRIPLE | CROWD => cluster.update_many(&keys, now, |entries| {
            check_together(unit, entries);
            (0..keys.len()).for_each(|index| count(entries.get(index), process));
        }),
        PAIR => {
            let amount = random.next();
            cluster.update_many(&keys, now, |entries| {
                check_together(unit, entries);
                for (index, amount) in [amount, amount.wrapping_neg()].into_iter().enumerate() {
                    let entry = entries.get(index);
                    entry.state[process] += 1;
                    entry.state[3] = entry.state[3].wrapping_add(amount);
                    *entry.expires_at = u64::MAX;
                }
            })
        }
        COMING_AND_GOING => {
            let found = cluster.find(&keys[0], now)?.map_or(0, |entry| entry.state[0]);
            if found == CYCLE - 1 && random.once_in(2) {
                assert!(cluster.erase(&keys[0], now)?);
                return Ok(());
            }
            cluster.update(&keys[0], now, |entry| {
                let next = (entry.state[0] + 1) % CYCLE;
                entry.state.fill(next);
                *entry.expires_at = u64::MAX;
            })
        }
        _ => {
            let mut again = Vec::new();
            cluster.update_each(&keys, now, |index, entry| match entry {
                Ok(entry) => {
                    check_whole(entry.state);
                    count(entry, process);
                }
                Err(error) => {
                    assert!(error.is_contention(), "{error}");
                    again.push(index);
                }
            });
            // The others are counted, so only these are retried.
            again.into_iter().try_for_each(|index| {
                until_decided(|| cluster.update(&keys[index], now, |entry| count(entry, process)))
            })
        }
    }
}

/// A key that comes and goes. Some return while they are there.
fn passer(random: &mut Random, class: Class) -> Hashed {
    key(1000 + random.below(100), class)
}

/// The entry of a passing key identifies its key.
#[expect(clippy::needless_pass_by_value, reason = "as an update hands it over")]
fn pass(key: &Hashed, entry: EntryMut<'_>, now: u64) {
    let own = key.hash as u64;
    if !entry.is_new() {
        let first = entry.state[0];
        let is_own = |(index, word): (usize, &u64)| *word == first.wrapping_add(own * index as u64);
        assert!(
            entry.state.iter().enumerate().all(is_own),
            "an entry of another key: {:?}",
            entry.state
        );
    }
    let next = entry.state[0] + 1;
    for (index, word) in entry.state.iter_mut().enumerate() {
        *word = next.wrapping_add(own * index as u64);
    }
    *entry.expires_at = now + own % 4 * SECOND;
}

/// An operation that is not acknowledged: on passing keys, or reading.
fn pass_by(cluster: &Cluster, now: u64, random: &mut Random) -> Result<(), UpdateError> {
    let class = *random.one_of(&Class::ALL);
    let key = passer(random, class);
    match random.below(16) {
        0..8 => cluster.update(&key, now, |entry| pass(&key, entry, now)),
        8..10 => cluster.erase(&key, now).map(|_| ()),
        10..14 => {
            let unit = *random.one_of(&[TRIPLE, PAIR, CROWD]);
            cluster.update_many(&keys(unit, 0), now, |entries| _ = check_together(unit, entries))
        }
        14 => cluster.sweep(now).map(|_| ()),
        // Killed in the middle of a pass, or excluded by another one.
        15 if random.once_in(4) => {
            cluster.sync().unwrap();
            Ok(())
        }
        _ => cluster.for_each(|_, _, entry| _ = hint::black_box(entry)),
    }
}

/// What the parent knows about a child.
#[derive(Default)]
struct Heard {
    /// The acknowledged count of each unit.
    counts: [u64; UNITS],
    is_over: bool,
}

/// A child, and the thread that reads its pipe.
struct Counter {
    child: process::Child,
    heard: Arc<(Mutex<Heard>, Condvar)>,
    listener: JoinHandle<()>,
    batch: u64,
}

impl Counter {
    fn spawn(dir: &Path, process: usize, random: &mut Random) -> Self {
        let batch = *random.one_of(&[1, 1, 4, 16]);
        let role = format!("{process} {batch} {}", random.next());
        let mut command = command(TEST, &role, dir);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let pipe = child.stdout.take().unwrap();
        let heard = Arc::<(Mutex<Heard>, Condvar)>::default();
        let listener = thread::spawn({
            let heard = heard.clone();
            move || listen(pipe, &heard)
        });
        Self { child, heard, listener, batch }
    }

    /// Waits until the child has acknowledged this many operations.
    fn wait_for(&self, steps: u64) {
        let (heard, more) = &*self.heard;
        let too_few =
            |heard: &mut Heard| !heard.is_over && heard.counts.iter().sum::<u64>() < steps;
        let (heard, waited) =
            more.wait_timeout_while(heard.lock().unwrap(), STUCK, too_few).unwrap();
        assert!(!waited.timed_out(), "a child is stuck at {:?}", heard.counts);
        assert!(!heard.is_over, "a child has ended by itself");
    }

    /// Stops the child where it is, for some spins, then continues it.
    fn stop_for(&self, spins: u64) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).unwrap();
        (0..spins).for_each(|_| hint::spin_loop());
        kill_process(pid, Signal::CONT).unwrap();
    }

    /// Kills the child, and returns what it has acknowledged.
    fn kill(mut self) -> [u64; UNITS] {
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        assert_eq!(status.signal(), Some(SIGKILL), "a child has ended by itself: {status}");
        self.listener.join().unwrap();
        self.heard.0.lock().unwrap().counts
    }
}

fn listen(mut pipe: ChildStdout, (heard, more): &(Mutex<Heard>, Condvar)) {
    let mut bytes = [0; 4096];
    loop {
        let len = pipe.read(&mut bytes).unwrap();
        let mut heard = heard.lock().unwrap();
        // The test harness of the child writes other lines, in ASCII.
        for byte in bytes[..len].iter().filter(|byte| **byte >= 0x80) {
            heard.counts[usize::from(byte - 0x80)] += 1;
        }
        heard.is_over = len == 0;
        more.notify_all();
        if heard.is_over {
            return;
        }
    }
}

/// What a process has certainly counted.
#[derive(Debug, Default)]
struct Counts {
    units: [u64; UNITS],
    /// For the keys of [`EACH`], as of the last kill.
    each: [u64; 3],
}

/// What a process has counted in each unit; for [`EACH`], in its first key.
fn look(cluster: &Cluster, process: usize, each: &mut [u64; 3]) -> [u64; UNITS] {
    let since = Instant::now();
    let found = std::array::from_fn(|unit| {
        let keys = keys(unit, process);
        let update = || {
            cluster.update_many(&keys, SECOND, |entries| match unit {
                EACH => {
                    let before = *each;
                    *each = [0, 1, 2].map(|index| entries.get(index).state[process]);
                    let added: [u64; 3] = std::array::from_fn(|index| each[index] - before[index]);
                    // A key that met contention is retried after those behind it.
                    let (least, most) = (added.iter().min().unwrap(), added.iter().max().unwrap());
                    assert!(most - least <= 1, "of update_each, one key twice: {added:?}");
                    each[0]
                }
                COMING_AND_GOING => {
                    let state = &entries.get(0).state;
                    assert!(state.iter().all(|word| *word == state[0]), "a mixed entry: {state:?}");
                    state[0]
                }
                _ => check_together(unit, entries)[process],
            })
        };
        until_decided(update).unwrap()
    });
    assert!(since.elapsed() < STUCK, "waited for {:?}", since.elapsed());
    found
}

/// Compares what is there with what a dead process had acknowledged. Later checks start from what was found.
fn check(
    cluster: &Cluster,
    process: usize,
    counts: &mut [Counts; PROCESSES],
    acknowledged: [u64; UNITS],
    batch: u64,
) {
    let Counts { units, each } = &mut counts[process];
    let found = look(cluster, process, each);
    let mut extra = 0;
    for unit in 0..UNITS {
        let counted = &mut units[unit];
        *counted += acknowledged[unit];
        let more = if unit == COMING_AND_GOING {
            (found[unit] + CYCLE - *counted % CYCLE) % CYCLE
        } else {
            assert!(
                found[unit] >= *counted,
                "process {process}, unit {unit}: {counted} acknowledged, {} found",
                found[unit]
            );
            found[unit] - *counted
        };
        *counted += more;
        extra += more;
    }
    // One in flight, and a batch less one that was completed.
    assert!(
        extra <= batch,
        "process {process}: {extra} more than acknowledged, of at most {batch}"
    );
}

#[test]
fn a_kill_at_any_moment_loses_nothing_and_stops_no_other_process() {
    if let Some((role, dir)) = role() {
        let mut numbers = role.split(' ').map(|number| number.parse().unwrap());
        let mut number = || numbers.next().unwrap();
        let (process, batch, seed) = (number(), number(), number());
        let cluster = Cluster::open(&dir, &options()).unwrap();
        if process == IDLE as u64 {
            loop {
                thread::park();
            }
        }
        count_until_killed(&cluster, process as usize, batch as usize, seed);
    }
    check_that_no_chain_is_full();
    let mut random = Random::new(test_seed());
    let kills = repetitions(KILLS, KILLS_DEFAULT);
    let dir = directory();
    let mut cluster = Cluster::open(dir.path(), &options()).unwrap();
    let mut counts = <[Counts; PROCESSES]>::default();
    let mut children: Vec<_> =
        (0..PROCESSES).map(|process| Counter::spawn(dir.path(), process, &mut random)).collect();
    let mut killed = 0;
    // Until one was killed between the first and the last word of a change, which is a matter of luck.
    while killed < kills || (killed < 10 * kills && cluster.stats().completed == 0) {
        let process = random.below(PROCESSES as u64) as usize;
        // Some are killed while they open the cluster.
        let steps = if random.once_in(8) { 0 } else { 1 + random.below(300) };
        children[process].wait_for(steps);
        (0..random.below(20_000)).for_each(|_| hint::spin_loop());
        if random.once_in(6) {
            // Up to some milliseconds: shorter or longer than others wait for its locks.
            let stopped = &children[random.below(PROCESSES as u64) as usize];
            stopped.stop_for(random.below(1_000_000));
        }
        if killed % ALL_KILLED_EVERY == ALL_KILLED_EVERY - 1 {
            let batches: Vec<_> = children.iter().map(|child| child.batch).collect();
            let acknowledged: Vec<_> = children.drain(..).map(Counter::kill).collect();
            drop(cluster);
            for _ in 0..3 {
                // Killed while it restores the cluster, or just after.
                let restorer = Counter::spawn(dir.path(), IDLE, &mut random);
                (0..random.below(400_000)).for_each(|_| hint::spin_loop());
                restorer.kill();
            }
            cluster = Cluster::open(dir.path(), &options()).unwrap();
            check_sound(dir.path());
            for process in 0..PROCESSES {
                check(&cluster, process, &mut counts, acknowledged[process], batches[process]);
                children.push(Counter::spawn(dir.path(), process, &mut random));
            }
            killed += PROCESSES as u64;
            continue;
        }
        let child = children.remove(process);
        let batch = child.batch;
        let acknowledged = child.kill();
        // Usually a waiter recovers it; sometimes a process that joins.
        if random.once_in(8) {
            cluster = Cluster::open(dir.path(), &options()).unwrap();
        }
        check(&cluster, process, &mut counts, acknowledged, batch);
        check_sound(dir.path());
        children.insert(process, Counter::spawn(dir.path(), process, &mut random));
        killed += 1;
    }
    for (process, child) in children.into_iter().enumerate() {
        let batch = child.batch;
        let acknowledged = child.kill();
        check(&cluster, process, &mut counts, acknowledged, batch);
        killed += 1;
    }
    drop(cluster);
    let cluster = Cluster::open(dir.path(), &options()).unwrap();
    for process in 0..PROCESSES {
        check(&cluster, process, &mut counts, [0; UNITS], 0);
    }
    let stats = cluster.stats();
    println!("{killed} killed, {} respawned; counted {counts:?}; {stats:?}", killed - 3);
    assert_eq!(dropped(&stats), 0, "{stats:?}");
    check_sound(dir.path());
    assert!(stats.recovered > 0 && stats.completed > 0, "{stats:?}");
    assert!(counts.iter().flat_map(|counts| counts.units).all(|count| count > 0), "{counts:?}");
}

/// No counted key may be evicted.
fn check_that_no_chain_is_full() {
    let layouts = layouts(&options());
    let mut homes = std::collections::BTreeMap::new();
    for process in 0..PROCESSES {
        let units = (0..UNITS).filter(|unit| process == 0 || *unit == COMING_AND_GOING);
        for key in units.flat_map(|unit| keys(unit, process)) {
            let layout = layouts.iter().find(|layout| layout.class == key.class).unwrap();
            let stored = tidegate_store::StoredKey::from_bits(key.hash);
            *homes.entry((key.class, layout.home(&stored))).or_insert(0) += 1;
        }
    }
    println!("{homes:?}");
    for ((class, _), count) in homes {
        assert!(count < if class == Class::Narrow { 8 } else { 4 });
    }
}
