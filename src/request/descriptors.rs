//! The descriptors of one request, as the filter draws them: bytes in one buffer that is used again
//! for the next request, so that a request which is decided locally allocates nothing.
//!
//! An entry is its key and its value, each after its length (4 bytes, little-endian), so that no two
//! lists of entries have the same bytes.

use super::fact_reader::FactBuffer;
use crate::config::encoded::{LENGTH_BYTES, append_part, entries_of};
use tidegate_core::{Descriptor, Hits};
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// What finds the lease of a descriptor: a hash of its entries under a secret of the process, so that
/// no client can aim at another's lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseKey(pub u128);

/// The descriptors of one request.
#[derive(Debug, Clone, Default)]
pub struct RequestDescriptors {
    bytes: Vec<u8>,
    spans: Vec<Span>,
    /// Where the descriptor begins that is being drawn.
    start: usize,
    /// Whether the same descriptor is there twice.
    has_duplicates: bool,
    /// What was read of the request; here only so that its memory is used again too.
    buffer: Option<Box<FactBuffer>>,
}

#[derive(Debug, Clone, Copy)]
struct Span {
    start: usize,
    end: usize,
    key: LeaseKey,
    hits: u64,
}

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescriptorRef<'a> {
    /// Finds its lease.
    pub key: LeaseKey,
    /// What the request costs there.
    pub hits: u64,
    /// Its entries; [`entries_of`] reads them.
    pub entries: &'a [u8],
}

impl RequestDescriptors {
    /// Forgets all, and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.spans.clear();
        self.start = 0;
        self.has_duplicates = false;
    }

    /// Adds an entry to the descriptor that is being drawn.
    pub fn entry(&mut self, key: &str, value: &str) {
        for part in [key, value] {
            append_part(&mut self.bytes, part);
        }
    }

    /// Adds bytes as [`encoded`] makes them, or those of a [`DescriptorRef`]: entries, or a key whose value is to
    /// follow.
    pub(crate) fn append(&mut self, encoded: &[u8]) {
        self.bytes.extend_from_slice(encoded);
    }

    /// Adds the value that belongs to the key before it, as `write` writes it. What it writes must be
    /// UTF-8.
    pub(crate) fn value(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&[0; LENGTH_BYTES]);
        let start = self.bytes.len();
        write(&mut self.bytes);
        let length = self.bytes.len().saturating_sub(start);
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        if let Some(place) = self.bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
            *place = length.to_le_bytes();
        }
    }

    pub(crate) fn take_buffer(&mut self) -> Box<FactBuffer> {
        self.buffer.take().unwrap_or_default()
    }

    pub(crate) fn put_buffer(&mut self, buffer: Box<FactBuffer>) {
        self.buffer = Some(buffer);
    }

    /// Drops the entries since the last descriptor.
    pub fn discard_partial(&mut self) {
        self.bytes.truncate(self.start);
    }

    /// Makes a descriptor of the entries since the last one; none of no entries.
    pub fn finish(&mut self, seed: u64, hits: u64) {
        let Some(entries) = self.bytes.get(self.start..).filter(|bytes| !bytes.is_empty()) else {
            return;
        };
        let key = LeaseKey(xxh3_128_with_seed(entries, seed));
        let (start, end) = (self.start, self.bytes.len());
        self.has_duplicates = self.has_duplicates || self.spans.iter().any(|span| span.key == key);
        self.spans.push(Span { start, end, key, hits });
        self.start = end;
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// How many bytes their entries have.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Whether the same descriptor is there twice.
    #[must_use]
    pub fn has_duplicates(&self) -> bool {
        self.has_duplicates
    }

    /// Each of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = DescriptorRef<'_>> {
        self.spans.iter().map(|span| DescriptorRef {
            key: span.key,
            hits: span.hits,
            entries: self.bytes.get(span.start..span.end).unwrap_or_default(),
        })
    }

    /// All of them as an ask has them.
    #[must_use]
    pub fn to_vec(&self) -> Vec<Descriptor> {
        let descriptor = |descriptor: DescriptorRef<'_>| Descriptor {
            hits: Some(Hits::new(descriptor.hits)),
            ..Descriptor::new(entries_of(descriptor.entries))
        };
        self.iter().map(descriptor).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::encoded::encoded;
    use tidegate_core::Entry;

    fn finished(write: impl FnOnce(&mut RequestDescriptors)) -> RequestDescriptors {
        let mut descriptors = RequestDescriptors::default();
        write(&mut descriptors);
        descriptors.finish(1, 1);
        descriptors
    }

    fn key(descriptors: &RequestDescriptors) -> LeaseKey {
        descriptors.iter().next().unwrap().key
    }

    #[test]
    fn an_entry_is_the_same_however_it_is_written() {
        let whole = finished(|descriptors| descriptors.entry("key", "value"));
        let copied = finished(|descriptors| descriptors.append(&encoded(&["key", "value"])));
        let written = finished(|descriptors| {
            descriptors.append(&encoded(&["key"]));
            descriptors.value(|bytes| bytes.extend_from_slice(b"value"));
        });
        for other in [copied, written] {
            assert_eq!(whole.iter().next(), other.iter().next());
        }
        assert_eq!(whole.to_vec()[0].entries, [Entry::new("key", "value")]);
    }

    #[test]
    fn no_two_lists_of_entries_share_a_key() {
        let lists: [&[(&str, &str)]; 6] = [
            &[("a", "bc")],
            &[("ab", "c")],
            &[("a", "b"), ("c", "d")],
            &[("c", "d"), ("a", "b")],
            &[("a", "b")],
            &[("a", "")],
        ];
        let keys: Vec<LeaseKey> = lists
            .iter()
            .map(|list| {
                let entries = |descriptors: &mut RequestDescriptors| {
                    list.iter().for_each(|(name, value)| descriptors.entry(name, value));
                };
                key(&finished(entries))
            })
            .collect();
        for (index, key) in keys.iter().enumerate() {
            assert!(!keys[..index].contains(key), "{:?}", lists[index]);
        }
    }

    #[test]
    fn what_is_abandoned_leaves_nothing() {
        let mut descriptors = finished(|descriptors| descriptors.entry("a", "b"));
        descriptors.entry("half", "done");
        descriptors.discard_partial();
        descriptors.finish(1, 1);
        assert_eq!(descriptors.len(), 1);
        descriptors.entry("c", "d");
        descriptors.finish(1, 5);
        let last = descriptors.iter().last().unwrap();
        assert_eq!((last.hits, entries_of(last.entries)), (5, vec![Entry::new("c", "d")]));
        descriptors.clear();
        assert!(descriptors.is_empty());
    }
}
