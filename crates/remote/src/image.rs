//! The value of a key in the server, as bytes: a format number, the expiry, the state words.
//!
//! | bytes | what |
//! | --- | --- |
//! | 0 | the number of the format, 1 |
//! | 1..5 | the expiry in seconds since the Unix epoch, rounded up, little endian |
//! | 5.. | the state words, little endian, without the zero bytes at their end |
//!
//! A state of zeros has no value, so an absent key and an empty image are the same. An entry has exactly one image:
//! servers compare images. A reader refuses every other one.

use smallvec::SmallVec;
use tidegate_core::{StateSize, Timestamp};
use tidegate_store::{Class, Entry, Hashed};

/// An image of a narrow state fits in place.
pub(crate) type Image = SmallVec<[u8; 40]>;

const FORMAT: u8 = 1;
const HEAD: usize = 5;
/// The bytes of the longest image.
pub(crate) const IMAGE_MAX: usize = HEAD + StateSize::Wide.words() * 8;
const SECOND: u64 = 1_000_000_000;
/// Clocks that agree on one server differ by less.
const PAST_SECS: u64 = 60;

/// The words of a state of `class`.
pub(crate) const fn words(class: Class) -> usize {
    match class {
        Class::Narrow => StateSize::Narrow.words(),
        Class::Wide => StateSize::Wide.words(),
    }
}

/// A new entry of `class`.
pub(crate) fn new_entry(class: Class) -> Entry {
    Entry { state: SmallVec::from_elem(0, words(class)), expires_at: 0 }
}

/// The image of `entry`; empty if its state is all zero, or if it has expired at `now`.
pub(crate) fn encode(state: &[u64], expires_at: u64, now: Timestamp) -> Image {
    let mut image = Image::new();
    if expires_at <= now.as_nanos() || state.iter().all(|word| *word == 0) {
        return image;
    }
    let expiry = u32::try_from(expires_at.div_ceil(SECOND)).unwrap_or(u32::MAX);
    image.push(FORMAT);
    image.extend_from_slice(&expiry.to_le_bytes());
    for word in state {
        image.extend_from_slice(&word.to_le_bytes());
    }
    while image.last() == Some(&0) {
        image.pop();
    }
    image
}

/// The entry of an image that is not empty. None if it is not the image of any entry of `class`.
pub(crate) fn decode(image: &[u8], class: Class) -> Option<Entry> {
    let (head, state) = image.split_at_checked(HEAD)?;
    let words = words(class);
    let is_image = head[0] == FORMAT && state.len() <= words * 8 && *state.last()? != 0;
    if !is_image {
        return None;
    }
    let expires_at = u64::from(expiry(image)?) * SECOND;
    let mut entry = Entry { state: SmallVec::new(), expires_at };
    entry.state.extend(state.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    }));
    entry.state.resize(words, 0);
    Some(entry)
}

/// How long a server keeps an image after its expiry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retention {
    /// For updates whose time is a little before the server's.
    pub(crate) slack_secs: u64,
    /// Up to so much more, by key: counters of one window must not expire all at once.
    pub(crate) jitter_secs: u64,
}

impl Retention {
    /// The second of the Unix epoch at which the server forgets `image`.
    pub(crate) fn ends(self, image: &[u8], key: &Hashed) -> Option<u64> {
        Some(self.ends_after(expiry(image)?, key))
    }

    /// The same for states that expire at this second.
    pub(crate) fn ends_after(self, expiry: u32, key: &Hashed) -> u64 {
        let spread = (key.hash as u64) % self.jitter_secs.saturating_add(1);
        u64::from(expiry) + self.slack_secs + spread
    }
}

/// The entry of an image as an update at `now` sees it: new if there is none, or if it has expired or is damaged.
pub(crate) fn live(image: &[u8], class: Class, now: Timestamp) -> Entry {
    let is_live = |entry: &Entry| !entry.is_expired(now.as_nanos());
    decode(image, class).filter(is_live).unwrap_or_else(|| new_entry(class))
}

/// Whether an image is empty, or has expired so long ago that no clock is before its end.
pub(crate) fn is_past(image: &[u8], now: Timestamp) -> bool {
    let over = |expiry| now.as_nanos() / SECOND > u64::from(expiry) + PAST_SECS;
    expiry(image).is_none_or(over)
}

/// The expiry of an image, in seconds.
pub(crate) fn expiry(image: &[u8]) -> Option<u32> {
    image.get(1..HEAD)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000);

    proptest! {
        #[test]
        fn an_entry_survives_its_image(
            state in prop::collection::vec(prop_oneof![Just(0), any::<u64>(), 0..300_u64], 4),
            expires_secs in 1_001..u32::MAX,
        ) {
            let expires_at = u64::from(expires_secs) * SECOND;
            let image = encode(&state, expires_at, NOW);
            if state.iter().all(|word| *word == 0) {
                prop_assert!(image.is_empty());
            } else {
                prop_assert_eq!(decode(&image, Class::Narrow), Some(Entry::new(&state, expires_at)));
            }
        }

        /// Otherwise a server's value could never be replaced: its comparison is of bytes.
        #[test]
        fn bytes_that_can_be_read_are_the_image_of_what_was_read(
            bytes in prop::collection::vec(prop_oneof![Just(0), Just(1), any::<u8>()], 0..50),
        ) {
            if let Some(entry) = decode(&bytes, Class::Narrow) {
                let again = encode(&entry.state, entry.expires_at, Timestamp::from_secs(0));
                prop_assert!(entry.expires_at == 0 || again[..] == bytes[..]);
            }
        }
    }

    #[test]
    fn what_has_expired_or_is_empty_has_no_image() {
        assert!(encode(&[1, 0, 0, 0], NOW.as_nanos(), NOW).is_empty());
        assert!(encode(&[0; 4], u64::MAX, NOW).is_empty());
        let image = encode(&[u64::MAX; StateSize::Wide.words()], u64::MAX, NOW);
        assert_eq!(image.len(), IMAGE_MAX);
        assert_eq!(decode(&image, Class::Narrow), None);
        assert!(decode(&image, Class::Wide).is_some());
    }
}
