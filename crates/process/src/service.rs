//! The parts that each serving process has: the authority, its limits, and the endpoints in front of it.

use crate::Settings;
use crate::cold::{self, ColdCounters};
use crate::neighbours::{self, Fingerprint};
use crate::shared::{self, SharedCounters};
use crate::statistics::Statistics;
use crate::top::ProcessTop;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tidegate_authority::{Authority, Counters, Observer, Observers};
use tidegate_feeds::Feed;
use tidegate_limits::Rules;
use tidegate_recent::{Recent, Sink, Sinks};
use tidegate_servers::http::{MetricsPage, PageForm};
use tidegate_servers::{ColdHealth, Health, Overload, Replies, Shared, SharedHealth};
use tidegate_statistics::Bounds;
use tidegate_stats::{Metrics, MoreCounts, RuleUse, Snapshot, SpanCounts};
use tidegate_store::Cluster;
use tidegate_traces::Tracer;
use tokio::task::JoinHandle;

/// How long a process that ends sends the spans that it has.
const SPANS_MAX: Duration = Duration::from_secs(3);

pub(crate) type OpenedFeed = (Arc<dyn Feed>, Rules);

/// Opens the feed. A worker passes the file with the limits that its supervisor has in force.
pub type OpenFeed<'a> =
    dyn Fn(Option<&File>, Arc<dyn Observer>) -> anyhow::Result<(Arc<dyn Feed>, Rules)> + 'a;

pub(crate) struct Service {
    pub(crate) authority: Arc<Authority>,
    pub(crate) feed: Arc<dyn Feed>,
    pub(crate) store: Arc<Cluster>,
    shared: Option<SharedCounters>,
    /// None if idle counters stay in memory.
    cold: Option<ColdCounters>,
    /// None if there is no place for them.
    pub(crate) statistics: Option<Arc<Statistics>>,
    /// None if nobody wants to know who is limited.
    pub(crate) top: Option<ProcessTop>,
    /// None unless traces are exported.
    tracer: Option<Tracer>,
    /// None without a data directory.
    neighbours: Option<(PathBuf, Fingerprint)>,
    metrics: Metrics,
    replies: Arc<Replies>,
}

impl Service {
    /// Opens the feed, whose limits must be free of mistakes, does what `before` has to do before there are counters,
    /// and opens the data directory.
    pub(crate) fn open(
        settings: &Settings,
        open_feed: impl FnOnce(Arc<dyn Observer>) -> anyhow::Result<OpenedFeed>,
        before: impl FnOnce(&Rules) -> anyhow::Result<()>,
    ) -> anyhow::Result<Service> {
        let tracer = settings.traces.as_ref().map(Tracer::start).transpose()?;
        let metrics = Metrics::default();
        let data_dir = settings.data_dir.dir.as_deref();
        let observed = Observed::new(settings, metrics.clone(), data_dir)?;
        let Observed { statistics, top, fingerprint, observer } = observed;
        let (feed, rules) = open_feed(observer.clone())?;
        if statistics.is_none() && !rules.statistics().is_empty() {
            tracing::warn!(
                "the limits have statistics, and there is no place to keep them; see --statistics"
            );
        }
        before(&rules)?;
        let store = Arc::new(tidegate_data_dir::open(&settings.data_dir, settings.workers)?);
        let modes = settings.modes;
        if settings.cold.is_none()
            && let Some(dir) = data_dir
        {
            cold::warn_of_left(dir, &[]);
        }
        let cold = settings.cold.as_ref().zip(data_dir);
        let cold = cold.map(|(cold, dir)| ColdCounters::open(cold, &store, dir)).transpose()?;
        let local: Arc<dyn Counters> = match &cold {
            Some(cold) => cold.counters(),
            None => store.clone(),
        };
        let shared = settings.shared.as_ref();
        let shared = shared.map(|shared| SharedCounters::open(shared, data_dir));
        let shared = shared.transpose()?;
        let authority = match &shared {
            None => Authority::new(local, rules, modes, observer)?,
            Some(shared) => {
                let counters = shared.shared(store.seed());
                let authority = Authority::with_shared(local, counters, rules, modes, observer)?;
                shared.remind(&authority);
                authority
            }
        };
        let (authority, replies) = (Arc::new(authority), Arc::new(settings.replies.clone()));
        let data_dir = settings.data_dir.dir.clone();
        let neighbours = data_dir.map(|dir| (dir, fingerprint));
        Ok(Service {
            authority,
            feed,
            store,
            shared,
            cold,
            statistics,
            top,
            tracer,
            neighbours,
            metrics,
            replies,
        })
    }

    /// Whether servers of shared counters answer; none if there are none. Must be called in a runtime.
    pub(crate) fn shared_health(&self) -> Option<SharedHealth> {
        self.shared.as_ref().map(|shared| shared.watch(self.authority.clone()))
    }

    /// Whether the databases of cold counters answer; none if there are none. Must be called in a runtime.
    pub(crate) fn cold_health(&self) -> Option<ColdHealth> {
        self.cold.as_ref().map(ColdCounters::watch)
    }

    /// Moves idle counters to their databases, until [`finish`](Self::finish).
    pub(crate) fn start_moves(&self) -> anyhow::Result<()> {
        self.cold.as_ref().map_or(Ok(()), ColdCounters::start_moves)
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

    /// Passes statistics on to their database, until [`finish`](Self::finish). Must be called in a
    /// runtime.
    pub(crate) fn record(&self) -> Option<JoinHandle<()>> {
        self.statistics.as_ref().map(Statistics::run)
    }

    /// Compares the limits with those of other processes on the data directory, until it is aborted. Must be called in a
    /// runtime.
    pub(crate) fn watch_neighbours(&self) -> Option<JoinHandle<()>> {
        let (dir, fingerprint) = self.neighbours.clone()?;
        Some(tokio::spawn(neighbours::watch(dir, fingerprint)))
    }

    /// Writes the last statistics, sends the last spans and ends moves, once nothing is decided any more.
    pub(crate) async fn finish(&self, recording: Option<JoinHandle<()>>) {
        let statistics = async {
            if let Some((statistics, recording)) = self.statistics.as_ref().zip(recording) {
                statistics.finish(recording).await;
            }
        };
        let spans = async {
            if let Some(tracer) = &self.tracer {
                tracer.finish(SPANS_MAX).await;
            }
        };
        let moves = async {
            if let Some(cold) = self.cold.clone() {
                // A panic was logged.
                let _ = tokio::task::spawn_blocking(move || cold.stop_moves()).await;
            }
        };
        tokio::join!(statistics, spans, moves);
    }

    /// What endpoints of this process share.
    pub(crate) fn shared(&self, health: Health, overload: Arc<Overload>) -> Shared {
        let (authority, replies) = (self.authority.clone(), self.replies.clone());
        let (observer, tracer) = (Arc::new(self.metrics.clone()), self.tracer.clone());
        Shared { authority, observer, replies, health, overload, tracer }
    }

    /// The metrics of this process and of the store, which counts for all processes.
    pub(crate) fn page_with_store(&self) -> ProcessMetrics {
        self.page(Scope::WithStore)
    }

    /// The metrics of this process alone.
    pub(crate) fn page_without_store(&self) -> ProcessMetrics {
        self.page(Scope::Process)
    }

    fn page(&self, scope: Scope) -> ProcessMetrics {
        let (metrics, store) = (self.metrics.clone(), self.store.clone());
        let (shared, statistics) = (self.shared.clone(), self.statistics.clone());
        let (cold, tracer) = (self.cold.clone(), self.tracer.clone());
        ProcessMetrics { metrics, store, shared, cold, statistics, tracer, scope }
    }
}

/// Those who want to know what a process decides.
struct Observed {
    statistics: Option<Arc<Statistics>>,
    top: Option<ProcessTop>,
    fingerprint: Fingerprint,
    /// All of them as one, with the metrics.
    observer: Arc<dyn Observer>,
}

impl Observed {
    fn new(
        settings: &Settings,
        metrics: Metrics,
        data_dir: Option<&Path>,
    ) -> anyhow::Result<Observed> {
        let place = Statistics::place(&settings.statistics, data_dir)?;
        let place =
            place.map(|place| (place, tidegate_statistics::Recorder::new(Bounds::default())));
        let top = settings.top.then(tidegate_top::Recorder::default);
        let fingerprint = Fingerprint::default();
        let mut all: Vec<Arc<dyn Observer>> =
            vec![Arc::new(metrics), Arc::new(fingerprint.clone())];
        if place.is_none() && top.is_none() {
            let observer = Arc::new(Observers::new(all));
            return Ok(Observed { statistics: None, top: None, fingerprint, observer });
        }
        let recent = Recent::new(Sinks {
            prompt: top.clone().map(|top| Arc::new(top) as Arc<dyn Sink>),
            patient: place.as_ref().map(|(_, each)| Arc::new(each.clone()) as Arc<dyn Sink>),
        });
        all.push(Arc::new(recent.clone()));
        all.extend(top.clone().map(|top| Arc::new(top) as Arc<dyn Observer>));
        let statistics =
            place.map(|(place, recorder)| Statistics::new(place, recorder, recent.clone()));
        let top = top.map(|recorder| ProcessTop { recorder, recent });
        let observer = Arc::new(Observers::new(all));
        Ok(Observed { statistics, top, fingerprint, observer })
    }
}

/// Whether the counts that the store keeps for all processes are among those of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Process,
    WithStore,
}

#[derive(Clone)]
pub(crate) struct ProcessMetrics {
    metrics: Metrics,
    store: Arc<Cluster>,
    shared: Option<SharedCounters>,
    cold: Option<ColdCounters>,
    statistics: Option<Arc<Statistics>>,
    tracer: Option<Tracer>,
    scope: Scope,
}

impl ProcessMetrics {
    /// A worker of this process has ended and is started again.
    pub(crate) fn worker_restarted(&self) {
        self.metrics.worker_restarted();
    }

    pub(crate) async fn snapshot(&self) -> anyhow::Result<Snapshot> {
        let page = self.clone();
        Ok(tokio::task::spawn_blocking(move || page.read()).await?)
    }

    /// The values that are few, however many rules there are.
    pub(crate) async fn brief(&self) -> anyhow::Result<Snapshot> {
        let page = self.clone();
        Ok(tokio::task::spawn_blocking(move || page.read_brief()).await?)
    }

    /// The use of rules in this process.
    pub(crate) async fn rule_use(&self) -> anyhow::Result<RuleUse> {
        let metrics = self.metrics.clone();
        Ok(tokio::task::spawn_blocking(move || metrics.rule_use()).await?)
    }

    fn read_brief(&self) -> Snapshot {
        match self.scope {
            Scope::WithStore => self.metrics.brief_with_store(&self.store, self.more()),
            Scope::Process => self.metrics.brief(self.more()),
        }
    }

    fn more(&self) -> MoreCounts {
        let shared = self.shared.as_ref().map(SharedCounters::counts);
        let statistics = self.statistics.as_ref().map(|statistics| statistics.counts());
        let spans = self.tracer.as_ref().map(|tracer| {
            let tidegate_traces::SpanCounts { exported, dropped } = tracer.counts();
            SpanCounts { exported, dropped }
        });
        let cold = self.cold.as_ref().map(ColdCounters::counts);
        MoreCounts { shared, cold, statistics, spans }
    }

    fn read(&self) -> Snapshot {
        match self.scope {
            Scope::WithStore => self.metrics.snapshot_with_store(&self.store, self.more()),
            Scope::Process => self.metrics.snapshot(&self.store, self.more()),
        }
    }
}

pub(crate) fn written(snapshot: &Snapshot, form: PageForm) -> String {
    match form {
        PageForm::OpenMetrics => snapshot.text(),
        PageForm::Prometheus => snapshot.prometheus_text(),
    }
}

impl MetricsPage for ProcessMetrics {
    async fn page(&self, form: PageForm) -> anyhow::Result<String> {
        let page = self.clone();
        Ok(tokio::task::spawn_blocking(move || written(&page.read(), form)).await?)
    }
}
