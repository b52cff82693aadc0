//! The deterministic simulator: the real filter and the real sidecar in a simulated environment.
//!
//! Real are the filter's worker (`tidegate::worker::Worker`) and the sidecar's engine on a store
//! (`tidegate_authority::Authority`), and where machines share counters the engine for them
//! (`tidegate_remote::simulation`). Simulated are time, clocks, network, shared data, clients, and
//! the lives of processes. All randomness comes from one seed: a seed and a commit are one run. The
//! checks are in `ledger` (tokens), `bounds` (limits), `meters` (costs), and in `host` and `world` where the filter
//! calls.

mod bounds;
mod host;
mod ledger;
pub mod limits;
mod local;
mod machine;
mod meters;
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
pub use scenario::Tiers;
pub use tally::Tally;
