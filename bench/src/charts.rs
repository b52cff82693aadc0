//! The charts of docs/reference/algorithms.md: how much of the same traffic each algorithm admits around a boundary of
//! its windows, computed by the real code.
//!
//! The output depends on nothing but that code. Tests compare the committed charts, and the figures and
//! worked examples of the document, with it.

mod algorithms;
mod axes;
mod chart;
mod cumulative;
#[cfg(test)]
mod document;
mod traffic;

use anyhow::Context;
use clap::Args;
use std::path::PathBuf;
use tidegate_tests::artifacts;
use traffic::Admission;

/// Writes the charts to the document's directory.
#[derive(Debug, Args)]
pub(crate) struct Part {
    /// Another directory
    #[arg(long)]
    dir: Option<PathBuf>,
}

impl Part {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let dir =
            self.dir.clone().unwrap_or_else(|| artifacts::root().join("docs/reference/algorithms"));
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        for (name, svg) in files()? {
            let path = dir.join(name);
            std::fs::write(&path, svg)
                .with_context(|| format!("cannot write {}", path.display()))?;
            println!("{}", path.display());
        }
        Ok(())
    }
}

/// The file name and the text of every chart.
fn files() -> anyhow::Result<Vec<(String, String)>> {
    let algorithms = algorithms::all()?;
    let admissions: Vec<Admission> =
        algorithms.iter().map(|algorithm| traffic::admit(&algorithm.quota)).collect();
    let mut files = Vec::new();
    for (algorithm, admission) in algorithms.iter().zip(&admissions) {
        files.push((algorithm.file(), chart::draw(algorithm, admission)));
    }
    let together = algorithms.iter().zip(&admissions);
    files.push(("cumulative.svg".to_owned(), cumulative::draw(together)));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest chart that a page should load.
    const BYTES_MAX: usize = 12 * 1024;

    #[test]
    fn the_committed_charts_are_what_the_code_draws() {
        let dir = artifacts::root().join("docs/reference/algorithms");
        let drawn = files().unwrap();
        for (name, svg) in &drawn {
            let committed = std::fs::read_to_string(dir.join(name)).unwrap_or_default();
            assert!(committed == *svg, "{name} is out of date: run `make charts`");
        }
        let mut committed: Vec<String> = std::fs::read_dir(&dir)
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        let mut names: Vec<String> = drawn.into_iter().map(|(name, _)| name).collect();
        committed.sort();
        names.sort();
        assert_eq!(committed, names);
    }

    #[test]
    fn charts_are_small_and_need_nothing_else() {
        for (name, svg) in files().unwrap() {
            assert!(svg.len() < BYTES_MAX, "{name} has {} bytes", svg.len());
            for refused in ["<script", "href", "url(", "@import", "<image", "<foreignObject"] {
                assert!(!svg.contains(refused), "{name} has {refused}");
            }
            // The XML namespace is the only URL.
            assert_eq!(svg.matches("://").count(), 1, "{name}");
        }
    }

    #[test]
    fn no_span_of_a_period_admits_more_than_its_algorithm_promises() {
        for algorithm in algorithms::all().unwrap() {
            let admission = traffic::admit(&algorithm.quota);
            let (most, bound) = (admission.peak().1, algorithm.bound);
            assert!(most <= bound, "{}: {most} of {bound}", algorithm.name);
        }
    }
}
