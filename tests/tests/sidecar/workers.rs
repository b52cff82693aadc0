//! Several processes that serve as one: worker processes, their ends, and a new process that takes over.

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, getpgid};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tempfile::TempDir;
use tidegate_tests::command::{Ran, run};
use tidegate_tests::process::{lives, signal};
use tidegate_tests::rls::{Rls, allowed_at_once, request};
use tidegate_tests::sidecar::{Sidecar, home};
use tidegate_tests::{artifacts, client, wait};
use tidegate_wire::rls::Code;
use tokio::process::Command;
use tokio::task::JoinSet;
use tonic::transport::Endpoint;

/// Windows that do not turn while a test runs, or so late in December that nobody tests.
const LIMITS: &str = "\
domain: test
descriptors:
  - key: few
    rate_limit: { unit: year, requests_per_unit: 300 }
  - key: lots
    rate_limit: { unit: year, requests_per_unit: 100000000 }
";
const LOTS: u32 = 100_000_000;
/// Calls over one connection before a client makes the next one.
const BATCH: usize = 5;

/// What all of these sidecars have; a test adds how many workers.
const FLAGS: [&str; 4] = ["--capacity", "10000", "--grpc", "127.0.0.1:0"];

fn flags<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&FLAGS[..], more].concat()
}

async fn started(more: &[&str]) -> anyhow::Result<(TempDir, Sidecar)> {
    let (dir, limits) = home(LIMITS)?;
    let sidecar = Sidecar::start_with(dir.path(), &limits, &flags(more)).await?;
    Ok((dir, sidecar))
}

async fn over_tcp(address: SocketAddr) -> anyhow::Result<Rls> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    Ok(Rls(wait::within("a connection", wait::START, endpoint.connect()).await??))
}

/// How many hits of `key` are counted, without adding one.
async fn counted(rls: &Rls, key: &str) -> anyhow::Result<u32> {
    let mut peek = request("test", &[("lots", key)]);
    peek.descriptors[0].hits_addend = Some(0);
    let answer = rls.call(peek).await?;
    Ok(LOTS - answer.statuses.first().context("a status")?.limit_remaining)
}

/// A count of `/metrics`.
async fn metric(http: SocketAddr, series: &str) -> anyhow::Result<Option<u64>> {
    let page = client::get(http, "/metrics").await?;
    ensure!(page.status == 200, "{page:?}");
    let page = String::from_utf8(page.body.into())?;
    ensure!(page.ends_with("# EOF\n"), "{page}");
    let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    Ok(line.map(str::parse).transpose()?)
}

/// Waits until a count of `/metrics` is this. Each worker reports its part, and a page does not wait for one that is
/// late.
async fn is_metric(http: SocketAddr, series: &str, expected: u64) -> anyhow::Result<()> {
    let mut last = None;
    let counted = wait::until(series, wait::CHECK, async || {
        last = metric(http, series).await.ok()?;
        (last == Some(expected)).then_some(())
    });
    counted.await.with_context(|| format!("{last:?}, expected {expected}"))
}

const ANSWERED: &str = "tidegate_answers_total{code=\"ok\"}";

/// Clients that call without end, each about one key, until they are stopped.
struct Load {
    clients: JoinSet<anyhow::Result<()>>,
    progress: Arc<Progress>,
}

#[derive(Default)]
struct Progress {
    stop: AtomicBool,
    acknowledged: AtomicU64,
    failed: AtomicU64,
    last: std::sync::Mutex<Option<String>>,
}

#[derive(Clone, Copy)]
enum Connections {
    /// A new one for each few calls.
    Many,
    /// One, for as long as the server lets it have it.
    One,
}

impl Load {
    fn none() -> Load {
        Load { clients: JoinSet::new(), progress: Arc::default() }
    }

    /// Adds clients of one endpoint.
    fn add(&mut self, count: usize, connections: Connections, uri: &str) -> anyhow::Result<()> {
        let endpoint = Endpoint::from_shared(uri.to_owned())?;
        for _ in 0..count {
            let (progress, endpoint) = (self.progress.clone(), endpoint.clone());
            self.clients.spawn(async move {
                while !progress.stop.load(Ordering::Relaxed) {
                    if let Err(error) = progress.ask_over_one(&endpoint, connections).await {
                        progress.failed.fetch_add(1, Ordering::Relaxed);
                        *progress.last.lock().unwrap() = Some(format!("{error:?}"));
                        // Else clients of an endpoint that is gone would retry without end.
                        tokio::task::yield_now().await;
                    }
                }
                Ok(())
            });
        }
        Ok(())
    }

    fn acknowledged(&self) -> u64 {
        self.progress.acknowledged.load(Ordering::Relaxed)
    }

    /// Waits until this many more calls were answered.
    async fn goes_on(&self, more: u64) -> anyhow::Result<()> {
        let from = self.acknowledged();
        wait::until("the load to go on", wait::START, async || {
            (self.acknowledged() >= from + more).then_some(())
        })
        .await
        .with_context(|| format!("last failure: {:?}", self.progress.last.lock().unwrap()))
    }

    /// Stops them; how many calls were acknowledged, and how many failed.
    async fn stop(mut self) -> anyhow::Result<(u64, u64, String)> {
        self.progress.stop.store(true, Ordering::Relaxed);
        while let Some(client) = self.clients.join_next().await {
            client??;
        }
        let last = format!("{:?}", self.progress.last.lock().unwrap());
        Ok((self.acknowledged(), self.progress.failed.load(Ordering::Relaxed), last))
    }
}

impl Progress {
    async fn ask_over_one(
        &self,
        endpoint: &Endpoint,
        connections: Connections,
    ) -> anyhow::Result<()> {
        // It may wait for the next process.
        let rls = Rls(wait::within("a connection", wait::START, endpoint.connect()).await??);
        let mut calls = 0;
        while !self.stop.load(Ordering::Relaxed) {
            match rls.decide(request("test", &[("lots", "load")])).await {
                Ok(answer) => {
                    ensure!(answer.overall_code() == Code::Ok, "{answer:?}");
                    self.acknowledged.fetch_add(1, Ordering::Relaxed);
                }
                Err(status) if was_not_begun(&status) => return Ok(()),
                Err(status) => return Err(status.into()),
            }
            calls += 1;
            if matches!(connections, Connections::Many) && calls == BATCH {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Whether a call came too late for its connection: it was held back, or GOAWAY says that it was not begun.
/// That it was not is what the counts are compared for.
fn was_not_begun(status: &tonic::Status) -> bool {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        let is_held_back = error.downcast_ref().is_some_and(hyper::Error::is_canceled);
        let is_refused = error.downcast_ref().is_some_and(|error: &h2::Error| {
            error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR)
        });
        if is_held_back || is_refused {
            return true;
        }
        cause = error.source();
    }
    false
}

fn unix(dir: &Path) -> String {
    format!("unix:{}", Sidecar::socket(dir).display())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_share_one_limit_exactly() -> anyhow::Result<()> {
    let (dir, sidecar) = started(&["--workers", "3"]).await?;
    let tcp = sidecar.tcp("grpc")?;
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.extend([Rls::at(dir.path()).await?, over_tcp(tcp).await?]);
    }
    let allowed = allowed_at_once(clients, 50, ("few", "x")).await?;
    ensure!(allowed == 300, "{allowed} of 800");
    // What each of them counted is added up.
    is_metric(sidecar.http, ANSWERED, 300).await?;
    let rule = "{rule=\"test/few\"}";
    for (name, expected) in [("total_hits", 800), ("within_limit", 300), ("over_limit", 500)] {
        is_metric(sidecar.http, &format!("tidegate_{name}_total{rule}"), expected).await?;
    }
    // Shared state is reported once.
    is_metric(sidecar.http, "tidegate_config_load_success_total", 1).await?;
    is_metric(sidecar.http, "tidegate_config_current", 1).await?;
    is_metric(sidecar.http, "tidegate_store_created_total", 1).await
}

/// How many sockets a process has open.
fn sockets_of(pid: u32) -> anyhow::Result<usize> {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd"))?;
    let target =
        |entry: std::io::Result<std::fs::DirEntry>| std::fs::read_link(entry.ok()?.path()).ok();
    Ok(open.filter_map(target).filter(|to| to.to_string_lossy().starts_with("socket:")).count())
}

/// The system spreads connections over the workers by their addresses: that one of three gets none of 96
/// happens once in 10^16 runs.
#[tokio::test]
async fn connections_come_to_every_worker() -> anyhow::Result<()> {
    let (_dir, sidecar) = started(&["--workers", "3"]).await?;
    let workers = sidecar.process.children()?;
    ensure!(workers.len() == 3, "{workers:?}");
    let idle = workers.iter().map(|&pid| sockets_of(pid)).collect::<Result<Vec<_>, _>>()?;
    let tcp = sidecar.tcp("grpc")?;
    let mut clients = Vec::new();
    for _ in 0..96 {
        let rls = over_tcp(tcp).await?;
        rls.call(request("test", &[("lots", "spread")])).await?;
        clients.push(rls);
    }
    for (&pid, idle) in workers.iter().zip(idle) {
        let open = sockets_of(pid)?;
        ensure!(open > idle, "worker {pid} got none of the connections");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_worker_takes_only_what_it_had_in_hand() -> anyhow::Result<()> {
    const CLIENTS: usize = 3;
    let (dir, sidecar) = started(&["--workers", "3"]).await?;
    let mut load = Load::none();
    let tcp = format!("http://{}", sidecar.tcp("grpc")?);
    load.add(CLIENTS, Connections::Many, &tcp)?;
    load.add(CLIENTS, Connections::Many, &unix(dir.path()))?;
    let mut kills = 0;
    let mut answered = 0;
    for victim in sidecar.process.children()? {
        load.goes_on(100).await?;
        signal(victim, Signal::KILL)?;
        kills += 1;
        wait::until("another worker in its place", wait::START, async || {
            let children = sidecar.process.children().ok()?;
            (children.len() == 3 && !children.contains(&victim)).then_some(())
        })
        .await?;
        // No count goes backwards, though what it counted is no more.
        for _ in 0..5 {
            let found = metric(sidecar.http, ANSWERED).await?.unwrap_or(0);
            ensure!(found >= answered, "{found} answers after {answered}");
            answered = found;
        }
        load.goes_on(100).await?;
    }
    let (acknowledged, failed, last) = load.stop().await?;
    ensure!(failed <= (kills * CLIENTS * 2) as u64, "{failed} failed after {kills} kills: {last}");
    let counted = u64::from(counted(&Rls::at(dir.path()).await?, "load").await?);
    ensure!(
        (acknowledged..=acknowledged + failed).contains(&counted),
        "{counted} are counted, {acknowledged} were acknowledged, {failed} failed"
    );
    let log = sidecar.process.log();
    for worker in 0..3 {
        let ended =
            format!("\"worker\":{worker},\"ended\":\"signal: 9 (SIGKILL)\",\"wait\":\"0ns\"");
        ensure!(log.contains(&ended), "no {ended} in {log}");
    }
    Ok(())
}

/// The same with `tidegate load`, which has several calls under way on each connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_worker_breaks_no_more_of_a_load_than_was_under_way() -> anyhow::Result<()> {
    const CONNECTIONS: u64 = 6;
    const STREAMS: u64 = 5;
    let (dir, sidecar) = started(&["--workers", "3"]).await?;
    let mut command = Command::new(artifacts::sidecar()?);
    command
        .arg("load")
        .arg(format!("--target={}", unix(dir.path())))
        .args(["--domain", "test", "--descriptor", "lots=load", "--timeout", "60s"])
        .args(["--rate", "2000", "--duration", "1h", "--json", "-"])
        .arg(format!("--connections={CONNECTIONS}"))
        .arg(format!("--streams={STREAMS}"))
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true);
    let load = command.spawn()?;
    let goes_on = async || {
        let before = metric(sidecar.http, ANSWERED).await?.unwrap_or(0);
        wait::until("the load to go on", wait::START, async || {
            let now = metric(sidecar.http, ANSWERED).await.ok()??;
            (now >= before + 200).then_some(())
        })
        .await
    };
    let victims = sidecar.process.children()?;
    for &victim in &victims {
        goes_on().await?;
        signal(victim, Signal::KILL)?;
        goes_on().await?;
    }
    signal(load.id().context("the load ended")?, Signal::INT)?;
    // What is under way is waited for, up to the timeout of calls.
    let ended = wait::within("the load to end", wait::COMMAND, load.wait_with_output());
    let output = ended.await??;
    ensure!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let class = |name: &str| report["classes"][name].as_u64().context("a class");
    let (allowed, broken) = (class("allowed")?, class("broken")?);
    let in_hand = victims.len() as u64 * CONNECTIONS * STREAMS;
    ensure!(broken <= in_hand, "{broken} broken by {} kills: {report}", victims.len());
    // A machine that has much to do may shed, or keep a worker that holds the counter from its processor. Such calls
    // are not counted.
    let aborted = report["refused_by"]["grpc 10 ABORTED"].as_u64().unwrap_or(0);
    ensure!(class("refused")? == aborted, "{report}");
    for name in ["denied", "timed_out"] {
        ensure!(class(name)? == 0, "{name}: {report}");
    }
    let counted = u64::from(counted(&Rls::at(dir.path()).await?, "load").await?);
    ensure!((allowed..=allowed + broken).contains(&counted), "{counted} are counted: {report}");
    Ok(())
}

/// A worker that was stopped for a debugger was killed, and all that could have been seen in it was gone.
#[tokio::test]
async fn a_worker_that_is_stopped_is_reported_and_not_killed() -> anyhow::Result<()> {
    let (dir, sidecar) = started(&["--workers", "1"]).await?;
    let rls = Rls::at(dir.path()).await?;
    rls.ask(&[("lots", "a")]).await?;
    let stopped = sidecar.process.children()?;
    signal(stopped[0], Signal::STOP)?;
    let says = async |text: &str| {
        wait::until(text, wait::SILENCE, async || {
            sidecar.process.log().contains(text).then_some(())
        })
        .await
    };
    says("a worker is blocked; it is not killed").await?;
    ensure!(sidecar.process.log().contains("\"state\":\"stopped\""), "{}", sidecar.process.log());
    signal(stopped[0], Signal::CONT)?;
    says("a blocked worker runs again").await?;
    rls.ask(&[("lots", "a")]).await?;
    ensure!(sidecar.process.children()? == stopped, "it was started again");
    ensure!(!sidecar.process.log().contains("a worker is killed"), "{}", sidecar.process.log());
    ensure!(counted(&rls, "a").await? == 2);
    Ok(())
}

#[tokio::test]
async fn counts_that_a_killed_worker_has_reported_stay_in_the_sum() -> anyhow::Result<()> {
    let (dir, sidecar) = started(&["--workers", "1"]).await?;
    let rls = Rls::at(dir.path()).await?;
    for _ in 0..7 {
        rls.ask(&[("lots", "a")]).await?;
    }
    is_metric(sidecar.http, ANSWERED, 7).await?;
    signal(sidecar.process.children()?[0], Signal::KILL)?;
    // The connection that waits is served by the next process.
    let rls = Rls::at(dir.path()).await?;
    let next =
        wait::until("the next worker", wait::START, async || rls.ask(&[("lots", "a")]).await.ok());
    next.await?;
    is_metric(sidecar.http, ANSWERED, 8).await
}

#[tokio::test]
async fn workers_do_not_outlive_their_supervisor() -> anyhow::Result<()> {
    let (dir, mut sidecar) = started(&["--workers", "3"]).await?;
    let rls = Rls::at(dir.path()).await?;
    rls.ask(&[("lots", "a")]).await?;
    let workers = sidecar.process.children()?;
    ensure!(workers.len() == 3, "{workers:?}");
    sidecar.kill().await?;
    ensure!(!workers.iter().any(|&worker| lives(worker)), "a worker is left");
    sidecar.restart().await?;
    ensure!(counted(&Rls::at(dir.path()).await?, "a").await? == 1);
    Ok(())
}

#[tokio::test]
async fn sigterm_drains_all_workers_and_leaves_nothing_behind() -> anyhow::Result<()> {
    let (dir, mut sidecar) = started(&["--workers", "2"]).await?;
    let workers = sidecar.process.children()?;
    // A Ctrl-C goes to the whole group of the process in the terminal's foreground.
    let group = |pid: u32| anyhow::Ok(getpgid(Pid::from_raw(i32::try_from(pid)?))?);
    for &worker in &workers {
        ensure!(group(worker)? != group(sidecar.process.pid()?)?, "a Ctrl-C reaches workers");
    }
    let rls = Rls::at(dir.path()).await?;
    let held = rls.hold(&[("lots", "held")]).await?;
    sidecar.process.signal(Signal::TERM)?;
    sidecar.reports_drain().await?;
    // As systemd does, which signals all processes of a service: no reason to cut anything short.
    for &worker in &workers {
        // The one without a call may have ended.
        let _ = signal(worker, Signal::TERM);
    }
    wait::until("the one without a call to end", wait::CHECK, async || {
        (sidecar.process.children().ok()?.len() == 1).then_some(())
    })
    .await?;
    ensure!(!held.is_finished(), "a call under way was cut off");
    // The next signal kills the other, which may not have reported its drain yet.
    for worker in 0..2 {
        let of_worker = format!("{{\"worker\":{worker},");
        wait::until(&format!("a report of worker {worker}"), wait::SOON, async || {
            let log = sidecar.process.log();
            log.lines().any(|line| line.starts_with(&of_worker)).then_some(())
        })
        .await
        .with_context(|| sidecar.process.log())?;
    }
    sidecar.process.signal(Signal::TERM)?;
    ensure!(sidecar.process.wait().await?.success(), "{}", sidecar.process.log());
    held.abort();
    ensure!(!workers.iter().any(|&worker| lives(worker)), "a worker is left");
    ensure!(!Sidecar::socket(dir.path()).exists(), "the socket is still there");
    ensure!(!dir.path().join("data/takeover.sock").exists(), "the other socket is still there");
    sidecar.restart().await?;
    ensure!(sidecar.process.stop().await?.success(), "{}", sidecar.process.log());
    Ok(())
}

/// Runs `tidegate serve` to its end.
async fn serve_ends(dir: &Path, more: &[&str]) -> anyhow::Result<(Option<i32>, String)> {
    let mut command = Command::new(artifacts::sidecar()?);
    command.args(["serve", "--http", "off", "--frs", "off", "--capacity", "10000"]).args(more);
    command.current_dir(dir).args(["--limits", "limits.yaml", "--data-dir", "data"]);
    let Ran { code, err, .. } = run(command).await?;
    Ok((code, err))
}

/// A socket that listens, and would let others of the same user have its address, too.
fn sharing_listener() -> anyhow::Result<std::net::TcpListener> {
    use rustix::net::{AddressFamily, SocketType, bind, listen, socket, sockopt};
    let shared = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    sockopt::set_socket_reuseport(&shared, true)?;
    bind(&shared, &SocketAddr::from(([127, 0, 0, 1], 0)))?;
    listen(&shared, 1)?;
    Ok(shared.into())
}

#[tokio::test]
async fn a_port_that_is_taken_is_never_shared() -> anyhow::Result<()> {
    let (dir, _) = home(LIMITS)?;
    let listener = sharing_listener()?;
    let taken = listener.local_addr()?.to_string();
    for workers in ["0", "2"] {
        for takeover in [&[][..], &["--takeover"]] {
            let args = [&["--grpc", &taken, "--workers", workers][..], takeover].concat();
            let (code, said) = serve_ends(dir.path(), &args).await?;
            let expected = format!("cannot listen on {taken}: Address already in use");
            ensure!(code == Some(1) && said.contains(&expected), "{args:?}: {code:?}: {said}");
        }
    }
    // Nor that of another supervisor, whose workers have several sockets there.
    let (_other, sidecar) = started(&["--workers", "2"]).await?;
    let taken = sidecar.tcp("grpc")?.to_string();
    let (code, said) = serve_ends(dir.path(), &["--grpc", &taken, "--workers", "2"]).await?;
    ensure!(code == Some(1) && said.contains("Address already in use"), "{code:?}: {said}");
    Ok(())
}

#[tokio::test]
async fn mistakes_are_reported_once_and_flags_are_checked() -> anyhow::Result<()> {
    let (dir, limits) = home(LIMITS)?;
    let grpc = ["--grpc", "127.0.0.1:0", "--workers"];
    let (code, said) = serve_ends(dir.path(), &[&grpc[..], &["31"]].concat()).await?;
    ensure!(code == Some(2) && said.contains("31 is not in 0..=30"), "{code:?}: {said}");
    std::fs::write(&limits, LIMITS.replace("unit: year", "unit: eon"))?;
    let (code, said) = serve_ends(dir.path(), &[&grpc[..], &["3"]].concat()).await?;
    ensure!(code == Some(1) && said.matches("unknown unit").count() == 2, "{code:?}: {said}");
    std::fs::write(&limits, LIMITS)?;
    let (code, said) = serve_ends(dir.path(), &[&grpc[..2], &["--as-worker"]].concat()).await?;
    ensure!(
        code == Some(1) && said.contains("--as-worker is only for the supervisor"),
        "{code:?}: {said}"
    );
    Ok(())
}

#[tokio::test]
async fn all_workers_read_the_limits_again_on_sighup() -> anyhow::Result<()> {
    let (dir, sidecar) = started(&["--workers", "3", "--watch", "off"]).await?;
    let tcp = sidecar.tcp("grpc")?;
    let mut connections = Vec::new();
    for _ in 0..20 {
        connections.push(over_tcp(tcp).await?);
    }
    std::fs::write(dir.path().join("limits.yaml"), LIMITS.replace("300", "301"))?;
    sidecar.process.signal(Signal::HUP)?;
    for rls in &connections {
        wait::until("the new limit", wait::RELOAD, async || {
            let mut peek = request("test", &[("few", "x")]);
            peek.descriptors[0].hits_addend = Some(0);
            let answer = rls.call(peek).await.ok()?;
            (answer.statuses.first()?.limit_remaining == 301).then_some(())
        })
        .await?;
    }
    wait::until("the change in the log", wait::RELOAD, async || {
        sidecar.process.log().contains("limits reloaded").then_some(())
    })
    .await?;
    ensure!(sidecar.process.log().matches("limits reloaded").count() == 1, "logged by each worker");
    Ok(())
}

/// The process that is started after this only worker was killed.
async fn next_worker(sidecar: &Sidecar, victim: u32) -> anyhow::Result<u32> {
    wait::until("the next worker", wait::START, async || {
        let children = sidecar.process.children().ok()?;
        children.into_iter().find(|&child| child != victim && is_worker(child))
    })
    .await
}

/// Whether a child of the supervisor runs as a worker yet. The supervisor waits for its child to get as far, so a test
/// that stops it sooner stops both.
fn is_worker(child: u32) -> bool {
    std::fs::read(format!("/proc/{child}/cmdline")).is_ok_and(|arguments| {
        arguments.split(|&byte| byte == 0).any(|word| word == b"--as-worker")
    })
}

/// One that was about to serve when all got the signal to read the limits did not get it, and without a watch kept
/// those that it had begun with.
#[tokio::test]
async fn a_worker_that_starts_during_a_reload_reads_the_limits_too() -> anyhow::Result<()> {
    let (dir, sidecar) = started(&["--workers", "1", "--watch", "off"]).await?;
    let victim = sidecar.process.children()?[0];
    signal(victim, Signal::KILL)?;
    let next = next_worker(&sidecar, victim).await?;
    signal(next, Signal::STOP)?;
    std::fs::write(dir.path().join("limits.yaml"), LIMITS.replace("300", "301"))?;
    sidecar.process.signal(Signal::HUP)?;
    wait::until("the supervisor to read the limits", wait::RELOAD, async || {
        sidecar.process.log().contains("limits reloaded").then_some(())
    })
    .await?;
    signal(next, Signal::CONT)?;
    let rls = Rls::at(dir.path()).await?;
    wait::until("the new limit", wait::START, async || {
        let mut peek = request("test", &[("few", "x")]);
        peek.descriptors[0].hits_addend = Some(0);
        let answer = rls.call(peek).await.ok()?;
        (answer.statuses.first()?.limit_remaining == 301).then_some(())
    })
    .await
}

/// A worker that was killed while the limits on disk had a mistake could not start again until that was
/// mended, though the others served on by the limits in force.
///
/// The test itself failed now and then: it did not wait for the supervisor to read the new limits, so the next worker
/// got those before.
#[tokio::test]
async fn a_worker_starts_again_on_the_limits_in_force() -> anyhow::Result<()> {
    let (dir, sidecar) = started(&["--workers", "1"]).await?;
    let remaining = async || {
        let mut peek = request("test", &[("few", "x")]);
        peek.descriptors[0].hits_addend = Some(0);
        let answer = Rls::at(dir.path()).await?.call(peek).await?;
        anyhow::Ok(answer.statuses.first().context("a status")?.limit_remaining)
    };
    let current = async |expected: u64| {
        wait::until("what /metrics says of the limits", wait::RELOAD, async || {
            let found = metric(sidecar.http, "tidegate_config_current").await;
            (found.ok()?? == expected).then_some(())
        })
        .await
    };
    // The first are those of the start.
    for (reloads, limit, expected) in [(0, "300", 300), (1, "301", 301)] {
        let limits = dir.path().join("limits.yaml");
        std::fs::write(&limits, LIMITS.replace("300", limit))?;
        // The supervisor logs what it reads, and a worker does not.
        wait::until("the supervisor to read the limits", wait::RELOAD, async || {
            (sidecar.process.log().matches("limits reloaded").count() == reloads).then_some(())
        })
        .await?;
        wait::until("the limit", wait::RELOAD, async || {
            (remaining().await.ok()? == expected).then_some(())
        })
        .await?;
        // Of both processes, the lowest is reported.
        current(1).await?;
        std::fs::write(&limits, LIMITS.replace("year", "eon"))?;
        current(0).await?;
        let victim = sidecar.process.children()?[0];
        signal(victim, Signal::KILL)?;
        next_worker(&sidecar, victim).await?;
        let found = wait::until("an answer", wait::START, async || remaining().await.ok()).await?;
        ensure!(found == expected, "{found} of {expected}");
    }
    Ok(())
}

#[tokio::test]
async fn a_worker_that_cannot_start_is_tried_less_and_less() -> anyhow::Result<()> {
    let (dir, sidecar) = started(&["--workers", "2", "--watch", "off"]).await?;
    let cluster = dir.path().join("data/cluster");
    let hidden = dir.path().join("data/hidden");
    std::fs::rename(&cluster, &hidden)?;
    std::fs::write(&cluster, "no directory")?;
    let victim = sidecar.process.children()?[0];
    signal(victim, Signal::KILL)?;
    let waits = ["0ns", "100ms", "200ms", "400ms", "800ms"];
    wait::until("five ends", wait::RETRY, async || {
        (sidecar.process.log().matches("it is started again").count() >= waits.len()).then_some(())
    })
    .await?;
    let log = sidecar.process.log();
    let found: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("it is started again"))
        .filter_map(|line| line.split_once("\"wait\":\"")?.1.split('"').next())
        .take(waits.len())
        .collect();
    ensure!(found == waits, "{found:?}");
    // The other one serves on, and so do both when that is possible again.
    ensure!(client::get(sidecar.http, "/healthcheck").await?.status == 200);
    std::fs::remove_file(&cluster)?;
    std::fs::rename(&hidden, &cluster)?;
    let tcp = sidecar.tcp("grpc")?;
    wait::until("the worker to be back", wait::RETRY, async || {
        (sidecar.process.children().ok()?.len() == 2).then_some(())
    })
    .await?;
    for _ in 0..20 {
        over_tcp(tcp).await?.ask(&[("lots", "a")]).await?;
    }
    Ok(())
}

#[tokio::test]
async fn without_a_worker_the_health_check_fails() -> anyhow::Result<()> {
    let (dir, sidecar) = started(&["--workers", "1"]).await?;
    ensure!(client::get(sidecar.http, "/healthcheck").await?.status == 200);
    std::fs::rename(dir.path().join("data/cluster"), dir.path().join("data/hidden"))?;
    std::fs::write(dir.path().join("data/cluster"), "no directory")?;
    signal(sidecar.process.children()?[0], Signal::KILL)?;
    wait::until("the health check to fail", wait::CHECK, async || {
        let health = client::get(sidecar.http, "/healthcheck").await.ok()?;
        (health.status == 500 && health.body == "no worker process serves\n").then_some(())
    })
    .await
}

/// From one to several processes, to more, to fewer, and back, under load on both endpoints.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_fails_while_new_processes_take_over() -> anyhow::Result<()> {
    let (dir, mut old) = started(&["--workers", "0"]).await?;
    let tcp = format!("http://{}", old.tcp("grpc")?);
    let http = old.http;
    let mut load = Load::none();
    for uri in [tcp, unix(dir.path())] {
        load.add(2, Connections::Many, &uri)?;
        load.add(1, Connections::One, &uri)?;
    }
    load.goes_on(100).await?;
    for (number, workers) in ["2", "3", "1", "0", "0"].into_iter().enumerate() {
        let name = format!("sidecar-{number}");
        let new = old.taken_over_by(&flags(&["--workers", workers]), &name).await?;
        ensure!(old.process.wait().await?.success(), "{}", old.process.log());
        ensure!(old.process.log().contains("a new process has taken over"));
        ensure!(Sidecar::socket(dir.path()).exists(), "the old one removed the socket");
        ensure!(new.http == http, "HTTP moved from {http} to {}", new.http);
        ensure!(client::get(http, "/healthcheck").await?.status == 200);
        old = new;
        load.goes_on(100).await?;
    }
    let (acknowledged, failed, last) = load.stop().await?;
    ensure!(failed == 0, "{failed} failed, the last with {last}");
    let counted = u64::from(counted(&Rls::at(dir.path()).await?, "load").await?);
    ensure!(counted == acknowledged, "{counted} are counted, {acknowledged} were acknowledged");
    ensure!(old.process.stop().await?.success(), "{}", old.process.log());
    ensure!(!Sidecar::socket(dir.path()).exists(), "the socket is left behind");
    Ok(())
}

/// Symptom: of the FRS clients that waited for a place during a takeover, one was cut off. Cause: it was
/// accepted before there was anything to do for it.
#[tokio::test]
async fn clients_without_a_place_are_answered_by_whoever_takes_over() -> anyhow::Result<()> {
    let more = ["--frs", "127.0.0.1:0", "--frs-connections", "1"];
    let (_dir, mut old) = started(&more).await?;
    let frs = old.tcp("frs")?;
    let mut served = client::Client::connect(frs).await?;
    let query = "<frs><item business=\"none\" key=\"k\"/></frs>";
    let headers: [(&str, &[u8]); 1] = [("x-frs-command", b"Query")];
    ensure!(served.send("POST", "/frs", &headers, query).await?.status == 200);
    let mut silent = Vec::new();
    for _ in 0..64 {
        silent.push(tokio::net::TcpStream::connect(frs).await?);
    }
    let mut waiting = JoinSet::new();
    for _ in 0..20 {
        let mut client = client::Client::connect(frs).await?;
        waiting.spawn(async move { client.send("POST", "/frs", &headers, query).await });
    }
    let new = old.taken_over_by(&flags(&more), "new").await?;
    while let Some(answered) = waiting.join_next().await {
        let reply = answered??;
        ensure!(reply.status == 200 || reply.status == 503, "{reply:?}");
    }
    ensure!(new.tcp("frs")? == frs, "FRS moved");
    drop((served, silent));
    ensure!(old.process.wait().await?.success(), "{}", old.process.log());
    Ok(())
}

#[tokio::test]
async fn who_takes_over_from_nobody_just_starts() -> anyhow::Result<()> {
    let (dir, mut first) = started(&["--takeover", "--workers", "1"]).await?;
    ensure!(first.process.log().contains("nothing to take over"));
    first.until_takeover_is_possible().await?;
    // Nor is there anything to be had of one that was killed.
    first.kill().await?;
    ensure!(dir.path().join("data/takeover.sock").exists());
    first.restart().await?;
    ensure!(first.process.log().contains("nothing to take over"));
    Rls::at(dir.path()).await?.ask(&[("lots", "a")]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_that_fails_leaves_the_old_process_serving() -> anyhow::Result<()> {
    for workers in ["0", "2"] {
        let (dir, mut old) = started(&["--workers", workers]).await?;
        let mut load = Load::none();
        let tcp = old.tcp("grpc")?;
        load.add(2, Connections::Many, &format!("http://{tcp}"))?;
        load.add(1, Connections::Many, &unix(dir.path()))?;
        load.goes_on(10).await?;
        old.until_takeover_is_possible().await?;
        let taken = sharing_listener()?;
        let (tcp, taken) = (tcp.to_string(), taken.local_addr()?.to_string());
        let unix = unix(dir.path());
        // It has the old one's sockets by the time that it finds the other taken.
        let both = ["--grpc", &tcp, "--grpc", &unix, "--grpc", &taken, "--takeover", "--workers"];
        for new_workers in ["0", "3"] {
            let args = [&both[..], &[new_workers]].concat();
            let (code, said) = serve_ends(dir.path(), &args).await?;
            ensure!(code == Some(1) && said.contains("already in use"), "{code:?}: {said}");
        }
        load.goes_on(50).await?;
        let failures = "a takeover was not finished; this process continues to serve";
        wait::until("both failures in the log", wait::CHECK, async || {
            (old.process.log().matches(failures).count() == 2).then_some(())
        })
        .await?;
        let new = old.taken_over_by(&flags(&["--workers", "2"]), "sidecar-new").await?;
        ensure!(old.process.wait().await?.success(), "{}", old.process.log());
        load.goes_on(50).await?;
        let (_, failed, last) = load.stop().await?;
        ensure!(failed == 0, "{failed} failed, the last with {last}");
        drop(new);
    }
    Ok(())
}

/// The old process removed the file of its Unix socket when it got the signal to end while a new one that had the
/// socket by then got ready: nobody could reach that any more.
#[tokio::test]
async fn who_is_stopped_in_a_takeover_leaves_the_socket_to_the_new_process() -> anyhow::Result<()> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    for workers in ["0", "2"] {
        let (dir, mut old) = started(&["--workers", workers]).await?;
        old.until_takeover_is_possible().await?;
        let socket = dir.path().join("data/takeover.sock");
        let mut new = tokio::net::UnixStream::connect(&socket).await?;
        let hello = br#"{"Hello":{"version":1}}"#;
        let asking = async {
            new.write_u32(u32::try_from(hello.len())?).await?;
            new.write_all(hello).await?;
            let mut answer = vec![0; new.read_u32().await? as usize];
            new.read_exact(&mut answer).await?;
            anyhow::Ok(answer)
        };
        let answer = wait::within("the sockets", wait::SOON, asking).await??;
        ensure!(answer.starts_with(br#"{"Sockets":"#), "{answer:?}");
        ensure!(old.process.stop().await?.success(), "{}", old.process.log());
        ensure!(Sidecar::socket(dir.path()).exists(), "the new process cannot be reached");
        // If there is no new one in the end, the next one starts as usual.
        drop(new);
        old.restart().await?;
        Rls::at(dir.path()).await?.ask(&[("lots", "a")]).await?;
        ensure!(old.process.stop().await?.success(), "{}", old.process.log());
        ensure!(!Sidecar::socket(dir.path()).exists(), "the socket is left behind");
    }
    Ok(())
}

/// Two processes on one data directory, as before there were workers: the second one can be taken over
/// once the first is gone.
#[tokio::test]
async fn the_next_in_line_can_be_taken_over() -> anyhow::Result<()> {
    let (dir, mut first) = started(&[]).await?;
    let other = TempDir::new()?;
    std::os::unix::fs::symlink(dir.path().join("data"), other.path().join("data"))?;
    let limits = dir.path().join("limits.yaml");
    let mut second = Sidecar::start_with(other.path(), &limits, &flags(&[])).await?;
    ensure!(first.process.stop().await?.success());
    let third = second.taken_over_by(&flags(&["--workers", "1"]), "third").await?;
    ensure!(second.process.wait().await?.success());
    ensure!(third.tcp("grpc")? == second.tcp("grpc")?);
    Ok(())
}
