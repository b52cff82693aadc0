//! The limits that apply to a request: one rule for each descriptor, without limits that `replaces` removes.

use smallvec::SmallVec;
use tidegate_core::{
    DeniedHits, Descriptor, Enforcement, FixedWindow, LimitOverride, Quota, Request,
};
use tidegate_limits::{Limit, Lookup, Match, Rule, RuleKind, Rules};

/// What applies to one descriptor.
#[derive(Debug)]
pub(crate) enum Applied<'a> {
    /// No limit, as no file configures the domain.
    UnknownDomain,
    /// No rule, so no limit.
    NoRule,
    /// No limit, as another rule of the request replaces those of its own.
    Replaced,
    /// A rule without a limit.
    Unlimited(&'a Rule),
    /// A rule and its limits that are not replaced; at least one.
    Rule { found: Match<'a>, limits: SmallVec<[&'a Limit; 2]> },
    /// The limit in the request itself.
    Override(Quota),
}

/// One limit that applies to a descriptor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AppliedLimit<'m> {
    pub(crate) quota: &'m Quota,
    pub(crate) enforcement: Enforcement,
    /// None for a limit in the request itself.
    pub(crate) denied: Option<DeniedHits>,
    pub(crate) label: &'m str,
    /// As configured; none for a limit in the request itself.
    pub(crate) limit: Option<&'m Limit>,
}

/// The label of counters of limits in requests. Counters of rules may borrow or align windows differently, so
/// they must differ. A rule's limit of this name would share the counters.
const BROUGHT_ALONG: &str = "(override)";

/// The limits that apply to a request.
#[derive(Debug)]
pub(crate) struct MatchedLimits<'a> {
    /// One entry for each descriptor.
    pub(crate) each: SmallVec<[Applied<'a>; 4]>,
    pub(crate) replaced: Replaced,
    /// Descriptors without limits because their domain is unknown.
    pub(crate) without_domain: u64,
}

/// Whether `replaces` removed a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replaced {
    Nothing,
    Something,
}

/// The limits that apply to `request`.
pub(crate) fn match_limits<'a>(rules: &'a Rules, request: &Request) -> MatchedLimits<'a> {
    match_streams(rules, request, &[request.descriptors.len()])
}

/// The limits that apply to requests that came together: `streams` has the number of descriptors of each. A limit
/// replaces only those of its own stream.
pub(crate) fn match_streams<'a>(
    rules: &'a Rules,
    request: &Request,
    streams: &[usize],
) -> MatchedLimits<'a> {
    let mut all = MatchedLimits {
        each: SmallVec::with_capacity(request.descriptors.len()),
        replaced: Replaced::Nothing,
        without_domain: 0,
    };
    let mut descriptors = request.descriptors.iter();
    let mut replaced: Vec<&str> = Vec::new();
    for count in streams {
        let first = all.each.len();
        replaced.clear();
        for descriptor in descriptors.by_ref().take(*count) {
            let applied = all.matching(rules, &request.domain, descriptor, &mut replaced);
            all.each.push(applied);
        }
        if !replaced.is_empty() {
            for applied in &mut all.each[first..] {
                if applied.drop_named(&replaced) == Replaced::Something {
                    all.replaced = Replaced::Something;
                }
            }
        }
    }
    all
}

impl<'a> MatchedLimits<'a> {
    /// The limits of one descriptor. Adds the names that its rule replaces.
    fn matching(
        &mut self,
        rules: &'a Rules,
        domain: &str,
        descriptor: &Descriptor,
        replaced: &mut Vec<&'a str>,
    ) -> Applied<'a> {
        if let Some(limit) = descriptor.limit {
            return brought_along(rules, domain, limit);
        }
        match rules.find(domain, &descriptor.entries) {
            Lookup::UnknownDomain => {
                self.without_domain += 1;
                Applied::UnknownDomain
            }
            Lookup::NoRule => Applied::NoRule,
            Lookup::Rule(found) => {
                let rule: &'a Rule = found.rule;
                replaced.extend(rule.replaces());
                match &rule.kind {
                    RuleKind::Unlimited { .. } => Applied::Unlimited(rule),
                    RuleKind::Limits(limits) => {
                        Applied::Rule { found, limits: limits.iter().collect() }
                    }
                }
            }
        }
    }
}

/// An override takes the place of the rules, but only in a known domain.
fn brought_along<'a>(rules: &Rules, domain: &str, limit: LimitOverride) -> Applied<'a> {
    match FixedWindow::new(limit.requests, limit.unit.period()) {
        Ok(window) if rules.has_domain(domain) => Applied::Override(Quota::FixedWindow(window)),
        _ => Applied::UnknownDomain,
    }
}

impl Applied<'_> {
    pub(crate) fn limits(&self) -> impl Iterator<Item = AppliedLimit<'_>> {
        let count = match self {
            Applied::Rule { limits, .. } => limits.len(),
            Applied::Override(_) => 1,
            _ => 0,
        };
        (0..count).filter_map(|index| match self {
            Applied::Rule { found, limits } => limits.get(index).map(|limit| AppliedLimit {
                quota: &limit.quota,
                enforcement: found.rule.enforcement,
                denied: Some(limit.denied),
                label: &limit.label,
                limit: Some(*limit),
            }),
            Applied::Override(quota) => Some(AppliedLimit {
                quota,
                enforcement: Enforcement::Enforce,
                denied: None,
                label: BROUGHT_ALONG,
                limit: None,
            }),
            _ => None,
        })
    }

    /// The entries whose values share one counter.
    pub(crate) fn shared(&self) -> &[(usize, &str)] {
        match self {
            Applied::Rule { found, .. } => &found.shared,
            _ => &[],
        }
    }

    /// The rule, unless it is replaced.
    pub(crate) fn rule(&self) -> Option<&Rule> {
        match self {
            Applied::Rule { found, .. } => Some(found.rule),
            Applied::Unlimited(rule) => Some(rule),
            _ => None,
        }
    }

    /// Whether no rule and no limit applies.
    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self, Applied::UnknownDomain | Applied::NoRule | Applied::Replaced)
    }

    fn drop_named(&mut self, replaced: &[&str]) -> Replaced {
        let is_replaced =
            |name: Option<&String>| name.is_some_and(|name| replaced.contains(&name.as_str()));
        let (before, left) = match self {
            Applied::UnknownDomain | Applied::NoRule | Applied::Replaced | Applied::Override(_) => {
                return Replaced::Nothing;
            }
            Applied::Unlimited(rule) => match &rule.kind {
                RuleKind::Unlimited { name, .. } => (1, usize::from(!is_replaced(name.as_ref()))),
                RuleKind::Limits(_) => return Replaced::Nothing,
            },
            Applied::Rule { limits, .. } => {
                let before = limits.len();
                limits.retain(|limit| !is_replaced(limit.name.as_ref()));
                (before, limits.len())
            }
        };
        if left == 0 {
            *self = Applied::Replaced;
        }
        if left < before { Replaced::Something } else { Replaced::Nothing }
    }
}
