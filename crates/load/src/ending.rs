//! How a request may end: the classes of the account, and their reasons in words.

use std::fmt;

/// How a request that was begun on a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Allowed,
    Denied,
    /// The service says that it has too much to do.
    Shed,
    Refused(Refusal),
    Broken(Breakage),
}

/// An answer that is no decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refusal {
    /// A status of gRPC.
    Grpc(u32),
    /// A status of HTTP.
    Http(u16),
    /// It cannot be read.
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

/// Why a request that was begun will never be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Breakage {
    /// The server reset its stream, with this error code of HTTP/2.
    Reset(u32),
    /// The server said that it never began it.
    Unprocessed,
    /// The server closed the connection.
    Closed,
    /// The connection failed.
    Lost,
    /// The server broke the protocol.
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
