//! What decides, in each process: the authority, its limits, and the endpoints that ask it.

use crate::Settings;
use crate::endpoints::Parts;
use std::fs::File;
use std::sync::Arc;
use tidegate_authority::{Authority, Observer};
use tidegate_feeds::Feed;
use tidegate_limits::Rules;
use tidegate_servers::frs::Frs;
use tidegate_servers::http::{Http, MetricsPage};
use tidegate_servers::rls::Rls;
use tidegate_servers::{Health, Overload, Replies};
use tidegate_stats::{Metrics, Registry, Snapshot};
use tidegate_store::Cluster;

/// A feed and its first limits.
pub(crate) type Fed = (Arc<dyn Feed>, Rules);

/// Opens the feed. A worker opens it by the limits that its supervisor has in force, in the file.
pub type OpenFeed<'a> =
    dyn Fn(Option<&File>, Arc<dyn Observer>) -> anyhow::Result<(Arc<dyn Feed>, Rules)> + 'a;

pub(crate) struct Service {
    pub(crate) authority: Arc<Authority>,
    pub(crate) feed: Arc<dyn Feed>,
    metrics: Metrics,
    replies: Arc<Replies>,
}

impl Service {
    /// Opens the data directory, on limits that are free of mistakes.
    pub(crate) fn open(
        settings: &Settings,
        open_feed: impl FnOnce(Arc<dyn Observer>) -> anyhow::Result<Fed>,
    ) -> anyhow::Result<Service> {
        let metrics = Metrics::default();
        let observer: Arc<dyn Observer> = Arc::new(metrics.clone());
        let (feed, rules) = open_feed(observer.clone())?;
        let store = Arc::new(tidegate_data_dir::open(&settings.data_dir, settings.workers)?);
        let authority = Arc::new(Authority::new(store, rules, settings.modes, observer)?);
        Ok(Service { authority, feed, metrics, replies: Arc::new(settings.replies.clone()) })
    }

    pub(crate) fn store(&self) -> &Arc<Cluster> {
        self.authority.store()
    }

    fn observer(&self) -> Arc<dyn Observer> {
        Arc::new(self.metrics.clone())
    }

    /// The HTTP endpoint.
    pub(crate) fn http<M: MetricsPage>(
        &self,
        page: M,
        health: Health,
        overload: Arc<Overload>,
    ) -> Http<M> {
        let (authority, replies) = (self.authority.clone(), self.replies.clone());
        Http::new(authority, self.observer(), replies, page, health, overload)
    }

    /// The endpoints that decide requests.
    pub(crate) fn parts(
        &self,
        health: Health,
        overload: Arc<Overload>,
        settings: &Settings,
    ) -> anyhow::Result<Parts> {
        let authority = self.authority.clone();
        let frs = Frs::new(authority, self.observer(), overload.clone(), &settings.frs);
        let (authority, replies) = (self.authority.clone(), self.replies.clone());
        let rls = Rls::new(authority, self.observer(), replies, health, overload, &settings.rls)?;
        Ok(Parts { rls, frs })
    }

    /// The page of this process and of the store, which counts for all processes.
    pub(crate) fn page_with_store(&self) -> OwnPage {
        OwnPage(self.metrics.with_store(self.store().clone()))
    }

    /// The page of this process alone.
    pub(crate) fn page_without_store(&self) -> OwnPage {
        OwnPage(self.metrics.without_store(self.store().clone()))
    }
}

/// The metrics that this process counts itself.
#[derive(Clone)]
pub(crate) struct OwnPage(Registry);

impl OwnPage {
    pub(crate) async fn snapshot(&self) -> anyhow::Result<Snapshot> {
        let registry = self.0.clone();
        Ok(tokio::task::spawn_blocking(move || registry.snapshot()).await?)
    }
}

impl MetricsPage for OwnPage {
    async fn page(&self) -> anyhow::Result<String> {
        let registry = self.0.clone();
        Ok(tokio::task::spawn_blocking(move || registry.snapshot().text()).await?)
    }
}
