//! Which rule callers met before and meet now, found by asking both sides about sample descriptors.
//!
//! Samples are made from all places, whether a rule ends there or not: for each a descriptor that lands
//! there, and what that is with the values of places beside each level that may take its callers: those
//! that only one side has, and for patterns those that match the same value, since their order decides.
//! Regular expressions are not turned around, so what only they decide is not seen.

use super::limits::Kept;
use super::places::{Level, Place, Places};
use super::{Change, Kind};
use crate::{Found, Match, Matcher, Rule, Rules};
use std::collections::BTreeMap;
use std::ptr;
use tidegate_core::Entry;

/// Patterns beside each other that are tried with each other; more would take time by the square.
const SIBLINGS_MAX: usize = 64;
/// Patterns beside each other that are looked through for those.
const SCANNED_MAX: usize = 2_000;
/// Descriptors that are tried before each place has to do with `SIBLINGS_MAX` of the places beside it
/// that came or went. At some 5 us each in a debug build they take 3 seconds.
const VARIANTS_MAX: usize = 600_000;
/// Values that nobody writes a rule for.
const ANY: [&str; 3] = ["~any~", "0", "~"];

/// What callers of a rule on one side meet on the other.
pub(super) struct Counterpart<'r> {
    pub(super) rule: &'r Rule,
    pub(super) kept: Kept,
}

/// What callers of the rule at this place of `of` meet on the other side.
pub(super) fn counterpart<'r>(
    of: &Rules,
    other: &'r Rules,
    place: &Place<'_>,
) -> Option<Counterpart<'r>> {
    let entries = sample(place)?;
    let (here, there) = (find(of, place.domain, &entries)?, find(other, place.domain, &entries)?);
    Some(Counterpart { rule: there.rule, kept: kept(&here, &there) })
}

/// Which counts go on from one rule to the other.
fn kept(a: &Match<'_>, b: &Match<'_>) -> Kept {
    if a.shared == b.shared {
        Kept::of(a.rule.limits(), b.rule.limits())
    } else {
        Kept::none(a.rule.limits(), b.rule.limits())
    }
}

/// Callers that meet another rule, or none, though their old rule and their new one are there before
/// and after.
pub(super) fn moved(
    (old, before): (&Rules, &Places<'_>),
    (new, after): (&Rules, &Places<'_>),
) -> Vec<Change> {
    let siblings = siblings_of(before, after);
    let mut moves: BTreeMap<Move<'_>, (Kept, Vec<Entry>)> = BTreeMap::new();
    let mut tried = 0_usize;
    for (path, place) in before.iter().chain(after) {
        let Some(entries) = sample(place) else { continue };
        let mut most = SIBLINGS_MAX.max(VARIANTS_MAX.saturating_sub(tried));
        for entries in variants(path, place, &entries, &siblings, &mut most) {
            tried += 1;
            let (from, to) = (find(old, place.domain, &entries), find(new, place.domain, &entries));
            let paths = (
                from.as_ref().map(|from| from.rule.path.as_str()),
                to.as_ref().map(|to| to.rule.path.as_str()),
            );
            let has_rule = |side: &Places<'_>, path: Option<&str>| {
                path.is_none_or(|path| side.get(path).is_some_and(|place| place.rule().is_some()))
            };
            // What was added or removed is told there.
            if paths.0 != paths.1 && has_rule(after, paths.0) && has_rule(before, paths.1) {
                let kept = from.zip(to).map_or(Kept::Nothing, |(from, to)| kept(&from, &to));
                moves.entry(paths).or_insert((kept, entries));
            }
        }
    }
    moves
        .into_iter()
        .filter_map(|(paths, (kept, entries))| change(paths, &kept, &entries))
        .collect()
}

/// The paths of the rules that callers met and meet.
type Move<'p> = (Option<&'p str>, Option<&'p str>);

fn change((from, to): Move<'_>, kept: &Kept, entries: &[Entry]) -> Option<Change> {
    let words: Vec<String> = entries.iter().map(|e| format!("{}={}", e.key, e.value)).collect();
    let words = words.join(" ");
    let (what, means) = match (from, to) {
        (Some(from), Some(to)) => (
            "another rule goes first",
            format!("callers such as {words} meet {to} now instead of {from}{kept}"),
        ),
        (Some(from), None) => (
            "takes fewer callers",
            format!(
                "callers such as {words} met {from}, and meet nothing now, since a place that goes \
                 first takes them"
            ),
        ),
        (None, Some(to)) => (
            "takes more callers",
            format!("callers such as {words} met nothing, and meet {to} now"),
        ),
        (None, None) => return None,
    };
    let path = to.or(from)?.to_owned();
    Some(Change { path, kind: Kind::Changed, what: what.to_owned(), means })
}

fn find<'r>(rules: &'r Rules, domain: &str, entries: &[Entry]) -> Option<Match<'r>> {
    match rules.find(domain, entries) {
        Found::Rule(found) => Some(found),
        Found::NoRule | Found::UnknownDomain => None,
    }
}

/// A descriptor that lands at the place, if one is found.
fn sample(place: &Place<'_>) -> Option<Vec<Entry>> {
    let mut entries = Vec::with_capacity(place.levels.len());
    let mut node = place.root;
    for Level { at, .. } in &place.levels {
        let tries = values_of(at.matcher).into_iter().map(|value| Entry::new(at.key, value));
        let lands = |entry: &Entry| node.next(entry).is_some_and(|next| ptr::eq(next, at.node));
        entries.push(tries.into_iter().find(lands)?);
        node = at.node;
    }
    Some(entries)
}

/// The places of one key beside each other, on both sides.
#[derive(Default)]
struct Siblings<'r> {
    /// Those for some values that only one side has.
    lone: Vec<&'r Matcher>,
    /// Patterns by their paths, with `*` where that says the same.
    patterns: BTreeMap<&'r str, (&'r Matcher, Option<String>)>,
}

/// By the path up to the key.
type AllSiblings<'r> = BTreeMap<&'r str, Siblings<'r>>;

fn siblings_of<'r>(before: &'r Places<'_>, after: &'r Places<'_>) -> AllSiblings<'r> {
    let mut all = AllSiblings::new();
    for (these, those) in [(before, after), (after, before)] {
        for (path, place) in these {
            let Some(Level { at, key_end, .. }) = place.levels.last() else { continue };
            let siblings = all.entry(&path[..*key_end]).or_default();
            if !matches!(at.matcher, Matcher::Any | Matcher::Exact(_)) {
                siblings.patterns.insert(path, (at.matcher, wildcard_of(at.matcher)));
            }
            if at.matcher != &Matcher::Any && !those.contains_key(path) {
                siblings.lone.push(at.matcher);
            }
        }
    }
    all
}

/// A sample, and what it is with the value of a place beside one of its levels that may take it: no
/// place takes callers from one for an exact value. Goes by `most` for places that came or went.
fn variants(
    path: &str,
    place: &Place<'_>,
    entries: &[Entry],
    all: &AllSiblings<'_>,
    most: &mut usize,
) -> Vec<Vec<Entry>> {
    let mut variants = vec![entries.to_vec()];
    let mut add = |index: usize, value: String| {
        let mut variant = entries.to_vec();
        variant[index].value = value;
        variants.push(variant);
    };
    for (index, Level { at, key_end, end }) in place.levels.iter().enumerate() {
        let Some(siblings) = all.get(&path[..*key_end]) else { continue };
        if matches!(at.matcher, Matcher::Exact(_)) {
            continue;
        }
        for value in siblings.lone.iter().flat_map(|lone| values_of(lone)).take(*most) {
            *most -= 1;
            add(index, value);
        }
        if at.matcher == &Matcher::Any {
            continue;
        }
        let (own, wildcard) = (&path[..*end], wildcard_of(at.matcher));
        let others = siblings.patterns.iter().take(SCANNED_MAX).filter(|(sibling, (_, other))| {
            **sibling != own && may_overlap(wildcard.as_deref(), other.as_deref())
        });
        for (_, (sibling, other)) in others.take(SIBLINGS_MAX) {
            let both = wildcard.as_deref().zip(other.as_deref());
            for value in values_of_both((at.matcher, sibling), both) {
                add(index, value);
            }
        }
    }
    variants
}

/// Values that a place may be for.
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
        // What is written is as good a guess as any.
        Matcher::Regex(expression) => expression.split('|').map(str::to_owned).collect(),
    }
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

/// Values that both patterns may match; with both as they are with `*`, if they can be.
fn values_of_both((a, b): (&Matcher, &Matcher), wildcards: Option<(&str, &str)>) -> Vec<String> {
    let mut values = [values_of(a), values_of(b)].concat();
    if let Some((a, b)) = wildcards {
        values.push(a.replace('*', &b.replace('*', "")));
        values.push(b.replace('*', &a.replace('*', "")));
    }
    values
}

/// A pattern with `*`, if it is or may be written as one.
fn wildcard_of(matcher: &Matcher) -> Option<String> {
    match matcher {
        Matcher::Wildcard(pattern) => Some(pattern.clone()),
        Matcher::Prefix(prefix) => Some(format!("{prefix}*")),
        _ => None,
    }
}

/// A part of a path as it was written. The reverse of [`escaped`](crate::text::escaped).
pub fn decoded(part: &str) -> String {
    part.replace("%2F", "/").replace("%3D", "=").replace("%23", "#").replace("%25", "%")
}
