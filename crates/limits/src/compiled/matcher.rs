//! The values that a branch of the tree matches.

use super::cidr::Cidr;
use super::regexes;
use std::fmt;
use std::sync::Arc;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Matcher {
    /// Any value that no other branch of this key matches.
    Any,
    Exact(String),
    /// Values of a pattern in which each `*` matches any characters, or none.
    Wildcard(String),
    Prefix(String),
    /// Addresses, or ranges of addresses, within one of these ranges. No other value matches. An IPv4
    /// address and its IPv6 mapping are the same; an IPv6 range contains no other IPv4 address.
    Cidr(Vec<Cidr>),
    /// Values that this regular expression (of the `regex` crate) matches as a whole: `a|ab` matches `ab`,
    /// and `b` does not match `abc`. A `.` also matches line ends, as with `(?s)`.
    Regex(Arc<str>),
}

/// Why a matcher is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MatcherError {
    /// Another branch has the same matcher.
    #[error("there is a branch for these values already")]
    Duplicate,
    /// Not a regular expression, or too large. The message is one line.
    #[error("{0}")]
    Regex(String),
}

impl Matcher {
    /// Refuses expressions that do not compile.
    pub(super) fn check(&self) -> Result<(), MatcherError> {
        match self {
            Matcher::Regex(expression) => regexes::check(expression).map_err(MatcherError::Regex),
            _ => Ok(()),
        }
    }

    /// Equal for matchers that differ only in the order or repetition of their ranges.
    pub(super) fn normal(&self) -> Matcher {
        match self {
            Matcher::Cidr(ranges) => {
                let mut ranges = ranges.clone();
                ranges.sort_unstable();
                ranges.dedup();
                Matcher::Cidr(ranges)
            }
            other => other.clone(),
        }
    }
}

/// As operators read it: `= users`, `like "a*"`, `in 10.0.0.0/8`.
impl fmt::Display for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Matcher::Any => write!(f, "any value"),
            Matcher::Exact(value) if is_plain(value) => write!(f, "= {value}"),
            Matcher::Exact(value) => write!(f, "= {value:?}"),
            Matcher::Wildcard(pattern) => write!(f, "like {pattern:?}"),
            Matcher::Prefix(prefix) => write!(f, "prefix {prefix:?}"),
            Matcher::Cidr(ranges) => {
                let ranges: Vec<String> = ranges.iter().map(Cidr::to_string).collect();
                write!(f, "in {}", ranges.join(", "))
            }
            // Line ends would break the line.
            Matcher::Regex(expression) => {
                write!(f, "matching /{}/", expression.replace('\n', "\\n"))
            }
        }
    }
}

/// Whether a value is clear without quotes.
fn is_plain(value: &str) -> bool {
    let odd = |c: char| c.is_whitespace() || c.is_control() || c == '"';
    !value.is_empty() && !value.contains(odd)
}
