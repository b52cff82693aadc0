//! The budget for useless work, and memory.

use super::*;
use crate::frame::{CONTINUATION, PADDED, PING, PRIORITY};
use crate::link::BUDGET_MAX;
use crate::testing::raw_frames;

/// The budget that this input takes (a negative number is a refill), with calls 1 and 3 under way.
#[track_caller]
fn check_cost(input: &[Vec<u8>], expected: i64) {
    let mut connection = connected();
    said(&mut connection, &settings(&[(4, 2)])).unwrap();
    connection.call(b"x").unwrap();
    said(&mut connection, &[settings(&[(4, 65_535)]), settings(&[(4, 0)])].concat()).unwrap();
    connection.call(b"x").unwrap();
    // Room for refills.
    said(&mut connection, &frame(PING, 0, 0, &[0; 8]).repeat(1000)).unwrap();
    let before = i64::from(connection.link.budget());
    assert!(before < i64::from(BUDGET_MAX) - 900);
    said(&mut connection, &input.concat()).unwrap();
    assert_eq!(before - i64::from(connection.link.budget()), expected);
}

#[test]
fn useless_frames_cost_budget_and_calls_refill_it() {
    let begun = || headers(1, 0, &HEADERS_200);
    check_cost(&[], 0);
    check_cost(&[begun()], 0);
    check_cost(&[begun(), data(1, 0, b"x"), data(1, PADDED, &[0, 0])], 0);
    check_cost(&[begun(), data(1, 0, b"")], 1);
    check_cost(&[begun(), data(1, PADDED, &[2, 0, 0])], 1);
    check_cost(&[headers(1, 0, &[(":status", "103")]), begun()], 1);
    let parts = [
        frame(HEADERS, 0, 1, &block(&HEADERS_200)),
        frame(CONTINUATION, 0, 1, &[]),
        frame(CONTINUATION, END_HEADERS, 1, &block(&[("x", "y")])),
    ];
    check_cost(&parts, 1);
    check_cost(&[frame(PING, 0, 0, &[0; 8])], 1);
    check_cost(&[frame(PING, frame::ACK, 0, &[0; 8])], 1);
    check_cost(&[frame(PRIORITY, 0, 1, &[0; 5])], 1);
    check_cost(&[frame(99, 0, 1, &[])], 1);
    check_cost(&[settings(&[]), frame(frame::SETTINGS, frame::ACK, 0, &[])], 2);
    check_cost(&[window_update(0, 1), window_update(1, 1)], 2);
    check_cost(&[window_update(77, 1)], 1);
    // A window that lets a frame be sent costs nothing.
    check_cost(&[window_update(3, 1)], -1);
    // Each call that ends refills.
    let ended = || headers(1, END_STREAM, &HEADERS_200);
    check_cost(&[ended()], -8);
    check_cost(&[begun(), data(1, END_STREAM, b"")], -8);
    check_cost(&[begun(), data(1, END_STREAM, b"x")], -8);
    check_cost(&[data(1, 0, b"malformed")], -8);
    check_cost(&[reset(1)], 1 - 8);
    check_cost(&[frame(frame::GOAWAY, 0, 0, &[0; 8])], 1 - 16);
    // Frames of calls that have ended.
    check_cost(&[ended(), reset(1)], 1 - 8);
    check_cost(&[ended(), data(1, 0, b"late")], 1 - 8);
    check_cost(&[ended(), data(1, 0, b"")], 2 - 8);
    check_cost(&[ended(), ended()], 1 - 8);
}

/// 16 answers of 4 MiB each, all but their last bytes, are the most that is kept; the connection's window is
/// opened for them by 8 MiB at a time.
#[test]
fn partial_answers_are_bounded_over_all_calls() {
    let mut connection = connected();
    let prefix = data_prefix(4 << 20);
    let chunk = |stream| data(stream, 0, &[0; 16_384]);
    let mut updates = 0;
    for stream in (1..32).step_by(2) {
        assert_eq!(connection.call(b"x"), Some(stream));
        let first = [headers(stream, 0, &HEADERS_200), data(stream, 0, &prefix)].concat();
        said(&mut connection, &first).unwrap();
        for _ in 0..255 {
            said(&mut connection, &chunk(stream)).unwrap();
        }
        said(&mut connection, &data(stream, 0, &[0; 16_384 - 5])).unwrap();
        let sent = raw_frames(connection.output());
        connection.written(usize::MAX);
        for (head, payload) in sent {
            if head.kind == frame::WINDOW_UPDATE {
                let beyond = frame::word(&payload).unwrap() - (8 << 20);
                assert!(head.stream == 0 && (1..=16_384).contains(&beyond), "{beyond}");
                updates += 1;
            }
        }
    }
    assert_eq!((connection.buffered_bytes, updates), (64 << 20, 7));
    let broken = said(&mut connection, &data(1, 0, &[0])).unwrap_err();
    assert_eq!(broken.code, ErrorCode::EnhanceYourCalm as u32);
}

fn data_prefix(bytes: usize) -> Vec<u8> {
    message::prefix(bytes).to_vec()
}

/// Streams that have ended are kept for the next calls, up to 8 KiB of them.
#[test]
fn calls_use_the_memory_of_their_predecessors() {
    let mut connection = connected();
    let answer = envelope(&[b'y'; 1500]);
    for call in 0..20 {
        assert_eq!(connection.call(b"x"), Some(2 * call + 1));
        let stream = 2 * call + 1;
        let begun = [headers(stream, 0, &HEADERS_200), data(stream, 0, &answer[..1400])].concat();
        said(&mut connection, &begun).unwrap();
        let held = connection.streams.get(stream).unwrap().capacity_bytes();
        assert!((1400..3000).contains(&held), "{held}");
    }
    let ends: Vec<u8> = (0..20).flat_map(|call| headers(2 * call + 1, END_STREAM, &OK)).collect();
    assert_eq!(said(&mut connection, &ends).unwrap().len(), 20);
    let kept = connection.streams.spare_len();
    assert!((3..6).contains(&kept), "{kept} streams are kept");
    connection.call(b"x").unwrap();
    assert_eq!(connection.streams.spare_len(), kept - 1);
}
