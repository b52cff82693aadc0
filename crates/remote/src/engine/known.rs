//! Images as the server had them in its last answer.
//!
//! Owns a cache of fixed capacity. It has two generations: when the younger is full, by its images or by their bytes, it
//! becomes the older. An image that is used moves to the younger. A forgotten image costs its key a second round trip,
//! nothing else.

use crate::image::Image;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use tidegate_core::Timestamp;
use tidegate_store::Hashed;

/// The images of one generation.
const GENERATION: usize = 32_768;
/// The bytes of one generation, if it has more than one image. A state takes up to 300, a place some hundred; one with an
/// exact window of a day up to 400,000.
const BYTES: usize = 32 * 1024 * 1024;

/// An image, and when the server had it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) image: Image,
    pub(crate) at: Timestamp,
}

#[derive(Debug)]
pub(crate) struct Known {
    generation: usize,
    young: HashMap<Hashed, Seen>,
    /// Those of `young`.
    bytes: usize,
    old: HashMap<Hashed, Seen>,
}

impl Known {
    pub(crate) fn new() -> Known {
        Known::with_generations_of(GENERATION)
    }

    fn with_generations_of(generation: usize) -> Known {
        Known { generation, young: HashMap::new(), bytes: 0, old: HashMap::new() }
    }

    pub(crate) fn get(&mut self, key: &Hashed) -> Option<&Seen> {
        if !self.young.contains_key(key) {
            let seen = self.old.remove(key)?;
            self.insert(*key, seen);
        }
        self.young.get(key)
    }

    pub(crate) fn insert(&mut self, key: Hashed, seen: Seen) {
        let (more, is_full) = (heap_bytes(&seen), self.young.len() >= self.generation);
        let entry = self.young.entry(key);
        let own = match &entry {
            Entry::Occupied(own) => Some(heap_bytes(own.get())),
            Entry::Vacant(_) => None,
        };
        let rest = self.bytes - own.unwrap_or(0);
        if is_full && own.is_none() || rest > 0 && rest + more > BYTES {
            // Keeps the table of the one before last, so that memory is allocated twice at most.
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
            self.bytes = more;
            self.young.insert(key, seen);
        } else {
            self.bytes = rest + more;
            entry.insert(seen);
        }
        // An older image may be left in the older generation. Nobody sees it: the younger comes first, and outlives it.
    }

    pub(crate) fn forget(&mut self, key: &Hashed) {
        self.bytes -= self.young.remove(key).as_ref().map_or(0, heap_bytes);
        self.old.remove(key);
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.young.capacity() + self.old.capacity()
    }
}

/// The bytes of an image that are not in place.
fn heap_bytes(seen: &Seen) -> usize {
    if seen.image.spilled() { seen.image.len() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(byte: u8) -> Seen {
        Seen { image: Image::from_slice(&[byte]), at: Timestamp::default() }
    }

    #[test]
    fn what_is_used_stays_and_the_rest_is_forgotten() {
        let mut known = Known::with_generations_of(4);
        for number in 0..100 {
            known.insert(Hashed::narrow(number), seen(number as u8));
            assert_eq!(known.get(&Hashed::narrow(0)), Some(&seen(0)));
            assert!(known.young.len() + known.old.len() <= 8);
        }
        assert_eq!(known.get(&Hashed::narrow(99)), Some(&seen(99)));
        assert_eq!(known.get(&Hashed::narrow(50)), None);
    }

    #[test]
    fn an_image_that_is_replaced_or_forgotten_does_not_come_back() {
        let mut known = Known::with_generations_of(2);
        for round in 0..5 {
            known.insert(Hashed::narrow(1), seen(round));
            known.insert(Hashed::narrow(2), seen(9));
            known.insert(Hashed::narrow(3), seen(9));
            assert_eq!(known.get(&Hashed::narrow(1)), Some(&seen(round)));
        }
        known.forget(&Hashed::narrow(1));
        assert_eq!(known.get(&Hashed::narrow(1)), None);
    }

    #[test]
    fn millions_of_keys_take_no_more_memory() {
        let mut known = Known::new();
        for number in 0..500_000 {
            known.insert(Hashed::narrow(number), seen(1));
        }
        assert!(known.capacity() <= 4 * GENERATION, "{}", known.capacity());
    }

    #[test]
    fn long_images_are_bounded_by_their_bytes() {
        let mut known = Known::new();
        let long = || Seen { image: Image::from_elem(1, BYTES / 10), at: Timestamp::default() };
        for number in 0..200 {
            known.insert(Hashed::narrow(number), long());
            known.insert(Hashed::narrow(number), long());
            assert!(known.young.len() <= 10 && known.old.len() <= 10);
            assert_eq!(known.bytes, known.young.len() * (BYTES / 10));
        }
        known.forget(&Hashed::narrow(199));
        assert_eq!(known.bytes, known.young.len() * (BYTES / 10));
        let huge = Seen { image: Image::from_elem(1, 2 * BYTES), at: Timestamp::default() };
        known.insert(Hashed::narrow(500), huge.clone());
        assert_eq!(known.get(&Hashed::narrow(500)), Some(&huge));
    }
}
