//! The locks of the chains: a fixed set of mutexes, each shared by many chains.
//!
//! Invariant: one call takes its locks in ascending order, each once, so calls cannot deadlock.
//! A panic under a lock leaves nothing half done (entries are written after the closure returned), so
//! a poisoned lock is taken as any other.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of locks. With t threads at work, an update of one key meets another one's lock with a
/// chance of about t / 1024; 1024 locks of two cache lines are 128 KiB.
pub(crate) const STRIPE_COUNT: usize = 1024;

/// One lock, alone on its pair of cache lines (processors fetch lines in pairs).
#[derive(Default)]
#[repr(align(128))]
struct Stripe(Mutex<()>);

/// Proof that a stripe is locked.
pub(crate) type StripeGuard<'a> = MutexGuard<'a, ()>;

/// All locks of a store.
pub(crate) struct Stripes(Box<[Stripe]>);

impl Stripes {
    pub(crate) fn new() -> Self {
        Self((0..STRIPE_COUNT).map(|_| Stripe::default()).collect())
    }

    /// Locks the stripes of `chains`, which it puts into order, and leaves the guards in `guards`.
    ///
    /// The two slices have the same length.
    pub(crate) fn lock<'a>(&'a self, chains: &mut [u64], guards: &mut [Option<StripeGuard<'a>>]) {
        // Chains of one stripe are neighbours after this, so a repeat is always the one before.
        chains.sort_unstable_by_key(|&chain| stripe(chain));
        let mut former = None;
        for (&chain, guard) in chains.iter().zip(guards) {
            let index = stripe(chain);
            if former != Some(index) {
                let lock = self.0[index].0.lock();
                *guard = Some(lock.unwrap_or_else(PoisonError::into_inner));
            }
            former = Some(index);
        }
    }
}

const fn stripe(chain: u64) -> usize {
    (chain % STRIPE_COUNT as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(chains: &[u64], locked: &[usize]) {
        let stripes = Stripes::new();
        let mut guards: Vec<_> = chains.iter().map(|_| None).collect();
        stripes.lock(&mut chains.to_vec(), &mut guards);
        let found: Vec<_> =
            (0..STRIPE_COUNT).filter(|&index| stripes.0[index].0.try_lock().is_err()).collect();
        assert_eq!(found, locked);
        drop(guards);
        assert!(stripes.0.iter().all(|stripe| stripe.0.try_lock().is_ok()));
    }

    #[test]
    fn each_stripe_is_locked_once() {
        check(&[], &[]);
        check(&[5], &[5]);
        check(&[7, 5, 7, 6], &[5, 6, 7]);
        check(&[1024 + 3, 3, 2048, 4 * 1024 + 3, 0], &[0, 3]);
    }
}
