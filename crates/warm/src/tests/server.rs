//! A Redis of a test, at a Unix socket in a directory of its own.

use rustix::process::{Pid, Signal, kill_process};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const START: Duration = Duration::from_secs(30);

pub(super) struct Server {
    child: Child,
    dir: TempDir,
}

impl Server {
    /// None if there is no Redis on this machine. Then the test is named.
    pub(super) fn start() -> Option<Server> {
        let dir = TempDir::new().unwrap();
        match spawn(&dir) {
            Ok(child) => {
                let server = Server { child, dir };
                server.answers();
                Some(server)
            }
            Err(error) => {
                let must_run = std::env::var("TIDEGATE_ROOT_TESTS").is_ok_and(|value| value == "1");
                assert!(!must_run, "redis-server: {error}");
                let test = thread::current().name().unwrap_or_default().to_owned();
                eprintln!(
                    "not run: {test}: needs redis-server (apt-get install redis-server): {error}"
                );
                None
            }
        }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    pub(super) fn address(&self) -> String {
        format!("unix:{}", self.socket().display())
    }

    /// Sends a signal: a server that is stopped answers nobody.
    pub(super) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Ends it as a crash would, and starts it again without data.
    pub(super) fn crash_and_restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = spawn(&self.dir).unwrap();
        self.answers();
    }

    /// The answer to a command, as text.
    pub(super) async fn command(&self, words: &[&[u8]]) -> String {
        let mut settings = tidegate_remote::Settings::at(&self.address()).unwrap();
        settings.timeout = super::LONG;
        let link = tidegate_remote::Links::new(&settings).unwrap().open().await.unwrap();
        let mut command = redis::cmd(str::from_utf8(words[0]).unwrap());
        words[1..].iter().for_each(|word| _ = command.arg(*word));
        let mut pipeline = redis::Pipeline::new();
        pipeline.add_command(command);
        let deadline = tokio::time::Instant::now() + super::LONG;
        let answers = link.ask(&pipeline, 1 << 20, deadline).await.unwrap();
        match &answers[0] {
            redis::Value::BulkString(text) => String::from_utf8_lossy(text).into_owned(),
            redis::Value::SimpleString(text) => text.clone(),
            redis::Value::Int(number) => number.to_string(),
            other => format!("{other:?}"),
        }
    }

    /// The sum of the sizes of all keys, by the server's own account.
    pub(super) async fn used_memory(&self) -> u64 {
        let info = self.command(&[b"INFO", b"memory"]).await;
        let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
        used.unwrap().trim().parse().unwrap()
    }

    fn answers(&self) {
        let start = Instant::now();
        while std::os::unix::net::UnixStream::connect(self.socket()).is_err() {
            assert!(start.elapsed() < START, "redis-server does not answer");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(dir: &TempDir) -> std::io::Result<Child> {
    let program = std::env::var("TIDEGATE_REDIS_SERVER").ok().filter(|path| !path.is_empty());
    let socket = dir.path().join("redis.sock");
    let _ = std::fs::remove_file(&socket);
    Command::new(program.as_deref().unwrap_or("redis-server"))
        .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
        .arg(socket)
        .arg("--dir")
        .arg(dir.path())
        .stdout(Stdio::null())
        .spawn()
}
