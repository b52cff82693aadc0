//! Databases for tests: SQLite in a directory, and servers of PostgreSQL and MariaDB that a test starts on loopback.
//!
//! As root they run as another user, since they refuse root. Where a server is not installed, its tests are named as not
//! run.

use rustix::process::{Pid, Signal, geteuid, kill_process};
use sqlx::{AnyConnection, Connection, Executor};
use std::fs::Permissions;
use std::io::Write;
use std::net::TcpListener;
use std::ops::Range;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// `nobody`, as Debian and most others number it.
const UNPRIVILEGED: u32 = 65_534;
/// What PostgreSQL keeps of the password `se@cret`, after one round of hashing. The usual 4,096 take an unoptimised client
/// longer than all else that it does with a connection.
const VERIFIER: &str = "SCRAM-SHA-256$1:dGlkZWdhdGUncyB0ZXN0cw==$\
    noqSTi7MOaJ6B1cFNhz5+Uxb3B8XjPAWYrskdlZX9Vc=:beEfEtjJD9rxRa/5J1HzA4p608UcA6i8ZZI65XOT/Lo=";
/// Below the ports that the system gives to connections (Linux: from 32768), which would take that of a server before it
/// starts, or while it is down. Above those of the documentation, whose commands are tested.
const PORTS: Range<u16> = 20_000..32_000;
/// How often a server that found its port taken is started at another one.
const STARTS_MAX: usize = 20;
/// Many times what a start takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Sqlite,
    Postgres,
    Mariadb,
}

/// A running server, or a directory of SQLite's files. Ends with the test.
pub struct Server {
    pub kind: Kind,
    dir: TempDir,
    port: u16,
    process: Option<Child>,
    /// More arguments for the next start.
    options: Vec<String>,
}

impl Server {
    /// None if it is not installed; the test is named as not run then.
    pub async fn start(kind: Kind) -> Option<Server> {
        let mut server = Server {
            kind,
            dir: if kind == Kind::Sqlite { TempDir::new() } else { in_memory() }.unwrap(),
            port: free_port(),
            process: None,
            options: Vec::new(),
        };
        if kind == Kind::Sqlite {
            return Some(server);
        }
        let (program, package) = server.needs();
        let Some(program) = program else {
            not_run(package);
            return None;
        };
        if is_root() {
            chown(server.dir.path(), Some(UNPRIVILEGED), Some(UNPRIVILEGED)).unwrap();
        }
        server.initialize(&program);
        server.start_at_a_free_port().await;
        if kind == Kind::Mariadb {
            let mut root = server.administrator().await;
            for sql in [
                "CREATE USER 'tide'@'localhost' IDENTIFIED BY 'se@cret'",
                "GRANT ALL ON *.* TO 'tide'@'localhost'",
            ] {
                root.execute(sql).await.unwrap();
            }
        }
        Some(server)
    }

    /// The program of the server, if it is installed, and what to install otherwise.
    fn needs(&self) -> (Option<PathBuf>, &'static str) {
        match self.kind {
            Kind::Postgres => (postgres("postgres"), "postgresql"),
            _ => {
                (found(&["/usr/sbin", "/usr/bin", "/usr/local/bin"], "mariadbd"), "mariadb-server")
            }
        }
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn initialize(&self, server: &Path) {
        let mut command;
        if self.kind == Kind::Postgres {
            let password = self.dir.path().join("password");
            std::fs::write(&password, VERIFIER).unwrap();
            let initdb = server.with_file_name("initdb");
            command = self.command(&initdb);
            command.args(["--no-sync", "-U", "tide", "-A", "scram-sha-256", "-E", "UTF8"]);
            command.arg("--locale=C").arg("-D").arg(self.data());
            command.arg(format!("--pwfile={}", password.display()));
        } else {
            command = self.command(Path::new("mariadb-install-db"));
            command.args(["--no-defaults", "--auth-root-authentication-method=normal"]);
            command.arg(format!("--datadir={}", self.data().display()));
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        // In one directory, servers of MariaDB would remove each other's temporary tables.
        command.env("TMPDIR", self.dir.path());
        if is_root() {
            command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
        }
        command
    }

    async fn start_at_a_free_port(&mut self) {
        for _ in 0..STARTS_MAX {
            match self.try_start().await {
                Ok(()) => return,
                Err(log) if log.contains("Address already in use") => self.port = free_port(),
                Err(log) => panic!("no answer of {:?}: {log}", self.kind),
            }
        }
        panic!("{:?} found its port taken {STARTS_MAX} times", self.kind);
    }

    /// Starts it, on the same port and data as before, and waits until it answers.
    pub async fn restart(&mut self) {
        if let Err(log) = self.try_start().await {
            panic!("no answer of {:?}: {log}", self.kind);
        }
    }

    /// Starts it, and waits until it answers. The error is its log.
    async fn try_start(&mut self) -> Result<(), String> {
        let program = self.needs().0.unwrap();
        let mut command = self.command(&program);
        let log = self.dir.path().join("log");
        let file = std::fs::File::create(&log).unwrap();
        command.stdout(file.try_clone().unwrap()).stderr(file);
        if self.kind == Kind::Postgres {
            command.arg("-D").arg(self.data()).args(["-p", &self.port.to_string()]);
            command.args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
            command.args(["-c", "max_connections=100", "-c", "fsync=off"]);
        } else {
            let dir = self.dir.path().display();
            command.args(["--no-defaults", "--bind-address=127.0.0.1", "--skip-log-bin"]);
            command.arg(format!("--datadir={dir}/data")).arg(format!("--port={}", self.port));
            command.arg(format!("--socket={dir}/socket")).arg(format!("--pid-file={dir}/pid"));
            command.arg("--innodb-flush-log-at-trx-commit=2");
        }
        command.args(&self.options);
        let url = self.administrator_url();
        let process = self.process.insert(command.spawn().unwrap());
        let log = || std::fs::read_to_string(&log).unwrap();
        let mut has_ended = false;
        let settled = until(async || {
            has_ended = process.try_wait().unwrap().is_some();
            // Another server may answer at the port before this one finds it taken.
            has_ended || (log().contains("ready") && AnyConnection::connect(&url).await.is_ok())
        });
        if tokio::time::timeout(PATIENCE, settled).await.is_ok() && !has_ended {
            return Ok(());
        }
        if has_ended {
            self.process = None;
        }
        Err(log())
    }

    /// Kills it, as a crash does.
    pub fn kill(&mut self) {
        let Some(process) = &mut self.process else { return };
        if self.kind == Kind::Postgres {
            // Its other processes end with it, without a last write.
            let pid = Pid::from_raw(process.id().cast_signed()).unwrap();
            kill_process(pid, Signal::QUIT).unwrap();
            // One that stands still does not notice.
            self.resume();
        } else {
            process.kill().unwrap();
        }
        self.process.take().unwrap().wait().unwrap();
    }

    /// Stops all its processes where they are, as a machine that stands still does.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let Some(process) = &self.process else { return };
        let parent = process.id();
        let children = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
            let process: u32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            // After the name, which may have spaces, come the state and the parent.
            let of = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()?;
            (of == parent).then_some(process)
        });
        for process in std::iter::once(parent).chain(children) {
            // A child may have ended meanwhile.
            let _ = kill_process(Pid::from_raw(process.cast_signed()).unwrap(), signal);
        }
    }

    /// Starts PostgreSQL again, so that it takes TLS. Returns the file of its certificate, for the name `localhost`.
    pub async fn with_tls(&mut self) -> PathBuf {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let [certificate, key] =
            ["server.crt", "server.key"].map(|name| self.dir.path().join(name));
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        // A key that others may read is refused.
        std::fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
        if is_root() {
            chown(&key, Some(UNPRIVILEGED), Some(UNPRIVILEGED)).unwrap();
        }
        for (name, value) in [("cert", &certificate), ("key", &key)] {
            let option = format!("ssl_{name}_file={}", value.display());
            self.options.extend(["-c".to_owned(), option]);
        }
        self.options.extend(["-c".to_owned(), "ssl=on".to_owned()]);
        self.kill();
        self.restart().await;
        certificate
    }

    fn administrator_url(&self) -> String {
        sqlx::any::install_default_drivers();
        match self.kind {
            Kind::Mariadb => format!("mysql://root@127.0.0.1:{}/mysql", self.port),
            _ => format!("postgres://tide:se%40cret@127.0.0.1:{}/postgres", self.port),
        }
    }

    pub async fn administrator(&self) -> AnyConnection {
        AnyConnection::connect(&self.administrator_url()).await.unwrap()
    }

    /// The URL of a database, which need not exist.
    pub fn url(&self, name: &str) -> String {
        let port = self.port;
        match self.kind {
            Kind::Sqlite => crate::sqlite_url(&self.dir.path().join(name)),
            Kind::Postgres => format!("postgres://tide:se%40cret@127.0.0.1:{port}/tide_{name}"),
            Kind::Mariadb => format!("mysql://tide:se%40cret@127.0.0.1:{port}/tide_{name}"),
        }
    }

    /// Makes a new, empty database. Returns its URL.
    pub async fn create_database(&self, name: &str) -> String {
        if self.kind != Kind::Sqlite {
            let sql = sqlx::AssertSqlSafe(format!("CREATE DATABASE tide_{name}"));
            self.administrator().await.execute(sqlx::query(sql)).await.unwrap();
        }
        self.url(name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until a condition holds. The caller bounds the time.
pub async fn until(mut condition: impl AsyncFnMut() -> bool) {
    while !condition().await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A directory in memory, where there is room: a server makes hundreds of files for each database.
fn in_memory() -> std::io::Result<TempDir> {
    const MEMORY: &str = "/dev/shm";
    const ROOM: u64 = 4 << 30;
    let room = rustix::fs::statvfs(MEMORY).map(|of| of.f_bavail * of.f_frsize);
    if room.is_ok_and(|room| room >= ROOM) { TempDir::new_in(MEMORY) } else { TempDir::new() }
}

fn postgres(program: &str) -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut programs: Vec<PathBuf> =
        versions.map(|version| version.path().join("bin").join(program)).collect();
    programs.push(Path::new("/usr/local/pgsql/bin").join(program));
    programs.sort();
    programs.into_iter().rev().find(|program| program.exists())
}

fn found(directories: &[&str], program: &str) -> Option<PathBuf> {
    directories.iter().map(|of| Path::new(of).join(program)).find(|program| program.exists())
}

fn is_root() -> bool {
    geteuid().is_root()
}

/// A port where nothing listens. Another process may be faster to listen there.
fn free_port() -> u16 {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    // Processes at the same time begin at different ports.
    let first = std::process::id().wrapping_mul(257);
    let mut ports = PORTS.map(|_| {
        let index = first.wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed));
        PORTS.start + (index % PORTS.len() as u32) as u16
    });
    ports.find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok()).unwrap()
}

fn not_run(package: &str) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test");
    let line = format!("\nnot run: {name}: needs {package} (apt-get install {package})\n");
    // Not by `eprint`, which is captured.
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// Tests of scenarios, which are functions of a [`Server`]. Each is a test on SQLite. On a server, which takes seconds to
/// start, the function `all` runs all of them.
#[macro_export]
macro_rules! scenarios {
    ($($module:ident::$name:ident),* $(,)?) => {
        mod sqlite {
            use super::*;

            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let server = $crate::testing::Server::start($crate::testing::Kind::Sqlite).await;
                $module::$name(&server.unwrap()).await;
            })*
        }

        async fn all(kind: $crate::testing::Kind) {
            let Some(server) = $crate::testing::Server::start(kind).await else { return };
            $(
                println!("{}", stringify!($name));
                $module::$name(&server).await;
            )*
        }
    };
}
