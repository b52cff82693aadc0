//! What became of the hits of a descriptor: what it met, which of its limits had room, and who decided.
//!
//! Made for each descriptor and read by observers. It refers to what was decided and copies nothing, so an observer
//! that looks at nothing costs nothing.

use crate::applied::Applied;
use tidegate_core::{Charge, Decision, Enforcement, Entry, Nanos, Outcome as Fit, Quota, Verdict};
use tidegate_limits::{Limit, Rule};

/// What became of the hits of one descriptor.
#[derive(Debug)]
pub struct Outcome<'a> {
    pub domain: &'a str,
    pub entries: &'a [Entry],
    pub met: Met<'a>,
    /// Hits of 0 only look, and refunds are no hits.
    pub charge: Charge,
    pub fate: Fate,
    pub decided_in: DecidedIn,
    limits: Limits<'a>,
}

/// What a descriptor met.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Met<'a> {
    UnknownDomain,
    /// No rule of its domain.
    NoRule,
    Rule(&'a Rule),
    /// A rule that did not apply, since another one of the request replaces it.
    Replaced,
    /// The limit that the descriptor brought along.
    Override,
}

/// What became of hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Allowed,
    /// A limit had no room, and its rule denies.
    Denied,
    /// There was room, but another limit of the request denied it.
    DeniedElsewhere,
    /// A limit had no room, but the request passed: in shadow mode or quota mode.
    Shadowed,
}

/// Who decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecidedIn {
    /// This program.
    Sidecar,
    /// The filter, by leased tokens or by a denial that it had cached.
    Envoy,
}

/// One limit that a descriptor met.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LimitOutcome<'a> {
    /// None for a limit that the request brought along.
    pub limit: Option<&'a Limit>,
    pub fate: Fate,
    /// Whether the rule only reports what it would deny.
    pub shadow: Shadow,
    /// The hits left; none if that is not known.
    pub remaining: Option<u64>,
    pub capacity: u32,
    /// The time until the same hits can fit, if they did not and that is known.
    pub retry_after: Option<Nanos>,
}

/// Whether a rule only reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shadow {
    No,
    Yes,
}

/// Whether descriptors pass together or each by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passing {
    Together(Verdict),
    /// Debits, which have happened.
    Each,
}

#[derive(Debug)]
enum Limits<'a> {
    Decided(DecidedLimits<'a>),
    Tallied { limits: &'a [Limit], over: &'a [String], shadow: Shadow, fate: Fate },
}

/// Limits that were decided here.
#[derive(Debug, Clone, Copy)]
struct DecidedLimits<'a> {
    limits: &'a [&'a Limit],
    /// The limit that the descriptor brought along, in place of others.
    brought: Option<&'a Quota>,
    shadow: Shadow,
    /// One for each.
    decisions: &'a [Decision],
    passing: Passing,
}

impl<'a> Outcome<'a> {
    /// Of a descriptor that was decided here. `decisions` are those on its limits.
    pub(crate) fn decided(
        (domain, entries): (&'a str, &'a [Entry]),
        applied: &'a Applied<'_>,
        charge: Charge,
        decisions: &'a [Decision],
        passing: Passing,
    ) -> Outcome<'a> {
        let (mut limits, mut brought, mut shadow) = (&[][..], None, Shadow::No);
        let met = match applied {
            Applied::UnknownDomain => Met::UnknownDomain,
            Applied::NoRule => Met::NoRule,
            Applied::Replaced => Met::Replaced,
            Applied::Override(quota) => {
                brought = Some(quota);
                Met::Override
            }
            Applied::Unlimited(rule) => Met::Rule(rule),
            Applied::Rule { found, limits: all } => {
                (limits, shadow) = (all.as_slice(), shadow_of(found.rule.enforcement));
                Met::Rule(found.rule)
            }
        };
        let decided = DecidedLimits { limits, brought, shadow, decisions, passing };
        let (fate, limits) = (decided.fate(), Limits::Decided(decided));
        Outcome { domain, entries, met, charge, fate, decided_in: DecidedIn::Sidecar, limits }
    }

    /// Of hits that the filter decided. `over` are the names of the limits that denied, if the rule has several.
    pub(crate) fn tallied(
        (domain, entries): (&'a str, &'a [Entry]),
        met: Met<'a>,
        charge: Charge,
        fate: Fate,
        over: &'a [String],
    ) -> Outcome<'a> {
        let (limits, shadow) = match met {
            Met::Rule(rule) => (rule.limits(), shadow_of(rule.enforcement)),
            _ => (&[][..], Shadow::No),
        };
        let limits = Limits::Tallied { limits, over, shadow, fate };
        Outcome { domain, entries, met, charge, fate, decided_in: DecidedIn::Envoy, limits }
    }

    /// The rule that it met.
    #[must_use]
    pub fn rule(&self) -> Option<&'a Rule> {
        match self.met {
            Met::Rule(rule) => Some(rule),
            _ => None,
        }
    }

    /// The limits that it met.
    pub fn limits(&self) -> impl Iterator<Item = LimitOutcome<'_>> {
        let (decided, tallied) = match &self.limits {
            Limits::Decided(decided) => (Some(decided.each()), None),
            Limits::Tallied { limits, over, shadow, fate } => {
                (None, Some(tallied_limits(limits, over, (*fate, *shadow))))
            }
        };
        decided.into_iter().flatten().chain(tallied.into_iter().flatten())
    }

    /// The first limit that denied its hits.
    #[must_use]
    pub fn denied_by(&self) -> Option<LimitOutcome<'_>> {
        self.limits().find(|limit| self.fate == Fate::Denied && limit.fate == Fate::Denied)
    }
}

impl<'a> DecidedLimits<'a> {
    /// What became of the hits of the descriptor.
    fn fate(&self) -> Fate {
        let is_over = !self.decisions.iter().all(Decision::is_allow);
        let denies = is_over && self.shadow == Shadow::No;
        match self.passing {
            Passing::Together(Verdict::Deny) if denies => Fate::Denied,
            Passing::Together(Verdict::Deny) => Fate::DeniedElsewhere,
            Passing::Each if denies => Fate::Denied,
            _ if is_over => Fate::Shadowed,
            _ => Fate::Allowed,
        }
    }

    fn each(self) -> impl Iterator<Item = LimitOutcome<'a>> {
        let DecidedLimits { limits, brought, shadow, decisions, passing } = self;
        let brought = brought.map(|quota| (None, quota)).into_iter();
        let all = limits.iter().map(|limit| (Some(*limit), &limit.quota)).chain(brought);
        all.zip(decisions).map(move |((limit, quota), decision)| {
            let fate = match (decision.is_allow(), shadow, passing) {
                (true, _, Passing::Together(Verdict::Deny)) => Fate::DeniedElsewhere,
                (true, ..) => Fate::Allowed,
                (false, Shadow::Yes, _) | (false, _, Passing::Together(Verdict::Allow)) => {
                    Fate::Shadowed
                }
                (false, ..) => Fate::Denied,
            };
            let (remaining, capacity) = (Some(decision.remaining), quota.capacity());
            let retry_after = match decision.outcome {
                Fit::Allow => None,
                Fit::Deny { retry_after } => Some(retry_after),
            };
            LimitOutcome { limit, fate, shadow, remaining, capacity, retry_after }
        })
    }
}

fn tallied_limits<'a>(
    limits: &'a [Limit],
    over: &'a [String],
    (fate, shadow): (Fate, Shadow),
) -> impl Iterator<Item = LimitOutcome<'a>> {
    let is_named = |limit: &Limit| limit.name.as_ref().is_some_and(|name| is_told(name, over));
    // Of limits without names, it is not known which denied.
    let is_known = fate == Fate::Denied && limits.iter().any(is_named);
    limits.iter().map(move |limit| {
        let fate = if is_known && !is_named(limit) { Fate::DeniedElsewhere } else { fate };
        let capacity = limit.quota.capacity();
        let (limit, remaining, retry_after) = (Some(limit), None, None);
        LimitOutcome { limit, fate, shadow, remaining, capacity, retry_after }
    })
}

/// Whether a name is among those told. The filter keeps the beginnings of long ones.
fn is_told(name: &str, told: &[String]) -> bool {
    const CUT_BYTES_MIN: usize = 61;
    let is_same = |told: &String| {
        name == told || (told.len() >= CUT_BYTES_MIN && name.starts_with(told.as_str()))
    };
    told.iter().any(is_same)
}

fn shadow_of(enforcement: Enforcement) -> Shadow {
    match enforcement {
        Enforcement::Shadow => Shadow::Yes,
        Enforcement::Enforce | Enforcement::Quota => Shadow::No,
    }
}
