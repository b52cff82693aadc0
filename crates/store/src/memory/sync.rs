//! The atomics of the crate, and the ways in which shared words are written.
//!
//! Under `cfg(loom)` the atomics are loom's, so that the lock protocol can be explored. In unit tests, a thread can
//! be killed before a chosen write (`kill`), which stands for a `kill -9` between two instructions, or halted before
//! one (`halt`), which stands for preemption. Does not know their meaning.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::AtomicU64;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::fence;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::AtomicU64;
pub(crate) use std::sync::atomic::Ordering;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::fence;

#[inline]
pub(crate) fn get(word: &AtomicU64) -> u64 {
    // Relaxed: the lock of the key-node orders this with the writes of others.
    word.load(Ordering::Relaxed)
}

/// Stores a word, after every word that this thread has stored before.
#[inline]
pub(crate) fn put(word: &AtomicU64, value: u64) {
    #[cfg(all(test, not(loom)))]
    if !kill::may_write() {
        return;
    }
    // Release: pairs with the Acquire of the next lock holder. Also, a kill leaves exactly the first k writes
    // of an update, for some k, since neither compiler nor processor moves an earlier write below this one.
    word.store(value, Ordering::Release);
}

/// Stores a word unless it has the value, so that the pages of a healthy cluster stay clean.
pub(crate) fn put_if_different(word: &AtomicU64, value: u64) {
    if get(word) != value {
        put(word, value);
    }
}

/// Stores a word if it still has the value `current`; otherwise returns the value found.
#[inline]
pub(crate) fn swap_if(word: &AtomicU64, current: u64, value: u64) -> Result<(), u64> {
    #[cfg(all(test, not(loom)))]
    if !kill::may_write() {
        return Err(!current);
    }
    // Acquire: pairs with the Release of the previous holder's last write. Release: as in `put`.
    word.compare_exchange(current, value, Ordering::AcqRel, Ordering::Relaxed).map(|_| ())
}

/// Adds to a word that is not protected by a lock of the caller.
#[inline]
pub(crate) fn add(word: &AtomicU64, value: u64) {
    #[cfg(all(test, not(loom)))]
    if !kill::may_write() {
        return;
    }
    // Release: ordered with the other writes, as in `put`.
    word.fetch_add(value, Ordering::Release);
}

/// Stands for `kill -9`: the thread unwinds at a chosen write, and nothing that it does while unwinding, such
/// as releasing locks, takes effect.
#[cfg(all(test, not(loom)))]
pub(crate) mod kill {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    thread_local! {
        static WRITES_LEFT: Cell<Option<u64>> = const { Cell::new(None) };
    }

    struct Killed;

    pub(super) fn may_write() -> bool {
        super::halt::before_write();
        match WRITES_LEFT.get() {
            None => true,
            Some(0) => {
                if !std::thread::panicking() {
                    resume_unwind(Box::new(Killed));
                }
                false
            }
            Some(left) => {
                WRITES_LEFT.set(Some(left - 1));
                true
            }
        }
    }

    /// Runs `act`, killing it before write number `writes` (from 0). None if it was killed.
    pub(crate) fn before_write<T>(writes: u64, act: impl FnOnce() -> T) -> Option<T> {
        WRITES_LEFT.set(Some(writes));
        let result = catch_unwind(AssertUnwindSafe(act));
        WRITES_LEFT.set(None);
        match result {
            Ok(value) => Some(value),
            Err(payload) if payload.is::<Killed>() => None,
            Err(payload) => resume_unwind(payload),
        }
    }
}

/// Stands for a scheduler that preempts a thread before a chosen write.
#[cfg(all(test, not(loom)))]
pub(crate) mod halt {
    use std::cell::RefCell;
    use std::sync::mpsc::{Receiver, Sender};

    /// Where a thread halts, how it reports that, and the signal to continue.
    pub(crate) struct Halt {
        pub(crate) writes_left: u64,
        pub(crate) halted: Sender<()>,
        pub(crate) go: Receiver<()>,
    }

    thread_local! {
        static HALT: RefCell<Option<Halt>> = const { RefCell::new(None) };
    }

    pub(super) fn before_write() {
        let reached = HALT.with_borrow_mut(|halt| match halt {
            Some(Halt { writes_left: 0, .. }) => halt.take(),
            Some(halt) => {
                halt.writes_left -= 1;
                None
            }
            None => None,
        });
        if let Some(halt) = reached {
            halt.halted.send(()).unwrap();
            halt.go.recv().unwrap();
        }
    }

    /// Runs `act`, which halts once.
    pub(crate) fn during<T>(halt: Halt, act: impl FnOnce() -> T) -> T {
        HALT.set(Some(halt));
        let result = act();
        HALT.set(None);
        result
    }
}
