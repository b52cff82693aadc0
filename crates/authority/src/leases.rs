//! Tokens charged ahead for proxies: granted with a decision (`grant`), given back unused (`returns`).
//!
//! `records` is what the store keeps of leases, `room` bounds how much of it there is, `denials` says which
//! denials a proxy may repeat by itself.

mod denials;
mod grant;
mod records;
mod returns;
mod room;

pub(crate) use denials::Denials;
#[cfg(test)]
pub(crate) use records::record_key;
pub(crate) use room::LeaseRoom;
