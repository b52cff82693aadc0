//! How calls are begun, and what the server's limits and windows let the client send.

use super::*;
use crate::hpack::Decoder;
use crate::testing::raw_frames;

fn large(bytes: usize) -> Vec<u8> {
    vec![b'm'; bytes - PREFIX_BYTES]
}

/// A connection whose windows are as large as they can be.
fn wide() -> Connection {
    let mut connection = connected();
    let most = (1 << 31) - 1;
    let windows = [settings(&[(4, most)]), window_update(0, most - 65_535)];
    said(&mut connection, &windows.concat()).unwrap();
    connection.written(usize::MAX);
    connection
}

/// The lengths of the DATA frames of a stream, and whether the last of them ends it.
fn sent(connection: &mut Connection, stream: u32) -> (Vec<usize>, bool) {
    let output = connection.output().to_vec();
    connection.written(output.len());
    let data = raw_frames(&output).into_iter().map(|(head, _)| head);
    let data: Vec<Head> =
        data.filter(|head| (head.kind, head.stream) == (frame::DATA, stream)).collect();
    let (last, others) =
        data.split_last().map_or((false, &[][..]), |(last, others)| (last.has(END_STREAM), others));
    assert!(others.iter().all(|head| !head.has(END_STREAM)), "only the last frame ends a stream");
    (data.iter().map(|head| head.length).collect(), last)
}

/// The first output: no push, windows for the largest answer, and the limit of header lists.
#[test]
fn the_client_says_what_it_accepts() {
    let connection = Connection::new("localhost", "/test.Echo/Echo", &[]);
    let mut expected = frame::PREFACE.to_vec();
    expected.extend(settings(&[(2, 0), (4, (4 << 20) + 5), (6, 65_536)]));
    expected.extend(window_update(0, (1 << 24) - 65_535));
    assert_eq!(connection.output(), expected);
    assert!(!connection.is_leaving());
    assert!(connection.may_call());
}

/// A server with a low limit refuses further calls, and the client begins none before it knows the limit.
#[test]
fn one_call_may_be_begun_before_the_settings() {
    let mut connection = Connection::new("localhost", "/test.Echo/Echo", &[]);
    assert_eq!(connection.call(b"x"), Some(1));
    assert_eq!(connection.call(b"x"), None);
    said(&mut connection, &settings(&[])).unwrap();
    assert_eq!(connection.call(b"x"), Some(3));
}

#[test]
fn goaway_ends_what_it_does_not_cover() {
    let mut connection = connected();
    for _ in 0..3 {
        connection.call(b"x").unwrap();
    }
    let goaway = frame(frame::GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]);
    let ends = said(&mut connection, &goaway).unwrap();
    assert_eq!(ends, [(3, End::Unprocessed), (5, End::Unprocessed)]);
    assert!(connection.is_leaving());
    assert_eq!(connection.call(b"x"), None);
    let rest =
        [headers(1, 0, &HEADERS_200), data(1, 0, &envelope(b"y")), headers(1, END_STREAM, &OK)];
    let ends = said(&mut connection, &rest.concat()).unwrap();
    assert_eq!(ends, [(1, End::Answer(b"y".to_vec()))]);
}

#[test]
fn the_limit_of_streams_and_windows_are_obeyed() {
    let mut connection = connected();
    said(&mut connection, &settings(&[(3, 2), (4, 10)])).unwrap();
    assert_eq!(connection.call(b"x"), Some(1));
    assert_eq!(connection.call(&[7; 20]), Some(3));
    connection.written(usize::MAX);
    assert!(!connection.may_call());
    said(&mut connection, &window_update(3, 14)).unwrap();
    let sent = frames(connection.output());
    assert_eq!((sent[0].0.length, sent[0].0.flags), (14, 0));
    connection.written(usize::MAX);
    said(&mut connection, &window_update(3, 100)).unwrap();
    let sent = frames(connection.output());
    assert_eq!((sent[0].0.length, sent[0].0.flags), (1, END_STREAM));
    assert!(!connection.may_call(), "two are under way");
    said(&mut connection, &reset(1)).unwrap();
    assert_eq!(connection.call(b"x"), Some(5));
}

/// The header block is indexed once, unless the server allows no table.
#[test]
fn fields_are_indexed_if_the_server_lets_them() {
    let text = ":method: POST\n:scheme: http\n:authority: localhost\n:path: /test.Echo/Echo\n\
                content-type: application/grpc\nte: trailers\nx-a: b\n";
    for (table_size, last_bytes) in [(None, 7), (Some(4096), 7), (Some(0), 98)] {
        let mut connection = Connection::new("localhost", "/test.Echo/Echo", &[("X-A", "b")]);
        let pairs: Vec<(u16, u32)> = table_size.into_iter().map(|size| (1, size)).collect();
        said(&mut connection, &settings(&pairs)).unwrap();
        for _ in 0..3 {
            connection.call(b"x").unwrap();
        }
        let output = connection.output().strip_prefix(frame::PREFACE).unwrap().to_vec();
        let sent = frames(&output);
        let blocks: Vec<_> = sent.iter().filter(|(head, _)| head.kind == HEADERS).collect();
        assert!(blocks.iter().all(|(_, block)| block == text.as_bytes()), "{sent:?}");
        assert_eq!(blocks[2].0.length, last_bytes);
    }
}

/// The fields fill the server's table to the last byte, or are one byte larger.
#[test]
fn fields_that_do_not_fit_the_table_are_sent_in_full() {
    let rest: usize = [(":authority", "localhost"), (":path", "/test.Echo/Echo")]
        .iter()
        .chain(&[("content-type", "application/grpc"), ("te", "trailers"), ("x-a", "")])
        .map(|(name, value)| name.len() + value.len() + 32)
        .sum();
    for (bytes, is_indexed) in [(4096, true), (4097, false), (9000, false)] {
        let value = "v".repeat(bytes - rest);
        let mut connection = Connection::new("localhost", "/test.Echo/Echo", &[("x-a", &value)]);
        said(&mut connection, &settings(&[])).unwrap();
        for _ in 0..3 {
            connection.call(b"x").unwrap();
        }
        let sent = frames(connection.output().strip_prefix(frame::PREFACE).unwrap());
        let blocks: Vec<_> = sent.iter().filter(|(head, _)| head.kind == HEADERS).collect();
        assert!(blocks.iter().all(|(_, text)| text == &blocks[0].1));
        assert!(blocks[0].1.ends_with(format!("x-a: {value}\n").as_bytes()));
        assert_eq!(blocks[2].0.length < 10, is_indexed, "{bytes} bytes");
    }
}

/// A server that shrinks its table waits for a size update (RFC 7541, section 4.2), and only once.
#[test]
fn a_smaller_table_is_acknowledged_once() {
    let blocks = |connection: &mut Connection| -> Vec<Vec<u8>> {
        let output = connection.output().to_vec();
        connection.written(output.len());
        let blocks = raw_frames(&output).into_iter().filter(|(head, _)| head.kind == HEADERS);
        blocks.map(|(_, block)| block).collect()
    };
    for sizes in [&[0][..], &[4095], &[100, 4096], &[4095, 100_000]] {
        let mut connection = connected();
        connection.call(b"x").unwrap();
        let before = blocks(&mut connection);
        let pairs: Vec<(u16, u32)> = sizes.iter().map(|size| (1, *size)).collect();
        for pair in pairs {
            said(&mut connection, &settings(&[pair])).unwrap();
        }
        connection.call(b"x").unwrap();
        connection.call(b"x").unwrap();
        let after = blocks(&mut connection);
        assert_eq!(after[0][0], 0x20, "the table is emptied");
        assert_eq!(after[0][1..], after[1]);
        // A server with a table of the smallest size still knows the fields.
        let text = |decoder: &mut Decoder, block: &[u8]| {
            let mut fields = Vec::new();
            let take = |field: crate::hpack::Field<'_>| {
                fields.push((field.name.to_vec(), field.value.to_vec()));
            };
            decoder.decode(block, usize::MAX, take).unwrap();
            fields
        };
        let mut decoder = Decoder::new(4096);
        let first = text(&mut decoder, &before[0]);
        assert!(after.iter().all(|block| text(&mut decoder, block) == first));
        assert_eq!(decoder.table().size(), 0);
    }
    // The default size, or a larger one, changes nothing.
    let mut connection = connected();
    connection.call(b"x").unwrap();
    said(&mut connection, &settings(&[(1, 4096), (1, 1 << 20)])).unwrap();
    connection.call(b"x").unwrap();
    assert_eq!(blocks(&mut connection)[1], [0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe]);
}

/// Each of these alone keeps a client from beginning a call.
#[test]
fn a_call_is_begun_only_when_it_can_be_sent() {
    // The connection's window is used up.
    let mut connection = connected();
    said(&mut connection, &settings(&[(4, 1 << 20)])).unwrap();
    connection.call(&large(65_535)).unwrap();
    assert_eq!(connection.link.outgoing.waiting_bytes(), 0);
    assert_eq!(connection.call(b""), None);
    said(&mut connection, &window_update(0, 1)).unwrap();
    assert!(connection.may_call());

    // A message waits for the window of its stream.
    let mut connection = connected();
    said(&mut connection, &settings(&[(4, 10)])).unwrap();
    connection.call(&large(11)).unwrap();
    assert_eq!(connection.call(b""), None);
    said(&mut connection, &window_update(1, 1)).unwrap();
    assert!(connection.may_call());

    // More than 1 MiB of output is unwritten.
    let mut connection = wide();
    connection.call(b"").unwrap();
    let head_bytes = 2 * frame::HEAD_BYTES + 6;
    let rest = (1 << 20) - connection.output().len();
    let frames = rest.div_ceil(16_384);
    connection.call(&large(rest - head_bytes - (frames - 1) * frame::HEAD_BYTES)).unwrap();
    assert_eq!(connection.output().len(), 1 << 20);
    assert!(connection.may_call());
    connection.call(b"").unwrap();
    assert_eq!(connection.call(b""), None);
    connection.written(head_bytes + PREFIX_BYTES);
    assert!(connection.may_call());

    // The numbers of streams are used up.
    let mut connection = connected();
    connection.next_stream = (1 << 31) - 1;
    assert_eq!(connection.call(b""), Some((1 << 31) - 1));
    assert_eq!(connection.call(b""), None);

    // The connection has failed.
    let mut connection = connected();
    said(&mut connection, &frame(frame::PING, 0, 1, &[0; 8])).unwrap_err();
    assert_eq!(connection.call(b""), None);
}

/// A message of exactly one frame, and one that is a byte larger.
#[test]
fn messages_are_cut_into_frames() {
    let mut connection = wide();
    for (stream, bytes, lengths) in [
        (1, 16_384, vec![16_384]),
        (3, 16_385, vec![16_384, 1]),
        (5, 40_000, vec![16_384, 16_384, 7_232]),
        (7, 5, vec![5]),
    ] {
        assert_eq!(connection.call(&large(bytes)), Some(stream));
        assert_eq!(sent(&mut connection, stream), (lengths, true));
    }
}

/// A message waits for the windows of the stream and of the connection, any number of times.
#[test]
fn a_message_goes_on_whenever_a_window_opens() {
    let mut connection = connected();
    said(&mut connection, &settings(&[(4, 200_000)])).unwrap();
    connection.call(&large(100_000)).unwrap();
    let (lengths, _) = sent(&mut connection, 1);
    assert_eq!(lengths.iter().sum::<usize>(), 65_535);
    for _ in 0..3 {
        // The window of the stream is open already.
        said(&mut connection, &window_update(1, 1)).unwrap();
        assert_eq!(sent(&mut connection, 1), (vec![], false));
        said(&mut connection, &window_update(0, 1000)).unwrap();
        assert_eq!(sent(&mut connection, 1), (vec![1000], false));
    }
    said(&mut connection, &window_update(0, 1 << 20)).unwrap();
    assert_eq!(sent(&mut connection, 1), (vec![16_384, 15_081], true));

    // By a new initial window, which also shrinks what is left of it.
    let mut connection = connected();
    said(&mut connection, &settings(&[(4, 10)])).unwrap();
    connection.call(&large(30)).unwrap();
    assert_eq!(sent(&mut connection, 1), (vec![10], false));
    for (window, lengths, has_ended) in [
        (15, vec![5], false),
        (12, vec![], false),
        (15, vec![], false),
        (16, vec![1], false),
        (100, vec![14], true),
    ] {
        said(&mut connection, &settings(&[(4, window)])).unwrap();
        assert_eq!(sent(&mut connection, 1), (lengths, has_ended), "{window}");
    }
    // A call begun now has the last of them.
    connection.call(&large(101)).unwrap();
    assert_eq!(sent(&mut connection, 3), (vec![100], false));
}

#[test]
fn a_window_beyond_its_bound_ends_the_connection() {
    let mut connection = connected();
    connection.call(b"x").unwrap();
    said(&mut connection, &window_update(1, (1 << 31) - 1 - 65_535 + 6)).unwrap();
    let broken = said(&mut connection, &settings(&[(4, 65_536)])).unwrap_err();
    assert_eq!(broken.code, ErrorCode::FlowControl as u32);
}

/// The rest of a message is not sent after its answer, and no longer keeps others from beginning.
#[test]
fn an_early_answer_cancels_the_rest_of_the_message() {
    let whole = |stream| {
        let end = [HEADERS_200[0], HEADERS_200[1], ("grpc-status", "8")];
        headers(stream, END_STREAM, &end)
    };
    let resets = |connection: &mut Connection| -> Vec<Vec<u8>> {
        let sent = raw_frames(connection.output());
        connection.written(usize::MAX);
        let resets = sent.into_iter().filter(|(head, _)| head.kind == frame::RST_STREAM);
        resets.map(|(_, code)| code).collect()
    };
    let mut connection = connected();
    connection.call(&large(70_000)).unwrap();
    connection.written(usize::MAX);
    assert_eq!(said(&mut connection, &whole(1)).unwrap(), [(1, End::Refused(8, String::new()))]);
    assert_eq!(resets(&mut connection), [[0, 0, 0, 8]]);
    assert_eq!(connection.link.outgoing.waiting_bytes(), 0);
    said(&mut connection, &window_update(0, 100)).unwrap();
    assert!(connection.output().is_empty());
    assert_eq!(connection.call(b"x"), Some(3));
    connection.written(usize::MAX);
    said(&mut connection, &whole(3)).unwrap();
    assert_eq!(resets(&mut connection), [[0; 4]; 0], "all of it was sent");
}
