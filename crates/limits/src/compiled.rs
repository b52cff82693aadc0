//! Compiled rules: a tree per domain, looked up one entry per level.
//!
//! Matching is envoyproxy/ratelimit's: at each level the exact value wins, then the first pattern
//! that matches in the order of the file, then the key alone; there is no way back up, and a rule
//! applies only when the request's descriptor ends where the rule does. Cost grows with the
//! entries of the request, not with the rules. Loading and its error messages live in the sidecar;
//! a tree that exists is valid.

mod cidr;
mod hash;
mod matcher;
mod patterns;
mod regex_literals;
mod regexes;
mod tree;
mod trie;
mod wildcard;
mod work;

pub use cidr::{Cidr, CidrError};
pub use matcher::{Matcher, MatcherError};
pub use tree::{Below, DomainRules, Found, Match, RuleNode, Rules, Step, Steps};

use tidegate_core::{Denied, Enforcement, Quota, Value};

/// A configured limit.
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    /// The operator's name for it.
    pub name: Option<String>,
    /// Where it stands: the path of its rule, and for one of several limits `#` and its name, or
    /// its place from 1 when it has none. Unique among the rules; metrics and logs use it.
    pub path: String,
    /// What tells its counters from those of the other limits of its rule; empty for the only one.
    pub label: String,
    /// The compiled rate.
    pub quota: Quota,
    /// What becomes of denied requests.
    pub denied: Denied,
    /// Names of limits that do not apply to a request that meets this one.
    pub replaces: Vec<String>,
}

/// What stands at a place in the tree.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// The domain and the keys down to it, with values where the rule has them, such as
    /// `shop/app/user=vip`, with `%`, `/`, `=` and `#` inside a part percent-encoded.
    pub path: String,
    /// How much is allowed.
    pub kind: RuleKind,
    /// Whether it denies, or only reports.
    pub enforcement: Enforcement,
    /// Which levels' values are part of the rule's name in metrics (`value_to_metric`,
    /// `detailed_metric`); empty when none is.
    pub metric_values: Vec<bool>,
    /// What to pass on with the answer.
    pub metadata: Option<Value>,
}

/// How much a rule allows.
#[derive(Debug, Clone, PartialEq)]
pub enum RuleKind {
    /// These limits; never empty.
    Limits(Vec<Limit>),
    /// An explicit "no limit here".
    Unlimited {
        /// The operator's name for it.
        name: Option<String>,
        /// Names of limits that do not apply to a request that meets this rule.
        replaces: Vec<String>,
    },
}

impl Rule {
    /// Its limits; none when it is unlimited.
    #[must_use]
    pub fn limits(&self) -> &[Limit] {
        match &self.kind {
            RuleKind::Limits(limits) => limits,
            RuleKind::Unlimited { .. } => &[],
        }
    }

    /// The names of limits that do not apply to a request that meets this rule.
    pub fn replaces(&self) -> impl Iterator<Item = &str> {
        let unlimited: &[String] = match &self.kind {
            RuleKind::Unlimited { replaces, .. } => replaces,
            RuleKind::Limits(_) => &[],
        };
        let limits = self.limits().iter().flat_map(|limit| &limit.replaces);
        limits.chain(unlimited).map(String::as_str)
    }
}
