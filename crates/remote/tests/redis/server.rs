//! A real redis-server, on a port of its own and in a temporary directory. It ends with its owner.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Twice what a busy machine ever took.
const SOON: Duration = Duration::from_secs(30);

pub(crate) struct Server {
    child: Child,
    dir: TempDir,
    pub(crate) port: u16,
    options: Vec<String>,
}

impl Server {
    /// None, with a line for `tests/run`, where there is no redis-server.
    pub(crate) fn start(test: &str, options: &[&str]) -> Option<Server> {
        if Command::new("redis-server").arg("--version").output().is_err() {
            let must_run =
                std::env::var_os("TIDEGATE_ROOT_TESTS").is_some_and(|value| value == "1");
            assert!(!must_run, "TIDEGATE_ROOT_TESTS=1, and there is no redis-server");
            let line = format!("\nnot run: {test}: needs redis-server\n");
            std::io::stderr().write_all(line.as_bytes()).unwrap();
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let port = free_port();
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let child = spawn(&dir, port, &options);
        let server = Server { child, dir, port, options };
        server.wait();
        Some(server)
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    pub(crate) fn stop(&mut self) {
        self.signal(Signal::KILL);
        self.child.wait().unwrap();
    }

    /// Starts it again, without its data unless it saved them.
    pub(crate) fn restart(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            self.stop();
        }
        self.child = spawn(&self.dir, self.port, &self.options);
        self.wait();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The reply to a command, as the bytes of the protocol.
    pub(crate) fn command(&self, words: &[&[u8]]) -> Vec<u8> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        exchange(&mut stream, words)
    }

    pub(crate) fn text(&self, line: &str) -> String {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        String::from_utf8_lossy(&self.command(&words)).into_owned()
    }

    /// The names of the keys that start with `tidegate:`, without the seed.
    pub(crate) fn counter_keys(&self) -> Vec<Vec<u8>> {
        let script = "local keys = {} for i, key in ipairs(redis.call('KEYS', 'tidegate:*')) do if key ~= 'tidegate:seed' \
            then keys[#keys + 1] = string.gsub(key, '.', function(c) return string.format('%02x', string.byte(c)) end) end end \
            return table.concat(keys, ' ')";
        let reply = self.command(&[b"EVAL", script.as_bytes(), b"0"]);
        let text = String::from_utf8(reply).unwrap();
        let words = text.lines().nth(1).unwrap_or_default().split_whitespace();
        let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
        words.map(|word| word.as_bytes().chunks(2).map(byte).collect()).collect()
    }

    fn wait(&self) {
        until("the server answers", || {
            let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
            stream.set_read_timeout(Some(SOON)).unwrap();
            // Also an error is an answer, except while it loads.
            let reply = exchange(&mut stream, &[b"PING"]);
            !reply.is_empty() && !reply.starts_with(b"-LOADING")
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(dir: &TempDir, port: u16, options: &[String]) -> Child {
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--unixsocket"]);
    command.arg(dir.path().join("redis.sock"));
    command.args(["--dir", dir.path().to_str().unwrap(), "--save", "", "--daemonize", "no"]);
    command.args(options).stdout(Stdio::null()).spawn().unwrap()
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

fn exchange(stream: &mut TcpStream, words: &[&[u8]]) -> Vec<u8> {
    let mut command = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        command.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        command.extend_from_slice(word);
        command.extend_from_slice(b"\r\n");
    }
    let mut reply = vec![0; 1024 * 1024];
    match stream.write_all(&command).and_then(|()| stream.read(&mut reply)) {
        Ok(length) => reply.truncate(length),
        Err(_) => reply.clear(),
    }
    reply
}

pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < SOON, "not within {} s: {what}", SOON.as_secs());
        std::thread::sleep(Duration::from_millis(5));
    }
}
