//! Whether requests can be decided: the source of `/healthcheck` and of gRPC's health service.

use std::time::SystemTime;
use tidegate_data_dir::{FileState, StoreHealth};
use tokio::sync::watch;

/// Clones watch the same process.
#[derive(Debug, Clone)]
pub struct Health {
    pub draining: watch::Receiver<bool>,
    pub store: watch::Receiver<StoreHealth>,
    /// The number of worker processes that serve; none if this process serves by itself.
    pub workers: Option<watch::Receiver<usize>>,
    /// None if no machine shares the counters.
    pub shared: Option<SharedHealth>,
    /// None if counters stay in memory.
    pub cold: Option<ColdHealth>,
}

/// Whether the databases of cold counters answer.
#[derive(Debug, Clone)]
pub struct ColdHealth {
    /// Why one of them does not. What is in memory is decided nevertheless.
    pub cause: watch::Receiver<Option<String>>,
    /// Why counters may disappear from one.
    pub warning: watch::Receiver<Option<String>>,
}

/// Whether all servers of shared counters answer.
#[derive(Debug, Clone)]
pub struct SharedHealth {
    /// Why one of them does not.
    pub cause: watch::Receiver<Option<String>>,
    /// Why counters may disappear from a server.
    pub warning: watch::Receiver<Option<String>>,
    /// Whether that makes the process unhealthy: it decides, but not with all machines.
    pub fails: bool,
}

impl Health {
    /// The reason why requests cannot be decided, if there is one.
    pub fn failing(&self) -> Option<&'static str> {
        if *self.draining.borrow() {
            return Some("draining");
        }
        if self.workers.as_ref().is_some_and(|serving| *serving.borrow() == 0) {
            return Some("no worker process serves");
        }
        let is_apart = |shared: &SharedHealth| shared.fails && shared.cause.borrow().is_some();
        if self.shared.as_ref().is_some_and(is_apart) {
            return Some("a server of the shared counters does not answer");
        }
        match self.store.borrow().files {
            FileState::Damaged => Some("a file of the counters was cut short or changed"),
            FileState::Intact | FileState::Replaced => None,
        }
    }

    /// Faults that do not stop decisions: some counters cannot be used, or changes may not last. None if
    /// there are none.
    pub fn degraded(&self) -> Option<String> {
        let now = SystemTime::now();
        let store = self.store.borrow();
        let mut causes: Vec<String> =
            store.stuck.iter().map(|holder| holder.describe(now)).collect();
        if store.files == FileState::Replaced {
            causes.push("files of the counters were moved, replaced or removed".to_owned());
        }
        if store.is_unsaved {
            causes.push("the last snapshot could not be written".to_owned());
        }
        let apart = self.shared.as_ref().and_then(|shared| shared.cause.borrow().clone());
        causes.extend(
            apart.map(|cause| format!("a server of the shared counters does not answer: {cause}")),
        );
        let warning = self.shared.as_ref().and_then(|shared| shared.warning.borrow().clone());
        causes.extend(warning.map(|warning| format!("shared counters: {warning}")));
        let cold = self.cold.as_ref().and_then(|cold| cold.cause.borrow().clone());
        causes.extend(
            cold.map(|cause| format!("a database of cold counters does not answer: {cause}")),
        );
        let warning = self.cold.as_ref().and_then(|cold| cold.warning.borrow().clone());
        causes.extend(warning);
        (!causes.is_empty()).then(|| causes.join("; "))
    }
}
