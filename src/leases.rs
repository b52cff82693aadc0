//! What this Envoy process holds of the sidecar's counters, and where.
//!
//! A lease lives in the slot table in Envoy's shared data ([`table`]), one for all workers. Each
//! worker takes small chunks of it into a table of its own ([`local`]) and spends them without any
//! host call. Invariants: a token is in one place at a time, moved between worker and slot only by a
//! compare-and-swap that succeeded; and no token is spent at or after the end of its lease.

pub(crate) mod demand;
pub(crate) mod descriptor_state;
pub(crate) mod limit_info;
pub(crate) mod local_table;
pub(crate) mod process;
pub(crate) mod shared_table;
pub(crate) mod slot;
pub(crate) mod token_pool;
