//! How a request may end: the classes of the account, and the names of the reasons.

use std::fmt;

/// How a request that was begun on a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Allowed,
    Denied,
    /// The service is overloaded.
    Shed,
    Refused(Refusal),
    Broken(Breakage),
}

/// An answer without a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refusal {
    /// A gRPC status.
    Grpc(u32),
    /// An HTTP status.
    Http(u16),
    /// It cannot be parsed.
    Unreadable,
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Grpc(code) => match GRPC_CODES.get(*code as usize) {
                Some(name) => write!(formatter, "grpc {code} {name}"),
                None => write!(formatter, "grpc {code}"),
            },
            Refusal::Http(status) => write!(formatter, "http {status}"),
            Refusal::Unreadable => formatter.write_str("unreadable answer"),
        }
    }
}

/// The names of gRPC's status codes, by code.
const GRPC_CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// Why a request will never be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Breakage {
    /// The server reset its stream, with this HTTP/2 error code.
    Reset(u32),
    /// The server did not begin it (GOAWAY).
    Unprocessed,
    /// The server closed the connection.
    Closed,
    /// The connection failed.
    Lost,
    /// The server violated the protocol.
    Protocol,
}

impl fmt::Display for Breakage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Breakage::Reset(code) => write!(formatter, "stream reset, code {code}"),
            Breakage::Unprocessed => formatter.write_str("unprocessed (GOAWAY)"),
            Breakage::Closed => formatter.write_str("connection closed"),
            Breakage::Lost => formatter.write_str("connection lost"),
            Breakage::Protocol => formatter.write_str("protocol broken"),
        }
    }
}
