//! The one source of chance. Integers only, so that a seed gives the same run on every machine.

use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};

/// Numbers that follow from a seed.
#[derive(Debug, Clone)]
pub(crate) struct Rng(Xoshiro256StarStar);

impl Default for Rng {
    fn default() -> Rng {
        Rng::new(0)
    }
}

impl Rng {
    /// The numbers of `seed`.
    #[must_use]
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(Xoshiro256StarStar::seed_from_u64(seed))
    }

    /// 64 random bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `end`, or 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }

    /// A number from `low` to `high`.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A number from `low` to `high`, each order of magnitude as likely as the others.
    pub(crate) fn log_between(&mut self, low: u64, high: u64) -> u64 {
        let low = low.max(1);
        let magnitude = self.between(low.ilog2().into(), high.ilog2().into());
        self.between(1 << magnitude, (2 << magnitude) - 1).clamp(low, high)
    }

    /// True so many times in a thousand.
    pub(crate) fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// A waiting time of about this mean, many short ones and few long ones.
    pub(crate) fn wait(&mut self, mean: u64) -> u64 {
        let bits = self.bits();
        // The leading zeros of random bits are halvings of a chance, as a waiting time is; 1.39 halvings
        // with the fraction between make the mean.
        let halvings = u64::from(bits.leading_zeros()) * 1024 + (bits & 1023);
        ((u128::from(mean) * u128::from(halvings)) / 1536) as u64
    }

    /// One of them.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_has_one_sequence_and_numbers_stay_in_range() {
        let (mut one, mut two) = (Rng::new(7), Rng::new(7));
        let mut sum = 0;
        for _ in 0..10_000 {
            assert_eq!(one.bits(), two.bits());
            assert!((3..=9).contains(&one.between(3, 9)));
            assert!((2..=5000).contains(&one.log_between(2, 5000)));
            sum += one.wait(1_000);
            let _ = (two.between(3, 9), two.log_between(2, 5000), two.wait(1_000));
        }
        assert!((900..1_100).contains(&(sum / 10_000)), "mean {}", sum / 10_000);
        assert_ne!(Rng::new(1).bits(), Rng::new(2).bits());
    }
}
