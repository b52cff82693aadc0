//! Matchers of a text: equality, parts, and regular expressions.
//!
//! Every matcher takes time linear in the value. Case is ignored for ASCII only, as in Envoy.

use super::pattern::Pattern;
use memchr::memmem::Finder;

/// Whether case matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// It does.
    Sensitive,
    /// It does not.
    Ignored,
}

/// A matcher of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextMatcher {
    /// The whole text.
    Exact(String, Case),
    /// The beginning.
    Prefix(String, Case),
    /// The end.
    Suffix(String, Case),
    /// Any part.
    Contains(Box<Needle>),
    /// A regular expression for the whole text.
    Regex(Pattern),
}

/// A text to search for.
#[derive(Debug, Clone)]
pub struct Needle {
    finder: Finder<'static>,
    case: Case,
}

impl Needle {
    /// Stored in lower case if case is ignored.
    #[must_use]
    pub fn new(text: &str, case: Case) -> Self {
        let finder = match case {
            Case::Sensitive => Finder::new(text).into_owned(),
            Case::Ignored => Finder::new(&text.to_ascii_lowercase()).into_owned(),
        };
        Needle { finder, case }
    }

    fn is_in(&self, value: &[u8]) -> bool {
        match self.case {
            Case::Sensitive => self.finder.find(value).is_some(),
            Case::Ignored => self.finder.find(&value.to_ascii_lowercase()).is_some(),
        }
    }
}

impl PartialEq for Needle {
    fn eq(&self, other: &Self) -> bool {
        (self.finder.needle(), self.case) == (other.finder.needle(), other.case)
    }
}

impl Eq for Needle {}

impl TextMatcher {
    /// Whether `value` matches.
    #[must_use]
    pub fn matches(&self, value: &[u8]) -> bool {
        match self {
            TextMatcher::Exact(text, case) => same(value, text, *case),
            TextMatcher::Prefix(text, case) => {
                value.get(..text.len()).is_some_and(|start| same(start, text, *case))
            }
            TextMatcher::Suffix(text, case) => {
                let start = value.len().checked_sub(text.len());
                let end = start.and_then(|start| value.get(start..));
                end.is_some_and(|end| same(end, text, *case))
            }
            TextMatcher::Contains(needle) => needle.is_in(value),
            TextMatcher::Regex(pattern) => pattern.matches(value),
        }
    }
}

fn same(value: &[u8], text: &str, case: Case) -> bool {
    match case {
        Case::Sensitive => value == text.as_bytes(),
        Case::Ignored => value.eq_ignore_ascii_case(text.as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matchers_see_the_value_as_it_was_sent() {
        use Case::{Ignored, Sensitive};
        let text =
            |make: fn(String, Case) -> TextMatcher, text: &str, case| make(text.into(), case);
        let contains = |text: &str, case| TextMatcher::Contains(Needle::new(text, case).into());
        let table: [(TextMatcher, &[u8], bool); 15] = [
            (text(TextMatcher::Exact, "Ab", Sensitive), b"Ab", true),
            (text(TextMatcher::Exact, "Ab", Sensitive), b"ab", false),
            (text(TextMatcher::Exact, "Ab", Ignored), b"aB", true),
            (text(TextMatcher::Exact, "", Sensitive), b"", true),
            (text(TextMatcher::Prefix, "ab", Sensitive), b"abc", true),
            (text(TextMatcher::Prefix, "ab", Sensitive), b"a", false),
            (text(TextMatcher::Prefix, "AB", Ignored), b"abc\xff", true),
            (text(TextMatcher::Suffix, "bc", Sensitive), b"abc", true),
            (text(TextMatcher::Suffix, "bc", Sensitive), b"c", false),
            (text(TextMatcher::Suffix, "BC", Ignored), b"abc", true),
            (contains("b", Sensitive), b"\xffabc", true),
            (contains("B", Sensitive), b"abc", false),
            (contains("B", Ignored), b"abc", true),
            (contains("b", Ignored), b"ABC", true),
            (contains("B\u{e9}", Ignored), "ab\u{e9}".as_bytes(), true),
        ];
        for (matcher, value, expected) in table {
            let shown = String::from_utf8_lossy(value);
            assert_eq!(matcher.matches(value), expected, "{matcher:?} on {shown:.20}");
        }
    }
}
