//! Reading maps whose keys are known: each value by its type, every mistake with its place.

use super::document::{Key, Node, Position, Spot};
use crate::report::RuleError;
use crate::text::{shortened, suggestion};
use std::path::Path;

/// The keys of envoyproxy/ratelimit, and where each has its effect. It takes any of them anywhere.
const ORIGINAL: [(&str, &str); 16] = [
    ("domain", "the file"),
    ("descriptors", "a descriptor or the file"),
    ("key", "a descriptor"),
    ("value", "a descriptor"),
    ("rate_limit", "a descriptor"),
    ("shadow_mode", "a descriptor"),
    ("quota_mode", "a descriptor"),
    ("detailed_metric", "a descriptor"),
    ("value_to_metric", "a descriptor"),
    ("share_threshold", "a descriptor"),
    ("metadata", "a descriptor"),
    ("unit", "rate_limit"),
    ("requests_per_unit", "rate_limit"),
    ("unlimited", "rate_limit"),
    ("name", "rate_limit"),
    ("replaces", "rate_limit"),
];

/// The keys that a map may have.
pub(super) struct Keys {
    /// What the map is, for messages: "a descriptor".
    pub(super) of: &'static str,
    pub(super) known: &'static [&'static str],
}

/// The other keys, each with the map that it is for.
const OTHERS: [(&str, &str); 15] = [
    ("match", "a descriptor"),
    ("rate_limits", "a descriptor"),
    ("algorithm", "rate_limit"),
    ("requests", "rate_limit"),
    ("period", "rate_limit"),
    ("burst", "rate_limit"),
    ("initial", "rate_limit"),
    ("timezone", "rate_limit"),
    ("borrow", "rate_limit"),
    ("exact", "rate_limit"),
    ("reset", "rate_limit"),
    ("count_denied", "rate_limit or the file"),
    ("prefix", "match"),
    ("cidr", "match"),
    ("regex", "match"),
];

/// Collects what is to be said of one file.
pub(super) struct Reports<'a> {
    pub(super) file: &'a Path,
    pub(super) source: &'a str,
    pub(super) errors: Vec<RuleError>,
    pub(super) warnings: Vec<RuleError>,
}

impl Reports<'_> {
    /// A mistake.
    pub(super) fn report(&mut self, place: Position, message: impl Into<String>) {
        let error = self.at(place, message.into());
        self.errors.push(error);
    }

    /// No mistake, but without effect.
    pub(super) fn warn(&mut self, place: Position, message: impl Into<String>) {
        let warning = self.at(place, message.into());
        self.warnings.push(warning);
    }

    fn at(&self, place: Position, message: String) -> RuleError {
        RuleError { file: self.file.to_owned(), place: Some(place), message }
    }

    /// That the value of `key` is of the wrong type.
    pub(super) fn expected(&mut self, spot: &Spot, key: &str, what: &str) {
        let found = spot.describe(self.source);
        self.report(spot.place(), format!("`{key}`: expected {what}, found {found}"));
    }
}

/// A map whose keys have been checked.
pub(super) struct Fields<'a> {
    pub(super) place: Position,
    entries: &'a [(Key, Spot)],
}

impl<'a> Fields<'a> {
    /// Takes `spot` as a map and reports the keys that it should not have.
    pub(super) fn read(spot: &'a Spot, keys: &Keys, reports: &mut Reports<'_>) -> Option<Self> {
        let Node::Map(entries) = &spot.node else {
            let found = spot.describe(reports.source);
            reports.report(spot.place(), format!("expected {}, found {found}", keys.of));
            return None;
        };
        for (key, _) in entries {
            let name = key.name.as_str();
            if keys.known.contains(&name) {
                continue;
            }
            match home(&ORIGINAL, name) {
                Some(home) => reports.warn(
                    key.place(),
                    format!(
                        "`{name}` is known but has no effect in {}; it belongs in {home}",
                        keys.of
                    ),
                ),
                None => reports.report(key.place(), unknown_key(name, keys)),
            }
        }
        // A block map starts at its first key, which is where a reader looks.
        let place = entries.first().map_or(spot.place(), |(key, _)| key.place());
        Some(Fields { place, entries })
    }

    /// The value of `key`; a null counts as absent, as it does in the original.
    pub(super) fn value(&self, key: &str) -> Option<&'a Spot> {
        let (_, value) = self.entries.iter().find(|(known, _)| known.name == key)?;
        (!matches!(value.node, Node::Null)).then_some(value)
    }

    /// The place of the value of `key`, or of the map when it is not there.
    pub(super) fn place_of(&self, key: &str) -> Position {
        let found = self.entries.iter().find(|(known, _)| known.name == key);
        found.map_or(self.place, |(_, value)| value.place())
    }

    /// The place of `key` itself, or of the map when it is not there.
    pub(super) fn place_of_key(&self, key: &str) -> Position {
        let found = self.entries.iter().find(|(known, _)| known.name == key);
        found.map_or(self.place, |(known, _)| known.place())
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// Whether `key` is there with nothing after it.
    pub(super) fn is_empty(&self, key: &str) -> bool {
        !self.has(key) && self.entries.iter().any(|(known, _)| known.name == key)
    }

    /// A string.
    pub(super) fn text(&self, key: &str, reports: &mut Reports<'_>) -> Option<String> {
        text(self.value(key)?, key, reports)
    }

    /// A string that must be there and not empty.
    pub(super) fn required(&self, key: &str, reports: &mut Reports<'_>) -> Option<String> {
        let text = self.text(key, reports);
        let wrong_type = text.is_none() && self.has(key);
        let text = text.filter(|text| !text.is_empty());
        if text.is_none() && !wrong_type {
            reports.report(self.place_of(key), format!("`{key}` must be there and not empty"));
        }
        text
    }

    pub(super) fn flag(&self, key: &str, reports: &mut Reports<'_>) -> bool {
        self.truth(key, reports).unwrap_or(false)
    }

    /// A truth value, if there is one.
    pub(super) fn truth(&self, key: &str, reports: &mut Reports<'_>) -> Option<bool> {
        let spot = self.value(key)?;
        match &spot.node {
            Node::Bool(value) => Some(*value),
            _ => {
                reports.expected(spot, key, "true or false");
                None
            }
        }
    }

    pub(super) fn number(&self, key: &str, reports: &mut Reports<'_>) -> Option<u32> {
        let spot = self.value(key)?;
        let number = match &spot.node {
            Node::Int(number) => u32::try_from(*number).ok(),
            _ => None,
        };
        if number.is_none() {
            reports.expected(spot, key, "a whole number from 0 to 4294967295");
        }
        number
    }

    pub(super) fn list(&self, key: &str, reports: &mut Reports<'_>) -> &'a [Spot] {
        match self.value(key).map(|spot| (spot, &spot.node)) {
            None => &[],
            Some((_, Node::List(items))) => items,
            Some((spot, _)) => {
                reports.expected(spot, key, "a list");
                &[]
            }
        }
    }
}

/// A string. A plain number or truth value is the text that is written, as in the original, so
/// `007` is not `7`. Plain numbers with a fraction are refused, as there.
pub(super) fn text(spot: &Spot, key: &str, reports: &mut Reports<'_>) -> Option<String> {
    match &spot.node {
        Node::Text(text) => return Some(text.clone()),
        Node::Bool(_) | Node::Int(_) => {
            if let Some(written) = spot.written(reports.source) {
                return Some(written.to_owned());
            }
            reports.expected(spot, key, "a string (put it in quotes)");
        }
        Node::Float(_) => reports.expected(spot, key, "a string (put it in quotes)"),
        Node::Null | Node::List(_) | Node::Map(_) => reports.expected(spot, key, "a string"),
    }
    None
}

fn home(keys: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    keys.iter().find(|(key, _)| *key == name).map(|(_, home)| *home)
}

fn unknown_key(name: &str, keys: &Keys) -> String {
    let known = keys.known.join(", ");
    let key = shortened(name);
    match home(&OTHERS, name) {
        Some(home) => format!("unknown key `{key}` in {}; it belongs in {home}", keys.of),
        None => {
            let meant = suggestion(name, keys.known);
            format!("unknown key `{key}` in {}{meant}; expected {known}", keys.of)
        }
    }
}
