//! An Envoy of several stacks: their listeners and clusters come and go while it runs.
//!
//! An Envoy takes a second of a processor to start, nearly all of it to compile the filter, which it does once for all that
//! it serves. Each stack has a listener, clusters, filter data and statistics of the filter of its own there. The process,
//! its log and its other statistics are those of all.

use crate::bootstrap::{Filter, Setup, bootstrap, socket_address};
use crate::client::get;
use crate::envoy::{Envoy, listener_addresses, write_config};
use crate::plugin::plugin;
use crate::process::Process;
use crate::sidecar::Sidecar;
use crate::wait;
use anyhow::Context;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tempfile::TempDir;
use tokio::process::Command;

/// A kind of what Envoy reads from a file: the name of the file, and the type of its resources.
#[derive(Debug, Clone, Copy)]
struct Kind {
    name: &'static str,
    of: &'static str,
}

const LISTENERS: Kind =
    Kind { name: "listeners", of: "type.googleapis.com/envoy.config.listener.v3.Listener" };
const CLUSTERS: Kind =
    Kind { name: "clusters", of: "type.googleapis.com/envoy.config.cluster.v3.Cluster" };

/// A running Envoy.
#[derive(Debug)]
pub(crate) struct SharedEnvoy {
    envoy: Envoy,
    dir: TempDir,
    served: Mutex<Served>,
}

#[derive(Debug, Default)]
struct Served {
    /// How many numbers were given away.
    numbers: usize,
    /// How many files were written.
    version: u64,
    /// The `static_resources` of the configuration with each number.
    parts: BTreeMap<usize, Value>,
}

/// The listener of a stack. It goes with its handle, and so do its clusters.
#[derive(Debug)]
pub(crate) struct SharedListener {
    of: Arc<SharedEnvoy>,
    number: usize,
}

/// Those with this many workers, which all tests of a program share. They end with the program.
static OF_PROGRAM: tokio::sync::Mutex<BTreeMap<(u32, u32), Arc<SharedEnvoy>>> =
    tokio::sync::Mutex::const_new(BTreeMap::new());

/// The Envoy with this index among those of the program that have so many workers.
///
/// # Errors
/// When it does not start; the error has its log.
pub(crate) async fn of_program(workers: u32, index: u32) -> anyhow::Result<Arc<SharedEnvoy>> {
    let mut all = OF_PROGRAM.lock().await;
    if let Some(running) = all.get(&(workers, index)) {
        return Ok(running.clone());
    }
    let envoy = SharedEnvoy::start(workers, Process::start_for_program).await?;
    all.insert((workers, index), envoy.clone());
    Ok(envoy)
}

impl SharedEnvoy {
    /// Starts one without stacks. `process` starts a command, as [`Process::start`] does.
    ///
    /// # Errors
    /// When it does not start; the error has its log.
    pub(crate) async fn start(
        workers: u32,
        process: impl FnOnce(Command, &str, &Path) -> anyhow::Result<Process>,
    ) -> anyhow::Result<Arc<SharedEnvoy>> {
        let dir = TempDir::new()?;
        let mut served =
            Served { parts: BTreeMap::from([(0, idle(dir.path())?)]), ..Served::default() };
        for kind in [CLUSTERS, LISTENERS] {
            served.write(dir.path(), kind)?;
        }
        let source = |kind: Kind| {
            let path = file(dir.path(), kind);
            json!({"resource_api_version": "V3", "path_config_source": {"path": path}})
        };
        let config = json!({
            "node": {"id": "shared"},
            "admin": {"address": socket_address("127.0.0.1:0".parse()?)},
            "dynamic_resources": {"cds_config": source(CLUSTERS), "lds_config": source(LISTENERS)},
        });
        let path = write_config(&config.to_string(), dir.path())?;
        let process = process(Envoy::command(&path, dir.path(), workers)?, "envoy", dir.path())?;
        let envoy = Envoy::ready(process, dir.path()).await?;
        Ok(Arc::new(SharedEnvoy { envoy, dir, served: Mutex::new(served) }))
    }

    /// A number that no other stack of it has.
    pub(crate) fn number(&self) -> usize {
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        served.numbers += 1;
        served.numbers
    }

    /// Adds the listener and the clusters of each configuration, under names with its number. The Envoys of the stacks come in
    /// the same order.
    ///
    /// # Errors
    /// When Envoy refuses one; the error has its log.
    pub(crate) async fn add(
        self: &Arc<Self>,
        configurations: Vec<(usize, Value)>,
    ) -> anyhow::Result<Vec<Envoy>> {
        let numbers: Vec<usize> = configurations.iter().map(|(number, _)| *number).collect();
        let (mut clusters, mut parts) = (Vec::new(), Vec::new());
        for (number, mut configuration) in configurations {
            rename_all(&mut configuration, number)?;
            let part = configuration["static_resources"].take();
            let all = part[CLUSTERS.name].as_array().into_iter().flatten();
            clusters.extend(all.map(|cluster| cluster["name"].clone()));
            parts.push((number, part));
        }
        // From here on they go when this function ends early.
        let listeners: Vec<Arc<SharedListener>> = numbers
            .iter()
            .map(|number| Arc::new(SharedListener { of: self.clone(), number: *number }))
            .collect();
        self.change(CLUSTERS, |served| served.parts.extend(parts))?;
        // A listener is refused while Envoy does not know its clusters.
        let known = wait::until("the clusters", wait::START, async || {
            let reply = get(self.envoy.admin, "/clusters?format=json").await.ok()?;
            let known: Value = serde_json::from_slice(&reply.body).ok()?;
            let known = known["cluster_statuses"].as_array()?;
            let is_known = |name: &Value| known.iter().any(|of| of["name"] == *name);
            clusters.iter().all(is_known).then_some(())
        });
        known.await.with_context(|| self.envoy.process.log())?;
        self.change(LISTENERS, |_| {})?;
        let found = wait::until("the listeners", wait::START, async || {
            let all = listener_addresses(self.envoy.admin).await.ok()?;
            let all: BTreeMap<String, SocketAddr> = all.into_iter().collect();
            numbers
                .iter()
                .map(|number| all.get(&listener_name(*number)).copied())
                .collect::<Option<Vec<_>>>()
        });
        let addresses = found.await.with_context(|| self.envoy.process.log())?;
        let envoys = addresses.into_iter().zip(listeners).map(|(address, listener)| Envoy {
            address,
            shared: Some(listener),
            ..self.envoy.clone()
        });
        Ok(envoys.collect())
    }

    fn change(&self, kind: Kind, change: impl FnOnce(&mut Served)) -> anyhow::Result<()> {
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut served);
        served.write(self.dir.path(), kind)
    }
}

impl Served {
    /// Writes the file of this kind anew. Envoy reads one that is moved into its place.
    fn write(&mut self, dir: &Path, kind: Kind) -> anyhow::Result<()> {
        self.version += 1;
        let all = self.parts.values().filter_map(|part| part[kind.name].as_array()).flatten();
        let typed = all.map(|resource| {
            let mut resource = resource.clone();
            resource["@type"] = json!(kind.of);
            resource
        });
        let text = json!({
            "version_info": self.version.to_string(),
            "resources": typed.collect::<Vec<_>>(),
        });
        let new = dir.join(format!("{}.new", kind.name));
        std::fs::write(&new, text.to_string())?;
        Ok(std::fs::rename(&new, file(dir, kind))?)
    }
}

impl SharedListener {
    /// The name of a cluster that its configuration calls so.
    pub(crate) fn cluster(&self, name: &str) -> String {
        cluster_name(name, self.number)
    }

    /// How the names of the statistics of its filter begin.
    pub(crate) fn stat_prefix(&self) -> String {
        stat_prefix(self.number)
    }
}

impl Drop for SharedListener {
    fn drop(&mut self) {
        // A directory that cannot be written any more is the end of the test at another place.
        let _ = self.of.change(LISTENERS, |served| _ = served.parts.remove(&self.number));
        let _ = self.of.change(CLUSTERS, |_| {});
    }
}

/// What is there from the start to the end, so that Envoy keeps the compiled filter when no stack has it: a listener that
/// nobody connects to.
fn idle(dir: &Path) -> anyhow::Result<Value> {
    let plugin = plugin().to_string();
    let (sidecar, upstream) = (Sidecar::socket(dir), "127.0.0.1:1".parse()?);
    let mut config = bootstrap(&Setup::new(Filter::Tidegate(&plugin), &sidecar, upstream))?;
    rename_all(&mut config, 0)?;
    Ok(config["static_resources"].take())
}

fn file(dir: &Path, kind: Kind) -> PathBuf {
    dir.join(format!("{}.yaml", kind.name))
}

fn listener_name(number: usize) -> String {
    format!("main-{number}")
}

fn cluster_name(name: &str, number: usize) -> String {
    format!("{name}-{number}")
}

fn stat_prefix(number: usize) -> String {
    format!("of-{number}")
}

/// The address of loopback for the listener with this number. Envoy gives a new listener the socket of one that has just
/// gone if both are configured for the same address, and any port of it is one: then two that come at once share a port, and
/// each gets some of the requests of both.
fn listener_address(number: usize) -> SocketAddr {
    let [.., high, low] = number.to_be_bytes();
    (Ipv4Addr::new(127, 1, high, low), 0).into()
}

/// Adds a number to the names of the listener and the clusters of a configuration, wherever they are named, and to those of
/// the filter's statistics, and gives the listener an address of its own, so that one Envoy can have it beside others.
///
/// # Errors
/// When a plugin configuration in it is no JSON.
pub(crate) fn rename_all(config: &mut Value, number: usize) -> anyhow::Result<()> {
    let listener = &mut config["static_resources"]["listeners"][0];
    listener["name"] = json!(listener_name(number));
    listener["address"] = socket_address(listener_address(number));
    for cluster in config["static_resources"]["clusters"].as_array_mut().into_iter().flatten() {
        rename_cluster(&mut cluster["name"], number);
    }
    rename_in(config, number)
}

fn rename_cluster(name: &mut Value, number: usize) {
    if let Some(text) = name.as_str() {
        *name = json!(cluster_name(text, number));
    }
}

fn rename_in(value: &mut Value, number: usize) -> anyhow::Result<()> {
    const PLUGIN: &str = "type.googleapis.com/google.protobuf.StringValue";
    match value {
        Value::Array(items) => items.iter_mut().try_for_each(|item| rename_in(item, number)),
        Value::Object(fields) => {
            if let Some(text) = fields.get("value").and_then(Value::as_str)
                && fields.get("@type").is_some_and(|of| of == PLUGIN)
            {
                let mut plugin = serde_json::from_str(text)?;
                rename_in(&mut plugin, number)?;
                plugin["stat_prefix"] = json!(stat_prefix(number));
                fields["value"] = json!(plugin.to_string());
            }
            for (name, field) in fields {
                match name.as_str() {
                    "cluster" | "cluster_name" => rename_cluster(field, number),
                    _ => rename_in(field, number)?,
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Regression: a test ended its stack while another one started three. Two of these got the socket of the first, so one of
    /// them answered requests of the other.
    #[test]
    fn no_two_listeners_are_configured_for_the_same_address() -> anyhow::Result<()> {
        let (sidecar, upstream) = (Path::new("socket"), "127.0.0.1:1".parse()?);
        let mut addresses = BTreeSet::new();
        for number in 0..1_000 {
            let mut config = bootstrap(&Setup::new(Filter::None, sidecar, upstream))?;
            rename_all(&mut config, number)?;
            let address = &config["static_resources"]["listeners"][0]["address"];
            assert!(addresses.insert(address.to_string()), "{number}: {address}");
        }
        Ok(())
    }
}
