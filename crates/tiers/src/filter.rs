//! Filters: which counters may have a row in a shard, so that new keys cost no look-up.
//!
//! A split-block Bloom filter (Putze, Sanders, Singler: "Cache-, Hash- and Space-Efficient Bloom Filters", 2007) in words
//! that all processes share: a key sets one bit in each of the eight words of one cache line. With twelve bits for each key
//! fewer than one in a hundred others seems to be there.
//!
//! A filter only ever gets fuller, so it is built again from the rows now and then: in a second half of the words, which
//! counts from the moment when it is complete. Owns both halves. One process at a time adds to a filter and builds it.
//!
//! Invariant: a key that was added is found, by every thread that sees what the adding thread did afterwards.

use std::sync::atomic::{Ordering, fence};
use tidegate_store::{Hashed, SharedWords};

/// Bits for each counter.
const BITS: u64 = 12;
/// Words of a block: a cache line.
const BLOCK: usize = 8;
/// Words before the halves.
const HEAD: usize = BLOCK;

/// Which half counts: 0 while none does, and otherwise how many were completed. Odd numbers are the first half.
const COMPLETED: usize = 0;
/// Not 0 while the other half is being built.
const BUILDING: usize = 1;
/// The keys that the half in use was new to, about.
const ADDED: usize = 2;
/// The same for the half that is being built.
const ADDED_TO_NEXT: usize = 3;

pub(crate) struct Filter {
    words: SharedWords,
    /// The blocks of a half.
    blocks: usize,
}

/// Where the bits of a key are.
struct Bits {
    block: usize,
    masks: [u64; BLOCK],
}

impl Filter {
    /// The words for so many counters.
    pub(crate) fn words_for(counters: u64) -> usize {
        let blocks = (counters * BITS).div_ceil(BLOCK as u64 * 64).max(1);
        HEAD + 2 * BLOCK * usize::try_from(blocks).unwrap_or(usize::MAX / (4 * BLOCK))
    }

    pub(crate) fn over(words: SharedWords) -> Filter {
        let blocks = words.len().saturating_sub(HEAD) / (2 * BLOCK);
        Filter { words, blocks }
    }

    /// The counters for which it has room.
    pub(crate) fn capacity(&self) -> u64 {
        self.blocks as u64 * BLOCK as u64 * 64 / BITS
    }

    /// Whether there may be a row of this key. Always true before the filter is complete.
    #[inline]
    pub(crate) fn may_have(&self, key: &Hashed) -> bool {
        loop {
            let completed = self.words.get(COMPLETED);
            if completed == 0 || self.blocks == 0 || self.words.is_lost() {
                return true;
            }
            // Pairs with the release of the number: the bits that were set before it are seen.
            fence(Ordering::Acquire);
            let Bits { block, masks } = self.bits(key);
            let first = self.first_of(half_of(completed)) + block * BLOCK;
            let mut is_there = true;
            for (index, mask) in masks.iter().enumerate() {
                is_there &= self.words.get(first + index) & mask != 0;
            }
            fence(Ordering::Acquire);
            // A half that has been replaced meanwhile may have been cleared.
            if self.words.get(COMPLETED) == completed {
                return is_there;
            }
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.words.get(COMPLETED) != 0 && !self.words.is_lost()
    }

    /// The keys that were added since it was built, and before, about.
    pub(crate) fn added(&self) -> u64 {
        self.words.get(ADDED)
    }

    /// Adds a key.
    pub(crate) fn add(&self, key: &Hashed) {
        let completed = self.words.get(COMPLETED);
        if completed != 0 {
            self.add_to(half_of(completed), ADDED, key);
        }
        if self.words.get(BUILDING) != 0 {
            self.add_to_next(key);
        }
    }

    /// Begins a new half, without keys. One that another process has begun is given up.
    pub(crate) fn begin(&self) {
        self.words.put(BUILDING, 0);
        let first = self.first_of(half_of(self.words.get(COMPLETED) + 1));
        for index in first..first + self.blocks * BLOCK {
            if self.words.get(index) != 0 {
                self.words.put(index, 0);
            }
        }
        self.words.put(ADDED_TO_NEXT, 0);
        self.words.put(BUILDING, 1);
    }

    /// Adds a key to the half that is being built alone.
    pub(crate) fn add_to_next(&self, key: &Hashed) {
        let next = self.words.get(COMPLETED) + 1;
        self.add_to(half_of(next), ADDED_TO_NEXT, key);
    }

    /// From now on the half that was built counts.
    pub(crate) fn complete(&self) {
        let next = self.words.get(COMPLETED) + 1;
        self.words.put(ADDED, self.words.get(ADDED_TO_NEXT));
        self.words.put(BUILDING, 0);
        self.words.put(COMPLETED, next);
    }

    fn add_to(&self, half: usize, count: usize, key: &Hashed) {
        let Bits { block, masks } = self.bits(key);
        let first = self.first_of(half) + block * BLOCK;
        let mut is_new = false;
        for (index, mask) in masks.iter().enumerate() {
            if self.words.get(first + index) & mask == 0 {
                is_new = true;
                self.words.set_bits(first + index, *mask);
            }
        }
        if is_new {
            self.words.put(count, self.words.get(count) + 1);
        }
    }

    fn first_of(&self, half: usize) -> usize {
        HEAD + half * self.blocks * BLOCK
    }

    #[inline]
    fn block_of(&self, key: &Hashed) -> usize {
        let high = (key.hash >> 64) as u64;
        ((u128::from(high) * self.blocks as u128) >> 64) as usize
    }

    #[inline]
    fn bits(&self, key: &Hashed) -> Bits {
        // The lower word is the same for all limits of a descriptor, in part.
        let low = key.hash as u64 ^ key.class as u64;
        let mut mixed =
            (low ^ ((key.hash >> 64) as u64).rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed ^= mixed >> 32;
        let masks = std::array::from_fn(|index| 1 << (mixed >> (6 * index) & 63));
        Bits { block: self.block_of(key), masks }
    }
}

/// The half that counts after so many were completed.
fn half_of(completed: u64) -> usize {
    usize::from(completed.is_multiple_of(2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_store::{Cluster, Geometry, Options};
    use xxhash_rust::xxh3::xxh3_128;

    fn filter(counters: u64) -> Filter {
        let options = Options::narrow(Geometry::by_capacity(100, 0.8).unwrap());
        let cluster = Cluster::in_memory(&options).unwrap();
        Filter::over(cluster.shared_words("filter", Filter::words_for(counters)).unwrap())
    }

    fn key(number: u64) -> Hashed {
        Hashed::narrow(xxh3_128(&number.to_le_bytes()))
    }

    fn build(filter: &Filter, keys: std::ops::Range<u64>) {
        filter.begin();
        keys.for_each(|number| filter.add_to_next(&key(number)));
        filter.complete();
    }

    #[test]
    fn everything_may_be_there_until_it_is_complete() {
        let filter = filter(1_000);
        assert!(!filter.is_complete() && filter.may_have(&key(1)));
        filter.begin();
        assert!(filter.may_have(&key(1)));
        filter.complete();
        assert!(filter.is_complete() && !filter.may_have(&key(1)));
    }

    #[test]
    fn what_was_added_is_found_and_hardly_anything_else() {
        let counters = 100_000;
        let filter = filter(counters);
        build(&filter, 0..counters);
        assert!((0..counters).all(|number| filter.may_have(&key(number))));
        let strangers = counters..2 * counters;
        let wrong = strangers.filter(|number| filter.may_have(&key(*number))).count() as u64;
        assert!(wrong * 100 < counters, "{wrong} of {counters}");
        assert!(filter.capacity() >= counters);
        // Few of the last ones set no new bit.
        assert!(filter.added() > counters * 98 / 100, "{}", filter.added());
    }

    #[test]
    fn a_key_that_is_added_while_the_next_half_is_built_is_in_both() {
        let filter = filter(1_000);
        build(&filter, 0..1);
        filter.begin();
        filter.add_to_next(&key(0));
        filter.add(&key(1));
        assert!(filter.may_have(&key(1)));
        filter.complete();
        assert!(filter.may_have(&key(0)) && filter.may_have(&key(1)));
    }

    #[test]
    fn keys_without_rows_are_forgotten_by_the_next_half() {
        let filter = filter(1_000);
        build(&filter, 0..500);
        build(&filter, 400..410);
        build(&filter, 600..601);
        assert!((0..600).filter(|number| filter.may_have(&key(*number))).count() < 10);
        assert!(filter.may_have(&key(600)));
        assert!((1..=2).contains(&filter.added()));
    }

    #[test]
    fn limits_of_one_descriptor_are_told_apart() {
        let filter = filter(100_000);
        let limit = |number: u64| Hashed::narrow(key(number).hash & !0xffff_ffff_ffff | 77);
        filter.begin();
        (0..50_000).for_each(|number| filter.add_to_next(&limit(number)));
        filter.complete();
        let wrong = (50_000..100_000).filter(|number| filter.may_have(&limit(*number))).count();
        assert!(wrong < 1_000, "{wrong}");
    }
}
