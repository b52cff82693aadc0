//! Random bytes, and conversations with random changes: no panic, no limit exceeded, and the same result
//! however the input is cut.

use proptest::prelude::*;

use super::*;
use crate::testing::{REQUEST, any_frame, mutate, pieces};

const WATCH: [(&str, &str); 5] =
    [REQUEST[0], REQUEST[1], (":path", "/test.Echo/Watch"), REQUEST[3], REQUEST[4]];
const REFUSE: [(&str, &str); 5] =
    [REQUEST[0], REQUEST[1], (":path", "/test.Echo/Refuse"), REQUEST[3], REQUEST[4]];
const LATER: [(&str, &str); 5] =
    [REQUEST[0], REQUEST[1], (":path", "/test.Echo/Later"), REQUEST[3], REQUEST[4]];
const SHORT: [(&str, &str); 6] =
    [REQUEST[0], REQUEST[1], REQUEST[2], REQUEST[3], REQUEST[4], ("content-length", "9")];
const BLOCKS: [&[(&str, &str)]; 8] = [
    &REQUEST,
    &REQUEST,
    &WATCH,
    &LATER,
    &REFUSE,
    &SHORT,
    &[("x-trailer", "1")],
    &[(":method", "GET")],
];

fn check_bounds(connection: &Connection, input_bytes: usize) {
    let limits = connection.shared.limits;
    assert!(connection.partial.len() <= frame::HEAD_BYTES + frame::PAYLOAD_BYTES_MAX);
    assert!(connection.taken_streams() <= limits.streams_max as usize);
    assert!(connection.shared.staying <= connection.streams.len());
    assert!(
        connection.shared.buffered_bytes <= limits.buffered_bytes_max + frame::PAYLOAD_BYTES_MAX
    );
    assert!(connection.link.blocks.len() <= 1000 + frame::PAYLOAD_BYTES_MAX);
    assert!(connection.link.decoder.table().buffer_bytes() <= 3 * 4096);
    // An echo is no longer than its message, and a refusal no longer than ten times the frame that causes it.
    assert!(connection.link.outgoing.unsent_bytes() <= 1000 + 20 * input_bytes);
}

/// Feeds the bytes in pieces. Returns the output, the error, and the number of messages.
fn fed(input: &[u8], sizes: &[usize]) -> (Vec<u8>, Option<Broken>, usize) {
    let mut connection = Connection::new(LIMITS);
    let mut service = Echo::default();
    let (mut taken, mut asked) = (0, 0);
    let mut end = None;
    for piece in pieces(input, sizes) {
        taken += piece.len();
        match connection.receive(piece, &mut service) {
            Ok(answered) => asked += answered,
            Err(broken) => end = Some(broken),
        }
        check_bounds(&connection, taken);
        if end.is_some() {
            break;
        }
    }
    if end.is_none() {
        assert_eq!(asked, service.asked);
        connection.notify_watchers(b"news");
        let ids = service.later.iter().rev();
        let answered = ids.filter(|id| connection.answer(**id, Ok(b"later"))).count();
        assert!(answered <= LIMITS.streams_max as usize);
        assert_eq!(connection.pending(), 0);
        connection.shut_down();
    }
    (connection.output().to_vec(), end, service.asked)
}

proptest! {
    #[test]
    fn conversations_are_the_same_in_any_pieces(
        frames in prop::collection::vec(any_frame(&BLOCKS), 0..40),
        mutations in prop::collection::vec(any::<(prop::sample::Index, u8, u8)>(), 0..3),
        sizes in prop::collection::vec(1_usize..40, 1..5),
    ) {
        let mut input = greeting();
        input.extend(frames.concat());
        mutate(&mut input, &mutations);
        let whole = fed(&input, &[usize::MAX]);
        prop_assert_eq!(&whole, &fed(&input, &[1]));
        prop_assert_eq!(&whole, &fed(&input, &sizes));
    }

    #[test]
    fn any_bytes_end(
        input in prop::collection::vec(any::<u8>(), 0..3000),
        sizes in prop::collection::vec(1_usize..400, 1..5),
    ) {
        fed(&input, &sizes);
        fed(&[greeting(), input].concat(), &sizes);
    }
}
