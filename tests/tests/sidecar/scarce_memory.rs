//! Containers with little memory: real control groups and tmpfs, of the sizes that people give them. What does
//! not fit is an error at the start, and never a killed process later.

use anyhow::{Context, ensure};
use serde_json::Value;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tidegate_tests::not_run;
use tidegate_tests::process::Process;
use tidegate_tests::rls::Rls;
use tidegate_tests::scarcity::{MemoryGroup, Tmpfs};
use tidegate_tests::sidecar::{FREE_AND_COUNTED, Sidecar};
use tidegate_tests::{artifacts, client};
use tidegate_wire::rls::Code;

const MIB: u64 = 1 << 20;

/// A control group of 128 MiB, or nothing where none can be had.
fn small_container() -> anyhow::Result<Option<MemoryGroup>> {
    not_run::or_named(
        "root and a control group with a limit of memory",
        MemoryGroup::new(128 * MIB),
    )
}

/// A directory with limits, and with a tmpfs of this many bytes for counters.
struct Home {
    // Before the directory: the tmpfs is mounted in it.
    _memory: Tmpfs,
    dir: TempDir,
}

impl Home {
    fn new(tmpfs: u64) -> anyhow::Result<Home> {
        let dir = TempDir::new()?;
        std::fs::write(dir.path().join("limits.yaml"), FREE_AND_COUNTED)?;
        let memory = Tmpfs::new(&dir.path().join("memory"), tmpfs)?;
        Ok(Home { _memory: memory, dir })
    }

    /// The same, or nothing where no tmpfs can be had.
    fn or_named(tmpfs: u64) -> anyhow::Result<Option<Home>> {
        not_run::or_named("root and a tmpfs of its own", Home::new(tmpfs))
    }

    /// These flags, and the one that says where counters go.
    fn flags(&self, flags: &[&str]) -> Vec<String> {
        let memory = self.path().join("memory").display().to_string();
        let all = flags.iter().map(|&flag| flag.to_owned());
        all.chain(["--memory-dir".to_owned(), memory]).collect()
    }

    async fn start(&self, group: &MemoryGroup, flags: &[&str]) -> anyhow::Result<Sidecar> {
        let flags = self.flags(flags);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        Sidecar::start_in(group, self.path(), &self.limits(), &flags).await
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn limits(&self) -> PathBuf {
        self.path().join("limits.yaml")
    }

    /// A start that must fail: what it says.
    async fn fail(&self, group: Option<&MemoryGroup>, flags: &[&str]) -> anyhow::Result<String> {
        let program = artifacts::sidecar()?;
        let mut command = match group {
            Some(group) => group.command(&program),
            None => tokio::process::Command::new(program),
        };
        command.args([
            "serve",
            "--http",
            "off",
            "--frs",
            "off",
            "--grpc",
            "127.0.0.1:0",
            "--limits",
        ]);
        command
            .arg(self.limits())
            .arg("--data-dir")
            .arg(self.path().join("data"))
            .args(self.flags(flags));
        let mut process = Process::start(command, "failed", self.path())?;
        let status = process.wait().await?;
        let log = process.log();
        ensure!((status.code(), status.signal()) == (Some(1), None), "{status}: {log}");
        for place in ["data/cluster", "data/cluster.new", "memory"] {
            let found = std::fs::read_dir(self.path().join(place)).map_or(0, Iterator::count);
            ensure!(found == 0, "{place}: something was left behind: {log}");
        }
        Ok(log)
    }
}

/// Asks for a counter of each of many keys.
async fn serve(dir: &Path) -> anyhow::Result<()> {
    let rls = Rls::at(dir).await?;
    for key in 0..2_000 {
        let answer = rls.ask(&[("counted", &key.to_string())]).await?;
        ensure!(answer.overall_code() == Code::Ok, "{answer:?}");
    }
    Ok(())
}

/// The fields of the line of a log that has this message.
fn event(log: &str, message: &str) -> anyhow::Result<Value> {
    let mut fields = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let event = fields.find(|event| event["fields"]["message"] == message);
    Ok(event.with_context(|| format!("no {message:?} in:\n{log}"))?["fields"].clone())
}

#[tokio::test]
async fn the_default_serves_in_a_small_container() -> anyhow::Result<()> {
    for flags in [&[][..], &["--workers", "2"]] {
        let Some(group) = small_container()? else { return Ok(()) };
        let Some(home) = Home::or_named(64 * MIB)? else { return Ok(()) };
        let mut sidecar = home.start(&group, flags).await?;
        let message = "created the data directory with the default size";
        let made = event(&sidecar.process.log(), message)?;
        let bytes = made["bytes"].as_u64().context("bytes")?;
        // Half of what is free is less than a third of the limit.
        ensure!(bytes <= 32 * MIB && bytes > 31 * MIB, "{made}");
        let reason = made["reason"].as_str().context("a reason")?;
        ensure!(reason.starts_with("half of the 64.0 MiB that are free in"), "{made}");
        serve(home.path()).await?;
        let (used, metrics) = (group.used()?, client::get(sidecar.http, "/metrics").await?);
        ensure!(used > bytes && used < 128 * MIB, "{used} bytes are in use");
        let metrics = String::from_utf8_lossy(&metrics.body);
        ensure!(metrics.contains("tidegate_store_refused_total 0\n"), "{metrics}");
        // What is there already is not asked to fit once more.
        sidecar.kill().await?;
        let sidecar = home.start(&group, flags).await?;
        ensure!(event(&sidecar.process.log(), message).is_err(), "it was made twice");
        let mut process = sidecar.process;
        ensure!(process.stop().await?.success(), "{}", process.log());
    }
    Ok(())
}

#[tokio::test]
async fn a_capacity_beyond_the_limit_is_an_error_that_says_what_fits() -> anyhow::Result<()> {
    let Some(group) = small_container()? else { return Ok(()) };
    let Some(home) = Home::or_named(2_048 * MIB)? else { return Ok(()) };
    let said = home.fail(Some(&group), &["--capacity", "10000000"]).await?;
    for words in
        ["the counters need 709.7 MiB", "memory limit /sys/fs/cgroup/", " is 128.0 MiB, of which"]
    {
        ensure!(said.contains(words), "{said}");
    }
    // What it says to set is served, with every page of it in memory.
    let (_, after) = said.split_once("set --capacity ").context("advice")?;
    let (capacity, _) = after.split_once(' ').context("a number")?;
    let fits: u64 = capacity.parse()?;
    ensure!((1_000_000..=1_250_000).contains(&fits), "{said}");
    let flags = ["--capacity", capacity];
    let mut sidecar = home.start(&group, &flags).await?;
    serve(home.path()).await?;
    ensure!(group.used()? > 70 * MIB, "the counters do not count: {}", group.used()?);
    sidecar.process.check_running()?;
    ensure!(sidecar.process.stop().await?.success());
    Ok(())
}

/// What was asked for is never made smaller.
#[tokio::test]
async fn a_capacity_that_fits_is_what_was_asked_for() -> anyhow::Result<()> {
    let Some(group) = small_container()? else { return Ok(()) };
    let Some(home) = Home::or_named(128 * MIB)? else { return Ok(()) };
    let flags = ["--capacity", "900000"];
    let mut sidecar = home.start(&group, &flags).await?;
    let metrics = client::get(sidecar.http, "/metrics").await?;
    let metrics = String::from_utf8_lossy(&metrics.body);
    let nodes = metrics
        .lines()
        .find_map(|line| line.strip_prefix("tidegate_store_nodes{class=\"narrow\"} "));
    let nodes: u64 = nodes.context("the nodes")?.parse()?;
    ensure!(nodes >= 900_000 * 10 / 8, "{nodes} nodes");
    ensure!(sidecar.process.stop().await?.success());
    Ok(())
}

#[tokio::test]
async fn a_tmpfs_that_is_too_small_is_an_error_that_says_what_fits() -> anyhow::Result<()> {
    let Some(home) = Home::or_named(64 * MIB)? else { return Ok(()) };
    let said = home.fail(None, &["--capacity", "1000000"]).await?;
    for words in [
        "the counters need 79.",
        "64.0 MiB are free in the file system of",
        "set --capacity 760000 or less",
    ] {
        ensure!(said.contains(words), "{said}");
    }
    Ok(())
}

/// One of them makes the files, while others find less and less room for them.
#[tokio::test]
async fn several_that_start_at_once_share_what_there_is() -> anyhow::Result<()> {
    let Some(home) = Home::or_named(64 * MIB)? else { return Ok(()) };
    let others = [TempDir::new()?, TempDir::new()?, TempDir::new()?];
    for other in &others {
        symlink(home.path().join("data"), other.path().join("data"))?;
    }
    let [first, second, third] = others.each_ref().map(TempDir::path);
    let (limits, flags) = (home.limits(), home.flags(&["--capacity", "700000"]));
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    std::fs::create_dir(home.path().join("data"))?;
    let (first, second, third) = tokio::join!(
        Sidecar::start_with(first, &limits, &flags),
        Sidecar::start_with(second, &limits, &flags),
        Sidecar::start_with(third, &limits, &flags),
    );
    for sidecar in [first, second, third] {
        ensure!(sidecar?.process.stop().await?.success());
    }
    Ok(())
}
