//! A service for tests of connections, and limits.

use tidegate_grpc::server::{Call, CallId, Limits, Outcome, Service};
use tidegate_grpc::{Code, Status, client, server};

pub(crate) const LIMITS: Limits = Limits {
    streams_max: 100,
    message_bytes_max: 1 << 20,
    header_bytes_max: 8192,
    buffered_bytes_max: 4 << 20,
};

/// Answers by path: an echo, a multiple of it, a refusal, a watch, an answer that is handed in later.
#[derive(Debug, Default)]
pub(crate) struct Echo {
    /// The path and the message of every request.
    pub(crate) asked: Vec<(String, Vec<u8>)>,
    /// The metadata `x-test` of the last request.
    pub(crate) metadata: Option<Vec<u8>>,
    /// Pending calls and their messages.
    pub(crate) pending: Vec<(CallId, Vec<u8>)>,
}

impl Service for Echo {
    fn answer(&mut self, call: &Call<'_>, answer: &mut Vec<u8>) -> Outcome {
        let path = String::from_utf8_lossy(call.path).into_owned();
        self.metadata = call.metadata.get("x-test").map(<[u8]>::to_vec);
        let outcome = match path.as_str() {
            "/test.Echo/Refuse" => {
                Outcome::Refused(Status::new(Code::ResourceExhausted, "too much, 100 %"))
            }
            "/test.Echo/Watch" => Outcome::Watched,
            "/test.Echo/Later" => {
                self.pending.push((call.id, call.message.to_vec()));
                Outcome::Later
            }
            "/test.Echo/Large" => {
                let times: u32 = String::from_utf8_lossy(call.message).parse().unwrap();
                answer.resize(times as usize, b'x');
                Outcome::Answered
            }
            _ => Outcome::Answered,
        };
        if answer.is_empty() {
            answer.extend_from_slice(call.message);
        }
        self.asked.push((path, call.message.to_vec()));
        outcome
    }
}

/// How a call ended, owned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    Answer(Vec<u8>),
    Refused(u32, String),
    Http(u16),
    Reset(u32),
    Unprocessed,
}

impl From<client::Ended<'_>> for End {
    fn from(ended: client::Ended<'_>) -> End {
        match ended {
            client::Ended::Answer(message) => End::Answer(message.to_vec()),
            client::Ended::Refused { code, message } => {
                End::Refused(code, tidegate_grpc::decode_message(message))
            }
            client::Ended::Http(status) => End::Http(status),
            client::Ended::Reset(code) => End::Reset(code),
            client::Ended::Unprocessed => End::Unprocessed,
        }
    }
}

/// Carries bytes between client and server, in pieces of this size, until neither sends more.
pub(crate) fn converse(
    client: &mut client::Connection,
    server: &mut server::Connection,
    service: &mut Echo,
    piece_bytes: usize,
) -> Vec<(u32, End)> {
    let mut ends = Vec::new();
    while !client.output().is_empty() || !server.output().is_empty() {
        let piece = client.output()[..client.output().len().min(piece_bytes)].to_vec();
        client.written(piece.len());
        server.receive(&piece, service).unwrap();
        let piece = server.output()[..server.output().len().min(piece_bytes)].to_vec();
        server.written(piece.len());
        client.receive(&piece, &mut |id, ended| ends.push((id, ended.into()))).unwrap();
    }
    ends
}
