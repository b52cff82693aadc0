//! The whole of it in one directory: an upstream, a sidecar, and one Envoy or several.

use crate::bootstrap::{Before, Filter, Setup, UNDER_WAY_MAX, bootstrap, rename_clusters};
use crate::client::{Client, Reply, Tally, drive};
use crate::envoy::{self, Envoy};
use crate::sidecar::Sidecar;
use crate::upstream::Upstream;
use crate::wait;
use anyhow::{Context, ensure};
use serde_json::{Value, json};
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

    /// Starts stacks that share their Envoys. An Envoy takes a second of a processor to start. Each stack has listeners, a
    /// sidecar, an upstream and filter data of its own. All of them share the Envoys' logs and the counters of filters.
    ///
    /// # Errors
    /// When a part does not start, or the plans differ in what an Envoy has once.
    pub async fn start_each(plans: &[Plan<'_>]) -> anyhow::Result<Vec<Stack>> {
        let Plan { workers, envoys, .. } = *plans.first().context("a plan")?;
        let is_alike = |plan: &Plan<'_>| plan.workers == workers && plan.envoys == envoys;
        ensure!(plans.iter().all(is_alike), "the plans need Envoys of their own");
        let (mut parts, mut all) = (Vec::new(), Value::Null);
        for (index, plan) in plans.iter().enumerate() {
            let part = plan.start_parts().await?;
            let mut config = plan.config(part.dir.path(), &part.upstream, &index.to_string())?;
            rename_clusters(&mut config, index)?;
            config["static_resources"]["listeners"][0]["name"] = json!(listener_name(index));
            if all.is_null() {
                all = config;
            } else {
                for list in ["listeners", "clusters"] {
                    let more = config["static_resources"][list].as_array_mut().context(list)?;
                    let to = all["static_resources"][list].as_array_mut().context(list)?;
                    to.append(more);
                }
            }
            parts.push(part);
        }
        let all = all.to_string();
        let mut shared = Vec::new();
        for _ in 0..envoys {
            shared.push(SharedEnvoy::start(&all, workers).await?);
        }
        let stacks = parts.into_iter().enumerate().map(|(index, part)| {
            let mut own = shared.iter().map(|envoy| envoy.listener(index));
            let envoy = own.next().context("an Envoy")??;
            let others = own.collect::<anyhow::Result<_>>()?;
            let Parts { dir, upstream, sidecar } = part;
            Ok(Stack { envoy, others, sidecar, upstream, dir })
        });
        stacks.collect()
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

/// An Envoy of several stacks.
struct SharedEnvoy {
    envoy: Envoy,
    listeners: Vec<(String, SocketAddr)>,
}

impl SharedEnvoy {
    async fn start(config: &str, workers: u32) -> anyhow::Result<SharedEnvoy> {
        let dir = Arc::new(TempDir::new()?);
        let envoy = start_envoy(config, dir.path(), workers).await?;
        let listeners = envoy::listener_addresses(envoy.admin).await?;
        Ok(SharedEnvoy { envoy: Envoy { _dir: Some(dir), ..envoy }, listeners })
    }

    /// The Envoy as that of the stack with this number.
    fn listener(&self, index: usize) -> anyhow::Result<Envoy> {
        let name = listener_name(index);
        let address = self.listeners.iter().find(|(of, _)| *of == name).context(name)?.1;
        Ok(Envoy { address, ..self.envoy.clone() })
    }
}

fn listener_name(index: usize) -> String {
    format!("main-{index}")
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
            let all = envoy.stats("wasmcustom.").await?;
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

/// Writes `config` to `dir` and starts Envoy on it.
///
/// # Errors
/// When Envoy does not start; the error has its log.
pub async fn start_envoy(config: &str, dir: &Path, workers: u32) -> anyhow::Result<Envoy> {
    // JSON is YAML, and Envoy goes by the name.
    let path = dir.join("envoy.yaml");
    std::fs::write(&path, config).with_context(|| format!("cannot write {}", path.display()))?;
    Envoy::start(&path, dir, workers).await
}
