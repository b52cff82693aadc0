//! The whole of it in one directory: an upstream, a sidecar, and one Envoy or several.

use crate::bootstrap::{Before, Filter, Setup, UNDER_WAY_MAX, bootstrap};
use crate::client::{Client, Reply, Tally, drive};
use crate::envoy::{Envoy, start_envoy};
use crate::process::Process;
use crate::shared_envoy::{self, SharedEnvoy};
use crate::sidecar::Sidecar;
use crate::upstream::Upstream;
use crate::wait;
use anyhow::{Context, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// What a stack is made of.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    /// The text of the limits file.
    pub limits: &'a str,
    /// What limits the requests.
    pub filter: Filter<'a>,
    /// How many Envoys; at least one.
    pub envoys: u32,
    /// How many workers each of them has.
    pub workers: u32,
    /// Routes before the one that takes all.
    pub routes: &'a [Value],
    /// What comes before Tidegate.
    pub before: Before,
    /// How many calls to the sidecar Envoy lets be under way at once.
    pub calls_max: u32,
    /// The sidecar's flags besides endpoints, limits and data.
    pub flags: &'a [&'a str],
}

impl<'a> Plan<'a> {
    /// One Envoy with one worker, on these limits.
    #[must_use]
    pub fn new(limits: &'a str, filter: Filter<'a>) -> Plan<'a> {
        let flags = &["--capacity", "100000"];
        Plan {
            limits,
            filter,
            envoys: 1,
            workers: 1,
            routes: &[],
            before: Before::Nothing,
            calls_max: UNDER_WAY_MAX,
            flags,
        }
    }

    /// Starts it.
    ///
    /// # Errors
    /// When a part does not start; the error has its log.
    pub async fn start(&self) -> anyhow::Result<Stack> {
        let Parts { dir, upstream, sidecar } = self.start_parts().await?;
        let config = self.config(dir.path(), &upstream, "")?.to_string();
        let envoy = start_envoy(&config, dir.path(), self.workers).await?;
        let mut others = Vec::new();
        for index in 1..self.envoys {
            let own = dir.path().join(format!("envoy-{index}"));
            std::fs::create_dir(&own)?;
            others.push(start_envoy(&config, &own, self.workers).await?);
        }
        Ok(Stack { envoy, others, sidecar, upstream, dir })
    }

    /// As [`Plan::start`], in Envoys that tests of the program share while any of them runs: their processes, logs and
    /// statistics are those of all, except for the filter's statistics.
    ///
    /// # Errors
    /// When a part does not start.
    pub async fn start_shared(&self) -> anyhow::Result<Stack> {
        let mut stacks = Plan::start_each_shared(std::slice::from_ref(self)).await?;
        stacks.pop().context("a stack")
    }

    /// Starts stacks in Envoys that they share with each other.
    ///
    /// # Errors
    /// When a part does not start, or the plans differ in what an Envoy has once.
    pub async fn start_each(plans: &[Plan<'_>]) -> anyhow::Result<Vec<Stack>> {
        let (workers, count) = alike(plans)?;
        let mut envoys = Vec::new();
        for _ in 0..count {
            envoys.push(SharedEnvoy::start(workers, Process::start).await?);
        }
        start_in(&envoys, plans).await
    }

    /// As [`Plan::start_each`], in the Envoys of [`Plan::start_shared`].
    ///
    /// # Errors
    /// As there.
    pub async fn start_each_shared(plans: &[Plan<'_>]) -> anyhow::Result<Vec<Stack>> {
        let (workers, count) = alike(plans)?;
        let mut envoys = Vec::new();
        for index in 0..count {
            envoys.push(shared_envoy::of_program(workers, index).await?);
        }
        start_in(&envoys, plans).await
    }

    async fn start_parts(&self) -> anyhow::Result<Parts> {
        let dir = TempDir::new()?;
        let path = dir.path().join("limits.yaml");
        std::fs::write(&path, self.limits)?;
        let upstream = Upstream::start("127.0.0.1:0").await?;
        let sidecar = Sidecar::start_with(dir.path(), &path, self.flags).await?;
        Ok(Parts { dir, upstream, sidecar })
    }

    fn config(&self, dir: &Path, upstream: &Upstream, vm_id: &str) -> anyhow::Result<Value> {
        let socket = Sidecar::socket(dir);
        let mut setup = Setup::new(self.filter, &socket, upstream.address);
        (setup.routes, setup.before, setup.vm_id) = (self.routes, self.before, vm_id);
        setup.calls_max = self.calls_max;
        bootstrap(&setup)
    }
}

/// A stack without an Envoy.
struct Parts {
    dir: TempDir,
    upstream: Upstream,
    sidecar: Sidecar,
}

/// How many workers the Envoys of these plans have, and how many Envoys each has.
fn alike(plans: &[Plan<'_>]) -> anyhow::Result<(u32, u32)> {
    let Plan { workers, envoys, .. } = *plans.first().context("a plan")?;
    let is_alike = |plan: &Plan<'_>| plan.workers == workers && plan.envoys == envoys;
    ensure!(plans.iter().all(is_alike), "the plans need Envoys of their own");
    Ok((workers, envoys))
}

/// Starts stacks that have all these Envoys in common.
async fn start_in(envoys: &[Arc<SharedEnvoy>], plans: &[Plan<'_>]) -> anyhow::Result<Vec<Stack>> {
    let mut parts = Vec::new();
    for plan in plans {
        parts.push(plan.start_parts().await?);
    }
    // Of each stack, its part of each Envoy.
    let mut fronts: Vec<Vec<Envoy>> = plans.iter().map(|_| Vec::new()).collect();
    for envoy in envoys {
        let mut configurations = Vec::new();
        for (plan, part) in plans.iter().zip(&parts) {
            let number = envoy.number();
            let vm_id = number.to_string();
            let config = plan.config(part.dir.path(), &part.upstream, &vm_id)?;
            configurations.push((number, config));
        }
        for (front, added) in fronts.iter_mut().zip(envoy.add(configurations).await?) {
            front.push(added);
        }
    }
    let stacks = parts.into_iter().zip(fronts).map(|(part, mut front)| {
        let Parts { dir, upstream, sidecar } = part;
        let others = front.split_off(1);
        let envoy = front.pop().context("an Envoy")?;
        Ok(Stack { envoy, others, sidecar, upstream, dir })
    });
    stacks.collect()
}

/// A running stack. Its processes end when it is dropped, and its directory goes with them.
#[derive(Debug)]
pub struct Stack {
    /// The front, or the first of several.
    pub envoy: Envoy,
    /// The Envoys beside it.
    pub others: Vec<Envoy>,
    /// The counters.
    pub sidecar: Sidecar,
    /// The service behind.
    pub upstream: Upstream,
    /// Logs, data, sockets and configuration.
    pub dir: TempDir,
}

impl Stack {
    /// Starts a stack with one Envoy on a limits file's text.
    ///
    /// # Errors
    /// When a part does not start; the error has its log.
    pub async fn start(limits: &str, filter: Filter<'_>, workers: u32) -> anyhow::Result<Stack> {
        Plan { workers, ..Plan::new(limits, filter) }.start().await
    }

    /// As [`Stack::start`], in an Envoy of [`Plan::start_shared`].
    ///
    /// # Errors
    /// When a part does not start.
    pub async fn start_shared(
        limits: &str,
        filter: Filter<'_>,
        workers: u32,
    ) -> anyhow::Result<Stack> {
        Plan { workers, ..Plan::new(limits, filter) }.start_shared().await
    }

    /// The listeners of all Envoys.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.envoys().map(|envoy| envoy.address).collect()
    }

    fn envoys(&self) -> impl Iterator<Item = &Envoy> {
        std::iter::once(&self.envoy).chain(&self.others)
    }

    /// Sends one GET with these headers over a connection of its own.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn get(&self, path: &str, headers: &[(&str, &[u8])]) -> anyhow::Result<Reply> {
        Client::connect(self.envoy.address).await?.get(path, headers).await
    }

    /// Sends one GET as `client`, named in the header `x-client`.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn send(&self, client: &[u8]) -> anyhow::Result<Reply> {
        self.get("/", &[("x-client", client)]).await
    }

    /// Sends GETs as `client`, one after the other.
    ///
    /// # Errors
    /// When nothing listens.
    pub async fn send_many(&self, client: &str, requests: u32) -> anyhow::Result<Tally> {
        drive(self.envoy.address, ("x-client", client), requests, 1).await
    }

    /// Waits until no worker does without the sidecar any more. It calls again when it gets a request, and only connections that
    /// are open at once are spread over all workers.
    ///
    /// # Errors
    /// When that does not come about.
    pub async fn breakers_close(&self) -> anyhow::Result<()> {
        let mut clients = Vec::new();
        for _ in 0..4 {
            clients.push(Client::connect(self.envoy.address).await?);
        }
        let mut sent = 0;
        wait::until("the breakers to close", wait::RETRY, async || {
            for client in &mut clients {
                // Each without local state, so that it needs a call.
                sent += 1;
                let other = format!("other-{sent}");
                client.get("/", &[("x-client", other.as_bytes())]).await.ok()?;
            }
            (self.envoy.filter_stat("breakers_open").await.ok()? == 0).then_some(())
        })
        .await
    }

    /// Waits until the filters count that so many requests found their counter held. A thread of the sidecar that loses its
    /// processor while it holds a counter has others give up, and nothing is counted.
    ///
    /// # Errors
    /// When they do not, so that something else has failed.
    pub async fn found_held(&self, requests: u64) -> anyhow::Result<()> {
        wait::until("as many failed calls", wait::REPORT, async || {
            let mut stuck = 0;
            for envoy in self.envoys() {
                stuck += envoy.filter_stat("asks_stuck").await.ok()?;
            }
            (stuck >= requests).then_some(())
        })
        .await
    }

    /// Waits until Envoy's log has this text.
    ///
    /// # Errors
    /// When it does not come.
    pub async fn logged(&self, text: &str) -> anyhow::Result<()> {
        let what = format!("{text:?} in Envoy's log");
        let look = async || self.envoy.process.log().contains(text).then_some(());
        wait::until(&what, wait::SOON, look).await
    }

    /// What the filters and the sidecar count, zeros aside: for the message of a failure.
    ///
    /// # Errors
    /// When one of them does not answer.
    pub async fn counts(&self) -> anyhow::Result<String> {
        let mut counts = String::new();
        for envoy in self.envoys() {
            let all = envoy.stats(&envoy.filter_stats()).await?;
            let counted = all.into_iter().filter(|(_, value)| *value > 0);
            counts += &format!("{:#?}\n", counted.collect::<BTreeMap<_, _>>());
        }
        let page = self.sidecar.metrics().await?;
        let is_counted = |line: &&str| line.starts_with("tidegate_") && !line.ends_with(" 0");
        counts += &page.lines().filter(is_counted).collect::<Vec<_>>().join("\n");
        Ok(counts)
    }

    /// The sum of all series of a metric of the sidecar: 0 when it has none yet.
    ///
    /// # Errors
    /// When `/metrics` does not answer.
    pub async fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let page = self.sidecar.metrics().await?;
        let value = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            let found = series.split('{').next()? == name;
            found.then(|| value.parse::<f64>().ok()).flatten()
        };
        Ok(page.lines().filter_map(value).sum())
    }
}
