//! The compared services, each with a Redis of its own, and one limit on every user.

use super::counting::PIPELINE_WINDOW;
use crate::server::{self, free_ports, limitador};
use anyhow::{Context, ensure};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use tempfile::TempDir;
use tidegate_tests::artifacts;
use tidegate_tests::shared_servers::{Redis, RedisOptions, RedisPrograms};

/// The descriptor of every call, with the name of a group of keys in the place of `{group}`.
const DESCRIPTOR: &str = "user={group}-{key}";

/// The descriptor of calls on the keys of a group.
pub(super) fn descriptor(group: &str) -> String {
    DESCRIPTOR.replace("{group}", group)
}

/// A service under comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Software {
    /// Tidegate with counters in Redis.
    Shared,
    /// INCRBY and EXPIRE for each call.
    Counting,
    /// Limitador with its storage `redis`.
    Limitador,
    /// Limitador with its storage `redis_cached`.
    LimitadorCached,
    /// Tidegate with its own store, which no other machine shares.
    Local,
}

impl Software {
    pub(super) fn name(self) -> &'static str {
        match self {
            Software::Shared => "tidegate",
            Software::Counting => "INCRBY and EXPIRE",
            Software::Limitador => "limitador redis",
            Software::LimitadorCached => "limitador redis_cached",
            Software::Local => "tidegate, own store",
        }
    }

    /// Those that are available: first the measured one, then its peers.
    pub(super) fn all() -> Vec<Software> {
        let limitador = limitador().map(|_| [Software::Limitador, Software::LimitadorCached]);
        let first = [Software::Shared, Software::Counting].into_iter();
        first.chain(limitador.into_iter().flatten()).chain([Software::Local]).collect()
    }

    pub(super) fn has_redis(self) -> bool {
        self != Software::Local
    }
}

/// The limit of every user: a fixed window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CountedLimit {
    pub(super) requests: u32,
    pub(super) seconds: u64,
}

/// Servers of one kind, and the Redis that they share.
#[derive(Debug)]
pub(super) struct Subject {
    pub(super) software: Software,
    pub(super) servers: Vec<server::Server>,
    /// None for those without it.
    pub(super) redis: Option<Redis>,
    /// The files of Redis.
    _dir: TempDir,
}

impl Subject {
    /// Starts a number of servers. Each has room for `keys` keys, where it has to know.
    pub(super) async fn start(
        software: Software,
        programs: &RedisPrograms,
        limit: CountedLimit,
        servers: usize,
        keys: u32,
    ) -> anyhow::Result<Subject> {
        let dir = TempDir::new()?;
        let mut redis = None;
        if software.has_redis() {
            redis = Some(Redis::start(programs, dir.path(), RedisOptions::default()).await?);
        }
        let address = redis.as_ref().map(Redis::address).unwrap_or_default();
        let mut started = Vec::new();
        for _ in 0..servers {
            let dir = TempDir::new()?;
            let [door, other] = free_ports()?;
            let arguments = match software {
                Software::Shared | Software::Local => {
                    let shared = software.has_redis().then_some(address.as_str());
                    tidegate(dir.path(), limit, shared, keys, door)?
                }
                Software::Counting => counting(limit, &address, door)?,
                Software::Limitador => {
                    limitador_arguments(dir.path(), limit, ["redis", &address], [door, other])?
                }
                Software::LimitadorCached => {
                    let storage = ["redis_cached", &address];
                    limitador_arguments(dir.path(), limit, storage, [door, other])?
                }
            };
            started.push(server::Server::start(dir, software.name(), arguments, door).await?);
        }
        Ok(Subject { software, servers: started, redis, _dir: dir })
    }
}

fn tidegate(
    dir: &Path,
    limit: CountedLimit,
    redis: Option<&str>,
    keys: u32,
    grpc: SocketAddr,
) -> anyhow::Result<Vec<OsString>> {
    let CountedLimit { requests, seconds } = limit;
    let yaml = format!(
        "domain: bench\ndescriptors:\n- {{key: user, rate_limit: {{requests: {requests}, period: {seconds}s}}}}\n"
    );
    let limits = dir.join("limits.yaml");
    std::fs::write(&limits, yaml)?;
    let mut arguments = vec![artifacts::sidecar()?.into_os_string()];
    arguments.extend(["serve", "--http", "off", "--frs", "off", "--limits"].map(OsString::from));
    arguments.extend([limits.into(), "--data-dir".into(), dir.join("data").into_os_string()]);
    arguments.extend(["--capacity", &keys.to_string()].map(OsString::from));
    arguments.extend(["--grpc", &grpc.to_string()].map(OsString::from));
    if let Some(address) = redis {
        arguments.extend(["--authority", &format!("redis://{address}")].map(OsString::from));
        // Hits that a failure rule allows are not those of the counters.
        arguments.extend(["--authority-failure", "deny"].map(OsString::from));
    }
    Ok(arguments)
}

/// This program with the compared client.
fn counting(limit: CountedLimit, redis: &str, grpc: SocketAddr) -> anyhow::Result<Vec<OsString>> {
    let mut arguments = vec![std::env::current_exe()?.into_os_string()];
    let numbers = [limit.requests.into(), limit.seconds, PIPELINE_WINDOW.as_micros() as u64];
    let [requests, seconds, micros] = numbers.map(|number| number.to_string());
    let flags = ["counting", "--redis", redis, "--grpc", &grpc.to_string()].map(OsString::from);
    arguments.extend(flags);
    let flags = ["--requests", &requests, "--seconds", &seconds, "--pipeline-micros", &micros];
    arguments.extend(flags.map(OsString::from));
    Ok(arguments)
}

fn limitador_arguments(
    dir: &Path,
    limit: CountedLimit,
    [storage, redis]: [&str; 2],
    [grpc, http]: [SocketAddr; 2],
) -> anyhow::Result<Vec<OsString>> {
    let binary = limitador().context("LIMITADOR is not set")?;
    ensure!(binary.is_file(), "LIMITADOR={} is no file", binary.display());
    let CountedLimit { requests, seconds } = limit;
    let yaml = format!(
        "- namespace: bench\n  max_value: {requests}\n  seconds: {seconds}\n  conditions: []\n  \
         variables: [\"descriptors[0].user\"]\n"
    );
    // Limitador watches the directory of the file.
    let own = dir.join("limitador");
    std::fs::create_dir(&own)?;
    let limits = own.join("limits.yaml");
    std::fs::write(&limits, yaml)?;
    let port = |address: SocketAddr| OsString::from(address.port().to_string());
    let mut arguments = vec![binary.into_os_string()];
    arguments.extend(["-b", "127.0.0.1", "-B", "127.0.0.1", "-p"].map(OsString::from));
    arguments.extend([port(grpc), "-P".into(), port(http), limits.into_os_string()]);
    arguments.extend([storage, &format!("redis://{redis}")].map(OsString::from));
    Ok(arguments)
}
