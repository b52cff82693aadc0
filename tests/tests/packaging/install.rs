//! `make install`: which files it lays down, and that each is of use.

use anyhow::{Context, ensure};
use std::path::Path;
use tempfile::TempDir;
use tidegate_tests::command::{Ran, run};
use tidegate_tests::{artifacts, not_run};
use tokio::process::Command;

async fn make(arguments: &[&str], stage: &Path) -> anyhow::Result<Ran> {
    let mut command = Command::new("make");
    command.args(["--no-print-directory", "-C"]).arg(artifacts::root()).args(arguments);
    command.arg(format!("DESTDIR={}", stage.display())).arg("PREFIX=/usr");
    // The one that all tests run.
    command.env("TIDEGATE", artifacts::sidecar()?);
    // What called this test may be make.
    command.env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    run(command).await
}

#[tokio::test]
async fn files_are_installed_and_removed() -> anyhow::Result<()> {
    let stage = TempDir::new()?;
    let ran = make(&["install"], stage.path()).await?;
    ensure!(ran.code == Some(0), "{ran:?}");
    let read = |path: &str| std::fs::read(stage.path().join(path));
    ensure!(read("usr/bin/tidegate")? == std::fs::read(artifacts::sidecar()?)?, "the binary");
    ensure!(
        read("usr/lib/tidegate/tidegate.wasm")? == std::fs::read(artifacts::filter()?)?,
        "the module"
    );
    let text = |path: &str| anyhow::Ok(String::from_utf8(read(path)?)?);
    for (path, contents) in [
        ("usr/share/man/man1/tidegate.1", ".TH tidegate 1"),
        ("usr/share/man/man1/tidegate-serve.1", "lease"),
        ("usr/share/bash-completion/completions/tidegate", "--data-dir"),
        ("usr/share/zsh/site-functions/_tidegate", "#compdef tidegate"),
        ("usr/share/fish/vendor_completions.d/tidegate.fish", "complete -c tidegate"),
        ("usr/lib/systemd/system/tidegate.service", "ExecStart=/usr/bin/tidegate serve"),
        ("etc/tidegate/limits.yaml", "domain:"),
    ] {
        let found = text(path)?;
        ensure!(found.contains(contents), "{path}: {found}");
    }
    // Limits that somebody has changed stay.
    std::fs::write(stage.path().join("etc/tidegate/limits.yaml"), "domain: mine\n")?;
    ensure!(make(&["install"], stage.path()).await?.code == Some(0), "a second time");
    ensure!(text("etc/tidegate/limits.yaml")? == "domain: mine\n", "limits were overwritten");
    let ran = make(&["uninstall"], stage.path()).await?;
    ensure!(ran.code == Some(0) && read("usr/bin/tidegate").is_err(), "{ran:?}");
    ensure!(read("etc/tidegate/limits.yaml").is_ok(), "limits were removed");
    Ok(())
}

/// How much of a system the unit reaches, from 0 to 100, as systemd rates it. A unit without hardening has 96.
const EXPOSURE_MAX: u32 = 20;

#[tokio::test]
async fn the_unit_reaches_little_of_the_system() -> anyhow::Result<()> {
    let stage = TempDir::new()?;
    ensure!(make(&["install"], stage.path()).await?.code == Some(0), "make install");
    let unit = stage.path().join("usr/lib/systemd/system/tidegate.service");
    let mut command = Command::new("systemd-analyze");
    command.args(["security", "--offline=true", &format!("--threshold={EXPOSURE_MAX}")]).arg(unit);
    let ran = run(command).await.context("systemd-analyze");
    let Some(ran) = not_run::or_named("systemd", ran)? else { return Ok(()) };
    ensure!(ran.code == Some(0), "{ran:?}");
    Ok(())
}
