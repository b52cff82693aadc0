//! What changes between the limits of a rule before and after.

use super::{Change, Kind};
use crate::Limit;
use crate::describe::grouped;
use crate::describe::{algorithm, borrow, burst, initial, numbers, rate, reset};
use std::fmt;
use std::mem::discriminant;
use tidegate_core::{Denied, Quota};

/// Whether the values of a rule's levels share counters as they did before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    Same,
    Other,
}

/// Which counts go on where callers come from the limits of one rule to those of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kept {
    /// One of them has no limit.
    Nothing,
    All,
    /// The limits of the one that these are.
    Some(Vec<String>),
}

impl Kept {
    /// For rules whose values share counters alike.
    pub(super) fn of(of: &[Limit], other: &[Limit]) -> Kept {
        let kept =
            of.iter().filter(|limit| other.iter().any(|other| is_same_counter(limit, other)));
        let kept: Vec<String> = kept.map(|limit| limit.path.clone()).collect();
        if of.is_empty() || other.is_empty() {
            Kept::Nothing
        } else if kept.len() == of.len() {
            Kept::All
        } else {
            Kept::Some(kept)
        }
    }

    /// For rules whose counters cannot be the same.
    pub(super) fn none(of: &[Limit], other: &[Limit]) -> Kept {
        if of.is_empty() || other.is_empty() { Kept::Nothing } else { Kept::Some(Vec::new()) }
    }
}

/// What follows the rest of a sentence.
impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kept::Nothing => Ok(()),
            Kept::All => f.write_str("; live counts are kept"),
            Kept::Some(limits) if limits.is_empty() => f.write_str("; counts start anew"),
            Kept::Some(limits) => {
                write!(f, "; live counts of {} are kept, others start anew", limits.join(", "))
            }
        }
    }
}

/// Whether a counter of one is a counter of the other, for the same caller: the identity of a counter
/// has no path.
fn is_same_counter(a: &Limit, b: &Limit) -> bool {
    discriminant(&a.quota) == discriminant(&b.quota)
        && a.quota.period() == b.quota.period()
        && a.label == b.label
}

pub(super) fn changes(
    rule: &str,
    old: &[Limit],
    new: &[Limit],
    sharing: Sharing,
    changes: &mut Vec<Change>,
) {
    let (pairs, gone, come) = paired(old, new);
    for (before, after) in pairs {
        limit_changes(rule, (before, after), sharing, changes);
    }
    for before in gone {
        changes.push(Change {
            path: before.path.clone(),
            kind: Kind::Removed,
            what: numbers(&before.quota),
            means: format!("callers matching {rule} are no longer held to this limit"),
        });
    }
    for after in come {
        changes.push(Change {
            path: after.path.clone(),
            kind: Kind::Added,
            what: numbers(&after.quota),
            means: format!("callers matching {rule} are held to this limit too, and start it anew"),
        });
    }
}

/// Limits before and after that are the same: by their counters first, as these may keep what was
/// counted, and by their paths. Then those that are left of each side.
type Paired<'l> = (Vec<(&'l Limit, &'l Limit)>, Vec<&'l Limit>, Vec<&'l Limit>);

fn paired<'l>(old: &'l [Limit], new: &'l [Limit]) -> Paired<'l> {
    let (mut pairs, mut come) = (Vec::new(), new.iter().collect::<Vec<_>>());
    let mut pair = |gone: Vec<&'l Limit>, is_same: &dyn Fn(&Limit, &Limit) -> bool| {
        let mut rest = Vec::new();
        for before in gone {
            match come.iter().position(|after| is_same(before, after)) {
                Some(at) => pairs.push((before, come.remove(at))),
                None => rest.push(before),
            }
        }
        rest
    };
    let gone = pair(old.iter().collect(), &is_same_counter);
    let gone = pair(gone, &|before, after| before.path == after.path);
    (pairs, gone, come)
}

fn limit_changes(
    rule: &str,
    (old, new): (&Limit, &Limit),
    sharing: Sharing,
    changes: &mut Vec<Change>,
) {
    let mut change = |what: String, means: String| {
        changes.push(Change { path: new.path.clone(), kind: Kind::Changed, what, means });
    };
    let mut anew = restart(old, new);
    if old.path != new.path {
        let counts = match sharing {
            Sharing::Same if anew.is_empty() => "; live counts are kept",
            _ => "",
        };
        let means = format!("metrics and logs go by the new path{counts}");
        change(format!("path was {}", old.path), means);
    }
    if sharing == Sharing::Other && old.quota != new.quota {
        // Where nothing else changed, it is told of the place that shares.
        anew.push("sharing of its counters");
    }
    if !anew.is_empty() {
        let why = anew.join(" and the ");
        let [before, after] = [old, new].map(|limit| told(&limit.quota, old, new));
        let means = format!(
            "callers matching {rule} may {} now; counts start anew, since the {why} changed",
            rate(&new.quota)
        );
        change(format!("{before} -> {after}"), means);
    } else if old.quota != new.quota {
        let means = kept(rule, &old.quota, &new.quota);
        let (before, after) = (numbers(&old.quota), numbers(&new.quota));
        if before == after {
            change("time zone changed".to_owned(), means);
        } else {
            change(format!("{before} -> {after}"), means);
        }
    }
    if old.denied != new.denied {
        let (what, means) = match new.denied {
            Denied::Count => ("on", "requests that are denied use up the limit too"),
            Denied::Spare => ("off", "requests that are denied no longer use up the limit"),
        };
        change(format!("count_denied {what}"), means.to_owned());
    }
    let names = (old.name.as_deref(), new.name.as_deref());
    names_changed(&new.path, names, (&old.replaces, &new.replaces), changes);
}

/// What of a counter's identity changed.
fn restart(old: &Limit, new: &Limit) -> Vec<&'static str> {
    let mut why = Vec::new();
    if discriminant(&old.quota) != discriminant(&new.quota) {
        why.push("algorithm");
    }
    if old.quota.period() != new.quota.period() {
        why.push("period");
    }
    if old.label != new.label {
        why.push("label of the limit among those of its rule");
    }
    why
}

/// The numbers, and the algorithm if that changed.
fn told(quota: &Quota, old: &Limit, new: &Limit) -> String {
    if discriminant(&old.quota) == discriminant(&new.quota) {
        numbers(quota)
    } else {
        format!("{} by {}", numbers(quota), algorithm(quota))
    }
}

/// What a change of the numbers means where the counters stay the same.
fn kept(rule: &str, old: &Quota, new: &Quota) -> String {
    let mut may = Vec::new();
    if old.requests() != new.requests() {
        let before = grouped(old.requests().into());
        may.push(format!("{} instead of {before}", rate(new)));
    }
    if burst(old) != burst(new) {
        let [before, now] = [old, new].map(|quota| grouped(burst(quota).unwrap_or(0).into()));
        may.push(format!("{now} at once instead of {before}"));
    }
    if borrow(old) != borrow(new) {
        let [before, now] = [old, new].map(|quota| grouped(borrow(quota).unwrap_or(0).into()));
        may.push(format!("borrow {now} from later windows instead of {before}"));
    }
    let mut means = Vec::new();
    if !may.is_empty() {
        means.push(format!("callers matching {rule} may {} now", may.join(" and ")));
    }
    if initial(old) != initial(new) {
        let [before, now] = [old, new].map(|quota| grouped(initial(quota).unwrap_or(0)));
        means.push(format!("callers that are new start with {now} instead of {before}"));
    }
    match (reset(old), reset(new)) {
        (old, Some(new)) if old.as_ref() != Some(&new) => {
            means.push(format!("windows end at {new} each day at the latest"));
        }
        (Some(old), None) => means.push(format!("windows no longer end at {old} each day")),
        _ => {}
    }
    let is_fixed = matches!(new, Quota::FixedWindow(_));
    if means.is_empty() && reset(new).is_some() && !is_fixed {
        if !matches!(new, Quota::FirstHitWindow(_)) {
            return "hits are forgotten at another moment each day; a count is kept if its last hit \
                    came after the last one"
                .to_owned();
        }
        return "windows end at another moment each day; a count is kept if its window began after \
                the last one"
            .to_owned();
    }
    if means.is_empty() {
        return "windows begin at other times; a count is kept if it began within the window that \
                is under way by the new ones"
            .to_owned();
    }
    means.push("live counts are kept".to_owned());
    means.join("; ")
}

/// Changes of names, and of which limits give way.
pub(super) fn names_changed(
    path: &str,
    (old, new): (Option<&str>, Option<&str>),
    (replaced, replaces): (&[String], &[String]),
    changes: &mut Vec<Change>,
) {
    let mut change = |what: String, means: String| {
        changes.push(Change { path: path.to_owned(), kind: Kind::Changed, what, means });
    };
    if old != new {
        let [before, after] = [old, new].map(|name| name.unwrap_or("none"));
        let means = "answers tell the new name, and `replaces` elsewhere must go by it";
        change(format!("name {before} -> {after}"), means.to_owned());
    }
    let only = |these: &[String], those: &[String]| {
        these.iter().filter(|name| !those.contains(name)).cloned().collect::<Vec<_>>()
    };
    let (more, less) = (only(replaces, replaced), only(replaced, replaces));
    if !more.is_empty() {
        let names = more.join(", ");
        let means = format!("requests that meet {path} are no longer held to {names}");
        change(format!("replaces {names} now"), means);
    }
    if !less.is_empty() {
        let names = less.join(", ");
        let means = format!("requests that meet {path} are held to {names} as well");
        change(format!("no longer replaces {names}"), means);
    }
}
