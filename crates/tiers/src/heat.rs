//! Heat: how often a counter is used, and for how long it has not been.
//!
//! A byte for each key, found by its hash, in words that all processes share. It is beside the nodes and not in them, so a
//! hot counter that is used all the time costs a read of a cached line. Two keys may have one byte: then the one that is
//! idle looks as busy as the other, and stays. Threads change bytes without locks, and a use may be lost; no decision
//! depends on it.

use tidegate_store::{Hashed, SharedWords};

/// Uses, up to this many: the low bits of a byte.
pub(crate) const USES_MAX: u8 = 7;
/// Passes without a use, up to this many: the other bits.
pub(crate) const IDLE_MAX: u8 = 31;
const USES_BITS: u8 = 3;
/// Bytes for each node, so that few keys share one.
const PER_NODE: u64 = 2;

pub(crate) struct Heat {
    words: SharedWords,
}

/// The word of a byte, and where it begins there.
pub(crate) type Place = (usize, u32);

/// What is known of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Use {
    /// Up to [`USES_MAX`].
    pub(crate) uses: u8,
    /// Passes since the last one, up to [`IDLE_MAX`].
    pub(crate) idle: u8,
}

impl Heat {
    /// The words for a store of so many nodes.
    pub(crate) fn words_for(nodes: u64) -> usize {
        usize::try_from((nodes * PER_NODE).div_ceil(8).max(1)).unwrap_or(usize::MAX / 16)
    }

    pub(crate) fn over(words: SharedWords) -> Heat {
        Heat { words }
    }

    /// Has the processor fetch the byte of a key. Returns its place.
    #[inline]
    pub(crate) fn prefetch(&self, key: &Hashed) -> Place {
        let place = self.place(key);
        self.words.prefetch(place.0);
        place
    }

    /// Notes a use.
    #[inline]
    pub(crate) fn used(&self, key: &Hashed) {
        self.used_at(self.place(key));
    }

    #[inline]
    pub(crate) fn used_at(&self, (index, shift): Place) {
        let word = self.words.get(index);
        let byte = (word >> shift) as u8;
        // Most uses are of counters that are used all the time, and write nothing.
        if byte != USES_MAX {
            let uses = (byte & USES_MAX) + u8::from(byte & USES_MAX < USES_MAX);
            self.set(index, shift, word, uses);
        }
    }

    /// Notes a pass without a use since the last one, unless there was one.
    pub(crate) fn pass(&self, key: &Hashed) -> Use {
        let (index, shift) = self.place(key);
        let word = self.words.get(index);
        let byte = (word >> shift) as u8;
        let (uses, idle) = (byte & USES_MAX, byte >> USES_BITS);
        // A use that comes now sets the idle passes to none again.
        let next = (idle + u8::from(idle < IDLE_MAX)) << USES_BITS | uses;
        self.set(index, shift, word, next);
        Use { uses, idle }
    }

    /// Forgets the uses of a counter that has moved.
    pub(crate) fn forget(&self, key: &Hashed) {
        let (index, shift) = self.place(key);
        self.set(index, shift, self.words.get(index), 0);
    }

    #[inline]
    fn set(&self, index: usize, shift: u32, word: u64, byte: u8) {
        let next = word & !(0xff << shift) | u64::from(byte) << shift;
        // Lost if another byte of the word has changed meanwhile.
        self.words.swap_if(index, word, next);
    }

    #[inline]
    fn place(&self, key: &Hashed) -> Place {
        let bytes = self.words.len() as u128 * 8;
        let byte = (u128::from((key.hash >> 64) as u64) * bytes) >> 64;
        ((byte / 8) as usize, (byte % 8) as u32 * 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_store::{Cluster, Geometry, Options};

    fn heat() -> Heat {
        let options = Options::narrow(Geometry::by_capacity(100, 0.8).unwrap());
        let cluster = Cluster::in_memory(&options).unwrap();
        Heat::over(cluster.shared_words("heat", Heat::words_for(100)).unwrap())
    }

    #[test]
    fn uses_and_idle_passes_are_counted_up_to_a_bound() {
        let (heat, key) = (heat(), Hashed::narrow(u128::MAX / 3));
        assert_eq!(heat.pass(&key), Use { uses: 0, idle: 0 });
        heat.used(&key);
        assert_eq!(heat.pass(&key), Use { uses: 1, idle: 0 });
        assert_eq!(heat.pass(&key), Use { uses: 1, idle: 1 });
        heat.used(&key);
        assert_eq!(heat.pass(&key), Use { uses: 2, idle: 0 });
        (0..100).for_each(|_| heat.used(&key));
        for _ in 0..100 {
            heat.pass(&key);
        }
        assert_eq!(heat.pass(&key), Use { uses: USES_MAX, idle: IDLE_MAX });
        heat.used(&key);
        assert_eq!(heat.pass(&key), Use { uses: USES_MAX, idle: 0 });
        heat.forget(&key);
        assert_eq!(heat.pass(&key), Use { uses: 0, idle: 0 });
    }

    #[test]
    fn neighbours_are_left_alone() {
        let heat = heat();
        let step = u128::MAX / (Heat::words_for(100) as u128 * 8);
        let keys: Vec<Hashed> =
            (0..16).map(|number| Hashed::narrow(number * step + step / 2)).collect();
        for (number, key) in keys.iter().enumerate() {
            (0..number % 8).for_each(|_| heat.used(key));
        }
        for (number, key) in keys.iter().enumerate() {
            assert_eq!(usize::from(heat.pass(key).uses), number % 8);
        }
    }
}
