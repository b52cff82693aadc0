//! The patterns of one key, indexed so that the first that matches a value is found without trying
//! them one by one.
//!
//! A pattern is filed under the literal text that it starts with, in a tree of bytes; those that
//! also end in a literal text are filed under both. A value leads down the trees to the few places
//! whose literals it has. What lies between is decided for all patterns of a place in one pass.
//! Ranges of addresses are probed once per length that occurs.
//!
//! The work for a value is bounded by the literal texts that its ends repeat, and otherwise linear
//! in the value. The one thing that can still grow with the rules: patterns of one start and one end
//! with two or more literals between, all of whose literals are as common, are compared one by one
//! as far as the value contains the one that each waits for.

use super::cidr::Ranges;
use super::hash::Map;
use super::matcher::Matcher;
use super::regex_literals::Literals;
use super::regexes::Regexes;
use super::search::{NO_RANK, Rank, Work};
use super::trie::Trie;
use super::wildcard::{Inner, Parts};
use std::collections::BTreeMap;

/// The index; made of a list of matchers at once, and not changed after.
#[derive(Debug)]
pub(super) struct Index {
    starts: Trie,
    start_entries: Vec<StartEntry>,
    /// Ends of patterns, back to front.
    ends: Trie,
    /// By the numbers of start and end.
    between: Map<(usize, usize), Middle>,
    ranges: Ranges,
    /// The earliest place of an expression.
    first_regex: Rank,
}

/// What is filed under a literal start.
#[derive(Debug)]
struct StartEntry {
    /// The pattern that takes all values that start so.
    all: Rank,
    /// The pattern that is this text, without a `*`.
    whole: Rank,
    /// The earliest of those that ask for more than the start, expressions aside.
    between: Rank,
    regexes: Option<Regexes>,
}

/// The patterns of one start and one end.
#[derive(Debug)]
struct Middle {
    /// The one that takes anything between.
    all: Rank,
    inner: Option<Inner>,
}

/// The patterns on their way to the index, by their literals.
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
    between: BTreeMap<Vec<u8>, MiddleBuilder<'a>>,
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
                let between = self.start(parts.start).between.entry(end).or_default();
                if inner.is_empty() {
                    between.all.get_or_insert(rank);
                } else {
                    between.inner.push((rank, inner.to_vec()));
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

    fn earliest(&self) -> Rank {
        self.all.min(self.inner.as_ref().map_or(NO_RANK, Inner::earliest))
    }
}

impl Index {
    /// Of these matchers, of which the earlier win.
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
            between: Map::default(),
            ranges: Ranges::new(builder.ranges.iter().copied()),
            first_regex: NO_RANK,
        };
        for (start, of) in builder.starts.values().enumerate() {
            let mut earliest = NO_RANK;
            for (end, of) in &of.between {
                let between = Middle::new(of);
                earliest = earliest.min(between.earliest());
                // All ends are in the list.
                let end = ends.partition_point(|known| *known < end.as_slice());
                index.between.insert((start, end), between);
            }
            let regexes = (!of.regexes.is_empty()).then(|| Regexes::new(&of.regexes));
            let first_regex = regexes.as_ref().map_or(NO_RANK, Regexes::earliest);
            index.first_regex = index.first_regex.min(first_regex);
            index.start_entries.push(StartEntry {
                all: of.all.unwrap_or(NO_RANK),
                whole: of.whole.unwrap_or(NO_RANK),
                between: earliest,
                regexes,
            });
        }
        index
    }

    /// The earliest matcher that takes the value.
    pub(super) fn first(&self, value: &str, work: &Work) -> Option<Rank> {
        let mut best = NO_RANK;
        let mut asks_more = NO_RANK;
        self.starts_of(value, work, |_, at, len| {
            let whole = if len == value.len() { at.whole } else { NO_RANK };
            best = best.min(at.all).min(whole);
            asks_more = asks_more.min(at.between);
        });
        best = self.ranges.first(value, best, work);
        // Cheap questions first: they spare the dear ones where they find an earlier place.
        if asks_more < best {
            self.starts_of(value, work, |start, at, len| {
                if at.between < best {
                    best = self.between(start, len, value, best, work);
                }
            });
        }
        if self.first_regex < best {
            self.starts_of(value, work, |_, at, _| {
                if let Some(regexes) = &at.regexes {
                    best = regexes.first(value, best, work);
                }
            });
        }
        (best != NO_RANK).then_some(best)
    }

    /// Visits what is filed under the starts of the value, with the lengths of these.
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

    /// The earliest matcher, before `limit`, of this start (of this length) and any end.
    fn between(&self, start: usize, len: usize, value: &str, limit: Rank, work: &Work) -> Rank {
        let mut best = limit;
        self.ends.starts_of(value.bytes().rev(), work, |end, end_len| {
            // The two may not overlap.
            let middle = value.len().checked_sub(end_len).and_then(|to| value.get(len..to));
            let Some(middle) = middle else { return };
            work.add(1);
            let Some(between) = self.between.get(&(start, end)) else { return };
            best = best.min(between.all);
            if let Some(inner) = between.inner.as_ref().filter(|inner| inner.earliest() < best) {
                best = inner.first(middle, best, work);
            }
        });
        best
    }
}
