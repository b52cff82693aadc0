//! A memcached of the tests of sidecars, for tests that wait without a runtime.

use super::super::server::{SOON, until};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use tempfile::TempDir;
use tidegate_tests::shared_servers::{Memcached, MemcachedProgram};
use tokio::runtime::Runtime;

pub(super) struct Server {
    memcached: Memcached,
    runtime: Runtime,
    _dir: TempDir,
}

impl Server {
    /// None where there is no memcached; then the test is named as not run.
    pub(super) fn start(flags: &[&str]) -> Option<Server> {
        let program = MemcachedProgram::find().unwrap()?;
        let (runtime, dir) = (Runtime::new().unwrap(), TempDir::new().unwrap());
        let memcached = runtime.block_on(Memcached::start(&program, dir.path(), flags)).unwrap();
        Some(Server { memcached, runtime, _dir: dir })
    }

    pub(super) fn address(&self) -> String {
        self.memcached.address()
    }

    pub(super) fn stop(&mut self) {
        self.runtime.block_on(self.memcached.kill()).unwrap();
    }

    /// Starts it again after [`Server::stop`], without its values.
    pub(super) fn restart(&mut self) {
        self.runtime.block_on(self.memcached.restart()).unwrap();
    }

    pub(super) fn signal(&self, signal: Signal) {
        self.memcached.process.signal(signal).unwrap();
    }

    /// The lines of the answer to a command, up to END, or its only line when the server is busy.
    fn lines(&self, command: &str) -> Vec<String> {
        let stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        (&stream).write_all(format!("{command}\r\n").as_bytes()).unwrap();
        let lines = BufReader::new(stream).split(b'\n');
        let mut answer = Vec::new();
        for line in lines.map(|line| String::from_utf8_lossy(&line.unwrap()).trim_end().to_owned())
        {
            if line == "END" {
                break;
            }
            let is_refusal = line.starts_with("BUSY ");
            answer.push(line);
            if is_refusal {
                break;
            }
        }
        answer
    }

    pub(super) fn line(&self, command: &str) -> String {
        self.runtime.block_on(self.memcached.command(command)).unwrap()
    }

    /// The names of the keys that start with `tidegate:` and the seconds at which they end, without the seed.
    pub(super) fn counter_keys(&self) -> Vec<(String, u64)> {
        // The server refuses while its crawler does something else.
        let mut lines = Vec::new();
        until("the crawler is free", || {
            lines = self.lines("lru_crawler metadump all");
            !lines.first().is_some_and(|line| line.starts_with("BUSY "))
        });
        // A key that moves from one list of the server to another is dumped from both.
        let mut keys = BTreeMap::new();
        for line in lines {
            let field = |name: &str| line.split(' ').find_map(|field| field.strip_prefix(name));
            let (Some(key), Some(end)) = (field("key="), field("exp=")) else { continue };
            let key = key.replace("%3A", ":");
            if key.starts_with("tidegate:") && key != "tidegate:seed" {
                keys.insert(key, end.parse().unwrap());
            }
        }
        keys.into_iter().collect()
    }

    pub(super) fn stat(&self, name: &str) -> u64 {
        let prefix = format!("STAT {name} ");
        let lines = self.lines("stats");
        lines.iter().find_map(|line| line.strip_prefix(&prefix)).unwrap().parse().unwrap()
    }
}
