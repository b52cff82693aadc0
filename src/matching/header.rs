//! Tests of a request header, as Envoy's `HeaderMatcher` has them.
//!
//! Only the first value of a repeated header is looked at, as the keys of descriptors are made of it:
//! Envoy joins them with commas here, so that appending a second value would evade an exact match.

use super::text::TextMatcher;

/// A test of one header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderMatcher {
    /// What is asked of it.
    pub test: HeaderTest,
    /// Whether the answer is turned round (`invert_match`).
    pub sense: Sense,
    /// What a request without the header is taken for.
    pub when_missing: WhenMissing,
}

/// What is asked of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderTest {
    /// It is there.
    Present,
    /// It is not there.
    Absent,
    /// It has a value, whichever; unlike presence, this cannot be true of a missing header.
    AnyValue,
    /// Its value passes.
    Text(TextMatcher),
    /// Its value is a whole number, from the first on and below the second.
    Range(i64, i64),
}

/// Whether an answer counts as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sense {
    /// It does.
    Plain,
    /// Its opposite does.
    Inverted,
}

impl Sense {
    /// The answer that counts.
    #[must_use]
    pub fn of(self, answer: bool) -> bool {
        match self {
            Sense::Plain => answer,
            Sense::Inverted => !answer,
        }
    }
}

/// What a missing header means to a test of its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenMissing {
    /// No match, even an inverted one.
    NoMatch,
    /// The same as an empty value (`treat_missing_header_as_empty`).
    Empty,
}

impl HeaderMatcher {
    /// Whether a request whose header has this value passes.
    #[must_use]
    pub fn matches(&self, value: Option<&[u8]>) -> bool {
        let value = match self.when_missing {
            WhenMissing::NoMatch => value,
            WhenMissing::Empty => Some(value.unwrap_or_default()),
        };
        let answer = match (&self.test, value) {
            (HeaderTest::Present, value) => value.is_some(),
            (HeaderTest::Absent, value) => value.is_none(),
            // Of a value that is not there, even the opposite is not true.
            (HeaderTest::AnyValue | HeaderTest::Text(_) | HeaderTest::Range(..), None) => {
                return false;
            }
            (HeaderTest::AnyValue, Some(_)) => true,
            (HeaderTest::Text(text), Some(value)) => text.matches(value),
            (HeaderTest::Range(start, end), Some(value)) => {
                let text = std::str::from_utf8(value).ok();
                let number = text.and_then(|text| text.trim_ascii().parse::<i64>().ok());
                number.is_some_and(|number| (*start..*end).contains(&number))
            }
        };
        self.sense.of(answer)
    }
}
