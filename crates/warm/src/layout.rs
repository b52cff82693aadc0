//! Where a counter is: the key of its hash, and its field there. Pure.
//!
//! | key | has |
//! | --- | --- |
//! | `PREFIXwarm:OWNER` | what all writers of an owner go by: `bits` and `fence` |
//! | `PREFIXwarm:OWNER:nBUCKET` | narrow counters whose hashes begin with the bits of the bucket |
//! | `PREFIXwarm:OWNER:wBUCKET` | the same of wide counters |
//!
//! OWNER has 32 hexadecimal digits, BUCKET as many as it needs. A field has the bits of the hash that the bucket does not
//! imply, in whole bytes, the highest first.
//!
//! Servers keep a hash in one run of bytes while it has at most 128 entries and no value of more than 64 bytes; then an entry
//! takes some 5 bytes beside its own. A hash that has ever had more is kept as a table, with some 75 bytes more for each
//! entry. A narrow value has at most 43 bytes. Wide values may be longer, so they are in hashes of their own.

use tidegate_store::{Class, Hashed};

/// 2^24 buckets of 40 counters are 670 million.
pub(crate) const BITS_MAX: u8 = 24;

/// The keys of an owner.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    /// The key of what writers go by.
    pub(crate) owner: String,
}

/// A hash of an owner that has so many of them, as a power of two, for each class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bucket {
    pub(crate) class: Class,
    pub(crate) number: u32,
    pub(crate) bits: u8,
}

impl Layout {
    pub(crate) fn new(prefix: &str, owner: u128) -> Layout {
        Layout { owner: format!("{prefix}warm:{owner:032x}") }
    }

    pub(crate) fn key(&self, bucket: Bucket) -> String {
        let class = match bucket.class {
            Class::Narrow => 'n',
            Class::Wide => 'w',
        };
        format!("{}:{class}{:x}", self.owner, bucket.number)
    }
}

impl Bucket {
    pub(crate) fn of(key: &Hashed, bits: u8) -> Bucket {
        let number = key.hash.checked_shr(128 - u32::from(bits)).unwrap_or(0);
        // At most BITS_MAX bits.
        Bucket { class: key.class, number: number as u32, bits }
    }

    /// How many there are.
    pub(crate) fn count(bits: u8) -> u32 {
        2 << bits
    }

    /// All in a fixed order: those of narrow counters first.
    pub(crate) fn at(position: u32, bits: u8) -> Option<Bucket> {
        let class = *Class::ALL.get((position >> bits) as usize)?;
        Some(Bucket { class, number: position & ((1 << bits) - 1), bits })
    }

    /// The bytes of a hash in a field.
    fn rest_bytes(self) -> usize {
        usize::from((128 - self.bits).div_ceil(8))
    }

    /// The bits of a hash that the bucket implies.
    fn implied(self) -> u128 {
        u128::from(self.number).checked_shl(128 - u32::from(self.bits)).unwrap_or(0)
    }

    /// The field of a key of this bucket.
    pub(crate) fn field(self, key: &Hashed) -> Vec<u8> {
        let rest = (key.hash ^ self.implied()).to_be_bytes();
        rest.get(16 - self.rest_bytes()..).unwrap_or_default().to_vec()
    }

    /// The key of a field, if it is one of this bucket.
    pub(crate) fn key_of(self, field: &[u8]) -> Option<Hashed> {
        if field.len() != self.rest_bytes() {
            return None;
        }
        let rest = field.iter().fold(0_u128, |rest, byte| rest << 8 | u128::from(*byte));
        let is_rest = self.bits == 0 || rest >> (128 - u32::from(self.bits)) == 0;
        is_rest.then(|| Hashed { hash: self.implied() | rest, class: self.class })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_field_leads_back_to_its_key(hash: u128, is_wide: bool, bits in 0..=BITS_MAX) {
            let key = if is_wide { Hashed::wide(hash) } else { Hashed::narrow(hash) };
            let bucket = Bucket::of(&key, bits);
            prop_assert_eq!(bucket.key_of(&bucket.field(&key)), Some(key));
            let position = bucket.number + ((u32::from(is_wide)) << bits);
            prop_assert_eq!(Bucket::at(position, bits), Some(bucket));
        }
    }

    #[test]
    fn fields_of_other_buckets_are_refused() {
        let bucket = Bucket { class: Class::Narrow, number: 5, bits: 12 };
        assert_eq!(bucket.key_of(&[0; 14]), None);
        assert_eq!(bucket.key_of(&[0xff; 15]), None);
        assert_eq!(bucket.key_of(&[0; 15]), Some(Hashed::narrow(5 << 116)));
        assert_eq!(Bucket::at(Bucket::count(12), 12), None);
    }
}
