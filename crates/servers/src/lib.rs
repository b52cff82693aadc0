//! The endpoints for clients: the rate limit service over gRPC (`rls`), HTTP (`http`) and the FRS (`frs`).
//!
//! Owns listeners, connections and their bounds, overload, TLS, the messages and headers of answers. Every
//! endpoint asks an [`Authority`](tidegate_authority::Authority) and decides nothing itself. Knows neither
//! command lines nor processes nor signals.

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

mod accept;
mod address;
pub mod frs;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod health;
pub mod http;
mod http1;
mod later;
mod overload;
mod replies;
pub mod rls;
mod shared;
mod spans;
mod tls;

pub use address::{Address, Listener};
pub use health::{ColdHealth, Health, SharedHealth};
pub use overload::Overload;
pub use replies::{HeaderNames, Replies};
pub use shared::Shared;
pub use tls::{Protocol, Tls, TlsFiles};

#[cfg(test)]
mod tests;
