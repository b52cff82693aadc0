//! What a request meets: for each of its descriptors the rule that applies, after `replaces`.

use smallvec::SmallVec;
use tidegate_core::{DeniedHits, Enforcement, FixedWindow, LimitOverride, Quota, Request};
use tidegate_limits::{Limit, Lookup, Match, Rule, RuleKind, Rules};

/// What one descriptor meets.
#[derive(Debug)]
pub(super) enum Met<'a> {
    /// No limit.
    Nothing,
    /// A rule that says there is none.
    Unlimited(&'a Rule),
    /// A rule, and those of its limits that are not replaced; at least one.
    Rule { found: Match<'a>, limits: SmallVec<[&'a Limit; 2]> },
    /// The limit that the request brought along.
    Override(Quota),
}

/// One limit that a descriptor meets.
#[derive(Debug, Clone, Copy)]
pub(super) struct MetLimit<'m> {
    pub(super) quota: &'m Quota,
    pub(super) enforcement: Enforcement,
    /// None for one that the request brought along.
    pub(super) denied: Option<DeniedHits>,
    pub(super) label: &'m str,
    /// As configured; none for one that the request brought along.
    pub(super) limit: Option<&'m Limit>,
}

/// Tells the counters of limits that requests bring along from those of rules, which may borrow or
/// cut time otherwise. A rule's limit of this name would share them.
const BROUGHT_ALONG: &str = "(override)";

/// What a request meets.
#[derive(Debug)]
pub(super) struct AllMet<'a> {
    /// What each of its descriptors does.
    pub(super) each: SmallVec<[Met<'a>; 4]>,
    pub(super) replaced: Replaced,
    /// Descriptors in vain, since there are no limits for the domain.
    pub(super) without_domain: u64,
}

/// Whether a limit gave way to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Replaced {
    Nothing,
    Something,
}

/// What `request` meets.
pub(super) fn meet<'a>(rules: &'a Rules, request: &Request) -> AllMet<'a> {
    let mut met: SmallVec<[Met<'a>; 4]> = SmallVec::with_capacity(request.descriptors.len());
    let mut replaced: Vec<&str> = Vec::new();
    let mut without_domain = 0;
    for descriptor in &request.descriptors {
        if let Some(limit) = descriptor.limit {
            met.push(brought_along(rules, &request.domain, limit));
            continue;
        }
        met.push(match rules.find(&request.domain, &descriptor.entries) {
            Lookup::UnknownDomain => {
                without_domain += 1;
                Met::Nothing
            }
            Lookup::NoRule => Met::Nothing,
            Lookup::Rule(found) => {
                let rule: &'a Rule = found.rule;
                replaced.extend(rule.replaces());
                match &rule.kind {
                    RuleKind::Unlimited { .. } => Met::Unlimited(rule),
                    RuleKind::Limits(limits) => {
                        Met::Rule { found, limits: limits.iter().collect() }
                    }
                }
            }
        });
    }
    let mut all = AllMet { each: met, replaced: Replaced::Nothing, without_domain };
    if !replaced.is_empty() {
        for met in &mut all.each {
            if met.drop_named(&replaced) == Replaced::Something {
                all.replaced = Replaced::Something;
            }
        }
    }
    all
}

/// An override takes the place of the rules, but only in a domain that there is.
fn brought_along<'a>(rules: &Rules, domain: &str, limit: LimitOverride) -> Met<'a> {
    match FixedWindow::new(limit.requests, limit.unit.period()) {
        Ok(window) if rules.has_domain(domain) => Met::Override(Quota::FixedWindow(window)),
        _ => Met::Nothing,
    }
}

impl Met<'_> {
    pub(super) fn limits(&self) -> impl Iterator<Item = MetLimit<'_>> {
        let (configured, brought) = match self {
            Met::Nothing | Met::Unlimited(_) => (None, None),
            Met::Rule { found, limits } => (Some((found.rule, limits)), None),
            Met::Override(quota) => (None, Some(quota)),
        };
        let configured = configured.into_iter().flat_map(|(rule, limits)| {
            limits.iter().map(move |limit| MetLimit {
                quota: &limit.quota,
                enforcement: rule.enforcement,
                denied: Some(limit.denied),
                label: &limit.label,
                limit: Some(*limit),
            })
        });
        configured.chain(brought.map(|quota| MetLimit {
            quota,
            enforcement: Enforcement::Enforce,
            denied: None,
            label: BROUGHT_ALONG,
            limit: None,
        }))
    }

    /// The entries whose values share a counter.
    pub(super) fn shared(&self) -> &[(usize, &str)] {
        match self {
            Met::Rule { found, .. } => &found.shared,
            _ => &[],
        }
    }

    /// The rule, unless it is replaced.
    pub(super) fn rule(&self) -> Option<&Rule> {
        match self {
            Met::Rule { found, .. } => Some(found.rule),
            Met::Unlimited(rule) => Some(rule),
            Met::Nothing | Met::Override(_) => None,
        }
    }

    fn drop_named(&mut self, replaced: &[&str]) -> Replaced {
        let is_replaced =
            |name: Option<&String>| name.is_some_and(|name| replaced.contains(&name.as_str()));
        let (before, left) = match self {
            Met::Nothing | Met::Override(_) => return Replaced::Nothing,
            Met::Unlimited(rule) => match &rule.kind {
                RuleKind::Unlimited { name, .. } => (1, usize::from(!is_replaced(name.as_ref()))),
                RuleKind::Limits(_) => return Replaced::Nothing,
            },
            Met::Rule { limits, .. } => {
                let before = limits.len();
                limits.retain(|limit| !is_replaced(limit.name.as_ref()));
                (before, limits.len())
            }
        };
        if left == 0 {
            *self = Met::Nothing;
        }
        if left < before { Replaced::Something } else { Replaced::Nothing }
    }
}
