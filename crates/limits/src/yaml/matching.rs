//! Which values a descriptor is for: `value`, or `match`.

use super::document::{Node, Position, Spot};
use super::reader::{Fields, Keys, Reports, text};
use crate::text::{choice, escaped};
use crate::{Cidr, Matcher};
use tidegate_core::fingerprint;

const MATCH: Keys = Keys { of: "a match", known: &["prefix", "cidr", "regex"] };

/// The most ranges in one `cidr`.
const RANGES_MAX: usize = 1_000;

/// The most ranges that a rule's name spells out: eight of IPv6 are some 150 bytes.
const RANGES_SPELT_MAX: usize = 8;

/// What a descriptor says of its values.
pub(super) struct Matching {
    pub(super) matcher: Matcher,
    /// What follows the key in the path; empty for any value.
    spelt: String,
    /// The text that stands for all values, when they share counters.
    pub(super) share: Option<String>,
    pub(super) place: Position,
}

impl Matching {
    /// The part of the path for a key. Spellings are told apart by their `=`, of which no part has
    /// one of its own.
    pub(super) fn segment(&self, key: &str) -> String {
        if self.spelt.is_empty() { key.to_owned() } else { format!("{key}={}", self.spelt) }
    }
}

/// Reads `value`, `match` and `share_threshold`.
pub(super) fn read_matching(fields: &Fields<'_>, reports: &mut Reports<'_>) -> Option<Matching> {
    let before = reports.errors.len();
    // An empty value means any value, as in the original.
    let value = fields.text("value", reports).filter(|value| !value.is_empty());
    let matched = fields.value("match");
    let shared = fields.flag("share_threshold", reports);
    if value.is_some() && matched.is_some() {
        reports.report(fields.place_of("match"), "`value` and `match` exclude each other");
    }
    let place = matched.map_or(fields.place_of("value"), Spot::place);
    let matcher = match (value, matched) {
        (_, Some(spot)) => read_match(spot, reports),
        (Some(value), None) if value.contains('*') => Some((Matcher::Wildcard(value), place)),
        (Some(value), None) => Some((Matcher::Exact(value), place)),
        (None, None) => Some((Matcher::Any, place)),
    };
    if shared && matches!(matcher, Some((Matcher::Any | Matcher::Exact(_), _))) {
        let message = "`share_threshold` is only for values with a wildcard (`*`) and for `match`";
        reports.report(fields.place_of_key("share_threshold"), message);
    }
    if reports.errors.len() > before {
        // Reported; it must not pass for "any value", and be called a duplicate of that.
        return None;
    }
    let (matcher, place) = matcher?;
    let spelt = spelt(&matcher);
    Some(Matching { share: shared.then(|| spelt.clone()), matcher, spelt, place })
}

/// The part of a path for a key and the values of a matcher.
pub fn segment(key: &str, matcher: &Matcher) -> String {
    match matcher {
        Matcher::Any => escaped(key),
        _ => format!("{}={}", escaped(key), spelt(matcher)),
    }
}

fn spelt(matcher: &Matcher) -> String {
    match matcher {
        Matcher::Any => String::new(),
        Matcher::Exact(value) | Matcher::Wildcard(value) => escaped(value),
        Matcher::Prefix(prefix) => format!("prefix={}", escaped(prefix)),
        Matcher::Regex(expression) => format!("regex={}", escaped(expression)),
        Matcher::Cidr(ranges) => format!("cidr={}", escaped(&spelt_ranges(ranges))),
    }
}

/// All ranges, or the first and a hash of all where they are too many for a name.
fn spelt_ranges(ranges: &[Cidr]) -> String {
    let all: Vec<String> = ranges.iter().map(Cidr::to_string).collect();
    if all.len() <= RANGES_SPELT_MAX {
        return all.join(",");
    }
    let hash = fingerprint(all.join(",").as_bytes());
    format!("{},+{}~{hash:032x}", all[0], all.len() - 1)
}

fn read_match(spot: &Spot, reports: &mut Reports<'_>) -> Option<(Matcher, Position)> {
    let fields = Fields::read(spot, &MATCH, reports)?;
    let given: Vec<&str> = MATCH.known.iter().copied().filter(|key| fields.has(key)).collect();
    let [kind] = given[..] else {
        let kinds = choice(MATCH.known);
        let message = format!("a match has one of {kinds}, here it has {}", given.len());
        reports.report(fields.place, message);
        return None;
    };
    let place = fields.place_of(kind);
    let matcher = match kind {
        "prefix" => Matcher::Prefix(fields.required("prefix", reports)?),
        "regex" => Matcher::Regex(fields.required("regex", reports)?.into()),
        _ => Matcher::Cidr(read_ranges(fields.value("cidr")?, reports)?),
    };
    Some((matcher, place))
}

/// One range or a list of them; sorted, so that the same ranges have the same path.
fn read_ranges(spot: &Spot, reports: &mut Reports<'_>) -> Option<Vec<Cidr>> {
    let items = match &spot.node {
        Node::List(items) => items.as_slice(),
        _ => std::slice::from_ref(spot),
    };
    if items.is_empty() || items.len() > RANGES_MAX {
        let message = format!("`cidr`: expected 1 to {RANGES_MAX} ranges, found {}", items.len());
        reports.report(spot.place(), message);
        return None;
    }
    let mut ranges = Vec::with_capacity(items.len());
    for item in items {
        let Some(text) = text(item, "cidr", reports) else { continue };
        match Cidr::parse(&text) {
            Ok(range) => ranges.push(range),
            Err(error) => reports.report(item.place(), format!("`cidr`: {error}")),
        }
    }
    ranges.sort_unstable();
    ranges.dedup();
    (!ranges.is_empty()).then_some(ranges)
}
