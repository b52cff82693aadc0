//! Values in dynamic metadata, with their types: the bytes of Envoy's `Metadata` message, searched
//! in place.
//!
//! Envoy hands out a single value without its type, so conditions read the message as a whole. A
//! search passes over the fields of one message and skips their contents. Malformed bytes count as
//! absent.

use std::ops::Range;

/// A value of a `google.protobuf.Value`. Ranges are within the searched bytes.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Found {
    Null,
    Bool(bool),
    Number(f64),
    Text(Range<usize>),
    /// A `ListValue`.
    List(Range<usize>),
    /// A `Struct`.
    Map(Range<usize>),
}

/// The Struct of a namespace in a `Metadata`: a map (1) of Structs.
pub(super) fn namespace(bytes: &[u8], within: Range<usize>, name: &[u8]) -> Option<Range<usize>> {
    value_of(bytes, within, name)
}

/// The value of a key in a Struct: a map (1) of Values.
pub(super) fn field(bytes: &[u8], within: Range<usize>, name: &[u8]) -> Option<Found> {
    found(bytes, value_of(bytes, within, name)?)
}

/// An element of a list.
pub(super) fn element(bytes: &[u8], within: Range<usize>, index: usize) -> Option<Found> {
    found(bytes, items(bytes, within).nth(index)?)
}

/// The elements of a list.
pub(super) fn elements(bytes: &[u8], within: Range<usize>) -> impl Iterator<Item = Found> {
    items(bytes, within).map_while(move |item| found(bytes, item))
}

/// The number of elements of a list, or of keys of a map.
pub(super) fn len(bytes: &[u8], within: Range<usize>) -> usize {
    items(bytes, within).count()
}

/// The contents of all fields with the number 1: the entries of a map, or the elements of a list.
fn items(bytes: &[u8], within: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    fields(bytes, within).filter_map(|field| match field {
        (1, Content::Bytes(range)) => Some(range),
        _ => None,
    })
}

/// The value (2) of the entry with this key (1).
fn value_of(bytes: &[u8], within: Range<usize>, name: &[u8]) -> Option<Range<usize>> {
    let entry = |entry: Range<usize>| {
        let (mut is_named, mut value) = (name.is_empty(), 0..0);
        for field in fields(bytes, entry) {
            match field {
                (1, Content::Bytes(key)) => is_named = bytes.get(key)? == name,
                (2, Content::Bytes(found)) => value = found,
                _ => {}
            }
        }
        is_named.then_some(value)
    };
    items(bytes, within).find_map(entry)
}

/// A `Value`: a oneof, whose last field counts.
fn found(bytes: &[u8], within: Range<usize>) -> Option<Found> {
    let mut found = Found::Null;
    for field in fields(bytes, within) {
        found = match field {
            (1, Content::Number(_)) => Found::Null,
            (2, Content::Fixed64(bits)) => Found::Number(f64::from_bits(bits)),
            (3, Content::Bytes(range)) => Found::Text(range),
            (4, Content::Number(flag)) => Found::Bool(flag != 0),
            (5, Content::Bytes(range)) => Found::Map(range),
            (6, Content::Bytes(range)) => Found::List(range),
            // Of another type than the field has, or of a later version.
            (1..=6, _) => return None,
            _ => found,
        };
    }
    Some(found)
}

/// The content of a field, by its wire type.
enum Content {
    Number(u64),
    Fixed64(u64),
    Bytes(Range<usize>),
    Other,
}

/// The fields of a message with their numbers, up to the first that is malformed.
fn fields(bytes: &[u8], within: Range<usize>) -> impl Iterator<Item = (u64, Content)> {
    let Range { mut start, end } = within;
    let message = bytes.get(..end).unwrap_or_default();
    std::iter::from_fn(move || {
        let tag = varint(message, &mut start)?;
        let content = match tag & 7 {
            0 => Content::Number(varint(message, &mut start)?),
            1 => {
                let taken = taken(message, &mut start, 8)?;
                let bits = message.get(taken)?.try_into().ok()?;
                Content::Fixed64(u64::from_le_bytes(bits))
            }
            2 => {
                let length = usize::try_from(varint(message, &mut start)?).ok()?;
                Content::Bytes(taken(message, &mut start, length)?)
            }
            5 => {
                taken(message, &mut start, 4)?;
                Content::Other
            }
            // Groups, which no Struct has, and invalid wire types.
            _ => return None,
        };
        Some((tag >> 3, content))
    })
}

fn taken(message: &[u8], start: &mut usize, length: usize) -> Option<Range<usize>> {
    let end = start.checked_add(length).filter(|end| *end <= message.len())?;
    let taken = *start..end;
    *start = end;
    Some(taken)
}

fn varint(message: &[u8], start: &mut usize) -> Option<u64> {
    let mut number = 0;
    // Ten times seven bits hold every 64-bit number.
    for shift in (0..70).step_by(7) {
        let byte = message.get(*start)?;
        *start = start.saturating_add(1);
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
