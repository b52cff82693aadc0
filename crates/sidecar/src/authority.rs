//! The engine on a data directory, without servers, threads or a clock of its own: what the simulator
//! and the benchmarks run. Dropping it and opening it again on the same directory is a crash and a restart.

use crate::engine::{Engine, Modes};
use crate::metrics::Metrics;
use anyhow::Context;
use std::path::Path;
use tidegate_core::{Answer, LeaseRequest, LeaseReturn, Nanos, Request, Timestamp};
use tidegate_limits::{self as rules, SameDomain};
use tidegate_store::{Cluster, Geometry, Options};
use tidegate_wire::RequestReader;

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
        Authority::open_for(4_096, data_dir, limits, lease_ttl)
    }

    /// As [`Authority::open`], with room for `counters` of them.
    ///
    /// # Errors
    /// As [`Authority::open`].
    pub fn open_for(
        counters: u64,
        data_dir: &Path,
        limits: &Path,
        lease_ttl: Nanos,
    ) -> anyhow::Result<Authority> {
        let narrow = Geometry::by_capacity(counters, 0.8).context("narrow nodes")?;
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
        lease: Option<&LeaseRequest>,
        now: Timestamp,
    ) -> anyhow::Result<Answer> {
        Ok(match lease {
            Some(lease) => self.engine.decide_leasing(request, lease, now)?,
            None => self.engine.decide(request, now)?,
        })
    }

    /// Answers a call of the rate limit protocol: from the bytes of its message and its metadata, to those of
    /// the answer, which are appended to `bytes`.
    ///
    /// # Errors
    /// When the message makes no sense, or no decision could be made.
    pub fn answer(
        &self,
        reader: &mut RequestReader,
        message: &[u8],
        metadata: &[(&'static str, &[u8])],
        now: Timestamp,
        bytes: &mut Vec<u8>,
    ) -> anyhow::Result<()> {
        let request = reader.read(message)?;
        let value_of = |name: &'static str| {
            let found = metadata.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| *value)
        };
        let lease = tidegate_wire::lease_ask_from(request.descriptors.len(), value_of)?;
        let answer = self.decide(request, lease.as_ref(), now)?;
        tidegate_wire::encode_answer(&answer, Vec::new(), bytes);
        Ok(())
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

fn load(limits: &Path) -> anyhow::Result<tidegate_limits::Rules> {
    Ok(rules::load(limits, SameDomain::Refuse)?.rules)
}
