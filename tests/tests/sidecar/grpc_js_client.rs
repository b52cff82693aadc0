//! The RLS endpoint, asked by gRPC's JavaScript implementation, which has the HTTP/2 of Node: a client that shares no
//! code with it, nor with that of python_client.rs. What is asked is in tests/clients/grpc_js.

use anyhow::{Context, ensure};
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;
use tidegate_tests::sidecar::Sidecar;
use tidegate_tests::{artifacts, wait};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

/// Far longer than all checks take.
const ROOM: Duration = Duration::from_secs(180);
/// Fewer mean that some are not run.
const CHECKS_MIN: usize = 30;

const FLAGS: [&str; 2] = ["--capacity", "100000"];

/// What the client does next, for which it may take long.
async fn next<T>(step: impl Future<Output = std::io::Result<T>>) -> anyhow::Result<T> {
    Ok(wait::within("the next check", wait::COMMAND, step).await??)
}

#[tokio::test]
async fn through_restarts_and_takeovers() -> anyhow::Result<()> {
    wait::for_room_in_window(wait::DAY, ROOM).await?;
    let dir = TempDir::new()?;
    let clients = artifacts::root().join("tests/clients");
    let limits = clients.join("rls_client.yaml");
    let mut sidecar = Sidecar::start_with(dir.path(), &limits, &FLAGS).await?;
    // Those that were taken over from drain by themselves.
    let mut former = Vec::new();
    let mut client = Command::new("node")
        .arg(clients.join("grpc_js/client.js"))
        .arg(Sidecar::socket(dir.path()))
        .env("NODE_PATH", artifacts::node_modules()?)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("cannot start node")?;
    let mut input = client.stdin.take().context("no input")?;
    let mut lines = BufReader::new(client.stdout.take().context("no output")?).lines();
    let mut said = Vec::new();
    while let Some(line) = next(lines.next_line()).await? {
        match line.as_str() {
            "RESTART" => {
                sidecar.kill().await?;
                sidecar.restart().await?;
                input.write_all(b"done\n").await?;
            }
            "TAKEOVER" => {
                let name = format!("sidecar-{}", former.len());
                let next = sidecar.taken_over_by(&FLAGS, &name).await?;
                former.push(std::mem::replace(&mut sidecar, next));
                input.write_all(b"done\n").await?;
            }
            _ => said.push(line),
        }
    }
    ensure!(next(client.wait()).await?.success(), "{}", said.join("\n"));
    let held = said.iter().filter(|line| line.starts_with("ok ")).count();
    ensure!(held >= CHECKS_MIN, "{}", said.join("\n"));
    Ok(())
}
