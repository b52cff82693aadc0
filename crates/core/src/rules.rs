//! Compiled rules: a tree per domain, looked up one entry per level.
//!
//! Matching is envoyproxy/ratelimit's: at each level the exact value wins over the key alone,
//! there is no way back up, and a rule applies only when the request's descriptor ends where the
//! rule does. Loading and its error messages live in the sidecar; a tree that exists is valid.

use crate::descriptor::Entry;
use crate::engine::Enforcement;
use crate::quota::Quota;
use std::collections::HashMap;
use std::sync::Arc;

/// A configured limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// The operator's name for it.
    pub name: Option<String>,
    /// Where it stands: the domain and the keys down to it, with values where the rule has them,
    /// such as `shop/app/user=vip`, with `%`, `/` and `=` inside a part percent-encoded. Unique
    /// among the rules; metrics and logs use it.
    pub path: String,
    /// The compiled rate.
    pub quota: Quota,
    /// Whether it denies, or only reports.
    pub enforcement: Enforcement,
}

/// What stands at a place in the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    /// A limit.
    Limit(Arc<Limit>),
    /// An explicit "no limit here".
    Unlimited,
}

/// A place in a domain's tree.
#[derive(Debug, Default)]
pub struct RuleNode {
    rule: Option<Rule>,
    keys: HashMap<String, KeyRules>,
}

#[derive(Debug, Default)]
struct KeyRules {
    /// The rule for any value that has none of its own.
    any: Option<Box<RuleNode>>,
    values: HashMap<String, RuleNode>,
}

impl RuleNode {
    /// Adds the place below this one for `key` and `value` (none: any value). Returns none when
    /// it exists already, which callers report as a duplicate.
    pub fn insert(&mut self, key: &str, value: Option<&str>) -> Option<&mut RuleNode> {
        let rules = self.keys.entry(key.to_owned()).or_default();
        match value {
            None if rules.any.is_some() => None,
            None => Some(rules.any.insert(Box::default())),
            Some(value) if rules.values.contains_key(value) => None,
            Some(value) => Some(rules.values.entry(value.to_owned()).or_default()),
        }
    }

    /// Sets what stands here.
    pub fn set_rule(&mut self, rule: Rule) {
        self.rule = Some(rule);
    }

    fn step(&self, entry: &Entry) -> Option<&RuleNode> {
        let rules = self.keys.get(&entry.key)?;
        rules.values.get(&entry.value).or(rules.any.as_deref())
    }

    fn collect<'a>(&'a self, limits: &mut Vec<&'a Arc<Limit>>) {
        if let Some(Rule::Limit(limit)) = &self.rule {
            limits.push(limit);
        }
        for rules in self.keys.values() {
            rules.any.iter().for_each(|node| node.collect(limits));
            rules.values.values().for_each(|node| node.collect(limits));
        }
    }
}

/// The rules of one domain.
#[derive(Debug)]
pub struct DomainRules {
    name: String,
    root: RuleNode,
}

impl DomainRules {
    /// A domain without rules.
    pub fn new(name: impl Into<String>) -> Self {
        DomainRules { name: name.into(), root: RuleNode::default() }
    }

    /// The domain's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The top of the tree, to add rules to.
    pub fn root_mut(&mut self) -> &mut RuleNode {
        &mut self.root
    }
}

/// What the rules say of a descriptor.
#[derive(Debug, PartialEq, Eq)]
pub enum Found<'a> {
    /// No file configures this domain.
    UnknownDomain,
    /// No rule ends where the descriptor does.
    NoLimit,
    /// The descriptor is explicitly unlimited.
    Unlimited,
    /// This limit applies.
    Limit(&'a Arc<Limit>),
}

/// All rules, by domain.
#[derive(Debug, Default)]
pub struct Rules {
    domains: HashMap<String, DomainRules>,
}

impl Rules {
    /// Adds a domain. Gives it back when one of that name is there already.
    ///
    /// # Errors
    /// When the domain is a duplicate.
    pub fn insert(&mut self, domain: DomainRules) -> Result<(), DomainRules> {
        if self.domains.contains_key(&domain.name) {
            return Err(domain);
        }
        self.domains.insert(domain.name.clone(), domain);
        Ok(())
    }

    /// The rule for a descriptor's entries. Cost grows with the entries, not with the rules.
    #[must_use]
    pub fn find(&self, domain: &str, entries: &[Entry]) -> Found<'_> {
        let Some(domain) = self.domains.get(domain) else {
            return Found::UnknownDomain;
        };
        let mut node = &domain.root;
        for entry in entries {
            match node.step(entry) {
                Some(next) => node = next,
                None => return Found::NoLimit,
            }
        }
        match &node.rule {
            None => Found::NoLimit,
            Some(Rule::Unlimited) => Found::Unlimited,
            Some(Rule::Limit(limit)) => Found::Limit(limit),
        }
    }

    /// The names of the domains, sorted.
    #[must_use]
    pub fn domain_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.domains.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// Every limit, sorted by path.
    #[must_use]
    pub fn limits(&self) -> Vec<&Arc<Limit>> {
        let mut limits = Vec::new();
        for domain in self.domains.values() {
            domain.root.collect(&mut limits);
        }
        limits.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        limits
    }
}
