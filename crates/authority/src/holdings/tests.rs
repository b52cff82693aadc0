//! Sidecars that share counters, in a world of virtual time.

mod apart;
mod at_once;
mod bounds;
mod desk;
mod failures;
mod leases;
mod rare;
mod shares;
mod threads;
mod world;
