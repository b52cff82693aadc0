//! The only source of randomness: xoshiro256**, seeded by splitmix64. Integers only, so that a seed
//! gives the same run on every machine.

#[derive(Debug, Clone)]
pub(crate) struct Rng([u64; 4]);

impl Rng {
    #[must_use]
    pub(crate) fn new(seed: u64) -> Rng {
        let mut x = seed;
        Rng([(); 4].map(|()| {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    pub(crate) fn bits(&mut self) -> u64 {
        let [a, b, c, d] = self.0;
        let bits = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let (c, d) = (c ^ a, d ^ b);
        self.0 = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        bits
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

    /// True with a probability of `per_mille` in a thousand.
    pub(crate) fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// A waiting time of about this mean: many short ones and few long ones.
    pub(crate) fn wait(&mut self, mean: u64) -> u64 {
        let bits = self.bits();
        // The leading zeros of random bits count halvings of a probability, like an exponential
        // waiting time; 1.39 halvings with the fraction between make the mean.
        let halvings = u64::from(bits.leading_zeros()) * 1024 + (bits & 1023);
        ((u128::from(mean) * u128::from(halvings)) / 1536) as u64
    }

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
