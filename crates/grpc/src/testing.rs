//! Frames for tests, valid and invalid, and a parser for output.

use proptest::prelude::*;

use crate::frame::{self, Head};
use crate::hpack::Decoder;
use crate::hpack::encode::{Indexing, literal};

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    [&frame::head(payload.len(), kind, flags, stream)[..], payload].concat()
}

pub(crate) fn settings(pairs: &[(u16, u32)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::write_settings(pairs, &mut bytes);
    bytes
}

pub(crate) fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    frame(frame::WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

pub(crate) fn reset(stream: u32) -> Vec<u8> {
    frame(frame::RST_STREAM, 0, stream, &8_u32.to_be_bytes())
}

/// The client's preface with empty SETTINGS.
pub(crate) fn greeting() -> Vec<u8> {
    [&frame::PREFACE[..], &settings(&[])].concat()
}

/// A message in its envelope.
pub(crate) fn envelope(message: &[u8]) -> Vec<u8> {
    [&crate::message::prefix(message.len())[..], message].concat()
}

pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        literal(Indexing::Without, name.as_bytes(), value.as_bytes(), &mut block);
    }
    block
}

pub(crate) const REQUEST: [(&str, &str); 5] = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/test.Echo/Echo"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
];

/// The headers of a request to a path.
pub(crate) fn headers_to(path: &str, stream: u32, flags: u8) -> Vec<u8> {
    let fields = REQUEST.map(|(name, value)| (name, if name == ":path" { path } else { value }));
    frame(frame::HEADERS, flags | frame::END_HEADERS, stream, &block(&fields))
}

pub(crate) fn headers(stream: u32, flags: u8) -> Vec<u8> {
    headers_to("/test.Echo/Echo", stream, flags)
}

pub(crate) fn data(stream: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    frame(frame::DATA, flags, stream, payload)
}

/// A whole call with one message.
pub(crate) fn call(stream: u32, message: &[u8]) -> Vec<u8> {
    [headers(stream, 0), data(stream, frame::END_STREAM, &envelope(message))].concat()
}

/// The frames of an output.
pub(crate) fn raw_frames(mut output: &[u8]) -> Vec<(Head, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Some((head, payload, rest)) = frame::cut(output).unwrap() {
        frames.push((head, payload.to_vec()));
        output = rest;
    }
    assert!(output.is_empty(), "frames are written whole");
    frames
}

/// The frames of an output. Header blocks are decoded to `name: value` lines.
pub(crate) fn frames(output: &[u8]) -> Vec<(Head, Vec<u8>)> {
    let mut decoder = Decoder::new(4096);
    let mut frames = raw_frames(output);
    for (_, payload) in frames.iter_mut().filter(|(head, _)| head.kind == frame::HEADERS) {
        let mut text = Vec::new();
        let line = |field: crate::hpack::Field<'_>| {
            text.extend_from_slice(&[field.name, b": ", field.value, b"\n"].concat());
        };
        decoder.decode(payload, usize::MAX, line).unwrap();
        *payload = text;
    }
    frames
}

/// A frame that a peer may send, more often valid than not. Header blocks are taken from `fields`.
pub(crate) fn any_frame(fields: &'static [&'static [(&str, &str)]]) -> BoxedStrategy<Vec<u8>> {
    let stream = prop_oneof![8 => (0_u32..8).prop_map(|n| n * 2 + 1), 1 => 0_u32..20];
    let body = prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 0..60).prop_map(|message| envelope(&message)),
        1 => prop::collection::vec(any::<u8>(), 0..60),
        1 => (0_usize..3000).prop_map(|size| envelope(&vec![b'm'; size])),
        1 => (0_usize..9).prop_map(|size| envelope(b"0123456789")[..size].to_vec()),
    ];
    let fields = prop::sample::select(fields);
    let end = prop_oneof![Just(0), Just(frame::END_STREAM)];
    prop_oneof![
        6 => (stream.clone(), fields, end.clone(), 0_u8..4, 0_usize..40).prop_map(
            |(stream, fields, end, style, split)| {
                let block = block(fields);
                let (first, rest) = block.split_at(split.min(block.len()));
                match style {
                    0 => [
                        frame(frame::HEADERS, end, stream, first),
                        frame(frame::CONTINUATION, frame::END_HEADERS, stream, rest),
                    ]
                    .concat(),
                    1 => {
                        let padded = [&[3][..], &[0, 0, 0, 0, 7], &block, &[0, 0, 0]].concat();
                        let flags = end | frame::END_HEADERS | frame::PADDED | frame::WITH_PRIORITY;
                        frame(frame::HEADERS, flags, stream, &padded)
                    }
                    _ => frame(frame::HEADERS, end | frame::END_HEADERS, stream, &block),
                }
            },
        ),
        8 => (stream.clone(), body, end, any::<bool>(), 0_usize..80).prop_map(
            |(stream, body, end, padded, split)| {
                let (first, rest) = body.split_at(split.min(body.len()));
                let first = if padded {
                    data(stream, frame::PADDED, &[&[2][..], first, &[0, 0]].concat())
                } else {
                    data(stream, 0, first)
                };
                [first, data(stream, end, rest)].concat()
            },
        ),
        2 => (stream.clone(), 0_u32..5000).prop_map(|(s, increment)| window_update(s, increment)),
        1 => stream.prop_map(reset),
        1 => (1_u16..8, prop_oneof![0_u32..200, any::<u32>()])
            .prop_map(|pair| settings(&[pair])),
        1 => (0_u32..100).prop_map(|window| settings(&[(4, window)])),
        1 => any::<[u8; 8]>().prop_map(|payload| frame(frame::PING, 0, 0, &payload)),
        1 => (0_u8..20, any::<u8>(), 0_u32..9, prop::collection::vec(any::<u8>(), 0..20))
            .prop_map(|(kind, flags, stream, payload)| frame(kind, flags, stream, &payload)),
    ]
    .boxed()
}

/// Changes some bytes of a conversation.
pub(crate) fn mutate(bytes: &mut Vec<u8>, mutations: &[(prop::sample::Index, u8, u8)]) {
    for (at, kind, byte) in mutations {
        if bytes.is_empty() {
            return;
        }
        let at = at.index(bytes.len());
        match kind % 3 {
            0 => bytes[at] ^= byte,
            1 => bytes.insert(at, *byte),
            _ => drop(bytes.remove(at)),
        }
    }
}

/// Cuts bytes into pieces of these sizes, cyclically.
pub(crate) fn pieces<'a>(bytes: &'a [u8], sizes: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = bytes;
    let mut sizes = sizes.iter().cycle();
    std::iter::from_fn(move || {
        let size = (*sizes.next()?).clamp(1, rest.len().max(1));
        let (piece, after) = rest.split_at_checked(size)?;
        rest = after;
        Some(piece)
    })
}
