//! Which rule callers met before and meet now, found by asking both sides about sample descriptors.
//!
//! Samples are made from the paths of the rules: for each rule a descriptor that meets it, each
//! beginning of that, and for patterns beside each other values that two of them match, since their
//! order decides. Regular expressions are not turned around, so what only they decide is not seen.

use super::{Change, Kind, Snapshot};
use std::collections::BTreeMap;
use tidegate_core::{Entry, Found, Rule, Rules};

/// Patterns beside each other that are tried with each other; more would take time by the square.
const SIBLINGS_MAX: usize = 64;
/// Patterns beside each other that are looked through for those.
const SCANNED_MAX: usize = 2_000;
/// Descriptors that are tried to meet one rule.
const TRIES_MAX: usize = 64;
/// A value that nobody writes a rule for.
const ANY: &str = "~any~";

/// The rule that callers of the rule at `path` meet on the other side.
pub(super) fn counterpart<'r>(of: &Rules, other: &'r Rules, path: &str) -> Option<&'r Rule> {
    let (domain, entries) = sample(of, path)?;
    find(other, &domain, &entries)
}

/// Callers that meet another rule, or none, though their old rule and their new one are there before
/// and after.
pub(super) fn moved(
    (old, before): (&Rules, &Snapshot),
    (new, after): (&Rules, &Snapshot),
) -> Vec<Change> {
    let patterns = patterns_of(before, after);
    let mut moves: BTreeMap<(Option<&str>, Option<&str>), Vec<Entry>> = BTreeMap::new();
    for (rules, snapshot) in [(old, before), (new, after)] {
        for path in snapshot.rules.keys() {
            let Some((domain, entries)) = sample(rules, path) else { continue };
            for entries in variants(path, &entries, &patterns) {
                let from = find(old, &domain, &entries).map(|rule| rule.path.as_str());
                let to = find(new, &domain, &entries).map(|rule| rule.path.as_str());
                let is_in = |side: &Snapshot, path: Option<&str>| {
                    path.is_none_or(|path| side.rules.contains_key(path))
                };
                // What was added or removed is told there.
                if from != to && is_in(after, from) && is_in(before, to) {
                    moves.entry((from, to)).or_insert(entries);
                }
            }
        }
    }
    moves.into_iter().filter_map(|((from, to), entries)| change(from, to, &entries)).collect()
}

fn change(from: Option<&str>, to: Option<&str>, entries: &[Entry]) -> Option<Change> {
    let words: Vec<String> = entries.iter().map(|e| format!("{}={}", e.key, e.value)).collect();
    let words = words.join(" ");
    let means = match (from, to) {
        (Some(from), Some(to)) => {
            format!("callers such as {words} meet {to} now instead of {from}")
        }
        (Some(from), None) => format!(
            "callers such as {words} met {from}, and meet nothing now, since a place that goes \
             first takes them"
        ),
        (None, Some(to)) => format!("callers such as {words} met nothing, and meet {to} now"),
        (None, None) => return None,
    };
    let what = "another rule goes first".to_owned();
    Some(Change { path: to.or(from)?.to_owned(), kind: Kind::Changed, what, means })
}

fn find<'r>(rules: &'r Rules, domain: &str, entries: &[Entry]) -> Option<&'r Rule> {
    match rules.find(domain, entries) {
        Found::Rule(found) => Some(found.rule),
        Found::NoRule | Found::UnknownDomain => None,
    }
}

/// The patterns of all places, as paths spell them and with `*` where that says the same, by the path
/// before them and their key.
type Patterns = BTreeMap<String, BTreeMap<String, Option<String>>>;

fn patterns_of(before: &Snapshot, after: &Snapshot) -> Patterns {
    let mut patterns = Patterns::new();
    for path in before.rules.keys().chain(after.rules.keys()) {
        for end in ends(path) {
            if let Some((place, pattern)) = pattern_at(&path[..end]) {
                let siblings: &mut BTreeMap<_, _> = patterns.entry(place.to_owned()).or_default();
                siblings.insert(pattern.to_owned(), wildcard_of(pattern));
            }
        }
    }
    patterns
}

/// Where each part of a path after the domain ends.
fn ends(path: &str) -> impl Iterator<Item = usize> {
    path.match_indices('/').skip(1).map(|(at, _)| at).chain([path.len()])
}

/// The place and the pattern of the last part of a path, if it has one: a value with a `*`, or one
/// with a kind before another `=`.
fn pattern_at(path: &str) -> Option<(&str, &str)> {
    let last = path.rfind('/')? + 1;
    let at = last + path[last..].find('=')?;
    let (place, value) = (&path[..at], &path[at + 1..]);
    value.contains(['*', '=']).then_some((place, value))
}

/// A descriptor that meets the rule at `path`, if one is found.
fn sample(rules: &Rules, path: &str) -> Option<(String, Vec<Entry>)> {
    let mut segments = path.split('/');
    let domain = decoded(segments.next()?);
    let mut tries = vec![Vec::new()];
    for segment in segments {
        let (key, values) = match segment.split_once('=') {
            Some((key, value)) => (decoded(key), values_of(value)),
            None => (decoded(segment), vec![ANY.to_owned()]),
        };
        tries = tries
            .into_iter()
            .flat_map(|before: Vec<Entry>| {
                values.iter().map({
                    let key = &key;
                    move |value| [&before[..], &[Entry::new(key, value)]].concat()
                })
            })
            .take(TRIES_MAX)
            .collect();
    }
    let meets =
        |entries: &Vec<Entry>| find(rules, &domain, entries).is_some_and(|rule| rule.path == path);
    let entries = tries.into_iter().find(meets)?;
    Some((domain, entries))
}

/// Values that a place may be for, from what its path has behind the key.
fn values_of(spelt: &str) -> Vec<String> {
    match spelt.split_once('=') {
        Some(("prefix", prefix)) => vec![decoded(prefix), decoded(prefix) + "x"],
        Some(("cidr", ranges)) => {
            let ranges = decoded(ranges);
            ranges
                .split(',')
                .filter_map(|range| range.split('/').next())
                .map(str::to_owned)
                .collect()
        }
        // What is written is as good a guess as any.
        Some((_, expression)) => decoded(expression).split('|').map(str::to_owned).collect(),
        None => {
            let value = decoded(spelt);
            let mut values = vec![value.replace('*', ""), value.replace('*', "x"), value];
            values.dedup();
            values
        }
    }
}

/// A sample, its beginnings, and what it is with a value in place of each pattern that another
/// pattern matches as well.
fn variants(path: &str, entries: &[Entry], patterns: &Patterns) -> Vec<Vec<Entry>> {
    let mut variants: Vec<Vec<Entry>> =
        (1..=entries.len()).map(|n| entries[..n].to_vec()).collect();
    for (index, end) in ends(path).enumerate().take(entries.len()) {
        let Some((place, own)) = pattern_at(&path[..end]) else { continue };
        let Some(siblings) = patterns.get(place) else { continue };
        let wildcard = wildcard_of(own);
        let others = siblings.iter().take(SCANNED_MAX).filter(|(sibling, other)| {
            sibling.as_str() != own && may_overlap(wildcard.as_deref(), other.as_deref())
        });
        for (sibling, _) in others.take(SIBLINGS_MAX) {
            for both in values_of_both(own, sibling) {
                let mut variant = entries.to_vec();
                variant[index].value = both;
                variants.push(variant);
            }
        }
    }
    variants
}

/// Whether a value may match both, by what is before the first `*` and after the last.
fn may_overlap(a: Option<&str>, b: Option<&str>) -> bool {
    let (Some(a), Some(b)) = (a, b) else { return true };
    let head = |pattern: &str| pattern.find('*').unwrap_or(pattern.len());
    let tail = |pattern: &str| pattern.rfind('*').map_or(0, |at| at + 1);
    let (head_a, head_b) = (&a[..head(a)], &b[..head(b)]);
    let (tail_a, tail_b) = (&a[tail(a)..], &b[tail(b)..]);
    (head_a.starts_with(head_b) || head_b.starts_with(head_a))
        && (tail_a.ends_with(tail_b) || tail_b.ends_with(tail_a))
}

/// Values that both patterns may match.
fn values_of_both(a: &str, b: &str) -> Vec<String> {
    let mut values = [values_of(a), values_of(b)].concat();
    if let (Some(a), Some(b)) = (wildcard_of(a), wildcard_of(b)) {
        values.push(a.replace('*', &b.replace('*', "")));
        values.push(b.replace('*', &a.replace('*', "")));
    }
    values
}

/// A pattern with `*`, if it is or may be written as one.
fn wildcard_of(spelt: &str) -> Option<String> {
    match spelt.split_once('=') {
        None => Some(decoded(spelt)),
        Some(("prefix", prefix)) => Some(decoded(prefix) + "*"),
        Some(_) => None,
    }
}

/// A part of a path as it was written. The reverse of [`escaped`](crate::rules::escaped).
pub(crate) fn decoded(part: &str) -> String {
    part.replace("%2F", "/").replace("%3D", "=").replace("%23", "#").replace("%25", "%")
}
