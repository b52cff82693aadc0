//! Files of TLS.
//!
//! Owns the reading of certificates and keys in PEM ([`pem`]), bounded in bytes, and what a client trusts and shows
//! ([`ClientFiles`]). Refuses to open connections, and to know why a server is believed: that is the matter of servers.

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

mod client;
pub mod pem;

pub use client::ClientFiles;
