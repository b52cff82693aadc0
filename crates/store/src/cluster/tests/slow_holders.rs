//! Holders that keep their locks for long, and the processes that need these locks.

use super::*;
use crate::memory::control::{PROCESSES_MAX, WRITERS_MAX};
use crate::memory::sync::put;
use crate::writers::backoff::{Backoff, Deadline, OWN_WAIT_MAX, WAIT_MAX};
use std::sync::Barrier;

/// A process is named once, with the locks of all its threads.
#[test]
fn a_stuck_process_is_reported_with_the_locks_of_all_its_threads() {
    let heap = Heap::new(2);
    let (stuck, other) = (heap.open(1, Eviction::Refuse), heap.open(0, Eviction::Refuse));
    let held = [(); 2].map(|()| stuck.writers.acquire(&stuck.memory).unwrap());
    let mut transactions =
        held.each_ref().map(|held| Transaction::new(&stuck.memory, &stuck.writers, held.writer));
    for (transaction, class) in transactions.iter_mut().zip([Class::Narrow, Class::Wide]) {
        let key_nodes: Vec<_> = stuck.memory.class(class).unwrap().key_nodes().collect();
        transaction.lock_all(&key_nodes).unwrap();
    }
    assert_eq!(other.stuck(), [], "seen for the first time");
    let seen = Instant::now();
    while seen.elapsed() < WAIT_MAX * 2 {
        thread::yield_now();
    }
    let found: Vec<_> =
        other.stuck().iter().map(|stuck| (stuck.process, stuck.pid, stuck.locks)).collect();
    assert_eq!(found, [(1, u64::from(std::process::id()), 3)], "two narrow key-nodes, one wide");
    drop(transactions);
    assert_eq!(other.stuck(), []);
}

/// An update gives up after some milliseconds; maintenance tries again, as no client waits for it.
#[test]
fn maintenance_outlasts_a_slow_update() {
    let heap = Heap::new(2);
    let (slow, sweeper) = (heap.open(0, Eviction::Refuse), heap.open(1, Eviction::Refuse));
    // Acquires a writer slot, which counts as waiting too.
    assert_eq!(sweeper.sweep(NOW), Ok(0));
    for _ in 0..20 {
        let (began, is_over) = (Instant::now(), AtomicBool::new(false));
        let before = sweeper.blocked_time();
        let swept = thread::scope(|scope| {
            let sweep = slow.update(&key_at(0, 1), NOW, |entry| {
                let sweep = scope.spawn(|| {
                    let swept = sweeper.sweep(NOW);
                    is_over.store(true, Ordering::SeqCst);
                    swept
                });
                // Time counts as blocked after an attempt, which cannot have succeeded.
                while sweeper.blocked_time() == before && !is_over.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                add(entry, 1);
                sweep
            });
            sweep.unwrap().join().unwrap()
        });
        // A busy machine may give the holder no processor for so long.
        let was_late = began.elapsed() >= MAINTENANCE_WAIT_MAX;
        if was_late && swept.as_ref().is_err_and(UpdateError::is_contention) {
            continue;
        }
        assert_eq!(swept, Ok(0));
        return;
    }
    panic!("it always gave up");
}

/// Updates key 1 of key-node 0 for the time that `other` takes, in another thread, to do the same.
fn beside<T: Send>(holder: &Cluster, hold_for: Duration, other: impl FnOnce() -> T + Send) -> T {
    let is_held = Barrier::new(2);
    let (is_over, mut result) = (AtomicBool::new(false), None);
    thread::scope(|scope| {
        scope.spawn(|| {
            let hold = |_: EntryMut<'_>| {
                is_held.wait();
                let since = Instant::now();
                while since.elapsed() < hold_for && !is_over.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
            };
            holder.update(&key_at(0, 1), NOW, hold).unwrap();
        });
        is_held.wait();
        result = Some(other());
        is_over.store(true, Ordering::SeqCst);
    });
    result.unwrap()
}

/// A request failed on a machine with more work than processors: a thread of the sidecar lost its processor with a lock
/// held, and another one of the same sidecar gave up after 5 ms.
#[test]
fn a_thread_waits_longer_for_its_own_process_which_cannot_be_stopped() {
    let heap = Heap::new(2);
    let own = heap.open(0, Eviction::Refuse);
    for _ in 0..20 {
        let began = Instant::now();
        let (result, took) = beside(&own, WAIT_MAX * 4, || {
            (own.update(&key_at(0, 1), NOW, |entry| add(entry, 1)), began.elapsed())
        });
        // A busy machine may give the holder no processor for so long.
        if matches!(result, Err(UpdateError::Busy { .. })) && took >= OWN_WAIT_MAX {
            continue;
        }
        assert_eq!(result, Ok(()), "after {took:?}");
        return;
    }
    panic!("it always gave up");
}

/// Once it is known that the thread does not move, no other one waits for it.
#[test]
fn a_thread_gives_up_on_its_own_process_after_a_tenth_of_a_second() {
    let heap = Heap::new(2);
    let own = heap.open(0, Eviction::Refuse);
    let lock = heap.memory.class(Class::Narrow).unwrap().key_node(0).lock();
    let (began, mut backoff) = (Instant::now(), Backoff::default());
    let (first, took, second) = beside(&own, Duration::from_secs(60), || {
        let first = own.update(&key_at(0, 1), NOW, |entry| add(entry, 1));
        let took = began.elapsed();
        // The age of a stall is counted in ticks, so it may come to the tenth of a second a tick after the wait.
        while began.elapsed() < took + Duration::from_millis(5) {
            thread::yield_now();
        }
        let held = own.writers.acquire(&own.memory).unwrap();
        (first, took, own.writers.wait(&own.memory, &held.writer, lock, &mut backoff))
    });
    // The error has the age of the last look at the holder, half of `WAIT_MAX` at least. The pause after it may be long on
    // a busy machine.
    assert!(matches!(first, Err(UpdateError::Busy { millis: 2.., .. })), "{first:?}");
    assert!(took >= OWN_WAIT_MAX, "{took:?}");
    assert!(matches!(second, Err(UpdateError::Busy { millis: 100.., .. })), "{second:?}");
    assert!(!backoff.has_yielded());
}

/// The error after a wait says whether a holder is to blame, or the number of those that wait.
#[test]
fn a_wait_that_ends_blames_only_a_holder_that_makes_no_progress() {
    let heap = Heap::new(2);
    let (holder, waiting) = (heap.open(1, Eviction::Refuse), heap.open(0, Eviction::Refuse));
    let held = holder.writers.acquire(&holder.memory).unwrap();
    let own = waiting.writers.acquire(&waiting.memory).unwrap();
    let lock = heap.memory.class(Class::Narrow).unwrap().key_node(0).lock();
    let wait = |word, backoff: &mut Backoff| {
        put(lock, word);
        waiting.writers.wait(&waiting.memory, &own.writer, lock, backoff)
    };
    let mut backoff = Backoff::default();
    while backoff.pause(WAIT_MAX) == Deadline::Ahead {}
    let is_crowded = |waited| matches!(waited, Err(UpdateError::Crowded { millis: 5 }));
    assert!(is_crowded(wait(held.writer.lock_word(), &mut backoff)), "seen for the first time");
    held.writer.clear_locks();
    assert!(is_crowded(wait(held.writer.lock_word(), &mut backoff)), "it has moved on");
    assert!(is_crowded(wait(0, &mut backoff)), "free");
    let nobody = UpdateError::Busy { pid: 0, millis: 5 };
    assert_eq!(wait(5_000, &mut backoff), Err(nobody), "there is no such slot");
    let since = Instant::now();
    while since.elapsed() < WAIT_MAX {
        thread::yield_now();
    }
    let pid = u64::from(std::process::id());
    let waited = wait(held.writer.lock_word(), &mut backoff);
    assert!(matches!(waited, Err(UpdateError::Busy { pid: found, .. }) if found == pid));
    put(lock, 0);
}

/// More threads update than this process may have writer slots.
#[test]
fn a_thread_that_gets_no_writer_slot_gives_up_in_time() {
    let heap = Heap::new(2);
    let cluster = heap.open(0, Eviction::Refuse);
    let acquire = || cluster.writers.acquire(&cluster.memory);
    let mut held = Vec::new();
    let error = loop {
        match acquire() {
            Ok(slot) => held.push(slot),
            Err(error) => break error,
        }
    };
    assert_eq!(error, UpdateError::Crowded { millis: 5 });
    // One of the slots that are reserved for a process each, and all others.
    assert_eq!(held.len() as u64, WRITERS_MAX - u64::from(PROCESSES_MAX) + 1);
    assert!(cluster.blocked_time() >= WAIT_MAX);
    held.pop();
    assert!(acquire().is_ok());
}

/// The alternate of a key is locked after its home is, in the order of their numbers, so without waits in a circle.
#[test]
fn a_displaced_key_waits_for_a_holder_of_its_alternate() {
    for home in 0..2 {
        let heap = Heap::new(2);
        let (holder, waiting) = (heap.open(1, Eviction::Refuse), heap.open(0, Eviction::Refuse));
        // The last one is displaced.
        let keys: Vec<_> = (0..8).map(|number| key_at(home, number)).collect();
        for key in &keys {
            waiting.update(key, NOW, |entry| add(entry, 1)).unwrap();
        }
        let alternate = heap.memory.class(Class::Narrow).unwrap().key_node(1 - home);
        assert_eq!(alternate.occupied().len(), 1);
        let held = holder.writers.acquire(&holder.memory).unwrap();
        let mut transaction = Transaction::new(&holder.memory, &holder.writers, held.writer);
        transaction.lock_all(&[alternate]).unwrap();
        let waited = waiting.update(&keys[7], NOW, |entry| add(entry, 1));
        assert!(waited.as_ref().is_err_and(UpdateError::is_contention), "{waited:?}");
        // Its home is free meanwhile.
        assert_eq!(waiting.update(&keys[0], NOW, |entry| add(entry, 1)), Ok(()));
        drop(transaction);
        assert_eq!(waiting.update(&keys[7], NOW, |entry| add(entry, 1)), Ok(()));
        assert_eq!((count(&waiting, &keys[0]), count(&waiting, &keys[7])), (Some(2), Some(2)));
    }
}
