//! A Redis of the tests of sidecars, for tests that wait without a runtime.

use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tidegate_tests::shared_servers::{Redis, RedisOptions, RedisPrograms};
use tokio::runtime::Runtime;

/// Twice what a busy machine ever took.
pub(super) const SOON: Duration = Duration::from_secs(30);

pub(crate) struct Server {
    pub(crate) redis: Redis,
    runtime: Runtime,
    dir: TempDir,
}

impl Server {
    /// None where there is no redis-server; then the test is named as not run.
    pub(crate) fn start(flags: &[&str]) -> Option<Server> {
        Server::with(|_| RedisOptions { flags, ..RedisOptions::default() })
    }

    pub(crate) fn with<'o>(options: impl FnOnce(&TempDir) -> RedisOptions<'o>) -> Option<Server> {
        let programs = RedisPrograms::find().unwrap()?;
        let (runtime, dir) = (Runtime::new().unwrap(), TempDir::new().unwrap());
        let redis = runtime.block_on(Redis::start(&programs, dir.path(), options(&dir))).unwrap();
        Some(Server { redis, runtime, dir })
    }

    pub(crate) fn address(&self) -> String {
        self.redis.address()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        Redis::socket(self.dir.path(), "redis")
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Kills it and starts it again, and does not wait until it has read its files.
    pub(crate) fn kill_and_start(&mut self) {
        self.stop();
        let _runtime = self.runtime.enter();
        self.redis.start_again().unwrap();
        until("it listens", || TcpStream::connect(("127.0.0.1", self.redis.port)).is_ok());
    }

    pub(crate) fn stop(&mut self) {
        self.runtime.block_on(self.redis.kill()).unwrap();
    }

    /// Starts it again, without its data unless it saved them.
    pub(crate) fn restart(&mut self) {
        self.runtime.block_on(self.redis.restart()).unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.redis.process.signal(signal).unwrap();
    }

    /// The reply to a command, as the bytes of the protocol.
    pub(crate) fn command(&self, words: &[&[u8]]) -> Vec<u8> {
        reply(self.redis.port, words)
    }

    pub(crate) fn text(&self, line: &str) -> String {
        text(self.redis.port, line)
    }

    /// The names of the keys that start with `tidegate:`, without the seed.
    pub(crate) fn counter_keys(&self) -> Vec<Vec<u8>> {
        counter_keys(self.redis.port)
    }
}

/// The reply of the server at a port to a command, as the bytes of the protocol.
pub(crate) fn reply(port: u16, words: &[&[u8]]) -> Vec<u8> {
    let mut command = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        command.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        command.extend_from_slice(word);
        command.extend_from_slice(b"\r\n");
    }
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut reply = vec![0; 1024 * 1024];
    match stream.write_all(&command).and_then(|()| stream.read(&mut reply)) {
        Ok(length) => reply.truncate(length),
        Err(_) => reply.clear(),
    }
    reply
}

pub(crate) fn text(port: u16, line: &str) -> String {
    let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    String::from_utf8_lossy(&reply(port, &words)).into_owned()
}

pub(crate) fn counter_keys(port: u16) -> Vec<Vec<u8>> {
    let script = "local keys = {} for i, key in ipairs(redis.call('KEYS', 'tidegate:*')) do if key ~= 'tidegate:seed' \
        then keys[#keys + 1] = string.gsub(key, '.', function(c) return string.format('%02x', string.byte(c)) end) end end \
        return table.concat(keys, ' ')";
    let text = String::from_utf8(reply(port, &[b"EVAL", script.as_bytes(), b"0"])).unwrap();
    let words = text.lines().nth(1).unwrap_or_default().split_whitespace();
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    words.map(|word| word.as_bytes().chunks(2).map(byte).collect()).collect()
}

pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < SOON, "not within {} s: {what}", SOON.as_secs());
        std::thread::sleep(Duration::from_millis(5));
    }
}
