//! `make demo` and `make run`: the shipped configuration of `envoy/standalone`, with real traffic.

use anyhow::{Context, bail, ensure};
use clap::{Parser, Subcommand};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tidegate_tests::client::{Tally, drive, get};
use tidegate_tests::envoy::{Envoy, start_envoy};
use tidegate_tests::load::{Load, Pace};
use tidegate_tests::sidecar::Sidecar;
use tidegate_tests::upstream::Upstream;
use tidegate_tests::{artifacts, wait};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

/// The demo's traffic takes a few seconds; this is ample on a busy machine.
const ROOM_NEEDED: Duration = Duration::from_secs(20);
const CONNECTIONS: u32 = 4;
const WORKERS: u32 = 2;
/// Requests a second of `run`, so that the console has something to show.
const TRAFFIC: f64 = 20.0;
/// Who sends them, in turn: most of them within their limits, and two who want more.
const VISITORS: [&str; 8] =
    ["greedy", "ada", "bursty", "greedy", "grace", "monitoring", "bursty", "linus"];

/// Shows Tidegate at work in a real Envoy.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: What,
}

#[derive(Subcommand)]
enum What {
    /// Drive traffic over the limits, kill the sidecar in between, and judge the outcome
    Demo,
    /// Keep the stack running in the foreground, with Envoy on 127.0.0.1:10000
    Run,
}

#[tokio::main]
async fn main() -> ExitCode {
    let work = async {
        match Cli::parse().command {
            What::Demo => demo().await,
            What::Run => run().await,
        }
    };
    // Dropping the work ends its processes, so an interrupted demo leaves nothing behind.
    let result = tokio::select! {
        // An interrupt from the terminal reaches the children as well; their end is no failure.
        biased;
        () = interrupted() => {
            eprintln!("\ninterrupted; stopped what was started");
            return ExitCode::from(130);
        }
        result = work => result,
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nfailed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Ends when the user wants the demo to: Ctrl-C, Ctrl-\, `kill`, or a terminal that closes.
async fn interrupted() {
    let kinds = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
        SignalKind::quit(),
    ];
    let mut waits = tokio::task::JoinSet::new();
    for mut signal in kinds.into_iter().filter_map(|kind| signal(kind).ok()) {
        waits.spawn(async move { signal.recv().await });
    }
    waits.join_next().await;
}

/// Prints a step and how long it took.
struct Step(Instant);

impl Step {
    fn start(what: &str) -> Step {
        print!("  {what:<58}");
        let _ = std::io::stdout().flush();
        Step(Instant::now())
    }

    fn done(self) {
        println!("{:>6.1} s", self.0.elapsed().as_secs_f64());
    }
}

async fn demo() -> anyhow::Result<()> {
    let dir = TempDir::new()?;
    let result = drive_and_judge(dir.path()).await;
    if result.is_err() {
        for name in ["sidecar.log", "envoy.log"] {
            let log = std::fs::read_to_string(dir.path().join(name)).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines.len().saturating_sub(20);
            eprintln!("\nThe end of {name}:\n{}", lines[tail..].join("\n"));
        }
    }
    result
}

async fn drive_and_judge(dir: &Path) -> anyhow::Result<()> {
    println!("Starting an upstream, the sidecar and Envoy on free ports of 127.0.0.1");
    let upstream = Upstream::start("127.0.0.1:0").await?;
    let step = Step::start("sidecar: tidegate serve, data in a new directory");
    let mut sidecar = Sidecar::start(dir, &shipped("limits.yaml")).await?;
    step.done();
    let step = Step::start(&format!("Envoy with tidegate.wasm, {WORKERS} workers"));
    let config = envoy_config(&upstream, dir)?;
    let envoy = start_envoy(&config, dir, WORKERS).await?;
    step.done();

    println!("Sending requests, each with a header x-client, over {CONNECTIONS} connections");
    if wait::left_in_window(wait::MINUTE) < ROOM_NEEDED {
        let step = Step::start("waiting for the next minute, so that one window holds it all");
        wait::for_room_in_window(wait::MINUTE, ROOM_NEEDED).await?;
        step.done();
    }
    let mut table = Table { envoy: &envoy, rows: Vec::new() };
    table.drive("alice", "50 a minute", 200, Expect::Exactly(50)).await?;
    table.drive("bob", "50 a minute", 30, Expect::Exactly(30)).await?;
    table.drive("bursty", "burst 10 + 1/s", 40, Expect::Bucket(10)).await?;
    table.drive("monitoring", "unlimited", 100, Expect::Exactly(100)).await?;
    let step = Step::start("kill -9 of the sidecar, then start it again");
    sidecar.kill().await?;
    sidecar.restart().await?;
    step.done();
    table.drive("alice, after kill -9", "50 a minute", 20, Expect::Exactly(0)).await?;
    table.drive("bob, after kill -9", "50 a minute", 30, Expect::Exactly(20)).await?;
    table.print();
    ensure!(table.held(), "a row differs from what was expected");
    sidecar.process.stop().await?;
    println!("All as expected: exact over connections and workers, and kill -9 lost no count.");
    println!("To see it live: make run, then open http://127.0.0.1:8080/ in a browser.");
    Ok(())
}

/// What a row should show.
enum Expect {
    /// So many allowed.
    Exactly(u32),
    /// A burst of this many, and a token for each second that the sending took.
    Bucket(u32),
}

struct Row {
    client: &'static str,
    limit: &'static str,
    sent: u32,
    tally: Tally,
    expected: String,
    held: bool,
}

struct Table<'a> {
    envoy: &'a Envoy,
    rows: Vec<Row>,
}

impl Table<'_> {
    async fn drive(
        &mut self,
        client: &'static str,
        limit: &'static str,
        sent: u32,
        expect: Expect,
    ) -> anyhow::Result<()> {
        let step = Step::start(&format!("{client}: {sent} requests"));
        let start = Instant::now();
        let name = client.split(',').next().unwrap_or(client);
        let tally = drive(self.envoy.address, ("x-client", name), sent, CONNECTIONS).await?;
        let secs = u32::try_from(start.elapsed().as_secs())?;
        let (low, high, expected) = match expect {
            Expect::Exactly(n) => (n, n, n.to_string()),
            // The token of a second that has begun may have come by the time of the last take.
            Expect::Bucket(n) => (n, n + secs + 1, format!("{n} to {}", n + secs + 1)),
        };
        let held = (low..=high).contains(&tally.allowed)
            && tally.failed == 0
            && tally.allowed + tally.denied == sent;
        self.rows.push(Row { client, limit, sent, tally, expected, held });
        step.done();
        Ok(())
    }

    fn print(&self) {
        println!();
        println!(
            "{:<22}{:<17}{:>5}{:>9}{:>8}   {:<10}",
            "client", "limit", "sent", "allowed", "denied", "expected"
        );
        for row in &self.rows {
            let Tally { allowed, denied, failed } = row.tally;
            let mark = match (row.held, failed) {
                (true, _) => "ok".to_owned(),
                (false, 0) => "DIFFERS".to_owned(),
                (false, failed) => format!("DIFFERS, {failed} failed"),
            };
            println!(
                "{:<22}{:<17}{:>5}{:>9}{:>8}   {:<10}{mark}",
                row.client, row.limit, row.sent, allowed, denied, row.expected
            );
        }
        println!();
    }

    fn held(&self) -> bool {
        self.rows.iter().all(|row| row.held)
    }
}

fn shipped(name: &str) -> PathBuf {
    artifacts::root().join("envoy/standalone").join(name)
}

/// The shipped Envoy configuration, with its fixed addresses and its path replaced, and a timeout
/// that a machine which stalls for a moment does not exceed.
fn envoy_config(upstream: &Upstream, dir: &Path) -> anyhow::Result<String> {
    let mut config = std::fs::read_to_string(shipped("envoy.yaml"))?;
    // A JSON string is a YAML one, whatever is in the path.
    let quoted = |path: &Path| serde_json::to_string(&path.display().to_string());
    let sidecar = format!("{{ pipe: {{ path: {} }} }}", quoted(&Sidecar::socket(dir))?);
    for (fixed, free) in [
        ("port_value: 9901", "port_value: 0"),
        ("port_value: 10000", "port_value: 0"),
        ("port_value: 10080", &format!("port_value: {}", upstream.address.port())),
        ("{ socket_address: { address: 127.0.0.1, port_value: 8081 } }", &sidecar),
        ("dist/tidegate.wasm", &quoted(&artifacts::filter()?)?),
        ("timeout_ms: 200", "timeout_ms: 5000"),
    ] {
        ensure!(config.matches(fixed).count() == 1, "envoy.yaml must have `{fixed}` just once");
        config = config.replace(fixed, free);
    }
    Ok(config)
}

async fn run() -> anyhow::Result<()> {
    let root = artifacts::root();
    let data = root.join("target/run");
    std::fs::create_dir_all(&data)?;
    let upstream = Upstream::start("127.0.0.1:10080").await;
    let _upstream = upstream.context("the upstream cannot listen on 127.0.0.1:10080")?;
    let token = data.join("token");
    if !token.exists() {
        new_token(&token)?;
    }
    let mut sidecar = in_foreground(&root, artifacts::sidecar()?)
        .args(["serve", "--limits"])
        .arg(shipped("limits.yaml"))
        .arg("--data-dir")
        .arg(&data)
        .arg("--http-token-file")
        .arg(&token)
        .spawn()?;
    let mut envoy = in_foreground(&root, artifacts::envoy()?)
        .args(["--log-level", "warn", "--disable-hot-restart", "--concurrency", "2", "-c"])
        .arg(shipped("envoy.yaml"))
        .spawn()?;
    let admin = "127.0.0.1:9901".parse()?;
    let ready = wait::until("Envoy to be ready", wait::START, async || {
        for (name, child) in [("Envoy", &mut envoy), ("the sidecar", &mut sidecar)] {
            if let Ok(Some(status)) = child.try_wait() {
                return Some(Err(anyhow::anyhow!("{name} ended ({status}); see above")));
            }
        }
        get(admin, "/ready").await.ok().filter(|ready| ready.status == 200).map(|_| Ok(()))
    });
    ready.await??;
    println!(
        "\nConsole: http://127.0.0.1:8080/ (changes of counters take the token in target/run/token).\n\
         {TRAFFIC} requests a second of some clients are sent, so that it has something to show.\n\
         Envoy listens on http://127.0.0.1:10000 (admin: 9901, sidecar metrics: 8080/metrics).\n\
         Try:  for i in $(seq 60); do curl -s -o /dev/null -w '%{{http_code}} ' \
         -H 'x-client: me' http://127.0.0.1:10000/; done\n\
         Limits: envoy/standalone/limits.yaml (kill -HUP {} reads it again). Ctrl-C stops all.\n",
        sidecar.id().unwrap_or_default()
    );
    let headers = |number: u64| {
        let visitor = VISITORS[(number % VISITORS.len() as u64) as usize];
        vec![("x-client", visitor.as_bytes().to_vec())]
    };
    let traffic = Load {
        pace: Pace::Open(TRAFFIC),
        connections: CONNECTIONS,
        headers: Arc::new(headers),
        ..Load::of_one_client(vec!["127.0.0.1:10000".parse()?], "", u64::MAX)
    };
    let _traffic = traffic.start();
    tokio::select! {
        ended = sidecar.wait() => bail!("the sidecar ended ({})", ended?),
        ended = envoy.wait() => bail!("Envoy ended ({})", ended?),
    }
}

/// Makes a token that only this user can read.
fn new_token(path: &Path) -> anyhow::Result<()> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    for byte in bytes {
        write!(file, "{byte:02x}")?;
    }
    Ok(())
}

fn in_foreground(root: &Path, program: PathBuf) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root).stdin(Stdio::null()).kill_on_drop(true);
    command
}
