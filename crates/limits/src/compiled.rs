//! Compiled rules: a tree per domain, looked up one entry per level.
//!
//! Matching is envoyproxy/ratelimit's: at each level the exact value wins, then the first matching pattern
//! in the order of the file, then the key alone. Lookup does not backtrack, and a rule applies only if the
//! request's descriptor ends where the rule ends. Cost grows with the entries of the request, not with the
//! rules. Loading and its error messages are elsewhere; a tree that exists is valid.

mod cidr;
mod hash;
mod matcher;
mod patterns;
mod regex_literals;
mod regexes;
mod search;
mod tree;
mod trie;
mod wildcard;

pub use cidr::{Cidr, CidrError};
pub use matcher::{Matcher, MatcherError};
pub use tree::{Child, Lookup, Match, RuleNode, Rules};

use std::mem::discriminant;
use tidegate_core::{DeniedHits, Enforcement, Quota, Value};

/// A configured limit.
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    /// The operator's name for it.
    pub name: Option<String>,
    /// The path of its rule; for one of several limits followed by `#` and its name, or its number from 1
    /// if it has no name. Unique; metrics and logs use it.
    pub path: String,
    /// Distinguishes its counters from those of the rule's other limits; empty for a single limit.
    pub label: String,
    pub quota: Quota,
    /// The time zone of its windows or of its reset, as the file names it; none for UTC.
    pub timezone: Option<String>,
    /// Whether denied hits count.
    pub denied: DeniedHits,
    /// Names of limits that do not apply to requests that meet this one.
    pub replaces: Vec<String>,
}

/// The rule of a node in the tree.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// The domain, the keys and the matched values, such as `shop/app/user=vip`. In each part `%`, `/`, `=`
    /// and `#` are percent-encoded.
    pub path: String,
    pub kind: RuleKind,
    /// Whether it denies, or only reports.
    pub enforcement: Enforcement,
    /// For each level, whether its value is part of the rule's name in metrics (`value_to_metric`,
    /// `detailed_metric`); empty if none is.
    pub metric_values: Vec<bool>,
    /// Passed on with the answer.
    pub metadata: Option<Value>,
}

/// How much a rule allows.
#[derive(Debug, Clone, PartialEq)]
pub enum RuleKind {
    /// These limits; never empty.
    Limits(Vec<Limit>),
    /// An explicit "no limit here".
    Unlimited { name: Option<String>, replaces: Vec<String> },
}

impl Limit {
    /// Whether both limits use the same counter for the same caller. Paths do not matter, as they are no part of
    /// a counter's identity.
    pub(crate) fn has_counter_of(&self, other: &Limit) -> bool {
        discriminant(&self.quota) == discriminant(&other.quota)
            && self.quota.period() == other.quota.period()
            && self.label == other.label
    }
}

impl Rule {
    /// Its limits; none if it is unlimited.
    #[must_use]
    pub fn limits(&self) -> &[Limit] {
        match &self.kind {
            RuleKind::Limits(limits) => limits,
            RuleKind::Unlimited { .. } => &[],
        }
    }

    /// The names of limits that do not apply to requests that meet this rule.
    pub fn replaces(&self) -> impl Iterator<Item = &str> {
        let unlimited: &[String] = match &self.kind {
            RuleKind::Unlimited { replaces, .. } => replaces,
            RuleKind::Limits(_) => &[],
        };
        let limits = self.limits().iter().flat_map(|limit| &limit.replaces);
        limits.chain(unlimited).map(String::as_str)
    }
}
