//! The encoding of a descriptor's entries: each key and each value after its length (4 bytes,
//! little-endian), so that different lists of entries have different bytes.
//!
//! After the entries, an override of the limit may follow, and then a mark with the domain of the
//! descriptor's calls, so that both are a part of the descriptor's identity. So every call, also one
//! that returns tokens, has its domain with it.

use tidegate_core::{Entry, LimitOverride, Unit};

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

/// Stands in the place of a length before a domain. No key has this length.
const DOMAIN: [u8; LENGTH_BYTES] = [0xfe, 0xff, 0xff, 0xff];

/// The mark of a domain, for the end of a descriptor.
pub(crate) fn domain_mark(domain: &str) -> Encoded {
    Encoded([&DOMAIN, encoded(&[domain]).as_slice()].concat())
}

/// The domain in the mark at the end of a descriptor, if there is one.
pub(crate) fn domain_of(mut bytes: &[u8]) -> Option<&str> {
    while let Some((_, rest)) = part(bytes) {
        bytes = rest;
    }
    if bytes.starts_with(&OVERRIDE) {
        bytes = bytes.get(OVERRIDE_BYTES..)?;
    }
    let (domain, _) = part(bytes.strip_prefix(&DOMAIN)?)?;
    Some(domain)
}

/// Decodes entries. Ends early at malformed bytes.
pub(crate) fn entries_of(bytes: &[u8]) -> Vec<Entry> {
    decoded(bytes).0
}

/// The entries, and the bytes after them.
pub(crate) fn decoded(mut bytes: &[u8]) -> (Vec<Entry>, &[u8]) {
    let mut entries = Vec::new();
    while let Some((key, rest)) = part(bytes)
        && let Some((value, rest)) = part(rest)
    {
        entries.push(Entry::new(key, value));
        bytes = rest;
    }
    (entries, bytes)
}

/// Stands in the place of a length before an override. No key has this length.
const OVERRIDE: [u8; LENGTH_BYTES] = [0xff; LENGTH_BYTES];

const OVERRIDE_BYTES: usize = 9;

/// The units of overrides, in the order of Envoy's numbers from 1.
pub(crate) const UNITS: [Unit; 6] =
    [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Month, Unit::Year];

/// An encoded override: `requests` per unit of this index in [`UNITS`].
pub(crate) fn encoded_override(requests: u32, unit: u8) -> [u8; OVERRIDE_BYTES] {
    let [a, b, c, d] = OVERRIDE;
    let [e, f, g, h] = requests.to_le_bytes();
    [a, b, c, d, e, f, g, h, unit]
}

/// Decodes the bytes after entries.
pub(crate) fn override_of(bytes: &[u8]) -> Option<LimitOverride> {
    let rest = bytes.strip_prefix(&OVERRIDE)?;
    let (requests, unit) = rest.split_first_chunk()?;
    let unit = UNITS.get(usize::from(*unit.first()?))?;
    Some(LimitOverride { requests: u32::from_le_bytes(*requests), unit: *unit })
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
    fn a_domain_stands_after_the_entries_and_an_override() {
        let entries = encoded(&["key", "value"]);
        assert_eq!(domain_of(&entries), None);
        for limit in [&[][..], &encoded_override(7, 2)] {
            let unmarked = [&entries[..], limit].concat();
            let marked = [unmarked.clone(), domain_mark("other").0].concat();
            assert_eq!(domain_of(&marked), Some("other"));
            let ((found, rest), (expected, before)) = (decoded(&marked), decoded(&unmarked));
            assert_eq!((found, override_of(rest)), (expected, override_of(before)));
            for end in 0..marked.len() {
                assert_eq!(domain_of(&marked[..end]), None, "{end} bytes");
            }
        }
    }

    #[test]
    fn an_override_follows_the_entries() {
        let entries = encoded(&["key", "value"]);
        assert_eq!(override_of(decoded(&entries).1), None);
        for (unit, index) in UNITS.iter().zip(0..) {
            let bytes = [&entries[..], &encoded_override(u32::MAX - 1, index)].concat();
            let (found, rest) = decoded(&bytes);
            assert_eq!(found, [Entry::new("key", "value")]);
            let expected = LimitOverride { requests: u32::MAX - 1, unit: *unit };
            assert_eq!(override_of(rest), Some(expected));
            for end in 0..rest.len() {
                assert_eq!(override_of(&rest[..end]), None);
            }
        }
        assert_eq!(override_of(&encoded_override(1, 6)), None);
    }
}
