//! The engine on a data directory, without servers, threads or a clock of its own: what the simulator
//! runs. Dropping it and opening it again on the same directory is a crash and a restart.

use crate::engine::{Engine, Modes};
use crate::metrics::Metrics;
use crate::rules::{self, SameDomain};
use anyhow::Context;
use std::path::Path;
use tidegate_core::{Answer, LeaseAsk, LeaseReturn, Nanos, Request, Timestamp};
use tidegate_store::{Cluster, Geometry, Options};

/// The owner of the counters.
#[expect(missing_debug_implementations, reason = "the engine has nothing to show")]
pub struct Authority {
    engine: Engine,
}

impl Authority {
    /// Opens the counters in `data_dir`, and puts the limits of the file or directory `limits` in
    /// force. `lease_ttl` is how long leases may last.
    ///
    /// # Errors
    /// When the limits have mistakes, or the data directory cannot be used.
    pub fn open(data_dir: &Path, limits: &Path, lease_ttl: Nanos) -> anyhow::Result<Authority> {
        let narrow = Geometry::by_capacity(4_096, 0.8).context("narrow nodes")?;
        let options = Options {
            wide: Some(Geometry::wide_by_capacity(512, 0.8, 33).context("wide nodes")?),
            ..Options::narrow(narrow)
        };
        let store = Cluster::open(data_dir, &options)?;
        let modes = Modes { lease_ttl: Some(lease_ttl), ..Modes::default() };
        let engine = Engine::new(store, load(limits)?, modes, Metrics::default())?;
        Ok(Authority { engine })
    }

    /// Puts other limits in force.
    ///
    /// # Errors
    /// When they have mistakes; the old ones stay in force.
    pub fn replace_limits(&self, limits: &Path) -> anyhow::Result<()> {
        Ok(self.engine.replace_rules(load(limits)?)?)
    }

    /// Decides `request` at `now`, for a client that understands leases if there is a `lease` ask.
    ///
    /// # Errors
    /// When no decision could be made.
    pub fn decide(
        &self,
        request: &Request,
        lease: Option<&LeaseAsk>,
        now: Timestamp,
    ) -> anyhow::Result<Answer> {
        Ok(match lease {
            Some(lease) => self.engine.decide_leasing(request, lease, now)?,
            None => self.engine.decide(request, now)?,
        })
    }

    /// Takes tokens back: `request` has a refund for each descriptor, of the lease of that place.
    ///
    /// # Errors
    /// When no decision could be made.
    pub fn give_back(
        &self,
        request: &Request,
        back: &LeaseReturn,
        now: Timestamp,
    ) -> anyhow::Result<Answer> {
        Ok(self.engine.give_back(request, back, now)?)
    }
}

fn load(limits: &Path) -> anyhow::Result<tidegate_core::Rules> {
    Ok(rules::load(limits, SameDomain::Refuse)?.rules)
}
