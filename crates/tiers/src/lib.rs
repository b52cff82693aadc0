//! Tiers: counters that are idle move from memory to a database, and come back before they are decided on.
//!
//! A counter is *hot* while it has a node in the store, and *cold* while its state is in a row of a database. What is hot is
//! the truth; a row beside it is stale. `tiered` is the engine of counters that requests see: hot counters are updated at
//! once, others are fetched first if there may be a row (`filter`, which `build` builds). `fetch` brings rows up, `mover` takes idle counters down
//! (`heat`), `stale` removes stale rows, `ageing` takes rows from a warm level of databases (`levels`) to a cold one, `probe` finds
//! out whether a silent database answers, `totals` are for commands. `record` is what they leave in the store for each other, so that a kill at any moment
//! and any number of processes lose nothing. `rows` is what a database must do; docs/internals/tiers.md has the proofs.
//!
//! Refuses to know limits and algorithms, to wait for a database that does not answer, and to make a thread that serves
//! requests do any of it.

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

mod ageing;
mod build;
mod fetch;
mod filter;
mod heat;
mod levels;
pub mod look;
mod mover;
mod probe;
mod record;
mod rows;
mod stale;
mod tally;
#[cfg(test)]
mod tests;
mod tiered;
mod totals;

pub use levels::Levels;
pub use mover::{Moves, MovesSettings};
pub use rows::{Away, Rows, Working};
pub use tally::Counts;
pub use tiered::{Missing, Settings, Tiered, TiersError};
pub use totals::{Activity, Lately, activity};
