//! The pages of the documentation, and the commands in them.

use anyhow::{Context, bail};
use std::path::{Path, PathBuf};
use tidegate_tests::artifacts;

/// Tested by `frs_endpoint.rs`, which runs its commands against a service of its own.
const TESTED_ELSEWHERE: &str = "docs/reference/frs.md";

/// Whether a block is run, and how it has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Run {
    No,
    /// Every command succeeds.
    Succeeds,
    /// The last command ends with this code.
    Ends(u8),
}

/// A block of commands.
#[derive(Debug)]
pub(crate) struct Block {
    /// The line of its fence.
    pub(crate) line: usize,
    pub(crate) commands: String,
    pub(crate) run: Run,
    /// Why it is not run.
    pub(crate) reason: Option<String>,
    /// What it has to print, if the page says.
    pub(crate) output: Option<String>,
}

/// A page: where it is, from the root, and its commands.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) path: String,
    pub(crate) blocks: Vec<Block>,
}

impl Page {
    pub(crate) fn parse(path: &str, text: &str) -> anyhow::Result<Page> {
        let mut blocks: Vec<Block> = Vec::new();
        // Output belongs to the block right before it.
        let mut is_after_commands = false;
        for (line, above, info, body) in fences(path, text)? {
            let place = format!("{path}:{line}");
            let words: Vec<&str> = info.split_whitespace().collect();
            match words[..] {
                ["sh", ref more @ ..] => {
                    let mut block = Block {
                        line,
                        commands: body,
                        run: Run::Succeeds,
                        reason: None,
                        output: None,
                    };
                    for word in more {
                        block.run = match word.strip_prefix("exit=") {
                            Some(code) => Run::Ends(code.parse().context(place.clone())?),
                            None if *word == "no-run" => Run::No,
                            None => bail!("{place}: a word `{word}` that the test does not know"),
                        };
                    }
                    if block.run == Run::No {
                        let reason = above.strip_prefix("<!-- no-run: ");
                        let reason = reason.and_then(|rest| rest.strip_suffix(" -->"));
                        block.reason =
                            Some(reason.with_context(|| format!("{place}: no reason"))?.into());
                    }
                    is_after_commands = block.run != Run::No;
                    blocks.push(block);
                }
                ["text", "output"] => match blocks.last_mut() {
                    Some(block) if is_after_commands => {
                        block.output = Some(body);
                        is_after_commands = false;
                    }
                    _ => bail!("{place}: output of no command that runs"),
                },
                ["console" | "bash" | "shell", ..] if path != TESTED_ELSEWHERE => {
                    bail!("{place}: a block `{info}`, which no test runs; use `sh`");
                }
                _ => {}
            }
        }
        Ok(Page { path: path.to_owned(), blocks })
    }
}

/// The fenced blocks of a page: the line of the fence, the line of text above it, what stands
/// behind the fence, and the contents without indentation.
fn fences(path: &str, text: &str) -> anyhow::Result<Vec<(usize, String, String, String)>> {
    let mut found = Vec::new();
    let mut above = "";
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let trimmed = line.trim_start();
        let Some(info) = trimmed.strip_prefix("```") else {
            if !trimmed.is_empty() {
                above = trimmed.trim_end();
            }
            continue;
        };
        let indent = line.len() - trimmed.len();
        let mut body = String::new();
        loop {
            let (_, line) = lines
                .next()
                .with_context(|| format!("{path}:{}: the block has no end", index + 1))?;
            if line.trim() == "```" {
                break;
            }
            body += line.get(indent..).unwrap_or_default();
            body.push('\n');
        }
        found.push((index + 1, above.to_owned(), info.trim().to_owned(), body));
        above = "";
    }
    Ok(found)
}

/// All pages: the README, `docs/`, and those beside configurations of Envoy and the chart.
pub(crate) fn all() -> anyhow::Result<Vec<Page>> {
    let root = artifacts::root();
    let mut files = vec![root.join("README.md")];
    for dir in ["docs", "envoy", "charts"] {
        files.extend(files_below(&root.join(dir))?.into_iter().filter(|file| has_end(file, "md")));
    }
    files.sort();
    let page = |file: &PathBuf| {
        let path = file.strip_prefix(&root)?.to_str().context("a path that is not UTF-8")?;
        Page::parse(path, &std::fs::read_to_string(file)?)
    };
    files.iter().map(page).collect()
}

pub(crate) fn has_end(file: &Path, end: &str) -> bool {
    file.extension().is_some_and(|extension| extension == end)
}

/// All files below a directory, but for those of builds.
pub(crate) fn files_below(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
            let path = entry?.path();
            match path.is_dir() {
                true if path.ends_with("target") || path.ends_with("node_modules") => {}
                true => dirs.push(path),
                false => files.push(path),
            }
        }
    }
    Ok(files)
}
