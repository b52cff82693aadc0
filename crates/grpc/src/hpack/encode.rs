//! Encodes header fields (RFC 7541, section 6). Strings are sent plainly: what is sent often is
//! encoded once and kept, so a shorter code would save nothing here.

use super::integer;

/// What the peer's table shall do with a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Indexing {
    /// Keep it: the newest entry from now on.
    Add,
    /// Forget it.
    Without,
}

/// Appends a reference to an entry of a table.
pub(crate) fn indexed(index: usize, output: &mut Vec<u8>) {
    integer::encode(7, 0x80, index, output);
}

/// Appends a change of the table's size.
pub(crate) fn size_update(size: usize, output: &mut Vec<u8>) {
    integer::encode(5, 0x20, size, output);
}

/// Appends a field by its name and value.
pub(crate) fn literal(indexing: Indexing, name: &[u8], value: &[u8], output: &mut Vec<u8>) {
    output.push(match indexing {
        Indexing::Add => 0x40,
        Indexing::Without => 0x00,
    });
    string(name, output);
    string(value, output);
}

/// Appends a string literal.
pub(crate) fn string(bytes: &[u8], output: &mut Vec<u8>) {
    integer::encode(7, 0x00, bytes.len(), output);
    output.extend_from_slice(bytes);
}
