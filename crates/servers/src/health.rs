//! Whether requests can be decided: what `/healthcheck` and gRPC's health service go by.

use std::time::SystemTime;
use tidegate_data_dir::{FileState, StoreHealth};
use tokio::sync::watch;

/// Clones watch the same.
#[derive(Debug, Clone)]
pub struct Health {
    pub draining: watch::Receiver<bool>,
    pub store: watch::Receiver<StoreHealth>,
    /// How many worker processes serve; none where this process serves by itself.
    pub workers: Option<watch::Receiver<usize>>,
}

impl Health {
    /// What is wrong, none when nothing is.
    pub fn failing(&self) -> Option<&'static str> {
        if *self.draining.borrow() {
            return Some("draining");
        }
        if self.workers.as_ref().is_some_and(|serving| *serving.borrow() == 0) {
            return Some("no worker process serves");
        }
        match self.store.borrow().files {
            FileState::Damaged => Some("a file of the counters was cut short or changed"),
            FileState::Intact | FileState::Replaced => None,
        }
    }

    /// What is wrong while requests are decided: some of them cannot be, or what is counted may not last. None when
    /// nothing is.
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
        (!causes.is_empty()).then(|| causes.join("; "))
    }
}
