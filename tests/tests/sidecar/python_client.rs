//! The RLS endpoint, asked by a client that shares no code with it: gRPC's own implementation in Python, with
//! Envoy's own messages. What is asked is in tests/clients/rls_client.py.

use anyhow::ensure;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tidegate_tests::command::{Ran, run};
use tidegate_tests::sidecar::Sidecar;
use tidegate_tests::{artifacts, wait};
use tokio::process::Command;

fn clients(file: &str) -> PathBuf {
    artifacts::root().join("tests/clients").join(file)
}

async fn sidecar(dir: &Path, flags: &[&str]) -> anyhow::Result<Sidecar> {
    wait::for_room_in_window(wait::DAY, wait::ROOM).await?;
    Sidecar::start_with(dir, &clients("rls_client.yaml"), flags).await
}

/// Runs all checks of the client against `target`.
async fn check(target: &str, tls: &[&Path]) -> anyhow::Result<()> {
    let mut command = Command::new(artifacts::python()?);
    command.arg(clients("rls_client.py")).arg(target);
    if !tls.is_empty() {
        command.arg("--tls").args(tls);
    }
    let Ran { code, out, err } = run(command).await?;
    ensure!(code == Some(0), "{out}\n{err}");
    ensure!(out.lines().filter(|line| line.starts_with("ok ")).count() >= 23, "{out}");
    Ok(())
}

/// What reflection answers with is what the published files say.
#[tokio::test]
async fn reflected_files_are_the_published_ones() -> anyhow::Result<()> {
    let folder = artifacts::root().join("crates/servers/src/rls/reflection");
    let mut command = Command::new(artifacts::python()?);
    command.arg("-B").arg(folder.join("services.py"));
    command.arg("--check").arg(folder.join("services.binpb"));
    let Ran { code, out, err } = run(command).await?;
    ensure!(code == Some(0), "{out}\n{err}");
    Ok(())
}

#[tokio::test]
async fn over_a_unix_socket() -> anyhow::Result<()> {
    let dir = TempDir::new()?;
    let _sidecar = sidecar(dir.path(), &[]).await?;
    check(&format!("unix:{}", Sidecar::socket(dir.path()).display()), &[]).await
}

#[tokio::test]
async fn over_tcp() -> anyhow::Result<()> {
    let dir = TempDir::new()?;
    let sidecar = sidecar(dir.path(), &["--grpc", "127.0.0.1:0"]).await?;
    check(&sidecar.tcp("grpc")?.to_string(), &[]).await
}

#[tokio::test]
async fn over_mutual_tls() -> anyhow::Result<()> {
    let dir = TempDir::new()?;
    let path = |name: &str| dir.path().join(name);
    let mut params = CertificateParams::new(Vec::new())?;
    // One that has the name of what it signs would pass for signed by itself.
    params.distinguished_name.push(DnType::CommonName, "an authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    std::fs::write(path("ca"), params.self_signed(&key)?.pem())?;
    let authority = Issuer::new(params, key);
    for (name, host) in [("server", "localhost"), ("client", "client.example")] {
        let key = KeyPair::generate()?;
        let certificate =
            CertificateParams::new(vec![host.to_owned()])?.signed_by(&key, &authority)?;
        std::fs::write(path(name), certificate.pem())?;
        std::fs::write(path(&format!("{name}.key")), key.serialize_pem())?;
    }
    let [ca, server, server_key] =
        ["ca", "server", "server.key"].map(|name| path(name).display().to_string());
    let flags = [
        ["--grpc", "127.0.0.1:0"],
        ["--tls-cert", &server],
        ["--tls-key", &server_key],
        ["--tls-client-ca", &ca],
        ["--tls-client-name", "client.example"],
    ];
    let sidecar = sidecar(dir.path(), &flags.concat()).await?;
    let target = format!("localhost:{}", sidecar.tcp("grpc")?.port());
    check(&target, &[&path("ca"), &path("client"), &path("client.key")]).await
}
