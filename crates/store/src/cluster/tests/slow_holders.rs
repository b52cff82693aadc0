//! Holders that keep their locks for long, and the processes that need these locks.

use super::*;
use crate::writers::backoff::WAIT_MAX;

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
    let is_over = AtomicBool::new(false);
    // Acquires a writer slot, which counts as waiting too.
    assert_eq!(sweeper.sweep(NOW), Ok(0));
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
    assert_eq!(swept, Ok(0));
}
