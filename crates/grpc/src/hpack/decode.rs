//! Decodes header blocks (RFC 7541, section 6). Owns the dynamic table.
//!
//! A field is handed on where it lies: in the table, or in the block. Only Huffman strings are
//! copied.

use super::table::{Field, Table};
use super::{huffman, integer};

/// The block cannot be decoded, and none after it: COMPRESSION_ERROR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Undecodable;

/// Decodes the header blocks of one direction of a connection.
#[derive(Debug)]
pub(crate) struct Decoder {
    table: Table,
    table_size_max: usize,
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Decoder {
    /// A decoder whose table may grow to `table_size_max`, which is what the peer was told.
    pub(crate) fn new(table_size_max: usize) -> Decoder {
        Decoder {
            table: Table::new(table_size_max),
            table_size_max,
            name: Vec::new(),
            value: Vec::new(),
        }
    }

    /// Decodes one whole block, field by field.
    pub(crate) fn decode(
        &mut self,
        block: &[u8],
        mut take: impl FnMut(Field<'_>),
    ) -> Result<(), Undecodable> {
        let mut input = block;
        self.size_updates(&mut input)?;
        while let Some(&first) = input.first() {
            if first & 0x80 != 0 {
                let index = integer::decode(7, &mut input).ok_or(Undecodable)?;
                take(self.table.get(index).ok_or(Undecodable)?);
            } else if first & 0x40 != 0 {
                self.literal(6, Keep::InTable, &mut input, &mut take)?;
            } else if first & 0x20 != 0 {
                // A size update may only be at the beginning.
                return Err(Undecodable);
            } else {
                self.literal(4, Keep::Nowhere, &mut input, &mut take)?;
            }
        }
        Ok(())
    }

    /// Grows with every change of the table: equal blocks mean equal fields as long as this holds.
    pub(crate) fn changes(&self) -> u64 {
        self.table.changes()
    }

    fn size_updates(&mut self, input: &mut &[u8]) -> Result<(), Undecodable> {
        while input.first().is_some_and(|first| first & 0xe0 == 0x20) {
            let size = integer::decode(5, input).ok_or(Undecodable)?;
            if size > self.table_size_max {
                return Err(Undecodable);
            }
            self.table.resize(size);
        }
        Ok(())
    }

    fn literal(
        &mut self,
        prefix_bits: u32,
        keep: Keep,
        input: &mut &[u8],
        take: &mut impl FnMut(Field<'_>),
    ) -> Result<(), Undecodable> {
        let mut rest: &[u8] = input;
        let index = integer::decode(prefix_bits, &mut rest).ok_or(Undecodable)?;
        let name = if index == 0 {
            string(&mut rest, &mut self.name)?
        } else {
            // A copy, because the insertion may evict the entry that the name is of.
            self.name.clear();
            self.name.extend_from_slice(self.table.get(index).ok_or(Undecodable)?.name);
            &self.name
        };
        let value = string(&mut rest, &mut self.value)?;
        let taken = input.len() - rest.len();
        *input = input.get(taken..).unwrap_or_default();
        let field = Field::new(name, value);
        if keep == Keep::InTable {
            self.table.insert(field);
        }
        take(field);
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn table(&self) -> &Table {
        &self.table
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    InTable,
    Nowhere,
}

/// A string literal (section 5.2): a part of the input, or decoded into `decoded`.
fn string<'a>(input: &mut &'a [u8], decoded: &'a mut Vec<u8>) -> Result<&'a [u8], Undecodable> {
    let is_huffman = input.first().ok_or(Undecodable)? & 0x80 != 0;
    let bytes = integer::decode(7, input).ok_or(Undecodable)?;
    let (string, rest) = input.split_at_checked(bytes).ok_or(Undecodable)?;
    *input = rest;
    if !is_huffman {
        return Ok(string);
    }
    decoded.clear();
    huffman::decode(string, decoded).ok_or(Undecodable)?;
    Ok(decoded)
}
