//! Patterns with `*`: their parts, and those with literals between two of them.

use super::search::{NO_RANK, Rank, Work};
use super::trie::{Finder, by_rarest};
use std::ops::ControlFlow;

/// The parts of a pattern.
#[derive(Debug, PartialEq)]
pub(super) struct Parts<'a> {
    /// The text before the first `*`.
    pub(super) start: &'a str,
    /// The texts between two of them; none is empty.
    pub(super) inner: Vec<&'a str>,
    /// The text after the last; none when there is no `*`, and the start is the whole.
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

/// Patterns of one start and one end with literals between: one pass over what lies between the
/// start and the end of a value tells which of the literals occur there.
///
/// A pattern waits for that one of its literals that the fewest others wait for. If it has no other
/// it is decided by that; otherwise the rest is compared, literal by literal.
#[derive(Debug)]
pub(super) struct Inner {
    earliest: Rank,
    words: Finder,
    /// For each word the patterns that wait for it, earliest first.
    waiting: Vec<Vec<Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    rank: Rank,
    /// All literals of the pattern, if it has several.
    rest: Box<[Box<str>]>,
}

impl Inner {
    /// Of these patterns, in their rank; each has at least one literal.
    pub(super) fn new(patterns: &[(Rank, Vec<&str>)]) -> Self {
        let waiting = |rank: Rank, parts: &[&str]| {
            let rest = if parts.len() == 1 { &[] } else { parts };
            Waiting { rank, rest: rest.iter().map(|part| (*part).into()).collect() }
        };
        let items = patterns.iter().map(|(rank, parts)| (waiting(*rank, parts), &**parts));
        let words = by_rarest(items);
        let texts: Vec<&[u8]> = words.keys().map(|word| word.as_bytes()).collect();
        Inner {
            earliest: patterns.first().map_or(NO_RANK, |(rank, _)| *rank),
            words: Finder::new(&texts),
            waiting: words.into_values().collect(),
        }
    }

    /// The earliest place.
    pub(super) fn earliest(&self) -> Rank {
        self.earliest
    }

    /// The earliest place, before `limit`, whose literals occur in `middle`, one after another.
    pub(super) fn first(&self, middle: &str, limit: Rank, work: &Work) -> Rank {
        let mut best = limit;
        self.words.words_in(middle.as_bytes(), work, |word| {
            for waiting in self.waiting[word].iter().take_while(|waiting| waiting.rank < best) {
                work.add(1);
                if occur_in_order(&waiting.rest, middle) {
                    best = waiting.rank;
                    break;
                }
            }
            if best <= self.earliest { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        best
    }
}

/// The first occurrence of each leaves most room for those after it, so there is nothing to retry.
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
