//! Reading maps whose keys are known: each value by its type, every mistake with its place.

use super::RuleError;
use super::document::{Node, Place, place};
use serde_saphyr::Spanned;
use std::path::Path;

/// Collects the mistakes of one file.
pub(super) struct Reports<'a> {
    pub(super) file: &'a Path,
    pub(super) source: &'a str,
    pub(super) errors: &'a mut Vec<RuleError>,
}

impl Reports<'_> {
    pub(super) fn report(&mut self, place: Place, message: impl Into<String>) {
        self.errors.push(RuleError {
            file: self.file.to_owned(),
            place: Some(place),
            message: message.into(),
        });
    }

    /// Whether the source has just this word at `place`.
    fn is_written(&self, word: &str, (line, column): Place) -> bool {
        let line = usize::try_from(line).ok().and_then(|line| line.checked_sub(1));
        let line = line.and_then(|line| self.source.lines().nth(line)).unwrap_or_default();
        let skip = usize::try_from(column).unwrap_or(usize::MAX).saturating_sub(1);
        let rest: String = line.chars().skip(skip).collect();
        let after = rest.strip_prefix(word).map(|after| after.chars().next());
        after.is_some_and(|next| !next.is_some_and(|c| c.is_alphanumeric() || ".-_+".contains(c)))
    }

    fn expected(&mut self, node: &Spanned<Node>, key: &str, what: &str) {
        let found = node.value.describe();
        self.report(place(node), format!("`{key}`: expected {what}, found {found}"));
    }
}

/// The keys that a map may have.
pub(super) struct Keys {
    /// What the map is, for messages: "a descriptor".
    pub(super) of: &'static str,
    pub(super) known: &'static [&'static str],
    /// Keys of envoyproxy/ratelimit that mean something this version does not do.
    pub(super) unsupported: &'static [&'static str],
}

/// A map whose keys have been checked.
pub(super) struct Fields<'a> {
    pub(super) place: Place,
    entries: &'a [(Spanned<String>, Spanned<Node>)],
}

impl<'a> Fields<'a> {
    /// Takes `node` as a map and reports the keys that it should not have.
    pub(super) fn read(
        node: &'a Spanned<Node>,
        keys: &Keys,
        reports: &mut Reports<'_>,
    ) -> Option<Fields<'a>> {
        let Node::Map(entries) = &node.value else {
            let found = node.value.describe();
            reports.report(place(node), format!("expected {}, found {found}", keys.of));
            return None;
        };
        for (key, _) in entries {
            let name = key.value.as_str();
            if keys.unsupported.contains(&name) {
                let message = format!("`{name}` is not supported by this version of tidegate");
                reports.report(place(key), message);
            } else if !keys.known.contains(&name) {
                reports.report(place(key), unknown_key(name, keys));
            }
        }
        // A block map starts at its first key, which is where a reader looks.
        let first = entries.first();
        Some(Fields { place: first.map_or(place(node), |(key, _)| place(key)), entries })
    }

    /// The value of `key`; a null counts as absent, as it does in the original.
    pub(super) fn value(&self, key: &str) -> Option<&'a Spanned<Node>> {
        let (_, value) = self.entries.iter().find(|(name, _)| name.value == key)?;
        (!matches!(value.value, Node::Null)).then_some(value)
    }

    /// The place of `key`, or of the map when it is not there.
    pub(super) fn place_of(&self, key: &str) -> Place {
        let found = self.entries.iter().find(|(name, _)| name.value == key);
        found.map_or(self.place, |(_, value)| place(value))
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// A string. A plain number is taken when it is written as it reads, such as `404`; anything
    /// that YAML turns into something else (`007`, `1.10`, `yes`) must be quoted.
    pub(super) fn text(&self, key: &str, reports: &mut Reports<'_>) -> Option<String> {
        let node = self.value(key)?;
        match &node.value {
            Node::Text(text) => Some(text.clone()),
            Node::Int(number) if reports.is_written(&number.to_string(), place(node)) => {
                Some(number.to_string())
            }
            Node::Int(_) | Node::Bool(_) | Node::Float(_) => {
                reports.expected(node, key, "a string (put it in quotes)");
                None
            }
            _ => {
                reports.expected(node, key, "a string");
                None
            }
        }
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
        match self.value(key).map(|node| (node, &node.value)) {
            None => false,
            Some((_, Node::Bool(value))) => *value,
            Some((node, _)) => {
                reports.expected(node, key, "true or false");
                false
            }
        }
    }

    pub(super) fn number(&self, key: &str, reports: &mut Reports<'_>) -> Option<u32> {
        let node = self.value(key)?;
        let number = match &node.value {
            Node::Int(number) => u32::try_from(*number).ok(),
            _ => None,
        };
        if number.is_none() {
            reports.expected(node, key, "a whole number from 0 to 4294967295");
        }
        number
    }

    pub(super) fn list(&self, key: &str, reports: &mut Reports<'_>) -> &'a [Spanned<Node>] {
        match self.value(key).map(|node| (node, &node.value)) {
            None => &[],
            Some((_, Node::List(items))) => items,
            Some((node, _)) => {
                reports.expected(node, key, "a list");
                &[]
            }
        }
    }
}

fn unknown_key(name: &str, keys: &Keys) -> String {
    let near = keys.known.iter().map(|known| (strsim::damerau_levenshtein(name, known), known));
    match near.min() {
        // Two slips in a word are a misspelling; more are another word.
        Some((distance, known)) if distance <= 2 => {
            format!("unknown key `{name}` in {} (did you mean `{known}`?)", keys.of)
        }
        _ => format!("unknown key `{name}` in {}; expected {}", keys.of, keys.known.join(", ")),
    }
}
