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

/// A chain to be locked, and its lock unless another claim of the call has the same one.
#[derive(Default)]
pub(crate) struct Claim<'a> {
    pub(crate) chain: u64,
    guard: Option<MutexGuard<'a, ()>>,
}

/// All locks of a store.
pub(crate) struct Stripes(Box<[Stripe]>);

impl Stripes {
    pub(crate) fn new() -> Self {
        Self((0..STRIPE_COUNT).map(|_| Stripe::default()).collect())
    }

    /// Locks the stripes of `claims`, which it puts into order, until the claims are dropped.
    pub(crate) fn lock<'a>(&'a self, claims: &mut [Claim<'a>]) {
        // Chains of one stripe are neighbours after this, so a repeat is always the one before.
        claims.sort_unstable_by_key(|claim| stripe(claim.chain));
        let mut former = None;
        for claim in claims {
            let index = stripe(claim.chain);
            if former != Some(index) {
                let lock = self.0[index].0.lock();
                claim.guard = Some(lock.unwrap_or_else(PoisonError::into_inner));
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
        let mut claims: Vec<_> = chains.iter().map(|&chain| Claim { chain, guard: None }).collect();
        stripes.lock(&mut claims);
        let found: Vec<_> =
            (0..STRIPE_COUNT).filter(|&index| stripes.0[index].0.try_lock().is_err()).collect();
        assert_eq!(found, locked);
        drop(claims);
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
