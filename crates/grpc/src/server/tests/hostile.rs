//! Hostile peers: tolerated within limits, then ended with the right error code.

use super::*;
use crate::frame::{CONTINUATION, END_HEADERS, END_STREAM, HEADERS, PADDED, PREFACE};
use crate::hpack::encode::{Indexing, literal};
use crate::testing::{
    REQUEST, block, call, data, envelope, frame, headers, reset, settings, window_update,
};

const PROTOCOL: u32 = ErrorCode::Protocol as u32;
const CALM: u32 = ErrorCode::EnhanceYourCalm as u32;
const CLOSED: u32 = ErrorCode::StreamClosed as u32;
const FLOW: u32 = ErrorCode::FlowControl as u32;
const SIZE: u32 = ErrorCode::FrameSize as u32;
const COMPRESSION: u32 = ErrorCode::Compression as u32;

/// The input ends the connection with this error and a GOAWAY.
#[track_caller]
fn check_broken(input: &[u8], code: u32) {
    let mut connection = greeted(LIMITS);
    let broken = connection.receive(input, &mut Echo::default()).unwrap_err();
    assert_eq!(broken.code, code, "{broken}");
    let frames = take_output(&mut connection);
    let (head, payload) = frames.last().unwrap();
    assert_eq!(head.kind, frame::GOAWAY);
    assert_eq!(payload[4..8], code.to_be_bytes());
    assert_eq!(connection.receive(b"", &mut Echo::default()), Err(broken));
    assert!(connection.is_done());
}

/// The input resets stream 1 with this error, and the connection goes on.
#[track_caller]
fn check_reset(input: &[u8], code: u32) {
    let mut connection = greeted(LIMITS);
    let frames = said(&mut connection, input);
    assert_eq!(reset_of(&frames, 1), Some(code));
    assert_eq!(data_of(&said(&mut connection, &call(99, b"x")), 99), envelope(b"x"));
    assert_eq!(connection.shared.buffered_bytes, 0);
}

/// The piece, repeated, ends the connection with this error at some time. Until then the peer reads and
/// memory does not grow.
#[track_caller]
fn check_flood(mut piece: impl FnMut(u32) -> Vec<u8>, code: u32) {
    let mut connection = greeted(LIMITS);
    let mut service = Echo::default();
    for turn in 0..1_000_000 {
        if let Err(broken) = connection.receive(&piece(turn * 2 + 1), &mut service) {
            assert_eq!(broken.code, code, "{broken}");
            return;
        }
        connection.written(usize::MAX);
        assert!(connection.streams.len() <= LIMITS.streams_max as usize);
        assert!(connection.shared.buffered_bytes <= LIMITS.buffered_bytes_max);
    }
    panic!("the flood is tolerated");
}

#[test]
fn other_protocols_are_seen_by_their_first_bytes() {
    for input in [&b"GET / HTTP/1.1\r\n"[..], b"\x16\x03\x01", b"PRI * HTTP/1"] {
        let mut connection = Connection::new(LIMITS);
        let broken = connection.receive(input, &mut Echo::default()).unwrap_err();
        assert_eq!(broken.code, PROTOCOL);
    }
    let mut connection = Connection::new(LIMITS);
    let early = [&PREFACE[..], &headers(1, 0)].concat();
    assert_eq!(connection.receive(&early, &mut Echo::default()).unwrap_err().code, PROTOCOL);
    let mut connection = Connection::new(LIMITS);
    let early = [&PREFACE[..], &frame(frame::SETTINGS, frame::ACK, 0, &[])].concat();
    assert_eq!(connection.receive(&early, &mut Echo::default()).unwrap_err().code, PROTOCOL);
}

#[test]
fn frames_of_wrong_sizes() {
    check_broken(&frame(frame::DATA, 0, 1, &[0; 16_385]), SIZE);
    check_broken(&[1, 0, 0, 99, 0, 0, 0, 0, 0], SIZE);
    check_broken(&frame(frame::PING, 0, 0, &[0; 7]), SIZE);
    check_broken(&frame(frame::SETTINGS, 0, 0, &[0; 7]), SIZE);
    check_broken(&frame(frame::SETTINGS, frame::ACK, 0, &[0; 6]), SIZE);
    check_broken(&frame(frame::WINDOW_UPDATE, 0, 0, &[0; 5]), SIZE);
    check_broken(&frame(frame::GOAWAY, 0, 0, &[0; 7]), SIZE);
    check_broken(&frame(frame::PRIORITY, 0, 1, &[0; 4]), SIZE);
    check_broken(&[headers(1, 0), frame(frame::RST_STREAM, 0, 1, &[0; 3])].concat(), SIZE);
    check_broken(&frame(HEADERS, END_HEADERS | frame::WITH_PRIORITY, 1, &[0; 4]), SIZE);
}

#[test]
fn settings_beyond_their_bounds() {
    check_broken(&settings(&[(2, 2)]), PROTOCOL);
    check_broken(&settings(&[(4, 1 << 31)]), FLOW);
    check_broken(&settings(&[(5, 16_383)]), PROTOCOL);
    check_broken(&settings(&[(5, 1 << 24)]), PROTOCOL);
    // The largest and smallest values that are allowed.
    for pair in [(2, 0), (2, 1), (4, (1 << 31) - 1), (5, 16_384), (5, (1 << 24) - 1)] {
        assert_eq!(said(&mut greeted(LIMITS), &settings(&[pair])).len(), 1, "{pair:?}");
    }
    let unknown = settings(&[(77, 1), (1, 0), (5, 1 << 20)]);
    assert_eq!(said(&mut greeted(LIMITS), &unknown).len(), 1, "acknowledged");
}

#[test]
fn frames_on_the_wrong_streams() {
    for kind in [frame::DATA, HEADERS, frame::PRIORITY, frame::RST_STREAM] {
        check_broken(&frame(kind, END_HEADERS, 0, &[0; 5]), PROTOCOL);
    }
    for kind in [frame::SETTINGS, frame::PING, frame::GOAWAY] {
        check_broken(&frame(kind, 0, 1, &[0; 8]), PROTOCOL);
    }
    check_broken(&frame(frame::PUSH_PROMISE, END_HEADERS, 1, &[0; 8]), PROTOCOL);
    check_broken(&headers(2, 0), PROTOCOL);
    check_broken(&[headers(5, 0), headers(3, 0)].concat(), PROTOCOL);
    check_broken(&data(1, 0, b"idle"), PROTOCOL);
    // Regression: such a frame was ignored after a stream with a higher number was refused.
    check_broken(&[headers(5, 0), window_update(5, 0), data(2, 0, b"idle")].concat(), PROTOCOL);
    check_broken(&reset(1), PROTOCOL);
    check_broken(&window_update(1, 1), PROTOCOL);
    check_broken(&[call(1, b"x"), data(1, 0, b"more")].concat(), CLOSED);
    check_broken(&[call(1, b"x"), headers(1, END_STREAM)].concat(), CLOSED);
    check_broken(&[headers(1, 0), reset(1), data(1, 0, b"x")].concat(), CLOSED);
}

#[test]
fn a_stream_that_has_ended_takes_nothing_more() {
    // The stream is open, because its answer waits for the window.
    let waiting = [settings(&[(4, 0)]), call(1, b"x")].concat();
    check_reset_only(&[&waiting[..], &data(1, 0, b"more")].concat(), CLOSED);
    let trailers = frame(HEADERS, END_HEADERS | END_STREAM, 1, &[]);
    check_reset_only(&[&waiting[..], &trailers].concat(), CLOSED);
}

#[track_caller]
fn check_reset_only(input: &[u8], code: u32) {
    let mut connection = greeted(LIMITS);
    assert_eq!(reset_of(&said(&mut connection, input), 1), Some(code));
    assert_eq!((connection.calls(), connection.link.outgoing.waiting_bytes()), (0, 0));
}

#[test]
fn padding_and_priority() {
    check_broken(&[headers(1, 0), data(1, PADDED, &[5, 1, 2, 3])].concat(), PROTOCOL);
    check_broken(&[headers(1, 0), data(1, PADDED, &[])].concat(), PROTOCOL);
    check_broken(&frame(HEADERS, END_HEADERS | PADDED, 1, &[1]), PROTOCOL);
    let padded = [&[4][..], &envelope(b"x"), &[0; 4]].concat();
    let input = [headers(1, 0), data(1, PADDED | END_STREAM, &padded)].concat();
    assert_eq!(data_of(&said(&mut greeted(LIMITS), &input), 1), envelope(b"x"));
}

/// Regression: a request that depended on its own stream ended the connection. RFC 9113 deprecates priorities
/// and has no such error.
#[test]
fn priorities_are_skipped_whatever_they_say() {
    for depends_on in [0, 1, 77, 1 << 31] {
        let payload = [&u32::to_be_bytes(depends_on)[..], &[15], &block(&REQUEST)].concat();
        let headers = frame(HEADERS, END_HEADERS | frame::WITH_PRIORITY, 1, &payload);
        let input = [headers, data(1, END_STREAM, &envelope(b"x"))].concat();
        assert_eq!(data_of(&said(&mut greeted(LIMITS), &input), 1), envelope(b"x"));
    }
}

#[test]
fn windows_beyond_their_bounds() {
    check_broken(&window_update(0, (1 << 31) - 1), FLOW);
    check_broken(&window_update(0, 0), PROTOCOL);
    check_reset(&[headers(1, 0), window_update(1, (1 << 31) - 1)].concat(), FLOW);
    check_reset(&[headers(1, 0), window_update(1, 0)].concat(), PROTOCOL);
    let most = (1 << 31) - 1 - 65_535;
    let widest = [headers(1, 0), window_update(0, most), window_update(1, most)].concat();
    assert_eq!(said(&mut greeted(LIMITS), &widest), []);
    let input = [headers(1, 0), window_update(1, most), settings(&[(4, 65_536)])].concat();
    check_broken(&input, FLOW);
}

/// The window of a refused call stays closed while its refusal waits behind an answer.
#[test]
fn overrun_windows() {
    let two = [envelope(b"x"), vec![9; 5]].concat();
    let mut input = [settings(&[(4, 0)]), headers(1, 0), data(1, 0, &two)].concat();
    for _ in 0..4 {
        input.extend(data(1, 0, &[0; 16_384]));
    }
    check_reset_only(&input, FLOW);
}

#[test]
fn header_blocks_that_are_interrupted() {
    let begun = frame(HEADERS, 0, 1, &block(&REQUEST));
    check_broken(&[&begun[..], &data(1, 0, b"x")].concat(), PROTOCOL);
    check_broken(&[&begun[..], &frame(CONTINUATION, END_HEADERS, 3, &[])].concat(), PROTOCOL);
    check_broken(&[&begun[..], &frame(99, 0, 1, &[])].concat(), PROTOCOL);
    check_broken(&frame(CONTINUATION, END_HEADERS, 1, &[]), PROTOCOL);
    check_broken(&frame(HEADERS, END_HEADERS, 1, &[0xbe]), COMPRESSION);
    let trailers = frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0xbe]);
    check_broken(&[headers(1, 0), trailers].concat(), COMPRESSION);
}

#[test]
fn continuation_floods() {
    let begun = |stream| if stream == 1 { frame(HEADERS, 0, 1, &[]) } else { Vec::new() };
    check_flood(|turn| [begun(turn), frame(CONTINUATION, 0, 1, &[])].concat(), CALM);
    check_flood(|turn| [begun(turn), frame(CONTINUATION, 0, 1, &[0x82; 100])].concat(), CALM);
}

/// Regression: a client with headers above 32 KB lost its connection and all its calls. The block was not
/// decoded, so the decoder's state was lost.
#[test]
fn a_block_that_is_too_large_ends_its_call_only() {
    let mut connection = greeted(LIMITS);
    let mut large = Vec::new();
    literal(Indexing::Add, b"x-kept", b"1", &mut large);
    literal(Indexing::Without, b"x-large", &[b'y'; 9_000], &mut large);
    let (first, rest) = large.split_at(5_000);
    let input =
        [frame(HEADERS, END_STREAM, 1, first), frame(CONTINUATION, END_HEADERS, 1, rest)].concat();
    let frames = said(&mut connection, &input);
    assert!(headers_of(&frames, 1).contains("grpc-status: 8"), "{frames:?}");
    // The block's insertions are in the table.
    let request = [&block(&REQUEST)[..], &[0xbe]].concat();
    let input = [frame(HEADERS, END_HEADERS, 3, &request), data(3, END_STREAM, &envelope(b"x"))];
    assert_eq!(data_of(&said(&mut connection, &input.concat()), 3), envelope(b"x"));
    // Ten times the header limit of a call ends the connection, even in a single frame.
    let part = |kind| frame(kind, 0, 5, &[0x82; 10_000]);
    check_broken(&[part(HEADERS), part(CONTINUATION)].concat(), CALM);
}

/// Many references to one large entry: the stream is refused, and the table stays correct.
#[test]
fn header_bombs() {
    let mut bomb = Vec::new();
    literal(Indexing::Add, b"x-bomb", &[b'y'; 900], &mut bomb);
    bomb.resize(bomb.len() + 10_000, 0xbe);
    let mut connection = greeted(LIMITS);
    let frames = said(&mut connection, &frame(HEADERS, END_HEADERS, 1, &bomb));
    let status = "grpc-status: 8\ngrpc-message: the header fields are larger than 1000 bytes\n";
    assert!(headers_of(&frames, 1).ends_with(status), "{frames:?}");
    assert_eq!(reset_of(&frames, 1), Some(0));
    assert_eq!(connection.shared.buffered_bytes, 0);
    // The block's insertions are in the table.
    let request = [&block(&REQUEST)[..], &[0xbe]].concat();
    let input = [frame(HEADERS, END_HEADERS, 3, &request), data(3, END_STREAM, &envelope(b"x"))];
    let frames = said(&mut connection, &input.concat());
    assert_eq!(headers_of(&frames, 3).matches("grpc-status: 8").count(), 1, "1000 bytes again");
}

#[test]
fn floods_of_useless_frames() {
    check_flood(|stream| [headers(stream, 0), reset(stream)].concat(), CALM);
    check_flood(|_| settings(&[]), CALM);
    check_flood(|_| settings(&[(4, 100), (4, 200)]), CALM);
    check_flood(|_| frame(frame::PING, frame::ACK, 0, &[0; 8]), CALM);
    check_flood(|_| frame(frame::SETTINGS, frame::ACK, 0, &[]), CALM);
    check_flood(|_| frame(frame::PRIORITY, 0, 1, &[0; 5]), CALM);
    check_flood(|_| frame(99, 0, 1, &[0; 5]), CALM);
    check_flood(|_| window_update(0, 1), CALM);
    check_flood(|_| frame(frame::GOAWAY, 0, 0, &[0; 8]), CALM);
    let once = |turn, stream| if turn == 1 { headers(stream, 0) } else { Vec::new() };
    check_flood(|turn| [once(turn, 1), data(1, 0, &[])].concat(), CALM);
    check_flood(|turn| [once(turn, 1), data(1, PADDED, &[1, 0])].concat(), CALM);
    check_flood(|turn| [once(turn, 1), window_update(1, 1)].concat(), CALM);
    // Malformed in several ways.
    check_flood(|stream| frame(HEADERS, END_HEADERS, stream, &[0x82]), CALM);
    check_flood(|stream| headers(stream, END_STREAM), CALM);
    check_flood(|stream| [headers(stream, 0), window_update(stream, 0)].concat(), CALM);
    check_flood(|stream| [headers(stream, 0), data(stream, END_STREAM, &[])].concat(), CALM);
    // Beyond the limit of concurrent streams.
    check_flood(|stream| headers(stream, 0), CALM);
}

/// Regression: pings were answered without end. They were free, as an idle connection may be pinged for
/// years. Now they cost budget, and time refills it.
#[test]
fn ping_floods() {
    check_flood(|_| frame(frame::PING, 0, 0, b"ping...."), CALM);
    let mut connection = greeted(LIMITS);
    let ping = frame(frame::PING, 0, 0, b"ping....");
    for second in 0..100_000 {
        connection.set_time(Duration::from_secs(second));
        assert_eq!(said(&mut connection, &ping.repeat(20)).len(), 20, "answered");
    }
}

/// A peer that does not read replies is not read, and is cut off if the owner reads nevertheless.
#[test]
fn replies_that_are_not_read() {
    let mut connection = greeted(LIMITS);
    let mut service = Echo::default();
    let pings = frame(frame::PING, 0, 0, b"ping....").repeat(1000);
    let mut congested = false;
    let mut now = Duration::ZERO;
    let broken = loop {
        now += Duration::from_secs(60);
        connection.set_time(now);
        congested |= connection.is_congested();
        if let Err(broken) = connection.receive(&pings, &mut service) {
            break broken;
        }
    };
    assert!(congested);
    assert_eq!(broken.code, CALM);
    assert!(connection.output().len() < 9 << 20 && connection.output().len() > 8 << 20);
}

/// Regression: a client that sent single bytes got a turn of the connection for each, for ever.
#[test]
fn a_trickle_of_bytes_costs_budget() {
    let input = [headers(1, 0), data(1, 0, &envelope(&[0; 2000]))].concat();
    let mut connection = greeted(LIMITS);
    let mut service = Echo::default();
    let mut fed = |connection: &mut Connection, input: &[u8]| {
        let mut bytes = input.iter();
        bytes.try_for_each(|byte| {
            connection.receive_at(Duration::ZERO, &[*byte], &mut service).map(drop)
        })
    };
    assert_eq!(fed(&mut connection, &input), Ok(()));
    let body = data(1, 0, &envelope(&[0; 2000]));
    let broken = (0..100).find_map(|_| fed(&mut connection, &body).err());
    assert_eq!(broken.map(|broken| broken.code), Some(CALM));
}

/// Regression: a client with unsent answers on each call changed its windows back and forth, and every 15
/// bytes visited all calls. Calls in between refilled the budget.
#[test]
fn windows_that_change_back_and_forth_cost_as_many_calls_as_they_touch() {
    let limits = Limits { streams_max: 128, buffered_bytes_max: 1 << 20, ..LIMITS };
    let mut connection = greeted(limits);
    let mut service = Echo::default();
    let waiting = (1..256).step_by(2).map(|stream| call(stream, b"x"));
    let waiting = [settings(&[(4, 0)])].into_iter().chain(waiting).collect::<Vec<_>>().concat();
    connection.receive(&waiting, &mut service).unwrap();
    let mut flips = 0;
    while connection
        .receive(&[settings(&[(4, 1)]), settings(&[(4, 0)])].concat(), &mut service)
        .is_ok()
    {
        connection.written(usize::MAX);
        flips += 1;
    }
    assert!(flips < 300, "{flips}");
}

/// Regression: a client repeated reflection requests of some 30 bytes with answers of 30 KB.
#[test]
fn answers_far_larger_than_what_asks_for_them_run_out() {
    let mut connection = greeted(LIMITS);
    let mut service = Echo::default();
    let windows = [settings(&[(4, 1 << 30)]), window_update(0, 1 << 30)].concat();
    connection.receive(&windows, &mut service).unwrap();
    let ask = |stream| {
        let body = data(stream, END_STREAM, &envelope(b"30000"));
        [crate::testing::headers_to("/test.Echo/Large", stream, 0), body].concat()
    };
    let broken = (0..2000).find_map(|turn| {
        connection.written(usize::MAX);
        connection.receive(&ask(2 * turn + 1), &mut service).err()
    });
    assert_eq!(broken.map(|broken| broken.code), Some(CALM));
    assert!(service.asked > 50 && service.asked < 100, "{}", service.asked);
    // Time refills the budget, and large messages may have large answers.
    let mut connection = greeted(LIMITS);
    connection.receive(&windows, &mut service).unwrap();
    for turn in 0..2000 {
        connection.set_time(Duration::from_secs(2 * u64::from(turn)));
        connection.receive(&ask(4 * turn + 1), &mut service).unwrap();
        let large = call(4 * turn + 3, &[b'x'; 1900]);
        connection.receive(&large, &mut service).unwrap();
        connection.written(usize::MAX);
    }
}

/// A client that makes calls never exhausts the budget, whatever follows them.
#[test]
fn calls_refill_the_budget() {
    let mut connection = greeted(LIMITS);
    let mut service = Echo::default();
    for stream in (1..200_000).step_by(2) {
        let extras = [window_update(0, 6), window_update(0, 1), reset(stream)];
        let input = [call(stream, b"x"), extras.concat()].concat();
        connection.receive(&input, &mut service).unwrap();
        connection.written(usize::MAX);
    }
    assert_eq!(service.asked, 100_000);
}

#[test]
fn too_many_streams_are_refused() {
    let mut connection = greeted(LIMITS);
    let first: Vec<u8> = (1..20).step_by(2).flat_map(|stream| headers(stream, 0)).collect();
    assert!(said(&mut connection, &first).is_empty());
    let frames = said(&mut connection, &headers(21, 0));
    assert_eq!(reset_of(&frames, 21), Some(ErrorCode::RefusedStream as u32));
    // The end of a call frees its stream. Frames of the refused call are ignored.
    let input = [data(1, END_STREAM, &envelope(b"x")), data(21, 0, b"late"), call(23, b"y")];
    let frames = said(&mut connection, &input.concat());
    assert_eq!((data_of(&frames, 1), data_of(&frames, 23)), (envelope(b"x"), envelope(b"y")));
}

#[test]
fn what_has_begun_is_bounded_over_all_streams() {
    let mut connection = greeted(LIMITS);
    let mut refused = 0;
    for stream in (1..20).step_by(2) {
        let input = [headers(stream, 0), data(stream, 0, &envelope(&[0; 2000])[..1500])].concat();
        let frames = said(&mut connection, &input);
        let status = "too many partial messages on this connection";
        refused += usize::from(
            headers_of(&frames, stream).contains(status) || reset_of(&frames, stream) == Some(7),
        );
        assert!(connection.shared.buffered_bytes <= LIMITS.buffered_bytes_max);
    }
    assert!((6..9).contains(&refused), "{refused}");
    // Calls within the limit are answered.
    let frames = said(&mut connection, &data(1, END_STREAM, &envelope(&[0; 2000])[1500..]));
    assert_eq!(data_of(&frames, 1), envelope(&[0; 2000]));
}
