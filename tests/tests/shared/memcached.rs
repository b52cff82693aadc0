//! Counters in one memcached, or in two that have a part of them each.

use crate::scene::{LIMITS, clients, is_up, on, says};
use anyhow::ensure;
use tempfile::TempDir;
use tidegate_tests::process::Process;
use tidegate_tests::rls::{Rls, allowed_at_once, allowed_in_all};
use tidegate_tests::service::Service;
use tidegate_tests::shared_servers::{Memcached, MemcachedProgram};
use tidegate_tests::sidecar::{Sidecar, tcp_in, until_shared_up};
use tidegate_tests::{artifacts, wait};
use tidegate_wire::rls::Code;
use tokio::process::Command;

struct Servers {
    all: Vec<Memcached>,
    _dirs: Vec<TempDir>,
}

impl Servers {
    async fn start(count: usize) -> anyhow::Result<Option<Servers>> {
        let Some(program) = MemcachedProgram::find()? else { return Ok(None) };
        let (mut all, mut dirs) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let dir = TempDir::new()?;
            all.push(Memcached::start(&program, dir.path(), &[]).await?);
            dirs.push(dir);
        }
        Ok(Some(Servers { all, _dirs: dirs }))
    }

    fn url(&self) -> String {
        let addresses: Vec<String> = self.all.iter().map(Memcached::address).collect();
        format!("memcached://{}", addresses.join(","))
    }

    async fn sidecar(&self, flags: &[&str]) -> anyhow::Result<Service> {
        on(&self.url(), flags).await
    }
}

async fn code(rls: &Rls, about: &[(&str, &str)]) -> anyhow::Result<Code> {
    Ok(rls.ask(about).await?.overall_code())
}

/// Over tokens that each holds, and directly; in one server, and in two.
#[tokio::test]
async fn three_sidecars_admit_a_limit_once() -> anyhow::Result<()> {
    for count in [1, 2] {
        let Some(servers) = Servers::start(count).await? else { return Ok(()) };
        let one = servers.sidecar(&[]).await?;
        let two = servers.sidecar(&["--workers", "2"]).await?;
        let three = servers.sidecar(&[]).await?;
        for key in ["counted", "direct"] {
            for value in ["a", "b"] {
                let clients = clients(&[&one, &two, &three], 4).await?;
                let allowed = allowed_in_all(clients, 30, (key, value)).await?;
                ensure!(allowed == 100, "{key} {value} in {count}: {allowed} of 100");
            }
        }
    }
    Ok(())
}

/// All limits of a request take its hits, or none does, wherever they are.
#[tokio::test]
async fn a_request_over_several_values_takes_all_or_nothing() -> anyhow::Result<()> {
    let Some(servers) = Servers::start(2).await? else { return Ok(()) };
    let sidecar = servers.sidecar(&[]).await?;
    for value in ["a", "b", "c", "d"] {
        let both = [("direct", value), ("few", value)];
        let mut allowed = 0;
        for _ in 0..10 {
            allowed += u32::from(code(&sidecar.rls, &both).await? == Code::Ok);
        }
        ensure!(allowed == 3, "{value}: {allowed} of 3");
        // Each denied request counts for the first, by its configuration, and for the other one never.
        let rest = allowed_at_once(clients(&[&sidecar], 2).await?, 60, ("direct", value)).await?;
        ensure!(rest == 90, "{value}: {rest} of 90");
    }
    Ok(())
}

#[tokio::test]
async fn the_failure_rule_decides_while_memcached_is_gone() -> anyhow::Result<()> {
    let Some(mut servers) = Servers::start(1).await? else { return Ok(()) };
    let deny = servers.sidecar(&["--authority-failure", "deny"]).await?;
    let allow = servers.sidecar(&["--authority-failure", "allow"]).await?;
    for sidecar in [&deny, &allow] {
        ensure!(code(&sidecar.rls, &[("few", "a")]).await? == Code::Ok);
    }
    servers.all[0].kill().await?;
    for (sidecar, expected) in [(&deny, Code::OverLimit), (&allow, Code::Ok)] {
        is_up(sidecar, false).await?;
        for _ in 0..10 {
            ensure!(code(&sidecar.rls, &[("few", "b")]).await? == expected);
        }
        says(sidecar, &servers.all[0].address()).await?;
    }
    servers.all[0].restart().await?;
    for sidecar in [&deny, &allow] {
        is_up(sidecar, true).await?;
    }
    // It has lost what it counted.
    let allowed = allowed_in_all(clients(&[&deny, &allow], 2).await?, 5, ("few", "a")).await?;
    ensure!(allowed == 3, "{allowed} of 3");
    Ok(())
}

#[tokio::test]
async fn a_memcached_that_stands_still_or_is_flushed_leaves_no_limit_open() -> anyhow::Result<()> {
    let Some(servers) = Servers::start(1).await? else { return Ok(()) };
    let flags = ["--authority-failure", "deny"];
    let (one, two) = (servers.sidecar(&flags).await?, servers.sidecar(&flags).await?);
    ensure!(code(&one.rls, &[("few", "a")]).await? == Code::Ok);
    servers.all[0].process.freeze().await?;
    for sidecar in [&one, &two] {
        ensure!(code(&sidecar.rls, &[("few", "a")]).await? == Code::OverLimit);
        // None of its connections is as before.
        is_up(sidecar, false).await?;
    }
    servers.all[0].process.thaw()?;
    for sidecar in [&one, &two] {
        is_up(sidecar, true).await?;
    }
    let allowed = allowed_in_all(clients(&[&one, &two], 2).await?, 60, ("counted", "a")).await?;
    ensure!(allowed == 100, "{allowed} of 100");
    ensure!(servers.all[0].command("flush_all").await? == "OK");
    let mut again = 0;
    wait::until("the counters are new", wait::CHECK, async || {
        let clients = clients(&[&one, &two], 2).await.ok()?;
        again += allowed_at_once(clients, 10, ("counted", "a")).await.ok()?;
        (again >= 100).then_some(())
    })
    .await?;
    ensure!(again == 100, "{again} of 100");
    Ok(())
}

#[tokio::test]
async fn one_of_two_servers_that_is_away_concerns_its_counters() -> anyhow::Result<()> {
    let Some(mut servers) = Servers::start(2).await? else { return Ok(()) };
    let sidecar = servers.sidecar(&["--authority-failure", "deny"]).await?;
    let values: Vec<String> = (0..24).map(|number| number.to_string()).collect();
    for value in &values {
        ensure!(code(&sidecar.rls, &[("few", value)]).await? == Code::Ok);
    }
    servers.all[0].kill().await?;
    is_up(&sidecar, false).await?;
    let mut denied = 0;
    for value in &values {
        denied += u32::from(code(&sidecar.rls, &[("few", value)]).await? == Code::OverLimit);
    }
    ensure!((1..24).contains(&denied), "{denied} of 24");
    says(&sidecar, "1 of 2 servers").await?;
    servers.all[0].restart().await?;
    is_up(&sidecar, true).await?;
    let mut left = 0;
    for value in &values {
        for _ in 0..3 {
            left += u32::from(code(&sidecar.rls, &[("few", value)]).await? == Code::Ok);
        }
    }
    // The one that was killed counts anew.
    ensure!(left == 24 + 2 * denied, "{left} with {denied} of 24 in the server that was away");
    Ok(())
}

/// As in envoyproxy/ratelimit.
#[tokio::test]
async fn the_environment_of_a_memcached_backend_is_enough() -> anyhow::Result<()> {
    let Some(servers) = Servers::start(2).await? else { return Ok(()) };
    let dir = TempDir::new()?;
    let config = dir.path().join("runtime/ratelimit/config");
    std::fs::create_dir_all(&config)?;
    let limits = format!("domain: test\ndescriptors:\n{LIMITS}");
    std::fs::write(config.join("limits.yaml"), limits)?;
    let addresses: Vec<String> = servers.all.iter().map(Memcached::address).collect();
    let mut command = Command::new(artifacts::sidecar()?);
    command.args(["serve", "--capacity", "2000", "--frs", "off", "--log-format", "json"]);
    command.arg("--data-dir");
    command.arg(dir.path().join("data")).envs([
        ("RUNTIME_ROOT", dir.path().join("runtime").display().to_string()),
        ("RUNTIME_SUBDIRECTORY", "ratelimit".to_owned()),
        ("GRPC_UDS", Sidecar::socket(dir.path()).display().to_string()),
        ("PORT", "0".to_owned()),
        ("BACKEND_TYPE", "memcache".to_owned()),
        ("MEMCACHE_HOST_PORT", addresses.join(",")),
        ("MEMCACHE_MAX_IDLE_CONNS", "4".to_owned()),
        ("CACHE_KEY_PREFIX", "shop_".to_owned()),
        ("EXPIRATION_JITTER_MAX_SECONDS", "30".to_owned()),
        ("USE_STATSD", "false".to_owned()),
        // A busy machine may take longer than the default, and the sidecar does without its servers then.
        ("TIDEGATE_AUTHORITY_TIMEOUT", "30s".to_owned()),
    ]);
    let process = Process::start(command, "sidecar", dir.path())?;
    wait::until("a sidecar that is ready", wait::START, async || {
        process.log().contains("ready").then_some(())
    })
    .await?;
    until_shared_up(tcp_in(&process.log(), "http")?).await?;
    let rls = Rls::at(dir.path()).await?;
    let mut allowed = 0;
    for _ in 0..10 {
        allowed += u32::from(code(&rls, &[("few", "a")]).await? == Code::Ok);
    }
    ensure!(allowed == 3, "{allowed} of 3: {}", process.log());
    for server in &servers.all {
        let seed = server.command("mg shop_tidegate:seed v").await?;
        ensure!(seed.starts_with("VA 16"), "{seed}");
    }
    Ok(())
}
