//! A process that stops while it holds locks: updates that need one fail at once, others are not delayed, and
//! all is well as soon as the process continues or dies.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Signal;

use tidegate_store::{
    Class, Cluster, EntryMut, Hashed, Options, StoredKey, StuckProcess, UpdateError, View,
    blocked_in_this_thread,
};

use crate::common::child::{Child, hear, leave, raise, role, say};
use crate::common::format::{dropped, key_at, layouts};
use crate::common::random::Random;
use crate::common::{Directory, check_sound, directory, narrow, until_decided};

/// What a request that waits for no holder takes less than. Waiting, even for a moment each time, takes longer.
const AT_ONCE: Duration = Duration::from_micros(500);
/// Longer than anything in here takes, unless it fails.
const LONG: Duration = Duration::from_secs(20);

fn options() -> Options {
    narrow(4, 8)
}

/// A key with this home of four.
fn key(home: u64) -> Hashed {
    let layout = layouts(&options())[0];
    let stored: StoredKey = key_at(&layout, &mut Random::new(home + 1), home, (home + 1) % 4);
    Hashed { hash: stored.bits(), class: Class::Narrow }
}

const FREE: u64 = 0;
const HELD: u64 = 1;
const OTHER: u64 = 2;

#[expect(clippy::needless_pass_by_value, reason = "as an update hands it over")]
fn count(entry: EntryMut<'_>) -> u64 {
    entry.state[0] += 1;
    *entry.expires_at = u64::MAX;
    entry.state[0]
}

fn open(dir: &Path) -> Cluster {
    Cluster::open(dir, &options()).unwrap()
}

/// The child: stops inside an update of the held key, and reports when it continues.
fn stop_inside(dir: &Path) -> ! {
    let cluster = open(dir);
    let update = cluster.update(&key(HELD), 1, |entry| {
        raise(Signal::STOP);
        // Other threads, and this one, may run on until the signal arrives.
        hear();
        count(entry)
    });
    update.unwrap();
    say("done");
    hear();
    leave();
}

/// A cluster with a count of one for each key, and a child that is stopped inside an update.
fn stopped(test: &str) -> (Directory, Cluster, Child) {
    let dir = directory();
    let cluster = open(dir.path());
    for home in [FREE, HELD, OTHER] {
        cluster.update(&key(home), 1, count).unwrap();
    }
    let child = Child::spawn(test, "stop", dir.path());
    child.wait_until_stopped();
    (dir, cluster, child)
}

fn child_dir() -> Option<PathBuf> {
    role().map(|(_, dir)| dir)
}

/// Ends the other threads of a scope, even if a test fails.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[track_caller]
fn check_busy<T: std::fmt::Debug>(result: Result<T, UpdateError>, expected: u32) -> u64 {
    match result {
        Err(UpdateError::Busy { pid, millis }) => {
            assert_eq!(pid, u64::from(expected), "another process is named");
            millis
        }
        other => panic!("expected the holder to be named: {other:?}"),
    }
}

/// Waits until the store reports such stuck processes.
fn until(cluster: &Cluster, is_wanted: impl Fn(&[StuckProcess]) -> bool) -> Vec<StuckProcess> {
    let since = Instant::now();
    loop {
        let found = cluster.stuck();
        if is_wanted(&found) {
            return found;
        }
        assert!(since.elapsed() < LONG, "{found:?}");
        thread::yield_now();
    }
}

#[test]
fn a_held_key_fails_at_once_and_others_are_not_delayed() {
    const TEST: &str = "stuck::a_held_key_fails_at_once_and_others_are_not_delayed";
    if let Some(dir) = child_dir() {
        stop_inside(&dir);
    }
    for end in ["continue", "kill"] {
        let (dir, cluster, mut child) = stopped(TEST);
        let (before, blocked) = (Instant::now(), blocked_in_this_thread());
        let mut times: Vec<Duration> = Vec::new();
        for _ in 0..1000 {
            let began = Instant::now();
            check_busy(cluster.update(&key(HELD), 1, count), child.id());
            times.push(began.elapsed());
        }
        let held = before.elapsed();
        let before = Instant::now();
        for number in 2..1002 {
            assert_eq!(cluster.update(&key(OTHER), 1, count), Ok(number));
        }
        let others = before.elapsed();
        times.sort_unstable();
        let blocked = blocked_in_this_thread() - blocked;
        println!(
            "{end}: a thousand to the held key {held:?} (p50 {:?}, p99 {:?}), to another {others:?}; \
             blocked {blocked:?}",
            times[500], times[990]
        );
        // The machine ran something else during a few.
        assert!(times[900] < AT_ONCE, "{:?}", times[900]);
        // The first update waited, and that is recorded.
        assert!(blocked >= Duration::from_millis(4) && blocked <= held, "{blocked:?}");
        assert!(cluster.blocked_time() >= blocked);

        let stuck = until(&cluster, |stuck| !stuck.is_empty());
        assert_eq!((stuck.len(), stuck[0].pid, stuck[0].locks), (1, u64::from(child.id()), 1));
        assert!(stuck[0].since < SystemTime::now());
        let holders = View::open(dir.path()).unwrap().holders();
        assert_eq!((holders.len(), holders[0].pid, holders[0].locks), (1, stuck[0].pid, 1));
        assert_eq!(holders[0].since, Some(stuck[0].since), "all know of the same moment");
        // The recorded duration grows.
        let millis = check_busy(cluster.update(&key(HELD), 1, count), child.id());
        let since = Instant::now();
        while check_busy(cluster.update(&key(HELD), 1, count), child.id()) <= millis {
            assert!(since.elapsed() < LONG);
        }

        let expected = if end == "continue" {
            child.signal(Signal::CONT);
            child.tell();
            child.expect("done");
            3
        } else {
            child.kill();
            2
        };
        assert_eq!(until_decided(|| cluster.update(&key(HELD), 1, count)), Ok(expected));
        until(&cluster, <[StuckProcess]>::is_empty);
        assert_eq!(View::open(dir.path()).unwrap().holders(), []);
        let stats = cluster.stats();
        assert_eq!((dropped(&stats), stats.recovered > 0), (0, end == "kill"), "{stats:?}");
        check_sound(dir.path());
    }
}

/// A process that waited for a stopped one used to keep its other locks, for a second each time. So others
/// waited for it, and yet others for those.
#[test]
fn a_waiter_holds_nothing_that_others_need() {
    const TEST: &str = "stuck::a_waiter_holds_nothing_that_others_need";
    const ROUNDS: usize = 20;
    let last = |rounds: &[u64]| rounds.iter().rev().take(ROUNDS).sum::<u64>();
    if let Some(dir) = child_dir() {
        stop_inside(&dir);
    }
    let (dir, _cluster, child) = stopped(TEST);
    let third = open(dir.path());
    let (is_over, updates) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                match third.update(&key(FREE), 1, count) {
                    Ok(_) => _ = updates.fetch_add(1, Ordering::Relaxed),
                    // A waiter may lose its processor at any time, which is not the fault of the stopped process.
                    Err(UpdateError::Busy { pid, .. }) => assert_ne!(pid, u64::from(child.id())),
                    Err(UpdateError::Crowded { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let _over = OnDrop(|| is_over.store(true, Ordering::Relaxed));
        let mut meanwhile = Vec::new();
        // The other thread may have no processor for long.
        while meanwhile.len() < 10 * ROUNDS && last(&meanwhile) <= 100 * ROUNDS as u64 {
            // As a process that has not met the holder yet, and so waits for the full time.
            let waiter = open(dir.path());
            let before = updates.load(Ordering::Relaxed);
            let began = blocked_in_this_thread();
            let both = || {
                waiter.update_many(&[key(FREE), key(HELD)], 1, |entries| {
                    (0..2).for_each(|index| _ = count(entries.get(index)));
                })
            };
            let mut result = both();
            let own = u64::from(std::process::id());
            while matches!(&result, Err(UpdateError::Crowded { .. }))
                || matches!(&result, Err(UpdateError::Busy { pid, .. }) if *pid == own)
            {
                // It waited for the other key, whose holder is in this process and may lose its processor.
                result = both();
            }
            check_busy(result, child.id());
            assert!(
                blocked_in_this_thread() - began >= Duration::from_millis(4),
                "it did not wait"
            );
            meanwhile.push(updates.load(Ordering::Relaxed) - before);
        }
        println!("updates of the other key while others waited for 5 ms each: {meanwhile:?}");
        // Had the waiters kept it locked, there would be a few at most in each round.
        assert!(last(&meanwhile) > 100 * ROUNDS as u64, "{meanwhile:?}");
    });
    assert_eq!(third.find(&key(FREE), 1).unwrap().unwrap().state[0], 1 + updates.into_inner());
}

/// A slow thread of the same process is reported too, and many threads may wait for it.
#[test]
fn a_slow_thread_of_the_same_process_is_named_and_nothing_is_wrong_afterwards() {
    let dir = directory();
    let (cluster, other) = (open(dir.path()), open(dir.path()));
    let (is_inside, may_end) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            cluster
                .update_many(&[key(FREE), key(HELD)], 1, |entries| {
                    is_inside.store(true, Ordering::Relaxed);
                    while !may_end.load(Ordering::Relaxed) {
                        thread::yield_now();
                    }
                    (0..2).for_each(|index| _ = count(entries.get(index)));
                })
                .unwrap();
        });
        while !is_inside.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        let _over = OnDrop(|| may_end.store(true, Ordering::Relaxed));
        for waiter in [&cluster, &other] {
            check_busy(waiter.update(&key(HELD), 1, count), std::process::id());
            let stuck = until(waiter, |stuck| !stuck.is_empty());
            assert_eq!((stuck.len(), stuck[0].locks), (1, 2));
        }
    });
    assert_eq!(cluster.update(&key(HELD), 1, count), Ok(2));
    assert_eq!((cluster.stuck(), other.stuck()), (Vec::new(), Vec::new()));
}
