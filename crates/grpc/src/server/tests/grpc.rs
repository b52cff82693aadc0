//! The rules of gRPC over HTTP/2.

use super::*;
use crate::frame::{END_HEADERS, END_STREAM, HEADERS};
use crate::testing::{self, REQUEST, block, call, data, envelope, frame, headers, headers_to};

const OK_HEADERS: &str = ":status: 200\ncontent-type: application/grpc\n";

/// How a call ends with these changes of its fields (an empty value removes one).
fn check_fields(changes: &[(&'static str, &'static str)], expected: &str, reset: Option<u32>) {
    let mut fields: Vec<(&str, &str)> = REQUEST.to_vec();
    for change in changes {
        fields.retain(|(name, _)| *name != change.0);
        if change.0.starts_with(':') {
            fields.insert(0, *change);
        } else {
            fields.push(*change);
        }
        fields.retain(|(_, value)| !value.is_empty());
    }
    let mut connection = greeted(LIMITS);
    let frames = said(&mut connection, &frame(HEADERS, END_HEADERS, 1, &block(&fields)));
    assert_eq!((headers_of(&frames, 1).as_str(), reset_of(&frames, 1)), (expected, reset));
    assert_eq!(connection.calls(), usize::from(expected.is_empty() && reset.is_none()));
    // The connection goes on in any case.
    assert_eq!(data_of(&said(&mut connection, &call(3, b"x")), 3), envelope(b"x"));
}

#[test]
fn requests_are_taken_or_refused_by_their_headers() {
    let malformed = Some(ErrorCode::Protocol as u32);
    check_fields(&[], "", None);
    check_fields(&[("content-type", "application/grpc+proto")], "", None);
    check_fields(&[("content-type", "application/grpc;x=y")], "", None);
    check_fields(&[("te", "")], "", None);
    check_fields(&[("content-type", "application/grpcx")], ":status: 415\n", Some(0));
    check_fields(&[("content-type", "application/json")], ":status: 415\n", Some(0));
    check_fields(&[("content-type", "")], ":status: 415\n", Some(0));
    check_fields(&[(":method", "GET")], ":status: 405\nallow: POST\n", Some(0));
    check_fields(&[(":method", "")], "", malformed);
    check_fields(&[(":path", "")], "", malformed);
    check_fields(&[(":scheme", "")], "", malformed);
    check_fields(&[(":status", "200")], "", malformed);
    check_fields(&[("Upper", "x")], "", malformed);
    check_fields(&[("connection", "close")], "", malformed);
    check_fields(&[("te", "gzip")], "", malformed);
    check_fields(&[("content-length", "x")], "", malformed);
    check_fields(&[("content-length", "+1")], "", malformed);
    check_fields(&[("x", "a\nb")], "", malformed);
}

#[test]
fn pseudo_headers_come_first_and_once_and_are_known() {
    let check = |fields: &[(&str, &str)], is_valid: bool| {
        let mut connection = greeted(LIMITS);
        let frames = said(&mut connection, &frame(HEADERS, END_HEADERS, 1, &block(fields)));
        let expected = (!is_valid).then_some(ErrorCode::Protocol as u32);
        assert_eq!(reset_of(&frames, 1), expected, "{fields:?}");
        assert_eq!((frames.len(), connection.calls()), (!is_valid as usize, is_valid as usize));
    };
    let (pseudo, regular) = REQUEST.split_at(3);
    let authority = (":authority", "here");
    check(&[pseudo, &[authority], regular].concat(), true);
    check(&[pseudo, regular, &[authority]].concat(), false);
    check(&[pseudo, &regular[..1], &[authority], &regular[1..]].concat(), false);
    check(&[pseudo, &[authority, authority], regular].concat(), false);
    for again in pseudo {
        check(&[pseudo, &[*again], regular].concat(), false);
        check(&[pseudo, regular, &[*again]].concat(), false);
    }
    for unknown in [(":status", "200"), (":protocol", "x"), (":", "x"), (":Path", "x")] {
        check(&[pseudo, &[unknown], regular].concat(), false);
        check(&[&[unknown], pseudo, regular].concat(), false);
    }
    for at in 0..3 {
        let mut fields = REQUEST.to_vec();
        fields.remove(at);
        check(&fields, false);
    }
    check(&[&pseudo[..2], &[(":path", "")], regular].concat(), false);
    let length = ("content-length", "6");
    check(&[&REQUEST[..], &[length]].concat(), true);
    check(&[&REQUEST[..], &[length, length]].concat(), false);
}

/// The first message has the metadata of its call, even if it arrives in parts; later ones have none.
#[test]
fn metadata_comes_with_the_first_message() {
    let fields = [&REQUEST[..], &[("x-a", "1"), ("x-b", ""), ("x-a", "2")]].concat();
    let both = [envelope(b"one"), envelope(b"two")].concat();
    for cuts in [&[][..], &[1], &[5, 6], &[7], &[8], &[10], &[14]] {
        let mut connection = greeted(LIMITS);
        let mut service = Echo::default();
        let mut input = frame(HEADERS, END_HEADERS, 1, &block(&fields));
        let ends = cuts.iter().copied().chain([both.len()]);
        let mut start = 0;
        for end in ends {
            input.extend(data(1, 0, &both[start..end]));
            start = end;
        }
        connection.receive(&input, &mut service).unwrap();
        let frames = take_output(&mut connection);
        assert_eq!(data_of(&frames, 1), both);
        assert_eq!(service.seen[0].1, "x-a: 1\nx-b: \nx-a: 2\n");
        // Those that arrive in the same piece of data may have it too.
        assert!(cuts.is_empty() || service.seen.len() == 2);
        said(&mut connection, &data(1, 0, &envelope(b"three")));
        connection.receive(&data(1, 0, &envelope(b"four")), &mut service).unwrap();
        assert_eq!(service.seen[2], ("/test.Echo/Echo".to_owned(), String::new()));
    }
}

#[test]
fn a_unary_call_is_answered() {
    let mut connection = greeted(LIMITS);
    let frames = said(&mut connection, &call(1, b"hello"));
    let kinds: Vec<(u8, u8)> = frames.iter().map(|(head, _)| (head.kind, head.flags)).collect();
    let ended = END_HEADERS | END_STREAM;
    assert_eq!(kinds, [(HEADERS, END_HEADERS), (frame::DATA, 0), (HEADERS, ended)]);
    assert_eq!(headers_of(&frames, 1), format!("{OK_HEADERS}grpc-status: 0\n"));
    assert_eq!(data_of(&frames, 1), envelope(b"hello"));
    assert_eq!(connection.calls(), 0);
}

#[test]
fn each_message_of_a_stream_is_answered_when_it_comes() {
    let mut connection = greeted(LIMITS);
    let two = [envelope(b"one"), envelope(b"two"), envelope(b"three")[..4].to_vec()].concat();
    let frames = said(&mut connection, &[headers(1, 0), data(1, 0, &two)].concat());
    assert_eq!(data_of(&frames, 1), [envelope(b"one"), envelope(b"two")].concat());
    assert_eq!(headers_of(&frames, 1), OK_HEADERS);
    let frames = said(&mut connection, &data(1, 0, &envelope(b"three")[4..]));
    assert_eq!(data_of(&frames, 1), envelope(b"three"));
    // The rest of one, a whole one, and the beginning of another.
    said(&mut connection, &data(1, 0, &envelope(b"four")[..7]));
    let mixed = [&envelope(b"four")[7..], &envelope(b"five"), &envelope(b"six")[..6]].concat();
    let frames = said(&mut connection, &data(1, 0, &mixed));
    assert_eq!(data_of(&frames, 1), [envelope(b"four"), envelope(b"five")].concat());
    let frames = said(&mut connection, &data(1, 0, &envelope(b"six")[6..]));
    assert_eq!(data_of(&frames, 1), envelope(b"six"));
    let frames = said(&mut connection, &data(1, END_STREAM, b""));
    assert_eq!(headers_of(&frames, 1), "grpc-status: 0\n");
    assert_eq!(connection.calls(), 0);
}

/// Regression: a client-streaming stub that sent three messages to a unary method waited for its deadline,
/// because each message was answered and the call went on.
#[test]
fn a_second_message_on_a_unary_method_is_an_error() {
    let expected = "grpc-status: 12\ngrpc-message: the method takes one message\n";
    for path in ["/test.Echo/Unary", "/test.Echo/Watch"] {
        let mut connection = greeted(LIMITS);
        let mut service = Echo::default();
        let first = [headers_to(path, 1, 0), data(1, 0, &envelope(b"one"))].concat();
        connection.receive(&first, &mut service).unwrap();
        assert_eq!(data_of(&take_output(&mut connection), 1), envelope(b"one"));
        // The beginning of a message is enough.
        connection.receive(&data(1, 0, &[0]), &mut service).unwrap();
        let frames = take_output(&mut connection);
        assert_eq!((headers_of(&frames, 1).as_str(), reset_of(&frames, 1)), (expected, Some(0)));
        // The same in one piece; the other messages are not asked.
        let three = [envelope(b"1"), envelope(b"2"), envelope(b"3")].concat();
        let input = [headers_to(path, 3, 0), data(3, END_STREAM, &three)].concat();
        connection.receive(&input, &mut service).unwrap();
        let frames = take_output(&mut connection);
        assert_eq!(data_of(&frames, 3), envelope(b"1"));
        assert!(headers_of(&frames, 3).ends_with(expected), "{frames:?}");
        assert_eq!((service.asked, connection.streams.len()), (2, 0));
    }
    let mut connection = greeted(LIMITS);
    let one = [headers_to("/test.Echo/Unary", 1, 0), data(1, 0, &envelope(b"one"))].concat();
    let frames = said(&mut connection, &[one, data(1, END_STREAM, &[])].concat());
    assert!(headers_of(&frames, 1).ends_with("grpc-status: 0\n"), "{frames:?}");
}

#[test]
fn trailers_of_a_request_end_it() {
    let mut connection = greeted(LIMITS);
    let trailers = frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&[("x-checksum", "1")]));
    let frames =
        said(&mut connection, &[headers(1, 0), data(1, 0, &envelope(b"x")), trailers].concat());
    assert_eq!(headers_of(&frames, 1), format!("{OK_HEADERS}grpc-status: 0\n"));
}

#[test]
fn malformed_trailers_reset_the_stream() {
    let endless = frame(HEADERS, END_HEADERS, 1, &block(&[("x", "1")]));
    let pseudo = frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&[(":path", "/")]));
    let end = |fields| frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&[fields]));
    // Regression: connection-specific fields were malformed in requests, but accepted in trailers.
    let [close, chunked] = [("connection", "close"), ("transfer-encoding", "chunked")].map(end);
    let upper = end(("Upper", "x"));
    let long = "y".repeat(1000);
    let large = frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&[("x", &long)]));
    for trailers in [endless, pseudo, close, chunked, upper, large] {
        let mut connection = greeted(LIMITS);
        let frames = said(&mut connection, &[headers(1, 0), trailers].concat());
        assert_eq!(reset_of(&frames, 1), Some(ErrorCode::Protocol as u32));
    }
}

/// Regression: clients that shrink their table below 4096 bytes (SETTINGS_HEADER_TABLE_SIZE, as Envoy's
/// `hpack_table_size` does) closed the connection at the first answer. RFC 7541, section 4.2, has them wait
/// for a table size update, and none was sent as the table was not used anyway.
#[test]
fn the_first_block_says_that_no_table_is_kept() {
    let first_bytes = |connection: &Connection| -> Vec<u8> {
        let (mut rest, mut bytes) = (connection.output(), Vec::new());
        while let Some((head, payload, after)) = frame::cut(rest).unwrap() {
            if head.kind == HEADERS {
                bytes.push(payload[0]);
            }
            rest = after;
        }
        bytes
    };
    let text = [&REQUEST[..3], &[("content-type", "text/html")]].concat();
    let whole = [call(1, b"x"), call(3, b"y")].concat();
    let only = [headers(1, END_STREAM), call(3, b"y")].concat();
    let http = [frame(HEADERS, END_HEADERS, 1, &block(&text)), call(3, b"y")].concat();
    for (input, others) in [(whole, vec![0, 0x88, 0]), (only, vec![0x88, 0]), (http, vec![0x88, 0])]
    {
        let mut connection = greeted(LIMITS);
        connection.receive(&input, &mut Echo::default()).unwrap();
        assert_eq!(first_bytes(&connection), [vec![0x20], others].concat());
    }
}

/// A call with this body ends with this status.
fn check_body(fields: &[(&str, &str)], body: &[u8], status: &str) {
    let mut connection = greeted(LIMITS);
    let headers = frame(HEADERS, END_HEADERS, 1, &block(&[&REQUEST[..], fields].concat()));
    let frames = said(&mut connection, &[headers, data(1, END_STREAM, body)].concat());
    let expected = format!("{OK_HEADERS}{status}\n");
    assert_eq!(headers_of(&frames, 1), expected);
    assert_eq!(connection.calls(), 0);
}

#[test]
fn bodies_that_are_wrong_end_with_a_status() {
    let gzip = [("grpc-encoding", "gzip")];
    let compressed = [1, 0, 0, 0, 1, b'x'];
    let internal = |reason: &str| format!("grpc-status: 13\ngrpc-message: {reason}");
    check_body(&[], b"", &internal("the call has no message"));
    check_body(&[], &[0, 0, 0, 0, 9, 1], &internal("a message is cut off"));
    check_body(&[], &[0, 0], &internal("a message is cut off"));
    check_body(&[], &[7, 0, 0, 0, 0], &internal("a message's flag is neither 0 nor 1"));
    check_body(
        &[],
        &compressed,
        &internal("a message is compressed, but no grpc-encoding says how"),
    );
    check_body(
        &[("grpc-encoding", "identity")],
        &compressed,
        &internal("a message is compressed, but no grpc-encoding says how"),
    );
    check_body(
        &gzip,
        &compressed,
        "grpc-status: 12\ngrpc-message: messages may not be compressed\n\
         grpc-accept-encoding: identity",
    );
    check_body(
        &[],
        &envelope(&[0; 2001]),
        "grpc-status: 8\ngrpc-message: a message is larger than 2000 bytes",
    );
}

#[test]
fn a_call_without_a_body_has_no_message() {
    let mut connection = greeted(LIMITS);
    let frames = said(&mut connection, &headers(1, END_STREAM));
    let expected = "grpc-status: 13\ngrpc-message: the call has no message\n";
    assert_eq!(headers_of(&frames, 1), format!("{OK_HEADERS}{expected}"));
}

#[test]
fn a_refusal_is_one_block_and_no_more_of_the_request_is_wanted() {
    let mut connection = greeted(LIMITS);
    let head = headers_to("/test.Echo/Refuse", 1, 0);
    let frames = said(&mut connection, &[head, data(1, 0, &envelope(b"x"))].concat());
    let expected = "grpc-status: 5\ngrpc-message: no such thing\n";
    assert_eq!(headers_of(&frames, 1), format!("{OK_HEADERS}{expected}"));
    assert_eq!((frames.len(), reset_of(&frames, 1)), (2, Some(0)));
    // Frames that crossed the refusal are ignored.
    assert!(said(&mut connection, &data(1, END_STREAM, b"more")).is_empty());
}

#[test]
fn content_length_must_be_true() {
    let length = |length: &'static str| {
        let fields = [&REQUEST[..], &[("content-length", length)]].concat();
        frame(HEADERS, END_HEADERS, 1, &block(&fields))
    };
    let trailers = || frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&[("x", "1")]));
    for (stated, is_true) in [("6", true), ("5", false), ("7", false)] {
        let whole = envelope(b"x");
        for body in [
            vec![data(1, END_STREAM, &whole)],
            vec![data(1, 0, &whole[..2]), data(1, END_STREAM, &whole[2..])],
            vec![data(1, 0, &whole), data(1, END_STREAM, &[])],
            vec![data(1, 0, &whole), trailers()],
        ] {
            let mut connection = greeted(LIMITS);
            let frames = said(&mut connection, &[length(stated), body.concat()].concat());
            assert_eq!(reset_of(&frames, 1), (!is_true).then_some(ErrorCode::Protocol as u32));
            let has_ok = headers_of(&frames, 1).contains("grpc-status: 0");
            assert_eq!((has_ok, connection.calls()), (is_true, 0));
        }
        // More than was stated is known before the end.
        let mut connection = greeted(LIMITS);
        let frames = said(&mut connection, &[length(stated), data(1, 0, &whole)].concat());
        let is_too_much = stated == "5";
        assert_eq!(reset_of(&frames, 1), is_too_much.then_some(ErrorCode::Protocol as u32));
    }
}

/// Regression: a client that watched an unknown health service was ended at once, and retried again and
/// again, because calls could only stay open to get notifications.
#[test]
fn a_call_that_is_kept_is_told_nothing_and_ends_with_the_server() {
    let mut connection = greeted(LIMITS);
    let body = data(1, END_STREAM, &envelope(b"first"));
    let frames = said(&mut connection, &[headers_to("/test.Echo/Keep", 1, 0), body].concat());
    assert_eq!(data_of(&frames, 1), envelope(b"first"));
    assert!(!headers_of(&frames, 1).contains("grpc-status"), "it stays open");
    assert_eq!(connection.calls(), 0, "no answer is awaited");
    connection.notify_watchers(b"second");
    assert!(take_output(&mut connection).is_empty());
    connection.shut_down();
    take_output(&mut connection);
    let frames = said(&mut connection, &frame(frame::PING, frame::ACK, 0, b"draining"));
    assert!(headers_of(&frames, 1).contains("grpc-status: 14"), "{frames:?}");
    assert!(connection.is_done());
}

#[test]
fn watchers_are_told_until_the_server_shuts_down() {
    let mut connection = greeted(LIMITS);
    let head = headers_to("/test.Echo/Watch", 1, 0);
    let body = data(1, END_STREAM, &envelope(b"first"));
    let frames = said(&mut connection, &[head, body].concat());
    assert_eq!(data_of(&frames, 1), envelope(b"first"));
    assert_eq!(connection.calls(), 0, "watchers apart");
    connection.notify_watchers(b"second");
    assert_eq!(data_of(&take_output(&mut connection), 1), envelope(b"second"));

    connection.shut_down();
    let frames = take_output(&mut connection);
    assert_eq!(frames.len(), 2);
    assert_eq!(frames[0].1, [0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    // A call that crossed the GOAWAY is answered.
    assert_eq!(data_of(&said(&mut connection, &call(3, b"x")), 3), envelope(b"x"));
    assert!(!connection.is_done());
    let pong = frame(frame::PING, frame::ACK, 0, &frames[1].1);
    let frames = said(&mut connection, &pong);
    assert_eq!(frames[0].1, [0, 0, 0, 3, 0, 0, 0, 0], "the last stream that is answered");
    assert!(headers_of(&frames, 1).contains("grpc-status: 14"));
    assert!(connection.is_done());
    // A later call is ignored, and so is its reset.
    let input = [call(5, b"x"), testing::reset(5), call(7, b"x")].concat();
    assert!(said(&mut connection, &input).is_empty());
    assert!(connection.is_done());
}

#[test]
fn messages_are_counted() {
    let mut connection = greeted(LIMITS);
    let mut service = Echo::default();
    let input = [call(1, b"x"), headers(3, 0), data(3, 0, &envelope(b"")), headers(5, 0)].concat();
    assert_eq!(connection.receive(&input, &mut service), Ok(2));
    assert_eq!(service.asked, 2);
    assert_eq!(connection.calls(), 2);
}

#[test]
fn equal_blocks_mean_what_the_table_says_now() {
    let mut connection = greeted(LIMITS);
    let request = |path: &str| {
        let mut block = vec![0x83, 0x86];
        let adding = crate::hpack::encode::Indexing::Add;
        for (name, value) in [("content-type", "application/grpc"), (":path", path)] {
            crate::hpack::encode::literal(adding, name.as_bytes(), value.as_bytes(), &mut block);
        }
        block
    };
    // Fills the table. The request itself is malformed, as :path comes late.
    let fill = |id, path| frame(HEADERS, END_HEADERS | END_STREAM, id, &request(path));
    let referring = |id| frame(HEADERS, END_HEADERS, id, &[0x83, 0x86, 0xbe, 0xbf]);
    let body = |id| data(id, END_STREAM, &envelope(b"x"));
    said(&mut connection, &fill(1, "/test.Echo/Echo"));
    for id in [3, 5] {
        let frames = said(&mut connection, &[referring(id), body(id)].concat());
        assert!(headers_of(&frames, id).contains("grpc-status: 0"), "{frames:?}");
    }
    said(&mut connection, &fill(7, "/test.Echo/Refuse"));
    let frames = said(&mut connection, &[referring(9), body(9)].concat());
    assert!(headers_of(&frames, 9).contains("grpc-status: 5"), "{frames:?}");
}
