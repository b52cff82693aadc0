//! Three machines with one limit in Redis: each has a sidecar, and a filter of its own in two Envoys. However their
//! requests are spread, and whatever fails meanwhile, they admit the limit once.

use anyhow::ensure;
use serde_json::json;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tempfile::TempDir;
use tidegate_tests::bootstrap::Filter;
use tidegate_tests::client::drive;
use tidegate_tests::load::{Load, Outcome, Pace, Running};
use tidegate_tests::plugin::{limits, plugin_with};
use tidegate_tests::proxy::Proxy;
use tidegate_tests::shared_servers::{Redis, RedisOptions, RedisPrograms};
use tidegate_tests::stack::{Plan, Stack};
use tidegate_tests::wait;

const REQUESTS: u64 = 24_000;
/// Requests a second over all Envoys, so that they last for longer than a fault; a slow machine sends fewer.
const RATE: f64 = 6_000.0;
const LIMIT: u64 = 3_000;
/// What may be left when all have come: tokens that an Envoy or a sidecar holds and gets no request for.
const UNUSED_MAX: u64 = 30;
/// Something fails when so many requests have passed: all machines hold tokens then, and Redis has more.
const BEFORE_FAULT: u64 = 300;
/// How long Redis, or the way to it, stands still.
const FAULT: Duration = Duration::from_secs(2);

/// When the hour of the limit begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Window {
    Aligned,
    /// With the first hit of a client, so that a load begins at once.
    FirstHit,
}

impl Window {
    fn rate_limit(self) -> String {
        match self {
            Window::Aligned => format!("{{ unit: hour, requests_per_unit: {LIMIT} }}"),
            Window::FirstHit => {
                format!("{{ requests: {LIMIT}, period: 1h, algorithm: first_hit_window }}")
            }
        }
    }

    /// How long a command may take. The tokens of one whose answer is late are lost until the hour ends, and a busy machine
    /// may need more than the usual time. Where faults are tried, only what is admitted too much counts.
    fn patience(self) -> &'static str {
        match self {
            Window::Aligned => "30s",
            Window::FirstHit => "100ms",
        }
    }

    /// How long a load that begins now may take, at most.
    fn room(self) -> Duration {
        match self {
            Window::Aligned => wait::left_in_window(wait::HOUR),
            Window::FirstHit => wait::HOUR,
        }
    }
}

/// Three machines and their Redis. The first machine reaches it by a proxy.
struct Machines {
    window: Window,
    redis: Redis,
    proxy: Proxy,
    stacks: Vec<Stack>,
    _dir: TempDir,
}

impl Machines {
    /// None if there is no Redis here.
    async fn start(window: Window) -> anyhow::Result<Option<Machines>> {
        let Some(programs) = RedisPrograms::find()? else { return Ok(None) };
        let dir = TempDir::new()?;
        let redis = Redis::start(&programs, dir.path(), RedisOptions::default()).await?;
        let proxy = Proxy::start(SocketAddr::from((Ipv4Addr::LOCALHOST, redis.port))).await?;
        let limits = limits(&window.rate_limit());
        let plugin = plugin_with("/failure_mode", json!("deny"));
        let addresses = [proxy.address.to_string(), redis.address(), redis.address()];
        let urls = addresses.map(|address| format!("redis://{address}"));
        let flags = urls.each_ref().map(|url| {
            let flags = ["--capacity", "100000", "--authority", url];
            let strict = ["--authority-failure", "deny", "--authority-timeout", window.patience()];
            [&flags[..], &strict].concat()
        });
        let plan = Plan { envoys: 2, ..Plan::new(&limits, Filter::Tidegate(&plugin)) };
        let plans = flags.each_ref().map(|flags| Plan { flags, ..plan });
        let stacks = Plan::start_each_shared(&plans).await?;
        Ok(Some(Machines { window, redis, proxy, stacks, _dir: dir }))
    }

    /// The requests that have passed.
    fn served(&self) -> u64 {
        self.stacks.iter().map(|stack| stack.upstream.served()).sum()
    }

    /// What all machines count.
    async fn counts(&self) -> anyhow::Result<String> {
        let mut counts = String::new();
        for (machine, stack) in self.stacks.iter().enumerate() {
            counts += &format!("Machine {machine}: {}\n", stack.counts().await?);
        }
        Ok(counts)
    }

    /// Begins the requests of a client, in an hour with room for them.
    async fn load(&self, client: &str) -> anyhow::Result<Running> {
        if self.window == Window::Aligned {
            wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
        }
        let targets = self.stacks.iter().flat_map(Stack::addresses).collect();
        let load = Load::of_one_client(targets, client, REQUESTS);
        Ok(Load { connections: 48, pace: Pace::Open(RATE), ..load }.start())
    }

    /// Waits until each Envoy lets a client pass that it does not know, some times in a row. Clients have names of their
    /// own after each fault.
    async fn all_decide(&self, after: &str) -> anyhow::Result<()> {
        let mut asked = 0;
        for envoy in self.stacks.iter().flat_map(Stack::addresses) {
            wait::until("a machine to decide again", wait::RETRY, async || {
                for _ in 0..10 {
                    asked += 1;
                    let client = format!("after-{after}-{asked}");
                    let reply = drive(envoy, ("x-client", &client), 1, 1).await.ok()?;
                    (reply.allowed == 1).then_some(())?;
                }
                Some(())
            })
            .await?;
        }
        Ok(())
    }

    /// Waits until requests of a load have passed, and some have not.
    async fn are_under_way(&self, before: u64) -> anyhow::Result<()> {
        let served = async || (self.served() >= before + BEFORE_FAULT).then_some(());
        wait::until("requests to pass", wait::ANSWER, served).await
    }
}

/// Sends the load while `fault` happens, and returns how many requests passed.
///
/// A load says nothing about a limit whose hour ends meanwhile, and nothing about a fault if the limit was used up before.
/// Then another client sends it again.
async fn admitted(
    machines: &mut Machines,
    client: &str,
    mut fault: impl AsyncFnMut(&mut Machines) -> anyhow::Result<()>,
) -> anyhow::Result<u64> {
    for attempt in 1..=3 {
        let before = machines.served();
        let load = machines.load(&format!("{client}-{attempt}")).await?;
        let room = machines.window.room();
        machines.are_under_way(before).await?;
        let has_room = machines.served() - before < LIMIT;
        fault(machines).await?;
        let outcome: Outcome = load.end().await?;
        ensure!(outcome.sent() == REQUESTS, "{:?}, {}", outcome.statuses, outcome.broken);
        if outcome.took < room && has_room {
            let (allowed, served) = (outcome.of(200), machines.served() - before);
            ensure!(allowed == served, "{allowed} were allowed, and {served} reached an upstream");
            return Ok(allowed);
        }
    }
    anyhow::bail!("three times the limit was used up before the fault, or the hour ended")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_admit_a_limit_once_and_use_it_up() -> anyhow::Result<()> {
    let Some(mut machines) = Machines::start(Window::Aligned).await? else { return Ok(()) };
    let allowed = admitted(&mut machines, "client", async |_| Ok(())).await?;
    let is_used_up = (LIMIT - UNUSED_MAX..=LIMIT).contains(&allowed);
    ensure!(is_used_up, "{allowed} of {LIMIT}\n{}", machines.counts().await?);
    Ok(())
}

/// A sidecar is killed, Redis stands still, and one machine alone cannot reach it: one after the other, since
/// machines take a while to start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_fault_opens_a_limit_of_machines() -> anyhow::Result<()> {
    let Some(mut machines) = Machines::start(Window::FirstHit).await? else { return Ok(()) };
    let part = async |machines: &mut Machines| {
        machines.proxy.silence();
        // The length of the fault, and no wait for anything.
        tokio::time::sleep(FAULT).await;
        machines.proxy.open();
        Ok(())
    };
    let stop = async |machines: &mut Machines| {
        machines.redis.process.freeze().await?;
        // The length of the fault, and no wait for anything.
        tokio::time::sleep(FAULT).await;
        machines.redis.process.thaw()
    };
    let kill = async |machines: &mut Machines| {
        let sidecar = &mut machines.stacks[0].sidecar;
        sidecar.kill().await?;
        sidecar.restart().await
    };
    let admitted_apart = admitted(&mut machines, "apart", part).await?;
    machines.all_decide("apart").await?;
    let admitted_stopped = admitted(&mut machines, "stopped", stop).await?;
    machines.all_decide("stopped").await?;
    let admitted_killed = admitted(&mut machines, "killed", kill).await?;
    let all = [admitted_apart, admitted_stopped, admitted_killed];
    ensure!(all.iter().all(|allowed| *allowed <= LIMIT), "{all:?} of {LIMIT}");
    Ok(())
}
