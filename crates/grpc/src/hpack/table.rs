//! The static and the dynamic table of header compression (RFC 7541, sections 2.3 and appendix A).
//!
//! The dynamic table is a ring of spans into one buffer of bytes, in the order of insertion. Its
//! size never exceeds what was agreed, its buffer twice that.

use std::collections::VecDeque;

/// What an entry counts beyond its name and value (RFC 7541, section 4.1).
pub(crate) const ENTRY_OVERHEAD: usize = 32;

/// One header field, as it was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Field<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) value: &'a [u8],
    /// Whether HTTP allows these bytes in a name and a value.
    pub(crate) validity: Validity,
}

impl<'a> Field<'a> {
    pub(crate) fn new(name: &'a [u8], value: &'a [u8]) -> Field<'a> {
        Field { name, value, validity: Validity::of(name, value) }
    }

    /// Its size as tables and header lists count it.
    pub(crate) fn size(&self) -> usize {
        self.name.len() + self.value.len() + ENTRY_OVERHEAD
    }
}

/// Whether HTTP allows these bytes (RFC 9113, section 8.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Validity {
    Valid,
    Invalid,
}

impl Validity {
    fn of(name: &[u8], value: &[u8]) -> Validity {
        let token = name.strip_prefix(b":").unwrap_or(name);
        let is_valid = !token.is_empty()
            && token.iter().all(|byte| {
                matches!(byte, 0x21..=0x7e) && !byte.is_ascii_uppercase() && *byte != b':'
            })
            && !value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n'));
        if is_valid { Validity::Valid } else { Validity::Invalid }
    }
}

#[derive(Debug)]
struct Entry {
    start: usize,
    name_bytes: usize,
    value_bytes: usize,
    validity: Validity,
}

impl Entry {
    fn size(&self) -> usize {
        self.name_bytes + self.value_bytes + ENTRY_OVERHEAD
    }
}

/// The dynamic table, with the static one before it.
#[derive(Debug)]
pub(crate) struct Table {
    /// Newest first.
    entries: VecDeque<Entry>,
    bytes: Vec<u8>,
    size: usize,
    size_max: usize,
    changes: u64,
}

impl Table {
    pub(crate) fn new(size_max: usize) -> Table {
        Table { entries: VecDeque::new(), bytes: Vec::new(), size: 0, size_max, changes: 0 }
    }

    /// The field at an index as it is on the wire: 1 to 61 are static, the rest dynamic.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<Field<'_>> {
        let zero_based = index.checked_sub(1)?;
        if let Some(&(name, value)) = STATIC.get(zero_based) {
            let validity = Validity::Valid;
            return Some(Field { name: name.as_bytes(), value: value.as_bytes(), validity });
        }
        let entry = self.entries.get(zero_based - STATIC.len())?;
        let bytes = self.bytes.get(entry.start..)?;
        let (name, bytes) = bytes.split_at_checked(entry.name_bytes)?;
        let value = bytes.get(..entry.value_bytes)?;
        Some(Field { name, value, validity: entry.validity })
    }

    /// Inserts a field; what no longer fits goes. One that is larger than the table empties it.
    pub(crate) fn insert(&mut self, field: Field<'_>) {
        self.changes += 1;
        let size = field.size();
        self.evict(self.size_max.saturating_sub(size));
        if size > self.size_max {
            return;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(field.name);
        self.bytes.extend_from_slice(field.value);
        self.size += size;
        self.entries.push_front(Entry {
            start,
            name_bytes: field.name.len(),
            value_bytes: field.value.len(),
            validity: field.validity,
        });
    }

    /// Sets the size that entries may have together.
    pub(crate) fn resize(&mut self, size_max: usize) {
        self.changes += 1;
        self.size_max = size_max;
        self.evict(size_max);
    }

    /// Grows with every change: what an index means holds as long as this does.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    fn evict(&mut self, size: usize) {
        while self.size > size {
            let Some(entry) = self.entries.pop_back() else { break };
            self.size -= entry.size();
        }
        let dead = self.entries.back().map_or(self.bytes.len(), |oldest| oldest.start);
        // Moving the living bytes is paid for by as many that came since the last time.
        if dead > self.size_max.max(self.bytes.len() / 2) || self.entries.is_empty() {
            self.bytes.drain(..dead);
            for entry in &mut self.entries {
                entry.start -= dead;
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    #[cfg(test)]
    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes.len()
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

    proptest! {
        /// The slow twin is a list of pairs.
        #[test]
        fn the_ring_is_a_list(
            operations in prop::collection::vec((0_usize..60, 0_usize..90, 0_usize..20), 1..300),
        ) {
            let mut table = Table::new(512);
            let mut twin: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
            let mut size_max = 512;
            for (turn, (name, value, resize)) in operations.into_iter().enumerate() {
                if resize == 0 {
                    size_max = value * 8;
                    table.resize(size_max);
                } else {
                    let name = vec![b'a' + (turn % 26) as u8; name + 1];
                    let value = vec![b'0' + (turn % 10) as u8; value];
                    table.insert(Field::new(&name, &value));
                    twin.insert(0, (name, value));
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
                prop_assert!(table.held_bytes() <= 3 * 720 + 512);
            }
        }
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
            let field = Field::new(name.as_bytes(), value.as_bytes());
            assert_eq!(field.validity, Validity::Invalid, "{name:?}: {value:?}");
        }
        assert_eq!(Field::new(b":path", b"/\xc3\xa9 x").validity, Validity::Valid);
        assert_eq!(Field::new(b"x-a_1", b"").validity, Validity::Valid);
    }
}
