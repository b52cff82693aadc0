//! Reads conformance cases: limits, asks and answers as text.
//!
//! A file has cases, each with a title. A line that begins with one `#` is a comment.
//!
//! ```text
//! ## A first hit leaves one less
//! # A comment, such as the story of a bug.
//! flags --count-denied
//! limits
//!     - {key: k, rate_limit: {unit: second, requests_per_unit: 50}}
//!
//! k=foo -> OK: OK 49/50 per second
//! after 1s
//! k=foo -> OK: OK 49/50 per second in 1s
//! ```
//!
//! `limits` are followed by descriptors of domain `test`, or by whole files, each from its line `domain:`. A case
//! without `limits` has those of the case before. Asks and answers are in the notation of [`parse`] and [`summary`];
//! `\t` and `\0` in an ask stand for these characters. If an answer is written with times, all of its times are. The
//! metadata of an answer are JSON on one or more lines below `metadata`; an answer without that line has none.
//!
//! An ask that begins with `debit` is of hits that have happened, each descriptor of a stream of its own.
//!
//! `after` moves the clock of the test, and `limits` after an ask replace those in force. Asks below a line
//! `each NAME: a b` are repeated for every word, which replaces the name in the asks.

use super::json::json;
use super::notation::{parse, span, summary, summary_with_times, without_times};
use crate::debit_metadata;
use crate::rls::{RateLimitRequest, RateLimitResponse};
use prost_types::Duration;
use std::fmt::Write;
use std::path::Path;
use tidegate_core::{DebitRequest, Nanos, fingerprint};

/// One case.
#[derive(Debug, Clone, Default)]
pub struct Case {
    /// The file and line of its title, such as `modes.txt:12`.
    pub at: String,
    /// The behaviour.
    pub title: String,
    /// Command line flags of the service.
    pub flags: Vec<String>,
    /// The limits at the start, for [`limits_files`].
    pub limits: String,
    /// What happens, in order; the first is an ask.
    pub steps: Vec<Step>,
}

/// One step of a case.
#[derive(Debug, Clone)]
pub enum Step {
    /// A client asks.
    Ask(Ask),
    /// The clock moves.
    After(Nanos),
    /// These limits replace those in force.
    Limits(String),
}

/// One ask, and the answer that it is to have.
#[derive(Debug, Clone)]
pub struct Ask {
    /// The ask.
    pub request: RateLimitRequest,
    /// The metadata of its call.
    pub metadata_of_call: Vec<(&'static str, String)>,
    at: String,
    written: String,
    answer: String,
    metadata: Option<String>,
}

/// Whether times of an answer matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Times {
    /// They are compared where the case has them: the clock is the test's.
    Compared,
    /// They depend on the system's clock.
    Ignored,
}

/// A mistake in a file of cases.
#[derive(Debug, thiserror::Error)]
pub enum CasesError {
    /// A file or directory that cannot be read.
    #[error("{0}: {1}")]
    Io(String, #[source] std::io::Error),
    /// A line that has no meaning where it stands.
    #[error("{at}: {problem}")]
    Line {
        /// Its file and number.
        at: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl Ask {
    /// Compares `answer` with the expected one.
    ///
    /// # Errors
    /// When they differ; the error is a text with the place, the ask and both answers.
    pub fn check(&self, answer: &RateLimitResponse, times: Times) -> Result<(), String> {
        let has_times = self.answer.contains(" in ");
        let (expected, got) = match times {
            Times::Compared if has_times => (self.answer.clone(), summary_with_times(answer)),
            _ => (without_times(&self.answer), summary(answer)),
        };
        if expected != got {
            return Err(self.difference(&expected, &got));
        }
        check_times(answer).map_err(|found| self.difference("a whole time per limit", &found))?;
        let metadata = answer.dynamic_metadata.as_ref().map(json);
        if metadata != self.metadata {
            let of = |metadata: &Option<String>| metadata.clone().unwrap_or("no metadata".into());
            return Err(self.difference(&of(&self.metadata), &of(&metadata)));
        }
        Ok(())
    }

    /// Whether an answer that differs from the expected one may come from hits that were counted twice: it denies, or
    /// fewer hits are left.
    pub fn counts_more(&self, answer: &RateLimitResponse) -> bool {
        counts_more(&without_times(&self.answer), &summary(answer))
    }

    /// Says where this ask is and what it is.
    pub fn failed(&self, why: &str) -> String {
        format!("{}\n     ask {}\n{why}", self.at, self.written)
    }

    fn difference(&self, expected: &str, got: &str) -> String {
        self.failed(&format!("expected {expected}\n     got {got}"))
    }
}

/// The same of summaries without times.
pub(super) fn counts_more(expected: &str, got: &str) -> bool {
    let left = |summary: &str| -> Vec<u64> {
        let limits = summary.split(' ').filter_map(|word| word.split_once('/'));
        limits.filter_map(|(left, _)| left.parse().ok()).collect()
    };
    let [wanted, verdict] = [expected, got].map(|summary| summary.split(':').next());
    if wanted != verdict {
        return verdict == Some("OVER");
    }
    let (before, after) = (left(expected), left(got));
    let is_fewer = before.iter().zip(&after).all(|(before, after)| after <= before);
    before.len() == after.len() && before != after && is_fewer
}

/// A time stands with each limit and with nothing else, in whole seconds.
fn check_times(answer: &RateLimitResponse) -> Result<(), String> {
    for status in &answer.statuses {
        let reset = &status.duration_until_reset;
        let is_whole = matches!(reset, None | Some(Duration { seconds: 0.., nanos: 0 }));
        if reset.is_some() != status.current_limit.is_some() || !is_whole {
            return Err(format!("{status:?}"));
        }
    }
    Ok(())
}

/// The limits files for `limits` of a case, with `suffix` at the end of each domain's name.
#[must_use]
pub fn limits_files(limits: &str, suffix: &str) -> Vec<String> {
    if !limits.starts_with("domain: ") {
        return vec![format!("domain: test{suffix}\ndescriptors:\n{limits}")];
    }
    let mut files: Vec<String> = Vec::new();
    for line in limits.lines() {
        if line.starts_with("domain: ") {
            files.push(format!("{line}{suffix}\n"));
        } else if let Some(file) = files.last_mut() {
            let _ = writeln!(file, "{line}");
        }
    }
    files
}

/// Reads the cases of all `*.txt` in a directory, in the order of their names.
///
/// # Errors
/// When there are none, or one has a mistake.
pub fn cases_in(directory: &Path) -> Result<Vec<Case>, CasesError> {
    let io = |path: &Path| {
        let path = path.display().to_string();
        move |error| CasesError::Io(path, error)
    };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(io(directory))? {
        paths.push(entry.map_err(io(directory))?.path());
    }
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    paths.sort();
    let mut cases = Vec::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let text = std::fs::read_to_string(&path).map_err(io(&path))?;
        cases.extend(read_cases(&name, &text)?);
    }
    if cases.is_empty() {
        let none = std::io::Error::new(std::io::ErrorKind::NotFound, "no cases");
        return Err(io(directory)(none));
    }
    Ok(cases)
}

/// Reads the cases of one file, whose name is for errors.
///
/// # Errors
/// When it has a mistake.
pub fn read_cases(name: &str, text: &str) -> Result<Vec<Case>, CasesError> {
    let mut reader = Reader::default();
    for (index, line) in text.lines().enumerate() {
        let at = format!("{name}:{}", index + 1);
        reader.line(&at, line).map_err(|problem| CasesError::Line { at, problem })?;
    }
    reader.end().map_err(|problem| CasesError::Line { at: name.to_owned(), problem })?;
    Ok(reader.cases)
}

#[derive(Default)]
struct Reader {
    cases: Vec<Case>,
    block: Block,
    /// The repeated steps, with the name and its words.
    each: Option<Each>,
}

/// What indented lines belong to.
#[derive(Default)]
enum Block {
    #[default]
    None,
    Limits,
    Metadata,
}

struct Each {
    name: String,
    words: Vec<String>,
    lines: Vec<(String, String)>,
}

impl Reader {
    fn line(&mut self, at: &str, line: &str) -> Result<(), String> {
        if let Some(title) = line.strip_prefix("## ") {
            self.end()?;
            return self.title(at, title);
        }
        if line.starts_with("##") {
            return Err(format!("{at}: a title is written `## Title`"));
        }
        if line.starts_with('#') || line.is_empty() {
            return Ok(());
        }
        if let Some(each) = &mut self.each {
            each.lines.push((at.to_owned(), line.to_owned()));
            return Ok(());
        }
        self.case_line(at, line)
    }

    fn title(&mut self, at: &str, title: &str) -> Result<(), String> {
        if self.cases.iter().any(|case| case.title == title) {
            return Err("another case has this title".to_owned());
        }
        let limits = self.cases.last().map(|case| case.limits.clone()).unwrap_or_default();
        let (at, title) = (at.to_owned(), title.to_owned());
        self.cases.push(Case { at, title, limits, ..Case::default() });
        Ok(())
    }

    fn case_line(&mut self, at: &str, line: &str) -> Result<(), String> {
        let case = self.cases.last_mut().ok_or("a line before the first title")?;
        if let Some(line) = line.strip_prefix("    ") {
            return block_line(case, &self.block, line);
        }
        self.block = Block::None;
        if let Some((ask, answer)) = line.split_once(" -> ") {
            let number = (fingerprint(case.title.as_bytes()) as u64, case.steps.len() as u64);
            case.steps.push(Step::Ask(read_ask(at, number, ask, answer)?));
        } else if let Some(flags) = line.strip_prefix("flags ") {
            case.flags = flags.split(' ').map(str::to_owned).collect();
        } else if let Some(written) = line.strip_prefix("after ") {
            case.steps.push(Step::After(span(written).map_err(|error| error.to_string())?));
        } else if let Some(each) = line.strip_prefix("each ") {
            let (name, words) = each.split_once(": ").ok_or("no `: ` after the name")?;
            let words = words.split(' ').map(str::to_owned).collect();
            self.each = Some(Each { name: name.to_owned(), words, lines: Vec::new() });
        } else if line == "limits" {
            self.block = Block::Limits;
            match case.steps.is_empty() {
                true => case.limits.clear(),
                false => case.steps.push(Step::Limits(String::new())),
            }
        } else if line == "metadata" {
            self.block = Block::Metadata;
            let Some(Step::Ask(Ask { metadata, .. })) = case.steps.last_mut() else {
                return Err("`metadata` without an ask".to_owned());
            };
            *metadata = Some(String::new());
        } else {
            return Err(format!("{line:?} has no meaning"));
        }
        Ok(())
    }

    /// Ends a case.
    fn end(&mut self) -> Result<(), String> {
        if let Some(Each { name, words, lines }) = self.each.take() {
            for word in &words {
                for (at, line) in &lines {
                    let (ask, answer) = line.split_once(" -> ").unwrap_or((line, ""));
                    if !answer.is_empty() && !ask.contains(&name) {
                        return Err(format!("{at}: no {name} in this ask"));
                    }
                    self.case_line(at, &line.replacen(ask, &ask.replace(&name, word), 1))?;
                }
            }
        }
        self.block = Block::None;
        match self.cases.last() {
            Some(Case { steps, at, .. }) if !matches!(steps.first(), Some(Step::Ask(_))) => {
                Err(format!("the case at {at} does not begin with an ask"))
            }
            Some(Case { limits, at, .. }) if limits.is_empty() => {
                Err(format!("the case at {at} has no limits"))
            }
            _ => Ok(()),
        }
    }
}

fn block_line(case: &mut Case, block: &Block, line: &str) -> Result<(), String> {
    match (block, case.steps.last_mut()) {
        (Block::Limits, None) => case.limits += &format!("{line}\n"),
        (Block::Limits, Some(Step::Limits(limits))) => *limits += &format!("{line}\n"),
        (Block::Metadata, Some(Step::Ask(Ask { metadata: Some(metadata), .. }))) => {
            if !metadata.is_empty() {
                metadata.push(' ');
            }
            metadata.push_str(line.trim());
        }
        _ => return Err("an indented line below neither `limits` nor `metadata`".to_owned()),
    }
    Ok(())
}

/// A debit of a sequence that each case has of its own.
fn debit(request: &RateLimitRequest, (sequence, call): (u64, u64)) -> DebitRequest {
    let descriptors = request.descriptors.len();
    // In larger steps than there are descriptors.
    let call = call.saturating_mul(128);
    let (streams, ages) = (vec![1; descriptors], vec![Nanos::ZERO; descriptors]);
    DebitRequest { call, sequence, streams, ages }
}

fn read_ask(at: &str, number: (u64, u64), written: &str, answer: &str) -> Result<Ask, String> {
    let ask = written.replace("\\t", "\t").replace("\\0", "\0");
    let (is_debit, ask) = match ask.strip_prefix("debit ") {
        Some(ask) => (true, ask.to_owned()),
        None => (false, ask),
    };
    let request = parse(&ask).map_err(|error| error.to_string())?;
    for time in answer.split(", ").filter_map(|status| status.rsplit_once(" in ")) {
        span(time.1).map_err(|error| error.to_string())?;
    }
    let (at, written, answer) = (at.to_owned(), written.to_owned(), answer.to_owned());
    let metadata_of_call = match is_debit {
        true => debit_metadata(&debit(&request, number), None),
        false => Vec::new(),
    };
    Ok(Ask { request, metadata_of_call, at, written, answer, metadata: None })
}
