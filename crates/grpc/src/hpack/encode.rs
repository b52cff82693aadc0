//! Encodes header fields (RFC 7541, section 6). Strings are not Huffman-coded: frequent blocks are encoded
//! once and kept, so a shorter code would save nothing here.

use super::integer;

/// How the peer's table treats a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Indexing {
    /// Added as the newest entry.
    Add,
    /// Not added.
    Without,
}

/// Appends a reference to a table entry.
pub(crate) fn indexed(index: usize, output: &mut Vec<u8>) {
    integer::encode(7, 0x80, index, output);
}

/// Appends a change of the table size.
pub(crate) fn size_update(size: usize, output: &mut Vec<u8>) {
    integer::encode(5, 0x20, size, output);
}

/// Appends a field as name and value.
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
