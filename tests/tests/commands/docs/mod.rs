//! The commands, links and paths that the documentation prints: commands run as printed, page by
//! page; links, anchors, mentioned pages and `make` targets exist.
//!
//! A fenced block is run if its language is `sh`. All blocks of a page run in one shell, in a
//! directory that looks like the root of a built clone. More words after `sh`:
//! - `no-run`: not run; a comment `<!-- no-run: reason -->` stands above the block.
//! - `exit=N`: the last command ends with this code.
//!
//! A block `text output` after it is what it writes to standard output, with `…` for anything.

mod links;
mod pages;
mod session;

use anyhow::{Context, bail, ensure};
use pages::{Block, Page, Run};
use rustix::fs::{FlockOperation, flock};
use session::Session;
use std::net::TcpListener;
use tidegate_tests::client::get;
use tidegate_tests::sidecar::Sidecar;
use tidegate_tests::{artifacts, wait};

/// What pages serve at: the defaults of the sidecar, the ports of `envoy/standalone`, and that of Envoy Gateway's
/// metrics.
const PORTS: [u16; 7] = [8080, 8081, 8090, 9901, 10000, 10080, 19001];

/// Runs the blocks of a page, and compares what they print.
async fn run(page: &Page) -> anyhow::Result<()> {
    wait::until("the ports of the documentation to be free", wait::SOON, async || {
        PORTS.iter().all(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).then_some(())
    })
    .await?;
    // Examples limit by the hour; none may straddle the end of one.
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    Session::new()?.run(page).await.with_context(|| page.path.clone())
}

#[tokio::test]
async fn commands_run_as_printed() -> anyhow::Result<()> {
    // Other runs of this test on this machine use the same ports. The lock ends with the file.
    let turn = std::fs::File::create(std::env::temp_dir().join("tidegate-docs-test.lock"))?;
    wait::until("other runs of this test to end", wait::COMMAND, async || {
        flock(&turn, FlockOperation::NonBlockingLockExclusive).ok()
    })
    .await?;
    let (mut ran, mut skipped) = (0, Vec::new());
    for page in pages::all()? {
        let run_here = page.blocks.iter().filter(|block| block.run != Run::No).count();
        if run_here > 0 {
            run(&page).await?;
        }
        ran += run_here;
        let not_run = page.blocks.iter().filter(|block| block.run == Run::No);
        skipped.extend(not_run.map(|Block { line, reason, .. }| {
            format!("{}:{line}: {}", page.path, reason.as_deref().unwrap_or_default())
        }));
    }
    println!("{ran} blocks ran; {} did not:\n{}", skipped.len(), skipped.join("\n"));
    ensure!(ran >= 30, "only {ran} blocks were found");
    Ok(())
}

/// A page that is wrong must not pass.
#[tokio::test]
async fn a_broken_command_is_found() -> anyhow::Result<()> {
    let page = |text: &str| Page::parse("page.md", text);
    for (text, found) in [
        ("```sh\ntrue\n```\n```sh\ntidegate chekc limits.yaml\n```\n", "page.md:4: exit code 127"),
        ("```sh\nfalse | true\n```\n", "page.md:1: exit code 1"),
        ("```sh exit=1\ntrue\n```\n", "page.md:1: exit code 0, expected 1"),
        ("```sh\necho a; echo b\n```\n```text output\na\nc\n```\n", "page.md:1: prints\na\nb\n"),
    ] {
        let error = Session::new()?.run(&page(text)?).await.err();
        let error = error.map(|error| format!("{error:#}")).unwrap_or_default();
        ensure!(error.contains(found), "{text}: {error:?}");
    }
    for (text, found) in [
        ("```console\n$ true\n```\n", "page.md:1: a block `console`"),
        ("```sh no-run\ntrue\n```\n", "page.md:1: no reason"),
        ("```sh someday\ntrue\n```\n", "page.md:1: a word `someday`"),
        ("```text output\na\n```\n", "page.md:1: output of no command"),
        ("```sh\ntrue\n", "page.md:1: the block has no end"),
    ] {
        let error = page(text).err().map(|error| error.to_string()).unwrap_or_default();
        ensure!(error.contains(found), "{text}: {error:?}");
    }
    let good = "```sh\nx=1\ncat > f <<'E'\na\nE\n```\n```sh exit=3\ncat f; echo $x 5s; (exit 3)\n```\n\
                ```text output\na\n1 …s\n```\n";
    Session::new()?.run(&page(good)?).await
}

/// Names in lists leave out what they share, so each must be found by its own part.
#[tokio::test]
async fn every_metric_is_documented() -> anyhow::Result<()> {
    let dir = tempfile::TempDir::new()?;
    let limits = artifacts::root().join("envoy/standalone/limits.yaml");
    let sidecar = Sidecar::start_with(dir.path(), &limits, &["--traces", "on"]).await?;
    let metrics = get(sidecar.http, "/metrics").await?.body;
    let page = std::fs::read_to_string(artifacts::root().join("docs/reference/metrics.md"))?;
    let mut names = 0;
    for line in std::str::from_utf8(&metrics)?.lines() {
        let Some(name) = line.strip_prefix("# TYPE ") else { continue };
        let (name, kind) = name.split_once(' ').context("a name and a type")?;
        let name = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
        let own = name.strip_prefix("tidegate_store").unwrap_or(&name);
        let is_there = [&name, own].iter().any(|name| {
            page.contains(&format!("`{name}`")) || page.contains(&format!("`{name}{{"))
        });
        ensure!(is_there, "{name} is not in docs/reference/metrics.md");
        names += 1;
    }
    ensure!(names >= 30, "only {names} metrics");
    Ok(())
}

#[test]
fn links_and_mentions_lead_somewhere() -> anyhow::Result<()> {
    let found = links::broken()?;
    if !found.is_empty() {
        bail!("{}", found.join("\n"));
    }
    Ok(())
}
