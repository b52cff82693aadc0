//! What the filter says of its decisions, in Envoy's stats.

use crate::envoy::Envoy;
use crate::wait;
use anyhow::Context;

/// How many requests were decided how, over all workers of an Envoy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Decisions {
    /// Allowed by what the filter held.
    pub allowed_local: u64,
    /// Allowed by the answer to an ask.
    pub allowed_asked: u64,
    /// Denied by what the filter held.
    pub denied_local: u64,
    /// Denied by the answer to an ask.
    pub denied_asked: u64,
    /// Passed because nobody could decide.
    pub failure_allowed: u64,
    /// Refused because nobody could decide.
    pub failure_denied: u64,
    /// Passed or refused because there was too much to do.
    pub overloaded: u64,
}

impl Decisions {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        let asked = self.allowed_asked + self.denied_asked;
        self.local() + asked + self.failure_allowed + self.failure_denied + self.overloaded
    }

    /// Those without a call.
    #[must_use]
    pub fn local(&self) -> u64 {
        self.allowed_local + self.denied_local
    }

    /// The share of those without a call; 0 of none.
    #[must_use]
    pub fn local_share(&self) -> f64 {
        self.local() as f64 / self.total().max(1) as f64
    }

    /// What was decided since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Decisions) -> Decisions {
        Decisions {
            allowed_local: self.allowed_local - earlier.allowed_local,
            allowed_asked: self.allowed_asked - earlier.allowed_asked,
            denied_local: self.denied_local - earlier.denied_local,
            denied_asked: self.denied_asked - earlier.denied_asked,
            failure_allowed: self.failure_allowed - earlier.failure_allowed,
            failure_denied: self.failure_denied - earlier.failure_denied,
            overloaded: self.overloaded - earlier.overloaded,
        }
    }
}

impl Envoy {
    /// How the names of the filter's stats begin. Envoy puts `wasmcustom.` before what a module defines.
    pub(crate) fn filter_stats(&self) -> String {
        let own = self.shared.as_ref().map(|listener| format!("{}.", listener.stat_prefix()));
        format!("wasmcustom.tidegate.{}", own.unwrap_or_default())
    }

    /// One of the filter's stats by its name there, such as `allowed_local`.
    ///
    /// # Errors
    /// When there is none of that name.
    pub async fn filter_stat(&self, name: &str) -> anyhow::Result<u64> {
        self.stat(&format!("{}{name}", self.filter_stats())).await
    }

    /// The filter's decisions, as far as its workers have reported them: they do so at ticks.
    ///
    /// # Errors
    /// When it has not defined its stats.
    pub async fn decisions(&self) -> anyhow::Result<Decisions> {
        let prefix = self.filter_stats();
        let stats = self.stats(&prefix).await?;
        let stat = |name: &str| {
            let name = format!("{prefix}{name}");
            let value = stats.get(&name).copied();
            value.with_context(|| format!("no {name} among {stats:?}"))
        };
        Ok(Decisions {
            allowed_local: stat("allowed_local")?,
            allowed_asked: stat("allowed_asked")?,
            denied_local: stat("denied_local")?,
            denied_asked: stat("denied_asked")?,
            failure_allowed: stat("failure_allowed")?,
            failure_denied: stat("failure_denied")?,
            overloaded: stat("overload_allowed")? + stat("overload_denied")?,
        })
    }

    /// Waits until the filter has reported at least this many decisions in all.
    ///
    /// # Errors
    /// When it does not.
    pub async fn decisions_of(&self, total: u64) -> anyhow::Result<Decisions> {
        // Stats that are not there at all are an error of their own, and no reason to wait.
        self.decisions().await?;
        let what = format!("Envoy to report {total} decisions");
        wait::until(&what, wait::SOON, async || {
            self.decisions().await.ok().filter(|decisions| decisions.total() >= total)
        })
        .await
    }
}
