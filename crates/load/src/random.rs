//! Random numbers from a seed. Not for secrets.

use rand_distr::Distribution;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub(crate) struct Random(SplitMix64);

impl Random {
    /// Stream `stream` of `seed`. The streams of a seed are independent.
    pub(crate) fn new(seed: u64, stream: u64) -> Random {
        let seed = SplitMix64::seed_from_u64(seed).next_u64();
        let seed = seed.wrapping_add(stream.wrapping_mul(0xd1b5_4a32_d192_ed03));
        Random(SplitMix64::seed_from_u64(seed))
    }

    /// Any 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`. Its bias is below `bound` / 2^64.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let product = u128::from(self.next()) * u128::from(bound);
        (product >> 64) as u64
    }

    /// A number of a distribution.
    pub(crate) fn sample(&mut self, distribution: &impl Distribution<f64>) -> f64 {
        distribution.sample(&mut self.0)
    }

    /// A fraction of at least 0 and less than 1.
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_below_their_bound_and_reach_all_of_it() {
        let mut random = Random::new(7, 0);
        let mut seen = [0_u32; 10];
        for _ in 0..10_000 {
            seen[random.below(10) as usize] += 1;
        }
        assert!(seen.iter().all(|count| (850..1_150).contains(count)), "{seen:?}");
        assert!((0..10_000).all(|_| (0.0..1.0).contains(&random.fraction())));
    }

    #[test]
    fn streams_of_a_seed_differ_and_repeat() {
        let take = |stream| {
            let mut random = Random::new(1, stream);
            [random.next(), random.next()]
        };
        assert_eq!(take(0), take(0));
        assert_ne!(take(0), take(1));
    }
}
