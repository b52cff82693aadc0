//! Denials that a client may cache and repeat by itself.
//!
//! A denial that depends on the rest of the request is not cached: the next request may match a rule that
//! replaces the limit. Where denied hits count nothing is cached, as cached denials would not be counted.

use std::collections::{HashMap, HashSet};
use tidegate_core::DeniedHits;
use tidegate_limits::{Rule, RuleNode, Rules};

/// By domain.
#[derive(Debug, Default)]
pub(crate) struct Denials {
    domains: HashMap<String, Domain>,
}

#[derive(Debug, Default)]
struct Domain {
    /// Whether a limit of the domain counts denied hits.
    counts_denied: bool,
    /// The names of limits that a rule replaces.
    replaced: HashSet<String>,
}

impl Denials {
    pub(crate) fn of(rules: &Rules) -> Denials {
        let domain = |name: &str| {
            let mut domain = Domain::default();
            if let Some(root) = rules.root(name) {
                domain.note(root);
            }
            (name.to_owned(), domain)
        };
        Denials { domains: rules.domain_names().into_iter().map(domain).collect() }
    }

    /// Whether denials of `rule` may be cached.
    pub(crate) fn may_be_cached(&self, domain: &str, rule: &Rule) -> bool {
        let Some(domain) = self.domains.get(domain) else { return false };
        let mut names = rule.limits().iter().filter_map(|limit| limit.name.as_ref());
        !domain.counts_denied && !names.any(|name| domain.replaced.contains(name))
    }
}

impl Domain {
    fn note(&mut self, node: &RuleNode) {
        if let Some(rule) = node.rule() {
            self.replaced.extend(rule.replaces().map(str::to_owned));
            self.counts_denied |=
                rule.limits().iter().any(|limit| limit.denied == DeniedHits::Count);
        }
        // As deep as the descriptors of the limits file.
        for child in node.children() {
            self.note(child.node);
        }
    }
}
