//! Shutdowns, and calls whose end waits for a window.

use super::*;
use crate::frame::{END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING};
use crate::testing::{
    REQUEST, block, call, data, envelope, frame, headers, headers_to, reset, settings,
    window_update,
};

fn pong(payload: &[u8; 8]) -> Vec<u8> {
    frame(PING, frame::ACK, 0, payload)
}

fn goaways(frames: &[(Head, Vec<u8>)]) -> Vec<u32> {
    let goaways = frames.iter().filter(|(head, _)| head.kind == GOAWAY);
    goaways.map(|(_, payload)| frame::word(&payload[..4]).unwrap()).collect()
}

/// The server's settings and window come first, before the client has said anything.
#[test]
fn the_server_says_what_it_accepts() {
    for (message_bytes_max, window) in [
        (2000, 65_535),
        (65_530, 65_535),
        (65_531, 65_536),
        (4 << 20, (4 << 20) + 5),
        (1 << 40, (1 << 31) - 1),
    ] {
        let mut connection = Connection::new(Limits { message_bytes_max, ..LIMITS });
        let mut expected = settings(&[(3, 10), (4, window), (6, 1000)]);
        expected.extend(window_update(0, (1 << 24) - 65_535));
        assert_eq!(connection.output(), expected);
        assert!(!connection.has_preface());
        let hello = greeting();
        let (preface, rest) = hello.split_at(24);
        connection.receive(preface, &mut Echo::default()).unwrap();
        assert!(!connection.has_preface(), "the settings are missing");
        connection.receive(rest, &mut Echo::default()).unwrap();
        assert!(connection.has_preface());
    }
}

/// A drain ends when its own ping is answered, no call is open and everything is written.
#[test]
fn a_drain_ends_after_its_ping_its_calls_and_its_output() {
    let mut connection = greeted(LIMITS);
    said(&mut connection, &headers(1, 0));
    // An answer to a ping that was not sent yet means nothing.
    assert_eq!(said(&mut connection, &pong(&DRAIN_PING)), []);
    assert_eq!(said(&mut connection, &headers(3, 0)), []);
    connection.shut_down();
    connection.shut_down();
    let frames = take_output(&mut connection);
    assert_eq!((goaways(&frames), frames.len()), (vec![(1 << 31) - 1], 2), "once");
    // Nor does the answer to another ping.
    assert_eq!(said(&mut connection, &pong(b"draininG")), []);
    assert_eq!(said(&mut connection, &pong(&[0; 8])), []);
    assert_eq!(said(&mut connection, &headers(5, 0)), []);
    assert_eq!(connection.calls(), 3);
    assert_eq!(goaways(&said(&mut connection, &pong(&DRAIN_PING))), [5]);
    assert_eq!(said(&mut connection, &pong(&DRAIN_PING)), [], "once");
    for id in [1, 3, 5] {
        assert!(!connection.is_done(), "call {id} is open");
        let frames = said(&mut connection, &data(id, END_STREAM, &envelope(b"x")));
        assert_eq!(data_of(&frames, id), envelope(b"x"));
    }
    assert!(connection.is_done());
    said(&mut connection, &headers(7, 0));
    connection.receive(&frame(PING, 0, 0, b"unwritte"), &mut Echo::default()).unwrap();
    assert!(!connection.is_done(), "its output is not written");
    connection.written(usize::MAX);
    assert!(connection.is_done());
    connection.shut_down();
    assert!(connection.output().is_empty());
    // The last stream that was named stays the last, even if the connection fails.
    connection.receive(&data(2, 0, b""), &mut Echo::default()).unwrap_err();
    assert_eq!(goaways(&take_output(&mut connection)), [5]);
    connection.shut_down();
    assert!(connection.output().is_empty());
}

/// Nothing is sent after the GOAWAY of a failed connection.
#[test]
fn a_failed_connection_says_nothing_more() {
    let mut connection = greeted(LIMITS);
    let mut service = Echo::default();
    let path = |path, id| [headers_to(path, id, 0), data(id, 0, &envelope(b"x"))].concat();
    let open = [path("/test.Echo/Watch", 1), path("/test.Echo/Later", 3)].concat();
    connection.receive(&open, &mut service).unwrap();
    connection.receive(&frame(PING, 0, 1, &[0; 8]), &mut service).unwrap_err();
    assert_eq!(goaways(&take_output(&mut connection)), [3]);
    connection.notify_watchers(b"news");
    assert!(!connection.answer(service.later[0], Ok(b"late")));
    connection.shut_down();
    assert!(connection.output().is_empty());
    assert!(connection.is_done());
}

/// A watcher that leaves no longer counts as one.
#[test]
fn watchers_are_counted_once_each() {
    let mut connection = greeted(LIMITS);
    let watch = |id, path| [headers_to(path, id, 0), data(id, 0, &envelope(b"x"))].concat();
    said(&mut connection, &[watch(1, "/test.Echo/Watch"), watch(3, "/test.Echo/Keep")].concat());
    said(&mut connection, &headers(5, 0));
    assert_eq!((connection.shared.staying, connection.calls()), (2, 1));
    assert_eq!(connection.unfinished_since(), Some(Duration::ZERO));
    said(&mut connection, &data(5, END_STREAM, &envelope(b"x")));
    assert_eq!(connection.unfinished_since(), None, "watchers owe nothing");
    // A second message ends the call.
    said(&mut connection, &data(1, 0, &envelope(b"x")));
    assert_eq!((connection.shared.staying, connection.calls()), (1, 0));
    said(&mut connection, &reset(3));
    assert_eq!((connection.shared.staying, connection.calls()), (0, 0));
    connection.notify_watchers(b"news");
    assert!(connection.output().is_empty());
}

/// A call that was refused while its answers wait for a window: the first end counts, and nothing follows it.
#[test]
fn an_end_that_waits_for_a_window_stays_as_it_is() {
    let compressed = vec![1, 0, 0, 0, 0];
    let closed = || settings(&[(4, 0)]);
    let opened = || settings(&[(4, 1000)]);
    let begun = || [closed(), headers(1, 0), data(1, 0, &envelope(b"one"))].concat();
    for after in [
        vec![data(1, 0, &compressed), data(1, 0, &envelope(b"two"))],
        vec![data(1, 0, &[compressed.clone(), envelope(b"two")].concat())],
        vec![data(1, 0, &compressed), data(1, END_STREAM, &[])],
        vec![data(1, 0, &compressed), frame(HEADERS, END_HEADERS | END_STREAM, 1, &[])],
        vec![data(1, END_STREAM, &[compressed.clone(), compressed.clone()].concat())],
    ] {
        let mut connection = greeted(LIMITS);
        let mut service = Echo::default();
        connection.receive(&[begun(), after.concat()].concat(), &mut service).unwrap();
        assert_eq!((service.asked, connection.streams.len()), (1, 1));
        connection.receive(&opened(), &mut service).unwrap();
        let frames = take_output(&mut connection);
        assert_eq!(data_of(&frames, 1), envelope(b"one"));
        let text = headers_of(&frames, 1);
        assert_eq!((text.matches("grpc-status").count(), text.contains("status: 13")), (1, true));
        assert_eq!(connection.streams.len(), 0);
    }
    // The same for watchers.
    let mut connection = greeted(LIMITS);
    let watch = [headers_to("/test.Echo/Watch", 1, 0), data(1, 0, &envelope(b"one"))].concat();
    said(&mut connection, &[closed(), watch, data(1, 0, b"second")].concat());
    connection.notify_watchers(b"news");
    connection.shut_down();
    said(&mut connection, &pong(&DRAIN_PING));
    let frames = said(&mut connection, &opened());
    assert_eq!(data_of(&frames, 1), envelope(b"one"));
    assert!(headers_of(&frames, 1).starts_with("grpc-status: 12\n"), "{frames:?}");
    assert!(connection.is_done());
}

/// Frames of refused calls are ignored, even if the client has begun others since.
#[test]
fn trailers_of_calls_that_were_refused_are_ignored() {
    let trailers = |id| frame(HEADERS, END_HEADERS | END_STREAM, id, &block(&[("x", "1")]));
    let refused = |id| [headers(id, 0), window_update(id, 0)].concat();
    for ids in [&[1, 3][..], &[1], &[3]] {
        let mut connection = greeted(LIMITS);
        said(&mut connection, &[refused(1), refused(3), headers(5, 0)].concat());
        let late: Vec<u8> = ids.iter().flat_map(|id| trailers(*id)).collect();
        assert_eq!(said(&mut connection, &late), []);
        assert_eq!(connection.calls(), 1);
    }
}

/// What has ended is not reset, and each end has the flags of the last frame.
#[test]
fn refusals_end_their_stream() {
    let text = block(&[&REQUEST[..3], &[("content-type", "text/html")]].concat());
    let mut large = block(&REQUEST);
    large.extend([0x10, 1, b'x']);
    crate::hpack::encode::string(&[b'y'; 1000], &mut large);
    for bytes in [text, large] {
        for flags in [0, END_STREAM] {
            let mut connection = greeted(LIMITS);
            let input = frame(HEADERS, END_HEADERS | flags, 1, &bytes);
            let frames = said(&mut connection, &input);
            let head = frames[0].0;
            assert_eq!((head.kind, head.flags), (HEADERS, END_HEADERS | END_STREAM));
            let expected = (flags == 0).then_some(0);
            assert_eq!(reset_of(&frames, 1), expected);
            assert_eq!(frames.len(), 1 + usize::from(expected.is_some()));
        }
    }
    let trailers = frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&[("x", "1")]));
    let mut connection = greeted(LIMITS);
    let whole = [headers(1, 0), data(1, 0, &envelope(b"x")), trailers].concat();
    assert_eq!(reset_of(&said(&mut connection, &whole), 1), None);
    let frames = said(
        &mut connection,
        &[
            call(3, b"x"),
            headers_to("/test.Echo/Refuse", 5, 0),
            data(5, END_STREAM, &envelope(b"x")),
        ]
        .concat(),
    );
    let last: Vec<u8> = frames
        .iter()
        .filter(|(head, _)| head.kind == HEADERS)
        .map(|(head, _)| head.flags)
        .collect();
    assert_eq!(last, [END_HEADERS, END_HEADERS | END_STREAM, END_HEADERS | END_STREAM]);
}

/// 1 MiB may be unsent; with one byte more, messages, notifications and late answers are refused. Each alone, as each
/// adds to what is unsent.
#[test]
fn a_peer_that_reads_nothing_gets_a_mebibyte() {
    let limits = Limits { message_bytes_max: 2 << 20, buffered_bytes_max: 8 << 20, ..LIMITS };
    let ask = |path, id, message: &[u8]| {
        [headers_to(path, id, 0), data(id, 0, &envelope(message))].concat()
    };
    // The stream, and what it gets beyond its bound.
    let refusal = "grpc-status: 8\ngrpc-message: the client does not read its answers\n";
    let calm = Some(ErrorCode::EnhanceYourCalm as u32);
    for (id, text, reset) in [(1, "", calm), (3, refusal, Some(0)), (7, refusal, Some(0))] {
        for beyond in [0, 1] {
            let mut connection = greeted(limits);
            let mut service = Echo::default();
            let open = [
                ask("/test.Echo/Watch", 1, b"watch"),
                ask("/test.Echo/Later", 3, b"later"),
                settings(&[(4, 0)]),
            ];
            connection.receive(&open.concat(), &mut service).unwrap();
            let bytes = ((1 << 20) - 5 + beyond).to_string();
            let large = ask("/test.Echo/Large", 5, bytes.as_bytes());
            connection.receive(&large, &mut service).unwrap();
            connection.written(usize::MAX);
            assert_eq!(connection.link.outgoing.unsent_bytes(), (1 << 20) + beyond);
            let asked = service.asked;
            match id {
                1 => connection.notify_watchers(b"news"),
                3 => assert!(connection.answer(service.later[0], Ok(b"late"))),
                _ => {
                    connection.receive(&ask("/test.Echo/Echo", 7, b"x"), &mut service).unwrap();
                    assert_eq!(service.asked - asked, 1 - beyond);
                }
            }
            let is_refused = beyond > 0;
            assert_eq!(connection.link.outgoing.waiting_bytes() > (1 << 20) + beyond, !is_refused);
            let frames = take_output(&mut connection);
            assert_eq!(reset_of(&frames, id), reset.filter(|_| is_refused));
            assert!(headers_of(&frames, id).ends_with(if is_refused { text } else { "" }));
        }
    }
}
