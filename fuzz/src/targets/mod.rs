//! The fuzz targets and their oracles.

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

/// A fuzz target.
pub(crate) struct Target {
    pub(crate) name: &'static str,
    /// Panics when the oracle finds a fault.
    pub(crate) run: fn(&[u8]),
    /// The first inputs of a corpus.
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
