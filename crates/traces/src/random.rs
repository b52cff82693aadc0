//! Numbers of traces and spans. They need not be secret, only differ.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use std::cell::RefCell;
use std::hash::{BuildHasher, Hasher, RandomState};

thread_local! {
    static RANDOM: RefCell<Xoshiro256PlusPlus> = RefCell::new(seeded());
}

/// The standard library seeds its hashers by the system.
fn seeded() -> Xoshiro256PlusPlus {
    let mut seed = [0; 32];
    for bytes in seed.chunks_mut(8) {
        bytes.copy_from_slice(&RandomState::new().build_hasher().finish().to_le_bytes());
    }
    Xoshiro256PlusPlus::from_seed(seed)
}

/// Any number but 0.
pub(crate) fn span_id() -> u64 {
    RANDOM.with_borrow_mut(Xoshiro256PlusPlus::next_u64).max(1)
}

/// Any number but 0.
pub(crate) fn trace_id() -> u128 {
    (u128::from(span_id()) << 64) | u128::from(span_id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_of_all_threads_differ() {
        let numbers = || (0..1000).map(|_| trace_id()).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(numbers)).collect();
        let all: HashSet<u128> =
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert_eq!(all.len(), 4000);
    }
}
