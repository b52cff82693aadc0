//! HTTP/2 by hand, for peers that no library would be.

use prost::Message;
use tidegate_tests::rls::request;
use tidegate_wire::{RLS_METHOD, RLS_SERVICE};

pub(crate) const HEADERS: u8 = 1;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const DATA: u8 = 0;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// What a client says first; it takes all answers that there are.
pub(crate) fn preface() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    bytes.extend(frame(WINDOW_UPDATE, 0, 0, &(i32::MAX as u32 - 65_535).to_be_bytes()));
    bytes
}

/// The beginning of a rate limit call.
pub(crate) fn call(stream: u32) -> Vec<u8> {
    // Indexes of HPACK's static table: POST is 3, http 6, the names :path 4, :authority 1 and
    // content-type 31.
    let mut block = vec![0x83, 0x86];
    text(&mut block, &[0x04], &format!("/{RLS_SERVICE}/{RLS_METHOD}"));
    text(&mut block, &[0x01], "test");
    text(&mut block, &[0x0f, 31 - 15], "application/grpc");
    text(&mut block, &[0x00, 2, b't', b'e'], "trailers");
    frame(HEADERS, END_HEADERS, stream, &block)
}

fn text(block: &mut Vec<u8>, name: &[u8], value: &str) {
    block.extend(name);
    block.push(u8::try_from(value.len()).expect("short"));
    block.extend(value.as_bytes());
}

/// The message of the call, which ends it.
pub(crate) fn message(stream: u32) -> Vec<u8> {
    let message = request("test", &[("free", "a")]).encode_to_vec();
    let length = u32::try_from(message.len()).expect("short");
    let body = [&[0], &length.to_be_bytes()[..], &message].concat();
    frame(DATA, END_STREAM, stream, &body)
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The kind and the stream of each whole frame.
pub(crate) fn kinds(mut bytes: &[u8]) -> Vec<(u8, u32)> {
    let mut kinds = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<9>() {
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let Some(rest) = rest.get(length..) else { break };
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        kinds.push((head[3], stream));
        bytes = rest;
    }
    kinds
}
