//! Header blocks that are the same as the last one, and streams that are used again.

use proptest::prelude::*;

use super::*;
use crate::frame::{END_HEADERS, END_STREAM, HEADERS};
use crate::hpack::Decoder;
use crate::hpack::encode::{Indexing, indexed, literal, size_update};
use crate::server::request::Request;
use crate::testing::{REQUEST, block, data, envelope, frame, headers};

type Fields<'a> = [(&'a str, &'a str)];

/// A block that adds these fields to the table, and one that refers to them.
fn adding_and_referring(fields: &Fields<'_>) -> (Vec<u8>, Vec<u8>) {
    let (mut adding, mut referring) = (Vec::new(), Vec::new());
    for (age, (name, value)) in fields.iter().enumerate() {
        literal(Indexing::Add, name.as_bytes(), value.as_bytes(), &mut adding);
        indexed(62 + fields.len() - 1 - age, &mut referring);
    }
    (adding, referring)
}

fn headers_with(stream: u32, block: &[u8]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, block)
}

/// The answer to a call without the number of its stream.
fn answer_to(connection: &mut Connection, stream: u32, block: &[u8], body: &[u8]) -> String {
    let mut service = Echo::default();
    let input = [headers_with(stream, block), data(stream, END_STREAM, body)].concat();
    connection.receive(&input, &mut service).unwrap();
    let frames = take_output(connection);
    let (text, reset) = (headers_of(&frames, stream), reset_of(&frames, stream));
    format!("{text}{:?} {reset:?} {:?}", data_of(&frames, stream), service.seen)
}

/// Each of the same blocks has the answer that the first one has.
#[test]
fn equal_blocks_have_equal_answers() {
    let plain = envelope(b"x");
    let compressed = [1, 0, 0, 0, 1, b'x'];
    let with = |extra: &[(&'static str, &'static str)]| [&REQUEST[..], extra].concat();
    let without_type = [&REQUEST[..3], &REQUEST[4..]].concat();
    let get = [&[(":method", "GET")], &REQUEST[1..]].concat();
    for (fields, body, expected) in [
        (with(&[]), &plain[..], "grpc-status: 0\n"),
        (with(&[("x-a", "1"), ("x-b", "2")]), &plain, r"x-a: 1\nx-b: 2\n"),
        (with(&[("content-length", "6")]), &plain, "grpc-status: 0\n"),
        (with(&[("content-length", "7")]), &plain, "Some(1)"),
        (with(&[("grpc-encoding", "gzip")]), &compressed, "grpc-status: 12\n"),
        (with(&[]), &compressed, "grpc-status: 13\n"),
        (without_type, &plain, ":status: 415\n"),
        (get, &plain, ":status: 405\n"),
        (with(&[("connection", "close")]), &plain, "Some(1)"),
    ] {
        let mut connection = greeted(LIMITS);
        let (adding, referring) = adding_and_referring(&fields);
        // The first answer also has the update of the table size.
        answer_to(&mut connection, 1, &adding, body);
        let answers = [3, 5, 7].map(|id| answer_to(&mut connection, id, &referring, body));
        assert!(answers[0].contains(expected), "{}", answers[0]);
        assert_eq!(answers[0], answers[1]);
        assert_eq!(answers[0], answers[2]);
    }
}

/// Of two blocks, only the last one is remembered, not both as one.
#[test]
fn a_block_that_joins_two_others_is_read() {
    let mut connection = greeted(LIMITS);
    let fields = [&[("x-a", "1")], &REQUEST[..]].concat();
    let (adding, referring) = adding_and_referring(&fields);
    answer_to(&mut connection, 1, &adding, b"");
    // The metadata comes last, so the parts are a whole request and a malformed one.
    let (metadata, request) = referring.split_at(1);
    for (id, part) in [(3, request), (5, metadata)] {
        answer_to(&mut connection, id, part, &envelope(b"x"));
    }
    let joined = [request, metadata].concat();
    let answer = answer_to(&mut connection, 7, &joined, &envelope(b"x"));
    assert!(answer.contains(r"x-a: 1\n"), "{answer}");
}

/// Each change of the table between two equal blocks: an insertion, with a name of its own or of an entry,
/// and a new size.
#[test]
fn equal_blocks_differ_after_any_change_of_the_table() {
    let other = ("x-long", "l".repeat(100));
    let [mut inserted, mut named, mut resized] = [(); 3].map(|()| block(&REQUEST));
    literal(Indexing::Add, other.0.as_bytes(), other.1.as_bytes(), &mut inserted);
    // The name at index 62, with a value of 100 bytes.
    named.push(0x7e);
    crate::hpack::encode::string(other.1.as_bytes(), &mut named);
    let mut emptied = Vec::new();
    size_update(0, &mut emptied);
    emptied.append(&mut resized);
    literal(Indexing::Without, other.0.as_bytes(), other.1.as_bytes(), &mut emptied);
    for change in [inserted, named, emptied] {
        let mut connection = greeted(LIMITS);
        let mut request = block(&REQUEST);
        literal(Indexing::Add, b"x-a", b"1", &mut request);
        let again = [
            &[0x83, 0x86][..],
            &[0x04, 0x01, b'/'],
            &[0x0f, 0x10, 0x10],
            b"application/grpc",
            &[0xbe],
        ]
        .concat();
        let mut service = Echo::default();
        let body = |id| data(id, END_STREAM, &envelope(b"x"));
        let mut ask = |id, block: &[u8]| {
            let input = [headers_with(id, block), body(id)].concat();
            connection.receive(&input, &mut service)?;
            Ok::<String, Broken>(service.seen.last().unwrap().1.clone())
        };
        ask(1, &request).unwrap();
        assert_eq!(ask(3, &again).unwrap(), "x-a: 1\n");
        assert_eq!(ask(5, &again).unwrap(), "x-a: 1\n");
        ask(7, &change).unwrap();
        match ask(9, &again) {
            Ok(metadata) => assert_ne!(metadata, "x-a: 1\n"),
            Err(broken) => assert_eq!(broken.code, ErrorCode::Compression as u32),
        }
    }
}

#[test]
fn an_empty_block_is_no_request() {
    let mut connection = greeted(LIMITS);
    let frames = said(&mut connection, &headers_with(1, &[]));
    assert_eq!(reset_of(&frames, 1), Some(ErrorCode::Protocol as u32));
}

/// A call takes the memory of one that has ended, and nothing else of it.
#[test]
fn a_call_knows_nothing_of_the_one_before_it() {
    let with = |extra: &Fields<'static>| block(&[&REQUEST[..], extra].concat());
    let without_type = block(&[&REQUEST[..3], &REQUEST[4..]].concat());
    let ends = |id, payload: &[u8]| data(id, END_STREAM, payload);
    let compressed = [1, 0, 0, 0, 1, b'x'];
    let firsts = [
        [headers_with(1, &with(&[("content-length", "7")])), ends(1, &envelope(b"xx"))].concat(),
        [headers_with(1, &with(&[("grpc-encoding", "gzip")])), ends(1, &compressed)].concat(),
        [headers_with(1, &with(&[("x-a", "1")])), ends(1, &envelope(b"x"))].concat(),
        [headers(1, 0), ends(1, &envelope(b"cut off")[..7])].concat(),
        [
            crate::testing::headers_to("/test.Echo/Watch", 1, 0),
            ends(1, &envelope(b"x")),
            crate::testing::reset(1),
        ]
        .concat(),
        [crate::testing::headers_to("/test.Echo/Unary", 1, 0), ends(1, &envelope(b"x"))].concat(),
        [crate::testing::headers_to("/test.Echo/Refuse", 1, 0), ends(1, &envelope(b"x"))].concat(),
        [
            headers(1, 0),
            data(1, 0, &[envelope(b"x"), vec![0; 3]].concat()),
            crate::testing::reset(1),
        ]
        .concat(),
    ];
    let seconds = [
        (with(&[]), envelope(b"two"), "grpc-status: 0\n"),
        (with(&[("content-length", "8")]), envelope(b"two"), "grpc-status: 0\n"),
        (with(&[]), compressed.to_vec(), "grpc-status: 13\n"),
        (without_type, envelope(b"two"), ":status: 415\n"),
        (with(&[("x-b", "2")]), [envelope(b"1"), envelope(b"2")].concat(), "grpc-status: 0\n"),
    ];
    for first in &firsts {
        for (block, body, expected) in &seconds {
            let mut fresh = greeted(LIMITS);
            said(&mut fresh, &[headers(1, END_STREAM), headers(5, 0)].concat());
            let mut used = greeted(LIMITS);
            said(&mut used, first);
            assert_eq!((used.calls(), used.shared.staying, used.shared.buffered_bytes), (0, 0, 0));
            let answer = answer_to(&mut used, 7, block, body);
            assert_eq!(answer, answer_to(&mut fresh, 7, block, body));
            assert!(answer.contains(expected), "{answer}");
        }
    }
}

fn any_block() -> impl Strategy<Value = Vec<u8>> {
    let path = prop::sample::select(&["/test.Echo/Echo", "/test.Echo/Refuse", "/x"][..]);
    let long = prop::sample::select(&[0_usize, 100][..]);
    let whole = (path, long, any::<bool>()).prop_map(|(path, long, adds)| {
        let indexing = if adds { Indexing::Add } else { Indexing::Without };
        let mut bytes = vec![0x83, 0x86];
        literal(indexing, b":path", path.as_bytes(), &mut bytes);
        literal(indexing, b"content-type", b"application/grpc", &mut bytes);
        if long > 0 {
            literal(Indexing::Without, b"x-long", &vec![b'l'; long], &mut bytes);
        }
        bytes
    });
    let resized = prop::sample::select(&[0_usize, 60, 4096][..]).prop_map(|size| {
        let mut bytes = Vec::new();
        size_update(size, &mut bytes);
        bytes.extend(block(&REQUEST));
        bytes
    });
    prop_oneof![
        2 => whole,
        1 => resized,
        6 => prop::sample::select(&[62_usize, 64, 66][..])
            .prop_map(|newest| vec![0x83, 0x86, 0x80 + newest as u8 + 1, 0x80 + newest as u8]),
    ]
}

proptest! {
    /// The slow twin decodes every block.
    #[test]
    fn requests_are_what_their_blocks_say(blocks in prop::collection::vec(any_block(), 1..30)) {
        let mut connection = greeted(LIMITS);
        let (mut decoder, mut twin) = (Decoder::new(4096), Request::default());
        for (id, block) in (1..).step_by(2).zip(blocks) {
            let mut service = Echo::default();
            let input = [headers_with(id, &block), data(id, END_STREAM, &envelope(b"x"))].concat();
            let result = connection.receive(&input, &mut service);
            connection.written(usize::MAX);
            if twin.read(&mut decoder, &block, LIMITS.header_bytes_max).is_err() {
                prop_assert_eq!(result.unwrap_err().code, ErrorCode::Compression as u32);
                return Ok(());
            }
            let path = service.seen.first().map(|(path, _)| path.clone().into_bytes());
            let expected = twin.fault.is_none().then(|| twin.path.clone());
            prop_assert_eq!(path, expected);
        }
    }
}
