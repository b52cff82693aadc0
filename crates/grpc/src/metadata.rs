//! The metadata of a call: its header fields, in one buffer that is used again and again.

use crate::hpack::Field;

/// The metadata of a call: what the filter sends, among others. Pseudo-headers are not among it.
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
    /// The first value of this name (lower case).
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter().find(|(found, _)| *found == name.as_bytes()).map(|(_, value)| value)
    }

    /// All names (lower case) and values, in the order of their arrival.
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

    /// The memory that it has.
    #[inline]
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.bytes.capacity() + self.spans.capacity() * size_of::<Span>()
    }
}
