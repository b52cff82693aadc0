//! Tests of one text: equality, parts, and regular expressions.
//!
//! Every test takes time linear in the value. Letters without case are those of ASCII, as in Envoy.

use regex_lite::{Regex, RegexBuilder};

/// The longest regular expression. Those that people write are a tenth of it.
pub const PATTERN_BYTES_MAX: usize = 1024;
/// What an expression may compile to: repetitions such as `(a{100}){100}` are small to write only. A match
/// takes time linear in this and in the value, of which there is as much as Envoy lets through (60 KiB of
/// headers by default). The value has no bound of its own: a client could evade a limit by a long one.
const COMPILED_BYTES_MAX: usize = 64 * 1024;

/// A regular expression for a whole value.
#[derive(Debug, Clone)]
pub struct Pattern {
    regex: Regex,
}

impl Pattern {
    /// Compiles `pattern`, which must match the whole of a value.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(pattern: &str) -> Result<Pattern, String> {
        if pattern.len() > PATTERN_BYTES_MAX {
            let bytes = pattern.len();
            return Err(format!("the expression has {bytes} bytes (maximum {PATTERN_BYTES_MAX})"));
        }
        let compile = |pattern: &str| {
            let compiled = RegexBuilder::new(pattern).size_limit(COMPILED_BYTES_MAX).build();
            compiled.map_err(|error| format!("not a regular expression: {error}"))
        };
        // By itself first: `a)|(?:b` would be an expression only between the parentheses below.
        compile(pattern)?;
        Ok(Pattern { regex: compile(&format!(r"\A(?:{pattern})\z"))? })
    }

    fn matches(&self, value: &[u8]) -> bool {
        self.regex.is_match(&String::from_utf8_lossy(value))
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.regex.as_str() == other.regex.as_str()
    }
}

impl Eq for Pattern {}

/// Whether upper and lower case are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// They differ.
    Sensitive,
    /// They are.
    Ignored,
}

/// A test of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextMatcher {
    /// It is this.
    Exact(String, Case),
    /// It begins with this.
    Prefix(String, Case),
    /// It ends with this.
    Suffix(String, Case),
    /// It has this in it; made by [`TextMatcher::contains`].
    Contains(String, Case),
    /// All of it matches this.
    Regex(Pattern),
}

impl TextMatcher {
    /// A test for a text in the value. Without case, the text is kept in lower case.
    #[must_use]
    pub fn contains(text: String, case: Case) -> Self {
        match case {
            Case::Sensitive => TextMatcher::Contains(text, case),
            Case::Ignored => TextMatcher::Contains(text.to_ascii_lowercase(), case),
        }
    }

    /// Whether `value` passes.
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
            // Through `str`, whose search is linear; bytes that are no UTF-8 match nothing anyway.
            TextMatcher::Contains(text, Case::Sensitive) => {
                String::from_utf8_lossy(value).contains(text.as_str())
            }
            TextMatcher::Contains(text, Case::Ignored) => {
                String::from_utf8_lossy(value).to_ascii_lowercase().contains(text.as_str())
            }
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
    fn each_test_is_of_the_value_as_it_was_sent() {
        use Case::{Ignored, Sensitive};
        let text =
            |make: fn(String, Case) -> TextMatcher, text: &str, case| make(text.into(), case);
        let regex = |pattern: &str| TextMatcher::Regex(Pattern::new(pattern).unwrap());
        let table: [(TextMatcher, &[u8], bool); 19] = [
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
            (text(TextMatcher::contains, "b", Sensitive), b"\xffabc", true),
            (text(TextMatcher::contains, "B", Sensitive), b"abc", false),
            (text(TextMatcher::contains, "B", Ignored), b"abc", true),
            (text(TextMatcher::contains, "b", Ignored), b"ABC", true),
            (regex(r"v\d+"), b"v12", true),
            (regex(r"v\d+"), b"xv12", false),
            (regex(r"v\d+"), b"v12\n", false),
            (regex("a|ab"), b"ab", true),
            // A value above 8 KiB matched nothing, and a long query evaded the limit on a path.
            (regex("x.*"), &[b'x'; 60_000], true),
        ];
        for (matcher, value, expected) in table {
            let shown = String::from_utf8_lossy(value);
            assert_eq!(matcher.matches(value), expected, "{matcher:?} on {shown:.20}");
        }
    }

    #[test]
    fn an_expression_that_cannot_be_had_says_why() {
        let long = "a".repeat(PATTERN_BYTES_MAX + 1);
        let table = [
            ("(", "not a regular expression: "),
            ("a)|(?:b", "not a regular expression: "),
            ("(a{100}){100}{100}", "not a regular expression: "),
            (long.as_str(), "the expression has 1025 bytes (maximum 1024)"),
        ];
        for (pattern, message) in table {
            let error = Pattern::new(pattern).unwrap_err();
            assert!(error.starts_with(message), "{error}");
        }
    }
}
