//! Regular expressions that match whole values, in time linear in the value for any expression and
//! value.
//!
//! An expression runs as a lazy DFA: states are built when a value first needs them, and kept in
//! bounded memory. A byte then costs one table lookup, and a value that can no longer match ends
//! the search. If an expression has more states than fit, and a value keeps needing new ones, an
//! NFA simulation takes over: a byte costs at most as many steps as the expression has states, at
//! most [`STATES_MAX`]. Neither backtracks.
//!
//! A value is bytes, as in Envoy: `.` is one of them, and no client evades `.*` by bytes that are not
//! UTF-8.

mod class;
mod parse;
#[cfg(test)]
mod tests;

use regex_automata::hybrid::dfa::{self, DFA};
use regex_automata::nfa::thompson::pikevm::PikeVM;
use regex_automata::nfa::thompson::{self, NFA, WhichCaptures};
use regex_automata::{Anchored, Input};
use regex_syntax::hir::{Hir, Look};
use std::cell::RefCell;
use std::rc::Rc;

/// The longest expression. Those in practice have a tenth of it.
pub const PATTERN_BYTES_MAX: usize = 1024;
/// The most states of an expression; repetitions such as `(a{30}){30}` are short only in writing.
/// Envoy's own default bound is below (an RE2 program of 100 instructions).
pub const STATES_MAX: usize = 1_024;
/// Memory while an expression is compiled: far above the need of that many states.
const COMPILED_BYTES_MAX: usize = 512 * 1024;
/// Memory for the cached states of all expressions of a configuration.
const CACHES_BYTES: usize = 512 * 1024;
/// The least and the most of that memory for one expression.
const CACHE_BYTES: std::ops::RangeInclusive<usize> = 4 * 1024..=128 * 1024;
/// A full cache is cleared, but only if it has paid off: if each state has served this many bytes.
const BYTES_PER_STATE_MIN: usize = 20;

/// A regular expression for a whole value.
#[derive(Debug, Clone)]
pub struct Pattern {
    text: String,
    engine: Rc<Engine>,
}

#[derive(Debug)]
struct Engine {
    dfa: DFA,
    states: RefCell<dfa::Cache>,
    nfa: PikeVM,
}

impl Pattern {
    /// Compiles `text`, which must match a whole value. `of` expressions share the memory.
    ///
    /// # Errors
    /// The mistake in the expression.
    pub fn new(text: &str, of: usize) -> Result<Pattern, String> {
        Pattern::compile(text.to_owned(), parsed(text)?, of)
    }

    /// Compiles `text`, which must match a part of a value. `of` expressions share the memory.
    ///
    /// # Errors
    /// The mistake in the expression.
    #[cfg(feature = "cel")]
    pub fn search(text: &str, of: usize) -> Result<Pattern, String> {
        let any = || parsed("(?s:.*)");
        let whole = Hir::concat(vec![any()?, parsed(text)?, any()?]);
        Pattern::compile(format!("(?s:.*){text}(?s:.*)"), whole, of)
    }

    #[cfg(feature = "cel")]
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    fn compile(text: String, parsed: Hir, of: usize) -> Result<Pattern, String> {
        let nfa = compiled(parsed)?;
        let cache_bytes = CACHES_BYTES.checked_div(of).unwrap_or(CACHES_BYTES);
        let config = DFA::config()
            .cache_capacity(cache_bytes.clamp(*CACHE_BYTES.start(), *CACHE_BYTES.end()))
            .skip_cache_capacity_check(true)
            .minimum_cache_clear_count(Some(0))
            .minimum_bytes_per_state(Some(BYTES_PER_STATE_MIN));
        let engine = |error: &dyn std::fmt::Display| format!("cannot be compiled: {error}");
        let dfa = DFA::builder().configure(config).build_from_nfa(nfa.clone());
        let dfa = dfa.map_err(|error| engine(&error))?;
        let nfa = PikeVM::new_from_nfa(nfa).map_err(|error| engine(&error))?;
        let states = RefCell::new(dfa.create_cache());
        Ok(Pattern { text, engine: Rc::new(Engine { dfa, states, nfa }) })
    }

    /// The number of states it compiled to.
    #[must_use]
    pub fn states(&self) -> usize {
        self.engine.dfa.get_nfa().states().len()
    }

    /// Whether it matches all of `value`.
    #[must_use]
    pub fn matches(&self, value: &[u8]) -> bool {
        let input = Input::new(value).anchored(Anchored::Yes);
        let Engine { dfa, states, nfa } = &*self.engine;
        if let Ok(mut states) = states.try_borrow_mut()
            && let Ok(found) = dfa.try_search_fwd(&mut states, &input)
        {
            return found.is_some();
        }
        nfa.is_match(&mut nfa.create_cache(), input)
    }
}

fn parsed(text: &str) -> Result<Hir, String> {
    let bytes = text.len();
    if bytes > PATTERN_BYTES_MAX {
        return Err(format!("the expression has {bytes} bytes (maximum {PATTERN_BYTES_MAX})"));
    }
    parse::parse(text).map_err(|error| format!("not a regular expression: {error}"))
}

fn compiled(parsed: Hir) -> Result<NFA, String> {
    let config = thompson::Config::new()
        .utf8(false)
        .which_captures(WhichCaptures::None)
        .nfa_size_limit(Some(COMPILED_BYTES_MAX));
    let whole = Hir::concat(vec![parsed, Hir::look(Look::End)]);
    let nfa = thompson::Compiler::new().configure(config).build_from_hir(&whole);
    match nfa {
        Ok(nfa) if nfa.states().len() <= STATES_MAX => Ok(nfa),
        Ok(nfa) => Err(too_large(&format!("{} states", nfa.states().len()))),
        Err(error) if error.size_limit().is_some() => {
            Err(too_large(&format!("more than {} KiB", COMPILED_BYTES_MAX >> 10)))
        }
        Err(error) => Err(format!("cannot be compiled: {error}")),
    }
}

fn too_large(size: &str) -> String {
    format!("the expression compiles to {size} (maximum {STATES_MAX} states)")
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}
