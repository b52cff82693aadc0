//! Values that the parts of a configuration share: the numbers of facts, and expressions, so that
//! each is compiled once.

use super::rate_limit::{Fact, Source};
use super::tree::Tree;
use crate::matching::pattern::Pattern;
use crate::matching::query::Parameters;
use hashbrown::HashMap;

/// The most states of all expressions of a configuration: some 3 MB in each worker.
const STATES_MAX: usize = 65_536;

#[derive(Debug)]
pub(super) struct Interner {
    facts: HashMap<Source, usize>,
    patterns: HashMap<String, Pattern>,
    /// The most expressions that may occur, which share the memory.
    expressions: usize,
    /// The states of the expressions so far.
    states: usize,
}

impl Interner {
    pub(super) fn of(document: &Tree) -> Self {
        let expressions = expressions(document);
        Interner { facts: HashMap::new(), patterns: HashMap::new(), expressions, states: 0 }
    }

    pub(super) fn fact(&mut self, source: Source) -> Fact {
        let next = self.facts.len();
        let number = *self.facts.entry(source.clone()).or_insert(next);
        Fact { number, source }
    }

    pub(super) fn header(&mut self, name: &str) -> Fact {
        self.fact(Source::Header(name.to_owned()))
    }

    pub(super) fn parameter(&mut self, name: &str) -> Fact {
        self.fact(Source::Parameter(name.to_owned()))
    }

    pub(super) fn property(&mut self, path: &[&str]) -> Fact {
        self.fact(Source::Property(path.iter().map(|&part| part.to_owned()).collect()))
    }

    /// The query parameters among the facts.
    pub(super) fn parameters(&self) -> Parameters {
        let name = |(source, number): (&Source, &usize)| match source {
            Source::Parameter(name) => Some((name.as_bytes().to_vec(), *number)),
            Source::Header(_)
            | Source::Property(_)
            | Source::Text(_)
            | Source::ResponseHeader(_)
            | Source::Cookie(_) => None,
        };
        Parameters::new(self.facts.iter().filter_map(name))
    }

    /// A compiled expression for a part of a value, or the mistake in it.
    #[cfg(feature = "cel")]
    pub(super) fn search_pattern(&mut self, text: &str) -> Result<Pattern, String> {
        let pattern = Pattern::search(text, self.expressions)?;
        match self.patterns.get(pattern.text()) {
            Some(known) => Ok(known.clone()),
            None => self.added(pattern.text().to_owned(), pattern),
        }
    }

    /// A compiled expression, or the mistake in it.
    pub(super) fn pattern(&mut self, text: &str) -> Result<Pattern, String> {
        if let Some(pattern) = self.patterns.get(text) {
            return Ok(pattern.clone());
        }
        let pattern = Pattern::new(text, self.expressions)?;
        self.added(text.to_owned(), pattern)
    }

    fn added(&mut self, text: String, pattern: Pattern) -> Result<Pattern, String> {
        self.states = self.states.saturating_add(pattern.states());
        if self.states > STATES_MAX {
            let states = self.states;
            return Err(format!(
                "up to here, all expressions compile to {states} states (maximum {STATES_MAX})"
            ));
        }
        self.patterns.insert(text, pattern.clone());
        Ok(pattern)
    }
}

/// The number of expressions in a document.
fn expressions(tree: &Tree) -> usize {
    match tree {
        Tree::List(items) => items.iter().map(expressions).sum(),
        Tree::Object(fields) => fields
            .iter()
            .map(|(name, value)| match name.as_str() {
                "regex" => 1,
                #[cfg(feature = "cel")]
                "when" => match value {
                    Tree::Text(text) => text.matches("matches").count(),
                    _ => 0,
                },
                _ => expressions(value),
            })
            .sum(),
        _ => 0,
    }
}
