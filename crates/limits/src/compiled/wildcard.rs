//! Patterns with `*`: their parts, and the search for patterns with literals between two `*`.

use super::search::{NO_RANK, Rank, Work};
use super::trie::{Finder, by_rarest};
use std::ops::ControlFlow;

#[derive(Debug, PartialEq)]
pub(super) struct Parts<'a> {
    /// The text before the first `*`.
    pub(super) start: &'a str,
    /// The texts between two `*`; none is empty.
    pub(super) inner: Vec<&'a str>,
    /// The text after the last `*`. None if there is no `*`; then `start` is the whole pattern.
    pub(super) end: Option<&'a str>,
}

impl<'a> Parts<'a> {
    pub(super) fn of(pattern: &'a str) -> Self {
        let Some((start, rest)) = pattern.split_once('*') else {
            return Parts { start: pattern, inner: Vec::new(), end: None };
        };
        let (inner, end) = rest.rsplit_once('*').unwrap_or(("", rest));
        let inner = inner.split('*').filter(|part| !part.is_empty()).collect();
        Parts { start, inner, end: Some(end) }
    }
}

/// Patterns with the same start and end and with literals between. One pass over the middle of a value
/// finds the literals.
///
/// A pattern is filed under the least common of its literals. If it has no other, a match of this one
/// decides; otherwise all are compared, one after another.
#[derive(Debug)]
pub(super) struct Inner {
    rank_min: Rank,
    words: Finder,
    /// For each literal, the patterns filed under it, by rank.
    filed: Vec<Vec<Filed>>,
}

#[derive(Debug)]
struct Filed {
    rank: Rank,
    /// All literals of the pattern, if it has several.
    rest: Box<[Box<str>]>,
}

impl Inner {
    /// Indexes patterns sorted by rank, each with at least one literal.
    pub(super) fn new(patterns: &[(Rank, Vec<&str>)]) -> Self {
        let filed = |rank: Rank, parts: &[&str]| {
            let rest = if parts.len() == 1 { &[] } else { parts };
            Filed { rank, rest: rest.iter().map(|part| (*part).into()).collect() }
        };
        let items = patterns.iter().map(|(rank, parts)| (filed(*rank, parts), &**parts));
        let words = by_rarest(items);
        let texts: Vec<&[u8]> = words.keys().map(|word| word.as_bytes()).collect();
        Inner {
            rank_min: patterns.first().map_or(NO_RANK, |(rank, _)| *rank),
            words: Finder::new(&texts),
            filed: words.into_values().collect(),
        }
    }

    pub(super) fn rank_min(&self) -> Rank {
        self.rank_min
    }

    /// The lowest rank, below `limit`, of a pattern whose literals occur in `middle` in order.
    pub(super) fn first(&self, middle: &str, limit: Rank, work: &Work) -> Rank {
        let mut best = limit;
        self.words.words_in(middle.as_bytes(), work, |word| {
            for filed in self.filed[word].iter().take_while(|filed| filed.rank < best) {
                work.add(1);
                if occur_in_order(&filed.rest, middle) {
                    best = filed.rank;
                    break;
                }
            }
            if best <= self.rank_min { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        best
    }
}

/// The first occurrence of each literal leaves the most text for the next, so no backtracking is needed.
fn occur_in_order(parts: &[Box<str>], text: &str) -> bool {
    let mut rest = text;
    parts.iter().all(|part| match rest.split_once(&**part) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}
