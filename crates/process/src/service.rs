//! The parts that each serving process has: the authority, its limits, and the endpoints in front of it.

use crate::Settings;
use crate::shared::{self, SharedCounters};
use std::fs::File;
use std::sync::Arc;
use tidegate_authority::{Authority, Observer};
use tidegate_feeds::Feed;
use tidegate_limits::Rules;
use tidegate_servers::http::MetricsPage;
use tidegate_servers::{Health, Overload, Replies, Shared, SharedHealth};
use tidegate_stats::{Metrics, SharedCounts, Snapshot};
use tidegate_store::Cluster;
use tokio::task::JoinHandle;

pub(crate) type OpenedFeed = (Arc<dyn Feed>, Rules);

/// Opens the feed. A worker passes the file with the limits that its supervisor has in force.
pub type OpenFeed<'a> =
    dyn Fn(Option<&File>, Arc<dyn Observer>) -> anyhow::Result<(Arc<dyn Feed>, Rules)> + 'a;

pub(crate) struct Service {
    pub(crate) authority: Arc<Authority>,
    pub(crate) feed: Arc<dyn Feed>,
    pub(crate) store: Arc<Cluster>,
    shared: Option<SharedCounters>,
    metrics: Metrics,
    replies: Arc<Replies>,
}

impl Service {
    /// Opens the feed, whose limits must be free of mistakes, and then the data directory.
    pub(crate) fn open(
        settings: &Settings,
        open_feed: impl FnOnce(Arc<dyn Observer>) -> anyhow::Result<OpenedFeed>,
    ) -> anyhow::Result<Service> {
        let metrics = Metrics::default();
        let observer: Arc<dyn Observer> = Arc::new(metrics.clone());
        let (feed, rules) = open_feed(observer.clone())?;
        let store = Arc::new(tidegate_data_dir::open(&settings.data_dir, settings.workers)?);
        let (local, modes) = (store.clone(), settings.modes);
        let shared = settings.shared.as_ref().map(SharedCounters::open).transpose()?;
        let authority = match &shared {
            None => Authority::new(local, rules, modes, observer)?,
            Some(shared) => {
                let shared = shared.shared(store.seed());
                Authority::with_shared(local, shared, rules, modes, observer)?
            }
        };
        let (authority, replies) = (Arc::new(authority), Arc::new(settings.replies.clone()));
        Ok(Service { authority, feed, store, shared, metrics, replies })
    }

    /// Whether servers of shared counters answer; none if there are none. Must be called in a runtime.
    pub(crate) fn shared_health(&self) -> Option<SharedHealth> {
        self.shared.as_ref().map(SharedCounters::watch)
    }

    /// Gives back tokens of shared counters that are not used, until it is aborted. Must be called in a runtime.
    pub(crate) fn tend(&self) -> Option<JoinHandle<()>> {
        self.shared.as_ref().map(|_| shared::tend(self.authority.clone()))
    }

    /// Gives back the tokens of shared counters, once nothing is decided any more.
    pub(crate) async fn leave(&self, tending: Option<JoinHandle<()>>) {
        if let Some(tending) = tending {
            tending.abort();
            shared::give_back(&self.authority).await;
        }
    }

    /// What endpoints of this process share.
    pub(crate) fn shared(&self, health: Health, overload: Arc<Overload>) -> Shared {
        let (authority, replies) = (self.authority.clone(), self.replies.clone());
        Shared { authority, observer: Arc::new(self.metrics.clone()), replies, health, overload }
    }

    /// The metrics of this process and of the store, which counts for all processes.
    pub(crate) fn page_with_store(&self) -> ProcessMetrics {
        self.page(Metrics::snapshot_with_store)
    }

    /// The metrics of this process alone.
    pub(crate) fn page_without_store(&self) -> ProcessMetrics {
        self.page(Metrics::snapshot)
    }

    fn page(&self, read: Read) -> ProcessMetrics {
        let (metrics, store, shared) =
            (self.metrics.clone(), self.store.clone(), self.shared.clone());
        ProcessMetrics { metrics, store, shared, read }
    }
}

type Read = fn(&Metrics, &Cluster, Option<SharedCounts>) -> Snapshot;

#[derive(Clone)]
pub(crate) struct ProcessMetrics {
    metrics: Metrics,
    store: Arc<Cluster>,
    shared: Option<SharedCounters>,
    read: Read,
}

impl ProcessMetrics {
    pub(crate) async fn snapshot(&self) -> anyhow::Result<Snapshot> {
        let page = self.clone();
        Ok(tokio::task::spawn_blocking(move || page.read()).await?)
    }

    fn read(&self) -> Snapshot {
        (self.read)(&self.metrics, &self.store, self.shared.as_ref().map(SharedCounters::counts))
    }
}

impl MetricsPage for ProcessMetrics {
    async fn page(&self) -> anyhow::Result<String> {
        let page = self.clone();
        Ok(tokio::task::spawn_blocking(move || page.read().text()).await?)
    }
}
