//! What frames cost of the budget for useless work.

use super::*;
use crate::frame::{CONTINUATION, END_HEADERS, END_STREAM, HEADERS, PADDED, PING, PRIORITY};
use crate::link::BUDGET_MAX;
use crate::testing::{
    REQUEST, block, call, data, envelope, frame, headers, headers_to, reset, settings,
    window_update,
};

/// A connection with room for refills, and calls 1 (no message yet) and 3 (an answer that waits for a window)
/// under way.
fn prepared() -> Connection {
    let mut connection = greeted(LIMITS);
    said(&mut connection, &[headers(1, 0), settings(&[(4, 0)]), call(3, b"x")].concat());
    said(&mut connection, &frame(PING, 0, 0, &[0; 8]).repeat(1000));
    connection
}

/// The budget that this input takes; a negative number is a refill.
#[track_caller]
fn check(input: &[Vec<u8>], expected: i64) {
    let mut connection = prepared();
    let before = i64::from(connection.link.budget());
    assert!(before < i64::from(BUDGET_MAX) - 900);
    said(&mut connection, &input.concat());
    assert_eq!(before - i64::from(connection.link.budget()), expected);
}

#[test]
fn useless_frames_cost_budget_and_calls_refill_it() {
    check(&[], 0);
    check(&[headers(5, 0)], 0);
    check(&[frame(PING, 0, 0, &[0; 8])], 1);
    check(&[frame(PING, frame::ACK, 0, &[0; 8])], 1);
    check(&[settings(&[])], 1);
    check(&[frame(frame::SETTINGS, frame::ACK, 0, &[])], 1);
    check(&[frame(PRIORITY, 0, 1, &[0; 5])], 1);
    check(&[frame(99, 0, 0, &[])], 1);
    check(&[frame(frame::GOAWAY, 0, 0, &[0; 8])], 1);
    check(&[window_update(0, 1)], 1);
    check(&[window_update(1, 1)], 1);
    check(&[reset(1)], 1);
    // A window that lets a frame be sent refills.
    check(&[window_update(3, 1)], -1);
    check(&[window_update(3, 6)], -1);
    // Data that is a part of a message is free; none at all is not.
    check(&[data(1, 0, &[0])], 0);
    check(&[data(1, 0, &[0]), data(1, 0, &[0])], 0);
    check(&[data(1, 0, &[])], 1);
    check(&[data(1, PADDED, &[1, 0])], 1);
    // Calls that end with a message, and others.
    check(&[data(1, 0, &envelope(b"x"))], -8);
    check(&[data(1, END_STREAM, &envelope(b"x"))], -8);
    check(&[data(1, 0, &envelope(b"x")), data(1, END_STREAM, &[])], -8);
    check(&[data(1, END_STREAM, &[])], 1);
    check(&[data(1, END_STREAM, &[0])], 1);
    check(&[headers_to("/test.Echo/Refuse", 5, 0), data(5, END_STREAM, &envelope(b"x"))], -8);
    check(&[data(1, 0, &[2, 0, 0, 0, 0])], 1);
    check(&[headers(5, END_STREAM)], 1);
    check(&[frame(HEADERS, END_HEADERS, 5, &block(&REQUEST[1..]))], 1);
    check(&[frame(HEADERS, END_HEADERS, 5, &block(&REQUEST[..3]))], 1);
    check(&[frame(HEADERS, END_HEADERS | END_STREAM, 5, &block(&REQUEST[..3]))], 1);
    // Malformed trailers, and frames of calls that have ended.
    check(&[frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&REQUEST[..1]))], 1);
    check(&[window_update(1, 0), data(1, 0, b"late"), data(1, 0, b"")], 1 + 1 + 2);
    // Parts of a header block are free unless they are empty.
    let parts = [
        frame(HEADERS, 0, 5, &[]),
        frame(CONTINUATION, 0, 5, &block(&REQUEST)),
        frame(CONTINUATION, 0, 5, &[]),
        frame(CONTINUATION, END_HEADERS, 5, &[]),
    ];
    check(&parts, 2);
    // Windows of two calls, then of eight.
    check(&[settings(&[(4, 0)])], 1);
    check(&[settings(&[(4, 100), (4, 0)])], 1);
    let six: Vec<u8> = (5..17).step_by(2).flat_map(|id| headers(id, 0)).collect();
    check(&[six.clone(), settings(&[(4, 1)])], 1 + 2 - 2);
    check(&[six, settings(&[(4, 0)])], 1);
}

/// The connection's last stream has been named, so later calls are ignored, at a cost.
#[test]
fn calls_after_the_end_cost_budget() {
    let mut connection = prepared();
    connection.shut_down();
    said(&mut connection, &frame(PING, frame::ACK, 0, &DRAIN_PING));
    let before = connection.link.budget();
    said(&mut connection, &headers(5, 0));
    assert_eq!(connection.link.budget(), before - 1);
    said(&mut connection, &data(5, END_STREAM, &envelope(b"x")));
    assert_eq!(connection.link.budget(), before - 2);
}

#[test]
fn late_answers_refill_the_budget_or_cost_it_by_their_size() {
    for (bytes, cost) in [(1, -8_i64), (16 * 65, -8), (16 * 65 + 2560, 10)] {
        let mut connection = prepared();
        let mut service = Echo::default();
        let ask = [headers_to("/test.Echo/Later", 5, 0), data(5, 0, &envelope(b"x"))].concat();
        let before = i64::from(connection.link.budget());
        connection.receive(&ask, &mut service).unwrap();
        assert_eq!(i64::from(connection.link.budget()), before, "not before the answer");
        assert!(connection.answer(service.later[0], Ok(&vec![0; bytes])));
        assert_eq!(before - i64::from(connection.link.budget()), cost);
    }
}

/// A read of fewer than 64 bytes that completes no frame.
#[test]
fn tiny_reads_cost_budget() {
    let long = data(1, 0, &[0; 100]);
    for (bytes, cost) in [(0, 1), (1, 1), (9, 1), (63, 1), (64, 0), (100, 0)] {
        let mut connection = prepared();
        let before = connection.link.budget();
        let now = Duration::from_millis(7);
        connection.receive_at(now, &long[..bytes], &mut Echo::default()).unwrap();
        assert_eq!(before - connection.link.budget(), cost, "{bytes} bytes");
        assert_eq!(connection.shared.now, now);
    }
    // Beyond the budget, the connection ends as by any other error.
    let mut connection = prepared();
    let left = connection.link.budget() as usize;
    connection.link.spend_budget_for(left).unwrap();
    let broken = connection.receive_at(Duration::ZERO, b"", &mut Echo::default()).unwrap_err();
    let frames = take_output(&mut connection);
    assert_eq!(frames[0].0.kind, frame::GOAWAY);
    assert_eq!(connection.receive(b"", &mut Echo::default()), Err(broken));
}
