//! What changes, and for whom, when one set of limits takes the place of another.
//!
//! Goes by the paths of rules and limits, so it sees what a limit means and not how it is written.
//! What keeps its counts follows from the identity of a counter: see `tidegate_core::Identity`.
//! Decides nothing and prints nothing.

mod limits;
mod places;
mod probe;

pub use probe::decoded;

use crate::describe::{numbers, some_of};
use crate::text::escaped;
use crate::{Rule, RuleKind, Rules};
use limits::Sharing;
use places::{Place, Places, ends};
use probe::Counterpart;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use tidegate_core::Enforcement;

/// Rules whose counts start anew that are listed.
const NAMES_MAX: usize = 5;

/// Rules and their places taken down for a comparison; shares the rules with those that are in force.
#[derive(Debug, Default)]
pub struct Snapshot {
    domains: BTreeSet<String>,
    rules: BTreeMap<String, Arc<Rule>>,
    /// The text that stands for the values of each place, where they share counters.
    shares: BTreeMap<String, Option<String>>,
}

/// How something changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Added,
    Removed,
    Changed,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The path of a rule or limit, or a domain.
    pub path: String,
    pub kind: Kind,
    /// What it was and what it is.
    pub what: String,
    /// What that means for callers.
    pub means: String,
}

/// All changes, ordered by path.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes(pub Vec<Change>);

impl Snapshot {
    pub fn of(rules: &Rules) -> Snapshot {
        Snapshot::with(rules, &places::all(rules))
    }

    fn with(rules: &Rules, places: &Places<'_>) -> Snapshot {
        let share = |place: &Place<'_>| place.last()?.share.map(str::to_owned);
        Snapshot {
            domains: rules.domain_names().into_iter().map(str::to_owned).collect(),
            rules: rules.rules().into_iter().map(|r| (r.path.clone(), r.clone())).collect(),
            shares: places.iter().map(|(path, place)| (path.clone(), share(place))).collect(),
        }
    }

    /// How many limits there are.
    pub fn limits(&self) -> usize {
        self.rules.values().map(|rule| rule.limits().len()).sum()
    }

    /// The paths of all places, sorted.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.shares.keys().map(String::as_str)
    }

    pub fn domains(&self) -> usize {
        self.domains.len()
    }
}

/// The changes from `old` to `new`, by their rules alone.
pub fn compare(old: &Snapshot, new: &Snapshot) -> Changes {
    compare_with(old, new, |_| None)
}

/// The changes from `old` to `new`, and what became of callers whose rule is another now.
pub fn compare_rules(old: &Rules, new: &Rules) -> Changes {
    let (before, after) = (places::all(old), places::all(new));
    let snapshots = (&Snapshot::with(old, &before), &Snapshot::with(new, &after));
    let mut changes = compare_with(snapshots.0, snapshots.1, |lone| {
        let (of, other, places) = match lone.kind {
            Kind::Removed => (old, new, &before),
            Kind::Added | Kind::Changed => (new, old, &after),
        };
        probe::counterpart(of, other, places.get(lone.path)?)
    });
    changes.0.extend(probe::moved((old, &before), (new, &after)));
    changes.sort();
    changes
}

/// A rule that only one side has.
struct Lone<'a> {
    path: &'a str,
    kind: Kind,
}

fn compare_with<'r>(
    old: &Snapshot,
    new: &Snapshot,
    counterpart: impl Fn(&Lone<'_>) -> Option<Counterpart<'r>>,
) -> Changes {
    let mut changes = Vec::new();
    for domain in new.domains.difference(&old.domains) {
        changes.push(domain_change(domain, Kind::Added));
    }
    for domain in old.domains.difference(&new.domains) {
        changes.push(domain_change(domain, Kind::Removed));
    }
    let mut shared: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (path, rule) in &old.rules {
        let Some(now) = new.rules.get(path) else {
            let lone = Lone { path, kind: Kind::Removed };
            changes.push(removed(rule, counterpart(&lone)));
            continue;
        };
        let mut sharing = Sharing::Same;
        for place in ends(path).map(|end| &path[..end]) {
            let is_counted = !rule.limits().is_empty() && !now.limits().is_empty();
            if is_counted && old.shares.get(place) != new.shares.get(place) {
                sharing = Sharing::Other;
                shared.entry(place).or_default().push(path);
            }
        }
        rule_changes(rule, now, sharing, &mut changes);
    }
    changes.extend(shared.into_iter().map(|(place, rules)| share_change(new, place, rules)));
    for (path, rule) in new.rules.iter().filter(|(path, _)| !old.rules.contains_key(*path)) {
        let lone = Lone { path, kind: Kind::Added };
        changes.push(added(rule, counterpart(&lone)));
    }
    let mut changes = Changes(changes);
    changes.sort();
    changes
}

/// What it means that the values of a place share counters now, or no longer do, for the limits of
/// these rules.
fn share_change(new: &Snapshot, place: &str, rules: Vec<&str>) -> Change {
    let (what, means) = match new.shares.get(place) {
        Some(Some(_)) => {
            ("share_threshold on", "all values of the pattern share one counter now; ")
        }
        _ => ("share_threshold off", "each value of the pattern has a counter of its own now; "),
    };
    let rules = some_of(rules.into_iter(), NAMES_MAX);
    Change {
        path: place.to_owned(),
        kind: Kind::Changed,
        what: what.to_owned(),
        means: format!("{means}counts of {rules} start anew"),
    }
}

fn domain_change(domain: &str, kind: Kind) -> Change {
    let (what, means) = match kind {
        Kind::Removed => {
            ("domain removed", "requests that name this domain meet no limit any more")
        }
        _ => ("domain added", "requests that name this domain are looked up among its rules now"),
    };
    Change { path: escaped(domain), kind, what: what.to_owned(), means: means.to_owned() }
}

fn added(rule: &Rule, before: Option<Counterpart<'_>>) -> Change {
    let mut means = match (&rule.kind, rule.enforcement) {
        (RuleKind::Unlimited { .. }, _) => format!("callers matching {} pass unlimited", rule.path),
        (_, Enforcement::Shadow) => {
            format!("callers matching {} are counted, and not denied", rule.path)
        }
        _ => format!("callers matching {} are limited now", rule.path),
    };
    if let Some(Counterpart { rule: before, kept }) = before {
        means += &format!("; they met {} ({}) before{kept}", before.path, describe(before));
    }
    Change { path: rule.path.clone(), kind: Kind::Added, what: describe(rule), means }
}

fn removed(rule: &Rule, after: Option<Counterpart<'_>>) -> Change {
    let path = &rule.path;
    let means = match (after, &rule.kind) {
        (Some(Counterpart { rule: after, kept }), _) => {
            let what = describe(after);
            format!("callers that matched {path} meet {} ({what}) now{kept}", after.path)
        }
        (None, RuleKind::Unlimited { .. }) => {
            format!("callers matching {path} meet no rule; they still pass")
        }
        (None, RuleKind::Limits(_)) => format!("callers matching {path} are no longer limited"),
    };
    Change { path: path.clone(), kind: Kind::Removed, what: describe(rule), means }
}

/// What a rule allows, in a few words.
pub fn describe(rule: &Rule) -> String {
    let mut text = match &rule.kind {
        RuleKind::Unlimited { .. } => "unlimited".to_owned(),
        RuleKind::Limits(limits) => {
            limits.iter().map(|limit| numbers(&limit.quota)).collect::<Vec<_>>().join(" and ")
        }
    };
    match rule.enforcement {
        Enforcement::Enforce => {}
        Enforcement::Shadow => text += ", in shadow",
        Enforcement::Quota => text += ", as a quota",
    }
    text
}

/// The changes of a rule that is there before and after.
fn rule_changes(old: &Rule, new: &Rule, sharing: Sharing, changes: &mut Vec<Change>) {
    let mut change = |what: String, means: String| {
        changes.push(Change { path: new.path.clone(), kind: Kind::Changed, what, means });
    };
    let path = &new.path;
    if old.enforcement != new.enforcement {
        let means = match new.enforcement {
            Enforcement::Enforce => "over the limit are denied now",
            Enforcement::Shadow => "are counted, and no longer denied",
            Enforcement::Quota => {
                "are denied only when all quotas that their request meets are used up"
            }
        };
        let [before, after] = [old, new].map(|rule| enforcement_name(rule.enforcement));
        change(format!("{before} -> {after}"), format!("callers matching {path} {means}"));
    }
    if old.metadata != new.metadata {
        let means = "answers pass other metadata on; who is limited stays the same";
        change("metadata changed".to_owned(), means.to_owned());
    }
    if old.metric_values != new.metric_values {
        let means = "its metrics go by other names; who is limited stays the same";
        change("names in metrics changed".to_owned(), means.to_owned());
    }
    match (&old.kind, &new.kind) {
        (RuleKind::Limits(before), RuleKind::Limits(after)) => {
            limits::changes(path, before, after, sharing, changes);
        }
        (
            RuleKind::Unlimited { name: a, replaces: c },
            RuleKind::Unlimited { name: b, replaces: d },
        ) => {
            limits::names_changed(path, (a.as_deref(), b.as_deref()), (c, d), changes);
        }
        (_, RuleKind::Unlimited { .. }) => {
            let means = format!("callers matching {path} are no longer limited");
            change(format!("{} -> unlimited", describe(old)), means);
        }
        (_, RuleKind::Limits(_)) => {
            let means = format!("callers matching {path} are limited now");
            change(format!("unlimited -> {}", describe(new)), means);
        }
    }
}

fn enforcement_name(enforcement: Enforcement) -> &'static str {
    match enforcement {
        Enforcement::Enforce => "enforced",
        Enforcement::Shadow => "in shadow",
        Enforcement::Quota => "a quota",
    }
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many paths changed in this way.
    pub fn count(&self, kind: Kind) -> usize {
        self.paths(kind).len()
    }

    fn paths(&self, kind: Kind) -> BTreeSet<&str> {
        let of_kind = self.0.iter().filter(|change| change.kind == kind);
        of_kind.map(|change| change.path.as_str()).collect()
    }

    /// Stable, so that what is told of one path keeps its order.
    fn sort(&mut self) {
        self.0.sort_by(|a, b| (&a.path, a.kind).cmp(&(&b.path, b.kind)));
    }
}

/// In a line, for a log: names and numbers of the first few.
impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST: usize = 5;
        if self.is_empty() {
            return f.write_str("nothing that matters to callers");
        }
        let mut parts = Vec::new();
        for (name, kind) in [("added", Kind::Added), ("removed", Kind::Removed)] {
            let paths = self.paths(kind);
            if !paths.is_empty() {
                parts.push(format!("{name} {}", some_of(paths.into_iter(), MOST)));
            }
        }
        let changed: Vec<String> = self
            .0
            .iter()
            .filter(|change| change.kind == Kind::Changed)
            .map(|change| format!("{} ({})", change.path, change.what))
            .collect();
        if !changed.is_empty() {
            parts.push(format!("changed {}", some_of(changed.iter().map(String::as_str), MOST)));
        }
        f.write_str(&parts.join("; "))
    }
}

#[cfg(test)]
mod tests;
