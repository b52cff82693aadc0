//! Counters that machines share, on real servers.

mod corpus;
mod counting;
mod engine;
mod failures;
mod kills;
mod memcached;
mod operators;
mod per_second;
mod scene;
mod servers;
