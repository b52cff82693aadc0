//! Real processes: the lock of a live owner, and `kill -9` at any moment.
//!
//! The children are this test binary itself, told by the environment to run one test in the role of
//! the child. A child never returns into the test harness.

use std::collections::hash_map::RandomState;
use std::env;
use std::error::Error;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tidegate_store::{Entry, Key, OpenError, Options, Store, UpdateError};

const CHILD_DIR: &str = "TIDEGATE_STORE_TEST_CHILD_DIR";
const CHILD_SEED: &str = "TIDEGATE_STORE_TEST_CHILD_SEED";
const CHILD_CLOCK: &str = "TIDEGATE_STORE_TEST_CHILD_CLOCK";
/// Set it to run the kill test again with the seed that it printed.
const TEST_SEED: &str = "TIDEGATE_STORE_TEST_SEED";
const SIGKILL: i32 = 9;

/// Four chains, small enough that passing keys displace one another all the time.
const OPTIONS: Options = Options { capacity: 64 };
const ROUNDS: u64 = 30;
const THREADS: u64 = 2;
/// Keys which only one thread counts on, so that its acknowledgements of them are in order.
const KEYS_PER_THREAD: u64 = 4;
/// How many of a thread's latest passing keys are looked at after a kill.
const PASSERS_SEEN: u64 = 40;

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// A key that is counted on for the whole test.
fn counted(thread: u64, index: u64) -> Key {
    Key::from_hash(u128::from(1 + thread * KEYS_PER_THREAD + index))
}

/// A key which comes once, expires at once, and leaves its node to others; its entry names it, so
/// that an entry of another key would be noticed.
fn passing(seed: u64, thread: u64, number: u64) -> (Key, [u64; 4]) {
    let mut random = Random(seed ^ (thread << 32) ^ number);
    let state = [number + 1, random.next(), random.next(), random.next()];
    (Key::from_hash(u128::from(state[1]) << 64 | u128::from(state[2])), state)
}

/// Starts this binary again, as the child of the test `test`.
fn spawn(test: &str, dir: &Path, seed: u64, clock: u64) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD_DIR, dir)
        .env(CHILD_SEED, seed.to_string())
        .env(CHILD_CLOCK, clock.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    (child, output)
}

/// The directory of the store, if this process is a child.
fn child_dir() -> Option<PathBuf> {
    env::var_os(CHILD_DIR).map(PathBuf::from)
}

/// Opens a store that a process may be just about to leave: its descriptors live for moments longer
/// in a process which another test is starting at this time. Anything else fails the test.
fn open(dir: &Path) -> Store {
    for _ in 0..1_000_000 {
        match Store::open(dir, &OPTIONS) {
            Err(OpenError::InUse { .. }) => thread::yield_now(),
            result => return result.unwrap(),
        }
    }
    panic!("the store stays in use");
}

/// The child's words until the end of its output; an unfinished line is one that was not said.
fn next_line(output: &mut BufReader<ChildStdout>) -> Option<String> {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line.ends_with('\n').then(|| line.trim_end().to_owned())
}

#[test]
fn a_store_has_one_owner_until_it_dies() {
    if let Some(dir) = child_dir() {
        let _store = open(&dir);
        println!("owner");
        // Ends by itself if the parent does: with it goes the other end of the pipe.
        let _ = io::stdin().read(&mut [0]);
        process::exit(1);
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut child, mut output) = spawn("a_store_has_one_owner_until_it_dies", dir.path(), 0, 0);
    // The harness of the child may have begun the line.
    while !next_line(&mut output).expect("the child opens the store").ends_with("owner") {}

    let error = Store::open(dir.path(), &OPTIONS).unwrap_err();
    let path = dir.path().join("counters.lock");
    let expected = format!("{}: the store is in use by another process; ", path.display());
    assert!(matches!(error, OpenError::InUse { .. }), "{error:?}");
    assert!(error.to_string().starts_with(&expected), "{error}");

    child.kill().unwrap();
    child.wait().unwrap();
    let _store = open(dir.path());
    // The same holds inside one process.
    let error = Store::open(dir.path(), &OPTIONS).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error:?}");
}

#[test]
fn a_killed_process_loses_no_acknowledged_update() {
    if let Some(dir) = child_dir() {
        let number = |name| env::var(name).unwrap().parse().unwrap();
        count_until_killed(&open(&dir), number(CHILD_SEED), number(CHILD_CLOCK));
    }
    let seed = match env::var(TEST_SEED) {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => RandomState::new().build_hasher().finish(),
    };
    println!("{TEST_SEED}={seed}");
    let mut random = Random(seed);
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = [[0; KEYS_PER_THREAD as usize]; THREADS as usize];
    let mut passers_found = 0;
    for round in 0..ROUNDS {
        let round_seed = random.next();
        // Past everything that the round before has stored.
        let clock = 1 + (round << 32);
        let calls = run_and_kill(dir.path(), round_seed, clock, &mut random, &mut acknowledged);
        let store = open(dir.path());
        println!("round {round}: {calls:?} calls acknowledged");
        for thread in 0..THREADS {
            check_counts(&store, thread, &mut acknowledged[thread as usize]);
            passers_found += check_passers(&store, round_seed, thread, calls[thread as usize]);
        }
    }
    assert!(acknowledged.iter().flatten().all(|&count| count > 0), "{acknowledged:?}");
    assert!(passers_found > ROUNDS, "{passers_found}");
}

/// The child: its threads count, and acknowledge each call, until the process is killed.
///
/// Anything else that stops them ends the process with a status which the parent does not accept;
/// the test harness, which might report a success, never has its turn.
fn count_until_killed(store: &Store, seed: u64, clock: u64) -> ! {
    // Logical time. Each moment is one call's, so that few passing keys are live at once.
    let clock = AtomicU64::new(clock);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let clock = &clock;
            scope.spawn(move || {
                let mut random = Random(seed ^ thread);
                let outcome: Result<(), Box<dyn Error>> = (0..).try_for_each(|number| {
                    count_once(store, clock, seed, thread, number, &mut random)
                });
                eprintln!("the child stopped: {outcome:?}");
                process::exit(1);
            });
        }
    });
    unreachable!("the threads do not return")
}

/// One call: two keys are counted, one passes; then the acknowledgement.
fn count_once(
    store: &Store,
    clock: &AtomicU64,
    seed: u64,
    thread: u64,
    number: u64,
    random: &mut Random,
) -> Result<(), Box<dyn Error>> {
    let first = random.below(KEYS_PER_THREAD);
    let second = (first + 1 + random.below(KEYS_PER_THREAD - 1)) % KEYS_PER_THREAD;
    let (passer, state) = passing(seed, thread, number);
    let keys = [counted(thread, first), passer, counted(thread, second)];
    let call = || {
        let now = clock.fetch_add(1, Ordering::Relaxed);
        store.update_many(&keys, now, |entries| {
            for entry in [0, 2] {
                entries[entry].expires_at = u64::MAX;
                entries[entry].state.iter_mut().for_each(|word| *word += 1);
            }
            entries[1] = Entry { state, expires_at: now + 1 };
        })
    };
    // A thread that was held up before its call finds a chain full of what was to come: later on, that
    // is past.
    (0..100).map(|_| call()).find(Result::is_ok).unwrap_or_else(call)?;
    // One write of one line, which is shorter than what a pipe takes whole.
    let line = format!("done {thread} {first} {second}\n");
    Ok(io::stdout().write_all(line.as_bytes())?)
}

/// Lets a child count, kills it at a random moment, adds what it acknowledged to `acknowledged`, and
/// returns how many calls of each thread that was.
fn run_and_kill(
    dir: &Path,
    seed: u64,
    clock: u64,
    random: &mut Random,
    acknowledged: &mut [[u64; KEYS_PER_THREAD as usize]; THREADS as usize],
) -> [u64; THREADS as usize] {
    let test = "a_killed_process_loses_no_acknowledged_update";
    let (mut child, mut output) = spawn(test, dir, seed, clock);
    let mut calls = [0; THREADS as usize];
    let mut listen = |output: &mut BufReader<ChildStdout>| {
        let line = next_line(output)?;
        let mut words = line.split(' ').skip_while(|word| *word != "done").skip(1);
        let mut number = || words.next().and_then(|word| word.parse::<usize>().ok());
        if let (Some(thread), Some(first), Some(second)) = (number(), number(), number()) {
            calls[thread] += 1;
            acknowledged[thread][first] += 1;
            acknowledged[thread][second] += 1;
        }
        Some(())
    };
    // The child runs on while the parent reads, so the kill comes anywhere in a call; the busy loop
    // spreads it further.
    for _ in 0..1 + random.below(3_000) {
        listen(&mut output).expect("only the parent ends the child");
    }
    (0..random.below(20_000)).for_each(|_| std::hint::spin_loop());
    child.kill().unwrap();
    while listen(&mut output).is_some() {}
    assert_eq!(child.wait().unwrap().signal(), Some(SIGKILL));
    calls
}

/// Every count is what was acknowledged, or one more; from here on, it is what was found.
fn check_counts(store: &Store, thread: u64, acknowledged: &mut [u64]) {
    for (index, acknowledged) in (0..).zip(acknowledged) {
        let key = [counted(thread, index)];
        let entry = store.update_many(&key, 0, |entries| entries[0]).unwrap();
        let count = entry.state[0];
        assert_eq!(entry.state, [count; 4], "thread {thread}, key {index}: a mixed entry");
        assert!(
            (*acknowledged..=*acknowledged + 1).contains(&count),
            "thread {thread}, key {index}: {acknowledged} acknowledged, {count} found"
        );
        *acknowledged = count;
    }
}

/// Every passing key has its own entry or none. Returns how many have one.
fn check_passers(store: &Store, seed: u64, thread: u64, calls: u64) -> u64 {
    let mut found = 0;
    // One more than was acknowledged may have been written.
    for number in calls.saturating_sub(PASSERS_SEEN)..=calls {
        let (key, state) = passing(seed, thread, number);
        // At time 0, so that what has expired since is seen too.
        match store.update_many(&[key], 0, |entries| entries[0]) {
            Ok(entry) if entry == Entry::default() => {}
            Ok(entry) => {
                assert_eq!(entry.state, state, "thread {thread}, passing key {number}");
                found += 1;
            }
            Err(UpdateError::ChainFull { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    found
}
