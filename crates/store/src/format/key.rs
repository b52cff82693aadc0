//! Keys, and their stored form in a node.
//!
//! A key type provides an *index estimate* (a number that says where to look) and a *comparison* (whether a
//! node found there is the right one). As nodes have a fixed size, they store two words of a key: the
//! estimate and an identity. Touches no file.

use std::fmt;

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed, xxh3_128_with_seed};

use crate::format::Class;

/// The two words of a key that a node stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoredKey {
    /// The index estimate: a seeded hash, uniform over all 64 bits. Determines the two key-nodes of the key.
    pub estimate: u64,
    /// Distinguishes keys with equal estimates.
    pub identity: u64,
}

impl StoredKey {
    /// The key with these 128 bits.
    #[must_use]
    pub const fn from_bits(bits: u128) -> Self {
        Self { estimate: (bits >> 64) as u64, identity: bits as u64 }
    }

    /// All 128 bits, the estimate first. `Display` prints them in hexadecimal.
    #[must_use]
    pub const fn bits(self) -> u128 {
        (self.estimate as u128) << 64 | self.identity as u128
    }

    /// The byte in the head of a key-node that marks this key's node: 1 to 255, as 0 marks a free slot. Taken
    /// from the low bits, while key-nodes are selected by the high ones.
    #[inline]
    pub(crate) const fn tag(&self) -> u8 {
        (self.estimate % 255) as u8 + 1
    }
}

impl fmt::Display for StoredKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.bits())
    }
}

/// A type of keys.
///
/// ```
/// use tidegate_store::{Key, StoredKey};
///
/// /// A card of a shop's customer: the number is the key, the name on it is not.
/// struct Card { number: u64, name: String }
///
/// impl Key for Card {
///     fn stored(&self, seed: u64) -> StoredKey {
///         self.number.stored(seed)
///     }
/// }
///
/// let card = |name: &str| Card { number: 17, name: name.to_owned() };
/// let (one, other) = (card("A. Lovelace").stored(7), card("Ada Lovelace").stored(7));
/// assert!(card("Ada Lovelace").compare(&other, &one));
/// ```
pub trait Key {
    /// The stored form of the key in a cluster with this seed.
    ///
    /// The estimate determines where the key lives. So it must be a hash that depends on the seed, or else an
    /// attacker could aim many keys at one chain, and it must be uniform over all 64 bits.
    fn stored(&self, seed: u64) -> StoredKey;

    /// Whether `found`, stored in a node, is this key. `own` is the stored form of this key.
    ///
    /// Keys that compare equal must have equal estimates.
    #[inline]
    fn compare(&self, own: &StoredKey, found: &StoredKey) -> bool {
        own == found
    }

    /// The class of nodes that the key lives in. Keys of different classes are different keys.
    #[inline]
    fn class(&self) -> Class {
        Class::Narrow
    }
}

impl<K: Key + ?Sized> Key for &K {
    #[inline]
    fn stored(&self, seed: u64) -> StoredKey {
        (**self).stored(seed)
    }

    #[inline]
    fn compare(&self, own: &StoredKey, found: &StoredKey) -> bool {
        (**self).compare(own, found)
    }

    #[inline]
    fn class(&self) -> Class {
        (**self).class()
    }
}

/// Already in stored form, hashed with the seed of the cluster.
impl Key for StoredKey {
    #[inline]
    fn stored(&self, _seed: u64) -> StoredKey {
        *self
    }
}

/// A number: the identity is the number itself, so that it can be read back.
impl Key for u64 {
    #[inline]
    fn stored(&self, seed: u64) -> StoredKey {
        let estimate = xxh3_64_with_seed(&self.to_le_bytes(), seed);
        StoredKey { estimate, identity: *self }
    }
}

/// Bytes: stored as their xxh3-128. Two different values collide once in 2^128 pairs.
impl Key for [u8] {
    #[inline]
    fn stored(&self, seed: u64) -> StoredKey {
        StoredKey::from_bits(xxh3_128_with_seed(self, seed))
    }
}

/// Like its bytes.
impl Key for str {
    #[inline]
    fn stored(&self, seed: u64) -> StoredKey {
        self.as_bytes().stored(seed)
    }
}

/// A key of several parts, such as the entries of a descriptor. Each part is hashed after its length, so that
/// `(a, bc)` and `(ab, c)` differ.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a>(pub &'a [&'a [u8]]);

impl Key for Parts<'_> {
    fn stored(&self, seed: u64) -> StoredKey {
        let mut hash = Xxh3::with_seed(seed);
        for part in self.0 {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        StoredKey::from_bits(hash.digest128())
    }
}

/// A 128-bit hash made by the caller with the seed of the cluster, and its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hashed {
    /// The hash.
    pub hash: u128,
    /// The class whose nodes fit its state.
    pub class: Class,
}

impl Hashed {
    /// The key of a hash whose state fits in a narrow node.
    #[must_use]
    pub const fn narrow(hash: u128) -> Self {
        Self { hash, class: Class::Narrow }
    }

    /// The key of a hash whose state needs a wide node.
    #[must_use]
    pub const fn wide(hash: u128) -> Self {
        Self { hash, class: Class::Wide }
    }
}

impl Key for Hashed {
    #[inline]
    fn stored(&self, _seed: u64) -> StoredKey {
        StoredKey::from_bits(self.hash)
    }

    #[inline]
    fn class(&self) -> Class {
        self.class
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_stored_key_prints_as_its_bits() {
        let key = StoredKey::from_bits(0xab << 64 | 0xcd);
        assert_eq!(key, StoredKey { estimate: 0xab, identity: 0xcd });
        assert_eq!(key.to_string(), format!("{:0>16}{:0>16}", "ab", "cd"));
        assert_eq!(key.bits(), 0xab << 64 | 0xcd);
    }

    /// Part of the format: another release must find the keys of this one.
    #[test]
    fn a_tag_is_the_rest_of_the_estimate_plus_one() {
        for (estimate, tag) in [(0, 1), (1, 2), (254, 255), (255, 1), (256, 2), (u64::MAX - 1, 255)]
        {
            assert_eq!(StoredKey { estimate, identity: 9 }.tag(), tag);
        }
    }

    #[test]
    fn tags_are_never_that_of_a_free_node() {
        for estimate in (0..1000).chain(u64::MAX - 1000..=u64::MAX) {
            assert_ne!(StoredKey { estimate, identity: 0 }.tag(), 0);
        }
    }

    #[test]
    fn the_seed_moves_every_kind_of_key() {
        let keys: [&dyn Fn(u64) -> StoredKey; 4] = [
            &|seed| 5_u64.stored(seed),
            &|seed| "five".stored(seed),
            &|seed| [5_u8][..].stored(seed),
            &|seed| Parts(&[b"a", b"b"]).stored(seed),
        ];
        for key in keys {
            assert_ne!(key(1).estimate, key(2).estimate);
        }
        assert_eq!(5_u64.stored(1).identity, 5);
    }

    /// Keys may be equal although their identities differ.
    struct Loose;

    impl Key for Loose {
        fn stored(&self, seed: u64) -> StoredKey {
            StoredKey { estimate: seed, identity: 1 }
        }

        fn compare(&self, own: &StoredKey, found: &StoredKey) -> bool {
            own.estimate == found.estimate
        }

        fn class(&self) -> Class {
            Class::Wide
        }
    }

    #[test]
    fn a_reference_to_a_key_is_that_key() {
        fn facts<K: Key>(key: K) -> (StoredKey, bool, bool, Class) {
            let own = key.stored(7);
            let equal = StoredKey { identity: 2, ..own };
            let other = StoredKey { estimate: 8, ..own };
            (own, key.compare(&own, &equal), key.compare(&own, &other), key.class())
        }
        let expected = (StoredKey { estimate: 7, identity: 1 }, true, false, Class::Wide);
        assert_eq!((facts(Loose), facts::<&Loose>(&Loose)), (expected, expected));
        let number = (5_u64.stored(7), false, false, Class::Narrow);
        assert_eq!((facts(5_u64), facts::<&u64>(&5)), (number, number));
    }

    #[test]
    fn parts_do_not_run_into_one_another() {
        let [one, other, none]: [&[&[u8]]; 3] = [&[b"a", b"bc"], &[b"ab", b"c"], &[b"abc"]];
        assert_ne!(Parts(one).stored(0), Parts(other).stored(0));
        assert_ne!(Parts(one).stored(0), Parts(none).stored(0));
    }
}
