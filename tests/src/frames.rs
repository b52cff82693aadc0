//! HTTP/2 by hand, for peers that no library would be.

use prost::Message;
use tidegate_tests::rls::request;
use tidegate_wire::{RLS_METHOD, RLS_SERVICE};

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// The newest entry of the dynamic table, as a field.
pub(crate) const NEWEST: u8 = 0xbe;

/// A frame.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    /// What it says, as far as that is text. The endpoint sends its strings plainly.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.payload).into_owned()
    }
}

/// Takes the first frame off, if it is whole.
pub(crate) fn cut(bytes: &mut Vec<u8>) -> Option<Frame> {
    let head = *bytes.first_chunk::<9>()?;
    let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
    let payload = bytes.get(9..9 + length)?.to_vec();
    bytes.drain(..9 + length);
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    Some(Frame { kind: head[3], flags: head[4], stream, payload })
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// What a client says first; it takes all answers that there are.
pub(crate) fn preface() -> Vec<u8> {
    preface_with(&[])
}

/// The same with these settings.
pub(crate) fn preface_with(settings: &[(u16, u32)]) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(self::settings(settings));
    bytes.extend(window_update(0, i32::MAX as u32 - 65_535));
    bytes
}

pub(crate) fn settings(pairs: &[(u16, u32)]) -> Vec<u8> {
    let pair =
        |(name, value): &(u16, u32)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
    frame(SETTINGS, 0, 0, &pairs.iter().flat_map(pair).collect::<Vec<u8>>())
}

pub(crate) fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

pub(crate) fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())
}

/// The header block of a call.
pub(crate) fn block(path: &str) -> Vec<u8> {
    // Indexes of HPACK's static table: POST is 3, http 6, the names :path 4, :authority 1 and
    // content-type 31.
    let mut block = vec![0x83, 0x86];
    text(&mut block, &[0x04], path.as_bytes());
    text(&mut block, &[0x01], b"test");
    text(&mut block, &[0x0f, 31 - 15], b"application/grpc");
    text(&mut block, &[0x00, 2, b't', b'e'], b"trailers");
    block
}

/// The header block of a rate limit call.
pub(crate) fn rls_block() -> Vec<u8> {
    block(&format!("/{RLS_SERVICE}/{RLS_METHOD}"))
}

/// A field that the table keeps.
pub(crate) fn kept(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut block = vec![0x40];
    text(&mut block, &[], name);
    text(&mut block, &[], value);
    block
}

/// Appends a string of any length.
pub(crate) fn text(block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    block.extend(name);
    if value.len() < 127 {
        block.push(value.len() as u8);
    } else {
        block.push(127);
        let mut rest = value.len() - 127;
        while rest >= 128 {
            block.push((rest % 128) as u8 | 128);
            rest /= 128;
        }
        block.push(rest as u8);
    }
    block.extend(value);
}

/// A block of any length, in frames.
pub(crate) fn headers(stream: u32, flags: u8, block: &[u8]) -> Vec<u8> {
    let (first, rest) = block.split_at(block.len().min(16_384));
    if rest.is_empty() {
        return frame(HEADERS, flags | END_HEADERS, stream, first);
    }
    let mut bytes = frame(HEADERS, flags, stream, first);
    let parts = rest.chunks(16_384).count();
    for (part, chunk) in rest.chunks(16_384).enumerate() {
        let flags = if part + 1 == parts { END_HEADERS } else { 0 };
        bytes.extend(frame(CONTINUATION, flags, stream, chunk));
    }
    bytes
}

/// A message in its envelope.
pub(crate) fn envelope(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("short");
    [&[0], &length.to_be_bytes()[..], message].concat()
}

/// The beginning of a rate limit call.
pub(crate) fn call(stream: u32) -> Vec<u8> {
    headers(stream, 0, &rls_block())
}

/// A whole rate limit call.
pub(crate) fn whole_call(stream: u32) -> Vec<u8> {
    let message = request("test", &[("free", "a")]).encode_to_vec();
    [call(stream), frame(DATA, END_STREAM, stream, &envelope(&message))].concat()
}
