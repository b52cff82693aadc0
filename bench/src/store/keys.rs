//! The keys of a run, in the form of a request's descriptors, and orders to use them in.
//!
//! All texts are in one buffer, so that reading a key costs every peer the same.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use std::fmt::Write;
use std::ops::Range;

/// The length of every key.
const LENGTH: usize = "shop|user=0001234567|interface=cart".len();

/// Numbered keys. A pick is the index of a key.
#[derive(Debug)]
pub(crate) struct Keys {
    text: String,
}

impl Keys {
    /// The keys with these numbers.
    pub(crate) fn new(numbers: Range<u32>) -> Keys {
        let mut text = String::with_capacity(numbers.len() * LENGTH);
        for number in numbers {
            // Writing to a string cannot fail.
            let _ = write!(text, "shop|user={number:010}|interface=cart");
        }
        Keys { text }
    }

    /// The picked keys, in order.
    pub(crate) fn in_order(&self, picks: &[u32]) -> Keys {
        Keys { text: picks.iter().map(|&pick| self.key(pick)).collect() }
    }

    pub(crate) fn key(&self, pick: u32) -> &str {
        let start = pick as usize * LENGTH;
        &self.text[start..start + LENGTH]
    }
}

/// `count` uniform picks below `end`, the same in every run.
pub(crate) fn random_picks(end: u32, count: usize) -> Vec<u32> {
    let mut random = SplitMix64::seed_from_u64(0);
    // The upper half of 32 random bits times `end` is uniform up to 2^-32.
    (0..count).map(|_| (((random.next_u64() >> 32) * u64::from(end)) >> 32) as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart_by_their_number() {
        let keys = Keys::new(5..1_234_568);
        assert_eq!(keys.key(0), "shop|user=0000000005|interface=cart");
        assert_eq!(keys.key(1_234_562), "shop|user=0001234567|interface=cart");
    }

    #[test]
    fn picks_reach_everything_below_the_end_and_nothing_else() {
        let mut counts = [0u32; 10];
        for pick in random_picks(10, 10_000) {
            counts[pick as usize] += 1;
        }
        assert!(counts.iter().all(|count| (900..1_100).contains(count)), "{counts:?}");
    }
}
