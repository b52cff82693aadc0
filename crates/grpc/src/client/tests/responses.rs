//! What responses mean.

use super::*;
use crate::Code;
use crate::hpack::encode::{Indexing, literal};

/// A call with these response frames ends like this, once.
#[track_caller]
fn check(input: &[Vec<u8>], expected: End) {
    let mut connection = connected();
    assert_eq!(connection.call(b"x"), Some(1));
    connection.written(usize::MAX);
    let code = if let End::Reset(code) = expected { Some(code) } else { None };
    assert_eq!(said(&mut connection, &input.concat()).unwrap(), [(1, expected)]);
    assert_eq!((connection.calls(), connection.buffered_bytes), (0, 0));
    // Only the client's own error resets the stream.
    let sent = frames(connection.output());
    let resets = sent.iter().filter(|(head, _)| head.kind == frame::RST_STREAM);
    let resets: Vec<_> = resets.map(|(head, code)| (head.stream, word(code))).collect();
    match code {
        Some(code) if input.iter().all(|frame| *frame != reset(1)) => {
            assert_eq!(resets, [(1, code)]);
        }
        _ => assert_eq!(resets, []),
    }
    assert_eq!(said(&mut connection, &reset(1)).unwrap(), [], "it has ended already");
}

fn word(payload: &[u8]) -> u32 {
    frame::word(payload).unwrap()
}

fn refused(code: Code, message: &str) -> End {
    End::Refused(code as u32, message.to_owned())
}

fn malformed() -> End {
    End::Reset(ErrorCode::Protocol as u32)
}

fn begun() -> Vec<u8> {
    headers(1, 0, &HEADERS_200)
}

fn message() -> Vec<u8> {
    data(1, 0, &envelope(b"answer"))
}

fn ok() -> Vec<u8> {
    headers(1, END_STREAM, &OK)
}

#[test]
fn responses_are_classified() {
    check(&[begun(), message(), ok()], End::Answer(b"answer".to_vec()));
    let (front, back) = (envelope(b"answer")[..3].to_vec(), envelope(b"answer")[3..].to_vec());
    check(&[begun(), data(1, 0, &front), data(1, 0, &back), ok()], End::Answer(b"answer".to_vec()));
    for early in ["100", "103", "199"] {
        let early = headers(1, 0, &[(":status", early)]);
        check(&[early, begun(), message(), ok()], End::Answer(b"answer".to_vec()));
    }

    let only = [&HEADERS_200[..], &[("grpc-status", "8"), ("grpc-message", "100 %25")]].concat();
    check(&[headers(1, END_STREAM, &only)], refused(Code::ResourceExhausted, "100 %"));
    let refusal = [("grpc-status", "7"), ("grpc-message", "one"), ("grpc-message", "two")];
    check(
        &[headers(1, 0, &only), headers(1, END_STREAM, &refusal)],
        refused(Code::PermissionDenied, "two"),
    );
    check(&[begun(), ok()], refused(Code::Internal, "the answer has no whole message"));
    let second = refused(Code::Internal, "the answer has more than one message");
    check(&[begun(), message(), message(), ok()], second.clone());
    check(&[begun(), message(), message(), data(1, 0, &[]), ok()], second.clone());
    check(&[begun(), message(), data(1, 0, &[0]), ok()], second);
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
    for status in ["x", "", "+0", "-1", "4294967296"] {
        let end = headers(1, END_STREAM, &[("grpc-status", status)]);
        check(&[begun(), message(), end], refused(Code::Unknown, ""));
    }

    check(&[headers(1, END_STREAM, &[(":status", "503")])], End::Http(503));
    check(
        &[headers(1, END_STREAM, &[(":status", "200")])],
        refused(Code::Unknown, "the response has no grpc-status"),
    );
    check(&[headers(1, END_STREAM, &[(":status", "999")])], End::Http(999));
    check(&[headers(1, 0, &[(":status", "404")]), data(1, END_STREAM, b"no")], End::Http(404));
    check(&[headers(1, 0, &[(":status", "404")]), reset(1)], End::Http(404));
    check(&[begun(), message(), reset(1)], End::Reset(8));
}

#[test]
fn malformed_responses_reset_their_call() {
    check(&[message()], malformed());
    check(&[ok()], malformed());
    check(&[begun(), headers(1, 0, &OK)], malformed());
    check(&[begun(), begun()], malformed());
    check(&[begun(), window_update(1, 0)], malformed());
    check(&[window_update(1, (1 << 31) - 1)], End::Reset(ErrorCode::FlowControl as u32));
    check(&[headers(1, END_STREAM, &[(":status", "103")])], malformed());
    for fields in [
        &[(":status", "2x")][..],
        &[(":status", "")],
        &[(":status", "+200")],
        &[(":status", "0")],
        &[(":status", "99")],
        &[(":status", "099")],
        &[(":status", "1000")],
        &[(":status", "65736")],
        &[(":status", "200"), (":path", "/")],
        &[(":path", "/"), (":status", "200")],
        &[(":status", "200"), (":status", "200")],
        &[("content-type", "application/grpc"), (":status", "200")],
        &[("x", "1"), ("y", "2"), (":status", "200")],
        &[(":status", "200"), ("Upper", "x")],
        &[("Upper", "x"), (":status", "200")],
        &[("x", "a\nb"), (":status", "200")],
    ] {
        check(&[headers(1, 0, fields)], malformed());
        check(&[headers(1, END_STREAM, fields)], malformed());
    }
    check(&[begun(), headers(1, END_STREAM, &[("grpc-status", "0"), ("Upper", "x")])], malformed());
}

/// 17 references to an entry of 4,000 bytes exceed the client's limit of 64 KiB.
#[test]
fn a_header_list_beyond_the_limit_is_malformed() {
    let bomb = |references: usize| {
        let mut bytes = block(&HEADERS_200);
        literal(Indexing::Add, b"x", &[b'y'; 4000], &mut bytes);
        bytes.extend(vec![0xbe; references]);
        frame(HEADERS, END_HEADERS, 1, &bytes)
    };
    check(&[bomb(14), message(), ok()], End::Answer(b"answer".to_vec()));
    check(&[bomb(17)], malformed());
}

/// Every call begins afresh, whatever the one before it left.
#[test]
fn a_call_knows_nothing_of_the_one_before_it() {
    let pieces: [(&[Vec<u8>], bool); 7] = [
        (&[begun(), message()], false),
        (&[begun(), message(), message()], false),
        (&[begun(), data(1, 0, &[1, 0, 0, 0, 0])], false),
        (&[headers(1, 0, &[(":status", "404")]), data(1, 0, b"no")], false),
        (&[begun(), data(1, 0, &envelope(b"cut off")[..8])], false),
        (&[headers(1, END_STREAM, &[HEADERS_200[0], ("grpc-status", "0")])], true),
        (&[headers(1, END_STREAM, &[HEADERS_200[0], ("grpc-message", "old")])], true),
    ];
    for (first, has_ended) in pieces {
        let mut connection = connected();
        connection.call(b"x").unwrap();
        let end = if has_ended { Vec::new() } else { reset(1) };
        said(&mut connection, &[first.concat(), end].concat()).unwrap();
        assert_eq!((connection.calls(), connection.buffered_bytes), (0, 0));
        // Without a status of its own.
        assert_eq!(connection.call(b"x"), Some(3));
        let whole = [headers(3, 0, &HEADERS_200), data(3, END_STREAM, &envelope(b"y"))];
        let ends = said(&mut connection, &whole.concat()).unwrap();
        assert_eq!(ends, [(3, refused(Code::Unknown, "the response has no grpc-status"))]);
        // With a status, but without a text.
        assert_eq!(connection.call(b"x"), Some(5));
        let only = headers(5, END_STREAM, &[HEADERS_200[0], ("grpc-status", "9")]);
        let ends = said(&mut connection, &only).unwrap();
        assert_eq!(ends, [(5, refused(Code::FailedPrecondition, ""))]);
        assert_eq!(connection.call(b"x"), Some(7));
        let whole = [
            headers(7, 0, &HEADERS_200),
            data(7, 0, &envelope(b"new")),
            headers(7, END_STREAM, &OK),
        ];
        let ends = said(&mut connection, &whole.concat()).unwrap();
        assert_eq!(ends, [(7, End::Answer(b"new".to_vec()))]);
        assert_eq!(connection.call(b"x"), Some(9));
        let early = said(&mut connection, &data(9, 0, b"before any headers")).unwrap();
        assert_eq!(early, [(9, malformed())]);
    }
}

/// The text of an HTTP error is for people, and is not kept.
#[test]
fn the_body_of_an_http_error_takes_no_memory() {
    let mut connection = connected();
    connection.call(b"x").unwrap();
    said(&mut connection, &headers(1, 0, &[(":status", "502")])).unwrap();
    assert_eq!(said(&mut connection, &data(1, 0, &[0; 5000])), Ok(Vec::new()));
    assert_eq!(connection.buffered_bytes, 0);
    assert!(connection.streams.get(1).unwrap().capacity_bytes() < 5000);
}

/// A header block of a call that has ended still changes the table.
#[test]
fn headers_that_cross_the_end_of_their_call_are_decoded() {
    let mut connection = connected();
    connection.call(b"x").unwrap();
    connection.call(b"x").unwrap();
    said(&mut connection, &reset(1)).unwrap();
    let mut late = Vec::new();
    for (name, value) in HEADERS_200 {
        literal(Indexing::Add, name.as_bytes(), value.as_bytes(), &mut late);
    }
    assert_eq!(said(&mut connection, &frame(HEADERS, END_HEADERS, 1, &late)), Ok(Vec::new()));
    let rest = [
        frame(HEADERS, END_HEADERS, 3, &[0xbf, 0xbe]),
        data(3, 0, &envelope(b"y")),
        headers(3, END_STREAM, &OK),
    ];
    let ends = said(&mut connection, &rest.concat()).unwrap();
    assert_eq!(ends, [(3, End::Answer(b"y".to_vec()))]);
    let undecodable = frame(HEADERS, END_HEADERS, 1, &[0xc0]);
    let broken = said(&mut connection, &undecodable).unwrap_err();
    assert_eq!(broken.code, ErrorCode::Compression as u32);
}
