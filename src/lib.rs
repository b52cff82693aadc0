//! The Envoy filter of Tidegate, built as `tidegate.wasm` (proxy-wasm, wasm32-wasip1).
//!
//! An adapter: it turns a request into descriptors, has `tidegate-core` and the sidecar decide,
//! and carries the decision out. One virtual machine runs per Envoy worker, single-threaded; a
//! panic in it would fail every request of that worker, so this crate denies what can panic.
//! `host` alone calls Envoy; every other module is pure and tested natively.

pub mod config;
pub mod decide;
pub mod descriptors;
pub mod reply;

#[cfg(target_arch = "wasm32")]
mod filter;
#[cfg(target_arch = "wasm32")]
mod host;

/// What Envoy calls first in every new virtual machine.
#[cfg(target_arch = "wasm32")]
mod entry {
    proxy_wasm::main! {{
        proxy_wasm::set_log_level(proxy_wasm::types::LogLevel::Info);
        proxy_wasm::set_root_context(|_| Box::new(crate::filter::Root::default()));
    }}
}
