//! A Wasm filter that does nothing, on the proxy-wasm SDK. It has the SDK's default contexts, and so every
//! export of the SDK; `noop-abi` has only those that Tidegate's filter needs.

#![cfg(target_arch = "wasm32")]

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::ContextType;

struct Root;

impl Context for Root {}

impl RootContext for Root {
    fn create_http_context(&self, _context_id: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Stream))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

struct Stream;

impl Context for Stream {}

impl HttpContext for Stream {}

/// Envoy's first call.
mod entry {
    proxy_wasm::main! {{
        proxy_wasm::set_root_context(|_| Box::new(super::Root));
    }}
}
