//! Encodes answers directly, to the same bytes as prost does with [`response_to_wire`].
//!
//! [`response_to_wire`]: crate::response_to_wire

use crate::mapping::{code, reset_to_wire, struct_to_wire, unit_to_wire};
use crate::rls::HeaderValue;
use prost::Message;
use tidegate_core::{Answer, Lease, LimitView, Status, StatusDetails, Verdict};

/// Wire types.
const VARINT: u8 = 0;
pub(crate) const BYTES: u8 = 2;

/// Appends an encoded answer. `headers` are for the response to the client.
pub fn encode_answer(answer: &Answer, headers: Vec<HeaderValue>, bytes: &mut Vec<u8>) {
    number(1, i32::from(code(answer.verdict)) as u64, bytes);
    for status in &answer.statuses {
        message(2, bytes, |bytes| status_to(status, bytes));
    }
    for header in headers {
        message(3, bytes, |bytes| {
            text(1, &header.key, bytes);
            text(2, &header.value, bytes);
        });
    }
    if let Some(metadata) = &answer.metadata {
        message(6, bytes, |bytes| struct_to_wire(metadata).encode_raw(bytes));
    }
}

fn status_to(status: &Status, bytes: &mut Vec<u8>) {
    number(1, i32::from(code(status.verdict)) as u64, bytes);
    if let Some(limit) = &status.limit {
        message(2, bytes, |bytes| limit_to(limit, bytes));
    }
    number(3, status.remaining.into(), bytes);
    if status.limit.is_some() {
        let reset = reset_to_wire(status, status.reset);
        message(4, bytes, |bytes| time(reset.as_nanos(), bytes));
    }
    if let Some(lease) = &status.lease {
        message(5, bytes, |bytes| lease_to(lease, bytes));
    }
    if let Some(details) = &status.details {
        details_to(status, details, bytes);
    }
}

/// The fields 1001 to 1003, whose tags take two bytes.
#[cold]
fn details_to(status: &Status, details: &StatusDetails, bytes: &mut Vec<u8>) {
    for further in &details.further {
        varint(1001 << 3 | u64::from(BYTES), bytes);
        with_length(bytes, |bytes| {
            message(1, bytes, |bytes| limit_to(&further.limit, bytes));
            number(2, further.remaining.into(), bytes);
            let reset = reset_to_wire(status, further.reset);
            message(3, bytes, |bytes| time(reset.as_nanos(), bytes));
            number(4, (further.verdict == Verdict::Deny).into(), bytes);
        });
    }
    if details.without_shadow == Verdict::Deny {
        varint(1002 << 3 | u64::from(VARINT), bytes);
        bytes.push(1);
    }
    if details.is_uncounted {
        varint(1003 << 3 | u64::from(VARINT), bytes);
        bytes.push(1);
    }
}

fn limit_to(limit: &LimitView, bytes: &mut Vec<u8>) {
    number(1, limit.requests.into(), bytes);
    number(2, i32::from(unit_to_wire(limit.unit)) as u64, bytes);
    text(3, &limit.name, bytes);
}

fn lease_to(lease: &Lease, bytes: &mut Vec<u8>) {
    number(1, lease.tokens.into(), bytes);
    message(2, bytes, |bytes| time(lease.valid_until.as_nanos(), bytes));
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.extend_from_slice(&[3 << 3 | BYTES, 16]);
    let digit = |place: u32| DIGITS[(lease.id >> (60 - 4 * place) & 15) as usize];
    bytes.extend((0..16).map(digit));
}

/// A duration or a timestamp.
fn time(nanos: u64, bytes: &mut Vec<u8>) {
    number(1, nanos / 1_000_000_000, bytes);
    number(2, nanos % 1_000_000_000, bytes);
}

/// A number; zero is the default, and left out.
#[inline]
pub(crate) fn number(tag: u8, number: u64, bytes: &mut Vec<u8>) {
    if number != 0 {
        bytes.push(tag << 3 | VARINT);
        varint(number, bytes);
    }
}

#[inline]
pub(crate) fn text(tag: u8, text: &str, bytes: &mut Vec<u8>) {
    if !text.is_empty() {
        bytes.push(tag << 3 | BYTES);
        varint(text.len() as u64, bytes);
        bytes.extend_from_slice(text.as_bytes());
    }
}

/// A message. Its length is known when it is written, and mostly takes one byte.
#[inline]
pub(crate) fn message(tag: u8, bytes: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    bytes.push(tag << 3 | BYTES);
    with_length(bytes, write);
}

/// Bytes after their length.
#[inline]
pub(crate) fn with_length(bytes: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    bytes.push(0);
    let start = bytes.len();
    write(bytes);
    let len = bytes.len() - start;
    if let Some(place) = bytes.get_mut(start - 1) {
        *place = (len & 0x7f) as u8;
    }
    if len > 0x7f {
        lengthen(len, start, bytes);
    }
}

#[cold]
fn lengthen(len: usize, start: usize, bytes: &mut Vec<u8>) {
    if let Some(place) = bytes.get_mut(start - 1) {
        *place |= 0x80;
    }
    let mut rest = Vec::new();
    varint((len >> 7) as u64, &mut rest);
    bytes.splice(start..start, rest);
}

#[inline]
pub(crate) fn varint(mut number: u64, bytes: &mut Vec<u8>) {
    while number > 0x7f {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}
