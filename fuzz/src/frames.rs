//! HTTP/2 conversations built from the choices of an input: frames of every kind, valid and invalid, and any
//! number of copies.

use crate::header_blocks;
use crate::input::Input;

/// The most bytes of a conversation.
const CONVERSATION_BYTES_MAX: usize = 192 * 1024;

const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Appends frames until the input ends.
pub(crate) fn build(input: &mut Input<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut last = *input;
    let mut stream = 1;
    while !input.is_empty() && bytes.len() < CONVERSATION_BYTES_MAX {
        let begun = *input;
        if input.byte() % 16 == 15 {
            let (times, step) = (input.byte(), input.one_of(&[0, 2]));
            for _ in 0..times {
                if bytes.len() > CONVERSATION_BYTES_MAX {
                    break;
                }
                stream += step;
                one(&mut last.clone(), &mut stream, &mut bytes);
            }
            continue;
        }
        *input = begun;
        one(input, &mut stream, &mut bytes);
        last = begun;
    }
    bytes
}

/// One frame, or the frames of one header block, on `stream` or on another one.
fn one(input: &mut Input<'_>, stream: &mut u32, bytes: &mut Vec<u8>) {
    let kind = input.byte() % 16;
    let on = match input.byte() {
        0..=199 => *stream,
        200..=229 => {
            *stream += 2;
            *stream
        }
        other => u32::from(other - 230),
    };
    match kind {
        0..=3 => headers(input, on, bytes),
        4..=7 => data(input, on, bytes),
        8 => frame(8, 0, on, &u32::from(input.word()).to_be_bytes(), bytes),
        9 => frame(
            8,
            0,
            0,
            &(u32::from(input.word()) << input.one_of(&[0, 8, 16])).to_be_bytes(),
            bytes,
        ),
        10 => frame(3, 0, on, &u32::from(input.byte()).to_be_bytes(), bytes),
        11 => settings(input, bytes),
        12 => frame(6, input.one_of(&[0, 1]), 0, &input.long().to_be_bytes(), bytes),
        13 => {
            let last = u32::from(input.byte());
            frame(7, 0, 0, &[last.to_be_bytes(), [0; 4]].concat(), bytes);
        }
        14 => frame(input.byte(), input.byte(), on, input.short(), bytes),
        _ => bytes.extend_from_slice(input.short()),
    }
}

fn headers(input: &mut Input<'_>, stream: u32, bytes: &mut Vec<u8>) {
    let end = if input.flag() { END_STREAM } else { 0 };
    let style = input.byte() % 8;
    let mut block = Vec::new();
    header_blocks::build(input, &mut block);
    block.truncate(header_blocks::BLOCK_BYTES_MAX);
    match style {
        0 => {
            let (first, rest) = block.split_at(usize::from(input.word()).min(block.len()));
            frame(1, end, stream, first, bytes);
            frame(9, END_HEADERS, stream, rest, bytes);
        }
        // A part for each chunk of the block.
        1 => {
            frame(1, end, stream, &[], bytes);
            for part in block.chunks(usize::from(input.byte()).max(1)) {
                frame(9, 0, stream, part, bytes);
            }
            frame(9, END_HEADERS, stream, &[], bytes);
        }
        2 if block.len() < 16_000 => {
            let padded = [&[3][..], &[0, 0, 0, 0, 7], &block, &[0; 3]].concat();
            frame(1, end | END_HEADERS | PADDED | PRIORITY, stream, &padded, bytes);
        }
        _ => frame(1, end | END_HEADERS, stream, &block, bytes),
    }
}

fn data(input: &mut Input<'_>, stream: u32, bytes: &mut Vec<u8>) {
    let end = if input.flag() { END_STREAM } else { 0 };
    let body = match input.byte() % 6 {
        0 | 1 => envelope(input.short(), 0),
        2 => envelope(&vec![b'm'; usize::from(input.word())], 0),
        // The beginning of a longer message.
        3 => envelope(input.short(), usize::from(input.word())),
        4 => input.short().to_vec(),
        _ => envelope(&[], 0).repeat(usize::from(input.byte())),
    };
    let parts = match input.byte() {
        0 => 1,
        bytes => usize::from(bytes),
    };
    let mut pieces = body.chunks(16_000.min(body.len().div_ceil(parts)).max(1)).peekable();
    if pieces.peek().is_none() {
        frame(0, end, stream, &[], bytes);
    }
    while let Some(piece) = pieces.next() {
        let flags = if pieces.peek().is_none() { end } else { 0 };
        if input.byte() == 255 {
            frame(0, flags | PADDED, stream, &[&[200][..], piece, &[0; 200]].concat(), bytes);
        } else {
            frame(0, flags, stream, piece, bytes);
        }
    }
}

/// A message in gRPC's envelope, whose length includes `missing` more bytes.
pub(crate) fn envelope(message: &[u8], missing: usize) -> Vec<u8> {
    let length = (message.len() + missing) as u32;
    [&[0][..], &length.to_be_bytes(), message].concat()
}

fn settings(input: &mut Input<'_>, bytes: &mut Vec<u8>) {
    let mut payload = Vec::new();
    for _ in 0..input.byte() % 4 {
        payload.extend(u16::from(input.byte() % 9).to_be_bytes());
        let value = u32::from(input.word()) << input.one_of(&[0, 0, 8, 16]);
        payload.extend(value.to_be_bytes());
    }
    frame(4, input.one_of(&[0, 0, 0, 1]), 0, &payload, bytes);
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8], bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
}
