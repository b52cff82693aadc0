//! The gRPC endpoint, held to RFC 9113 (HTTP/2), RFC 7541 (HPACK) and gRPC over HTTP/2, section by section, by a
//! client that shares no code with it: the packages h2, hpack and hyperframe for Python. The cases, and the
//! deliberate deviations, are in tests/clients/http2.

use anyhow::{Context, ensure};
use rustix::process::Signal;
use std::path::PathBuf;
use std::process::Stdio;
use tempfile::TempDir;
use tidegate_tests::command::{Ran, run};
use tidegate_tests::sidecar::Sidecar;
use tidegate_tests::{artifacts, wait};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

/// Fewer mean that a table of cases is not run.
const CASES_MIN: usize = 425;

fn clients() -> PathBuf {
    artifacts::root().join("tests/clients")
}

async fn sidecar(dir: &TempDir) -> anyhow::Result<Sidecar> {
    let flags = ["--capacity", "1000", "--grpc", "127.0.0.1:0"];
    Sidecar::start_with(dir.path(), &clients().join("rls_client.yaml"), &flags).await
}

/// A script that asks this sidecar; it leaves no compiled files beside the sources.
fn client(script: &str, sidecar: &Sidecar) -> anyhow::Result<Command> {
    let mut command = Command::new(artifacts::python()?);
    command.arg("-B").arg(clients().join("http2").join(script));
    command.arg(sidecar.tcp("grpc")?.to_string());
    Ok(command)
}

#[tokio::test]
async fn every_section_is_held_to() -> anyhow::Result<()> {
    let dir = TempDir::new()?;
    let sidecar = sidecar(&dir).await?;
    let Ran { code, out, err } = run(client("run.py", &sidecar)?).await?;
    let (held, others): (Vec<_>, Vec<_>) = out.lines().partition(|line| line.starts_with("ok "));
    ensure!(code == Some(0), "{}\n{err}", others.join("\n"));
    ensure!(held.len() >= CASES_MIN, "{out}");
    Ok(())
}

#[tokio::test]
async fn connections_are_left_as_section_6_8_advises() -> anyhow::Result<()> {
    let dir = TempDir::new()?;
    let mut sidecar = sidecar(&dir).await?;
    let mut command = client("drain.py", &sidecar)?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut client = command.spawn()?;
    let mut out = BufReader::new(client.stdout.take().context("no output")?);
    let mut said = String::new();
    wait::within("a client that is ready", wait::START, out.read_line(&mut said)).await??;
    ensure!(said == "READY\n", "{said}");
    sidecar.process.signal(Signal::TERM)?;
    client.stdin.take().context("no input")?.write_all(b"stopped\n").await?;
    wait::within("the checks", wait::COMMAND, out.read_to_string(&mut said)).await??;
    ensure!(wait::within("their end", wait::SOON, client.wait()).await??.success(), "{said}");
    ensure!(said.lines().filter(|line| line.starts_with("ok ")).count() == 6, "{said}");
    ensure!(sidecar.process.wait().await?.success(), "{}", sidecar.process.log());
    Ok(())
}
