//! The values of formats for a request.
//!
//! A value of any length costs each command a bounded number of steps: a long one is shortened
//! once, and a command with a length reads no more than that.

use super::fact_reader::FactReader;
use super::{VALUE_BYTES_MAX, append_text, cost, shortened};
use crate::config::HITS_MAX;
use crate::config::format::{Command, Format, Piece, Show};
use crate::host::RequestFacts;
use crate::matching::address::without_port;
use std::io::Write;

/// Appends the value of a format as UTF-8; false if it is empty. A command without a value adds
/// nothing, as in Envoy.
pub(super) fn append_format<F: RequestFacts>(
    format: &Format,
    reader: &mut FactReader<'_, F>,
    bytes: &mut Vec<u8>,
) -> bool {
    let start = bytes.len();
    for piece in &format.0 {
        match piece {
            Piece::Text(text) => bytes.extend_from_slice(text.as_bytes()),
            Piece::Command(command) => append_command(command, reader, bytes),
        }
    }
    let value = bytes.get(start..).unwrap_or_default();
    if value.len() > VALUE_BYTES_MAX {
        let short = shortened(value);
        bytes.truncate(start);
        append_text(bytes, &short);
    }
    bytes.len() > start
}

fn append_command<F: RequestFacts>(
    command: &Command,
    reader: &mut FactReader<'_, F>,
    bytes: &mut Vec<u8>,
) {
    let Some(value) = value_of(command, reader) else { return };
    let number = match command.show {
        Show::Bytes | Show::WithoutQuery => return append_text(bytes, value),
        Show::WithoutPort => return append_text(bytes, without_port(value)),
        Show::Whole => whole_of(value).and_then(|number| i64::try_from(number).ok()),
        Show::Metadata => number_of(value),
    };
    let start = bytes.len();
    match (number, value) {
        (Some(number), _) => {
            // Writing to a vector cannot fail.
            let _ = write!(bytes, "{number}");
        }
        (None, [0]) => bytes.extend_from_slice(b"false"),
        (None, [1]) => bytes.extend_from_slice(b"true"),
        (None, text) => return append_text(bytes, text),
    }
    bytes.truncate(start.saturating_add(command.length_max.unwrap_or(usize::MAX)));
}

/// The cost that a command has as its value; none if that is no number.
pub(super) fn cost_of<F: RequestFacts>(
    command: &Command,
    reader: &mut FactReader<'_, F>,
) -> Option<u64> {
    let value = value_of(command, reader)?;
    match command.show {
        Show::Whole => whole_of(value).map(|number| number.min(HITS_MAX)),
        Show::Metadata => cost_of_metadata(value),
        Show::Bytes | Show::WithoutQuery | Show::WithoutPort => cost(value),
    }
}

/// A cost in metadata, where Envoy has a text or a number. The bytes of a number never read as a
/// text with a number: those of all numbers from 1 end in a byte of 63 to 67, and those of 0 are
/// zeros.
pub(super) fn cost_of_metadata(value: &[u8]) -> Option<u64> {
    cost(value).or_else(|| {
        let number = f64::from_le_bytes(value.try_into().ok()?);
        // The cast saturates.
        (0.0..EXACT_MAX).contains(&number).then_some((number.ceil() as u64).min(HITS_MAX))
    })
}

/// Doubles are exact up to 2^53.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// The bytes of a command's value, shortened or cut.
fn value_of<'r, F: RequestFacts>(
    command: &Command,
    reader: &'r mut FactReader<'_, F>,
) -> Option<&'r [u8]> {
    let fact = match &command.or {
        Some(or) if reader.value(&command.fact).is_none() => or,
        _ => &command.fact,
    };
    let Some(length) = command.length_max else {
        return match command.show {
            Show::WithoutQuery => reader.path(fact, VALUE_BYTES_MAX, shortened),
            _ => reader.shortened(fact, VALUE_BYTES_MAX, shortened),
        };
    };
    let value = reader.value(fact)?;
    if command.show == Show::Metadata && number_of(value).is_some() {
        return Some(value);
    }
    let cut = value.get(..length).unwrap_or(value);
    match command.show {
        Show::WithoutQuery => cut.split(|byte| *byte == b'?').next(),
        _ => Some(cut),
    }
}

/// A property that is a number.
fn whole_of(value: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(value.try_into().ok()?))
}

/// A whole number in metadata. No text begins with NUL, unless a client writes it to be taken for a
/// number, which it could write as well.
fn number_of(value: &[u8]) -> Option<i64> {
    let number = f64::from_le_bytes(value.try_into().ok()?);
    let whole = number as i64;
    let is_exact = value.first() == Some(&0) && number.abs() < EXACT_MAX && whole as f64 == number;
    is_exact.then_some(whole)
}
