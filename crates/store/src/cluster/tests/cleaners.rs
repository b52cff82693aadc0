//! Two cleaners of one dead process, in every order: one is halted before each of its writes in turn,
//! while the other one does all that it may.

use super::*;
use crate::memory::sync::halt::{self, Halt};
use crate::writers::slot::{WriterSlot, owner_word};
use std::sync::mpsc;

/// The process that dies, and those who find it.
const DEAD: u32 = 0;
const WAITER: u32 = 1;

/// The dead process's number is taken again as by a process that opens the cluster: it cleans up, and joins.
/// Nothing if the right to is not to be had.
fn successor(heap: &Heap) -> Option<Cluster> {
    let locks = LivenessLocks::Flags(heap.flags.clone());
    let claim = locks.try_acquire(DEAD).unwrap()?;
    let _ = recover(&heap.memory, DEAD);
    let writers = Writers::join(&heap.memory, locks, claim, DEAD);
    let memory = heap.memory.clone();
    Some(Cluster::over(memory, writers, Eviction::Refuse, None))
}

/// A thread of another process waits for a lock of the dead one, and cleans up. It is halted before one of its
/// writes; meanwhile a successor of the dead process tries to join, and holds the same lock from what may be
/// the same seat when the waiter goes on. Says whether the waiter was halted at all.
fn race(dies_before: u64, halts_before: u64) -> bool {
    let story = format!("killed before write {dies_before}, halted before {halts_before}");
    let heap = Heap::new(2);
    let key = key_at(0, 1);
    let writer = WriterSlot::new(&heap.memory.control, u64::from(DEAD));
    let lock = heap.memory.class(Class::Narrow).unwrap().key_node(0).lock();
    heap.open(WAITER, Eviction::Refuse).update(&key, NOW, |entry| add(entry, 1)).unwrap();
    let victim = heap.open(DEAD, Eviction::Refuse);
    kill::before_write(dies_before, || victim.update(&key, NOW, |entry| add(entry, 1)).unwrap());
    let committed = u64::from(writer.committed() > 0);
    // What was made before the kill may be there already; what was committed must be in the end.
    heap.kill_process(DEAD, victim);
    let waiter = heap.open(WAITER, Eviction::Refuse);

    let (halted, is_halted) = mpsc::channel();
    let (go, may_go) = mpsc::channel();
    let (result, was_halted, counted) = thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let halt = Halt { writes_left: halts_before, halted, go: may_go };
            halt::during(halt, || waiter.update(&key, NOW, |entry| add(entry, 1)))
        });
        // Fails if it came to its end.
        let was_halted = is_halted.recv().is_ok();
        let early = successor(&heap);
        let mut waiting = Some(waiting);
        let mut result = None;
        if early.is_none() {
            let _ = go.send(());
            result = waiting.take().map(|waiting| waiting.join().unwrap());
        }
        let successor = early.or_else(|| successor(&heap)).expect("nobody else has the right");
        let mut update = || {
            successor.update(&key, NOW, |entry| {
                if let Some(waiting) = waiting.take() {
                    // The waiter goes on while this thread is inside. It finds the lock taken, and gives up.
                    let _ = go.send(());
                    result = Some(waiting.join().unwrap());
                }
                assert_eq!(get(lock), writer.lock_word(), "the lock was given back: {story}");
                assert_eq!(writer.owner(), owner_word(DEAD), "the seat was given back: {story}");
                add(entry, 1);
            })
        };
        let counted = u64::from(update().is_ok());
        if let Some(waiting) = waiting.take() {
            // The waiter holds the lock itself.
            let _ = go.send(());
            result = Some(waiting.join().unwrap());
        }
        (result.unwrap(), was_halted, counted)
    });
    let expected = 1 + committed + counted + u64::from(result.is_ok());
    let found = count(&waiter, &key).unwrap();
    // Killed after the update was made and before it was forgotten, or after all of it.
    let is_made = committed == 0 && found == expected + 1 && dies_before > 0;
    assert!(found == expected || is_made, "{story}: {found}, expected {expected}");
    assert_eq!(get(lock), 0, "{story}");
    was_halted
}

#[test]
fn a_cleaner_that_is_overtaken_disturbs_nobody() {
    let mut races = 0;
    // Before the lock is taken, and so on to the end of the update.
    for dies_before in 0..24 {
        for halts_before in 0.. {
            races += 1;
            if !race(dies_before, halts_before) {
                break;
            }
        }
    }
    println!("{races} races");
    assert!(races > 24 * 10, "{races}");
}
