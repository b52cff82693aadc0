//! The descriptors of one request, encoded in one buffer that is reused for the next request, so
//! that a locally decided request allocates nothing. `config::encoded` has the format.

use super::fact_reader::FactBuffer;
#[cfg(feature = "cel")]
use super::fact_reader::Failure;
use crate::config::encoded::{LENGTH_BYTES, decoded, override_of};
use tidegate_core::{Descriptor, Direction, Hits};
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Identifies the lease of a descriptor: a hash of its entries with a secret seed of the process,
/// so that no client can target another's lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseKey(pub u128);

/// Marks hits as a refund. No cost has these bits, so plain requests need no fields for them.
const REFUND: u64 = 1 << 63;
/// Marks the index of a late charge, in place of hits.
const LATE: u64 = 1 << 62;

/// The hits that stand for the late charge at `index`.
pub(crate) fn hits_of_late(index: usize) -> u64 {
    u64::try_from(index).unwrap_or(0) | LATE
}

/// The descriptors of one request.
#[derive(Debug, Clone, Default)]
pub struct Descriptors {
    /// Their entries. In front of each descriptor is the number of its entry of `rate_limits`, if
    /// that is recorded.
    bytes: Vec<u8>,
    spans: Vec<Span>,
    /// Start of the unfinished descriptor.
    start: usize,
    /// Whether the same descriptor occurs twice.
    has_duplicates: bool,
    /// Whether one of them refunds its hits.
    has_refunds: bool,
    /// The values read from the request; here only to reuse its memory.
    buffer: Option<Box<FactBuffer>>,
}

#[derive(Debug, Clone, Copy)]
struct Span {
    start: usize,
    end: usize,
    key: LeaseKey,
    hits: u64,
}

/// One of the descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescriptorRef<'a> {
    /// Identifies its lease.
    pub key: LeaseKey,
    /// The cost of the request.
    pub hits: u64,
    /// Its entries; encoded by `config`.
    pub entries: &'a [u8],
}

impl DescriptorRef<'_> {
    /// Whether its hits are refunded.
    pub(crate) fn is_refund(&self) -> bool {
        self.hits & REFUND != 0
    }

    /// The index of its late charge, if it has one.
    pub(crate) fn late_charge(&self) -> Option<usize> {
        usize::try_from(self.hits ^ LATE).ok().filter(|_| self.hits & LATE != 0)
    }
}

impl Descriptors {
    /// Removes all descriptors, and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.spans.clear();
        self.start = 0;
        self.has_duplicates = false;
        self.has_refunds = false;
    }

    /// Records the number of the options of the entry that makes the next descriptor.
    pub(crate) fn come_from(&mut self, number: u8) {
        self.bytes.push(number);
        self.start = self.bytes.len();
    }

    /// The number of the options of the entry that made the descriptor at `index`, if that is
    /// recorded.
    pub(crate) fn origin(&self, index: usize) -> Option<u8> {
        let before = index.checked_sub(1).and_then(|before| self.spans.get(before));
        let gap = before.map_or(0, |before| before.end)..self.spans.get(index)?.start;
        // Dropped descriptors leave their numbers there too.
        self.bytes.get(gap)?.last().copied()
    }

    /// Appends encoded bytes, such as those of a [`DescriptorRef`]: entries, or a key whose value
    /// follows.
    pub(crate) fn append(&mut self, encoded: &[u8]) {
        self.bytes.extend_from_slice(encoded);
    }

    /// Appends the value of the preceding key. `write` must write UTF-8.
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

    /// Appends an override to a descriptor with entries.
    pub(crate) fn append_override(&mut self, encoded: &[u8]) {
        if self.bytes.len() > self.start {
            self.append(encoded);
        }
    }

    /// Removes the bytes after these.
    pub(crate) fn truncate(&mut self, bytes: usize) {
        self.bytes.truncate(bytes);
    }

    pub(crate) fn take_buffer(&mut self) -> Box<FactBuffer> {
        self.buffer.take().unwrap_or_default()
    }

    pub(crate) fn put_buffer(&mut self, buffer: Box<FactBuffer>) {
        self.buffer = Some(buffer);
    }

    /// The conditions that could not be evaluated for this request: how many, and the first.
    #[cfg(feature = "cel")]
    pub(crate) fn take_failures(&mut self) -> Option<(u64, Failure)> {
        self.buffer.as_mut()?.take_failures()
    }

    /// Drops the unfinished descriptor.
    pub fn discard_partial(&mut self) {
        self.bytes.truncate(self.start);
    }

    /// Finishes the descriptor, unless it has no entries.
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

    /// Appends the mark of a domain to each descriptor.
    pub(crate) fn mark_all(&mut self, mark: &[u8], seed: u64) {
        let (unmarked, spans) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.spans));
        self.start = 0;
        let mut end = 0;
        for span in spans {
            // What stands before an entry is the number of its options.
            self.append(unmarked.get(end..span.start).unwrap_or_default());
            self.start = self.bytes.len();
            self.append(unmarked.get(span.start..span.end).unwrap_or_default());
            self.append(mark);
            end = span.end;
            self.finish(seed, span.hits);
        }
    }

    /// Finishes a descriptor whose hits are refunded (`is_negative_hits`).
    pub(crate) fn finish_refund(&mut self, seed: u64, hits: u64) {
        let count = self.spans.len();
        self.finish(seed, hits | REFUND);
        self.has_refunds |= self.spans.len() > count;
    }

    /// Whether one of them refunds its hits. Then only the sidecar can decide.
    pub(crate) fn has_refunds(&self) -> bool {
        self.has_refunds
    }

    /// The number of descriptors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Whether the same descriptor occurs twice.
    #[must_use]
    pub fn has_duplicates(&self) -> bool {
        self.has_duplicates
    }

    /// Whether the descriptor at `index`, of this key, occurs before it too.
    pub(crate) fn is_repeated(&self, index: usize, key: LeaseKey) -> bool {
        self.has_duplicates && self.spans.iter().take(index).any(|before| before.key == key)
    }

    /// The descriptors in order.
    pub fn iter(&self) -> impl Iterator<Item = DescriptorRef<'_>> {
        self.spans.iter().map(|span| DescriptorRef {
            key: span.key,
            hits: span.hits,
            entries: self.bytes.get(span.start..span.end).unwrap_or_default(),
        })
    }

    /// The descriptors as a call contains them.
    #[must_use]
    pub fn to_vec(&self) -> Vec<Descriptor> {
        let descriptor = |descriptor: DescriptorRef<'_>| {
            let (entries, rest) = decoded(descriptor.entries);
            Descriptor {
                hits: Some(Hits::new(descriptor.hits & !REFUND)),
                direction: match descriptor.is_refund() {
                    true => Direction::Refund,
                    false => Direction::Take,
                },
                limit: override_of(rest),
                ..Descriptor::new(entries)
            }
        };
        self.iter().map(descriptor).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::encoded::{encoded, entries_of};
    use tidegate_core::Entry;

    fn finished(write: impl FnOnce(&mut Descriptors)) -> Descriptors {
        let mut descriptors = Descriptors::default();
        write(&mut descriptors);
        descriptors.finish(1, 1);
        descriptors
    }

    fn key(descriptors: &Descriptors) -> LeaseKey {
        descriptors.iter().next().unwrap().key
    }

    #[test]
    fn an_entry_is_the_same_however_it_is_written() {
        let whole = finished(|descriptors| descriptors.append(&encoded(&["key", "value"])));
        let written = finished(|descriptors| {
            descriptors.append(&encoded(&["key"]));
            descriptors.value(|bytes| bytes.extend_from_slice(b"value"));
        });
        assert_eq!(whole.iter().next(), written.iter().next());
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
                let entries = |descriptors: &mut Descriptors| {
                    list.iter()
                        .for_each(|(name, value)| descriptors.append(&encoded(&[name, value])));
                };
                key(&finished(entries))
            })
            .collect();
        for (index, key) in keys.iter().enumerate() {
            assert!(!keys[..index].contains(key), "{:?}", lists[index]);
        }
    }

    #[test]
    fn a_descriptor_has_the_number_of_its_entry_if_that_is_recorded() {
        let mut descriptors = Descriptors::default();
        for (number, kept) in [(3, true), (4, false), (5, false), (6, true), (7, true)] {
            descriptors.come_from(number);
            descriptors.append(&encoded(&["a", "b"]));
            match kept {
                true => descriptors.finish(1, 1),
                false => descriptors.discard_partial(),
            }
        }
        let origins: Vec<_> = (0..4).map(|index| descriptors.origin(index)).collect();
        assert_eq!(origins, [Some(3), Some(6), Some(7), None]);
        let unnumbered = finished(|descriptors| descriptors.append(&encoded(&["a", "b"])));
        assert_eq!(unnumbered.origin(0), None);
        // It is no part of the descriptor.
        assert!(descriptors.has_duplicates());
        assert!(descriptors.iter().all(|descriptor| unnumbered.iter().next() == Some(descriptor)));
        assert_eq!(descriptors.to_vec()[1].entries, [Entry::new("a", "b")]);
    }

    #[test]
    fn a_discarded_descriptor_leaves_nothing() {
        let mut descriptors = finished(|descriptors| descriptors.append(&encoded(&["a", "b"])));
        descriptors.append(&encoded(&["half", "done"]));
        descriptors.discard_partial();
        descriptors.finish(1, 1);
        assert_eq!(descriptors.len(), 1);
        descriptors.append(&encoded(&["c", "d"]));
        descriptors.finish(1, 5);
        let last = descriptors.iter().last().unwrap();
        assert_eq!((last.hits, entries_of(last.entries)), (5, vec![Entry::new("c", "d")]));
        descriptors.clear();
        assert!(descriptors.is_empty());
    }
}
