//! Maps with known keys: each value by its type, each error with its position.

use super::context::Diagnostics;
use crate::diagnostic::Position;
use crate::document::{Content, Key, Node};
use crate::text::{shortened, suggestion};

/// The keys of envoyproxy/ratelimit, and the map in which each has an effect. It accepts them anywhere.
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
    /// The map's name in messages: "a descriptor".
    pub(super) map: &'static str,
    pub(super) known: &'static [&'static str],
}

/// Tidegate's own keys, and the map of each.
const OTHERS: [(&str, &str); 18] = [
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
    ("statistics", "the file"),
    ("by", "an entry of statistics"),
    ("distinct", "an entry of statistics"),
    ("prefix", "match"),
    ("cidr", "match"),
    ("regex", "match"),
];

/// A map whose keys have been checked.
pub(super) struct Fields<'a> {
    pub(super) position: Position,
    entries: &'a [(Key, Node)],
}

impl<'a> Fields<'a> {
    /// Takes `node` as a map, and reports keys that it must not have.
    pub(super) fn read(
        node: &'a Node,
        keys: &Keys,
        diagnostics: &mut Diagnostics<'_>,
    ) -> Option<Self> {
        let Content::Map(entries) = &node.content else {
            let found = node.describe(diagnostics.source);
            diagnostics.error(node.position(), format!("expected {}, found {found}", keys.map));
            return None;
        };
        for (key, value) in entries {
            let name = key.name.as_str();
            if keys.known.contains(&name) {
                continue;
            }
            match owner(&ORIGINAL, name) {
                Some(_) if is_default(name, value) => {}
                Some(owner) => diagnostics.warn(
                    key.position(),
                    format!(
                        "`{name}` is known but has no effect in {}; it belongs in {owner}",
                        keys.map
                    ),
                ),
                None => diagnostics.error(key.position(), unknown_key(name, keys)),
            }
        }
        // A reader looks for a block map at its first key.
        let position = entries.first().map_or(node.position(), |(key, _)| key.position());
        Some(Fields { position, entries })
    }

    /// Whether the value of `key` says what holds without it, as generated files often have it.
    pub(super) fn is_default(&self, key: &str) -> bool {
        self.entry(key).is_some_and(|(_, value)| is_default(key, value))
    }

    fn entry(&self, key: &str) -> Option<&'a (Key, Node)> {
        self.entries.iter().find(|(known, _)| known.name == key)
    }

    /// The value of `key`. As in envoyproxy/ratelimit, null counts as absent.
    pub(super) fn value(&self, key: &str) -> Option<&'a Node> {
        let (_, value) = self.entry(key)?;
        (!matches!(value.content, Content::Null)).then_some(value)
    }

    /// The position of the value of `key`, or of the map if the key is absent.
    pub(super) fn position_of(&self, key: &str) -> Position {
        self.entry(key).map_or(self.position, |(_, value)| value.position())
    }

    /// The position of `key` itself, or of the map if the key is absent.
    pub(super) fn key_position(&self, key: &str) -> Position {
        self.entry(key).map_or(self.position, |(key, _)| key.position())
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// Whether `key` is present without a value.
    pub(super) fn is_empty(&self, key: &str) -> bool {
        !self.has(key) && self.entry(key).is_some()
    }

    pub(super) fn text(&self, key: &str, diagnostics: &mut Diagnostics<'_>) -> Option<String> {
        text(self.value(key)?, key, diagnostics)
    }

    /// A string that is required and must not be empty.
    pub(super) fn required(&self, key: &str, diagnostics: &mut Diagnostics<'_>) -> Option<String> {
        let text = self.text(key, diagnostics);
        let wrong_type = text.is_none() && self.has(key);
        let text = text.filter(|text| !text.is_empty());
        if text.is_none() && !wrong_type {
            diagnostics
                .error(self.position_of(key), format!("`{key}` is required and must not be empty"));
        }
        text
    }

    pub(super) fn flag(&self, key: &str, diagnostics: &mut Diagnostics<'_>) -> bool {
        self.truth(key, diagnostics).unwrap_or(false)
    }

    pub(super) fn truth(&self, key: &str, diagnostics: &mut Diagnostics<'_>) -> Option<bool> {
        let node = self.value(key)?;
        match &node.content {
            Content::Bool(value) => Some(*value),
            _ => {
                diagnostics.wrong_type(node, key, "true or false");
                None
            }
        }
    }

    pub(super) fn number(&self, key: &str, diagnostics: &mut Diagnostics<'_>) -> Option<u32> {
        let node = self.value(key)?;
        let number = match &node.content {
            Content::Int(number) => u32::try_from(*number).ok(),
            _ => None,
        };
        if number.is_none() {
            diagnostics.wrong_type(node, key, "a whole number from 0 to 4294967295");
        }
        number
    }

    pub(super) fn is_list(&self, key: &str) -> bool {
        self.value(key).is_some_and(|node| matches!(node.content, Content::List(_)))
    }

    pub(super) fn list(&self, key: &str, diagnostics: &mut Diagnostics<'_>) -> &'a [Node] {
        match self.value(key).map(|node| (node, &node.content)) {
            None => &[],
            Some((_, Content::List(items))) => items,
            Some((node, _)) => {
                diagnostics.wrong_type(node, key, "a list");
                &[]
            }
        }
    }
}

/// A string. As in envoyproxy/ratelimit, a plain number or boolean is taken as its source text, so `007` is
/// not `7`, and plain numbers with a fraction are refused.
/// Whether a flag is off, or a number of requests is 0. Of other keys nothing is a default: `n` is false in YAML, and may
/// be a name.
fn is_default(key: &str, value: &Node) -> bool {
    match (key, &value.content) {
        (
            "shadow_mode" | "quota_mode" | "detailed_metric" | "value_to_metric"
            | "share_threshold" | "unlimited",
            Content::Bool(is_on),
        ) => !is_on,
        ("requests_per_unit", Content::Int(requests)) => *requests == 0,
        _ => false,
    }
}

pub(super) fn text(node: &Node, key: &str, diagnostics: &mut Diagnostics<'_>) -> Option<String> {
    match &node.content {
        Content::Text(text) => return Some(text.clone()),
        Content::Bool(_) | Content::Int(_) => {
            if let Some(written) = node.written(diagnostics.source) {
                return Some(written.to_owned());
            }
            diagnostics.wrong_type(node, key, "a string (put it in quotes)");
        }
        Content::Float(_) => diagnostics.wrong_type(node, key, "a string (put it in quotes)"),
        Content::Null | Content::List(_) | Content::Map(_) => {
            diagnostics.wrong_type(node, key, "a string");
        }
    }
    None
}

fn owner(keys: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    keys.iter().find(|(key, _)| *key == name).map(|(_, owner)| *owner)
}

fn unknown_key(name: &str, keys: &Keys) -> String {
    let known = keys.known.join(", ");
    let key = shortened(name);
    match owner(&OTHERS, name) {
        Some(owner) => format!("unknown key `{key}` in {}; it belongs in {owner}", keys.map),
        None => {
            let meant = suggestion(name, keys.known);
            format!("unknown key `{key}` in {}{meant}; expected {known}", keys.map)
        }
    }
}
