//! The Envoy filter of Tidegate, built as `tidegate.wasm` (proxy-wasm, wasm32-wasip1).
//!
//! An adapter: it turns a request into descriptors, has `tidegate-core` and the sidecar decide,
//! and carries the decision out. One virtual machine runs per Envoy worker, single-threaded; a
//! panic in it would fail every request of that worker, so this crate denies what can panic.
//! `host` alone calls Envoy, and `entry` alone is called by it; every other module is pure and tested
//! natively.

// What can panic is refused in the filter, not in its tests; clippy.toml has no exemption for this.
#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

pub mod config;
#[cfg(target_arch = "wasm32")]
mod entry;
pub mod host;
mod leases;
pub mod matching;
pub mod request;
pub mod worker;
