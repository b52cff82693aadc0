//! The lock in the head of a key-node: a word that names the writer slot that holds it, or none. Its high
//! half is always the mark of the memory.
//!
//! Owns the protocol by which threads and processes exclude each other, and by which locks of a killed holder
//! are released. A holder lists a lock before it takes it, so that recovery finds every lock (see
//! [`crate::writers::slot`]). Does not know whether a holder is alive.

use crate::memory::control::unlocked;
use crate::memory::sync::{AtomicU64, get, put, swap_if};

/// Acquires the lock for `me` (a lock word, never the unlocked one) if it is free; otherwise returns its word.
#[inline]
pub(crate) fn try_acquire(lock: &AtomicU64, me: u64) -> Result<(), u64> {
    // Its Acquire pairs with the Release in `release`: the previous holder's writes are visible.
    swap_if(lock, unlocked(me), me)
}

/// Acquires the lock for `me` if it becomes free within `tries`; otherwise returns its word.
pub(crate) fn acquire_within(lock: &AtomicU64, me: u64, tries: u32) -> Result<(), u64> {
    let mut holder = get(lock);
    for _ in 0..tries {
        if holder == unlocked(me) && try_acquire(lock, me).is_ok() {
            return Ok(());
        }
        std::hint::spin_loop();
        holder = get(lock);
    }
    try_acquire(lock, me)
}

/// Releases a lock that `me` holds.
#[inline]
pub(crate) fn release(lock: &AtomicU64, me: u64) {
    put(lock, unlocked(me));
}

/// Releases a lock if `dead` holds it. Only for the recovery of `dead`.
pub(crate) fn release_dead(lock: &AtomicU64, dead: u64) {
    // Fails if the dead holder never got the lock; that is fine.
    let _ = swap_if(lock, dead, unlocked(dead));
}

/// Recovers a dead process and then releases the claim to it. This order matters: without the claim, another
/// process may reuse the dead one's slots and hold locks from them.
pub(crate) fn recover_then_release<R, T>(claim: R, recover: impl FnOnce() -> T) -> T {
    let recovered = recover();
    drop(claim);
    recovered
}

#[cfg(loom)]
mod loom_tests;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_held_lock_is_reported_with_its_holder() {
        let lock = AtomicU64::new(0);
        assert_eq!(try_acquire(&lock, 3), Ok(()));
        assert_eq!(try_acquire(&lock, 4), Err(3));
        assert_eq!(acquire_within(&lock, 4, 5), Err(3));
        release(&lock, 3);
        assert_eq!(acquire_within(&lock, 4, 0), Ok(()));
        release(&lock, 4);
        assert_eq!(acquire_within(&lock, 5, 5), Ok(()));
        assert_eq!(get(&lock), 5);
    }

    /// A page of zeros, or of another memory, is not a lock that can be acquired.
    #[test]
    fn a_lock_without_the_mark_cannot_be_acquired() {
        let mark = 0x1234_5678 << 32;
        for word in [0, 3, (mark ^ 1 << 40) | 3] {
            let lock = AtomicU64::new(word);
            assert_eq!(try_acquire(&lock, mark | 4), Err(word));
            assert_ne!(unlocked(word), mark);
        }
        let lock = AtomicU64::new(mark);
        assert_eq!(try_acquire(&lock, mark | 4), Ok(()));
        release(&lock, mark | 4);
        assert_eq!(get(&lock), mark);
    }

    #[test]
    fn only_a_lock_of_the_dead_holder_is_released() {
        let lock = AtomicU64::new(3);
        release_dead(&lock, 4);
        assert_eq!(get(&lock), 3);
        release_dead(&lock, 3);
        assert_eq!(get(&lock), 0);
    }
}
