//! Flow control.

use super::*;
use crate::frame::END_STREAM;
use crate::testing::{call, data, envelope, headers, headers_to, reset, settings, window_update};

/// A call with an answer of this many bytes.
fn large(stream: u32, bytes: usize) -> Vec<u8> {
    let body = data(stream, END_STREAM, &envelope(bytes.to_string().as_bytes()));
    [headers_to("/test.Echo/Large", stream, 0), body].concat()
}

fn sent(frames: &[(Head, Vec<u8>)], stream: u32) -> usize {
    data_of(frames, stream).len()
}

#[test]
fn an_answer_waits_for_the_stream_window() {
    let mut connection = greeted(LIMITS);
    let frames = said(&mut connection, &[settings(&[(4, 10)]), large(1, 20)].concat());
    assert_eq!(sent(&frames, 1), 10);
    assert_eq!(sent(&said(&mut connection, &window_update(1, 3)), 1), 3);
    // The connection's window is open; this stream's is not.
    assert_eq!(sent(&said(&mut connection, &window_update(0, 100)), 1), 0);
    assert_eq!(sent(&said(&mut connection, &settings(&[(4, 12)])), 1), 2);
    let frames = said(&mut connection, &window_update(1, 100));
    assert_eq!(sent(&frames, 1), 10);
    assert_eq!(headers_of(&frames, 1), "grpc-status: 0\n");
    assert_eq!(connection.calls(), 0);
    assert_eq!(connection.link.outgoing.waiting_bytes(), 0);
}

#[test]
fn a_window_may_become_negative() {
    let mut connection = greeted(LIMITS);
    let frames = said(&mut connection, &[settings(&[(4, 10)]), large(1, 20)].concat());
    assert_eq!(sent(&frames, 1), 10);
    said(&mut connection, &settings(&[(4, 0)]));
    assert_eq!(sent(&said(&mut connection, &window_update(1, 10)), 1), 0);
    assert_eq!(sent(&said(&mut connection, &window_update(1, 1)), 1), 1);
}

#[test]
fn answers_take_turns_at_the_connection_window() {
    let mut connection = greeted(LIMITS);
    let input = [large(1, 65_530), large(3, 100), large(5, 100)].concat();
    let frames = said(&mut connection, &input);
    assert_eq!((sent(&frames, 1), sent(&frames, 3), sent(&frames, 5)), (65_535, 0, 0));
    assert!(frames.iter().all(|(head, _)| head.length <= 16_384));
    let frames = said(&mut connection, &window_update(0, 50));
    assert_eq!((sent(&frames, 3), sent(&frames, 5)), (50, 0));
    let frames = said(&mut connection, &window_update(0, 60));
    assert_eq!((sent(&frames, 3), sent(&frames, 5)), (0, 60));
    assert_eq!(connection.calls(), 2);
    let frames = said(&mut connection, &window_update(0, 1000));
    assert_eq!((sent(&frames, 3), sent(&frames, 5)), (55, 45));
    assert_eq!(connection.calls(), 0);
}

#[test]
fn a_stream_that_is_reset_leaves_nothing() {
    let mut connection = greeted(LIMITS);
    said(&mut connection, &[settings(&[(4, 0)]), large(1, 500), headers(3, 0)].concat());
    said(&mut connection, &data(3, 0, &envelope(b"begun")[..7]));
    assert_eq!(connection.link.outgoing.waiting_bytes(), 505);
    assert!(connection.shared.buffered_bytes > 7);
    said(&mut connection, &[reset(1), reset(3)].concat());
    assert_eq!(connection.link.outgoing.waiting_bytes(), 0);
    assert_eq!(connection.shared.buffered_bytes, 0);
    assert_eq!(connection.calls(), 0);
    assert!(said(&mut connection, &window_update(0, 1000)).is_empty());
}

/// A client that never opens its window: memory stops growing, and calls are refused before the service is
/// asked. Calls work again once the window opens.
#[test]
fn a_peer_that_opens_no_window_is_refused() {
    let mut connection = greeted(Limits {
        streams_max: 1000,
        header_bytes_max: 16_384,
        buffered_bytes_max: 1 << 20,
        ..LIMITS
    });
    let mut service = Echo::default();
    connection.receive(&settings(&[(4, 0)]), &mut service).unwrap();
    let mut held_max = 0;
    for stream in (1..2000).step_by(2) {
        connection.receive(&large(stream, 9_995), &mut service).unwrap();
        connection.written(usize::MAX);
        held_max = held_max.max(connection.link.outgoing.unsent_bytes());
    }
    assert!(held_max < (1 << 20) + 20_000, "{held_max}");
    assert!(service.asked < 110, "{}", service.asked);
    connection.receive(&large(2001, 1), &mut service).unwrap();
    let frames = take_output(&mut connection);
    assert!(headers_of(&frames, 2001).contains("grpc-status: 8"), "{frames:?}");

    connection.receive(&settings(&[(4, 1 << 20)]), &mut service).unwrap();
    connection.receive(&window_update(0, 1 << 24), &mut service).unwrap();
    connection.written(usize::MAX);
    assert_eq!(connection.calls(), 0);
    assert_eq!(data_of(&said(&mut connection, &call(2003, b"x")), 2003), envelope(b"x"));
}

/// A client that does not read: the same, because of the output.
#[test]
fn a_peer_that_does_not_read_is_refused() {
    let mut connection = greeted(LIMITS);
    let mut service = Echo::default();
    let windows = [settings(&[(4, 1 << 30)]), window_update(0, 1 << 30)].concat();
    connection.receive(&windows, &mut service).unwrap();
    for stream in (1..1000).step_by(2) {
        connection.receive(&large(stream, 50_000), &mut service).unwrap();
    }
    assert!(connection.is_congested());
    assert!(connection.output().len() < (1 << 20) + 200_000);
    assert!(service.asked < 30);
    connection.written(usize::MAX);
    assert!(!connection.is_congested());
}

#[test]
fn the_connection_window_is_opened_in_batches() {
    let message_bytes_max = 1 << 20;
    let mut connection =
        greeted(Limits { message_bytes_max, buffered_bytes_max: 1 << 20, ..LIMITS });
    said(&mut connection, &settings(&[(4, 1 << 20)]));
    let body = envelope(&[0; 300_000]);
    let mut updates = 0;
    for stream in (1..200).step_by(2) {
        let mut input = [window_update(0, 400_000), headers(stream, 0)].concat();
        for chunk in body.chunks(16_384) {
            let flags = if chunk.len() < 16_384 { END_STREAM } else { 0 };
            input.extend(data(stream, flags, chunk));
        }
        let frames = said(&mut connection, &input);
        assert_eq!(data_of(&frames, stream), body);
        let is_update = |head: &Head| (head.kind, head.stream) == (frame::WINDOW_UPDATE, 0);
        updates += frames.iter().filter(|(head, _)| is_update(head)).count();
    }
    // 30 MB, while the window opens by 8 MiB at a time.
    assert_eq!(updates, 3);
}

/// Every byte of an answer is taken from both windows, also of small answers that fit.
#[test]
fn small_answers_use_up_the_windows() {
    let mut connection = greeted(LIMITS);
    said(&mut connection, &[settings(&[(4, 20)]), headers(1, 0)].concat());
    let answers = |connection: &mut Connection, input: &[u8]| sent(&said(connection, input), 1);
    for expected in [8, 8, 4, 0] {
        assert_eq!(answers(&mut connection, &data(1, 0, &envelope(b"abc"))), expected);
    }
    assert_eq!(answers(&mut connection, &window_update(1, 100)), 12);
    // The connection's: 8 calls of 8 KiB, less the bytes that were sent above.
    let mut total = 32;
    said(&mut connection, &settings(&[(4, 65_535)]));
    for stream in (3..21).step_by(2) {
        let frames = said(&mut connection, &large(stream, 8187));
        total += sent(&frames, stream);
    }
    assert_eq!(total, 65_535);
    // A window of one stream is not that of the connection.
    assert_eq!(sent(&said(&mut connection, &window_update(19, 1000)), 19), 0);
}

/// Others of the queue get their turn when one of them is reset, and the queue does not grow.
#[test]
fn a_reset_leaves_the_queue_to_the_others() {
    let mut connection = greeted(LIMITS);
    said(&mut connection, &large(1, 65_530));
    let waiting: Vec<u8> = (3..17).step_by(2).flat_map(|stream| large(stream, 100)).collect();
    said(&mut connection, &waiting);
    said(&mut connection, &settings(&[(4, 65_536)]));
    let held = connection.link.outgoing.capacity_bytes();
    for _ in 0..1000 {
        said(&mut connection, &window_update(3, 1));
    }
    assert_eq!(connection.link.outgoing.capacity_bytes(), held);
    said(&mut connection, &[reset(3), reset(7)].concat());
    let frames = said(&mut connection, &window_update(0, 1 << 20));
    let answered: Vec<usize> = (3..17).step_by(2).map(|stream| sent(&frames, stream)).collect();
    assert_eq!(answered, [0, 105, 0, 105, 105, 105, 105]);
    // Streams that were reset half-way are used again from the beginning.
    said(&mut connection, &[settings(&[(4, 10)]), large(17, 100), reset(17)].concat());
    assert_eq!(sent(&said(&mut connection, &large(19, 100)), 19), 10);
    assert_eq!(sent(&said(&mut connection, &window_update(19, 1000)), 19), 95);
}

/// A long stream of messages: its window is opened again when more than half of it is used.
#[test]
fn the_window_of_a_stream_is_opened_again() {
    let mut connection = greeted(LIMITS);
    said(&mut connection, &[headers(1, 0), window_update(0, 1 << 20)].concat());
    said(&mut connection, &window_update(1, 1 << 20));
    let mut opened = 0;
    for turn in 1..=200 {
        let frames = said(&mut connection, &data(1, 0, &envelope(&[0; 1995])));
        let is_update = |head: &Head| (head.kind, head.stream) == (frame::WINDOW_UPDATE, 1);
        let updates = frames.iter().filter(|(head, _)| is_update(head));
        opened += updates.map(|(_, word)| frame::word(word).unwrap()).sum::<u32>();
        assert_eq!(opened, 2000 * (turn / 17 * 17), "after {turn} messages");
    }
}

#[test]
fn reading_pauses_beyond_256_kib_of_output() {
    let mut connection = greeted(LIMITS);
    for (bytes, is_congested) in [(256 << 10, false), ((256 << 10) + 1, true)] {
        connection.link.outgoing.output.buffer().resize(bytes, 0);
        assert_eq!(connection.is_congested(), is_congested, "{bytes} bytes");
    }
}
