//! The static and dynamic tables of header compression (RFC 7541, section 2.3 and appendix A).
//!
//! The dynamic table is a queue of spans into one buffer. An entry that takes its name from another entry
//! shares the bytes: two bytes on the wire may name an entry of four thousand, any number of times. The table
//! size never exceeds the agreed one; the buffer never exceeds twice that. The amortised work of an insertion
//! is bounded by the bytes that it brings.

use std::collections::VecDeque;

/// Bytes that an entry counts beyond its name and value (RFC 7541, section 4.1).
pub(crate) const ENTRY_OVERHEAD: usize = 32;

/// One header field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Field<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) value: &'a [u8],
    /// Whether HTTP allows these bytes in a name and a value.
    pub(crate) validity: Validity,
}

impl Field<'_> {
    /// Its size in tables and header lists.
    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.name.len() + self.value.len() + ENTRY_OVERHEAD
    }
}

/// Whether HTTP allows the bytes of a field (RFC 9113, section 8.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Validity {
    Valid,
    Invalid,
}

/// The allowed bytes of names, apart from the colon that begins pseudo-headers.
#[expect(clippy::indexing_slicing, reason = "evaluated when compiled")]
static IN_NAMES: [bool; 256] = {
    let mut bytes = [false; 256];
    let mut byte = 0x21_u8;
    while byte <= 0x7e {
        bytes[byte as usize] = !byte.is_ascii_uppercase() && byte != b':';
        byte += 1;
    }
    bytes
};

impl Validity {
    #[inline]
    pub(crate) fn of_name(name: &[u8]) -> Validity {
        let token = name.strip_prefix(b":").unwrap_or(name);
        let is_token =
            |byte: &u8| IN_NAMES.get(usize::from(*byte)).is_some_and(|is_token| *is_token);
        let is_valid = !token.is_empty() && token.iter().all(is_token);
        if is_valid { Validity::Valid } else { Validity::Invalid }
    }

    /// The validity of a field with this validity of its name.
    #[inline]
    pub(crate) fn with_value(self, value: &[u8]) -> Validity {
        // Checks all bytes: this vectorises, while stopping at the first bad byte does not.
        let found = |found, byte: &u8| found | matches!(byte, 0 | b'\r' | b'\n');
        if value.iter().fold(false, found) { Validity::Invalid } else { self }
    }
}

/// A range of the buffer.
#[derive(Debug, Clone, Copy)]
struct Span {
    start: u32,
    len: u32,
}

impl Span {
    #[inline]
    fn of<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        bytes.get(self.start as usize..)?.get(..self.len as usize)
    }
}

#[derive(Debug)]
struct Entry {
    /// Other entries may share it, even evicted ones.
    name: Span,
    value: Span,
    name_validity: Validity,
    validity: Validity,
}

impl Entry {
    fn size(&self) -> usize {
        self.name.len as usize + self.value.len as usize + ENTRY_OVERHEAD
    }
}

/// The name of a new entry.
#[derive(Debug, Clone, Copy)]
enum NewName<'a> {
    Bytes(&'a [u8]),
    Shared(Span),
}

/// The dynamic table, behind the static one.
#[derive(Debug)]
pub(crate) struct Table {
    /// Newest first.
    entries: VecDeque<Entry>,
    bytes: Vec<u8>,
    size: usize,
    size_max: usize,
    changes: u64,
    /// Bytes copied by insertions.
    #[cfg(test)]
    copied_bytes: usize,
}

impl Table {
    pub(crate) fn new(size_max: usize) -> Table {
        Table {
            entries: VecDeque::new(),
            bytes: Vec::new(),
            size: 0,
            size_max,
            changes: 0,
            #[cfg(test)]
            copied_bytes: 0,
        }
    }

    /// The field at a wire index: 1 to 61 are static, the rest dynamic.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<Field<'_>> {
        let zero_based = index.checked_sub(1)?;
        if let Some(&(name, value)) = STATIC.get(zero_based) {
            let validity = Validity::Valid;
            return Some(Field { name: name.as_bytes(), value: value.as_bytes(), validity });
        }
        let entry = self.entries.get(zero_based - STATIC.len())?;
        let (name, value) = (entry.name.of(&self.bytes)?, entry.value.of(&self.bytes)?);
        Some(Field { name, value, validity: entry.validity })
    }

    /// The name at an index, and whether the name is valid.
    #[inline]
    pub(crate) fn name(&self, index: usize) -> Option<(&[u8], Validity)> {
        let zero_based = index.checked_sub(1)?;
        if let Some(&(name, _)) = STATIC.get(zero_based) {
            return Some((name.as_bytes(), Validity::Valid));
        }
        let entry = self.entries.get(zero_based - STATIC.len())?;
        Some((entry.name.of(&self.bytes)?, entry.name_validity))
    }

    /// Inserts a field, given the validity of its name. Evicts entries that no longer fit; a field larger
    /// than the table empties it.
    pub(crate) fn insert(&mut self, field: Field<'_>, name_validity: Validity) {
        self.push(NewName::Bytes(field.name), name_validity, field.value, field.validity);
    }

    /// Inserts a field with the name at an index. Does nothing if there is none.
    pub(crate) fn insert_named(&mut self, index: usize, value: &[u8], validity: Validity) {
        let Some(zero_based) = index.checked_sub(1) else { return };
        if let Some(&(name, _)) = STATIC.get(zero_based) {
            return self.push(NewName::Bytes(name.as_bytes()), Validity::Valid, value, validity);
        }
        if let Some(entry) = self.entries.get(zero_based - STATIC.len()) {
            let (name, name_validity) = (entry.name, entry.name_validity);
            self.push(NewName::Shared(name), name_validity, value, validity);
        }
    }

    /// Sets the table size.
    pub(crate) fn resize(&mut self, size_max: usize) {
        self.changes += 1;
        self.size_max = size_max;
        self.evict(size_max);
        if self.entries.is_empty() {
            self.bytes.clear();
        }
    }

    /// Increases with every change. While it is the same, indexes mean the same.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Bytes of memory, by capacity.
    #[inline]
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<Entry>()
    }

    fn push(
        &mut self,
        mut name: NewName<'_>,
        name_validity: Validity,
        value: &[u8],
        validity: Validity,
    ) {
        self.changes += 1;
        let name_bytes = match name {
            NewName::Bytes(name) => name.len(),
            NewName::Shared(name) => name.len as usize,
        };
        let size = name_bytes + value.len() + ENTRY_OVERHEAD;
        self.evict(self.size_max.saturating_sub(size));
        if size > self.size_max {
            self.bytes.clear();
            return;
        }
        self.make_room(&mut name, value);
        let name = match name {
            NewName::Bytes(name) => self.append(name),
            NewName::Shared(name) => name,
        };
        let value = self.append(value);
        self.size += size;
        self.entries.push_front(Entry { name, value, name_validity, validity });
    }

    fn append(&mut self, bytes: &[u8]) -> Span {
        // A table is a few KiB, so its offsets fit.
        let at = |place: usize| u32::try_from(place).unwrap_or(u32::MAX);
        let span = Span { start: at(self.bytes.len()), len: at(bytes.len()) };
        self.bytes.extend_from_slice(bytes);
        #[cfg(test)]
        {
            self.copied_bytes += bytes.len();
        }
        span
    }

    /// Makes room in the buffer for a new entry, which fits the table together with the remaining entries.
    fn make_room(&mut self, name: &mut NewName<'_>, value: &[u8]) {
        let incoming = match name {
            NewName::Bytes(name) => name.len() + value.len(),
            NewName::Shared(_) => value.len(),
        };
        let most = 2 * self.size_max;
        if self.bytes.len() + incoming > most {
            self.compact(name);
        }
        let wanted = self.bytes.len() + incoming;
        if wanted > self.bytes.capacity() {
            // Exactly the limit at most; doubling would exceed it.
            let capacity = wanted.max(self.bytes.capacity() * 2).min(most.max(wanted));
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
    }

    /// Keeps only the bytes of live entries and of the name about to be inserted. These fit the table size,
    /// even after shared names become unshared. As many bytes were inserted since the last compaction, which
    /// pays for it.
    fn compact(&mut self, name: &mut NewName<'_>) {
        let old = std::mem::take(&mut self.bytes);
        self.bytes.reserve_exact(old.capacity().min(2 * self.size_max));
        let mut entries = std::mem::take(&mut self.entries);
        for entry in entries.iter_mut().rev() {
            entry.name = self.append(entry.name.of(&old).unwrap_or_default());
            entry.value = self.append(entry.value.of(&old).unwrap_or_default());
        }
        self.entries = entries;
        if let NewName::Shared(name) = name {
            *name = self.append(name.of(&old).unwrap_or_default());
        }
    }

    /// Bytes of evicted entries stay in the buffer until it is compacted: the next insertion may reuse them
    /// as its name.
    fn evict(&mut self, size: usize) {
        while self.size > size {
            let Some(entry) = self.entries.pop_back() else { break };
            self.size -= entry.size();
        }
    }

    #[cfg(test)]
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    #[cfg(test)]
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.bytes.len()
    }

    #[cfg(test)]
    pub(crate) fn copied_bytes(&self) -> usize {
        self.copied_bytes
    }
}

#[rustfmt::skip]
const STATIC: [(&str, &str); 61] = [
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"),
    (":path", "/index.html"), (":scheme", "http"), (":scheme", "https"), (":status", "200"),
    (":status", "204"), (":status", "206"), (":status", "304"), (":status", "400"),
    (":status", "404"), (":status", "500"), ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""),
    ("accept", ""), ("access-control-allow-origin", ""), ("age", ""), ("allow", ""),
    ("authorization", ""), ("cache-control", ""), ("content-disposition", ""),
    ("content-encoding", ""), ("content-language", ""), ("content-length", ""),
    ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", ""),
    ("date", ""), ("etag", ""), ("expect", ""), ("expires", ""), ("from", ""), ("host", ""),
    ("if-match", ""), ("if-modified-since", ""), ("if-none-match", ""), ("if-range", ""),
    ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""), ("location", ""),
    ("max-forwards", ""), ("proxy-authenticate", ""), ("proxy-authorization", ""), ("range", ""),
    ("referer", ""), ("refresh", ""), ("retry-after", ""), ("server", ""), ("set-cookie", ""),
    ("strict-transport-security", ""), ("transfer-encoding", ""), ("user-agent", ""),
    ("vary", ""), ("via", ""), ("www-authenticate", ""),
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn valid<'a>(name: &'a [u8], value: &'a [u8]) -> Field<'a> {
        Field { name, value, validity: Validity::Valid }
    }

    proptest! {
        /// The slow twin: a list of pairs.
        #[test]
        fn the_ring_is_a_list(
            operations in prop::collection::vec((0_usize..60, 0_usize..90, 0_usize..20), 1..300),
        ) {
            let mut table = Table::new(512);
            let mut twin: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
            let (mut size_max, mut largest) = (512, 512);
            for (turn, (name, value, resize)) in operations.into_iter().enumerate() {
                if resize == 0 {
                    size_max = value * 8;
                    largest = largest.max(size_max);
                    table.resize(size_max);
                } else {
                    let name = vec![b'a' + (turn % 26) as u8; name + 1];
                    let value = vec![b'0' + (turn % 10) as u8; value];
                    let index = 62 + turn % 7;
                    match table.name(index) {
                        Some((shared, _)) if turn % 3 == 0 => {
                            twin.insert(0, (shared.to_vec(), value.clone()));
                            table.insert_named(index, &value, Validity::Valid);
                        }
                        _ => {
                            table.insert(valid(&name, &value), Validity::Valid);
                            twin.insert(0, (name, value));
                        }
                    }
                }
                while twin.iter().map(|(n, v)| n.len() + v.len() + 32).sum::<usize>() > size_max {
                    twin.pop();
                }
                for (index, (name, value)) in twin.iter().enumerate() {
                    let field = table.get(62 + index).unwrap();
                    prop_assert_eq!((field.name, field.value), (&name[..], &value[..]));
                }
                prop_assert!(table.get(62 + twin.len()).is_none());
                prop_assert!(table.size() <= size_max);
                prop_assert!(table.buffer_bytes() <= 2 * largest);
                prop_assert!(table.bytes.capacity() <= 2 * largest);
                prop_assert!(!twin.is_empty() || table.buffer_bytes() == 0);
                let entries = table.entries.capacity() * size_of::<Entry>();
                prop_assert_eq!(table.capacity_bytes(), table.bytes.capacity() + entries);
            }
        }
    }

    /// Regression: two bytes on the wire caused a copy of 4,060, because each entry had its own copy of a
    /// name taken from another entry.
    #[test]
    fn a_name_that_is_taken_from_an_entry_is_not_copied() {
        let mut table = Table::new(4096);
        let name = [b'n'; 4000];
        table.insert(valid(&name, b"first"), Validity::Valid);
        let before = table.copied_bytes();
        // Empty values, the shortest insertions.
        for _ in 0..100_000 {
            table.insert_named(62, b"", Validity::Valid);
        }
        assert_eq!(table.copied_bytes(), before);
        // With values, at most twice their bytes are copied.
        for _ in 0..10_000 {
            table.insert_named(62, &[b'v'; 60], Validity::Valid);
        }
        assert!(table.copied_bytes() - before < 3 * 10_000 * 60, "{}", table.copied_bytes());
        let field = table.get(62).unwrap();
        assert_eq!((field.name, field.value), (&name[..], &[b'v'; 60][..]));
        assert!(table.capacity_bytes() < 16 * 1024, "{}", table.capacity_bytes());
    }

    #[test]
    fn a_table_of_the_smallest_entries_is_small() {
        let mut table = Table::new(4096);
        for _ in 0..100_000 {
            table.insert(valid(b"", b""), Validity::Invalid);
        }
        assert!(table.get(61 + 128).is_some() && table.get(61 + 129).is_none());
        assert!(table.capacity_bytes() < 16 * 1024, "{}", table.capacity_bytes());
    }

    #[test]
    fn a_table_grows_in_few_steps() {
        let (mut table, mut grown) = (Table::new(4096), 0);
        for _ in 0..10_000 {
            let before = table.bytes.capacity();
            table.insert(valid(b"name", b"value"), Validity::Valid);
            grown += usize::from(table.bytes.capacity() != before);
        }
        assert!(grown <= 12, "{grown} times");
    }

    #[test]
    fn bytes_that_http_forbids_are_seen() {
        for (name, value) in [
            ("", "x"),
            (":", "x"),
            ("A", "x"),
            ("a b", "x"),
            ("a:b", "x"),
            ("a\0", ""),
            ("é", ""),
            ("a", "\r"),
            ("a", "\n"),
            ("a", "\0"),
        ] {
            let validity = Validity::of_name(name.as_bytes()).with_value(value.as_bytes());
            assert_eq!(validity, Validity::Invalid, "{name:?}: {value:?}");
        }
        let path = Validity::of_name(b":path").with_value(b"/\xc3\xa9 x");
        assert_eq!(path, Validity::Valid);
        assert_eq!(Validity::of_name(b"x-a_1").with_value(b""), Validity::Valid);
    }
}
