//! Sidecars that share counters, in a world of virtual time.

mod bounds;
mod failures;
mod leases;
mod shares;
mod world;
