//! Choices of a seed.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// A stream of choices.
pub(super) struct Dice(SplitMix64);

impl Dice {
    /// Stream `stream` of `seed`.
    pub(super) fn new(seed: u64, stream: u64) -> Dice {
        let seed = SplitMix64::seed_from_u64(seed).next_u64();
        Dice(SplitMix64::seed_from_u64(seed.wrapping_add(stream)))
    }

    /// A number below `bound`.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).expect("a length fits into 64 bits");
        usize::try_from(self.0.next_u64() % bound).expect("it is below a length")
    }

    /// Whether a choice with this chance was made.
    pub(super) fn one_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }

    /// One of these.
    pub(super) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    /// What one of these makes.
    pub(super) fn make<T>(&mut self, makers: &[fn(&mut Dice) -> T]) -> T {
        self.pick(makers)(self)
    }

    /// `least` to `most` of what `make` makes.
    pub(super) fn some<T>(
        &mut self,
        least: usize,
        most: usize,
        mut make: impl FnMut(&mut Dice) -> T,
    ) -> Vec<T> {
        let count = least + self.below(most - least + 1);
        (0..count).map(|_| make(self)).collect()
    }
}
