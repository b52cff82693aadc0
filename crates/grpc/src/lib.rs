//! gRPC over HTTP/2, without I/O: bytes in, bytes out.
//!
//! For servers that answer each message at once, and for a client that measures them: there is no
//! task, no lock and no allocation per call. Owns framing (RFC 9113), header compression
//! (RFC 7541), flow control and the gRPC envelope. Reads no socket, no clock, and knows no message.
//! Memory and work are bounded whatever the peer sends.

#![forbid(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unreachable,
    clippy::unwrap_used
)]

mod broken;
pub mod client;
mod frame;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod hpack;
mod link;
mod message;
mod metadata;
mod outgoing;
mod output;
pub mod server;
mod status;
mod streams;
#[cfg(test)]
mod testing;

pub use broken::Broken;
pub use metadata::Metadata;
pub use status::{Code, Status, decode_message};
