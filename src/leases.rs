//! The leases of this Envoy process: tokens that the sidecar has charged ahead, and cached denials.
//!
//! A lease lives in the slot table in Envoy's shared data ([`shared_table`]), one for all workers.
//! Each worker takes small chunks into its own table ([`local_table`]) and spends them without a
//! host call. Invariants: a token is in one place at a time and moves between worker and slot only
//! by a successful compare-and-swap; no token is spent at or after the expiry of its lease. Refuses
//! to make calls: `worker` does.

pub(crate) mod demand;
pub(crate) mod descriptor_state;
pub(crate) mod limit_info;
pub(crate) mod local_table;
pub(crate) mod process;
pub(crate) mod shared_table;
pub(crate) mod slot;
pub(crate) mod token_pool;
