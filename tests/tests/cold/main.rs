//! Counters that move to databases while they are idle: a sidecar process, and real SQLite, PostgreSQL and MariaDB.
//!
//! Whatever moves, fails or is killed, the counts that clients are told are those of a twin (`twin`).

mod exactness;
mod failures;
mod flood;
mod kills;
mod many;
mod operators;
mod rows;
mod scene;
mod shards;
mod takeover;
mod twin;
