//! The targets: what is fuzzed, and by which oracle it is judged.

mod client;
mod config;
mod frs;
mod hpack;
mod leases;
mod limits;
mod requests;
mod server;
mod store;
mod takeover;
mod xml_files;

/// Something that is fuzzed.
pub(crate) struct Target {
    pub(crate) name: &'static str,
    /// Panics when the oracle finds something.
    pub(crate) run: fn(&[u8]),
    /// What a corpus begins with.
    pub(crate) seeds: fn() -> Vec<Vec<u8>>,
}

pub(crate) const ALL: &[Target] = &[
    hpack::TARGET,
    server::TARGET,
    client::TARGET,
    requests::TARGET,
    leases::TARGET,
    config::TARGET,
    frs::TARGET,
    limits::TARGET,
    xml_files::TARGET,
    store::TARGET,
    takeover::TARGET,
];
