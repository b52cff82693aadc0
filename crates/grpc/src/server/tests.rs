//! The server, driven by raw frames.

mod any_bytes;
mod cache;
mod costs;
mod ending;
mod flow;
mod grpc;
mod hostile;
mod later;
mod memory;
mod time;

use super::*;
use crate::testing::{frames, greeting};

const LIMITS: Limits = Limits {
    streams_max: 10,
    message_bytes_max: 2000,
    header_bytes_max: 1000,
    buffered_bytes_max: 5000,
};

/// Echoes. By path, `Unary` takes one message, `Watch` is watched, `Keep` kept open, `Later` answered later,
/// `Refuse` refused, and `Large` answered by as many bytes as the message says (all of `/test.Echo/`).
#[derive(Debug, Default)]
struct Echo {
    asked: usize,
    /// Pending calls.
    later: Vec<CallId>,
    /// The path of each message, and the metadata that came with it, apart from REQUEST.
    seen: Vec<(String, String)>,
}

impl Service for Echo {
    fn answer(&mut self, call: &Call<'_>, answer: &mut Vec<u8>) -> Outcome {
        assert!(answer.is_empty());
        self.asked += 1;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let known = |name: &[u8]| matches!(name, b"content-type" | b"te");
        let metadata = call.metadata.iter().filter(|(name, _)| !known(name));
        let metadata = metadata.map(|(name, value)| format!("{}: {}\n", text(name), text(value)));
        self.seen.push((text(call.path), metadata.collect()));
        answer.extend_from_slice(call.message);
        match call.path {
            b"/test.Echo/Unary" => Outcome::Unary,
            b"/test.Echo/Watch" => Outcome::Watched,
            b"/test.Echo/Keep" => Outcome::Kept,
            path if path.starts_with(b"/test.Echo/Later") => {
                self.later.push(call.id);
                Outcome::Later
            }
            b"/test.Echo/Refuse" => Outcome::Refused(Status::new(Code::NotFound, "no such thing")),
            b"/test.Echo/Large" => {
                let bytes = std::str::from_utf8(call.message).unwrap().parse().unwrap();
                answer.resize(bytes, b'x');
                Outcome::Answered
            }
            _ => Outcome::Answered,
        }
    }
}

/// A connection after the exchange of prefaces, with its output written.
fn greeted(limits: Limits) -> Connection {
    let mut connection = Connection::new(limits);
    assert_eq!(connection.receive(&greeting(), &mut Echo::default()), Ok(0));
    connection.written(usize::MAX);
    connection
}

/// The frames that answer this input.
fn said(connection: &mut Connection, input: &[u8]) -> Vec<(Head, Vec<u8>)> {
    connection.receive(input, &mut Echo::default()).unwrap();
    take_output(connection)
}

fn take_output(connection: &mut Connection) -> Vec<(Head, Vec<u8>)> {
    let output = connection.output().to_vec();
    connection.written(output.len());
    frames(&output)
}

/// The text of all header blocks of a stream.
fn headers_of(frames: &[(Head, Vec<u8>)], stream: u32) -> String {
    let blocks = frames.iter().filter(|(head, _)| head.kind == frame::HEADERS);
    let blocks = blocks.filter(|(head, _)| head.stream == stream);
    blocks.map(|(_, text)| String::from_utf8(text.clone()).unwrap()).collect()
}

/// The error code of the RST_STREAM of a stream.
fn reset_of(frames: &[(Head, Vec<u8>)], stream: u32) -> Option<u32> {
    let found =
        frames.iter().find(|(head, _)| (head.kind, head.stream) == (frame::RST_STREAM, stream));
    found.map(|(_, payload)| frame::word(payload).unwrap())
}

/// The bytes of all DATA frames of a stream.
fn data_of(frames: &[(Head, Vec<u8>)], stream: u32) -> Vec<u8> {
    let data = frames.iter().filter(|(head, _)| (head.kind, head.stream) == (frame::DATA, stream));
    data.flat_map(|(_, payload)| payload.clone()).collect()
}
