//! The metadata of a call: its header fields, in one reused buffer.

use crate::hpack::Field;

/// The metadata of a call. Contains no pseudo-headers.
#[derive(Debug, Default)]
pub struct Metadata {
    bytes: Vec<u8>,
    spans: Vec<Span>,
}

#[derive(Debug, Clone, Copy)]
struct Span {
    start: usize,
    name_bytes: usize,
    value_bytes: usize,
}

impl Metadata {
    /// The first value of a name (lower case).
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter().find(|(found, _)| *found == name.as_bytes()).map(|(_, value)| value)
    }

    /// All names (lower case) and values, in order of arrival.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.spans.iter().filter_map(|span| {
            let (name, rest) = self.bytes.get(span.start..)?.split_at_checked(span.name_bytes)?;
            Some((name, rest.get(..span.value_bytes)?))
        })
    }

    #[inline]
    pub(crate) fn push(&mut self, field: Field<'_>) {
        self.spans.push(Span {
            start: self.bytes.len(),
            name_bytes: field.name.len(),
            value_bytes: field.value.len(),
        });
        self.bytes.extend_from_slice(field.name);
        self.bytes.extend_from_slice(field.value);
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.spans.clear();
    }

    pub(crate) fn copy_from(&mut self, other: &Metadata) {
        self.bytes.clone_from(&other.bytes);
        self.spans.clone_from(&other.spans);
    }

    /// Bytes of memory, by capacity.
    #[inline]
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.bytes.capacity() + self.spans.capacity() * size_of::<Span>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hpack::Validity;

    fn push(metadata: &mut Metadata, name: &str, value: &str) {
        let (name, value) = (name.as_bytes(), value.as_bytes());
        metadata.push(Field { name, value, validity: Validity::Valid });
    }

    #[test]
    fn fields_are_found_by_name_in_their_order() {
        let mut metadata = Metadata::default();
        assert_eq!(metadata.get("a"), None);
        for (name, value) in [("a", "1"), ("bb", ""), ("a", "2"), ("", "x")] {
            push(&mut metadata, name, value);
        }
        assert_eq!(metadata.get("a"), Some(&b"1"[..]));
        assert_eq!(metadata.get("bb"), Some(&b""[..]));
        assert_eq!((metadata.get("b"), metadata.get("A")), (None, None));
        let all: Vec<_> = metadata.iter().collect();
        let expected: [(&[u8], &[u8]); 4] = [(b"a", b"1"), (b"bb", b""), (b"a", b"2"), (b"", b"x")];
        assert_eq!(all, expected);
        let mut copy = Metadata::default();
        push(&mut copy, "old", "old");
        copy.copy_from(&metadata);
        assert_eq!(copy.iter().collect::<Vec<_>>(), expected);
        let bytes = copy.bytes.capacity() + copy.spans.capacity() * 24;
        assert_eq!(copy.capacity_bytes(), bytes);
        metadata.clear();
        assert_eq!((metadata.get("a"), metadata.iter().count()), (None, 0));
    }
}
