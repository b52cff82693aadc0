//! The built filter on a strict mock of Envoy's proxy-wasm host.

mod conditions;
mod cookies;
mod faults;
mod host;
mod hostile;
mod instructions;
mod long_values;
mod mock_host;
mod reports;
mod scene;
mod workers;
