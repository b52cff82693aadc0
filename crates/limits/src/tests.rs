//! Limits files: what is read from good ones, and one fixture per mistake with its message.

mod files;
mod hostile;
mod limits;
mod map_xml;
mod matching;
mod mistakes;
mod mistakes_of_limits;
mod original;
mod warnings;

use super::{Diagnostic, Loaded, SameDomain, load};
use crate::{Limit, Lookup, Rule, RuleKind, Rules};
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

/// What comes of these files: rules and warnings, or errors. Both as they are printed, without the
/// directory.
fn load_files(
    files: &[(&str, &str)],
    same_domain: SameDomain,
) -> Result<(Rules, Vec<String>), Vec<String>> {
    let dir = directory(files);
    let told = |all: &[Diagnostic]| all.iter().map(|one| without(dir.path(), one)).collect();
    match load(dir.path(), same_domain) {
        Ok(Loaded { rules, warnings, .. }) => Ok((rules, told(&warnings))),
        Err(errors) => Err(told(&errors.0)),
    }
}

fn load_text(text: &str) -> Result<(Rules, Vec<String>), Vec<String>> {
    load_files(&[("limits.yaml", text)], SameDomain::Refuse)
}

/// The rules of a file without mistakes and warnings.
#[track_caller]
fn rules(text: &str) -> Rules {
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

/// That a file has this one mistake.
#[track_caller]
fn check_mistake(text: &str, message: &str) {
    check_mistakes(text, &[message]);
}

#[track_caller]
fn check_mistakes(text: &str, messages: &[&str]) {
    let errors = load_text(text).err().unwrap_or_else(|| panic!("accepted:\n{text}"));
    let messages: Vec<String> = messages.iter().map(|m| format!("limits.yaml:{m}")).collect();
    assert_eq!(errors, messages, "for\n{text}");
}

/// That a file loads with just these warnings.
#[track_caller]
fn check_warnings(text: &str, messages: &[&str]) {
    let (_, warnings) = load_text(text).unwrap_or_else(|e| panic!("{e:#?}\n{text}"));
    let messages: Vec<String> = messages.iter().map(|m| format!("limits.yaml:{m}")).collect();
    assert_eq!(warnings, messages, "for\n{text}");
}

fn entries(words: &[(&str, &str)]) -> Vec<Entry> {
    words.iter().map(|(key, value)| Entry::new(*key, *value)).collect()
}

/// The rule that a descriptor meets.
fn rule<'a>(rules: &'a Rules, domain: &str, words: &[(&str, &str)]) -> Option<&'a Rule> {
    match rules.find(domain, &entries(words)) {
        Lookup::Rule(found) => Some(found.rule),
        Lookup::NoRule => None,
        Lookup::UnknownDomain => panic!("{domain} is not known"),
    }
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
