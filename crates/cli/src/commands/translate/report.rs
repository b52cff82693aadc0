//! What has no equivalent, and what a reader should know: each with its place.

use super::input::At;
use std::collections::HashSet;
use std::fmt;
use tidegate_limits::describe::count;

#[derive(Debug, Default)]
pub(super) struct Report {
    findings: Vec<Finding>,
    /// The same as text: the list of a virtual host may be read for several routes.
    lines: HashSet<String>,
    is_failed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It has no equivalent.
    Missing,
    /// It has one, or needs none.
    Note,
}

#[derive(Debug)]
pub(super) struct Finding {
    place: String,
    path: String,
    message: String,
    kind: Kind,
}

impl Report {
    /// Something without an equivalent.
    pub(super) fn missing(&mut self, at: &At<'_>, path: &str, message: impl Into<String>) {
        self.add(at, path, message.into(), Kind::Missing);
    }

    pub(super) fn note(&mut self, at: &At<'_>, path: &str, message: impl Into<String>) {
        self.add(at, path, message.into(), Kind::Note);
    }

    fn add(&mut self, at: &At<'_>, path: &str, message: String, kind: Kind) {
        let path = path.trim_end_matches(": ").to_owned();
        let finding = Finding { place: at.place(), path, message, kind };
        if self.lines.insert(finding.to_string()) {
            self.findings.push(finding);
        }
    }

    /// The result as a whole is not usable.
    pub(super) fn fail(&mut self) {
        self.is_failed = true;
    }

    pub(super) fn findings(&self) -> &[Finding] {
        &self.findings
    }

    fn missing_count(&self) -> usize {
        self.findings.iter().filter(|finding| finding.kind == Kind::Missing).count()
    }

    /// Whether all was translated.
    pub(super) fn is_complete(&self) -> bool {
        !self.is_failed && self.missing_count() == 0
    }

    pub(super) fn summary(&self) -> String {
        match self.missing_count() as u64 {
            1 => "1 thing has no equivalent".to_owned(),
            things => format!("{} have no equivalent", count(things, "thing")),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { place, path, message, kind } = self;
        let note = if *kind == Kind::Note { "note: " } else { "" };
        match path.is_empty() {
            true => write!(f, "{place}: {note}{message}"),
            false => write!(f, "{place}: {note}{path}: {message}"),
        }
    }
}
