//! Which denials a client may be told to repeat by itself.
//!
//! Not those that depend on what else a request has: of limits that a rule replaces, as the next
//! request may meet that rule; and none where denied hits count, as they would not be counted.

use std::collections::{HashMap, HashSet};
use tidegate_core::DeniedHits;
use tidegate_limits::{Rule, RuleNode, Rules};

/// By domain.
#[derive(Debug, Default)]
pub(super) struct Denials {
    domains: HashMap<String, Domain>,
}

#[derive(Debug, Default)]
struct Domain {
    /// Whether it has a limit that counts the hits of denied requests.
    counts_denied: bool,
    /// The names of limits that some rule replaces.
    replaced: HashSet<String>,
}

impl Denials {
    pub(super) fn of(rules: &Rules) -> Denials {
        let domain = |name: &str| {
            let mut domain = Domain::default();
            if let Some(root) = rules.root(name) {
                domain.note(root);
            }
            (name.to_owned(), domain)
        };
        Denials { domains: rules.domain_names().into_iter().map(domain).collect() }
    }

    /// Whether those of `rule` may be told.
    pub(super) fn may_be_told(&self, domain: &str, rule: &Rule) -> bool {
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
        // As deep as descriptors are in the limits file.
        for child in node.children() {
            self.note(child.node);
        }
    }
}
