//! Counters that machines share, on real servers.

mod corpus;
mod counting;
mod failures;
mod scene;
mod servers;
