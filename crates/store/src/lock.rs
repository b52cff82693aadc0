//! The lock in the head of a key-node: a word that is 0, or names the seat that holds it.
//!
//! Owns the protocol by which threads and processes exclude one another, and by which a lock whose
//! holder was killed is taken back. A holder writes down what it is about to lock before it does, so
//! that whoever cleans up after it finds every lock (see [`crate::seat`]). Does not know how to tell
//! whether a holder lives: it asks.

use crate::sync::{AtomicU64, get, put, swap_if};

/// Takes the lock for `me` (not 0), if nobody has it; else says who.
#[inline]
pub(crate) fn try_acquire(lock: &AtomicU64, me: u64) -> Result<(), u64> {
    // The Acquire in it pairs with the Release in `release`: what the former holder wrote is seen.
    swap_if(lock, 0, me)
}

/// Takes the lock for `me` if it comes free within so many looks; else says who has it.
pub(crate) fn acquire_within(lock: &AtomicU64, me: u64, looks: u32) -> Result<(), u64> {
    let mut holder = get(lock);
    for _ in 0..looks {
        if holder == 0 && try_acquire(lock, me).is_ok() {
            return Ok(());
        }
        std::hint::spin_loop();
        holder = get(lock);
    }
    try_acquire(lock, me)
}

/// Gives back a lock which the caller holds.
#[inline]
pub(crate) fn release(lock: &AtomicU64) {
    put(lock, 0);
}

/// Gives back a lock that `dead` holds, if it does. Only for the one who cleans up after `dead`.
pub(crate) fn release_of(lock: &AtomicU64, dead: u64) {
    // Fails if the dead holder never got it, and it is free or another's; that is fine.
    let _ = swap_if(lock, dead, 0);
}

/// Cleans up with the right to, which is given up last: as soon as it is, another process may have the seats
/// of the dead one, and hold locks from them.
pub(crate) fn with_right<R, T>(right: R, clean: impl FnOnce() -> T) -> T {
    let cleaned = clean();
    drop(right);
    cleaned
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
        release(&lock);
        assert_eq!(acquire_within(&lock, 4, 0), Ok(()));
        release(&lock);
        assert_eq!(acquire_within(&lock, 5, 5), Ok(()));
        assert_eq!(get(&lock), 5);
    }

    #[test]
    fn only_the_lock_of_the_dead_is_given_back() {
        let lock = AtomicU64::new(3);
        release_of(&lock, 4);
        assert_eq!(get(&lock), 3);
        release_of(&lock, 3);
        assert_eq!(get(&lock), 0);
    }
}
