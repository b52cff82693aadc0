//! Limits files: the rules of valid ones, and one case per error with its message.

mod compatibility;
mod errors;
mod files;
mod frs_map;
mod hostile;
mod limit_errors;
mod limits;
mod matching;
mod statistics;
mod warnings;

use super::{Diagnostic, Loaded, SameDomain, load};
use crate::path::segment;
use crate::{Limit, Lookup, Matcher, Rule, RuleKind, Rules};
use std::path::Path;
use tempfile::TempDir;
use tidegate_core::{Entry, FixedWindow, Nanos, Quota, TokenBucket};

fn directory(files: &[(&str, &str)]) -> TempDir {
    let dir = TempDir::new().unwrap();
    for (name, text) in files {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

/// The rules and warnings of these files, or their errors. Messages are as printed, without the
/// directory.
fn load_files(
    files: &[(&str, &str)],
    same_domain: SameDomain,
) -> Result<(Rules, Vec<String>), Vec<String>> {
    let dir = directory(files);
    let lines = |all: &[Diagnostic]| all.iter().map(|one| without(dir.path(), one)).collect();
    match load(dir.path(), same_domain) {
        Ok(Loaded { rules, warnings, .. }) => Ok((rules, lines(&warnings))),
        Err(errors) => Err(lines(&errors.0)),
    }
}

fn load_text(text: &str) -> Result<(Rules, Vec<String>), Vec<String>> {
    load_files(&[("limits.yaml", text)], SameDomain::Refuse)
}

/// The rules of a file without errors and warnings.
#[track_caller]
pub(crate) fn rules(text: &str) -> Rules {
    let (rules, warnings) = load_text(text).unwrap_or_else(|e| panic!("{e:#?}\n{text}"));
    assert_eq!(warnings, [""; 0], "for\n{text}");
    rules
}

fn without(dir: &Path, error: &Diagnostic) -> String {
    error.to_string().replace(&format!("{}/", dir.display()), "")
}

/// A file of one descriptor.
fn with_descriptor(descriptor: &str) -> String {
    format!("domain: d\ndescriptors:\n- {descriptor}\n")
}

/// A file of one descriptor with this rate_limit.
fn with_limit(limit: &str) -> String {
    with_descriptor(&format!("{{key: k, rate_limit: {limit}}}"))
}

/// A file of one descriptor with these rate_limits.
fn with_limits(limits: &str) -> String {
    with_descriptor(&format!("{{key: k, rate_limits: [{limits}]}}"))
}

/// Asserts that a file has this one error.
#[track_caller]
fn check_error(text: &str, message: &str) {
    check_errors(text, &[message]);
}

#[track_caller]
fn check_errors(text: &str, messages: &[&str]) {
    let errors = load_text(text).err().unwrap_or_else(|| panic!("accepted:\n{text}"));
    let messages: Vec<String> = messages.iter().map(|m| format!("limits.yaml:{m}")).collect();
    assert_eq!(errors, messages, "for\n{text}");
}

/// Asserts that each text, put into a file by `file`, has the error next to it.
#[track_caller]
fn check_each_error(file: impl Fn(&str) -> String, table: &[(&str, &str)]) {
    for (text, message) in table {
        check_error(&file(text), message);
    }
}

/// Asserts that a file loads with just these warnings.
#[track_caller]
fn check_warnings(text: &str, messages: &[&str]) {
    let (_, warnings) = load_text(text).unwrap_or_else(|e| panic!("{e:#?}\n{text}"));
    let messages: Vec<String> = messages.iter().map(|m| format!("limits.yaml:{m}")).collect();
    assert_eq!(warnings, messages, "for\n{text}");
}

fn entries(words: &[(&str, &str)]) -> Vec<Entry> {
    words.iter().map(|(key, value)| Entry::new(*key, *value)).collect()
}

/// The rule for a descriptor.
fn rule<'a>(rules: &'a Rules, domain: &str, words: &[(&str, &str)]) -> Option<&'a Rule> {
    match rules.find(domain, &entries(words)) {
        Lookup::Rule(found) => Some(found.rule),
        Lookup::NoRule => None,
        Lookup::UnknownDomain => panic!("{domain} is not known"),
    }
}

/// Rules of domain `d`, one at each path of keys and matchers.
pub(crate) fn rules_at(paths: &[&[(&str, Matcher)]], rule_with: impl Fn(String) -> Rule) -> Rules {
    let mut rules = Rules::default();
    for levels in paths {
        let mut path = "d".to_owned();
        let mut node = rules.root_mut("d");
        for (key, matcher) in *levels {
            path = format!("{path}/{}", segment(key, matcher));
            // The first rule creates the nodes that it shares with others.
            node = node.insert(key, matcher, None).unwrap();
        }
        node.set_rule(rule_with(path));
    }
    rules
}

pub(crate) fn exact(value: &str) -> Matcher {
    Matcher::Exact(value.to_owned())
}

/// The only rule of a file.
#[track_caller]
fn only_rule(text: &str) -> Rule {
    let rules = rules(text);
    let all = rules.rules();
    assert_eq!(all.len(), 1, "for\n{text}");
    (**all[0]).clone()
}

/// The only limit of a file.
#[track_caller]
fn only_limit(text: &str) -> Limit {
    let mut rule = only_rule(text);
    match &mut rule.kind {
        RuleKind::Limits(limits) if limits.len() == 1 => limits.remove(0),
        other => panic!("found {other:?} in\n{text}"),
    }
}

fn window(requests: u32, secs: u64) -> FixedWindow {
    FixedWindow::new(requests, Nanos::from_secs(secs)).unwrap()
}

fn bucket(requests: u32, secs: u64, burst: u32, initial: u32) -> Quota {
    let period = Nanos::from_secs(secs);
    Quota::TokenBucket(TokenBucket::new(requests, period, burst, initial).unwrap())
}
