//! Which shard a counter moves to: rendezvous hashing. Each shard has a rank for each part of the hashes, and the highest one
//! wins, so a new shard takes only the parts that it wins, and a lost one leaves its own to the others.

use crate::bucket::bucket_of;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The hashes of one part are in one shard. With the usual number of buckets a part has two of them, so that buckets stay
/// full, however many shards there are.
const PART_BITS: u8 = 20;

/// The shards by their names.
#[derive(Debug)]
pub(crate) struct Shards {
    seeds: Vec<u64>,
}

impl Shards {
    pub(crate) fn new<'a>(names: impl Iterator<Item = &'a str>) -> Shards {
        Shards { seeds: names.map(|name| xxh3_64_with_seed(name.as_bytes(), 0)).collect() }
    }

    /// The index of the shard; 0 if there is none.
    pub(crate) fn of(&self, hash: u128) -> usize {
        let part = bucket_of(hash, PART_BITS).to_le_bytes();
        let ranks = self.seeds.iter().map(|seed| xxh3_64_with_seed(&part, *seed));
        // By name if two are equal, so that the order of shards does not matter.
        let best = ranks.zip(&self.seeds).enumerate().max_by_key(|(_, rank)| *rank);
        best.map_or(0, |(index, _)| index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    const KEYS: usize = 100_000;

    fn hashes() -> impl Iterator<Item = u128> {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        std::iter::repeat_with(move || u128::from(random.next_u64()) << 64).take(KEYS)
    }

    #[test]
    fn a_new_shard_takes_its_share_and_moves_nothing_else() {
        let names = ["postgres://a/x", "postgres://b/x", "mysql://c/x", "sqlite:///d"];
        for count in 1..names.len() {
            let before = Shards::new(names[..count].iter().copied());
            let after = Shards::new(names[..=count].iter().copied());
            let moved: Vec<usize> = hashes()
                .filter(|hash| before.of(*hash) != after.of(*hash))
                .map(|hash| after.of(hash))
                .collect();
            assert!(moved.iter().all(|to| *to == count));
            let share = KEYS / (count + 1);
            assert!(moved.len().abs_diff(share) < share / 20, "{} of {share}", moved.len());
        }
    }

    #[test]
    fn the_order_of_shards_does_not_matter() {
        let names = ["a", "b", "c"];
        let (one, other) = (Shards::new(names.into_iter()), Shards::new(names.into_iter().rev()));
        assert!(hashes().all(|hash| one.of(hash) == 2 - other.of(hash)));
    }
}
