//! The lock in the head of a key-node: a word that is 0, or names the seat that holds it.
//!
//! Owns the protocol by which threads and processes exclude one another, and by which a lock whose
//! holder was killed is taken back. A holder writes down what it is about to lock before it does, so
//! that whoever cleans up after it finds every lock (see [`crate::seat`]). Does not know how to tell
//! whether a holder lives: it asks.

use crate::sync::{AtomicU64, put, swap_if};

/// What to do about a lock that somebody holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Try again.
    Again,
    /// Waited long enough.
    GiveUp,
}

/// Takes the lock for `me` (not 0), if nobody has it; else says who.
#[inline]
pub(crate) fn try_acquire(lock: &AtomicU64, me: u64) -> Result<(), u64> {
    // The Acquire in it pairs with the Release in `release`: what the former holder wrote is seen.
    swap_if(lock, 0, me)
}

/// Takes the lock for `me`, asking `wait` each time that it finds a holder. Says which one if told to
/// give up.
#[inline]
pub(crate) fn acquire(lock: &AtomicU64, me: u64, wait: impl FnMut(u64) -> Wait) -> Result<(), u64> {
    if try_acquire(lock, me).is_ok() { Ok(()) } else { acquire_slowly(lock, me, wait) }
}

#[cold]
fn acquire_slowly(lock: &AtomicU64, me: u64, mut wait: impl FnMut(u64) -> Wait) -> Result<(), u64> {
    loop {
        let Err(holder) = try_acquire(lock, me) else { return Ok(()) };
        if wait(holder) == Wait::GiveUp {
            return Err(holder);
        }
    }
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

#[cfg(loom)]
mod loom_tests {
    //! Every interleaving of two or three threads over one lock. Run by `make loom`.

    use super::*;
    use crate::sync::get;
    use loom::sync::{Arc, Mutex};
    use loom::thread::{self, yield_now};

    struct Shared {
        lock: AtomicU64,
        value: AtomicU64,
        /// Stands for the lock file of the process that died: whoever holds it cleans up.
        remains: Mutex<bool>,
    }

    impl Shared {
        fn new(holder: u64) -> Arc<Self> {
            let (lock, value) = (AtomicU64::new(holder), AtomicU64::new(0));
            Arc::new(Self { lock, value, remains: Mutex::new(holder != 0) })
        }

        /// Adds one in two steps under the lock; 7 is dead, and is cleaned up after by who meets it.
        fn add(&self, me: u64) {
            acquire(&self.lock, me, |holder| {
                if holder == 7 {
                    let mut remains = self.remains.lock().unwrap();
                    if *remains {
                        // The dead process got half through: its journal says 10.
                        put(&self.value, 10);
                        release_of(&self.lock, 7);
                        *remains = false;
                    }
                }
                yield_now();
                Wait::Again
            })
            .unwrap();
            let value = get(&self.value);
            put(&self.value, value + 1);
            release(&self.lock);
        }
    }

    #[test]
    fn two_holders_exclude_each_other() {
        loom::model(|| {
            let shared = Shared::new(0);
            let other = shared.clone();
            let thread = thread::spawn(move || other.add(2));
            shared.add(1);
            thread.join().unwrap();
            assert_eq!(get(&shared.value), 2);
            assert_eq!(get(&shared.lock), 0);
        });
    }

    #[test]
    fn a_dead_holder_is_cleaned_up_after_once() {
        loom::model(|| {
            let shared = Shared::new(7);
            let other = shared.clone();
            let thread = thread::spawn(move || other.add(2));
            shared.add(1);
            thread.join().unwrap();
            assert_eq!(get(&shared.value), 12);
            assert_eq!(get(&shared.lock), 0);
        });
    }

    #[test]
    fn a_lock_that_is_not_waited_for_is_taken_or_not() {
        loom::model(|| {
            let shared = Shared::new(0);
            let other = shared.clone();
            let thread = thread::spawn(move || {
                if try_acquire(&other.lock, 2).is_ok() {
                    put(&other.value, get(&other.value) + 1);
                    release(&other.lock);
                    return 1;
                }
                0
            });
            shared.add(1);
            let added = thread.join().unwrap();
            assert_eq!(get(&shared.value), 1 + added);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::get;

    #[test]
    fn a_held_lock_is_reported_with_its_holder() {
        let lock = AtomicU64::new(0);
        assert_eq!(try_acquire(&lock, 3), Ok(()));
        assert_eq!(try_acquire(&lock, 4), Err(3));
        let mut asked = 0;
        let result = acquire(&lock, 4, |holder| {
            assert_eq!(holder, 3);
            asked += 1;
            if asked == 5 { Wait::GiveUp } else { Wait::Again }
        });
        assert_eq!((result, asked), (Err(3), 5));
        release(&lock);
        assert_eq!(acquire(&lock, 4, |_| Wait::GiveUp), Ok(()));
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
