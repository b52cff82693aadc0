//! Which keys share a value in the server, and the value of several keys.
//!
//! A server with a script compares several keys at once, so each key has a value of its own. A server that compares one
//! value at a time has all keys of a place in one: the limits of a descriptor, with all parts and records. Places may
//! collide: a value may have the keys of several descriptors.
//!
//! | bytes of the value of a place | what |
//! | --- | --- |
//! | 0 | the number of the format, 1 |
//! | 10 | the hash of a key without the bits of its place, little endian |
//! | 2 | the length of its image, doubled, and 1 for a wide state; little endian |
//! | the length | its image |
//! | … | the next key; keys are in order |
//!
//! A key whose image is empty is left out, and a value without keys is none. So there is exactly one value for the same
//! images, and a reader refuses every other one.

use crate::image::{self, Image, Retention};
use smallvec::SmallVec;
use tidegate_core::{KeyHash, Timestamp};
use tidegate_store::{Class, Entries, Entry, Hashed};

/// The bits of a hash that are its place: the lowest.
const PLACE_BITS: u32 = 48;
const FORMAT: u8 = 1;
/// The bytes of the hash and of the length.
const HASH: usize = 10;
const HEAD: usize = HASH + 2;

/// Which keys share a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// None.
    Each,
    /// Those of one place.
    Place,
}

/// The place of a key.
pub(crate) const fn place(key: &Hashed) -> u64 {
    KeyHash(key.hash).place()
}

impl Layout {
    /// The key of the value that has `key`.
    pub(crate) const fn value_of(self, key: &Hashed) -> Hashed {
        match self {
            Layout::Each => *key,
            Layout::Place => Hashed::narrow(place(key) as u128),
        }
    }

    /// Whether `value`, which is not empty, is a value of this key.
    pub(crate) fn is_good(self, value: &[u8], key: &Hashed) -> bool {
        match self {
            Layout::Each => image::decode(value, key.class).is_some(),
            Layout::Place => Records::read(value).is_some(),
        }
    }

    /// The entry of `key` in a value, as an update at `now` sees it: new if there is none, or if it has expired or is
    /// damaged.
    pub(crate) fn entry(self, value: &[u8], key: &Hashed, now: Timestamp) -> Entry {
        match self {
            Layout::Each => image::live(value, key.class, now),
            Layout::Place => {
                let records = Records::read(value).unwrap_or_default();
                image::live(records.image(key), key.class, now)
            }
        }
    }

    /// The value `before` with the entries of those `keys` that are in value `own`.
    pub(crate) fn changed(
        self,
        before: &Image,
        own: &Hashed,
        keys: &[Hashed],
        entries: &mut Entries<'_>,
        now: Timestamp,
    ) -> Image {
        let mut records = match self {
            Layout::Each => Records::default(),
            Layout::Place => Records::read(before).unwrap_or_default(),
        };
        let mut has_changed = false;
        let mut images: SmallVec<[(Hashed, Image); 4]> = SmallVec::new();
        for (index, key) in keys.iter().enumerate() {
            if self.value_of(key) != *own || keys[..index].contains(key) {
                continue;
            }
            let entry = entries.get(index);
            let after = image::encode(entry.state, *entry.expires_at, now);
            let was = match self {
                Layout::Each => before,
                Layout::Place => records.image(key),
            };
            if after.is_empty() && image::live(was, key.class, now).expires_at == 0 {
                // What has expired stays until its key is used: clocks go back.
                continue;
            }
            if self == Layout::Each {
                return after;
            }
            has_changed |= after[..] != *was;
            images.push((*key, after));
        }
        if self == Layout::Each || !has_changed {
            return before.clone();
        }
        for (key, after) in &images {
            records.set(key, after);
        }
        records.write(now)
    }

    /// The second of the Unix epoch at which the server forgets `value`.
    pub(crate) fn ends(self, value: &[u8], key: &Hashed, retention: Retention) -> Option<u64> {
        match self {
            Layout::Each => retention.ends(value, key),
            Layout::Place => {
                let records = Records::read(value)?;
                let last = records.0.iter().filter_map(|record| image::expiry(record.image)).max();
                Some(retention.ends_after(last?, key))
            }
        }
    }
}

/// The keys of a value with their images, in order.
#[derive(Default)]
struct Records<'v>(Vec<Record<'v>>);

struct Record<'v> {
    hash: u128,
    class: Class,
    image: &'v [u8],
}

impl Record<'_> {
    const fn order(&self) -> (u128, bool) {
        (self.hash, matches!(self.class, Class::Wide))
    }
}

const fn order(key: &Hashed) -> (u128, bool) {
    (key.hash >> PLACE_BITS, matches!(key.class, Class::Wide))
}

impl<'v> Records<'v> {
    /// The records of a value. None if it is not the value of any keys.
    fn read(value: &'v [u8]) -> Option<Records<'v>> {
        let mut records = Vec::new();
        let Some((format, mut rest)) = value.split_first() else { return Some(Records(records)) };
        while !rest.is_empty() {
            let (head, more) = rest.split_first_chunk::<HEAD>()?;
            let mut hash = [0; 16];
            hash[..HASH].copy_from_slice(&head[..HASH]);
            let length = u16::from_le_bytes([head[HASH], head[HASH + 1]]);
            let class = if length & 1 == 1 { Class::Wide } else { Class::Narrow };
            let (image, more) = more.split_at_checked(usize::from(length >> 1))?;
            let record = Record { hash: u128::from_le_bytes(hash), class, image };
            let is_next =
                records.last().is_none_or(|last: &Record<'_>| last.order() < record.order());
            if !is_next || image::decode(image, class).is_none() {
                return None;
            }
            records.push(record);
            rest = more;
        }
        (*format == FORMAT && !records.is_empty()).then_some(Records(records))
    }

    fn find(&self, key: &Hashed) -> Result<usize, usize> {
        self.0.binary_search_by_key(&order(key), Record::order)
    }

    /// The image of a key; empty if there is none.
    fn image(&self, key: &Hashed) -> &'v [u8] {
        self.find(key).ok().and_then(|index| self.0.get(index)).map_or(&[], |record| record.image)
    }

    fn set(&mut self, key: &Hashed, image: &'v [u8]) {
        let record = Record { hash: key.hash >> PLACE_BITS, class: key.class, image };
        match self.find(key) {
            Ok(index) => self.0[index] = record,
            Err(index) => self.0.insert(index, record),
        }
    }

    /// The value without what has expired for a while.
    fn write(&self, now: Timestamp) -> Image {
        let mut value = Image::from_slice(&[FORMAT]);
        for record in &self.0 {
            if image::is_past(record.image, now) {
                continue;
            }
            value.extend_from_slice(&record.hash.to_le_bytes()[..HASH]);
            // An image has at most IMAGE_MAX bytes.
            let length = (record.image.len() as u16) << 1 | u16::from(record.class == Class::Wide);
            value.extend_from_slice(&length.to_le_bytes());
            value.extend_from_slice(record.image);
        }
        if value.len() == 1 { Image::new() } else { value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use tidegate_store::LoadedEntries;

    const SECOND: u64 = 1_000_000_000;
    const NOW: Timestamp = Timestamp::from_secs(1_000_000);
    const OWN: Hashed = Hashed::narrow(7);

    fn key((number, is_wide): (u8, bool)) -> Hashed {
        let hash = u128::from(number) << 100 | 7;
        if is_wide { Hashed::wide(hash) } else { Hashed::narrow(hash) }
    }

    /// The value after a key was given a first word and an expiry in seconds from now on.
    fn put(value: &Image, key: &Hashed, word: u64, lasts: u64) -> Image {
        let mut loaded = LoadedEntries::new(&[*key], |key| Layout::Place.entry(value, key, NOW));
        let mut entries = loaded.entries();
        entries.get(0).state[0] = word;
        *entries.get(0).expires_at = NOW.as_nanos() + lasts * SECOND;
        Layout::Place.changed(value, &OWN, &[*key], &mut entries, NOW)
    }

    proptest! {
        /// As a table of words that is kept in a value, and only one value for each table.
        #[test]
        fn a_value_keeps_the_last_word_of_each_key(
            puts in prop::collection::vec((0..6_u8, any::<bool>(), 0..3_u64, 1..100_u64), 0..40),
        ) {
            let (mut value, mut table) = (Image::new(), BTreeMap::new());
            for (number, is_wide, word, lasts) in puts {
                value = put(&value, &key((number, is_wide)), word, lasts);
                match word {
                    0 => table.remove(&(number, is_wide)),
                    _ => table.insert((number, is_wide), (word, lasts)),
                };
                prop_assert_eq!(value.is_empty(), table.is_empty());
                prop_assert!(value.is_empty() || Layout::Place.is_good(&value, &OWN));
            }
            for number in 0..6 {
                for is_wide in [false, true] {
                    let word = table.get(&(number, is_wide)).map_or(0, |(word, _)| *word);
                    let entry = Layout::Place.entry(&value, &key((number, is_wide)), NOW);
                    prop_assert_eq!(entry.state[0], word);
                }
            }
            let again = table.iter().rev().fold(Image::new(), |value, (of, (word, lasts))| {
                put(&value, &key(*of), *word, *lasts)
            });
            prop_assert_eq!(&again, &value);
            let retention = Retention { slack_secs: 10, jitter_secs: 0 };
            let last = table.values().map(|(_, lasts)| 1_000_010 + lasts).max();
            prop_assert_eq!(Layout::Place.ends(&value, &OWN, retention).filter(|_| !table.is_empty()), last);
        }

        #[test]
        fn bytes_of_others_are_read_in_bounds(
            bytes in prop::collection::vec(prop_oneof![Just(0), Just(1), Just(40), any::<u8>()], 0..60),
        ) {
            let is_good = Layout::Place.is_good(&bytes, &OWN);
            let entry = Layout::Place.entry(&bytes, &key((1, false)), NOW);
            prop_assert!(is_good || entry.expires_at == 0);
        }
    }

    #[test]
    fn what_has_expired_for_long_goes_when_something_else_changes() {
        let value = put(&Image::new(), &key((1, false)), 5, 1);
        let both = put(&value, &key((2, false)), 6, 1_000);
        let later = Timestamp::from_secs(1_000_100);
        let mut loaded =
            LoadedEntries::new(&[key((2, false))], |key| Layout::Place.entry(&both, key, later));
        let mut entries = loaded.entries();
        // Nothing has changed.
        let same = Layout::Place.changed(&both, &OWN, &[key((2, false))], &mut entries, later);
        assert_eq!(same, both);
        entries.get(0).state[0] = 7;
        let rest = Layout::Place.changed(&both, &OWN, &[key((2, false))], &mut entries, later);
        assert!(rest.len() < both.len());
        assert_eq!(Layout::Place.entry(&rest, &key((2, false)), later).state[0], 7);
    }
}
