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
