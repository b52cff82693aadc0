//! What the console shows of a service, whatever its processes are.

use crate::service::{ProcessMetrics, Service};
use crate::{Settings, version};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_authority::{Authority, GlobalShadow, clock};
use tidegate_console::overview::{self, About, Overview};
use tidegate_console::{Response, assets, key, limits, rules};
use tidegate_core::Request;
use tidegate_feeds::Feed;
use tidegate_servers::http::{Change, ConsolePage, File, Question};
use tidegate_servers::{Health, Shared};
use tidegate_stats::{RuleUse, Snapshot};

/// Characters of a descriptor in the log.
const LOGGED_CHARS_MAX: usize = 200;

/// The counts of a service that the console shows.
pub(crate) trait Counts: Clone + Send + Sync + 'static {
    /// Those that are few, however many rules there are.
    fn brief(&self) -> impl Future<Output = anyhow::Result<Snapshot>> + Send;

    fn rule_use(&self) -> impl Future<Output = anyhow::Result<RuleUse>> + Send;
}

impl Counts for ProcessMetrics {
    async fn brief(&self) -> anyhow::Result<Snapshot> {
        ProcessMetrics::brief(self).await
    }

    async fn rule_use(&self) -> anyhow::Result<RuleUse> {
        ProcessMetrics::rule_use(self).await
    }
}

pub(crate) struct Console<S> {
    authority: Arc<Authority>,
    feed: Arc<dyn Feed>,
    health: Health,
    counts: S,
    started_ms: u64,
    /// Worker processes that there should be.
    workers: u32,
    has_top: bool,
    has_statistics: bool,
    is_shadow: bool,
}

impl<S> fmt::Debug for Console<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console").finish_non_exhaustive()
    }
}

impl<S: Counts> Console<S> {
    pub(crate) fn new(
        (shared, service, settings): (&Shared, &Service, &Settings),
        counts: S,
    ) -> Console<S> {
        Console {
            authority: service.authority.clone(),
            feed: service.feed.clone(),
            health: shared.health.clone(),
            counts,
            started_ms: now_ms(),
            workers: settings.workers,
            has_top: service.top.is_some(),
            has_statistics: service.statistics.is_some(),
            is_shadow: settings.modes.shadow == GlobalShadow::On,
        }
    }

    async fn overview(&self) -> Response {
        let Ok(snapshot) = self.counts.brief().await else { return unreadable() };
        let degraded = self.health.degraded();
        let workers = self.health.workers.as_ref().map(|serving| (*serving.borrow(), self.workers));
        overview::respond(&Overview {
            snapshot: &snapshot,
            standing: &self.feed.standing(),
            about: About {
                version: version(),
                now_ms: now_ms(),
                started_ms: self.started_ms,
                workers,
                failing: self.health.failing(),
                degraded: degraded.as_deref(),
                has_top: self.has_top,
                has_statistics: self.has_statistics,
                is_shadow: self.is_shadow,
            },
        })
    }

    async fn rules(&self, parameters: &[(String, String)]) -> (u16, String) {
        let question = match rules::Question::parse(parameters) {
            Ok(question) => question,
            Err(message) => return written(&Response::error(400, &message)),
        };
        let Ok(used) = self.counts.rule_use().await else { return written(&unreadable()) };
        let authority = self.authority.clone();
        // Ten thousand rules take milliseconds.
        let answer = tokio::task::spawn_blocking(move || {
            let answer = |rules: &_| rules::respond(&question, rules, &used);
            written(&authority.with_limits(answer))
        });
        answer.await.unwrap_or_else(|_| written(&unreadable()))
    }

    async fn key(&self, parameters: &[(String, String)]) -> Response {
        match key::Question::parse(parameters) {
            Ok(question) => key::respond(&question, &self.authority, clock::now()).await,
            Err(message) => Response::error(400, &message),
        }
    }
}

impl<S: Counts> ConsolePage for Console<S> {
    fn file(&self, path: &str) -> Option<File> {
        let assets::Asset { content_type, etag, plain, gzip, .. } = assets::at(path)?;
        Some(File { content_type, etag, plain, gzip })
    }

    fn answer<'a>(
        &'a self,
        question: Question,
        parameters: &'a [(String, String)],
    ) -> Pin<Box<dyn Future<Output = (u16, String)> + Send + 'a>> {
        Box::pin(async move {
            match question {
                Question::Overview => written(&self.overview().await),
                Question::Rules => self.rules(parameters).await,
                Question::Key => written(&self.key(parameters).await),
                Question::Limits => written(&limits::respond(&self.feed.standing())),
            }
        })
    }

    fn change<'a>(
        &'a self,
        change: Change,
        body: &'a [u8],
    ) -> Pin<Box<dyn Future<Output = (u16, String)> + Send + 'a>> {
        Box::pin(async move {
            let read = match change {
                Change::Erase => key::Change::erase(body),
                Change::Set => key::Change::set(body),
            };
            let change = match read {
                Ok(change) => change,
                Err(message) => return written(&Response::error(400, &message)),
            };
            let authority = self.authority.clone();
            // A task of its own ends what was begun, even if the client leaves.
            let made = tokio::spawn(async move {
                let response = key::change(&change, &authority, clock::now()).await;
                log(&change, &response);
                response
            });
            written(&made.await.unwrap_or_else(|_| Response::error(500, "the change failed")))
        })
    }
}

/// Who reads the log later learns what an operator has changed.
fn log(change: &key::Change, response: &Response) {
    let Request { domain, descriptors, .. } = change.request();
    let entries = descriptors.first().map(|first| &first.entries[..]).unwrap_or_default();
    let entries = entries.iter().map(|entry| format!("{}={}", entry.key, entry.value));
    let descriptor = entries.collect::<Vec<_>>().join(" ");
    let descriptor: String = descriptor.chars().take(LOGGED_CHARS_MAX).collect();
    let status = response.status;
    match change {
        key::Change::Erase(_) => {
            tracing::info!(domain, ?descriptor, status, "counters erased over HTTP");
        }
        key::Change::Set { limit, left, .. } => {
            tracing::info!(domain, ?descriptor, limit, left, status, "a counter set over HTTP");
        }
    }
}

fn written(response: &Response) -> (u16, String) {
    (response.status, response.body.to_string())
}

fn unreadable() -> Response {
    Response::error(500, "the counts cannot be read")
}

fn now_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}
