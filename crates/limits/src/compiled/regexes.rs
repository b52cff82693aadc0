//! Regular expressions that match whole values.
//!
//! The regex crate takes time linear in the value, but the factor is the size of the expression: one
//! of 2 MiB took 0.7 s for 60 KB. The limits here bound both, and the memory.

use super::matcher::MatcherError;
use super::regex_literals::Literals;
use super::search::{NO_RANK, Rank, Work};
use super::trie::{Finder, by_rarest};
use regex::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Bytes that one expression may compile to: room for a few `\w`, which are some 20 KiB each.
const SIZE_MAX: usize = 256 << 10;
/// The longest value that expressions are tried on, in bytes; longer ones match none. About what
/// servers take as the longest path. The worst expression takes some 10 ms for it.
pub(super) const VALUE_BYTES_MAX: usize = 8 << 10;
/// Bytes that a set may compile to; a set that would be larger is split.
const SET_SIZE_MAX: usize = 8 << 20;
/// Expressions in a set: beyond some hundreds their tables outgrow their room, and a pass then takes
/// the time of all of them (10,000 in one set took 2.6 ms for 20 bytes, in 40 sets 0.02 ms).
const SET_LEN_MAX: usize = 256;
/// Expressions that are not worth looking for their literals first.
const SET_LEN_SMALL: usize = 16;
/// Bytes of matching tables that a set may keep for each thread that uses it.
const TABLES_SIZE_MAX: usize = 4 << 20;

/// Refuses what is not an expression, or too large a one.
pub(super) fn check(expression: &str) -> Result<(), MatcherError> {
    // By itself too, since `a)|(b` would be one inside our group; and for the error, which is to be
    // about what the operator wrote.
    let built = build(&whole(expression));
    if built.is_err() || expression.contains(')') {
        build(expression).map_err(|error| refusal(&error))?;
    }
    built.map(drop).map_err(|error| refusal(&error))
}

fn refusal(error: &regex::Error) -> MatcherError {
    MatcherError::Regex(match error {
        regex::Error::CompiledTooBig(_) => {
            format!("it compiles to more than {} KiB", SIZE_MAX >> 10)
        }
        // Its last line says what is wrong; those before it draw where.
        other => {
            let text = other.to_string();
            let line = text.lines().last().unwrap_or_default();
            line.trim_start_matches("error: ").to_owned()
        }
    })
}

fn build(expression: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(expression).dot_matches_new_line(true).size_limit(SIZE_MAX).build()
}

/// The expression for the whole value.
fn whole(expression: &str) -> String {
    let plain = format!(r"\A(?:{expression})\z");
    // A comment at the end (under `(?x)`) swallows what closes the group, and a line end closes the
    // comment. Without such a comment that line end would be part of the text.
    if expression.contains('#') && build(&plain).is_err() {
        return format!("\\A(?:{expression}\n)\\z");
    }
    plain
}

/// Expressions of which each set is tried in one pass, earliest first.
#[derive(Debug)]
struct Sets(Vec<(RegexSet, Vec<Rank>)>);

impl Sets {
    /// Of these expressions, which were checked, in their rank.
    fn new(expressions: &[(Rank, &str)]) -> Self {
        let mut sets = Vec::new();
        // The last is the next to do, so that the sets come in rank.
        let mut parts: Vec<&[(Rank, &str)]> = expressions.rchunks(SET_LEN_MAX).collect();
        while let Some(part) = parts.pop() {
            match build_set(part) {
                Ok(set) => sets.push((set, part.iter().map(|(rank, _)| *rank).collect())),
                // Each was checked alone, so it does compile; else it would just not match.
                Err(_) if part.len() <= 1 => {}
                Err(_) => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
            }
        }
        Sets(sets)
    }

    /// The earliest place, before `limit`, whose expression matches. A set counts as one
    /// comparison, since one pass over the value tries it.
    fn first(&self, value: &str, limit: Rank, work: &Work) -> Rank {
        for (set, ranks) in &self.0 {
            if ranks.first().is_none_or(|first| *first >= limit) {
                break;
            }
            work.add(1);
            if let Some(found) = set.matches(value).iter().next() {
                return limit.min(ranks[found]);
            }
        }
        limit
    }
}

fn build_set(expressions: &[(Rank, &str)]) -> Result<RegexSet, regex::Error> {
    RegexSetBuilder::new(expressions.iter().map(|(_, expression)| whole(expression)))
        .dot_matches_new_line(true)
        .size_limit(if expressions.len() == 1 { SIZE_MAX } else { SET_SIZE_MAX })
        .dfa_size_limit(TABLES_SIZE_MAX)
        .build()
}

/// Many expressions. One that requires a literal text is tried only where the value has that text,
/// which one pass over the value tells for all of them.
#[derive(Debug)]
pub(super) struct Regexes {
    earliest: Rank,
    words: Finder,
    /// For each word the expressions that wait for it.
    waiting: Vec<Sets>,
    rest: Sets,
}

impl Regexes {
    /// Of these expressions, which were checked, in their rank.
    pub(super) fn new(expressions: &[(Rank, &str)]) -> Self {
        let literals: Vec<Literals> =
            expressions.iter().map(|(_, text)| Literals::of(text)).collect();
        let required: Vec<Vec<&str>> = literals.iter().map(Literals::required).collect();
        let pairs = || expressions.iter().copied().zip(required.iter().map(Vec::as_slice));
        // One set is no more work than to look for the words first.
        let is_few = expressions.len() <= SET_LEN_SMALL;
        let filed = if is_few { BTreeMap::new() } else { by_rarest(pairs()) };
        let is_rest = |words: &[&str]| is_few || words.is_empty();
        let rest: Vec<(Rank, &str)> =
            pairs().filter(|(_, words)| is_rest(words)).map(|(expression, _)| expression).collect();
        let words: Vec<&[u8]> = filed.keys().map(|word| word.as_bytes()).collect();
        Regexes {
            earliest: expressions.first().map_or(NO_RANK, |(rank, _)| *rank),
            words: Finder::new(&words),
            waiting: filed.values().map(|waiting| Sets::new(waiting)).collect(),
            rest: Sets::new(&rest),
        }
    }

    /// The earliest place.
    pub(super) fn earliest(&self) -> Rank {
        self.earliest
    }

    /// The earliest place, before `limit`, whose expression matches.
    pub(super) fn first(&self, value: &str, limit: Rank, work: &Work) -> Rank {
        let mut best = limit;
        if value.len() > VALUE_BYTES_MAX {
            return best;
        }
        if !self.waiting.is_empty() {
            self.words.words_in(value.as_bytes(), work, |word| {
                best = self.waiting[word].first(value, best, work);
                ControlFlow::Continue(())
            });
        }
        self.rest.first(value, best, work)
    }
}
