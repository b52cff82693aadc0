//! Decodes header blocks (RFC 7541, section 6). Owns the dynamic table.
//!
//! A field is borrowed from the table or from the block; only Huffman strings are copied. Once the fields
//! together exceed the caller's limit, none is passed on, and the rest of the block only updates the table:
//! one byte may stand for a field of four thousand, and the work must be bounded by the bytes of the block.

use super::table::{ENTRY_OVERHEAD, Field, Table, Validity};
use super::{huffman, integer};

/// The block is invalid, and so are all after it: COMPRESSION_ERROR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Undecodable;

/// Which fields of a block were passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listed {
    All,
    /// The fields before the one that exceeded the limit.
    TooLarge,
}

/// A larger buffer of a Huffman string is freed.
const SCRATCH_BYTES_MAX: usize = 2 * 1024;

/// Decodes the header blocks of one direction of a connection.
#[derive(Debug)]
pub(crate) struct Decoder {
    table: Table,
    table_size_max: usize,
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Decoder {
    /// A decoder whose table may grow to `table_size_max`, the size announced to the peer.
    pub(crate) fn new(table_size_max: usize) -> Decoder {
        Decoder {
            table: Table::new(table_size_max),
            table_size_max,
            name: Vec::new(),
            value: Vec::new(),
        }
    }

    /// Decodes one whole block. Its fields are passed on one by one until they exceed `list_bytes_max`
    /// together, in the measure of MAX_HEADER_LIST_SIZE.
    pub(crate) fn decode(
        &mut self,
        block: &[u8],
        list_bytes_max: usize,
        mut take: impl FnMut(Field<'_>),
    ) -> Result<Listed, Undecodable> {
        let mut input = block;
        let mut list = List { listed: Listed::All, room: list_bytes_max };
        self.size_updates(&mut input)?;
        while let Some(&first) = input.first() {
            if first & 0x80 != 0 {
                let index = integer::decode(7, &mut input).ok_or(Undecodable)?;
                let field = self.table.get(index).ok_or(Undecodable)?;
                if list.has_room_for(field.size()) {
                    take(field);
                }
            } else if first & 0x40 != 0 {
                self.literal(6, Keep::InTable, &mut input, &mut list, &mut take)?;
            } else if first & 0x20 != 0 {
                // A size update may only begin a block.
                return Err(Undecodable);
            } else {
                self.literal(4, Keep::Nowhere, &mut input, &mut list, &mut take)?;
            }
        }
        self.shrink(SCRATCH_BYTES_MAX);
        Ok(list.listed)
    }

    /// Bytes of memory, by capacity.
    #[inline]
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.table.capacity_bytes() + self.name.capacity() + self.value.capacity()
    }

    /// Frees the Huffman buffers for names and values that are larger than this.
    #[inline]
    pub(crate) fn shrink(&mut self, bytes: usize) {
        for scratch in [&mut self.name, &mut self.value] {
            if scratch.capacity() > bytes {
                scratch.clear();
                scratch.shrink_to(bytes);
            }
        }
    }

    /// Increases with every change of the table. While it is the same, equal blocks mean equal fields.
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

    fn literal<'i>(
        &mut self,
        prefix_bits: u32,
        keep: Keep,
        input: &mut &'i [u8],
        list: &mut List,
        take: &mut impl FnMut(Field<'_>),
    ) -> Result<(), Undecodable> {
        let mut rest: &'i [u8] = input;
        let index = integer::decode(prefix_bits, &mut rest).ok_or(Undecodable)?;
        if index == 0 {
            let name = string(&mut rest, &mut self.name)?;
            let value = string(&mut rest, &mut self.value)?;
            let is_listed = list.has_room_for(name.len() + value.len() + ENTRY_OVERHEAD);
            if is_listed || keep == Keep::InTable {
                let name_validity = Validity::of_name(name);
                let field = Field { name, value, validity: name_validity.with_value(value) };
                if is_listed {
                    take(field);
                }
                if keep == Keep::InTable {
                    self.table.insert(field, name_validity);
                }
            }
        } else {
            let (name, name_validity) = self.table.name(index).ok_or(Undecodable)?;
            let value = string(&mut rest, &mut self.value)?;
            let is_listed = list.has_room_for(name.len() + value.len() + ENTRY_OVERHEAD);
            if is_listed || keep == Keep::InTable {
                let validity = name_validity.with_value(value);
                if is_listed {
                    take(Field { name, value, validity });
                }
                // After the field is passed on: its name may belong to an entry that this one evicts.
                if keep == Keep::InTable {
                    self.table.insert_named(index, value, validity);
                }
            }
        }
        *input = rest;
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn table(&self) -> &Table {
        &self.table
    }
}

/// The size of the list of fields so far.
#[derive(Debug)]
struct List {
    listed: Listed,
    room: usize,
}

impl List {
    /// Counts a field. False for the first one beyond the limit, and for all after it.
    #[inline]
    fn has_room_for(&mut self, bytes: usize) -> bool {
        if let Some(room) = self.room.checked_sub(bytes) {
            self.room = room;
            return true;
        }
        // Every size is above zero, so all later fields are refused too.
        (self.room, self.listed) = (0, Listed::TooLarge);
        false
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    InTable,
    Nowhere,
}

/// A string literal (section 5.2): borrowed from the input, or decoded into `decoded`.
fn string<'a, 'i: 'a>(
    input: &mut &'i [u8],
    decoded: &'a mut Vec<u8>,
) -> Result<&'a [u8], Undecodable> {
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
