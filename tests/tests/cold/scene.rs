//! A sidecar with much less memory than counters, and databases for those that are idle.

use anyhow::{Context, ensure};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tidegate_sql::testing::{Kind, Server};
use tidegate_tests::sidecar::Sidecar;
use tidegate_tests::{client, wait};

/// One rule of the limits file, whose values have a counter each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    pub(crate) key: &'static str,
    pub(crate) limit: u32,
}

/// Every algorithm.
pub(crate) const RULES: [Rule; 6] = [
    Rule { key: "day", limit: 10 },
    Rule { key: "month", limit: 7 },
    Rule { key: "fixed", limit: 9 },
    Rule { key: "sliding", limit: 8 },
    Rule { key: "bucket", limit: 6 },
    // A state of many words.
    Rule { key: "buckets", limit: 5 },
];
/// The index of the rule with wide counters.
pub(crate) const WIDE: usize = 5;

/// What is left of a window for a whole test.
const ROOM: Duration = Duration::from_secs(3_600);

/// A sidecar and its directory.
pub(crate) struct Scene {
    pub(crate) sidecar: Sidecar,
    dir: Arc<TempDir>,
}

/// What the metrics say of cold counters.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Moved {
    pub(crate) moved: u64,
    pub(crate) fetched: u64,
    pub(crate) spared: u64,
    pub(crate) failed: u64,
    pub(crate) without_state: u64,
    pub(crate) removed: u64,
}

impl Scene {
    /// Starts a sidecar whose counters are idle after a second.
    pub(crate) async fn start(urls: &[String], flags: &[&str]) -> anyhow::Result<Scene> {
        Scene::start_without(&with_usual(urls, flags)).await
    }

    /// Starts one with these flags alone, which need not name databases.
    pub(crate) async fn start_without(flags: &[&str]) -> anyhow::Result<Scene> {
        let dir = Arc::new(TempDir::new()?);
        let limits = dir.path().join("limits.yaml");
        std::fs::write(&limits, limits_text())?;
        let sidecar = Sidecar::start_with(dir.path(), &limits, flags).await?;
        Ok(Scene { sidecar, dir })
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts another sidecar on the same data with other databases, after this one has ended.
    pub(crate) async fn restart_with(
        &mut self,
        urls: &[String],
        flags: &[&str],
    ) -> anyhow::Result<()> {
        let limits = self.dir.path().join("limits.yaml");
        let flags = with_usual(urls, flags);
        self.sidecar = Sidecar::start_with(self.dir.path(), &limits, &flags).await?;
        Ok(())
    }

    /// Starts it again with all the time that a database may take, so that nothing is decided without one.
    pub(crate) async fn calm_down(
        &mut self,
        urls: &[String],
        flags: &[&str],
    ) -> anyhow::Result<()> {
        ensure!(self.sidecar.process.stop().await?.success(), "{}", self.sidecar.process.log());
        self.restart_with(urls, flags).await
    }

    /// Starts a sidecar that takes over from this one.
    pub(crate) async fn taken_over(
        &self,
        urls: &[String],
        flags: &[&str],
        name: &str,
    ) -> anyhow::Result<Scene> {
        let sidecar = self.sidecar.taken_over_by(&with_usual(urls, flags), name).await?;
        Ok(Scene { sidecar, dir: self.dir.clone() })
    }

    /// The value of a metric without labels.
    pub(crate) async fn metric(&self, name: &str) -> anyhow::Result<u64> {
        let page = self.sidecar.metrics().await?;
        value(&page, name)
    }

    pub(crate) async fn moved(&self) -> anyhow::Result<Moved> {
        let page = self.sidecar.metrics().await?;
        let total = |name: &str| value(&page, &format!("tidegate_cold_{name}_total"));
        Ok(Moved {
            moved: total("moved")?,
            fetched: total("fetched")?,
            spared: total("spared")?,
            failed: total("failed")?,
            without_state: total("without_state")?,
            removed: total("removed")?,
        })
    }

    /// Waits until the counts of moves are as they should be.
    pub(crate) async fn until_moved(
        &self,
        what: &str,
        is_so: impl Fn(&Moved) -> bool,
    ) -> anyhow::Result<Moved> {
        let mut last = Moved::default();
        let found = wait::until(what, wait::RETRY, async || {
            last = self.moved().await.ok()?;
            is_so(&last).then_some(last)
        });
        let found = found.await;
        found.with_context(|| format!("last {last:?}"))
    }

    /// Waits until the metrics say whether all databases answer.
    pub(crate) async fn until_up(&self, is_up: bool) -> anyhow::Result<()> {
        wait::until(&format!("databases to be up: {is_up}"), wait::RETRY, async || {
            let found = self.metric("tidegate_cold_up").await.ok()?;
            (found == u64::from(is_up)).then_some(())
        })
        .await
    }

    /// The status and the text of the health check.
    pub(crate) async fn health(&self) -> anyhow::Result<(u16, String)> {
        let answer = client::get(self.sidecar.http, "/healthcheck").await?;
        Ok((answer.status.into(), String::from_utf8(answer.body.into())?))
    }

    /// Waits until the health check is this, or begins with it if that ends in three dots.
    pub(crate) async fn until_healthy(&self, expected: &str) -> anyhow::Result<()> {
        let mut last = String::new();
        let said = wait::until(expected, wait::RETRY, async || {
            let (status, text) = self.health().await.ok()?;
            let is_so = match expected.strip_suffix("...") {
                Some(begin) => text.starts_with(begin),
                None => text == expected,
            };
            last = text;
            (status == 200 && is_so).then_some(())
        });
        let said = said.await;
        said.with_context(|| format!("the last one was {last:?}"))
    }
}

/// A server with an empty database; none if it is not installed.
pub(crate) async fn database(kind: Kind) -> Option<(Server, Vec<String>)> {
    let server = Server::start(kind).await?;
    let url = server.create_database("counters").await;
    let path = url.strip_prefix("sqlite://").and_then(|url| url.strip_suffix("?mode=rwc"));
    let url = path.map(|path| format!("sqlite:{path}")).unwrap_or(url);
    Some((server, vec![url]))
}

fn with_usual<'f>(urls: &'f [String], flags: &[&'f str]) -> Vec<&'f str> {
    let usual = [
        ["--cold-idle", "1s"],
        ["--cold-capacity", "100000"],
        // Stale rows go once two snapshots have their counters.
        ["--sync-interval", "100ms"],
        // A busy machine may take long, and nobody waits for a process that was killed.
        ["--cold-timeout", "30s"],
    ];
    let usual = usual.iter().filter(|[flag, _]| !flags.contains(flag)).flatten();
    let urls = urls.iter().flat_map(|url| ["--cold", url]);
    usual.copied().chain(urls).chain(flags.iter().copied()).collect()
}

fn value(page: &str, name: &str) -> anyhow::Result<u64> {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = line.with_context(|| format!("no {name} in\n{page}"))?;
    Ok(value.parse()?)
}

/// Windows that do not end during a test, whatever the time is.
fn limits_text() -> String {
    let far = |days: [u32; 2]| {
        let hours = days.map(|days| days * 24);
        let is_far = |hours: &&u32| wait::left_in_window(**hours * wait::DAY / 24) >= ROOM;
        *hours.iter().find(is_far).unwrap_or(&hours[0])
    };
    let rate = |rule: &Rule| match rule.key {
        "day" => "algorithm: first_hit_window, period: 1d".to_owned(),
        "month" => "algorithm: first_hit_window, period: 30d".to_owned(),
        "fixed" => format!("period: {}h", far([1, 2])),
        "sliding" => format!("algorithm: sliding_window, period: {}h", far([30, 31])),
        "bucket" => "algorithm: token_bucket, period: 365d".to_owned(),
        _ => "algorithm: sliding_buckets, period: 30d".to_owned(),
    };
    let rule = |rule: &Rule| {
        let Rule { key, limit } = rule;
        format!("  - key: {key}\n    rate_limit: {{ {}, requests: {limit} }}\n", rate(rule))
    };
    let rules: String = RULES.iter().map(rule).collect();
    format!("domain: test\ndescriptors:\n{rules}")
}
