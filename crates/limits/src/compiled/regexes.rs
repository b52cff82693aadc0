//! Regular expressions that match whole values.
//!
//! The regex crate takes time linear in the value, times the size of the expression: one of 2 MiB took 0.7
//! s for 60 KB. These limits bound both factors and the memory.

use super::regex_literals::Literals;
use super::search::{NO_RANK, Rank, Work};
use super::trie::{Finder, by_rarest};
use regex::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Compiled size of one expression: room for a few `\w`, at some 20 KiB each.
const SIZE_MAX: usize = 256 << 10;
/// The longest value that is matched; longer values match no expression. About the longest path that
/// servers accept. The worst expression takes some 10 ms for it.
pub(super) const VALUE_BYTES_MAX: usize = 8 << 10;
/// Compiled size of a set; larger sets are split.
const SET_SIZE_MAX: usize = 8 << 20;
/// Expressions in a set. Beyond some hundreds, the tables of a set do not fit, and a pass takes as long as
/// all expressions one by one (10,000 in one set took 2.6 ms for 20 bytes; in 40 sets 0.02 ms).
const SET_LEN_MAX: usize = 256;
/// Up to this number of expressions, a search for their literals does not pay.
const SET_LEN_SMALL: usize = 16;
/// Size of the lazily built tables that a set may keep for each thread.
const TABLES_SIZE_MAX: usize = 4 << 20;

/// Refuses invalid and too large expressions, with a message of one line.
pub(super) fn check(expression: &str) -> Result<(), String> {
    // The expression must also compile alone: `a)|(b` would be valid inside the group. And errors should
    // refer to what the operator wrote.
    let built = build(&whole(expression));
    if built.is_err() || expression.contains(')') {
        build(expression).map_err(|error| refusal(&error))?;
    }
    built.map(drop).map_err(|error| refusal(&error))
}

fn refusal(error: &regex::Error) -> String {
    match error {
        regex::Error::CompiledTooBig(_) => {
            format!("it compiles to more than {} KiB", SIZE_MAX >> 10)
        }
        // The last line is the reason; the lines before it draw the position.
        other => {
            let text = other.to_string();
            let line = text.lines().last().unwrap_or_default();
            line.trim_start_matches("error: ").to_owned()
        }
    }
}

fn build(expression: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(expression).dot_matches_new_line(true).size_limit(SIZE_MAX).build()
}

/// The expression for a whole value.
fn whole(expression: &str) -> String {
    let plain = format!(r"\A(?:{expression})\z");
    // A comment at the end (with `(?x)`) would include the closing parenthesis, unless a line end comes
    // before it. Without such a comment, the line end would be part of the expression.
    if expression.contains('#') && build(&plain).is_err() {
        return format!("\\A(?:{expression}\n)\\z");
    }
    plain
}

/// Sets of expressions, by rank. One pass tries a whole set.
#[derive(Debug)]
struct Sets(Vec<(RegexSet, Vec<Rank>)>);

impl Sets {
    /// Builds sets of valid expressions, which are sorted by rank.
    fn new(expressions: &[(Rank, &str)]) -> Self {
        let mut sets = Vec::new();
        // The last part is built next, so that the sets are sorted by rank.
        let mut parts: Vec<&[(Rank, &str)]> = expressions.rchunks(SET_LEN_MAX).collect();
        while let Some(part) = parts.pop() {
            match build_set(part) {
                Ok(set) => sets.push((set, part.iter().map(|(rank, _)| *rank).collect())),
                // Unreachable: each expression has been compiled alone.
                Err(_) if part.len() <= 1 => {}
                Err(_) => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
            }
        }
        Sets(sets)
    }

    /// The lowest rank, below `limit`, of an expression that matches. A set counts as one comparison,
    /// because one pass tries it.
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

/// Many expressions. Those that require a literal are tried only if the value contains it. One pass over
/// the value finds the literals of all.
#[derive(Debug)]
pub(super) struct Regexes {
    rank_min: Rank,
    words: Finder,
    /// For each literal, the expressions that are filed under it.
    filed: Vec<Sets>,
    rest: Sets,
}

impl Regexes {
    /// Indexes valid expressions, which are sorted by rank.
    pub(super) fn new(expressions: &[(Rank, &str)]) -> Self {
        let literals: Vec<Literals> =
            expressions.iter().map(|(_, text)| Literals::of(text)).collect();
        let required: Vec<Vec<&str>> = literals.iter().map(Literals::required).collect();
        let pairs = || expressions.iter().copied().zip(required.iter().map(Vec::as_slice));
        // Matching one set is no more work than searching for the literals.
        let is_few = expressions.len() <= SET_LEN_SMALL;
        let by_word = if is_few { BTreeMap::new() } else { by_rarest(pairs()) };
        let is_rest = |words: &[&str]| is_few || words.is_empty();
        let rest: Vec<(Rank, &str)> =
            pairs().filter(|(_, words)| is_rest(words)).map(|(expression, _)| expression).collect();
        let words: Vec<&[u8]> = by_word.keys().map(|word| word.as_bytes()).collect();
        Regexes {
            rank_min: expressions.first().map_or(NO_RANK, |(rank, _)| *rank),
            words: Finder::new(&words),
            filed: by_word.values().map(|filed| Sets::new(filed)).collect(),
            rest: Sets::new(&rest),
        }
    }

    pub(super) fn rank_min(&self) -> Rank {
        self.rank_min
    }

    /// The lowest rank, below `limit`, of an expression that matches.
    pub(super) fn first(&self, value: &str, limit: Rank, work: &Work) -> Rank {
        let mut best = limit;
        if value.len() > VALUE_BYTES_MAX {
            return best;
        }
        if !self.filed.is_empty() {
            self.words.words_in(value.as_bytes(), work, |word| {
                best = self.filed[word].first(value, best, work);
                ControlFlow::Continue(())
            });
        }
        self.rest.first(value, best, work)
    }
}
