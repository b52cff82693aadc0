//! The compared servers. Every rule of a server has one counter per user.

use crate::server::{Cores, Server, free_ports, limitador};
use anyhow::{Context, ensure};
use std::ffi::OsString;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;
use tempfile::TempDir;
use tidegate_tests::artifacts;

/// Users of the calls, each with a counter.
pub(super) const USERS: u32 = 10_000;
/// The descriptor of every call; `{key}` is the user.
pub(super) const DESCRIPTOR: &str = "tier=t0,user={key}";
/// Requests per minute: nobody is denied.
const REQUESTS: u32 = 4_000_000_000;

const STATISTICS: &str = "\
statistics:
- {name: tiers, by: [tier]}
- {name: users, by: [tier, user]}
- {name: users-of-tiers, by: [tier], distinct: user}
";

/// The implementation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Software {
    Tidegate,
    /// Which counts three statistics too, one of them with distinct values.
    TidegateWithStatistics,
    Limitador,
}

impl Software {
    pub(super) fn name(self) -> &'static str {
        match self {
            Software::Tidegate => "tidegate",
            Software::TidegateWithStatistics => "tidegate with three statistics",
            Software::Limitador => "limitador",
        }
    }

    /// The name of its log.
    fn log(self) -> &'static str {
        match self {
            Software::Tidegate | Software::TidegateWithStatistics => "tidegate",
            Software::Limitador => "limitador",
        }
    }

    /// The servers that are available.
    pub(super) fn all() -> Vec<Software> {
        match limitador() {
            Some(_) => vec![Software::Tidegate, Software::Limitador],
            None => vec![Software::Tidegate],
        }
    }
}

/// Starts a server with this many rules.
pub(super) async fn start(kind: Software, rules: u32, cores: Cores) -> anyhow::Result<Server> {
    let dir = TempDir::new()?;
    let [door, other] = free_ports()?;
    let arguments = match kind {
        Software::Tidegate => tidegate(dir.path(), rules, door, "")?,
        Software::TidegateWithStatistics => tidegate(dir.path(), rules, door, STATISTICS)?,
        Software::Limitador => limitador_arguments(dir.path(), rules, [door, other])?,
    };
    Server::start(dir, kind.log(), cores.run(arguments), door).await
}

/// Starts Tidegate with FRS.
pub(super) async fn start_frs(cores: Cores) -> anyhow::Result<Server> {
    let dir = TempDir::new()?;
    let [door, _] = free_ports()?;
    let map = format!("<map><business id=\"bench\" max=\"{REQUESTS}\" interval=\"1h\"/></map>\n");
    let limits = dir.path().join("map.xml");
    std::fs::write(&limits, map)?;
    let mut arguments = serve(dir.path(), &limits)?;
    arguments.extend(["--grpc".into(), "off".into(), "--frs".into(), door.to_string().into()]);
    Server::start(dir, "tidegate", cores.run(arguments), door).await
}

fn serve(dir: &Path, limits: &Path) -> anyhow::Result<Vec<OsString>> {
    let mut arguments = vec![artifacts::sidecar()?.into_os_string()];
    arguments.extend(["serve", "--http", "off", "--limits"].map(OsString::from));
    arguments.extend([limits.into(), "--data-dir".into(), dir.join("data").into_os_string()]);
    Ok(arguments)
}

fn tidegate(
    dir: &Path,
    rules: u32,
    grpc: SocketAddr,
    statistics: &str,
) -> anyhow::Result<Vec<OsString>> {
    let mut yaml = format!("domain: bench\n{statistics}descriptors:\n");
    for rule in 0..rules {
        writeln!(
            yaml,
            "- {{key: tier, value: t{rule}, descriptors: [{{key: user, rate_limit: {{unit: minute, \
             requests_per_unit: {REQUESTS}}}}}]}}"
        )?;
    }
    let limits = dir.join("limits.yaml");
    std::fs::write(&limits, yaml)?;
    let mut arguments = serve(dir, &limits)?;
    arguments.extend(["--frs".into(), "off".into(), "--grpc".into(), grpc.to_string().into()]);
    Ok(arguments)
}

/// Limitador's limits are conditions on descriptors, in one namespace.
fn limitador_arguments(
    dir: &Path,
    rules: u32,
    [grpc, http]: [SocketAddr; 2],
) -> anyhow::Result<Vec<OsString>> {
    let mut yaml = String::new();
    for rule in 0..rules {
        writeln!(
            yaml,
            "- namespace: bench\n  name: l{rule}\n  max_value: {REQUESTS}\n  seconds: 60\n  \
             conditions: [\"descriptors[0].tier == 't{rule}'\"]\n  variables: [\"descriptors[0].user\"]"
        )?;
    }
    let binary = limitador().context("LIMITADOR is not set")?;
    ensure!(binary.is_file(), "LIMITADOR={} is no file", binary.display());
    // Limitador watches the directory of the file.
    let own = dir.join("limitador");
    std::fs::create_dir(&own)?;
    let limits = own.join("limits.yaml");
    std::fs::write(&limits, yaml)?;
    let port = |address: SocketAddr| OsString::from(address.port().to_string());
    let mut arguments = vec![binary.into_os_string()];
    arguments.extend(["-b", "127.0.0.1", "-B", "127.0.0.1", "-p"].map(OsString::from));
    arguments.extend([port(grpc), "-P".into(), port(http), limits.into_os_string()]);
    arguments.extend(["memory", "--cache", "1000000"].map(OsString::from));
    Ok(arguments)
}
