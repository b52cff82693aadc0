//! Links, anchors, paths and `make` targets that are named somewhere and are not there.

use super::pages::{files_below, has_end};
use anyhow::Context;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tidegate_tests::artifacts;

/// Everything that is named and is not there, each with the file that names it.
pub(crate) fn broken() -> anyhow::Result<Vec<String>> {
    let root = artifacts::root();
    let mut pages = vec![root.join("README.md"), root.join("ARCHITECTURE.md")];
    pages.extend(["CHANGELOG.md", "SECURITY.md"].map(|name| root.join(name)));
    let mut files = vec![root.join("README.md"), root.join("Makefile")];
    for dir in ["docs", "envoy", "charts"] {
        let found = files_below(&root.join(dir))?;
        pages.extend(found.into_iter().filter(|file| has_end(file, "md")));
    }
    for dir in [
        "docs",
        "envoy",
        "charts",
        "packaging",
        "crates",
        "src",
        "tests/src",
        "tests/tests",
        "bench",
        "fuzz/src",
    ] {
        files.extend(files_below(&root.join(dir))?);
    }
    let makefile = std::fs::read_to_string(root.join("Makefile"))?;
    let mut found = Vec::new();
    for page in &pages {
        let text = std::fs::read_to_string(page)?;
        let name = page.strip_prefix(&root)?.display();
        for link in links(&text) {
            if !leads_somewhere(page, &link)? {
                found.push(format!("{name}: the link {link} leads nowhere"));
            }
        }
        for target in make_targets(&text) {
            if !makefile.contains(&format!("\n{target}:")) {
                found.push(format!("{name}: there is no `make {target}`"));
            }
        }
    }
    for file in &files {
        let Ok(text) = std::fs::read_to_string(file) else { continue };
        let name = file.strip_prefix(&root)?.display();
        let mentioned = mentioned(&text).into_iter().filter(|path| !root.join(path).exists());
        found.extend(mentioned.map(|path| format!("{name}: there is no {path}")));
    }
    Ok(found)
}

/// The targets of links that are no addresses.
fn links(text: &str) -> Vec<String> {
    let mut is_code = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code {
            continue;
        }
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        found.extend(targets.filter(|target| !target.contains("://")).map(str::to_owned));
    }
    found
}

fn leads_somewhere(page: &Path, link: &str) -> anyhow::Result<bool> {
    let (path, anchor) = link.split_once('#').map_or((link, None), |(p, a)| (p, Some(a)));
    let target = match path {
        "" => page.to_owned(),
        path => page.parent().context("a directory")?.join(path),
    };
    Ok(match anchor {
        None => target.exists(),
        Some(anchor) => anchors(&target).contains(anchor),
    })
}

/// The anchors of a page, as GitHub makes them of its headings.
fn anchors(page: &PathBuf) -> BTreeSet<String> {
    let text = std::fs::read_to_string(page).unwrap_or_default();
    let mut is_code = false;
    let mut anchors = BTreeSet::new();
    for line in text.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        }
        let heading = line.trim_start_matches('#');
        if is_code || heading == line || !heading.starts_with(' ') {
            continue;
        }
        let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let anchor: String = kept.collect::<String>().to_lowercase().replace(' ', "-");
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(numbered).find(|a| !anchors.contains(a));
        anchors.extend(free);
    }
    anchors
}

/// Paths below `docs/` and `envoy/` that have an end, such as `docs/README.md`.
fn mentioned(text: &str) -> BTreeSet<String> {
    let is_of_path = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let words = text.split(|c: char| !is_of_path(c));
    let paths = words.filter(|word| word.starts_with("docs/") || word.starts_with("envoy/"));
    let paths = paths.map(|word| word.trim_end_matches('.'));
    let is_file =
        |path: &&str| ["md", "xsd", "svg", "yaml"].iter().any(|e| has_end(Path::new(path), e));
    paths.filter(is_file).map(str::to_owned).collect()
}

/// The targets of `make` in commands and in code that stands in the text.
fn make_targets(text: &str) -> BTreeSet<String> {
    let mut is_code = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        let commands: Vec<&str> = match is_code {
            true => vec![line.trim()],
            false => line.split('`').skip(1).step_by(2).collect(),
        };
        for command in commands {
            // What it does stands behind a gap.
            let command = command.split("  ").next().unwrap_or_default();
            let words = command.strip_prefix("make ").into_iter().flat_map(str::split_whitespace);
            let targets =
                words.take_while(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '-'));
            found.extend(targets.map(str::to_owned));
        }
    }
    found
}

#[test]
fn a_dead_link_is_found() -> anyhow::Result<()> {
    let dir = tempfile::TempDir::new()?;
    let page = dir.path().join("page.md");
    let text = "# A `b` c: d_e\n[x](page.md#a-b-c-d_e-1) [y](https://a.b)\n```\n[z](no)\n# no\n```\n# A b c d_e\n";
    std::fs::write(&page, text)?;
    assert_eq!(links(text), ["page.md#a-b-c-d_e-1"]);
    for (link, leads) in [
        ("page.md", true),
        ("#a-b-c-d_e", true),
        ("page.md#a-b-c-d_e-1", true),
        ("page.md#a-b-c-d_e-2", false),
        ("page.md#no", false),
        ("other.md", false),
    ] {
        assert_eq!(leads_somewhere(&page, link)?, leads, "{link}");
    }
    assert_eq!(
        make_targets("`make a b`\n```\nmake c-d  of e\n```\nmake f"),
        ["a", "b", "c-d"].map(String::from).into()
    );
    assert_eq!(
        mentioned("see docs/README.md, docs/b and envoy/standalone/envoy.yaml."),
        ["docs/README.md", "envoy/standalone/envoy.yaml"].map(String::from).into()
    );
    Ok(())
}
