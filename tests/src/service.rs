//! A sidecar on limits of its own, for tests that read as a specification: limits, and a list of asks with the answer
//! to each, in the notation of [`tidegate_wire::testing`].
//!
//! Answers depend on the clock where a window turns. Windows of an hour and longer turn with an hour, and a service
//! starts with [`wait::ROOM`] left in it, so no failure is put down to that.

use crate::rls::Rls;
use crate::sidecar::{Sidecar, replace};
use crate::wait;
use anyhow::{Context, ensure};
use rustix::process::Signal;
use std::path::Path;
use tempfile::TempDir;
use tidegate_wire::rls::RateLimitResponse;
use tidegate_wire::testing::{parse, summary};

/// A running sidecar, and one connection to it.
#[derive(Debug)]
pub struct Service {
    /// The process.
    pub sidecar: Sidecar,
    /// The connection.
    pub rls: Rls,
    dir: TempDir,
}

impl Service {
    /// Starts a sidecar on a file of domain `test` with these descriptors.
    ///
    /// # Errors
    /// When it does not start; the error has its log.
    pub async fn start(descriptors: &str, flags: &[&str]) -> anyhow::Result<Service> {
        Self::start_on(&[("limits.yaml", &file(descriptors))], flags).await
    }

    /// Starts a sidecar on a directory of these files.
    ///
    /// # Errors
    /// As [`Service::start`].
    pub async fn start_on(files: &[(&str, &str)], flags: &[&str]) -> anyhow::Result<Service> {
        let dir = TempDir::new()?;
        let limits = dir.path().join("limits");
        std::fs::create_dir(&limits)?;
        for (name, text) in files {
            std::fs::write(limits.join(name), text)?;
        }
        let flags = [&["--capacity", "2000", "--wide-capacity", "1000"], flags].concat();
        let sidecar = Sidecar::start_with(dir.path(), &limits, &flags).await?;
        let rls = Rls::at(dir.path()).await?;
        wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
        Ok(Service { sidecar, rls, dir })
    }

    /// The directory of the sidecar, for more connections to it.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Asks once.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn ask(&self, ask: &str) -> anyhow::Result<RateLimitResponse> {
        self.rls.call(parse(ask)?).await.with_context(|| format!("asked {ask:?}"))
    }

    /// Asks once, and checks the answer.
    ///
    /// # Errors
    /// When it is another one.
    pub async fn expect(&self, ask: &str, expected: &str) -> anyhow::Result<()> {
        let found = summary(&self.ask(ask).await?);
        ensure!(found == expected, "{ask:?}\n   found {found}\nexpected {expected}");
        Ok(())
    }

    /// As [`Service::expect`], for one ask after the other.
    ///
    /// # Errors
    /// At the first other answer.
    pub async fn expect_all(&self, rows: &[(&str, &str)]) -> anyhow::Result<()> {
        for (index, (ask, expected)) in rows.iter().enumerate() {
            self.expect(ask, expected).await.with_context(|| format!("row {}", index + 1))?;
        }
        Ok(())
    }

    /// Puts a file of domain `test` with these descriptors in the place of the one that the
    /// service started with, and tells the sidecar to read it.
    ///
    /// # Errors
    /// When that cannot be done.
    pub fn put(&self, descriptors: &str) -> anyhow::Result<()> {
        replace(&self.dir.path().join("limits/limits.yaml"), &file(descriptors))?;
        self.sidecar.process.signal(Signal::HUP)
    }

    /// Waits until the answer to `ask`, which takes nothing, is this.
    ///
    /// # Errors
    /// When that does not come about.
    pub async fn until(&self, ask: &str, expected: &str) -> anyhow::Result<()> {
        wait::until(&format!("{expected:?} as answer to {ask:?}"), wait::RELOAD, async || {
            let answer = self.ask(ask).await.ok()?;
            (summary(&answer) == expected).then_some(())
        })
        .await
    }

    /// What `/metrics` says, line by line.
    ///
    /// # Errors
    /// When it says nothing.
    pub async fn metrics(&self) -> anyhow::Result<Vec<String>> {
        let page = self.sidecar.metrics().await?;
        Ok(page.lines().map(str::to_owned).collect())
    }

    /// Checks that `/metrics` has this line.
    ///
    /// # Errors
    /// With the other lines of that name.
    pub async fn expect_metric(&self, line: &str) -> anyhow::Result<()> {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        let mut metrics = self.metrics().await?;
        metrics.retain(|found| found.starts_with(name));
        ensure!(metrics.iter().any(|found| found == line), "no {line:?} in {metrics:?}");
        Ok(())
    }

    /// Waits until the metrics have a line, as after a server went or came back.
    ///
    /// # Errors
    /// When they do not have it in time.
    pub async fn until_metric(&self, line: &str) -> anyhow::Result<()> {
        wait::until(line, wait::RETRY, async || self.expect_metric(line).await.ok()).await
    }

    /// What is counted under a rule, such as `total 3, within 2, near 1, over 1, shadow 0`; none
    /// when it has no series.
    ///
    /// # Errors
    /// When there are no metrics.
    pub async fn counts(&self, rule: &str) -> anyhow::Result<Option<String>> {
        const FAMILIES: [(&str, &str); 5] = [
            ("total", "total_hits"),
            ("within", "within_limit"),
            ("near", "near_limit"),
            ("over", "over_limit"),
            ("shadow", "shadow_mode"),
        ];
        let metrics = self.metrics().await?;
        let count = |(word, family): (&str, &str)| {
            let series = format!("tidegate_{family}_total{{rule=\"{rule}\"}} ");
            let value = metrics.iter().find_map(|line| line.strip_prefix(&series))?;
            Some(format!("{word} {value}"))
        };
        let counts: Option<Vec<String>> = FAMILIES.into_iter().map(count).collect();
        Ok(counts.map(|counts| counts.join(", ")))
    }
}

fn file(descriptors: &str) -> String {
    format!("domain: test\ndescriptors:\n{descriptors}")
}
