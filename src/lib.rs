//! The Envoy filter of Tidegate, built as `tidegate.wasm` (proxy-wasm, wasm32-wasip1).
//!
//! It turns a request into descriptors, decides them by leased tokens or calls the sidecar, and
//! carries out the decision. Each Envoy worker runs one single-threaded virtual machine. A panic
//! would fail every request of that worker, so this crate denies code that can panic.
//!
//! Imports point one way: `matching` and `config` (values) and `host` (Envoy as a trait) at the
//! bottom, then `request`, `leases`, `worker`, and `entry` on top. Only `host` calls Envoy, and
//! Envoy calls only `entry`. All other modules are pure and run natively in tests.

// Tests may use arithmetic that can overflow; clippy.toml has no such exemption.
#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

pub mod config;
#[cfg(target_arch = "wasm32")]
mod entry;
pub mod host;
mod leases;
pub mod matching;
pub mod request;
pub mod worker;
