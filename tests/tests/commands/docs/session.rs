//! A shell that runs the commands of one page, in a directory that looks like a built clone.

use super::pages::{Block, Page, Run};
use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fmt::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tempfile::TempDir;
use tidegate_tests::{artifacts, memory, wait};
use tokio::process::Command;

/// A directory for the commands of a page, and the processes that they start.
pub(crate) struct Session {
    dir: TempDir,
}

impl Session {
    /// Makes a clone of links: what pages write stays in this directory, what is built is what the
    /// other tests run.
    pub(crate) fn new() -> anyhow::Result<Session> {
        let dir = TempDir::new()?;
        let home = dir.path().join("home");
        let built = [
            ("target/release/tidegate", artifacts::sidecar()?),
            ("dist/tidegate.wasm", artifacts::filter()?),
            (".tools/envoy", artifacts::envoy()?),
            (".tools/clients", artifacts::root().join(".tools/clients")),
            (".tools/kubernetes", artifacts::root().join(".tools/kubernetes")),
        ];
        for (place, path) in &built {
            let place = home.join(place);
            std::fs::create_dir_all(place.parent().context("a directory")?)?;
            symlink(path, place)?;
        }
        for entry in std::fs::read_dir(artifacts::root())? {
            let entry = entry?;
            let own = ["target", "dist", ".tools", ".git", "envoy"].map(Some);
            if !own.contains(&entry.file_name().to_str()) {
                symlink(entry.path(), home.join(entry.file_name()))?;
            }
        }
        patient_envoy(&home)?;
        Ok(Session { dir })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs the commands of a page, and compares what they print.
    pub(crate) async fn run(&self, page: &Page) -> anyhow::Result<()> {
        let blocks: Vec<&Block> = page.blocks.iter().filter(|block| block.run != Run::No).collect();
        std::fs::write(self.path("script"), script(&blocks, self.dir.path()))?;
        let mut command = Command::new("bash");
        command.arg(self.path("script")).current_dir(self.path("home"));
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("TIDEGATE_")) {
                command.env_remove(name);
            }
        }
        let mut shell = command
            .env("TIDEGATE_MEMORY_DIR", memory::dir())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(self.path("shell.err"))?)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("bash is needed for this test")?;
        // What it starts shares the group that is named by its process id.
        let group = shell.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let group = group.context("a process id")?;
        let ended = wait::within("the commands to end", wait::COMMAND, shell.wait()).await;
        let _ = kill_process_group(group, Signal::TERM);
        wait::within("the shell to end", wait::DRAIN, shell.wait()).await??;
        be_gone(group).await?;
        let code = ended.and_then(|status| Ok(status?.code()));
        self.judge(page, &blocks, &code)
    }

    /// Finds the first block that did not do what the page says.
    fn judge(
        &self,
        page: &Page,
        blocks: &[&Block],
        code: &anyhow::Result<Option<i32>>,
    ) -> anyhow::Result<()> {
        let read = |name: &str| std::fs::read_to_string(self.path(name)).unwrap_or_default();
        let reached: usize = read("at").trim().parse().unwrap_or(0);
        for (index, block) in blocks.iter().enumerate().take(reached + 1) {
            let place = format!("{}:{}", page.path, block.line);
            let (out, err) = (read(&format!("{index}.out")), read(&format!("{index}.err")));
            let says = format!("{}prints\n{out}{err}{}", block.commands, read("shell.err"));
            if index == reached {
                let code =
                    code.as_ref().map_err(|error| anyhow::anyhow!("{place}: {error}\n{says}"))?;
                let code = code.with_context(|| format!("{place}: killed\n{says}"))?;
                match read("ended").trim() {
                    "" => ensure!(code == 0, "{place}: exit code {code}\n{says}"),
                    other => bail!("{place}: exit code {other}\n{says}"),
                }
            }
            if let Some(expected) = &block.output {
                let lines = |text: &str| text.lines().map(|l| l.trim_end().into()).collect();
                let (expected_lines, out_lines): (Vec<String>, Vec<String>) =
                    (lines(expected), lines(&out));
                ensure!(
                    is_like(&expected_lines, &out_lines),
                    "{place}: prints\n{out}expected\n{expected}{err}"
                );
            }
        }
        Ok(())
    }
}

/// Copies the shipped configurations of Envoy, with a timeout that a machine which stalls for a moment does not exceed.
fn patient_envoy(home: &Path) -> anyhow::Result<()> {
    let (shipped, own) = (artifacts::root().join("envoy"), home.join("envoy"));
    std::fs::create_dir_all(own.join("standalone"))?;
    for (from, to) in [(&shipped, &own), (&shipped.join("standalone"), &own.join("standalone"))] {
        for entry in std::fs::read_dir(from)? {
            let entry = entry?;
            if !["standalone", "envoy.yaml"].map(Some).contains(&entry.file_name().to_str()) {
                symlink(entry.path(), to.join(entry.file_name()))?;
            }
        }
    }
    let config = std::fs::read_to_string(shipped.join("standalone/envoy.yaml"))?;
    let timeout = "timeout_ms: 200";
    ensure!(config.matches(timeout).count() == 1, "envoy.yaml must have `{timeout}` just once");
    std::fs::write(own.join("standalone/envoy.yaml"), config.replace(timeout, "timeout_ms: 5000"))?;
    Ok(())
}

/// One script of all blocks, so that later ones have the variables and jobs of those before.
fn script(blocks: &[&Block], dir: &Path) -> String {
    let dir = dir.display();
    let mut script = "set -eo pipefail\n".to_owned();
    for (index, Block { commands, run, .. }) in blocks.iter().enumerate() {
        let (before, after) = match run {
            Run::Ends(code) => (
                "set +e\n",
                format!(
                    "code=$?\nif [ $code != {code} ]; then\n  \
                     echo $code, expected {code} > {dir}/ended\n  exit 1\nfi\nset -e\n"
                ),
            ),
            Run::Succeeds | Run::No => ("", String::new()),
        };
        let _ = write!(
            script,
            "echo {index} > {dir}/at\n{before}{{\n{commands}}} > {dir}/{index}.out 2> {dir}/{index}.err\n{after}"
        );
    }
    script
}

/// Waits until the processes of a group have ended after their signal; else kills them.
async fn be_gone(group: Pid) -> anyhow::Result<()> {
    let group_id = group.as_raw_nonzero().to_string();
    let is_alive = |process: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        // State, parent and group follow the name, which is in parentheses.
        let fields: Vec<&str> =
            stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ').collect()).unwrap_or_default();
        matches!(fields[..], [state, _, of, ..] if state != "Z" && of == group_id)
    };
    let gone = wait::until("the processes of a page to end", wait::DRAIN, async || {
        (!std::fs::read_dir("/proc").ok()?.flatten().any(is_alive)).then_some(())
    });
    if let Err(error) = gone.await {
        let _ = kill_process_group(group, Signal::KILL);
        return Err(error);
    }
    Ok(())
}

/// Whether lines are as expected: `…` stands for any text in a line, and alone for any lines.
fn is_like(expected: &[String], lines: &[String]) -> bool {
    match expected.split_first() {
        None => lines.is_empty(),
        Some((first, rest)) if first.trim() == "…" => {
            (0..=lines.len()).any(|skipped| is_like(rest, &lines[skipped..]))
        }
        Some((first, rest)) => lines.split_first().is_some_and(|(line, lines)| {
            let parts: Vec<&str> = first.split('…').collect();
            is_line_like(&parts, line) && is_like(rest, lines)
        }),
    }
}

/// Whether a line is these parts with anything between them.
fn is_line_like(parts: &[&str], line: &str) -> bool {
    let [first, middle @ .., last] = parts else { return parts == [line] };
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    for part in middle {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}
