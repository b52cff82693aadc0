//! Wakes that wait for a moment: a thread that begins many updates wakes the task that sends them once, after the last.
//!
//! A woken thread competes with the waking one for a processor and for what both lock, so a wake before each update costs
//! more than the update. Owns the wakes that this thread holds back; they go out in any case when [`Held`] ends, also by a
//! panic.

use smallvec::SmallVec;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::task::Waker;

thread_local! {
    /// None while wakes go out at once.
    static HELD: RefCell<Option<SmallVec<[Waker; 4]>>> = const { RefCell::new(None) };
}

/// While it exists, this thread holds wakes back.
#[derive(Debug)]
#[must_use = "wakes are held back until it is dropped"]
pub struct Held {
    /// Whether one further out lasts longer.
    is_inner: bool,
    /// It belongs to its thread.
    _thread: PhantomData<*const ()>,
}

/// Holds back the wakes of this thread, each once, until the result is dropped.
pub fn hold() -> Held {
    let is_inner = HELD.with_borrow_mut(|held| match held {
        Some(_) => true,
        None => {
            *held = Some(SmallVec::new());
            false
        }
    });
    Held { is_inner, _thread: PhantomData }
}

/// Wakes a task, at once or when this thread holds no wakes back any more.
pub fn wake(waker: &Waker) {
    let is_held = HELD.with_borrow_mut(|held| match held {
        Some(held) => {
            if !held.iter().any(|known| known.will_wake(waker)) {
                held.push(waker.clone());
            }
            true
        }
        None => false,
    });
    if !is_held {
        waker.wake_by_ref();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.is_inner {
            // Released before the wakes, which may run anything.
            let held = HELD.with_borrow_mut(Option::take);
            held.into_iter().flatten().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn waker() -> (Arc<Woken>, Waker) {
        let woken = Arc::new(Woken::default());
        (woken.clone(), Waker::from(woken))
    }

    #[test]
    fn a_task_is_woken_at_once_or_once_at_the_end() {
        let ((first, first_waker), (second, second_waker)) = (waker(), waker());
        let counts = || [&first, &second].map(|woken| woken.0.load(Ordering::SeqCst));
        wake(&first_waker);
        assert_eq!(counts(), [1, 0]);
        let held = hold();
        (0..3).for_each(|_| wake(&first_waker));
        let inner = hold();
        wake(&second_waker);
        drop(inner);
        assert_eq!(counts(), [1, 0], "the outer one lasts longer");
        std::thread::scope(|scope| scope.spawn(|| wake(&second_waker)).join().unwrap());
        assert_eq!(counts(), [1, 1], "other threads are not concerned");
        drop(held);
        assert_eq!(counts(), [2, 2]);
        wake(&second_waker);
        assert_eq!(counts(), [2, 3]);
    }

    #[test]
    fn a_panic_holds_no_wake_back() {
        let (woken, waker) = waker();
        let panicked = std::panic::catch_unwind(|| {
            let _held = hold();
            wake(&waker);
            panic!("on purpose");
        });
        assert!(panicked.is_err());
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        wake(&waker);
        assert_eq!(woken.0.load(Ordering::SeqCst), 2);
    }
}
