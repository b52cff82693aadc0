//! Whether requests can be decided: what `/healthcheck` and gRPC's health service go by.

use crate::keeper::StoreHealth;
use tokio::sync::watch;

/// Clones watch the same.
#[derive(Debug, Clone)]
pub(crate) struct Health {
    pub(crate) draining: watch::Receiver<bool>,
    pub(crate) store: watch::Receiver<StoreHealth>,
    /// How many worker processes serve; none where this process serves by itself.
    pub(crate) workers: Option<watch::Receiver<usize>>,
}

impl Health {
    /// What is wrong, none when nothing is.
    pub(crate) fn failing(&self) -> Option<&'static str> {
        if *self.draining.borrow() {
            return Some("draining");
        }
        if self.workers.as_ref().is_some_and(|serving| *serving.borrow() == 0) {
            return Some("no worker process serves");
        }
        match *self.store.borrow() {
            StoreHealth::Lost => Some("a file of the data directory was cut short"),
            StoreHealth::Whole | StoreHealth::Moved => None,
        }
    }
}
