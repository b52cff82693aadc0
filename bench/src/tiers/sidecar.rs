//! Sidecars with and without tiers, the calls that they get, and their metrics.

use super::Plan;
use crate::generator::{Ask, Load, Order, Pace, Report};
use crate::server::{Cores, Server, free_ports};
use anyhow::{Context, ensure};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tidegate_tests::{artifacts, client, wait};

/// Concurrent calls on each of eight connections: those of a busy Envoy.
pub(super) const STREAMS: u32 = 20;
/// The sidecar has one core, and the generator has the other.
const CORES: Cores = Cores::One;
/// Nobody is denied, and no counter ends soon: this window ends in 2029.
const LIMITS: &str = "domain: bench\ndescriptors:\n- {key: user, rate_limit: {requests: 4000000000, period: 3650d}}\n";
/// A million rows are listed in seconds.
const LISTED: Duration = Duration::from_secs(120);
/// The line of the log that says so.
const IS_COMPLETE: &str = "it is known which counters are cold";

/// Where idle counters go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tiers<'a> {
    Off,
    In {
        url: &'a str,
        /// Those for which the filter has room.
        counters: u64,
        /// Whether counters move after a second, as fast as they can, or not at all.
        moves_at_once: bool,
    },
}

impl Tiers<'_> {
    fn flags(self) -> Vec<String> {
        let Tiers::In { url, counters, moves_at_once } = self else { return Vec::new() };
        let (idle, moves) = if moves_at_once { ("1s", "100000000") } else { ("1d", "1") };
        let counters = counters.to_string();
        let flags = [
            "--cold",
            url,
            "--cold-capacity",
            &counters,
            "--cold-idle",
            idle,
            "--cold-moves",
            moves,
        ];
        // A fetch that takes long on a busy machine is measured, and no failure.
        flags.into_iter().chain(["--cold-timeout", "20s"]).map(str::to_owned).collect()
    }
}

/// A sidecar that is ready.
#[derive(Debug)]
pub(super) struct Sidecar {
    pub(super) server: Server,
    http: SocketAddr,
}

impl Sidecar {
    /// Starts one over the data directory in `dir`. `name` is that of its log.
    pub(super) async fn start(
        plan: &Plan,
        dir: &Path,
        tiers: &Tiers<'_>,
        name: &str,
    ) -> anyhow::Result<Sidecar> {
        let [grpc, http] = free_ports()?;
        let limits = dir.join("limits.yaml");
        std::fs::write(&limits, LIMITS)?;
        let mut arguments = vec![artifacts::sidecar()?.into_os_string()];
        arguments.extend(["serve", "--frs", "off", "--limits"].map(OsString::from));
        arguments.extend([limits.into(), "--data-dir".into(), dir.join("data").into_os_string()]);
        let (grpc_text, http_text) = (grpc.to_string(), http.to_string());
        let flags = ["--grpc", &grpc_text, "--http", &http_text];
        arguments.extend(flags.map(OsString::from));
        arguments.extend(["--capacity".into(), plan.capacity.to_string().into()]);
        arguments.extend(tiers.flags().into_iter().map(OsString::from));
        let server = Server::start_in(dir, name, CORES.run(arguments), grpc).await?;
        Ok(Sidecar { server, http })
    }

    /// Waits until the filter has all rows.
    pub(super) async fn wait_for_filter(&self) -> anyhow::Result<()> {
        let log = async || self.server.process.log().contains(IS_COMPLETE).then_some(());
        wait::until("the filter of cold counters", LISTED, log).await
    }

    /// Stops it. Its counters are saved.
    pub(super) async fn stop(&mut self) -> anyhow::Result<()> {
        let status = self.server.process.stop().await?;
        ensure!(status.success(), "{status}; its log:\n{}", self.server.process.log());
        Ok(())
    }

    /// A counter of `/metrics`.
    pub(super) async fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let page = client::get(self.http, "/metrics").await?;
        let text = String::from_utf8_lossy(&page.body).into_owned();
        let series = format!("tidegate_{name} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&series));
        Ok(value.with_context(|| format!("no {series}in /metrics"))?.trim().parse()?)
    }

    /// Calls on the keys of a group.
    pub(super) async fn calls(
        &self,
        group: &str,
        keys: u64,
        order: Order,
        pace: Pace,
        duration: Duration,
    ) -> anyhow::Result<Report> {
        let descriptor = format!("user={group}-{{key}}");
        let ask = Ask::Rls { descriptor: &descriptor };
        let target = self.server.address;
        Load { target, ask, keys, order, pace, duration, cores: CORES }.run().await
    }
}
