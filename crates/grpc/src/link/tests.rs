//! The budget for useless work.

use super::*;

fn link() -> Link {
    Link::new(Peer::Client, 1000, 1)
}

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn the_budget_lasts_for_exactly_so_many_frames() {
    let mut link = link();
    for _ in 0..BUDGET_MAX {
        assert_eq!(link.spend_budget(), Ok(()));
    }
    assert_eq!(link.budget(), 0);
    assert_eq!(link.spend_budget().unwrap_err().code, ErrorCode::EnhanceYourCalm as u32);
    link.refill_budget();
    assert_eq!(link.spend_budget_for(8), Ok(()));
    assert!(link.spend_budget_for(usize::MAX).is_err());
}

/// The budgets after these times, of a connection that has spent all of it at the first.
#[track_caller]
fn check_time(spent_at: u64, times: &[(u64, u32)]) {
    let mut link = link();
    link.set_time(at(spent_at));
    link.spend_budget_for(BUDGET_MAX as usize).unwrap();
    for (millis, expected) in times {
        link.set_time(at(*millis));
        assert_eq!(link.budget(), *expected, "at {millis} ms");
    }
}

#[test]
fn time_refills_the_budget_by_64_a_second() {
    check_time(5000, &[(5000, 0), (5999, 0), (6000, 64), (6000, 64), (6999, 64), (7000, 128)]);
    check_time(0, &[(127_000, 127 * 64), (128_000, 8192), (129_000, 8192), (1 << 40, 8192)]);
    // Parts of seconds are not lost.
    check_time(0, &[(400, 0), (800, 0), (1200, 64), (1600, 64), (2000, 64), (2400, 128)]);
    // 64 units for each of 2^26 seconds are 2^32.
    check_time(0, &[(1000 << 26, 8192)]);
    // Nothing is refilled by a clock that goes back.
    check_time(9000, &[(1000, 0), (9000, 0), (9999, 0), (10_000, 64)]);
}

#[test]
fn a_full_budget_is_never_exceeded() {
    let mut link = link();
    link.refill_budget();
    link.refill_budget_for_frames(3);
    link.answered(0, 0);
    link.set_time(at(10_000));
    assert_eq!(link.budget(), BUDGET_MAX);
    link.refill_budget_for_frames(u32::MAX);
    assert_eq!(link.budget(), BUDGET_MAX);
}

/// The budget that an answer takes; a negative number is a refill.
#[track_caller]
fn check_answer(message_bytes: usize, answer_bytes: usize, expected: i64) {
    let mut link = link();
    link.spend_budget_for(1000).unwrap();
    let before = i64::from(link.budget());
    link.answered(message_bytes, answer_bytes);
    assert_eq!(before - i64::from(link.budget()), expected);
    assert_eq!(link.check_answers(), Ok(()));
}

/// Free are 16 times the message and 64 bytes, then every 256 bytes take one.
#[test]
fn answers_cost_what_they_exceed_their_message_by() {
    check_answer(0, 0, -8);
    check_answer(0, 1024, -8);
    check_answer(0, 1025, 0);
    check_answer(0, 1024 + 255, 0);
    check_answer(0, 1024 + 256, 1);
    check_answer(100, 2624, -8);
    check_answer(100, 2624 + 25_600, 100);
    // A message that large has no limit of its answer.
    check_answer(usize::MAX / 16, usize::MAX, -8);
}

#[test]
fn answers_may_use_up_the_budget_but_not_exceed_it() {
    let mut link = link();
    link.answered(0, 1024 + 256 * BUDGET_MAX as usize);
    assert_eq!((link.budget(), link.check_answers()), (0, Ok(())));
    link.answered(0, 1024 + 256);
    assert_eq!(link.budget(), 0);
    assert!(link.check_answers().is_err());
    // For good: the connection ends.
    link.set_time(at(100_000));
    assert!(link.check_answers().is_err());
}

#[test]
fn a_receive_window_is_reopened_when_more_than_half_of_it_is_used() {
    let mut window = ReceiveWindow::new(100);
    assert!(window.take(50));
    assert_eq!(window.replenish(), None);
    assert!(window.take(1));
    assert_eq!(window.replenish(), Some(51));
    assert_eq!(window.replenish(), None);
    assert!(window.take(100), "it is open again");
    assert!(!window.take(1));
    assert!(!ReceiveWindow::new(100).take(usize::MAX));
}

/// Replies are sent while up to 8 MiB of output are unread.
#[test]
fn a_peer_that_reads_nothing_gets_8_mib_of_replies() {
    let ping = (crate::testing::frame(frame::PING, 0, 0, &[0; 8]), 8);
    let settings = (crate::testing::settings(&[]), 0);
    for (request, payload_bytes) in [ping, settings] {
        for (unread, is_answered) in [(8 << 20, true), ((8 << 20) + 1, false)] {
            let mut link = link();
            link.has_preface = true;
            link.outgoing.output.buffer().resize(unread, 0);
            let (head, payload, _) = frame::cut(&request).unwrap().unwrap();
            let result = link.take(head, payload);
            assert_eq!(result.is_ok(), is_answered, "{head:?} with {unread} bytes");
            let reply = if is_answered { frame::HEAD_BYTES + payload_bytes } else { 0 };
            assert_eq!(link.outgoing.output.len(), unread + reply);
        }
    }
}

#[test]
fn a_header_block_may_have_exactly_its_limit() {
    for (last_bytes, is_taken) in [(400, true), (401, false)] {
        let mut link = link();
        let mut take = |kind, flags, bytes| {
            let part = vec![0; bytes];
            let head = Head { length: bytes, kind, flags, stream: 1 };
            let taken = link.take_block(head, &part, at(0));
            taken.map(|block| block.map(|(_, block)| block.len())).map_err(|broken| broken.code)
        };
        assert_eq!(take(frame::HEADERS, 0, 500), Ok(None));
        assert_eq!(take(frame::CONTINUATION, 0, 100), Ok(None));
        let expected =
            if is_taken { Ok(Some(1000)) } else { Err(ErrorCode::EnhanceYourCalm as u32) };
        assert_eq!(take(frame::CONTINUATION, frame::END_HEADERS, last_bytes), expected);
    }
}

/// DATA and the like belong to streams, SETTINGS and the like to the connection.
#[test]
fn a_frame_in_the_wrong_place_breaks_the_connection() {
    use crate::frame::{CONTINUATION, DATA, GOAWAY, HEADERS, PING, PRIORITY, RST_STREAM, SETTINGS};
    for (kind, bytes, stream) in [
        (DATA, 5, 0),
        (HEADERS, 5, 0),
        (PRIORITY, 5, 0),
        (RST_STREAM, 4, 0),
        (SETTINGS, 0, 1),
        (PING, 8, 1),
        (GOAWAY, 8, 1),
        (CONTINUATION, 5, 0),
    ] {
        let take = |stream| {
            let mut link = link();
            link.has_preface = true;
            if kind == CONTINUATION {
                let begun = Head { length: 0, kind: HEADERS, flags: 0, stream };
                link.take_block(begun, &[], at(0)).unwrap();
            }
            link.take(Head { length: bytes, kind, flags: 0, stream }, &vec![0; bytes])
        };
        let broken = Broken::protocol("a frame is on stream 0 or should be");
        assert_eq!(take(stream), Err(broken), "kind {kind}");
        assert!(take(1 - stream).is_ok(), "kind {kind}");
    }
    for stream in [0, 1, 2] {
        let mut link = link();
        link.has_preface = true;
        let pushed = Head { length: 4, kind: frame::PUSH_PROMISE, flags: 0, stream };
        let broken = Broken::protocol("PUSH_PROMISE is not allowed");
        assert_eq!(link.take(pushed, &[0; 4]), Err(broken));
    }
}
