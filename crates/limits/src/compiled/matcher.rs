//! Which values a place in the tree is for.

use super::cidr::Cidr;
use super::regexes;
use std::fmt;
use std::sync::Arc;

/// Which values a place in the tree is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Matcher {
    /// Any value that no other place of this key takes.
    Any,
    /// Just this value.
    Exact(String),
    /// Values of this pattern, in which each `*` stands for any characters, or none.
    Wildcard(String),
    /// Values that start like this.
    Prefix(String),
    /// Addresses (or ranges of them) within one of these ranges. Values that are neither match
    /// none; an IPv4 address and its IPv6 mapping are the same, and an IPv6 range has no other IPv4
    /// address in it.
    Cidr(Vec<Cidr>),
    /// Values that this regular expression (of the `regex` crate) matches as a whole: `a|ab` takes
    /// `ab`, and `b` does not take `abc`. A `.` stands for line ends too, as under `(?s)`.
    Regex(Arc<str>),
}

/// Why a matcher is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MatcherError {
    /// The same values have a place already.
    #[error("there is a place for these values already")]
    Duplicate,
    /// Not a regular expression, or too large a one; in a line.
    #[error("{0}")]
    Regex(String),
}

impl Matcher {
    /// Refuses what does not compile.
    pub(super) fn check(&self) -> Result<(), MatcherError> {
        match self {
            Matcher::Regex(expression) => regexes::check(expression),
            _ => Ok(()),
        }
    }

    /// The same for matchers that differ only in the rank of what they list.
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
            // Its own line ends would break the line.
            Matcher::Regex(expression) => {
                write!(f, "matching /{}/", expression.replace('\n', "\\n"))
            }
        }
    }
}

/// Whether a value needs no quotes to be told from what is around it.
fn is_plain(value: &str) -> bool {
    let odd = |c: char| c.is_whitespace() || c.is_control() || c == '"';
    !value.is_empty() && !value.contains(odd)
}
