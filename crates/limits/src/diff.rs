//! The effects on callers when one set of limits replaces another.
//!
//! Compares by the paths of rules and limits, so it sees the meaning of a file and not its form. Counts are
//! kept if a counter's identity (`tidegate_core::Identity`) stays the same. Prints nothing.

mod limits;
mod probe;
mod statistics;
mod tree_paths;

use crate::compiled::{Rule, RuleKind, Rules};
use crate::describe::{limit, some_of};
use crate::path::{escaped, segment_ends};
use limits::Sharing;
use probe::Counterpart;
use statistics::Statistics;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};
use std::sync::Arc;
use tidegate_core::Enforcement;
use tree_paths::{TreePath, TreePaths};

/// The most rules whose counts start anew that are listed.
const NAMES_MAX: usize = 5;

/// The rules of one side of a comparison. Shares them with the rules in force instead of copying.
#[derive(Debug, Default)]
pub struct Snapshot {
    domains: BTreeSet<String>,
    rules: BTreeMap<String, Arc<Rule>>,
    /// For each path, the text that replaces the values there if they share counters.
    shares: BTreeMap<String, Option<String>>,
    statistics: Statistics,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeKind {
    Added,
    Removed,
    Changed,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The path of a rule or limit, a domain, or a statistic.
    pub path: String,
    pub kind: ChangeKind,
    /// Before and after.
    pub what: String,
    /// The effect on callers.
    pub means: String,
}

/// All changes, ordered by path.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes(pub Vec<Change>);

impl Change {
    fn new(
        path: &str,
        kind: ChangeKind,
        what: impl Into<String>,
        means: impl Into<String>,
    ) -> Change {
        Change { path: path.to_owned(), kind, what: what.into(), means: means.into() }
    }
}

impl Snapshot {
    pub fn of(rules: &Rules) -> Snapshot {
        Snapshot::with(rules, &tree_paths::all(rules))
    }

    fn with(rules: &Rules, paths: &TreePaths<'_>) -> Snapshot {
        let share = |path: &TreePath<'_>| path.last()?.share.map(str::to_owned);
        Snapshot {
            domains: rules.domain_names().into_iter().map(str::to_owned).collect(),
            rules: rules.rules().into_iter().map(|r| (r.path.clone(), r.clone())).collect(),
            shares: paths.iter().map(|(text, path)| (text.clone(), share(path))).collect(),
            statistics: rules.statistics().iter().map(|s| (s.name.clone(), s.clone())).collect(),
        }
    }

    /// The same for the same rules, in programs of one version.
    pub fn fingerprint(&self) -> u64 {
        let (mut sum, mut text) = (0, String::new());
        let mut add = |part: &dyn fmt::Debug| {
            text.clear();
            // Writing to a string does not fail.
            let _ = write!(text, "{sum:x} {part:?}");
            sum = tidegate_core::fingerprint(text.as_bytes());
        };
        add(&self.domains);
        self.rules.iter().for_each(|rule| add(&rule));
        self.shares.iter().for_each(|share| add(&share));
        sum as u64
    }

    pub fn limits(&self) -> usize {
        self.rules.values().map(|rule| rule.limits().len()).sum()
    }

    pub fn domains(&self) -> usize {
        self.domains.len()
    }
}

/// The changes from `old` to `new`, from their rules alone.
pub fn compare(old: &Snapshot, new: &Snapshot) -> Changes {
    compare_with(old, new, |_| None)
}

/// The changes from `old` to `new`, including callers who now meet a different rule.
pub fn compare_rules(old: &Rules, new: &Rules) -> Changes {
    let (before, after) = (tree_paths::all(old), tree_paths::all(new));
    let snapshots = (&Snapshot::with(old, &before), &Snapshot::with(new, &after));
    let mut changes = compare_with(snapshots.0, snapshots.1, |unpaired| {
        let (of, other, paths) = match unpaired.kind {
            ChangeKind::Removed => (old, new, &before),
            ChangeKind::Added | ChangeKind::Changed => (new, old, &after),
        };
        probe::counterpart(of, other, paths.get(unpaired.path)?)
    });
    changes.0.extend(probe::moved((old, &before), (new, &after)));
    changes.sort();
    changes
}

/// A rule that exists on one side only.
struct Unpaired<'a> {
    path: &'a str,
    kind: ChangeKind,
}

fn compare_with<'r>(
    old: &Snapshot,
    new: &Snapshot,
    counterpart: impl Fn(&Unpaired<'_>) -> Option<Counterpart<'r>>,
) -> Changes {
    let mut changes = Vec::new();
    for domain in new.domains.difference(&old.domains) {
        changes.push(domain_change(domain, ChangeKind::Added));
    }
    for domain in old.domains.difference(&new.domains) {
        changes.push(domain_change(domain, ChangeKind::Removed));
    }
    let mut shared: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (path, rule) in &old.rules {
        let Some(now) = new.rules.get(path) else {
            let unpaired = Unpaired { path, kind: ChangeKind::Removed };
            changes.push(removed(rule, counterpart(&unpaired)));
            continue;
        };
        let mut sharing = Sharing::Same;
        for prefix in segment_ends(path).map(|end| &path[..end]) {
            let is_counted = !rule.limits().is_empty() && !now.limits().is_empty();
            if is_counted && old.shares.get(prefix) != new.shares.get(prefix) {
                sharing = Sharing::Changed;
                shared.entry(prefix).or_default().push(path);
            }
        }
        rule_changes(rule, now, sharing, &mut changes);
    }
    changes.extend(shared.into_iter().map(|(path, rules)| share_change(new, path, rules)));
    for (path, rule) in new.rules.iter().filter(|(path, _)| !old.rules.contains_key(*path)) {
        let unpaired = Unpaired { path, kind: ChangeKind::Added };
        changes.push(added(rule, counterpart(&unpaired)));
    }
    changes.extend(statistics::changes(&old.statistics, &new.statistics));
    let mut changes = Changes(changes);
    changes.sort();
    changes
}

/// The values of a path now share counters, or no longer do; `rules` are those affected.
fn share_change(new: &Snapshot, path: &str, rules: Vec<&str>) -> Change {
    let (what, means) = match new.shares.get(path) {
        Some(Some(_)) => {
            ("share_threshold on", "all values of the pattern share one counter now; ")
        }
        _ => ("share_threshold off", "each value of the pattern has a counter of its own now; "),
    };
    let rules = some_of(rules.into_iter(), NAMES_MAX);
    let means = format!("{means}counts of {rules} start anew");
    Change::new(path, ChangeKind::Changed, what, means)
}

fn domain_change(domain: &str, kind: ChangeKind) -> Change {
    let (what, means) = match kind {
        ChangeKind::Removed => ("domain removed", "requests of this domain meet no limit any more"),
        _ => ("domain added", "requests of this domain are looked up among its rules now"),
    };
    Change::new(&escaped(domain), kind, what, means)
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
    Change::new(&rule.path, ChangeKind::Added, describe(rule), means)
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
    Change::new(path, ChangeKind::Removed, describe(rule), means)
}

/// A short description of a rule's limits.
pub fn describe(rule: &Rule) -> String {
    let mut text = match &rule.kind {
        RuleKind::Unlimited { .. } => "unlimited".to_owned(),
        RuleKind::Limits(limits) => limits.iter().map(limit).collect::<Vec<_>>().join(" and "),
    };
    match rule.enforcement {
        Enforcement::Enforce => {}
        Enforcement::Shadow => text += ", in shadow",
        Enforcement::Quota => text += ", as a quota",
    }
    text
}

/// The changes of a rule that both sides have.
fn rule_changes(old: &Rule, new: &Rule, sharing: Sharing, changes: &mut Vec<Change>) {
    let path = &new.path;
    let mut change = |what: String, means: String| {
        changes.push(Change::new(path, ChangeKind::Changed, what, means));
    };
    if old.enforcement != new.enforcement {
        let means = match new.enforcement {
            Enforcement::Enforce => "are denied over the limit now",
            Enforcement::Shadow => "are counted, and no longer denied",
            Enforcement::Quota => {
                "are denied only when all quotas that their request meets are used up"
            }
        };
        let [before, after] = [old, new].map(|rule| enforcement_name(rule.enforcement));
        change(format!("{before} -> {after}"), format!("callers matching {path} {means}"));
    }
    if old.metadata != new.metadata {
        let means = "answers carry other metadata; limits stay the same";
        change("metadata changed".to_owned(), means.to_owned());
    }
    if old.metric_values != new.metric_values {
        let means = "metrics have other names; limits stay the same";
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

    /// The number of paths that changed in this way.
    pub fn count(&self, kind: ChangeKind) -> usize {
        self.paths(kind).len()
    }

    fn paths(&self, kind: ChangeKind) -> BTreeSet<&str> {
        let of_kind = self.0.iter().filter(|change| change.kind == kind);
        of_kind.map(|change| change.path.as_str()).collect()
    }

    /// Stable, so that several changes of one path keep their order.
    fn sort(&mut self) {
        self.0.sort_by(|a, b| (&a.path, a.kind).cmp(&(&b.path, b.kind)));
    }
}

/// One line for a log, with the first few names.
impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST: usize = 5;
        if self.is_empty() {
            return f.write_str("nothing that affects callers");
        }
        let mut parts = Vec::new();
        for (name, kind) in [("added", ChangeKind::Added), ("removed", ChangeKind::Removed)] {
            let paths = self.paths(kind);
            if !paths.is_empty() {
                parts.push(format!("{name} {}", some_of(paths.into_iter(), MOST)));
            }
        }
        let changed: Vec<String> = self
            .0
            .iter()
            .filter(|change| change.kind == ChangeKind::Changed)
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
