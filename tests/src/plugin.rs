//! Plugin configurations and limits that most tests start from: one limit per value of `x-client`.

use serde_json::{Value, json};

/// A plugin configuration. The timeout is generous: a test machine may stall for longer than the
/// 20 ms of the default, and a stall is no failure of the sidecar.
#[must_use]
pub fn plugin() -> Value {
    json!({
        "domain": "test",
        "sidecar": {"cluster": "tidegate", "timeout_ms": 5000},
        "rate_limits": [{"actions": [
            {"request_headers": {"header_name": "x-client", "descriptor_key": "client"}},
        ]}],
    })
}

/// The plugin configuration with the field at a JSON pointer replaced.
///
/// # Panics
/// When it has no such field's parent.
#[must_use]
pub fn plugin_with(pointer: &str, value: Value) -> String {
    let mut plugin = plugin();
    let (parent, field) = pointer.rsplit_once('/').expect("a JSON pointer");
    plugin.pointer_mut(parent).expect("a field of the plugin configuration")[field] = value;
    plugin.to_string()
}

/// A limits file with one limit per value of `x-client`.
#[must_use]
pub fn limits(rate_limit: &str) -> String {
    format!("domain: test\ndescriptors:\n  - key: client\n    rate_limit: {rate_limit}\n")
}
