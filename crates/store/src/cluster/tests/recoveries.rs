//! Two processes recover the same dead one, in every order: one is halted before each of its writes in turn,
//! while the other proceeds as far as it can.

use super::*;
use crate::memory::sync::halt::{self, Halt};
use crate::writers::slot::owner_word;
use std::sync::mpsc;

/// The process that dies, and one that finds it.
const DEAD: u32 = 0;
const WAITER: u32 = 1;

/// Claims the dead process's number, as on opening a cluster: recovers, and joins. None if the claim is taken.
fn successor(heap: &Heap) -> Option<Cluster> {
    let locks = LivenessLocks::Flags(heap.flags.clone());
    let claim = locks.try_acquire(DEAD).unwrap()?;
    let _ = recover(&heap.memory, [DEAD]);
    let writers = Writers::join(&heap.memory, locks, claim, DEAD);
    let memory = heap.memory.clone();
    Some(Cluster::over(memory, writers, Eviction::Refuse, None))
}

/// A thread of another process waits for a lock of the dead one, and recovers it. It is halted before one of
/// its writes. Meanwhile a successor tries to join under the dead process's number; when the waiter resumes,
/// the successor may hold the same lock from the same slot. Returns whether the waiter was halted at all.
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
    // Writes before the kill may be visible already; a committed update must be visible in the end.
    heap.kill_process(DEAD, victim);
    let waiter = heap.open(WAITER, Eviction::Refuse);

    let (halted, is_halted) = mpsc::channel();
    let (go, may_go) = mpsc::channel();
    let (result, was_halted, counted) = thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let halt = Halt { writes_left: halts_before, halted, go: may_go };
            halt::during(halt, || waiter.update(&key, NOW, |entry| add(entry, 1)))
        });
        // Fails if the waiter finished.
        let was_halted = is_halted.recv().is_ok();
        let early = successor(&heap);
        let mut waiting = Some(waiting);
        let mut result = None;
        if early.is_none() {
            let _ = go.send(());
            result = waiting.take().map(|waiting| waiting.join().unwrap());
        }
        let successor = early.or_else(|| successor(&heap)).expect("no other process has the claim");
        let mut update = || {
            successor.update(&key, NOW, |entry| {
                if let Some(waiting) = waiting.take() {
                    // The waiter resumes while this thread is inside the update. It finds the lock held, and
                    // gives up.
                    let _ = go.send(());
                    result = Some(waiting.join().unwrap());
                }
                assert_eq!(get(lock), writer.lock_word(), "the lock was released: {story}");
                assert_eq!(writer.owner(), owner_word(DEAD), "the slot was released: {story}");
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
    // Killed between the last write of the update and clearing the journal, or after everything.
    let is_made = committed == 0 && found == expected + 1 && dies_before > 0;
    assert!(found == expected || is_made, "{story}: {found}, expected {expected}");
    assert_eq!(get(lock), 0, "{story}");
    was_halted
}

#[test]
fn an_overtaken_recovery_disturbs_nobody() {
    let mut races = 0;
    // From before the lock is taken to the end of the update.
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
