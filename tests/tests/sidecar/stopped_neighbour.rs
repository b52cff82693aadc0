//! A process that stops beside sidecars, with a counter in its hands: that counter is not decided, all others
//! are, health checks report it, and all is well as soon as the process goes on or is killed.

use anyhow::{Context, ensure};
use prost::Message;
use rustix::process::{Pid, Signal, getpid, kill_process};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;
use tidegate_store::{Cluster, Options, StoredKey};
use tidegate_tests::process::Waits;
use tidegate_tests::rls::Rls;
use tidegate_tests::sidecar::Sidecar;
use tidegate_tests::{artifacts, client, command, wait};
use tidegate_wire::rls::Code;

const LIMITS: &str = "\
domain: test
descriptors:
  - key: lots
    rate_limit: { unit: year, requests_per_unit: 100000000 }
";
/// Where the child finds the counters; its test ends with it.
const CHILD_DATA: &str = "TIDEGATE_TEST_STOPS_IN";
const REQUESTS: u32 = 1_000;
/// An update waits for 5 ms at most. Had each request waited for that, the sidecar would have been blocked for five
/// seconds. On top comes the time for which its threads had no processor, as a wait ends once its thread has one.
const BLOCKED_MAX_SECS: f64 = 2.0;

/// The child: holds the only counter that there is, and stops.
fn stop_inside(data: &Path) -> ! {
    let cluster = Cluster::open(data, &Options::default()).expect("the counters of the sidecars");
    let mut keys: Vec<StoredKey> = Vec::new();
    cluster.for_each(|_, key, _| keys.push(key)).expect("a look at all counters");
    assert_eq!(keys.len(), 1, "the counter that is held is the only one");
    let update = cluster.update(&keys[0], 1, |_| {
        kill_process(getpid(), Signal::STOP).expect("a signal to itself");
        // Until the parent lets go of the other end, or dies.
        let _ = std::io::stdin().read(&mut [0]);
    });
    update.expect("nobody else holds it");
    // It stays, as a process that goes on.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    std::process::exit(0)
}

/// A child that is stopped while it holds a counter. Killed when dropped.
struct Stopped(Child);

impl Stopped {
    /// Runs the test of this thread again, which finds the variable. Its name is that of the thread: a name that was
    /// written here was not that of the test any more once its file became a module, and nothing ran.
    async fn start(data: &Path) -> anyhow::Result<Stopped> {
        let thread = std::thread::current();
        let test = thread.name().context("a test without a name")?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--exact", test, "--nocapture"]).env(CHILD_DATA, data);
        let child = Stopped(command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?);
        let stat = format!("/proc/{}/stat", child.0.id());
        wait::until("the child to stop", wait::START, async || {
            let stat = std::fs::read_to_string(&stat).ok()?;
            stat.rsplit_once(") ")?.1.starts_with('T').then_some(())
        })
        .await?;
        Ok(child)
    }

    fn goes_on(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)?;
        self.0.stdin.as_mut().context("its input")?.write_all(b".")?;
        Ok(())
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(self.0.id() as i32).context("a process id")?;
        Ok(kill_process(pid, signal)?)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Three sidecars on one data directory: single processes, and a supervisor with two workers.
struct Three {
    dirs: [TempDir; 3],
    sidecars: Vec<Sidecar>,
    clients: Vec<Rls>,
}

impl Three {
    async fn start() -> anyhow::Result<Three> {
        let dirs = [TempDir::new()?, TempDir::new()?, TempDir::new()?];
        let data = dirs[0].path().join("data");
        std::fs::create_dir(&data)?;
        let (mut sidecars, mut clients) = (Vec::new(), Vec::new());
        for (dir, workers) in dirs.iter().zip(["0", "2", "0"]) {
            if !dir.path().join("data").exists() {
                symlink(&data, dir.path().join("data"))?;
            }
            let limits = dir.path().join("limits.yaml");
            std::fs::write(&limits, LIMITS)?;
            let flags = ["--capacity", "100000", "--workers", workers];
            sidecars.push(Sidecar::start_with(dir.path(), &limits, &flags).await?);
            clients.push(Rls::at(dir.path()).await?);
        }
        Ok(Three { dirs, sidecars, clients })
    }

    fn data(&self) -> PathBuf {
        self.dirs[0].path().join("data")
    }

    /// Waits until /healthcheck of all is as wanted.
    async fn all_answer(&self, wanted: &str) -> anyhow::Result<()> {
        for sidecar in &self.sidecars {
            wait::until(wanted, wait::CHECK, async || {
                let page = client::get(sidecar.http, "/healthcheck").await.ok()?;
                let body = String::from_utf8_lossy(&page.body).into_owned();
                (page.status == 200 && body.starts_with(wanted)).then_some(())
            })
            .await?;
        }
        Ok(())
    }

    /// Waits until all have logged this; then how often.
    async fn all_log(&self, text: &str) -> anyhow::Result<Vec<usize>> {
        let mut counts = Vec::new();
        for sidecar in &self.sidecars {
            let count = || sidecar.process.log().matches(text).count();
            wait::until(text, wait::CHECK, async || (count() > 0).then_some(())).await?;
            counts.push(count());
        }
        Ok(counts)
    }
}

/// `grpc.health.v1.HealthCheckResponse`
#[derive(Clone, PartialEq, Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// What gRPC's health service says; 1 is SERVING.
async fn grpc_health(rls: &Rls) -> anyhow::Result<i32> {
    let mut grpc = tonic::client::Grpc::new(rls.0.clone());
    grpc.ready().await?;
    let path = "/grpc.health.v1.Health/Check".parse()?;
    let codec = tonic_prost::ProstCodec::<(), HealthCheckResponse>::default();
    Ok(grpc.unary(tonic::Request::new(()), path, codec).await?.into_inner().status)
}

async fn metric(http: SocketAddr, series: &str) -> anyhow::Result<f64> {
    let page = client::get(http, "/metrics").await?;
    let page = String::from_utf8(page.body.into())?;
    let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    Ok(line.with_context(|| format!("no {series} in {page}"))?.parse()?)
}

/// A busy machine keeps a holder that is ready from its processor as well, now and then.
fn is_in_the_way(status: &tonic::Status) -> bool {
    matches!(status.code(), tonic::Code::Aborted | tonic::Code::ResourceExhausted)
}

async fn until_decided(rls: &Rls, key: &str) -> anyhow::Result<()> {
    wait::until(key, wait::SOON, async || rls.ask(&[("lots", key)]).await.ok().map(|_| ())).await
}

async fn story(is_killed: bool) -> anyhow::Result<()> {
    let three = Three::start().await?;
    until_decided(&three.clients[0], "held").await?;
    let mut child = Stopped::start(&three.data()).await?;
    let pid = child.0.id();
    let workers = three.sidecars[1].process.children()?;
    let waits = three.sidecars.iter().map(|sidecar| sidecar.process.waits());
    let before: Vec<Waits> = waits.collect::<anyhow::Result<_>>()?;

    for rls in &three.clients {
        for _ in 0..REQUESTS {
            let status = rls.ask(&[("lots", "held")]).await.expect_err("no decision");
            ensure!(status.code() == tonic::Code::Aborted, "{status:?}");
            let named = format!("process {pid} holds a key-node");
            ensure!(status.message().contains(&named), "{status:?}");
        }
        let mut undecided = 0;
        for _ in 0..REQUESTS {
            match rls.ask(&[("lots", "other")]).await {
                Ok(answer) => ensure!(answer.overall_code() == Code::Ok, "{answer:?}"),
                Err(status) if is_in_the_way(&status) => {
                    undecided += 1;
                    until_decided(rls, "other").await?;
                }
                Err(status) => return Err(status.into()),
            }
        }
        ensure!(undecided <= 10, "{undecided} about another key were not decided");
        ensure!(grpc_health(rls).await? == 1, "SERVING, since others are decided");
    }

    let wanted = format!("degraded: process {pid} (");
    three.all_answer(&wanted).await?;
    for (sidecar, before) in three.sidecars.iter().zip(before) {
        let page = client::get(sidecar.http, "/healthcheck").await?;
        let body = String::from_utf8_lossy(&page.body).into_owned();
        ensure!(body.contains(", stopped) has held a counter's lock for "), "{body}");
        // A page does not wait for the report of a worker that is late.
        let reported = wait::until("the counts of all workers", wait::CHECK, async || {
            let busy = "tidegate_undecided_total{cause=\"busy\"}";
            let undecided = metric(sidecar.http, busy).await.ok()?;
            let stuck = metric(sidecar.http, "tidegate_store_stuck_processes").await.ok()?;
            let blocked = metric(sidecar.http, "tidegate_blocked_seconds_total").await.ok()?;
            let is_all = undecided >= f64::from(REQUESTS) && stuck == 1.0 && blocked > 0.0;
            is_all.then_some(blocked)
        });
        let blocked = reported.await?;
        let starved = sidecar.process.waits()?.sum_since(&before).as_secs_f64();
        ensure!(
            blocked < BLOCKED_MAX_SECS + starved,
            "{blocked} s, and {starved} s without a processor"
        );
    }
    let found = three.all_log("a process holds a counter's lock and does not move").await?;
    ensure!(found == [1, 1, 1], "{found:?}");

    let mut inspect = tokio::process::Command::new(artifacts::sidecar()?);
    inspect.args(["store", "inspect"]).arg(three.data());
    let said = command::run(inspect).await?;
    let line = said.out.lines().find(|line| line.contains(&format!("process {pid} (")));
    let line = line.with_context(|| format!("{said:?}"))?;
    ensure!(line.contains(", stopped) has held 1 lock for "), "{line}");

    let says = if is_killed {
        child.0.kill()?;
        child.0.wait()?;
        "the process that held a counter's lock has ended"
    } else {
        child.goes_on()?;
        "the process that held a counter's lock moves again"
    };
    three.all_answer("OK").await?;
    for rls in &three.clients {
        until_decided(rls, "held").await?;
    }
    ensure!(three.all_log(says).await? == [1, 1, 1]);
    let stuck = metric(three.sidecars[0].http, "tidegate_store_stuck_processes").await?;
    ensure!(stuck == 0.0, "{stuck} processes");
    ensure!(three.sidecars[1].process.children()? == workers, "a worker was started again");
    for sidecar in &three.sidecars {
        let log = sidecar.process.log();
        ensure!(!log.contains("a worker ended") && !log.contains("a worker is killed"), "{log}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_process_holds_up_its_counter_alone_until_it_goes_on() -> anyhow::Result<()> {
    if let Some(data) = std::env::var_os(CHILD_DATA) {
        stop_inside(Path::new(&data));
    }
    story(false).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_process_holds_up_its_counter_alone_until_it_is_killed() -> anyhow::Result<()> {
    if let Some(data) = std::env::var_os(CHILD_DATA) {
        stop_inside(Path::new(&data));
    }
    story(true).await
}

/// Health is reported without any call about the counter.
#[tokio::test]
async fn a_stopped_process_is_reported_though_nobody_waits_for_it() -> anyhow::Result<()> {
    if let Some(data) = std::env::var_os(CHILD_DATA) {
        stop_inside(Path::new(&data));
    }
    let three = Three::start().await?;
    until_decided(&three.clients[0], "held").await?;
    let mut child = Stopped::start(&three.data()).await?;
    three.all_answer(&format!("degraded: process {} (", child.0.id())).await?;
    child.goes_on()?;
    three.all_answer("OK").await
}
