//! The client, driven by raw frames.

use proptest::prelude::*;

use super::*;
use crate::Code;
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

/// A call with these response frames ends like this, once.
#[track_caller]
fn check(input: &[Vec<u8>], expected: End) {
    let mut connection = connected();
    assert_eq!(connection.call(b"x"), Some(1));
    assert_eq!(said(&mut connection, &input.concat()).unwrap(), [(1, expected)]);
    assert_eq!((connection.calls(), connection.buffered_bytes), (0, 0));
    assert_eq!(said(&mut connection, &reset(1)).unwrap(), [], "it has ended already");
}

fn refused(code: Code, message: &str) -> End {
    End::Refused(code as u32, message.to_owned())
}

#[test]
fn responses_are_classified() {
    let ok = || headers(1, END_STREAM, &OK);
    let begun = || headers(1, 0, &HEADERS_200);
    let message = || data(1, 0, &envelope(b"answer"));
    check(&[begun(), message(), ok()], End::Answer(b"answer".to_vec()));
    let (front, back) = (envelope(b"answer")[..3].to_vec(), envelope(b"answer")[3..].to_vec());
    check(&[begun(), data(1, 0, &front), data(1, 0, &back), ok()], End::Answer(b"answer".to_vec()));
    let early = headers(1, 0, &[(":status", "103")]);
    check(&[early, begun(), message(), ok()], End::Answer(b"answer".to_vec()));

    let only = [&HEADERS_200[..], &[("grpc-status", "8"), ("grpc-message", "100 %25")]].concat();
    check(&[headers(1, END_STREAM, &only)], refused(Code::ResourceExhausted, "100 %"));
    check(&[begun(), ok()], refused(Code::Internal, "the answer has no whole message"));
    check(
        &[begun(), message(), message(), ok()],
        refused(Code::Internal, "the answer has more than one message"),
    );
    check(
        &[begun(), data(1, 0, &[1, 0, 0, 0, 0]), ok()],
        refused(Code::Internal, "the answer is compressed"),
    );
    check(
        &[begun(), data(1, 0, &[0, 255, 0, 0, 0]), ok()],
        refused(Code::ResourceExhausted, "the answer is too large"),
    );
    check(
        &[begun(), data(1, END_STREAM, &envelope(b"x"))],
        refused(Code::Unknown, "the response has no grpc-status"),
    );
    check(&[begun(), headers(1, END_STREAM, &[("grpc-status", "x")])], refused(Code::Unknown, ""));

    check(&[headers(1, END_STREAM, &[(":status", "503")])], End::Http(503));
    check(&[headers(1, 0, &[(":status", "404")]), data(1, END_STREAM, b"no")], End::Http(404));
    check(&[headers(1, 0, &[(":status", "404")]), reset(1)], End::Http(404));
    check(&[begun(), message(), reset(1)], End::Reset(8));
    let malformed = || End::Reset(ErrorCode::Protocol as u32);
    check(&[message()], malformed());
    check(&[ok()], malformed());
    check(&[begun(), headers(1, 0, &OK)], malformed());
    check(&[begun(), begun()], malformed());
    check(&[headers(1, 0, &[(":status", "2x")])], malformed());
    check(&[headers(1, 0, &[(":status", "200"), (":path", "/")])], malformed());
    check(&[begun(), window_update(1, 0)], malformed());
    check(&[window_update(1, (1 << 31) - 1)], End::Reset(ErrorCode::FlowControl as u32));
}

/// A server with a low limit refuses further calls, and the client begins none before it knows the limit.
#[test]
fn one_call_may_be_begun_before_the_settings() {
    let mut connection = Connection::new("localhost", "/test.Echo/Echo", &[]);
    assert_eq!(connection.call(b"x"), Some(1));
    assert_eq!(connection.call(b"x"), None);
    said(&mut connection, &settings(&[])).unwrap();
    assert_eq!(connection.call(b"x"), Some(3));
}

#[test]
fn goaway_ends_what_it_does_not_cover() {
    let mut connection = connected();
    for _ in 0..3 {
        connection.call(b"x").unwrap();
    }
    let goaway = frame(frame::GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]);
    let ends = said(&mut connection, &goaway).unwrap();
    assert_eq!(ends, [(3, End::Unprocessed), (5, End::Unprocessed)]);
    assert!(connection.is_leaving());
    assert_eq!(connection.call(b"x"), None);
    let rest =
        [headers(1, 0, &HEADERS_200), data(1, 0, &envelope(b"y")), headers(1, END_STREAM, &OK)];
    let ends = said(&mut connection, &rest.concat()).unwrap();
    assert_eq!(ends, [(1, End::Answer(b"y".to_vec()))]);
}

#[test]
fn the_limit_of_streams_and_windows_are_obeyed() {
    let mut connection = connected();
    said(&mut connection, &settings(&[(3, 2), (4, 10)])).unwrap();
    assert_eq!(connection.call(b"x"), Some(1));
    assert_eq!(connection.call(&[7; 20]), Some(3));
    connection.written(usize::MAX);
    assert!(!connection.may_call());
    said(&mut connection, &window_update(3, 14)).unwrap();
    let sent = frames(connection.output());
    assert_eq!((sent[0].0.length, sent[0].0.flags), (14, 0));
    connection.written(usize::MAX);
    said(&mut connection, &window_update(3, 100)).unwrap();
    let sent = frames(connection.output());
    assert_eq!((sent[0].0.length, sent[0].0.flags), (1, END_STREAM));
    assert!(!connection.may_call(), "two are under way");
    said(&mut connection, &reset(1)).unwrap();
    assert_eq!(connection.call(b"x"), Some(5));
}

/// The header block is indexed once, unless the server allows no table.
#[test]
fn fields_are_indexed_if_the_server_lets_them() {
    let text = ":method: POST\n:scheme: http\n:authority: localhost\n:path: /test.Echo/Echo\n\
                content-type: application/grpc\nte: trailers\nx-a: b\n";
    for (table_size, last_bytes) in [(None, 7), (Some(4096), 7), (Some(0), 98)] {
        let mut connection = Connection::new("localhost", "/test.Echo/Echo", &[("X-A", "b")]);
        let pairs: Vec<(u16, u32)> = table_size.into_iter().map(|size| (1, size)).collect();
        said(&mut connection, &settings(&pairs)).unwrap();
        for _ in 0..3 {
            connection.call(b"x").unwrap();
        }
        let output = connection.output().strip_prefix(frame::PREFACE).unwrap().to_vec();
        let sent = frames(&output);
        let blocks: Vec<_> = sent.iter().filter(|(head, _)| head.kind == HEADERS).collect();
        assert!(blocks.iter().all(|(_, block)| block == text.as_bytes()), "{sent:?}");
        assert_eq!(blocks[2].0.length, last_bytes);
    }
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
    ] {
        let mut connection = connected();
        connection.call(b"x").unwrap();
        let broken = said(&mut connection, &input).unwrap_err();
        assert_eq!(broken.code, code as u32, "{broken}");
        assert!(connection.is_leaving());
        assert_eq!(said(&mut connection, &[]), Err(broken));
    }
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
