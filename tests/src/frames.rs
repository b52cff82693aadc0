//! HTTP/2 by hand, for peers that no library would be.

use crate::rls::request;
use prost::Message;
use tidegate_wire::{RLS_METHOD, RLS_SERVICE};

/// A kind of frame, as all up to [`CONTINUATION`].
pub const DATA: u8 = 0;
/// A kind of frame.
pub const HEADERS: u8 = 1;
/// A kind of frame.
pub const PRIORITY: u8 = 2;
/// A kind of frame.
pub const RST_STREAM: u8 = 3;
/// A kind of frame.
pub const SETTINGS: u8 = 4;
/// A kind of frame.
pub const PING: u8 = 6;
/// A kind of frame.
pub const GOAWAY: u8 = 7;
/// A kind of frame.
pub const WINDOW_UPDATE: u8 = 8;
/// A kind of frame.
pub const CONTINUATION: u8 = 9;
/// A flag of DATA and HEADERS.
pub const END_STREAM: u8 = 1;
/// A flag of HEADERS and CONTINUATION.
pub const END_HEADERS: u8 = 4;

/// The newest entry of the dynamic table, as a field.
pub const NEWEST: u8 = 0xbe;

/// A frame.
#[derive(Debug)]
pub struct Frame {
    /// Such as [`DATA`].
    pub kind: u8,
    /// Such as [`END_STREAM`].
    pub flags: u8,
    /// 0 for the connection.
    pub stream: u32,
    /// What follows the head.
    pub payload: Vec<u8>,
}

impl Frame {
    /// Its payload, as far as that is text. The endpoint sends its strings plainly.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.payload).into_owned()
    }
}

/// Takes off the first frame, if it is whole.
pub fn cut(bytes: &mut Vec<u8>) -> Option<Frame> {
    let head = *bytes.first_chunk::<9>()?;
    let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
    let payload = bytes.get(9..9 + length)?.to_vec();
    bytes.drain(..9 + length);
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    Some(Frame { kind: head[3], flags: head[4], stream, payload })
}

/// The kind and the stream of each whole frame.
#[must_use]
pub fn kinds(bytes: &[u8]) -> Vec<(u8, u32)> {
    let mut bytes = bytes.to_vec();
    let frames = std::iter::from_fn(|| cut(&mut bytes));
    frames.map(|frame| (frame.kind, frame.stream)).collect()
}

/// One frame.
#[must_use]
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The first bytes of a client, which takes all answers that there are.
#[must_use]
pub fn preface() -> Vec<u8> {
    preface_with(&[])
}

/// The same with these settings.
#[must_use]
pub fn preface_with(settings: &[(u16, u32)]) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(self::settings(settings));
    bytes.extend(window_update(0, i32::MAX as u32 - 65_535));
    bytes
}

/// A frame of settings, each with its number.
#[must_use]
pub fn settings(pairs: &[(u16, u32)]) -> Vec<u8> {
    let pair =
        |(name, value): &(u16, u32)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
    frame(SETTINGS, 0, 0, &pairs.iter().flat_map(pair).collect::<Vec<u8>>())
}

/// Gives a window to a stream, or with 0 to the connection.
#[must_use]
pub fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

/// Ends a stream with CANCEL.
#[must_use]
pub fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())
}

/// The header block of a call.
#[must_use]
pub fn block(path: &str) -> Vec<u8> {
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
#[must_use]
pub fn rls_block() -> Vec<u8> {
    block(&format!("/{RLS_SERVICE}/{RLS_METHOD}"))
}

/// A field that the table keeps.
#[must_use]
pub fn kept(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut block = vec![0x40];
    text(&mut block, &[], name);
    text(&mut block, &[], value);
    block
}

/// Appends a string of any length.
pub fn text(block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
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
#[must_use]
pub fn headers(stream: u32, flags: u8, block: &[u8]) -> Vec<u8> {
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
#[must_use]
pub fn envelope(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("short");
    [&[0], &length.to_be_bytes()[..], message].concat()
}

/// The beginning of a rate limit call.
#[must_use]
pub fn call(stream: u32) -> Vec<u8> {
    headers(stream, 0, &rls_block())
}

/// The message of a rate limit call, which ends it.
#[must_use]
pub fn message(stream: u32) -> Vec<u8> {
    let message = request("test", &[("free", "a")]).encode_to_vec();
    frame(DATA, END_STREAM, stream, &envelope(&message))
}

/// A whole rate limit call.
#[must_use]
pub fn whole_call(stream: u32) -> Vec<u8> {
    [call(stream), message(stream)].concat()
}
