//! Real servers that several machines share: for counters Redis alone, with a replica and Sentinel, or as a cluster,
//! and memcached; for statistics PostgreSQL.
//!
//! A test starts them in a directory of its own, on ports of loopback that it picks. They are ready when they answer,
//! and end with their handles, by process id. A machine without the programs names the tests as not run.

mod cluster;
mod memcached;
mod postgres;
mod redis;
mod sentinel;
mod tls;

pub use cluster::Cluster;
pub use memcached::Memcached;
pub use postgres::Postgres;
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

/// The programs of PostgreSQL.
#[derive(Debug, Clone)]
pub struct PostgresPrograms {
    server: PathBuf,
    initdb: PathBuf,
    is_ready: PathBuf,
}

impl PostgresPrograms {
    /// As [`RedisPrograms::find`]. They are looked for where Debian has them, apart from the programs of users, and
    /// where an installation from source has them.
    ///
    /// # Errors
    /// As [`RedisPrograms::find`].
    pub fn find() -> anyhow::Result<Option<PostgresPrograms>> {
        let programs_in = |dir: PathBuf| {
            let [server, initdb, is_ready] =
                ["postgres", "initdb", "pg_isready"].map(|name| dir.join(name));
            let are_there = [&server, &initdb, &is_ready].iter().all(|path| path.is_file());
            are_there.then_some(PostgresPrograms { server, initdb, is_ready })
        };
        let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let mut dirs: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
        dirs.sort();
        dirs.insert(0, PathBuf::from("/usr/local/pgsql/bin"));
        let found = dirs.into_iter().rev().find_map(programs_in);
        let found =
            found.context("no postgres, initdb and pg_isready in /usr/lib/postgresql/*/bin");
        not_run::or_named("postgresql (apt-get install postgresql)", found)
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
