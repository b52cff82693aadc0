//! The deterministic simulator: the real filter and the real sidecar, and all between them made up.
//!
//! Real are the filter's worker (`tidegate::worker::Worker`) and the sidecar's engine on a store
//! (`tidegate_authority::Authority`). Simulated are time, clocks, network, shared data, clients, and the
//! lives of processes. All chance comes from one seed: a seed and a commit are one run. What is
//! checked is in `ledger` (who may spend what), `bounds` (what a limit promises), and at the places in
//! `host` and `world` where the filter speaks.

mod bounds;
mod host;
mod ledger;
pub mod limits;
mod mutation;
mod rng;
mod run;
mod scenario;
mod shared;
mod sidecar;
mod state;
mod tally;
mod trace;
mod world;

pub use mutation::Mutation;
pub use run::{Failure, Outcome, Plan, run};
pub use tally::Tally;
