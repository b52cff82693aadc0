//! Header compression (RFC 7541): a full decoder, and the parts of an encoder that this crate needs.

mod decode;
pub(crate) mod encode;
mod huffman;
pub(crate) mod integer;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use decode::{Decoder, Listed, Undecodable};
pub(crate) use table::{ENTRY_OVERHEAD, Field, Validity};

/// The initial table size (RFC 9113, section 6.5.2).
pub(crate) const TABLE_SIZE_INITIAL: usize = 4096;
