//! The patterns of one key, with an index that finds the first match without trying them one by one.
//!
//! A pattern is filed under its literal prefix in a trie; a pattern that also ends in a literal is filed
//! under both. A value leads through the tries to the few entries whose literals it has. For all patterns
//! of an entry, one pass decides about the text between them. Ranges of addresses take one probe per prefix
//! length.
//!
//! The work for a value is bounded by the literals that its start and end repeat, and otherwise linear in
//! the value. One case still grows with the rules: patterns with the same start and end and two or more
//! equally common literals between. They are compared one by one if the value contains the literal that
//! each is filed under.

use super::cidr::Ranges;
use super::hash::Map;
use super::matcher::Matcher;
use super::regex_literals::Literals;
use super::regexes::Regexes;
use super::search::{NO_RANK, Rank, Work};
use super::trie::Trie;
use super::wildcard::{Inner, Parts};
use std::collections::BTreeMap;

/// The index. Built from all matchers at once, and never changed.
#[derive(Debug)]
pub(super) struct Index {
    starts: Trie,
    start_entries: Vec<StartEntry>,
    /// Reversed ends of patterns.
    ends: Trie,
    /// By the numbers of start and end in their tries.
    middle: Map<(usize, usize), Middle>,
    ranges: Ranges,
    /// The lowest rank of a regular expression.
    regex_rank_min: Rank,
}

/// The patterns with one literal start.
#[derive(Debug)]
struct StartEntry {
    /// The pattern that matches every value with this start.
    all: Rank,
    /// The pattern that is this text, without a `*`.
    whole: Rank,
    /// The lowest rank of the patterns with an end; expressions are separate.
    middle: Rank,
    regexes: Option<Regexes>,
}

/// The patterns with one start and one end.
#[derive(Debug)]
struct Middle {
    /// The pattern that allows any text between.
    all: Rank,
    inner: Option<Inner>,
}

/// Collects the patterns by their literals before the index is built.
#[derive(Default)]
struct Builder<'a> {
    starts: BTreeMap<String, StartBuilder<'a>>,
    ends: BTreeMap<Vec<u8>, ()>,
    ranges: Vec<(super::Cidr, Rank)>,
}

#[derive(Default)]
struct StartBuilder<'a> {
    all: Option<Rank>,
    whole: Option<Rank>,
    middle: BTreeMap<Vec<u8>, MiddleBuilder<'a>>,
    regexes: Vec<(Rank, &'a str)>,
}

#[derive(Default)]
struct MiddleBuilder<'a> {
    all: Option<Rank>,
    inner: Vec<(Rank, Vec<&'a str>)>,
}

impl<'a> Builder<'a> {
    fn start(&mut self, start: &str) -> &mut StartBuilder<'a> {
        self.starts.entry(start.to_owned()).or_default()
    }

    fn add(&mut self, rank: Rank, matcher: &'a Matcher) {
        match matcher {
            Matcher::Any | Matcher::Exact(_) => {}
            Matcher::Prefix(prefix) => {
                self.start(prefix).all.get_or_insert(rank);
            }
            Matcher::Wildcard(pattern) => self.add_wildcard(rank, &Parts::of(pattern)),
            Matcher::Cidr(ranges) => self.ranges.extend(ranges.iter().map(|range| (*range, rank))),
            Matcher::Regex(expression) => {
                self.start(&Literals::of(expression).start).regexes.push((rank, expression));
            }
        }
    }

    fn add_wildcard(&mut self, rank: Rank, parts: &Parts<'a>) {
        match (parts.end, &*parts.inner) {
            (None, _) => {
                self.start(parts.start).whole.get_or_insert(rank);
            }
            (Some(""), []) => {
                self.start(parts.start).all.get_or_insert(rank);
            }
            (Some(end), inner) => {
                let end: Vec<u8> = end.bytes().rev().collect();
                self.ends.insert(end.clone(), ());
                let middle = self.start(parts.start).middle.entry(end).or_default();
                if inner.is_empty() {
                    middle.all.get_or_insert(rank);
                } else {
                    middle.inner.push((rank, inner.to_vec()));
                }
            }
        }
    }
}

impl Middle {
    fn new(of: &MiddleBuilder<'_>) -> Self {
        let inner = (!of.inner.is_empty()).then(|| Inner::new(&of.inner));
        Middle { all: of.all.unwrap_or(NO_RANK), inner }
    }

    fn rank_min(&self) -> Rank {
        self.all.min(self.inner.as_ref().map_or(NO_RANK, Inner::rank_min))
    }
}

impl Index {
    /// Indexes matchers. The earlier of them win.
    pub(super) fn new<'a>(matchers: impl Iterator<Item = &'a Matcher>) -> Self {
        let mut builder = Builder::default();
        for (rank, matcher) in (0..).zip(matchers) {
            builder.add(rank, matcher);
        }
        let starts: Vec<&[u8]> = builder.starts.keys().map(String::as_bytes).collect();
        let ends: Vec<&[u8]> = builder.ends.keys().map(Vec::as_slice).collect();
        let mut index = Index {
            starts: Trie::new(&starts),
            start_entries: Vec::with_capacity(starts.len()),
            ends: Trie::new(&ends),
            middle: Map::default(),
            ranges: Ranges::new(builder.ranges.iter().copied()),
            regex_rank_min: NO_RANK,
        };
        for (start, of) in builder.starts.values().enumerate() {
            let mut rank_min = NO_RANK;
            for (end, of) in &of.middle {
                let middle = Middle::new(of);
                rank_min = rank_min.min(middle.rank_min());
                // Always found: `ends` has the ends of all patterns.
                let end = ends.partition_point(|known| *known < end.as_slice());
                index.middle.insert((start, end), middle);
            }
            let regexes = (!of.regexes.is_empty()).then(|| Regexes::new(&of.regexes));
            let regex_rank_min = regexes.as_ref().map_or(NO_RANK, Regexes::rank_min);
            index.regex_rank_min = index.regex_rank_min.min(regex_rank_min);
            index.start_entries.push(StartEntry {
                all: of.all.unwrap_or(NO_RANK),
                whole: of.whole.unwrap_or(NO_RANK),
                middle: rank_min,
                regexes,
            });
        }
        index
    }

    /// The rank of the first matcher that matches the value.
    pub(super) fn first(&self, value: &str, work: &Work) -> Option<Rank> {
        let mut best = NO_RANK;
        let mut middle_rank_min = NO_RANK;
        self.starts_of(value, work, |_, at, len| {
            let whole = if len == value.len() { at.whole } else { NO_RANK };
            best = best.min(at.all).min(whole);
            middle_rank_min = middle_rank_min.min(at.middle);
        });
        best = self.ranges.first(value, best, work);
        // Cheap tests first: if they find a lower rank, they save the expensive ones.
        if middle_rank_min < best {
            self.starts_of(value, work, |start, at, len| {
                if at.middle < best {
                    best = self.middle(start, len, value, best, work);
                }
            });
        }
        if self.regex_rank_min < best {
            self.starts_of(value, work, |_, at, _| {
                if let Some(regexes) = &at.regexes {
                    best = regexes.first(value, best, work);
                }
            });
        }
        (best != NO_RANK).then_some(best)
    }

    /// Visits the entries whose start the value has, with the lengths of the starts.
    fn starts_of<'a>(
        &'a self,
        value: &str,
        work: &Work,
        mut visit: impl FnMut(usize, &'a StartEntry, usize),
    ) {
        self.starts.starts_of(value.bytes(), work, |start, len| {
            visit(start, &self.start_entries[start], len);
        });
    }

    /// The lowest rank, below `limit`, of a pattern with this start, whose length is `len`, and any end.
    fn middle(&self, start: usize, len: usize, value: &str, limit: Rank, work: &Work) -> Rank {
        let mut best = limit;
        self.ends.starts_of(value.bytes().rev(), work, |end, end_len| {
            // Start and end must not overlap.
            let text = value.len().checked_sub(end_len).and_then(|to| value.get(len..to));
            let Some(text) = text else { return };
            work.add(1);
            let Some(middle) = self.middle.get(&(start, end)) else { return };
            best = best.min(middle.all);
            if let Some(inner) = middle.inner.as_ref().filter(|inner| inner.rank_min() < best) {
                best = inner.first(text, best, work);
            }
        });
        best
    }
}
