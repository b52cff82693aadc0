//! The tree of rules: nodes, the branches between them, and lookup.

use super::hash::{Map, Set};
use super::matcher::{Matcher, MatcherError};
use super::patterns::Index;
use super::search::Work;
use super::{Limit, Rule};
use crate::statistics::Statistic;
use std::sync::{Arc, OnceLock};
use tidegate_core::Entry;

/// A node of a domain's tree.
#[derive(Debug, Default)]
pub struct RuleNode {
    rule: Option<Arc<Rule>>,
    keys: Map<Box<str>, Branches>,
}

/// The branches of one key below a node.
#[derive(Debug, Default)]
struct Branches {
    exact: Map<Box<str>, Branch>,
    /// Length of the longest exact value: a longer value of a request is not hashed.
    exact_len_max: usize,
    any: Option<Box<Branch>>,
    patterns: Option<Box<Patterns>>,
}

/// Branches for patterns, in insertion order, which is their rank.
#[derive(Debug, Default)]
struct Patterns {
    branches: Vec<Branch>,
    known: Set<Matcher>,
    /// Built at first use, and again after a change.
    index: OnceLock<Index>,
}

#[derive(Debug)]
struct Branch {
    matcher: Matcher,
    share: Option<Box<str>>,
    node: RuleNode,
}

/// A child of a node, and the branch that leads to it.
#[derive(Debug, Clone, Copy)]
pub struct Child<'a> {
    pub key: &'a str,
    pub matcher: &'a Matcher,
    /// The text that replaces all its values in counters' identities, if the values share counters.
    pub share: Option<&'a str>,
    pub node: &'a RuleNode,
}

impl RuleNode {
    /// The rule that ends here.
    #[must_use]
    pub fn rule(&self) -> Option<&Arc<Rule>> {
        self.rule.as_ref()
    }

    /// The direct children, in no particular order.
    pub fn children(&self) -> impl Iterator<Item = Child<'_>> {
        self.keys.iter().flat_map(|(key, branches)| branches.all().map(|branch| branch.child(key)))
    }

    /// The keys of the children, sorted.
    #[must_use]
    pub fn keys(&self) -> Vec<&str> {
        let mut keys: Vec<&str> = self.keys.keys().map(|key| &**key).collect();
        keys.sort_unstable();
        keys
    }

    /// The child that matches this entry.
    #[must_use]
    pub fn next(&self, entry: &Entry) -> Option<Child<'_>> {
        let (key, branches) = self.keys.get_key_value(entry.key.as_str())?;
        branches.branch(&entry.value, &Work::default()).map(|branch| branch.child(key))
    }

    /// The number of comparisons of [`RuleNode::next`]: hashed texts, bytes of literals, passes of expressions.
    /// Shows that a lookup does not grow with the rules.
    #[must_use]
    pub fn compared(&self, entry: &Entry) -> usize {
        let work = Work::default();
        self.branch(entry, &work);
        work.get()
    }

    /// Adds a child for `key` and the values of `matcher`. With `share`, all these values share counters,
    /// and that text replaces them in the counters' identities. Of several patterns that match a value, the
    /// one that was inserted first wins.
    ///
    /// # Errors
    /// If the child exists already, or the matcher does not compile. Nothing changes then.
    pub fn insert(
        &mut self,
        key: &str,
        matcher: &Matcher,
        share: Option<&str>,
    ) -> Result<&mut RuleNode, MatcherError> {
        matcher.check()?;
        let branch = Branch {
            matcher: matcher.clone(),
            share: share.map(Box::from),
            node: RuleNode::default(),
        };
        let branch = self.keys.entry(key.into()).or_default().insert(branch)?;
        Ok(&mut branch.node)
    }

    pub fn set_rule(&mut self, rule: Rule) {
        self.rule = Some(Arc::new(rule));
    }

    fn branch(&self, entry: &Entry, work: &Work) -> Option<&Branch> {
        self.keys.get(entry.key.as_str())?.branch(&entry.value, work)
    }

    /// This node and all below it.
    fn nodes(&self) -> impl Iterator<Item = &RuleNode> {
        let mut open = vec![self];
        std::iter::from_fn(move || {
            let node = open.pop()?;
            open.extend(node.keys.values().flat_map(Branches::all).map(|branch| &branch.node));
            Some(node)
        })
    }
}

impl Branch {
    fn child<'a>(&'a self, key: &'a str) -> Child<'a> {
        Child { key, matcher: &self.matcher, share: self.share.as_deref(), node: &self.node }
    }
}

impl Branches {
    fn insert(&mut self, branch: Branch) -> Result<&mut Branch, MatcherError> {
        match &branch.matcher {
            Matcher::Any => {
                if self.any.is_some() {
                    return Err(MatcherError::Duplicate);
                }
                Ok(self.any.insert(Box::new(branch)))
            }
            Matcher::Exact(value) => {
                if self.exact.contains_key(value.as_str()) {
                    return Err(MatcherError::Duplicate);
                }
                self.exact_len_max = self.exact_len_max.max(value.len());
                Ok(self.exact.entry(value.as_str().into()).or_insert(branch))
            }
            _ => self.patterns.get_or_insert_default().insert(branch),
        }
    }

    fn branch(&self, value: &str, work: &Work) -> Option<&Branch> {
        let mut exact = None;
        if value.len() <= self.exact_len_max {
            work.add(1);
            exact = self.exact.get(value);
        }
        let pattern = || self.patterns.as_ref().and_then(|patterns| patterns.first(value, work));
        exact.or_else(pattern).or(self.any.as_deref())
    }

    fn all(&self) -> impl Iterator<Item = &Branch> {
        let patterns = self.patterns.iter().flat_map(|patterns| &patterns.branches);
        self.exact.values().chain(patterns).chain(self.any.as_deref())
    }
}

impl Patterns {
    fn insert(&mut self, branch: Branch) -> Result<&mut Branch, MatcherError> {
        if !self.known.insert(branch.matcher.normal()) {
            return Err(MatcherError::Duplicate);
        }
        self.index.take();
        Ok(self.branches.push_mut(branch))
    }

    fn first(&self, value: &str, work: &Work) -> Option<&Branch> {
        let rank = self.index().first(value, work)?;
        self.branches.get(rank as usize)
    }

    fn index(&self) -> &Index {
        self.index.get_or_init(|| Index::new(self.branches.iter().map(|branch| &branch.matcher)))
    }
}

#[derive(Debug, PartialEq)]
pub enum Lookup<'a> {
    /// No file configures this domain.
    UnknownDomain,
    /// No rule ends where the descriptor does.
    NoRule,
    Rule(Match<'a>),
}

/// A rule that applies to a descriptor.
#[derive(Debug, PartialEq)]
pub struct Match<'a> {
    pub rule: &'a Arc<Rule>,
    /// The entries whose values share counters, in order, each with the text that replaces the value in
    /// the counter's identity. Mostly empty.
    pub shared: Vec<(usize, &'a str)>,
}

/// All rules, by domain.
#[derive(Debug, Default)]
pub struct Rules {
    /// The root of each domain's tree.
    domains: Map<String, RuleNode>,
    /// Whether limits are still to come, of domains that are unknown until then.
    is_awaited: bool,
    statistics: Vec<Arc<Statistic>>,
}

impl Rules {
    /// Whether limits are still to come. A request of an unknown domain cannot be decided until then.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.is_awaited
    }

    pub fn set_awaited(&mut self, is_awaited: bool) {
        self.is_awaited = is_awaited;
    }

    /// The statistics of all domains, in the order of the files.
    #[must_use]
    pub fn statistics(&self) -> &[Arc<Statistic>] {
        &self.statistics
    }

    pub fn set_statistics(&mut self, statistics: Vec<Statistic>) {
        self.statistics = statistics.into_iter().map(Arc::new).collect();
    }

    /// The root of a domain's tree, to add rules to. The domain is created if missing.
    pub fn root_mut(&mut self, domain: &str) -> &mut RuleNode {
        self.domains.entry(domain.to_owned()).or_default()
    }

    /// Whether a file configures this domain.
    #[must_use]
    pub fn has_domain(&self, name: &str) -> bool {
        self.domains.contains_key(name)
    }

    /// The root of a domain's tree.
    #[must_use]
    pub fn root(&self, domain: &str) -> Option<&RuleNode> {
        self.domains.get(domain)
    }

    /// Builds the indexes of all patterns. Otherwise the first request that needs an index waits for it.
    pub fn build_indexes(&self) {
        for branches in self.nodes().flat_map(|node| node.keys.values()) {
            if let Some(patterns) = &branches.patterns {
                patterns.index();
            }
        }
    }

    /// The rule for a descriptor's entries.
    #[must_use]
    pub fn find(&self, domain: &str, entries: &[Entry]) -> Lookup<'_> {
        let Some(mut node) = self.domains.get(domain) else { return Lookup::UnknownDomain };
        let work = Work::default();
        let mut shared = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            let Some(branch) = node.branch(entry, &work) else { return Lookup::NoRule };
            if let Some(text) = &branch.share {
                shared.push((index, &**text));
            }
            node = &branch.node;
        }
        match &node.rule {
            Some(rule) => Lookup::Rule(Match { rule, shared }),
            None => Lookup::NoRule,
        }
    }

    /// The names of the domains, sorted.
    #[must_use]
    pub fn domain_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.domains.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// Every rule, sorted by path.
    #[must_use]
    pub fn rules(&self) -> Vec<&Arc<Rule>> {
        let mut rules: Vec<&Arc<Rule>> =
            self.nodes().filter_map(|node| node.rule.as_ref()).collect();
        rules.sort_by(|a, b| a.path.cmp(&b.path));
        rules
    }

    /// Every limit, sorted by path.
    #[must_use]
    pub fn limits(&self) -> Vec<&Limit> {
        let mut limits: Vec<&Limit> = self.rules().into_iter().flat_map(|r| r.limits()).collect();
        limits.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        limits
    }

    fn nodes(&self) -> impl Iterator<Item = &RuleNode> {
        self.domains.values().flat_map(RuleNode::nodes)
    }
}
