//! The client, driven by raw frames.

mod calls;
mod responses;
mod useless;

use proptest::prelude::*;

use super::*;
use crate::frame::{END_HEADERS, END_STREAM, HEADERS};
use crate::testing::{
    any_frame, block, data, envelope, frame, frames, mutate, pieces, reset, settings, window_update,
};

#[derive(Debug, Clone, PartialEq, Eq)]
enum End {
    Answer(Vec<u8>),
    Refused(u32, String),
    Http(u16),
    Reset(u32),
    Unprocessed,
}

impl From<Ended<'_>> for End {
    fn from(ended: Ended<'_>) -> End {
        match ended {
            Ended::Answer(message) => End::Answer(message.to_vec()),
            Ended::Refused { code, message } => End::Refused(code, crate::decode_message(message)),
            Ended::Http(status) => End::Http(status),
            Ended::Reset(code) => End::Reset(code),
            Ended::Unprocessed => End::Unprocessed,
        }
    }
}

const HEADERS_200: [(&str, &str); 2] = [(":status", "200"), ("content-type", "application/grpc")];
const OK: [(&str, &str); 1] = [("grpc-status", "0")];

fn connected() -> Connection {
    let mut connection = Connection::new("localhost", "/test.Echo/Echo", &[]);
    said(&mut connection, &settings(&[])).unwrap();
    connection.written(usize::MAX);
    connection
}

fn said(connection: &mut Connection, input: &[u8]) -> Result<Vec<(u32, End)>, Broken> {
    let mut ends = Vec::new();
    connection.receive(input, &mut |id, ended| ends.push((id, ended.into())))?;
    Ok(ends)
}

fn headers(stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, flags | END_HEADERS, stream, &block(fields))
}

#[test]
fn hostile_servers_break_the_connection() {
    for (input, code) in [
        (frame(frame::PUSH_PROMISE, END_HEADERS, 1, &[0; 8]), ErrorCode::Protocol),
        (headers(3, 0, &HEADERS_200), ErrorCode::Protocol),
        (headers(2, 0, &HEADERS_200), ErrorCode::Protocol),
        (frame(HEADERS, END_HEADERS, 1, &[0xbe]), ErrorCode::Compression),
        (window_update(0, (1 << 31) - 1), ErrorCode::FlowControl),
        (frame(frame::PRIORITY, 0, 1, &[0; 5]).repeat(9000), ErrorCode::EnhanceYourCalm),
        (headers(1, 0, &[(":status", "100")]).repeat(9000), ErrorCode::EnhanceYourCalm),
        // A server may not enable push, not even for a moment (RFC 9113, section 6.5.2).
        (settings(&[(2, 1)]), ErrorCode::Protocol),
        (settings(&[(2, 1), (2, 0)]), ErrorCode::Protocol),
        (settings(&[(2, 2)]), ErrorCode::Protocol),
        (frame(frame::SETTINGS, 0, 3, &[]), ErrorCode::Protocol),
        (frame(99, 0, 1, &[0; 16_385]), ErrorCode::FrameSize),
        (data(5, 0, b"x"), ErrorCode::Protocol),
    ] {
        let mut connection = connected();
        connection.call(b"x").unwrap();
        connection.written(usize::MAX);
        let broken = said(&mut connection, &input).unwrap_err();
        assert_eq!(broken.code, code as u32, "{broken}");
        let sent = frames(connection.output());
        let (head, payload) = sent.last().unwrap();
        assert_eq!((head.kind, &payload[4..8]), (frame::GOAWAY, &broken.code.to_be_bytes()[..]));
        assert!(connection.is_leaving());
        assert_eq!(said(&mut connection, &[]), Err(broken));
    }
}

#[test]
fn a_server_may_say_that_it_does_not_push() {
    let mut connection = connected();
    assert_eq!(said(&mut connection, &settings(&[(2, 0)])), Ok(Vec::new()));
    assert_eq!(connection.call(b"x"), Some(1));
}

const BLOCKS: [&[(&str, &str)]; 5] =
    [&HEADERS_200, &HEADERS_200, &OK, &[(":status", "503")], &[("grpc-status", "8")]];

/// How calls ended, the output, and the connection's error.
type Course = (Vec<(u32, End)>, Vec<u8>, Option<Broken>);

fn fed(input: &[u8], sizes: &[usize]) -> Course {
    let mut connection = connected();
    for call in 0..8_usize {
        connection.call(&vec![b'x'; call * 100]).unwrap();
    }
    let (mut ends, mut broken) = (Vec::new(), None);
    for piece in pieces(input, sizes) {
        let take = &mut |id, ended: Ended<'_>| ends.push((id, End::from(ended)));
        broken = connection.receive(piece, take).err();
        if broken.is_some() {
            break;
        }
        assert!(connection.partial.len() <= frame::HEAD_BYTES + frame::PAYLOAD_BYTES_MAX);
        assert!(connection.buffered_bytes <= input.len());
    }
    assert_eq!(ends.len() + connection.calls(), 8, "each ends once");
    (ends, connection.output().to_vec(), broken)
}

proptest! {
    #[test]
    fn conversations_are_the_same_in_any_pieces(
        frames in prop::collection::vec(any_frame(&BLOCKS), 0..40),
        mutations in prop::collection::vec(any::<(prop::sample::Index, u8, u8)>(), 0..3),
        sizes in prop::collection::vec(1_usize..40, 1..5),
    ) {
        let mut input = settings(&[(3, 100)]);
        input.extend(frames.concat());
        mutate(&mut input, &mutations);
        let whole = fed(&input, &[usize::MAX]);
        prop_assert_eq!(&whole, &fed(&input, &[1]));
        prop_assert_eq!(&whole, &fed(&input, &sizes));
    }

    #[test]
    fn any_bytes_end(
        input in prop::collection::vec(any::<u8>(), 0..3000),
        sizes in prop::collection::vec(1_usize..400, 1..5),
    ) {
        fed(&input, &sizes);
        fed(&[settings(&[]), input].concat(), &sizes);
    }
}
