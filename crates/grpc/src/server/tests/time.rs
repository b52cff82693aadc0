//! Deadlines for unfinished frames, blocks, messages and answers.

use super::*;
use crate::frame::{CONTINUATION, END_HEADERS, END_STREAM, HEADERS};
use crate::testing::{REQUEST, block, call, data, envelope, frame, headers, headers_to, settings};

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn late() -> Status {
    Status::new(Code::DeadlineExceeded, "too late")
}

/// Sends `input` at 100 s, ends everything unfinished that began before 110 s, and compares the output.
#[track_caller]
fn check_ends(input: &[u8], expected: Result<(&str, Option<u32>), u32>) {
    let mut connection = greeted(LIMITS);
    connection.set_time(seconds(100));
    said(&mut connection, input);
    assert_eq!(connection.unfinished_since(), Some(seconds(100)));
    connection.set_time(seconds(119));
    assert_eq!(connection.end_unfinished(seconds(100), &late()), Ok(()), "not before then");
    assert_eq!(connection.unfinished_since(), Some(seconds(100)));
    let ended = connection.end_unfinished(seconds(110), &late());
    assert_eq!(ended.map_err(|broken| broken.code).err(), expected.err());
    let Ok((headers, reset)) = expected else { return };
    let frames = take_output(&mut connection);
    assert_eq!((headers_of(&frames, 1).as_str(), reset_of(&frames, 1)), (headers, reset));
    assert_eq!((connection.unfinished_since(), connection.calls()), (None, 0));
    assert_eq!(connection.shared.buffered_bytes, 0);
    let again = [settings(&[(4, 1000)]), call(99, b"x")].concat();
    assert_eq!(data_of(&said(&mut connection, &again), 99), envelope(b"x"));
}

const LATE: &str = ":status: 200\ncontent-type: application/grpc\n\
                    grpc-status: 4\ngrpc-message: too late\n";

/// Regression: connections that sent partial messages and then nothing took all memory, as unfinished
/// messages had no deadline.
#[test]
fn what_has_begun_ends_in_time() {
    check_ends(&headers(1, 0), Ok((LATE, Some(0))));
    let begun = [headers(1, 0), data(1, 0, &envelope(&[0; 100])[..50])].concat();
    check_ends(&begun, Ok((LATE, Some(0))));
    // A second message of a streaming call.
    let second = [headers(1, 0), data(1, 0, &[&envelope(b"x")[..], &[0]].concat())].concat();
    check_ends(&second, Ok(("grpc-status: 4\ngrpc-message: too late\n", Some(0))));
    // A call with its answer.
    let answered = [headers_to("/test.Echo/Unary", 1, 0), data(1, 0, &envelope(b"x"))].concat();
    check_ends(&answered, Ok(("grpc-status: 0\n", Some(0))));
    // An answer that lacks window.
    let unread = [settings(&[(4, 0)]), call(1, b"x")].concat();
    check_ends(&unread, Ok(("", Some(ErrorCode::EnhanceYourCalm as u32))));
    // Parts of the connection.
    let calm = Err(ErrorCode::EnhanceYourCalm as u32);
    check_ends(&headers(1, 0)[..20], calm);
    check_ends(&headers(1, 0)[..3], calm);
    check_ends(&frame(HEADERS, 0, 1, &block(&REQUEST)), calm);
}

/// A few bytes of progress do not reset the deadline.
#[test]
fn a_trickle_does_not_put_the_end_off() {
    let whole = [
        headers(1, 0),
        frame(HEADERS, 0, 3, &block(&REQUEST)[..10]),
        frame(CONTINUATION, 0, 3, &block(&REQUEST)[10..]),
    ];
    let mut connection = greeted(LIMITS);
    connection.set_time(seconds(1));
    said(&mut connection, &whole[0]);
    for (second, byte) in (2..).zip(data(1, 0, &envelope(&[0; 100]))) {
        connection.set_time(seconds(second));
        said(&mut connection, &[byte]);
    }
    // The message was complete, so nothing is unfinished.
    assert_eq!(connection.unfinished_since(), None);
    for (second, byte) in (200..).zip(data(1, 0, &envelope(&[0; 2000])).into_iter().take(1000)) {
        connection.set_time(seconds(second));
        said(&mut connection, &[byte]);
        assert_eq!(connection.unfinished_since(), Some(seconds(200)));
    }
    let mut connection = greeted(LIMITS);
    connection.set_time(seconds(1));
    said(&mut connection, &[&whole[1][..], &whole[2][..3]].concat());
    connection.set_time(seconds(2));
    said(&mut connection, &whole[2][3..]);
    assert_eq!(connection.unfinished_since(), Some(seconds(1)));
}

/// Each of several consecutive partial frames has its own start.
#[test]
fn a_busy_client_has_always_begun_just_now() {
    let mut connection = greeted(LIMITS);
    let mut service = Echo::default();
    let calls: Vec<u8> = (0..5000_u32).flat_map(|call_| call(2 * call_ + 1, b"x")).collect();
    for (second, piece) in (0..).zip(calls.chunks(1000)) {
        connection.set_time(seconds(second));
        connection.receive(piece, &mut service).unwrap();
        connection.written(usize::MAX);
        assert!(connection.unfinished_since().is_none_or(|since| since == seconds(second)));
    }
    assert_eq!(service.asked, 5000);
}

#[test]
fn what_may_stay_open_stays() {
    let mut connection = greeted(LIMITS);
    let one = data(1, 0, &envelope(b"x"));
    let watching = [headers_to("/test.Echo/Watch", 3, 0), data(3, END_STREAM, &envelope(b"x"))];
    said(&mut connection, &[headers(1, 0), one, watching.concat()].concat());
    assert_eq!(connection.unfinished_since(), None);
    assert_eq!(connection.end_unfinished(seconds(1000), &late()), Ok(()));
    assert_eq!(connection.streams.len(), 2);
    // A notification that lacks window has a deadline too.
    said(&mut connection, &settings(&[(4, 0)]));
    connection.set_time(seconds(2000));
    connection.notify_watchers(b"news");
    assert_eq!(connection.unfinished_since(), Some(seconds(2000)));
    assert_eq!(connection.end_unfinished(seconds(3000), &late()), Ok(()));
    assert_eq!(connection.streams.len(), 1);
    let ended = said(&mut connection, &frame(HEADERS, END_HEADERS | END_STREAM, 1, &[]));
    assert_eq!(headers_of(&ended, 1), "grpc-status: 0\n");
}

/// What is unfinished began with its first byte, not with its last.
#[test]
fn each_item_began_with_its_first_byte() {
    let since = |steps: &[(u64, Vec<u8>)]| {
        let mut connection = greeted(LIMITS);
        for (second, input) in steps {
            connection.set_time(seconds(*second));
            said(&mut connection, input);
        }
        connection.unfinished_since()
    };
    let part = |bytes: &[u8]| data(1, 0, bytes);
    // The first message began with its headers, a later one with its own bytes.
    assert_eq!(since(&[(1, headers(1, 0)), (2, part(&[0])), (3, part(&[0]))]), Some(seconds(1)));
    let first = (2, part(&envelope(b"x")));
    let second = [(5, part(&[0])), (6, part(&[0]))];
    let steps = [&[(1, headers(1, 0)), first.clone()], &second[..]].concat();
    assert_eq!(since(&steps), Some(seconds(5)));
    // The end of a unary call is awaited since its message.
    let unary = (1, headers_to("/test.Echo/Unary", 1, 0));
    assert_eq!(since(&[unary, first]), Some(seconds(2)));
    // Answers wait since the first of them.
    let closed = (1, [settings(&[(4, 0)]), headers(1, 0)].concat());
    let steps = [closed, (2, part(&envelope(b"x"))), (3, part(&envelope(b"y")))];
    assert_eq!(since(&steps), Some(seconds(2)));
}

/// The number of calls that got the status is returned, without those that the client has left.
#[test]
fn pending_calls_that_are_ended_are_counted() {
    let mut connection = greeted(LIMITS);
    let later = |id| [headers_to("/test.Echo/Later", id, 0), data(id, 0, &envelope(b"x"))].concat();
    said(&mut connection, &[later(1), later(3), later(5)].concat());
    said(&mut connection, &crate::testing::reset(3));
    assert_eq!(connection.end_pending(seconds(0), &late()), 0);
    assert_eq!(connection.pending(), 3);
    assert_eq!(connection.end_pending(seconds(1), &late()), 2);
    assert_eq!(connection.pending(), 0);
}
