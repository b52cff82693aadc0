//! The server's side of a connection, fed with random bytes in random pieces: the same answers however they
//! are cut, memory within its limits, and little CPU per byte.

use super::Target;
use crate::frames::{self, frame};
use crate::input::{Input, pieces};
use crate::memory::Meter;
use crate::work::Bound;
use std::time::Duration;
use tidegate_grpc::server::{Broken, Call, CallId, Connection, Limits, Outcome, Service};
use tidegate_grpc::{Code, Status};

pub(super) const TARGET: Target = Target { name: "server", run, seeds };

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const LIMITS: Limits = Limits {
    streams_max: 32,
    message_bytes_max: 32 * 1024,
    header_bytes_max: 8 * 1024,
    buffered_bytes_max: 64 * 1024,
};

/// The cheapest call is two frames of some 20 bytes, one of them with headers from the table.
const WORK: Bound = Bound { fixed: Duration::from_micros(500), nanos_per_byte: 250 };

/// The memory of a connection beyond its unread output: partial messages, twice their limit as buffers
/// double; a partial block and frame; and the streams.
const MEMORY_MAX: usize = 2 * (64 + 32 + 16 + 8 + 16) * 1024 + 32 * 8 * 1024;
/// Unwritten output when the owner stops reading, and the output of one more read.
const UNREAD_MAX: usize = 2 * (256 + 20 * 16) * 1024;
/// Memory of a connection without calls whose peer has read everything.
const IDLE_MAX: usize = 64 * 1024;

/// Answers a message with itself, or as its path says; later, if it begins with `l`.
#[derive(Debug, Default)]
struct Echo {
    asked: usize,
    pending: Vec<CallId>,
}

impl Service for Echo {
    fn answer(&mut self, call: &Call<'_>, answer: &mut Vec<u8>) -> Outcome {
        assert!(answer.is_empty());
        self.asked += 1;
        answer.extend_from_slice(call.message);
        match call.path {
            b"/test.Echo/Watch" => Outcome::Watched,
            b"/test.Echo/Keep" => Outcome::Kept,
            b"/test.Echo/Refuse" => Outcome::Refused(Status::new(Code::NotFound, "no such thing")),
            _ if call.message.first() == Some(&b'l') => {
                self.pending.push(call.id);
                Outcome::Later
            }
            _ => Outcome::Answered,
        }
    }
}

/// Hands in the answer of a pending call, twice.
fn answer(connection: &mut Connection, call: CallId) {
    let pending = connection.pending();
    let answer = match pending % 2 {
        0 => Ok(&b"later"[..]),
        _ => Err(Status::new(Code::Aborted, "")),
    };
    connection.answer(call, answer);
    assert_eq!(connection.pending(), pending - 1);
    assert!(!connection.answer(call, Ok(b"again")));
}

fn run(input: &[u8]) {
    let mut input = Input(input);
    let is_raw = input.flag();
    let sizes = input.take(3);
    let mut bytes = Vec::new();
    if is_raw {
        bytes.extend_from_slice(input.rest());
    } else {
        bytes.extend_from_slice(PREFACE);
        frame(4, 0, 0, &[], &mut bytes);
        bytes.extend(frames::build(&mut input));
    }
    let whole = WORK.check(bytes.len(), || fed(&bytes, &[u8::MAX]));
    assert_eq!(fed(&bytes, sizes), whole, "in pieces of {sizes:?}");
    if bytes.len() < 4_096 {
        assert_eq!(fed(&bytes, &[0]), whole, "in single bytes");
    }
    owned(&bytes, sizes);
}

/// Feeds the bytes in pieces. Returns the output, the error, and the number of messages.
fn fed(bytes: &[u8], sizes: &[u8]) -> (Vec<u8>, Option<Broken>, usize) {
    let mut connection = Connection::new(LIMITS);
    let mut service = Echo::default();
    let mut end = None;
    for piece in pieces(bytes, sizes) {
        if let Err(broken) = connection.receive(piece, &mut service) {
            assert_eq!(connection.receive(piece, &mut service), Err(broken));
            end = Some(broken);
            break;
        }
    }
    if end.is_none() {
        connection.notify_watchers(b"news");
        while let Some(call) = service.pending.pop() {
            answer(&mut connection, call);
        }
        connection.shut_down();
    }
    (connection.output().to_vec(), end, service.asked)
}

/// Acts like an owner: writes before it reads while the connection is congested.
fn owned(bytes: &[u8], sizes: &[u8]) {
    let meter = Meter::begin();
    let mut connection = Connection::new(LIMITS);
    let mut service = Echo::default();
    for piece in pieces(bytes, sizes) {
        if connection.is_congested() {
            connection.written(connection.output().len());
        }
        let result = connection.receive(piece, &mut service);
        assert!(connection.calls() <= LIMITS.streams_max as usize);
        assert!(connection.pending() <= LIMITS.streams_max as usize);
        let live = meter.live();
        assert!(live <= MEMORY_MAX + UNREAD_MAX, "{live} bytes are held");
        if result.is_err() {
            return;
        }
        // Answers the oldest or the newest call, and leaves two for a while.
        match service.pending.len() {
            0 | 2 => {}
            odd if odd % 2 == 1 => answer(&mut connection, service.pending.remove(0)),
            _ => service.pending.pop().into_iter().for_each(|call| answer(&mut connection, call)),
        }
    }
    connection.end_pending(Duration::MAX, &Status::new(Code::DeadlineExceeded, "late"));
    assert_eq!(connection.pending(), 0);
    drop(service);
    connection.written(connection.output().len());
    // As its owner does after an idle time.
    connection.trim();
    if connection.calls() == 0 {
        let live = meter.live();
        assert!(live <= IDLE_MAX, "{live} bytes are held without a call");
    }
}

/// Conversations like those of the h2 crate: indexed blocks, pings, settings, resets, and a partial message.
fn seeds() -> Vec<Vec<u8>> {
    let built = |frames: &[&[u8]]| [&[0, 255, 7, 40][..], &frames.concat()].concat();
    // A call in two frames: headers, and a message that ends the stream.
    let headers: &[u8] = &[0, 0, 0, 3, 1, 2];
    let indexed: &[u8] = &[0, 0, 0, 3, 1, 4];
    let again: &[u8] = &[0, 205, 0, 3, 5, 0, 62, 0, 63, 0, 64, 0, 65, 0, 66];
    let message: &[u8] = &[4, 0, 1, 0, 5, b'h', b'e', b'l', b'l', b'o', 0, 0];
    let later: &[u8] = &[4, 0, 1, 0, 5, b'l', b'a', b't', b'e', b'r', 0, 0];
    let begun: &[u8] = &[4, 0, 0, 3, 2, b'a', b'b', 100, 0, 0];
    let reset: &[u8] = &[10, 0, 8];
    let ping: &[u8] = &[12, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0];
    let settings: &[u8] = &[11, 0, 1, 4, 100, 0, 0, 0];
    let many: &[u8] = &[15, 60, 1];
    let window: &[u8] = &[8, 0, 50, 0];
    let raw = {
        let mut bytes = PREFACE.to_vec();
        frame(4, 0, 0, &[], &mut bytes);
        frame(1, 4, 1, b"\x83\x86\x44\x0f/test.Echo/Echo\x5f\x10application/grpc", &mut bytes);
        frame(0, 1, 1, &frames::envelope(b"hello", 0), &mut bytes);
        [&[1, 255, 7, 40][..], &bytes].concat()
    };
    // An entry as large as the table, and a block of references to its name.
    let large: &[u8] = &[6, 0, 0, 1, 14, 0, 1, 0, 0];
    let references: &[u8] = &[9, 255, 255, 1, 1, 62, 1, 0, 0];
    vec![
        raw,
        built(&[&[0, 0, 0, 3, 2], large, references]),
        built(&[headers, message]),
        built(&[indexed, message, again, message]),
        built(&[headers, begun, reset]),
        built(&[headers, many, ping]),
        built(&[headers, begun, many]),
        built(&[settings, headers, message, window]),
        built(&[headers, reset, many, headers, message]),
        built(&[indexed, later, again, later, reset, again, later]),
    ]
}
