//! The values that a descriptor matches: `value` or `match`.

use super::context::Diagnostics;
use super::fields::{Fields, Keys, text};
use crate::compiled::{Cidr, Matcher};
use crate::diagnostic::Position;
use crate::document::{Content, Node};
use crate::path::spelling;
use crate::text::listed;

const MATCH: Keys = Keys { map: "a match", known: &["prefix", "cidr", "regex"] };

const RANGES_MAX: usize = 1_000;

pub(super) struct Matching {
    pub(super) matcher: Matcher,
    /// The text that replaces all values, if they share counters.
    pub(super) share: Option<String>,
    pub(super) position: Position,
}

/// Reads `value`, `match` and `share_threshold`.
pub(super) fn read_matching(
    fields: &Fields<'_>,
    diagnostics: &mut Diagnostics<'_>,
) -> Option<Matching> {
    let before = diagnostics.errors.len();
    // As in envoyproxy/ratelimit, an empty value matches any value.
    let value = fields.text("value", diagnostics).filter(|value| !value.is_empty());
    let matched = fields.value("match");
    let shared = fields.flag("share_threshold", diagnostics);
    if value.is_some() && matched.is_some() {
        diagnostics.error(fields.position_of("match"), "`value` and `match` exclude each other");
    }
    let position = matched.map_or(fields.position_of("value"), Node::position);
    let matcher = match (value, matched) {
        (_, Some(node)) => read_match(node, diagnostics),
        (Some(value), None) if value.contains('*') => Some((Matcher::Wildcard(value), position)),
        (Some(value), None) => Some((Matcher::Exact(value), position)),
        (None, None) => Some((Matcher::Any, position)),
    };
    if shared && matches!(matcher, Some((Matcher::Any | Matcher::Exact(_), _))) {
        let message = "`share_threshold` is only for values with a wildcard (`*`) and for `match`";
        diagnostics.error(fields.key_position("share_threshold"), message);
    }
    if diagnostics.errors.len() > before {
        // After an error, the matcher must not become "any value" and be reported as a duplicate.
        return None;
    }
    let (matcher, position) = matcher?;
    let share = shared.then(|| spelling(&matcher));
    Some(Matching { matcher, share, position })
}

fn read_match(node: &Node, diagnostics: &mut Diagnostics<'_>) -> Option<(Matcher, Position)> {
    let fields = Fields::read(node, &MATCH, diagnostics)?;
    let given: Vec<&str> = MATCH.known.iter().copied().filter(|key| fields.has(key)).collect();
    let [kind] = given[..] else {
        let kinds = listed("or", MATCH.known);
        let message = format!("a match needs exactly one of {kinds}, found {}", given.len());
        diagnostics.error(fields.position, message);
        return None;
    };
    let position = fields.position_of(kind);
    let matcher = match kind {
        "prefix" => Matcher::Prefix(fields.required("prefix", diagnostics)?),
        "regex" => Matcher::Regex(fields.required("regex", diagnostics)?.into()),
        _ => Matcher::Cidr(read_ranges(fields.value("cidr")?, diagnostics)?),
    };
    Some((matcher, position))
}

/// One range or a list. Sorted, so that equal ranges have equal paths.
fn read_ranges(node: &Node, diagnostics: &mut Diagnostics<'_>) -> Option<Vec<Cidr>> {
    let items = match &node.content {
        Content::List(items) => items.as_slice(),
        _ => std::slice::from_ref(node),
    };
    if items.is_empty() || items.len() > RANGES_MAX {
        let message = format!("`cidr`: expected 1 to {RANGES_MAX} ranges, found {}", items.len());
        diagnostics.error(node.position(), message);
        return None;
    }
    let mut ranges = Vec::with_capacity(items.len());
    for item in items {
        let Some(text) = text(item, "cidr", diagnostics) else { continue };
        match Cidr::parse(&text) {
            Ok(range) => ranges.push(range),
            Err(error) => diagnostics.error(item.position(), format!("`cidr`: {error}")),
        }
    }
    ranges.sort_unstable();
    ranges.dedup();
    (!ranges.is_empty()).then_some(ranges)
}
