//! Classes of bytes in regular expressions. Named classes and case folding are of ASCII, as in Envoy.

use regex_syntax::hir::{Class, ClassBytes, ClassBytesRange, Hir};

pub(super) struct Set(ClassBytes);

/// The byte of a character that stands for one.
pub(super) fn byte(char: char) -> u8 {
    u8::try_from(char).unwrap_or(u8::MAX)
}

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
        let range = |(start, end): &(char, char)| ClassBytesRange::new(byte(*start), byte(*end));
        Set(ClassBytes::new(ranges.iter().map(range)))
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
        Set(ClassBytes::empty())
    }

    /// The characters from `start` to `end`, both included.
    pub(super) fn range(start: char, end: char) -> Self {
        Set(ClassBytes::new([ClassBytesRange::new(byte(start), byte(end))]))
    }

    pub(super) fn add(&mut self, other: &Set) {
        self.0.union(&other.0);
    }

    /// Extended by the other case of its characters, if `fold`.
    pub(super) fn folded(mut self, fold: bool) -> Self {
        if fold {
            self.0.case_fold_simple();
        }
        self
    }

    /// Its complement, if `negate`.
    pub(super) fn negated(mut self, negate: bool) -> Self {
        if negate {
            self.0.negate();
        }
        self
    }

    pub(super) fn into_hir(self) -> Hir {
        Hir::class(Class::Bytes(self.0))
    }
}
