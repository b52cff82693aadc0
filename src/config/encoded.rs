//! The encoding of a descriptor's entries: each key and each value after its length (4 bytes,
//! little-endian), so that different lists of entries have different bytes.
//!
//! After the entries may stand a mark with the domain of the descriptor's calls: a length that no
//! text has, then the domain. So descriptors of different domains differ, and every call, also one
//! that returns tokens, has its domain with it.

use tidegate_core::Entry;

/// An encoded key, or an encoded key and value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded(pub(crate) Vec<u8>);

impl Encoded {
    pub(crate) fn key(key: &str) -> Self {
        Encoded(encoded(&[key]))
    }

    pub(crate) fn entry(key: &str, value: &str) -> Self {
        Encoded(encoded(&[key, value]))
    }
}

/// Encodes keys and values.
pub(crate) fn encoded(parts: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    bytes
}

pub(crate) const LENGTH_BYTES: usize = size_of::<u32>();

/// Stands where a key would; no key is that long.
const MARK: [u8; LENGTH_BYTES] = u32::MAX.to_le_bytes();

/// The mark of a domain, for the end of a descriptor's entries.
pub(crate) fn domain_mark(domain: &str) -> Encoded {
    Encoded([&MARK, encoded(&[domain]).as_slice()].concat())
}

/// The domain in the mark after the entries, if there is one.
pub(crate) fn domain_of(mut bytes: &[u8]) -> Option<&str> {
    while let Some((_, rest)) = part(bytes) {
        bytes = rest;
    }
    let (domain, _) = part(bytes.strip_prefix(&MARK)?)?;
    Some(domain)
}

/// Decodes entries. Ends early at malformed bytes, and at the mark of a domain.
pub(crate) fn entries_of(mut bytes: &[u8]) -> Vec<Entry> {
    let mut entries = Vec::new();
    while let Some((key, rest)) = part(bytes)
        && let Some((value, rest)) = part(rest)
    {
        entries.push(Entry::new(key, value));
        bytes = rest;
    }
    entries
}

fn part(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (text, rest) = rest.split_at_checked(length)?;
    Some((std::str::from_utf8(text).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_or_changed_bytes_end_early() {
        let bytes = encoded(&["key", "value", "key", "value"]);
        for end in 0..bytes.len() {
            assert!(entries_of(&bytes[..end]).len() < 2);
            let mut changed = bytes.clone();
            changed[end] ^= 0xff;
            assert!(entries_of(&changed).len() <= 2);
        }
        assert_eq!(entries_of(&bytes).len(), 2);
    }

    #[test]
    fn a_domain_stands_after_the_entries() {
        let bytes = encoded(&["key", "value"]);
        assert_eq!(domain_of(&bytes), None);
        let marked = [bytes.clone(), domain_mark("other").0].concat();
        assert_eq!((domain_of(&marked), entries_of(&marked)), (Some("other"), entries_of(&bytes)));
        for end in 0..marked.len() {
            assert_eq!(domain_of(&marked[..end]), None, "{end} bytes");
        }
    }
}
