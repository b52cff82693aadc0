//! Chance that a seed decides: splitmix64, which passes the usual batteries of tests and has one
//! word of state. Not for secrets.

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    /// Stream `stream` of `seed`; streams of one seed have nothing to do with each other.
    pub(crate) fn new(seed: u64, stream: u64) -> Random {
        let mut random = Random { state: seed };
        random.state = random.next().wrapping_add(stream.wrapping_mul(0xd1b5_4a32_d192_ed03));
        random
    }

    /// Any 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`. Its bias is below `bound` / 2^64.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let product = u128::from(self.next()) * u128::from(bound);
        (product >> 64) as u64
    }

    /// A fraction from 0 up to, and without, 1.
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_that_of_splitmix64() {
        let mut random = Random { state: 1_234_567 };
        let first: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(
            first,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

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
