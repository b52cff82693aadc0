//! Response headers, messages and trailers. All header blocks are constant except for the status.
//!
//! The blocks use the static table only. Indexing them in the peer's dynamic table would save some thirty
//! bytes a call, and cost a state that the peer's settings may change. So the first block sets the table size
//! to 0: a peer that shrinks its table requires such an update before the next block (RFC 7541, section 4.2),
//! and none can be required after this one.

use crate::frame::{self, END_HEADERS, END_STREAM, HEAD_BYTES};
use crate::hpack::encode::{Indexing, literal, size_update};
use crate::hpack::integer;
use crate::outgoing::Outgoing;
use crate::status::{self, Status};

/// `:status: 200`, `content-type: application/grpc`, with the static table's entries 8 and 31.
const HEADERS_BLOCK: &[u8; 20] = b"\x88\x0f\x10\x10application/grpc";
/// `grpc-status: 0`.
const OK_BLOCK: &[u8; 15] = b"\x00\x0bgrpc-status\x010";

/// The headers of a response that has messages.
#[inline]
pub(super) fn headers(stream: u32, outgoing: &mut Outgoing) {
    if outgoing.begins_blocks() {
        return frame::write_headers(stream, END_HEADERS, outgoing.output.buffer(), |buffer| {
            size_update(0, buffer);
            buffer.extend_from_slice(HEADERS_BLOCK);
        });
    }
    let mut bytes = [0; HEAD_BYTES + HEADERS_BLOCK.len()];
    let head = frame::head(HEADERS_BLOCK.len(), frame::HEADERS, END_HEADERS, stream);
    let (front, back) = bytes.split_at_mut(HEAD_BYTES);
    front.copy_from_slice(&head);
    back.copy_from_slice(HEADERS_BLOCK);
    outgoing.output.buffer().extend_from_slice(&bytes);
}

/// A message. Its bytes were claimed from the windows.
#[inline]
pub(super) fn message(stream: u32, prefix: &[u8], message: &[u8], outgoing: &mut Outgoing) {
    let buffer = outgoing.output.buffer();
    let length = prefix.len() + message.len();
    buffer.reserve(HEAD_BYTES + length + HEAD_BYTES + OK_BLOCK.len());
    buffer.extend_from_slice(&frame::head(length, frame::DATA, 0, stream));
    buffer.extend_from_slice(prefix);
    buffer.extend_from_slice(message);
}

/// The trailers of a successful call.
#[inline]
pub(super) fn trailers_ok(stream: u32, outgoing: &mut Outgoing) {
    let mut bytes = [0; HEAD_BYTES + OK_BLOCK.len()];
    let head = frame::head(OK_BLOCK.len(), frame::HEADERS, END_HEADERS | END_STREAM, stream);
    let (front, back) = bytes.split_at_mut(HEAD_BYTES);
    front.copy_from_slice(&head);
    back.copy_from_slice(OK_BLOCK);
    outgoing.output.buffer().extend_from_slice(&bytes);
}

/// The position of a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// The only block of the response.
    TrailersOnly,
    /// After headers.
    Trailers,
}

/// Additional fields of a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Advice {
    None,
    /// The accepted encodings of messages.
    Encodings,
}

/// Ends a call with a status.
pub(super) fn status(
    stream: u32,
    status: &Status,
    ending: Ending,
    advice: Advice,
    outgoing: &mut Outgoing,
) {
    last_block(stream, outgoing, |buffer| {
        if ending == Ending::TrailersOnly {
            buffer.extend_from_slice(HEADERS_BLOCK);
        }
        // `grpc-status: `, then one or two digits.
        buffer.extend_from_slice(b"\x00\x0bgrpc-status");
        let code = status.code as u8;
        if code < 10 {
            buffer.extend_from_slice(&[1, b'0' + code]);
        } else {
            buffer.extend_from_slice(&[2, b'0' + code / 10, b'0' + code % 10]);
        }
        if !status.message.is_empty() {
            buffer.extend_from_slice(b"\x00\x0cgrpc-message");
            let length = status::encoded_bytes(&status.message);
            integer::encode(7, 0, length, buffer);
            status::encode(&status.message, buffer);
        }
        if advice == Advice::Encodings {
            literal(Indexing::Without, b"grpc-accept-encoding", b"identity", buffer);
        }
    });
}

/// Ends a request that is not gRPC with an HTTP status (three digits).
pub(super) fn http_status(stream: u32, status: [u8; 3], outgoing: &mut Outgoing) {
    // `:status` by its static table entry, without indexing.
    last_block(stream, outgoing, |buffer| {
        buffer.extend_from_slice(&[0x08, 3]);
        buffer.extend_from_slice(&status);
        if status == *b"405" {
            // The allowed methods must be listed (RFC 9110, section 15.5.6).
            literal(Indexing::Without, b"allow", b"POST", buffer);
        }
    });
}

/// The last block of a stream, which may be the connection's first block.
fn last_block(stream: u32, outgoing: &mut Outgoing, write: impl FnOnce(&mut Vec<u8>)) {
    let is_first = outgoing.begins_blocks();
    // Every block fits into one frame: statuses are bounded.
    let flags = END_HEADERS | END_STREAM;
    frame::write_headers(stream, flags, outgoing.output.buffer(), |buffer| {
        if is_first {
            size_update(0, buffer);
        }
        write(buffer);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Trailers nearly always follow.
    #[test]
    fn an_answer_reserves_exactly_its_bytes_and_those_of_its_trailers() {
        let mut outgoing = Outgoing::new();
        message(1, &crate::message::prefix(1000), &[0; 1000], &mut outgoing);
        trailers_ok(1, &mut outgoing);
        assert_eq!(outgoing.output.capacity_bytes(), outgoing.output.len());
    }
}
