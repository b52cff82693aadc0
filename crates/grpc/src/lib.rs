//! gRPC over HTTP/2, without I/O: bytes in, bytes out.
//!
//! For servers whose answers are ready at once or handed in later, and for a client that measures them. There
//! is no task, no lock, and no allocation per call. Owns framing (RFC 9113), header compression (RFC 7541),
//! flow control and the gRPC envelope. Does no I/O, reads no clock, and knows no message format. Memory and
//! work are bounded, whatever the peer sends.

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
