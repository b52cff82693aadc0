//! Finds descriptors that no request can reach, because others match all their values.
//!
//! At each level the exact value wins, then the first pattern in the order of the file, then the key alone.
//! So a pattern is unreachable if an earlier one matches all its values, and the key alone if a pattern
//! matches everything. Warns only of certain cases, and never of regular expressions.

use super::context::Diagnostics;
use crate::compiled::{Cidr, Matcher};
use crate::diagnostic::Position;
use std::collections::HashMap;

/// The patterns of one list of descriptors so far, by key.
#[derive(Default)]
pub(super) struct SeenPatterns(HashMap<String, KeyPatterns>);

#[derive(Default)]
struct KeyPatterns {
    /// Prefixes whose values all match an earlier pattern.
    prefixes: HashMap<String, Position>,
    /// Ranges whose addresses all match an earlier pattern.
    ranges: HashMap<Cidr, Position>,
    any: Option<Position>,
}

impl SeenPatterns {
    /// Adds a pattern, and warns if no request can reach it.
    pub(super) fn add(
        &mut self,
        key: &str,
        matcher: &Matcher,
        position: Position,
        diagnostics: &mut Diagnostics<'_>,
    ) {
        if matches!(matcher, Matcher::Exact(_) | Matcher::Regex(_)) {
            return;
        }
        let of_key = match self.0.get_mut(key) {
            Some(of_key) => of_key,
            None => self.0.entry(key.to_owned()).or_default(),
        };
        match matcher {
            Matcher::Any => of_key.any = Some(position),
            Matcher::Cidr(ranges) => {
                let by: Option<Vec<Position>> =
                    ranges.iter().map(|range| of_key.range(range)).collect();
                warn(by.and_then(|by| by.into_iter().max()), position, diagnostics);
                for range in ranges {
                    of_key.ranges.entry(*range).or_insert(position);
                }
            }
            Matcher::Prefix(prefix) => {
                warn(of_key.prefix(prefix), position, diagnostics);
                of_key.prefixes.entry(prefix.clone()).or_insert(position);
            }
            Matcher::Wildcard(pattern) => {
                let (head, tail) = pattern.split_once('*').unwrap_or((pattern, ""));
                warn(of_key.prefix(head), position, diagnostics);
                if tail.trim_start_matches('*').is_empty() {
                    of_key.prefixes.entry(head.to_owned()).or_insert(position);
                }
            }
            Matcher::Exact(_) | Matcher::Regex(_) => {}
        }
    }

    /// Warns of keys alone that no value is left for, wherever they are in the list.
    pub(super) fn finish(self, diagnostics: &mut Diagnostics<'_>) {
        for of_key in self.0.into_values() {
            if let Some(any) = of_key.any {
                warn(of_key.prefixes.get("").copied(), any, diagnostics);
            }
        }
    }
}

impl KeyPatterns {
    /// The first pattern that matches all values with this prefix.
    fn prefix(&self, head: &str) -> Option<Position> {
        if self.prefixes.is_empty() {
            return None;
        }
        let ends = head.char_indices().map(|(end, _)| end).chain([head.len()]);
        ends.filter_map(|end| self.prefixes.get(&head[..end])).min().copied()
    }

    /// The first pattern that matches all addresses of this range.
    fn range(&self, range: &Cidr) -> Option<Position> {
        if let Some(by) = self.prefixes.get("") {
            return Some(*by);
        }
        range.wider().filter_map(|range| self.ranges.get(&range)).min().copied()
    }
}

fn warn(by: Option<Position>, position: Position, diagnostics: &mut Diagnostics<'_>) {
    if let Some((line, column)) = by {
        let message =
            format!("no request can reach this: {line}:{column} matches all its values first");
        diagnostics.warn(position, message);
    }
}
