//! An authority on a data directory of its own, without servers: for the simulator and the benchmarks.

use crate::authority::Authority;
use crate::modes::Modes;
use anyhow::Context;
use std::path::Path;
use std::sync::Arc;
use tidegate_core::Nanos;
use tidegate_limits::{SameDomain, load};
use tidegate_store::{Cluster, Geometry, Options};

/// Opens the counters in `data_dir`, with room for `counters` of them, and puts the limits of the file or
/// directory `limits` in force. Leases last up to `lease_ttl`. Dropping the authority and opening it again on the
/// same directory is a crash and a restart.
///
/// # Errors
/// When the limits have mistakes, or the data directory cannot be used.
pub fn open_standalone(
    counters: u64,
    data_dir: &Path,
    limits: &Path,
    lease_ttl: Nanos,
) -> anyhow::Result<Authority> {
    let store = open_store(counters, data_dir)?;
    let modes = Modes { lease_ttl: Some(lease_ttl), ..Modes::default() };
    let rules = load(limits, SameDomain::Refuse)?.rules;
    Ok(Authority::new(store, rules, modes, Arc::new(()))?)
}

/// Opens the counters in `data_dir`, with room for `counters` of them.
///
/// # Errors
/// When the data directory cannot be used.
pub fn open_store(counters: u64, data_dir: &Path) -> anyhow::Result<Arc<Cluster>> {
    let narrow = Geometry::by_capacity(counters, 0.8).context("narrow nodes")?;
    let options = Options {
        wide: Some(Geometry::wide_by_capacity(512, 0.8, 33).context("wide nodes")?),
        ..Options::narrow(narrow)
    };
    Ok(Arc::new(Cluster::open(data_dir, &options)?))
}
