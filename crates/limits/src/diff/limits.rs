//! The changes between the old and the new limits of a rule.

use super::{Change, ChangeKind};
use crate::compiled::{Limit, Match};
use crate::describe::{algorithm, borrow, burst, grouped, initial, limit, numbers, rate, reset};
use std::fmt;
use std::mem::discriminant;
use tidegate_core::{DeniedHits, Quota};

/// Whether the same values share counters as before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    Same,
    Changed,
}

/// The counts that are kept when callers move from the limits of one rule to those of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KeptCounts {
    /// One of the rules has no limit.
    Nothing,
    All,
    /// Those of these limits of the first rule.
    Some(Vec<String>),
}

impl KeptCounts {
    /// For callers who meet `of` before and `other` now.
    pub(super) fn of(of: &Match<'_>, other: &Match<'_>) -> KeptCounts {
        let (limits, others) = (of.rule.limits(), other.rule.limits());
        if limits.is_empty() || others.is_empty() {
            return KeptCounts::Nothing;
        }
        let is_kept = |limit: &&Limit| {
            of.shared == other.shared && others.iter().any(|other| limit.has_counter_of(other))
        };
        let kept: Vec<String> =
            limits.iter().filter(is_kept).map(|limit| limit.path.clone()).collect();
        if kept.len() == limits.len() { KeptCounts::All } else { KeptCounts::Some(kept) }
    }
}

/// The end of a sentence.
impl fmt::Display for KeptCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeptCounts::Nothing => Ok(()),
            KeptCounts::All => f.write_str("; live counts are kept"),
            KeptCounts::Some(limits) if limits.is_empty() => f.write_str("; counts start anew"),
            KeptCounts::Some(limits) => {
                write!(f, "; live counts of {} are kept, others start anew", limits.join(", "))
            }
        }
    }
}

pub(super) fn changes(
    rule: &str,
    old: &[Limit],
    new: &[Limit],
    sharing: Sharing,
    changes: &mut Vec<Change>,
) {
    let (pairs, removed, added) = paired(old, new);
    for (before, after) in pairs {
        limit_changes(rule, (before, after), sharing, changes);
    }
    for before in removed {
        let means = format!("callers matching {rule} are no longer held to this limit");
        changes.push(Change::new(&before.path, ChangeKind::Removed, limit(before), means));
    }
    for after in added {
        let means = format!("callers matching {rule} are held to this limit too, from a new count");
        changes.push(Change::new(&after.path, ChangeKind::Added, limit(after), means));
    }
}

/// Old and new limits that correspond, then the other old ones and the other new ones. Limits of the same
/// counter come first, because they keep their counts; then limits of the same path.
type Paired<'l> = (Vec<(&'l Limit, &'l Limit)>, Vec<&'l Limit>, Vec<&'l Limit>);

fn paired<'l>(old: &'l [Limit], new: &'l [Limit]) -> Paired<'l> {
    let (mut pairs, mut added) = (Vec::new(), new.iter().collect::<Vec<_>>());
    let mut pair = |removed: Vec<&'l Limit>, is_same: &dyn Fn(&Limit, &Limit) -> bool| {
        let mut rest = Vec::new();
        for before in removed {
            match added.iter().position(|after| is_same(before, after)) {
                Some(at) => pairs.push((before, added.remove(at))),
                None => rest.push(before),
            }
        }
        rest
    };
    let removed = pair(old.iter().collect(), &Limit::has_counter_of);
    let removed = pair(removed, &|before, after| before.path == after.path);
    (pairs, removed, added)
}

fn limit_changes(
    rule: &str,
    (old, new): (&Limit, &Limit),
    sharing: Sharing,
    changes: &mut Vec<Change>,
) {
    let mut change = |what: String, means: String| {
        changes.push(Change::new(&new.path, ChangeKind::Changed, what, means));
    };
    let mut reasons = restart_reasons(old, new);
    if old.path != new.path {
        let counts = match sharing {
            Sharing::Same if reasons.is_empty() => "; live counts are kept",
            _ => "",
        };
        let means = format!("metrics and logs go by the new path{counts}");
        change(format!("path was {}", old.path), means);
    }
    if sharing == Sharing::Changed && old.quota != new.quota {
        // If nothing else changed, the change is reported for the path whose values share.
        reasons.push("sharing of its counters");
    }
    if !reasons.is_empty() {
        let why = reasons.join(" and the ");
        let [before, after] = [old, new].map(|limit| described(limit, old, new));
        let means = format!(
            "callers matching {rule} get {} now; counts start anew, because the {why} changed",
            rate(&new.quota)
        );
        change(format!("{before} -> {after}"), means);
    } else if old.quota != new.quota {
        let means = effect(rule, &old.quota, &new.quota);
        let is_zone = numbers(&old.quota) == numbers(&new.quota);
        let [before, after] = [old, new].map(|of| match (is_zone, &of.timezone) {
            (true, zone) => zone.clone().unwrap_or_else(|| "UTC".to_owned()),
            (false, _) => limit(of),
        });
        let of = if is_zone { "time zone " } else { "" };
        change(format!("{of}{before} -> {after}"), means);
    }
    if old.denied != new.denied {
        let (what, means) = match new.denied {
            DeniedHits::Count => ("on", "requests that are denied use up the limit too"),
            DeniedHits::Ignore => ("off", "requests that are denied no longer use up the limit"),
        };
        change(format!("count_denied {what}"), means.to_owned());
    }
    let names = (old.name.as_deref(), new.name.as_deref());
    names_changed(&new.path, names, (&old.replaces, &new.replaces), changes);
}

/// The parts of a counter's identity that changed.
fn restart_reasons(old: &Limit, new: &Limit) -> Vec<&'static str> {
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

/// The numbers, and the algorithm if it changed.
fn described(of: &Limit, old: &Limit, new: &Limit) -> String {
    if discriminant(&old.quota) == discriminant(&new.quota) {
        limit(of)
    } else {
        format!("{} by {}", limit(of), algorithm(&of.quota))
    }
}

/// The effect of a change of the numbers if the counters stay the same.
fn effect(rule: &str, old: &Quota, new: &Quota) -> String {
    let mut gets = Vec::new();
    if old.requests() != new.requests() {
        let before = grouped(old.requests().into());
        gets.push(format!("{} instead of {before}", rate(new)));
    }
    for (before, now, what) in [
        (burst(old), burst(new), "at once"),
        (borrow(old), borrow(new), "to borrow from later windows"),
    ] {
        if before != now {
            let [before, now] = [before, now].map(|number| grouped(number.unwrap_or(0).into()));
            gets.push(format!("{now} {what} instead of {before}"));
        }
    }
    let mut means = Vec::new();
    if !gets.is_empty() {
        means.push(format!("callers matching {rule} get {} now", gets.join(" and ")));
    }
    if initial(old) != initial(new) {
        let [before, now] = [old, new].map(|quota| grouped(initial(quota).unwrap_or(0)));
        means.push(format!("new callers start with {now} instead of {before}"));
    }
    match (reset(old), reset(new)) {
        (old, Some(new)) if old.as_ref() != Some(&new) => {
            means.push(format!("windows end at {new} each day at the latest"));
        }
        (Some(old), None) => means.push(format!("windows no longer end at {old} each day")),
        _ => {}
    }
    if !means.is_empty() {
        means.push("live counts are kept".to_owned());
        return means.join("; ");
    }
    match (new, reset(new)) {
        (Quota::FixedWindow(_), _) | (_, None) => {
            "windows begin at other times; a count is kept if it began within the current new window"
        }
        (Quota::FirstHitWindow(_), _) => {
            "windows end at another time each day; a count is kept if its window began after the \
             last reset"
        }
        _ => {
            "hits are forgotten at another time each day; a count is kept if its last hit came \
             after the last reset"
        }
    }
    .to_owned()
}

/// Changes of names, and of the limits that are replaced.
pub(super) fn names_changed(
    path: &str,
    (old, new): (Option<&str>, Option<&str>),
    (replaced, replaces): (&[String], &[String]),
    changes: &mut Vec<Change>,
) {
    let mut change = |what: String, means: String| {
        changes.push(Change::new(path, ChangeKind::Changed, what, means));
    };
    if old != new {
        let [before, after] = [old, new].map(|name| name.unwrap_or("none"));
        let means = "answers carry the new name, and `replaces` elsewhere must use it";
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
