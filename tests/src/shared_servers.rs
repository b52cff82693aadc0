//! Real servers that hold counters for several machines: Redis alone, with a replica and Sentinel, or as a cluster,
//! and memcached.
//!
//! A test starts them in a directory of its own, on ports of loopback that it picks. They are ready when they answer,
//! and end with their handles, by process id. A machine without the programs names the tests as not run.

mod cluster;
mod memcached;
mod ports;
mod redis;
mod sentinel;
mod tls;

pub use cluster::Cluster;
pub use memcached::Memcached;
pub use redis::{Redis, RedisOptions};
pub use sentinel::{PRIMARY, Replicated};
pub use tls::ServerTls;

use crate::not_run;
use anyhow::{Context, ensure};
use std::path::PathBuf;

/// The programs of Redis. Those of Valkey do as well: name them by `TIDEGATE_REDIS_SERVER` and `TIDEGATE_REDIS_CLI`.
#[derive(Debug, Clone)]
pub struct RedisPrograms {
    server: PathBuf,
    cli: PathBuf,
}

impl RedisPrograms {
    /// Finds them. Without them the test is named as not run, and there are none.
    ///
    /// # Errors
    /// When they are not there, and every test must run.
    pub fn find() -> anyhow::Result<Option<RedisPrograms>> {
        let found = || {
            anyhow::Ok(RedisPrograms {
                server: program("redis-server", "TIDEGATE_REDIS_SERVER")?,
                cli: program("redis-cli", "TIDEGATE_REDIS_CLI")?,
            })
        };
        not_run::or_named("redis-server (apt-get install redis-server)", found())
    }
}

/// The program of memcached; `TIDEGATE_MEMCACHED` names another.
#[derive(Debug, Clone)]
pub struct MemcachedProgram(PathBuf);

impl MemcachedProgram {
    /// As [`RedisPrograms::find`].
    ///
    /// # Errors
    /// As [`RedisPrograms::find`].
    pub fn find() -> anyhow::Result<Option<MemcachedProgram>> {
        let found = program("memcached", "TIDEGATE_MEMCACHED").map(MemcachedProgram);
        not_run::or_named("memcached (apt-get install memcached)", found)
    }
}

/// Where a program is: at the path of its variable, or by the search path of this process.
fn program(name: &str, variable: &str) -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os(variable).filter(|value| !value.is_empty()) {
        let path = PathBuf::from(path);
        ensure!(path.is_file(), "{variable}: {} is not there", path.display());
        return Ok(path);
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).map(|dir| dir.join(name)).find(|path| path.is_file());
    found.with_context(|| format!("{name} is not in PATH, and {variable} is not set"))
}
