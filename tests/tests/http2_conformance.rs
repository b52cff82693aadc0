//! The gRPC door, held to RFC 9113 (HTTP/2), RFC 7541 (HPACK) and gRPC over HTTP/2, section by section, by a
//! client that shares no code with it: the packages h2, hpack and hyperframe for Python. The cases, and the
//! deliberate deviations, are in tests/clients/http2.

use anyhow::ensure;
use tempfile::TempDir;
use tidegate_tests::artifacts;
use tidegate_tests::command::{Ran, run};
use tidegate_tests::sidecar::Sidecar;
use tokio::process::Command;

/// Fewer mean that a table of cases is not run.
const CASES_MIN: usize = 425;

#[tokio::test]
async fn every_section_is_held_to() -> anyhow::Result<()> {
    let dir = TempDir::new()?;
    let clients = artifacts::root().join("tests/clients");
    let flags = ["--capacity", "1000", "--grpc", "127.0.0.1:0"];
    let sidecar = Sidecar::start_with(dir.path(), &clients.join("rls_client.yaml"), &flags).await?;
    let mut command = Command::new(artifacts::python()?);
    // Leaves no compiled files beside the sources.
    command.arg("-B").arg(clients.join("http2/run.py")).arg(sidecar.tcp("grpc")?.to_string());
    let Ran { code, out, err } = run(command).await?;
    let failures =
        out.lines().filter(|line| !line.starts_with("ok ")).collect::<Vec<_>>().join("\n");
    ensure!(code == Some(0), "{failures}\n{err}");
    ensure!(out.lines().filter(|line| line.starts_with("ok ")).count() >= CASES_MIN, "{out}");
    Ok(())
}
