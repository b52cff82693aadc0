//! Character classes in regular expressions. Case folding is Unicode, as in RE2; the named classes
//! are ASCII.

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir};

pub(super) struct Set(ClassUnicode);

/// Character ranges, both ends included.
type Ranges = &'static [(char, char)];

impl Set {
    /// `\d`.
    pub(super) const DIGIT: Ranges = &[('0', '9')];
    /// `\s`, which has no vertical tab.
    pub(super) const PERL_SPACE: Ranges = &[('\t', '\n'), ('\x0c', '\r'), (' ', ' ')];
    /// `\w`.
    pub(super) const WORD: Ranges = &[('0', '9'), ('A', 'Z'), ('_', '_'), ('a', 'z')];

    pub(super) fn of(ranges: Ranges) -> Self {
        let ranges = ranges.iter().map(|(start, end)| ClassUnicodeRange::new(*start, *end));
        Set(ClassUnicode::new(ranges))
    }

    /// The class named between `[:` and `:]`.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(Set::of(match name {
            "alnum" => &[('0', '9'), ('A', 'Z'), ('a', 'z')],
            "alpha" => &[('A', 'Z'), ('a', 'z')],
            "ascii" => &[('\0', '\x7f')],
            "blank" => &[('\t', '\t'), (' ', ' ')],
            "cntrl" => &[('\0', '\x1f'), ('\x7f', '\x7f')],
            "digit" => Set::DIGIT,
            "graph" => &[('!', '~')],
            "lower" => &[('a', 'z')],
            "print" => &[(' ', '~')],
            "punct" => &[('!', '/'), (':', '@'), ('[', '`'), ('{', '~')],
            "space" => &[('\t', '\r'), (' ', ' ')],
            "upper" => &[('A', 'Z')],
            "word" => Set::WORD,
            "xdigit" => &[('0', '9'), ('A', 'F'), ('a', 'f')],
            _ => return None,
        }))
    }

    pub(super) fn empty() -> Self {
        Set(ClassUnicode::empty())
    }

    /// The characters from `start` to `end`, both included.
    pub(super) fn range(start: char, end: char) -> Self {
        Set(ClassUnicode::new([ClassUnicodeRange::new(start, end)]))
    }

    pub(super) fn add(&mut self, other: &Set) {
        self.0.union(&other.0);
    }

    /// Extended by the other case of its characters, if `fold`.
    pub(super) fn folded(mut self, fold: bool) -> Result<Self, String> {
        if fold {
            self.0.try_case_fold_simple().map_err(|error| error.to_string())?;
        }
        Ok(self)
    }

    /// Its complement, if `negate`.
    pub(super) fn negated(mut self, negate: bool) -> Self {
        if negate {
            self.0.negate();
        }
        self
    }

    pub(super) fn into_hir(self) -> Hir {
        Hir::class(Class::Unicode(self.0))
    }
}
