//! Finds callers who meet a different rule, by looking up sample descriptors on both sides.
//!
//! Each path gives a sample that leads to its node, and variants of it: values of sibling branches that may
//! take callers from one of its levels. These are siblings that only one side has, and patterns that match the
//! same value, because their order decides. No values are generated from regular expressions, so changes
//! that depend on them alone are not found.

use super::limits::KeptCounts;
use super::tree_paths::{Level, TreePath, TreePaths};
use super::{Change, ChangeKind};
use crate::compiled::{Lookup, Match, Matcher, Rule, Rules};
use crate::describe::key_values;
use std::collections::BTreeMap;
use std::ptr;
use tidegate_core::Entry;

/// The most siblings that are tried with a pattern; time grows with the square of their number.
const SIBLINGS_MAX: usize = 64;
/// The most siblings that are searched for those.
const SCANNED_MAX: usize = 2_000;
/// The number of descriptors after which each path tries only `SIBLINGS_MAX` values of siblings that exist
/// on one side. At some 5 us each in a debug build they take 3 seconds.
const VARIANTS_MAX: usize = 600_000;
/// Values that no rule is likely to match.
const ANY: [&str; 3] = ["~any~", "0", "~"];

/// The rule on the other side for the callers of a rule.
pub(super) struct Counterpart<'r> {
    pub(super) rule: &'r Rule,
    pub(super) kept: KeptCounts,
}

/// The rule of `other` for callers of the rule at this path of `of`.
pub(super) fn counterpart<'r>(
    of: &Rules,
    other: &'r Rules,
    path: &TreePath<'_>,
) -> Option<Counterpart<'r>> {
    let entries = sample(path)?;
    let (here, there) = (find(of, path.domain, &entries)?, find(other, path.domain, &entries)?);
    Some(Counterpart { rule: there.rule, kept: KeptCounts::of(&here, &there) })
}

/// Callers who meet another rule or none, although both sides have their old rule and their new one.
pub(super) fn moved(
    (old, before): (&Rules, &TreePaths<'_>),
    (new, after): (&Rules, &TreePaths<'_>),
) -> Vec<Change> {
    let siblings = siblings_of(before, after);
    let mut moves: BTreeMap<Move<'_>, (KeptCounts, Vec<Entry>)> = BTreeMap::new();
    let mut tried = 0_usize;
    for (text, path) in before.iter().chain(after) {
        let Some(entries) = sample(path) else { continue };
        let mut unpaired_max = SIBLINGS_MAX.max(VARIANTS_MAX.saturating_sub(tried));
        for entries in variants(text, path, &entries, &siblings, &mut unpaired_max) {
            tried += 1;
            let (from, to) = (find(old, path.domain, &entries), find(new, path.domain, &entries));
            let paths = (
                from.as_ref().map(|from| from.rule.path.as_str()),
                to.as_ref().map(|to| to.rule.path.as_str()),
            );
            let has_rule = |side: &TreePaths<'_>, path: Option<&str>| {
                path.is_none_or(|path| side.get(path).is_some_and(|path| path.rule().is_some()))
            };
            // Rules that were added or removed are reported by themselves.
            if paths.0 != paths.1 && has_rule(after, paths.0) && has_rule(before, paths.1) {
                let kept = from
                    .zip(to)
                    .map_or(KeptCounts::Nothing, |(from, to)| KeptCounts::of(&from, &to));
                moves.entry(paths).or_insert((kept, entries));
            }
        }
    }
    moves
        .into_iter()
        .filter_map(|(paths, (kept, entries))| change(paths, &kept, &entries))
        .collect()
}

/// The paths of the old and the new rule.
type Move<'p> = (Option<&'p str>, Option<&'p str>);

fn change((from, to): Move<'_>, kept: &KeptCounts, entries: &[Entry]) -> Option<Change> {
    let callers = key_values(entries);
    let (what, means) = match (from, to) {
        (Some(from), Some(to)) => (
            "another rule matches first",
            format!("callers such as {callers} meet {to} now instead of {from}{kept}"),
        ),
        (Some(from), None) => (
            "takes fewer callers",
            format!(
                "callers such as {callers} met {from}, and meet nothing now: a branch without a \
                 rule \
                 matches first"
            ),
        ),
        (None, Some(to)) => (
            "takes more callers",
            format!("callers such as {callers} met nothing, and meet {to} now"),
        ),
        (None, None) => return None,
    };
    Some(Change::new(to.or(from)?, ChangeKind::Changed, what, means))
}

fn find<'r>(rules: &'r Rules, domain: &str, entries: &[Entry]) -> Option<Match<'r>> {
    match rules.find(domain, entries) {
        Lookup::Rule(found) => Some(found),
        Lookup::NoRule | Lookup::UnknownDomain => None,
    }
}

/// A descriptor that leads to the node of the path, if one is found.
fn sample(path: &TreePath<'_>) -> Option<Vec<Entry>> {
    let mut entries = Vec::with_capacity(path.levels.len());
    let mut node = path.root;
    for Level { child, .. } in &path.levels {
        let tries = values_of(child.matcher).into_iter().map(|value| Entry::new(child.key, value));
        let leads =
            |entry: &Entry| node.next(entry).is_some_and(|next| ptr::eq(next.node, child.node));
        entries.push(tries.into_iter().find(leads)?);
        node = child.node;
    }
    Some(entries)
}

/// The branches of one node and key, of both sides.
#[derive(Default)]
struct Siblings<'r> {
    /// Matchers that only one side has, other than for any value.
    unpaired: Vec<&'r Matcher>,
    /// Patterns by path, each with its equivalent wildcard if there is one.
    patterns: BTreeMap<&'r str, (&'r Matcher, Option<String>)>,
}

/// Siblings by their common path, including the key.
type AllSiblings<'r> = BTreeMap<&'r str, Siblings<'r>>;

fn siblings_of<'r>(before: &'r TreePaths<'_>, after: &'r TreePaths<'_>) -> AllSiblings<'r> {
    let mut all = AllSiblings::new();
    for (these, those) in [(before, after), (after, before)] {
        for (text, path) in these {
            let Some(Level { child, key_end, .. }) = path.levels.last() else { continue };
            let siblings = all.entry(&text[..*key_end]).or_default();
            if !matches!(child.matcher, Matcher::Any | Matcher::Exact(_)) {
                siblings.patterns.insert(text, (child.matcher, wildcard_of(child.matcher)));
            }
            if child.matcher != &Matcher::Any && !those.contains_key(text) {
                siblings.unpaired.push(child.matcher);
            }
        }
    }
    all
}

/// A sample, and the sample with the values of siblings at each level. Exact values have no variants, because
/// they always win. `unpaired_max` is the number of values to try of siblings that only one side has.
fn variants(
    text: &str,
    path: &TreePath<'_>,
    entries: &[Entry],
    all: &AllSiblings<'_>,
    unpaired_max: &mut usize,
) -> Vec<Vec<Entry>> {
    let mut variants = vec![entries.to_vec()];
    let mut add = |index: usize, value: String| {
        let mut variant = entries.to_vec();
        variant[index].value = value;
        variants.push(variant);
    };
    for (index, Level { child, key_end, end }) in path.levels.iter().enumerate() {
        let Some(siblings) = all.get(&text[..*key_end]) else { continue };
        if matches!(child.matcher, Matcher::Exact(_)) {
            continue;
        }
        for value in
            siblings.unpaired.iter().flat_map(|unpaired| values_of(unpaired)).take(*unpaired_max)
        {
            *unpaired_max -= 1;
            add(index, value);
        }
        if child.matcher == &Matcher::Any {
            continue;
        }
        let (own, wildcard) = (&text[..*end], wildcard_of(child.matcher));
        let others = siblings.patterns.iter().take(SCANNED_MAX).filter(|(sibling, (_, other))| {
            **sibling != own && may_overlap(wildcard.as_deref(), other.as_deref())
        });
        for (_, (sibling, other)) in others.take(SIBLINGS_MAX) {
            let both = wildcard.as_deref().zip(other.as_deref());
            for value in values_of_both((child.matcher, sibling), both) {
                add(index, value);
            }
        }
    }
    variants
}

/// Values that a matcher is likely to match.
fn values_of(matcher: &Matcher) -> Vec<String> {
    match matcher {
        Matcher::Any => ANY.map(str::to_owned).to_vec(),
        Matcher::Exact(value) => vec![value.clone()],
        Matcher::Wildcard(pattern) => {
            let mut values =
                vec![pattern.replace('*', ""), pattern.replace('*', "x"), pattern.clone()];
            values.dedup();
            values
        }
        Matcher::Prefix(prefix) => vec![prefix.clone(), format!("{prefix}x")],
        Matcher::Cidr(ranges) => {
            let first = |range: String| range.split('/').next().map(str::to_owned);
            ranges.iter().filter_map(|range| first(range.to_string())).collect()
        }
        // A guess: expressions are often lists of plain values.
        Matcher::Regex(expression) => expression.split('|').map(str::to_owned).collect(),
    }
}

/// Whether a value may match both, judged by the text before the first `*` and after the last.
fn may_overlap(a: Option<&str>, b: Option<&str>) -> bool {
    let (Some(a), Some(b)) = (a, b) else { return true };
    let head = |pattern: &str| pattern.find('*').unwrap_or(pattern.len());
    let tail = |pattern: &str| pattern.rfind('*').map_or(0, |at| at + 1);
    let (head_a, head_b) = (&a[..head(a)], &b[..head(b)]);
    let (tail_a, tail_b) = (&a[tail(a)..], &b[tail(b)..]);
    (head_a.starts_with(head_b) || head_b.starts_with(head_a))
        && (tail_a.ends_with(tail_b) || tail_b.ends_with(tail_a))
}

/// Values that both patterns may match. `wildcards` are their equivalents, if both have one.
fn values_of_both((a, b): (&Matcher, &Matcher), wildcards: Option<(&str, &str)>) -> Vec<String> {
    let mut values = [values_of(a), values_of(b)].concat();
    if let Some((a, b)) = wildcards {
        values.push(a.replace('*', &b.replace('*', "")));
        values.push(b.replace('*', &a.replace('*', "")));
    }
    values
}

/// The pattern as a wildcard, if it has an equivalent one.
fn wildcard_of(matcher: &Matcher) -> Option<String> {
    match matcher {
        Matcher::Wildcard(pattern) => Some(pattern.clone()),
        Matcher::Prefix(prefix) => Some(format!("{prefix}*")),
        _ => None,
    }
}
