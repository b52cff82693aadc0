//! Memory that stays allocated, by capacity.

use proptest::prelude::*;

use super::*;
use crate::frame::{CONTINUATION, END_HEADERS, END_STREAM, HEADERS};
use crate::hpack::encode::{Indexing, literal};
use crate::testing::{
    REQUEST, any_frame, block, call, data, envelope, frame, headers, headers_to, reset, settings,
    window_update,
};

/// The limits of the sidecar.
const LARGE: Limits = Limits {
    streams_max: 128,
    message_bytes_max: 4 << 20,
    header_bytes_max: 16 * 1024,
    buffered_bytes_max: 8 << 20,
};

/// The most memory of a connection without calls, and of a trimmed one.
const IDLE_BYTES_MAX: usize = 56 * 1024;
const RESTING_BYTES_MAX: usize = 20 * 1024;

/// Checks that little memory stays after this input, all streams reset and all output written.
#[track_caller]
fn check_left(pieces: impl IntoIterator<Item = Vec<u8>>) {
    let mut connection = greeted(LARGE);
    let mut service = Echo::default();
    for piece in pieces {
        connection.receive(&piece, &mut service).unwrap();
        connection.written(usize::MAX);
    }
    let open: Vec<u32> = connection.streams.iter().map(|(id, _)| id).collect();
    for id in open {
        connection.receive(&reset(id), &mut service).unwrap();
    }
    connection.written(usize::MAX);
    let idle = connection.capacity_bytes();
    assert!(idle <= IDLE_BYTES_MAX, "{idle} bytes are left");
    assert_eq!(connection.shared.buffered_bytes, 0);
    connection.trim();
    let resting = connection.capacity_bytes();
    assert!(resting <= RESTING_BYTES_MAX, "{resting} bytes are left at rest");
    said(&mut connection, &[settings(&[(4, 1000)]), window_update(0, 1000)].concat());
    let frames = said(&mut connection, &call(99_999, b"x"));
    assert_eq!(data_of(&frames, 99_999), envelope(b"x"));
}

fn streams(count: u32) -> impl Iterator<Item = u32> {
    (0..count).map(|number| 2 * number + 1)
}

/// A request with this metadata, which is indexed.
fn indexed_request(stream: u32, name: &[u8], value: &[u8], times: usize) -> Vec<u8> {
    let mut bytes = block(&REQUEST);
    if stream == 1 {
        literal(Indexing::Add, name, value, &mut bytes);
    }
    bytes.extend([0xbe].repeat(times));
    frame(HEADERS, END_HEADERS, stream, &bytes)
}

/// Regression: 200 connections that each opened 32 streams and reset them kept 1 MB each. Closed streams were
/// kept by number, with all their buffers.
#[test]
fn streams_that_were_reset_leave_little() {
    let begun = envelope(&[0; 20_000]);
    check_left(
        streams(128).map(|stream| [headers(stream, 0), data(stream, 0, &begun[..16_000])].concat()),
    );
    // 12 KB of metadata each, from three bytes on the wire.
    check_left(streams(128).map(|stream| indexed_request(stream, b"x", &[b'y'; 4000], 3)));
    check_left(streams(128).map(|stream| indexed_request(stream, b"x", b"", 480)));
    let path = format!("/{}", "p".repeat(15_000));
    check_left(streams(128).map(|stream| headers_to(&path, stream, 0)));
}

#[test]
fn large_messages_and_answers_leave_little() {
    let large = envelope(&vec![0; 4 << 20]);
    let chunks = large.chunks(16_384).map(|chunk| data(1, 0, chunk));
    check_left([headers_to("/test.Echo/Unary", 1, 0)].into_iter().chain(chunks));
    // Answers that lack window.
    let ask = |stream| {
        let body = data(stream, 0, &envelope(b"8000"));
        [headers_to("/test.Echo/Large", stream, 0), body].concat()
    };
    check_left([settings(&[(4, 0)])].into_iter().chain(streams(120).map(ask)));
    let opened = [settings(&[(4, 1 << 20)]), window_update(0, 1 << 24)].concat();
    check_left([settings(&[(4, 0)])].into_iter().chain(streams(120).map(ask)).chain([opened]));
}

#[test]
fn blocks_and_frames_leave_little() {
    // Large blocks in parts, with Huffman strings.
    let block = [0x82].repeat(16_000);
    check_left(streams(20).map(|stream| {
        let parts = [
            frame(HEADERS, END_STREAM, stream, &block),
            frame(CONTINUATION, 0, stream, &block).repeat(8),
            frame(CONTINUATION, END_HEADERS, stream, &block),
        ];
        parts.concat()
    }));
    // Zero bits: every five are the symbol `0`.
    let mut huffman = vec![0x00];
    for _ in 0..2 {
        crate::hpack::integer::encode(7, 0x80, 5_000, &mut huffman);
        huffman.extend([0; 5_000]);
    }
    check_left(
        streams(20).map(|stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &huffman)),
    );
    // Frames in two halves.
    let body = data(1, 0, &[envelope(&[0; 16_000]), envelope(&[])].concat());
    let halves = [headers(1, 0), body[..8_000].to_vec(), body[8_000..].to_vec()];
    check_left(halves);
    check_left((0..200).map(|_| frame(frame::PING, 0, 0, &[0; 8]).repeat(40)));
}

/// Partial messages count by the memory that they take, and take no more than their length.
#[test]
fn held_bytes_are_memory() {
    let mut connection = greeted(LARGE);
    let mut service = Echo::default();
    let idle = connection.capacity_bytes();
    let large = envelope(&vec![0; 3 << 20]);
    connection.receive(&headers(1, 0), &mut service).unwrap();
    let mut sent = 0;
    for chunk in large[..large.len() - 1].chunks(1000) {
        connection.receive(&data(1, 0, chunk), &mut service).unwrap();
        connection.written(usize::MAX);
        sent += chunk.len();
        let held = connection.capacity_bytes() - idle;
        assert!(held >= sent, "{held} bytes are held of {sent}");
        assert!(held <= 2 * sent + 8 * 1024, "{held} bytes are held of {sent}");
    }
    assert!(connection.capacity_bytes() - idle <= large.len() + 8 * 1024);
}

/// Regression: 18 KB on the wire took 1.5 MB: headers of calls without a message, 12 KB for three bytes.
#[test]
fn a_few_bytes_on_the_wire_do_not_hold_much() {
    let mut connection = greeted(LARGE);
    let mut refused = 0;
    for stream in streams(100) {
        let request = indexed_request(stream, b"x", &[b'y'; 4000], 3);
        let frames = said(&mut connection, &request);
        refused += usize::from(reset_of(&frames, stream) == Some(ErrorCode::RefusedStream as u32));
    }
    assert!((75..90).contains(&refused), "{refused}");
    assert!(connection.capacity_bytes() < 300_000, "{}", connection.capacity_bytes());
    assert!(
        connection.capacity_bytes() > 150_000,
        "they are counted: {}",
        connection.capacity_bytes()
    );
    // The full number of typical calls is accepted.
    let mut connection = greeted(LARGE);
    for stream in streams(128) {
        let mut fields = block(&REQUEST);
        literal(Indexing::Without, b"x", &[b'y'; 1000], &mut fields);
        assert!(said(&mut connection, &frame(HEADERS, END_HEADERS, stream, &fields)).is_empty());
    }
}

/// Open calls keep almost nothing of their requests.
#[test]
fn open_calls_that_had_their_message_take_little_memory() {
    for path in ["/test.Echo/Echo", "/test.Echo/Watch"] {
        let mut connection = greeted(LARGE);
        for stream in streams(128) {
            let mut bytes = block(&[REQUEST[0], REQUEST[1], (":path", path), REQUEST[3]]);
            literal(Indexing::Without, b"x", &[b'y'; 10_000], &mut bytes);
            let message = data(stream, 0, &envelope(b"x"));
            said(&mut connection, &[frame(HEADERS, END_HEADERS, stream, &bytes), message].concat());
        }
        connection.trim();
        let held = connection.capacity_bytes();
        assert!(held <= 64 * 1024, "{held} bytes are held");
        assert_eq!(connection.streams.len(), 128);
        if path == "/test.Echo/Echo" {
            let frames = said(&mut connection, &data(1, END_STREAM, &envelope(b"again")));
            assert_eq!(data_of(&frames, 1), envelope(b"again"));
        }
    }
}

/// Each part of a connection's memory is counted, and freed by [`Connection::trim`] when it is not needed.
#[test]
fn every_part_is_counted_and_trimmed() {
    let ask = |path, id, message: &[u8]| {
        [headers_to(path, id, 0), data(id, END_STREAM, &envelope(message))].concat()
    };
    let large = || ask("/test.Echo/Large", 1, b"9000");
    let later = |id| ask("/test.Echo/Later", id, b"x");
    let left: Vec<u8> = streams(100).flat_map(|id| [later(id), reset(id)].concat()).collect();
    let mut indexed = block(&REQUEST);
    literal(Indexing::Add, b"x", &[b'y'; 3000], &mut indexed);
    // The input, whether its output is written, and the bytes that it takes at least.
    for (name, input, is_written, bytes) in [
        ("output", frame(frame::PING, 0, 0, &[0; 8]).repeat(500), false, 500 * 17),
        ("an answer that waits", [settings(&[(4, 0)]), large()].concat(), true, 9000),
        ("headers", frame(HEADERS, END_HEADERS, 1, &indexed), true, 2 * 3000),
        ("a block", frame(HEADERS, 0, 1, &[0x82; 9000]), true, 9000),
        ("a frame", data(1, 0, &[0; 9000])[..8000].to_vec(), true, 8000),
        ("pending calls without a stream", left, true, 100 * 24),
    ] {
        let mut connection = greeted(LARGE);
        let idle = connection.capacity_bytes();
        connection.receive(&input, &mut Echo::default()).unwrap();
        if is_written {
            connection.written(usize::MAX);
        }
        let held = connection.capacity_bytes() - idle;
        assert!(held >= bytes, "{name}: {held}");
        assert!(held <= 3 * bytes + 20_000, "{name}: {held}");
        connection.trim();
        assert!(connection.capacity_bytes() >= bytes.min(held / 2), "{name} is still needed");
    }
    // What calls leave behind.
    let mut connection = greeted(LARGE);
    said(&mut connection, &[large(), ask("/test.Echo/Echo", 3, b"x")].concat());
    assert!(connection.capacity_bytes() > 1000, "kept for the next calls");
    connection.trim();
    assert_eq!(connection.capacity_bytes(), 0);
    assert_eq!(connection.shared.buffered_bytes, 0);
}

/// Streams of well-behaved clients are reused.
#[test]
fn calls_use_the_memory_of_their_predecessors() {
    let mut connection = greeted(LARGE);
    let mut held = Vec::new();
    said(&mut connection, &window_update(0, 1 << 20));
    for stream in streams(200) {
        said(&mut connection, &headers(stream, 0));
        said(&mut connection, &data(stream, END_STREAM, &envelope(&[0; 500])));
        held.push(connection.capacity_bytes());
    }
    assert!(held[10..].iter().all(|bytes| *bytes == held[10]), "{held:?}");
    assert!(connection.streams.capacity_bytes() > 100, "one is kept");
}

proptest! {
    #[test]
    fn whatever_was_sent_little_is_left(
        frames in prop::collection::vec(any_frame(&[&REQUEST, &[("x", "y")]]), 0..60),
    ) {
        let mut connection = greeted(LARGE);
        let mut service = Echo::default();
        for frame in frames {
            if connection.receive(&frame, &mut service).is_err() {
                return Ok(());
            }
            let counted: usize = connection.streams.iter()
                .map(|(_, stream)| stream.capacity_of_what_arrived()).sum();
            prop_assert_eq!(connection.shared.buffered_bytes, counted);
            prop_assert!(connection.shared.headers_bytes <= counted);
        }
        connection.written(usize::MAX);
        let open: Vec<u32> = connection.streams.iter().map(|(id, _)| id).collect();
        for id in open {
            connection.receive(&reset(id), &mut service).unwrap();
        }
        prop_assert_eq!((connection.shared.buffered_bytes, connection.shared.headers_bytes), (0, 0));
        prop_assert!(connection.capacity_bytes() <= IDLE_BYTES_MAX);
    }
}

/// Few bytes on the wire refer to large entries of the table, so headers are bounded over all calls: by sixteen times
/// the largest, and by the room for messages.
#[test]
fn the_headers_of_all_calls_together_are_bounded() {
    for (header_bytes_max, buffered_bytes_max, most) in
        [(4_000, 1 << 20, 64_000), (4_000, 20_000, 20_000)]
    {
        let limits = Limits { streams_max: 100, header_bytes_max, buffered_bytes_max, ..LARGE };
        let mut connection = greeted(limits);
        let mut open = |stream| {
            let frames = said(&mut connection, &indexed_request(stream, b"x", &[b'y'; 1_000], 2));
            (reset_of(&frames, stream), connection.shared.headers_bytes)
        };
        let (first_refused, held) = streams(100)
            .map(|stream| (stream, open(stream)))
            .find_map(|(stream, (reset, held))| reset.map(|_| (stream, held)))
            .unwrap();
        assert!(held <= most && held > most - 5_000, "{held} bytes are held of {most}");
        assert_eq!(open(first_refused + 2).0, Some(ErrorCode::RefusedStream as u32));
        let mut service = Echo::default();
        connection.receive(&reset(3), &mut service).unwrap();
        let frames =
            said(&mut connection, &indexed_request(first_refused + 4, b"x", &[b'y'; 1_000], 2));
        assert_eq!(reset_of(&frames, first_refused + 4), None, "one has ended");
    }
}

#[test]
fn answers_that_lack_window_count_as_memory_until_they_are_sent() {
    let mut connection = greeted(LARGE);
    said(&mut connection, &settings(&[(4, 0)]));
    let idle = connection.capacity_bytes();
    for stream in streams(20) {
        let body = data(stream, 0, &envelope(b"8000"));
        said(&mut connection, &[headers_to("/test.Echo/Large", stream, 0), body].concat());
    }
    let held = connection.capacity_bytes() - idle;
    assert!((160_000..340_000).contains(&held), "{held} bytes are held");
    said(&mut connection, &[settings(&[(4, 1 << 20)]), window_update(0, 1 << 24)].concat());
    take_output(&mut connection);
    let left = connection.capacity_bytes().saturating_sub(idle);
    assert!(left < 60_000, "{left} bytes are left");
}

/// A call that has ended is kept for the next one.
#[test]
fn calls_that_are_kept_count_with_their_buffers() {
    let mut connection = greeted(LARGE);
    let body = envelope(&[0; 1500]);
    let parts = [data(1, 0, &body[..700]), data(1, END_STREAM, &body[700..])].concat();
    said(&mut connection, &[settings(&[(4, 0)]), headers(1, 0), parts].concat());
    said(&mut connection, &settings(&[(4, 2000)]));
    assert_eq!(connection.streams.len(), 0);
    let before = connection.streams.capacity_bytes();
    let kept = connection.streams.spare(|| panic!("no call is kept"));
    let (arrived, answer) = (kept.capacity_of_what_arrived(), kept.body.capacity_bytes());
    assert!(arrived > 1500 && answer > 1500, "{arrived} and {answer} bytes");
    let counted = before - connection.streams.capacity_bytes();
    assert_eq!(counted, size_of::<Stream>() + arrived + answer);
}

/// A short block that leaves the table as it is, and refers to a path of this many bytes. How many bytes its request
/// has in memory, and how many are kept of both.
fn kept_of(path_bytes: usize, block_bytes: usize) -> (usize, usize) {
    let mut connection = greeted(LARGE);
    let path = format!("/{}", "p".repeat(path_bytes - 1));
    let mut fields = block(&[REQUEST[0], REQUEST[1], REQUEST[3]]);
    literal(Indexing::Add, b":path", path.as_bytes(), &mut fields);
    said(&mut connection, &frame(HEADERS, END_HEADERS, 1, &fields));
    let mut short = vec![0x83, 0x86, 0xbe];
    literal(Indexing::Without, b"x", &vec![b'y'; block_bytes - short.len() - 4], &mut short);
    assert_eq!(short.len(), block_bytes);
    said(&mut connection, &frame(HEADERS, END_HEADERS | END_STREAM, 3, &short));
    let before = connection.capacity_bytes();
    let kept = std::mem::take(&mut connection.recent).capacity_bytes();
    assert_eq!(before - connection.capacity_bytes(), kept);
    let request = connection.streams.spare(|| panic!("no call is kept")).request.capacity_bytes();
    (request, kept)
}

/// Requests are compared with the last one, up to 64 bytes of a block and 2 KiB of a request.
#[test]
fn the_last_request_is_kept_if_it_is_small_and_counts() {
    let (other, _) = kept_of(1000, 64);
    // The path is the rest of the request.
    let path_bytes_max = 2048 - (other - 1000);
    for (path_bytes, block_bytes, is_kept) in [
        (1000, 20, true),
        (1000, 64, true),
        (1000, 65, false),
        (path_bytes_max, 64, true),
        (path_bytes_max + 1, 64, false),
    ] {
        let (request, kept) = kept_of(path_bytes, block_bytes);
        let expected = if is_kept { request + block_bytes } else { 0 };
        let slack = kept.saturating_sub(expected);
        assert!(
            kept >= expected.min(path_bytes + block_bytes) && slack < 100,
            "{kept} of {request}"
        );
    }
}

/// A call that waits for its first message still needs its metadata; later messages do not.
#[test]
fn an_open_call_is_trimmed_once_its_metadata_was_read() {
    let value = "y".repeat(500);
    let fields = [&REQUEST[..], &[("x", &value)]].concat();
    let begun = frame(HEADERS, END_HEADERS, 1, &block(&fields));
    let message = data(1, 0, &envelope(b"x"));
    for (input, was_read) in [(begun.clone(), false), ([begun, message.clone()].concat(), true)] {
        let mut connection = greeted(LARGE);
        let mut service = Echo::default();
        connection.receive(&input, &mut service).unwrap();
        let held = |connection: &mut Connection| {
            let held = connection.streams.get(1).unwrap().capacity_of_what_arrived();
            assert_eq!(connection.shared.buffered_bytes, held);
            held
        };
        let before = held(&mut connection);
        connection.trim();
        let after = held(&mut connection);
        assert!(before > 500 && if was_read { after < 100 } else { after == before });
        connection.receive(&message, &mut service).unwrap();
        assert_eq!(service.seen[0].1, format!("x: {value}\n"));
    }
}
