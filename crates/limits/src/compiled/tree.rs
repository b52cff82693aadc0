//! The tree itself.

use super::hash::{Map, Set};
use super::matcher::{Matcher, MatcherError};
use super::patterns::Index;
use super::work::Work;
use super::{Limit, Rule};
use std::sync::{Arc, OnceLock};
use tidegate_core::Entry;

/// A place in a domain's tree.
#[derive(Debug, Default)]
pub struct RuleNode {
    rule: Option<Arc<Rule>>,
    keys: Map<Box<str>, Places>,
}

/// The places of one key below a node.
#[derive(Debug, Default)]
struct Places {
    exact: Map<Box<str>, Place>,
    /// Length of the longest value among them: longer ones need not be hashed.
    exact_len_max: usize,
    any: Option<Box<Place>>,
    patterns: Option<Box<Patterns>>,
}

/// Places for patterns, in the order in which they came.
#[derive(Debug, Default)]
struct Patterns {
    places: Vec<Place>,
    known: Set<Matcher>,
    /// Made when it is first needed, and anew after a change.
    index: OnceLock<Index>,
}

#[derive(Debug)]
struct Place {
    matcher: Matcher,
    share: Option<Box<str>>,
    node: RuleNode,
}

/// A place below another, for those who list them.
#[derive(Debug, Clone, Copy)]
pub struct Below<'a> {
    /// The key that leads there.
    pub key: &'a str,
    /// The values that it takes.
    pub matcher: &'a Matcher,
    /// The text that stands for all its values, where they share counters.
    pub share: Option<&'a str>,
    /// What stands there, and what is below.
    pub node: &'a RuleNode,
}

impl RuleNode {
    /// The rule that ends here.
    #[must_use]
    pub fn rule(&self) -> Option<&Arc<Rule>> {
        self.rule.as_ref()
    }

    /// The places right below, in no order.
    pub fn below(&self) -> impl Iterator<Item = Below<'_>> {
        self.keys.iter().flat_map(|(key, places)| {
            places.all().map(|place| Below {
                key,
                matcher: &place.matcher,
                share: place.share.as_deref(),
                node: &place.node,
            })
        })
    }

    /// Where a descriptor with this entry goes on.
    #[must_use]
    pub fn next(&self, entry: &Entry) -> Option<&RuleNode> {
        self.place(entry, &Work::default()).map(|place| &place.node)
    }

    /// Adds the place below this one for `key` and the values of `matcher`. With `share` all values
    /// that the place takes share counters, and that text stands for them in the counters'
    /// identity. Of patterns that match a value the one that was added first takes it.
    ///
    /// # Errors
    /// When it exists already, or the matcher does not compile; nothing changes then.
    pub fn insert(
        &mut self,
        key: &str,
        matcher: &Matcher,
        share: Option<&str>,
    ) -> Result<&mut RuleNode, MatcherError> {
        matcher.check()?;
        let place = Place {
            matcher: matcher.clone(),
            share: share.map(Box::from),
            node: RuleNode::default(),
        };
        let place = self.keys.entry(key.into()).or_default().insert(place)?;
        Ok(&mut place.node)
    }

    /// Sets what stands here.
    pub fn set_rule(&mut self, rule: Rule) {
        self.rule = Some(Arc::new(rule));
    }

    fn place(&self, entry: &Entry, work: &Work) -> Option<&Place> {
        self.keys.get(entry.key.as_str())?.place(&entry.value, work)
    }

    /// This node and all below it.
    fn nodes(&self) -> impl Iterator<Item = &RuleNode> {
        let mut open = vec![self];
        std::iter::from_fn(move || {
            let node = open.pop()?;
            open.extend(node.keys.values().flat_map(Places::all).map(|place| &place.node));
            Some(node)
        })
    }
}

impl Places {
    fn insert(&mut self, place: Place) -> Result<&mut Place, MatcherError> {
        match &place.matcher {
            Matcher::Any => {
                if self.any.is_some() {
                    return Err(MatcherError::Duplicate);
                }
                Ok(self.any.insert(Box::new(place)))
            }
            Matcher::Exact(value) => {
                if self.exact.contains_key(value.as_str()) {
                    return Err(MatcherError::Duplicate);
                }
                self.exact_len_max = self.exact_len_max.max(value.len());
                Ok(self.exact.entry(value.as_str().into()).or_insert(place))
            }
            _ => self.patterns.get_or_insert_default().insert(place),
        }
    }

    fn place(&self, value: &str, work: &Work) -> Option<&Place> {
        let mut exact = None;
        if value.len() <= self.exact_len_max {
            work.did(1);
            exact = self.exact.get(value);
        }
        let pattern = || self.patterns.as_ref().and_then(|patterns| patterns.first(value, work));
        exact.or_else(pattern).or(self.any.as_deref())
    }

    fn all(&self) -> impl Iterator<Item = &Place> {
        let patterns = self.patterns.iter().flat_map(|patterns| &patterns.places);
        self.exact.values().chain(patterns).chain(self.any.as_deref())
    }
}

impl Patterns {
    fn insert(&mut self, place: Place) -> Result<&mut Place, MatcherError> {
        if !self.known.insert(place.matcher.normal()) {
            return Err(MatcherError::Duplicate);
        }
        self.index.take();
        Ok(self.places.push_mut(place))
    }

    fn first(&self, value: &str, work: &Work) -> Option<&Place> {
        let order = self.index().first(value, work)?;
        self.places.get(order as usize)
    }

    fn index(&self) -> &Index {
        let matchers = || self.places.iter().map(|place| &place.matcher);
        self.index.get_or_init(|| Index::new(matchers()))
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
#[derive(Debug, PartialEq)]
pub enum Found<'a> {
    /// No file configures this domain.
    UnknownDomain,
    /// No rule ends where the descriptor does.
    NoRule,
    /// This rule applies.
    Rule(Match<'a>),
}

/// A rule that applies to a descriptor.
#[derive(Debug, PartialEq)]
pub struct Match<'a> {
    /// The rule.
    pub rule: &'a Arc<Rule>,
    /// The entries whose values share counters, each with the text that stands for the value in
    /// the identity of the counter. In order; mostly empty.
    pub shared: Vec<(usize, &'a str)>,
}

/// One level of a look at the tree, for those who explain it.
#[derive(Debug, PartialEq)]
pub struct Step<'a> {
    /// How the entry found its place; none when there is no place for it, which ends the look.
    pub matched: Option<&'a Matcher>,
    /// What stands at the place that was found.
    pub rule: Option<&'a Arc<Rule>>,
    /// The keys that the place before this entry goes on with, sorted.
    pub keys: Vec<&'a str>,
    /// What was compared with the value: hashed texts, bytes of literals, passes of expressions.
    /// Tells that a look does not grow with the rules.
    pub compared: usize,
}

/// A whole look: one step per entry, up to the first without a place; none if the domain is unknown.
pub type Steps<'a> = Option<Vec<Step<'a>>>;

/// All rules, by domain.
#[derive(Debug, Default)]
pub struct Rules {
    domains: Map<String, DomainRules>,
}

impl Rules {
    /// The domain of this name, made if missing.
    pub fn domain_mut(&mut self, name: &str) -> &mut DomainRules {
        self.domains.entry(name.to_owned()).or_insert_with(|| DomainRules::new(name))
    }

    /// Whether a file configures this domain.
    #[must_use]
    pub fn has_domain(&self, name: &str) -> bool {
        self.domains.contains_key(name)
    }

    /// The top of a domain's tree.
    #[must_use]
    pub fn root(&self, domain: &str) -> Option<&RuleNode> {
        self.domains.get(domain).map(|domain| &domain.root)
    }

    /// Makes the indexes of all patterns. Without it each is made when it is first needed, which
    /// the request that needs it waits for.
    pub fn seal(&self) {
        for places in self.nodes().flat_map(|node| node.keys.values()) {
            if let Some(patterns) = &places.patterns {
                patterns.index();
            }
        }
    }

    /// The rule for a descriptor's entries.
    #[must_use]
    pub fn find(&self, domain: &str, entries: &[Entry]) -> Found<'_> {
        let Some(domain) = self.domains.get(domain) else { return Found::UnknownDomain };
        let work = Work::default();
        let mut node = &domain.root;
        let mut shared = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            let Some(place) = node.place(entry, &work) else { return Found::NoRule };
            if let Some(text) = &place.share {
                shared.push((index, &**text));
            }
            node = &place.node;
        }
        match &node.rule {
            Some(rule) => Found::Rule(Match { rule, shared }),
            None => Found::NoRule,
        }
    }

    /// The way that [`Rules::find`] takes, level by level.
    #[must_use]
    pub fn steps(&self, domain: &str, entries: &[Entry]) -> Steps<'_> {
        let work = Work::default();
        let mut node = Some(&self.domains.get(domain)?.root);
        let mut steps = Vec::with_capacity(entries.len());
        for entry in entries {
            let Some(before) = node else { break };
            let mut keys: Vec<&str> = before.keys.keys().map(|key| &**key).collect();
            keys.sort_unstable();
            let place = before.place(entry, &work);
            node = place.map(|place| &place.node);
            steps.push(Step {
                matched: place.map(|place| &place.matcher),
                rule: node.and_then(|node| node.rule.as_ref()),
                keys,
                compared: work.take(),
            });
        }
        Some(steps)
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
        self.domains.values().flat_map(|domain| domain.root.nodes())
    }
}
