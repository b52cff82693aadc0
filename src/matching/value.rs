//! Matchers of a header or a query parameter, as in Envoy's `HeaderMatcher` and
//! `QueryParameterMatcher`.
//!
//! They see only the first value of a repeated header, like the keys of descriptors. Envoy joins
//! the values with commas here, so that appending a second value would evade an exact match.

use super::text::TextMatcher;

/// A matcher of one header or query parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueMatcher {
    /// The test of its value.
    pub test: ValueTest,
    /// Whether the result is inverted (`invert_match`).
    pub sense: Sense,
    /// The treatment of a missing value.
    pub when_missing: WhenMissing,
}

/// A test of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueTest {
    /// It is present.
    Present,
    /// It is absent.
    Absent,
    /// Any value; unlike presence, this never holds for a missing value.
    AnyValue,
    /// It matches.
    Text(TextMatcher),
    /// It is an integer, from the first number and below the second.
    Range(i64, i64),
}

/// Whether a result is inverted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sense {
    /// It is not.
    Plain,
    /// It is.
    Inverted,
}

impl Sense {
    /// Applies the inversion.
    #[must_use]
    pub fn of(self, answer: bool) -> bool {
        match self {
            Sense::Plain => answer,
            Sense::Inverted => !answer,
        }
    }
}

/// The treatment of a missing value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenMissing {
    /// No match, even if inverted.
    NoMatch,
    /// As an empty value (`treat_missing_header_as_empty`).
    Empty,
}

impl ValueMatcher {
    /// Whether a request with this value matches.
    #[must_use]
    pub fn matches(&self, value: Option<&[u8]>) -> bool {
        let value = match self.when_missing {
            WhenMissing::NoMatch => value,
            WhenMissing::Empty => Some(value.unwrap_or_default()),
        };
        let answer = match (&self.test, value) {
            (ValueTest::Present, value) => value.is_some(),
            (ValueTest::Absent, value) => value.is_none(),
            // A missing value never matches, even inverted.
            (ValueTest::AnyValue | ValueTest::Text(_) | ValueTest::Range(..), None) => {
                return false;
            }
            (ValueTest::AnyValue, Some(_)) => true,
            (ValueTest::Text(text), Some(value)) => text.matches(value),
            (ValueTest::Range(start, end), Some(value)) => {
                let text = std::str::from_utf8(value).ok();
                let number = text.and_then(|text| text.trim_ascii().parse::<i64>().ok());
                number.is_some_and(|number| (*start..*end).contains(&number))
            }
        };
        self.sense.of(answer)
    }
}
