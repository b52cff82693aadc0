//! The versions that values had when the server last told them, so that most updates need no read before.
//!
//! Owns a cache of fixed capacity in two generations, as that of images. A version counts for the value that it came with
//! and for the process of the server that told it: a server that is started again counts its versions from the beginning.

use hashbrown::{DefaultHashBuilder, HashMap};
use std::hash::BuildHasher;

/// The versions of one generation.
const GENERATION: usize = 32_768;

/// The version of a value.
#[derive(Debug, Clone, Copy)]
struct Known {
    version: u64,
    server: u64,
    /// Of the value.
    digest: u64,
}

#[derive(Debug, Default)]
pub(super) struct Versions {
    young: HashMap<u64, Known>,
    old: HashMap<u64, Known>,
    hasher: DefaultHashBuilder,
}

impl Versions {
    /// The version of `value` at a place, as this process of the server has told it.
    pub(super) fn get(&self, place: u64, value: &[u8], server: u64) -> Option<u64> {
        let known = self.young.get(&place).or_else(|| self.old.get(&place))?;
        let is_same = known.server == server && known.digest == self.hasher.hash_one(value);
        is_same.then_some(known.version)
    }

    pub(super) fn note(&mut self, place: u64, value: &[u8], version: u64, server: u64) {
        if self.young.len() >= GENERATION && !self.young.contains_key(&place) {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        let digest = self.hasher.hash_one(value);
        self.old.remove(&place);
        self.young.insert(place, Known { version, server, digest });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_counts_for_its_value_and_its_server() {
        let mut versions = Versions::default();
        versions.note(1, b"a", 7, 100);
        assert_eq!(versions.get(1, b"a", 100), Some(7));
        assert_eq!(versions.get(1, b"b", 100), None);
        assert_eq!(versions.get(1, b"a", 101), None);
        assert_eq!(versions.get(2, b"a", 100), None);
        versions.note(1, b"b", 8, 100);
        assert_eq!((versions.get(1, b"a", 100), versions.get(1, b"b", 100)), (None, Some(8)));
    }

    #[test]
    fn hundreds_of_thousands_of_places_take_no_more_memory() {
        let mut versions = Versions::default();
        for place in 0..500_000 {
            versions.note(place, b"a", place, 1);
        }
        assert!(versions.young.capacity() + versions.old.capacity() <= 4 * GENERATION);
        assert_eq!(versions.get(499_999, b"a", 1), Some(499_999));
        assert_eq!(versions.get(1, b"a", 1), None);
    }
}
