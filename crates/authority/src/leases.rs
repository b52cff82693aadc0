//! Tokens charged ahead for proxies: granted with a decision (`grant`), given back unused (`returns`). Hits charged
//! after the fact (`after_the_fact`). `update` is what both have in common.
//!
//! `records` is what the store keeps of leases, `room` bounds how much of it there is, `denials` says which
//! denials a proxy may repeat by itself.

mod after_the_fact;
mod denials;
mod grant;
mod leasable;
mod records;
mod returns;
mod room;
mod update;

pub(crate) use after_the_fact::DEBIT_KEPT;
pub(crate) use denials::Denials;
#[cfg(test)]
pub(crate) use records::record_key;
pub(crate) use records::{CounterUsers, DescriptorSet, LastDebit, Proxy, reports_key, users_key};
pub(crate) use room::{LeaseRoom, RoomChange};
