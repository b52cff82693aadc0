//! The changes of statistics. A series belongs to the name and the keys of its statistic.

use super::{Change, ChangeKind};
use crate::statistics::Statistic;
use std::collections::BTreeMap;
use std::sync::Arc;

/// By name.
pub(super) type Statistics = BTreeMap<String, Arc<Statistic>>;

pub(super) fn changes(old: &Statistics, new: &Statistics) -> Vec<Change> {
    let mut changes = Vec::new();
    for (name, before) in old {
        let Some(after) = new.get(name) else {
            let means =
                "nothing is added to it any more; what it has stays until its retention ends";
            changes.push(change(before, ChangeKind::Removed, described(before), means));
            continue;
        };
        if before.domain != after.domain {
            let what = format!("domain {} -> {}", before.domain, after.domain);
            let means = "descriptors of the other domain are counted from now on";
            changes.push(change(after, ChangeKind::Changed, what, means));
        }
        if (&before.by, &before.distinct) != (&after.by, &after.distinct) {
            let what = format!("{} -> {}", described(before), described(after));
            let means =
                "it begins anew; what it has stays in the database until its retention ends";
            changes.push(change(after, ChangeKind::Changed, what, means));
        }
    }
    for after in new.values().filter(|after| !old.contains_key(&after.name)) {
        let means = "descriptors with these keys are counted from now on";
        changes.push(change(after, ChangeKind::Added, described(after), means));
    }
    changes
}

fn change(of: &Statistic, kind: ChangeKind, what: String, means: &str) -> Change {
    Change::new(&format!("statistic {}", of.name), kind, what, means)
}

fn described(statistic: &Statistic) -> String {
    let by = statistic.by.join(", ");
    match &statistic.distinct {
        Some(key) => format!("by {by}, distinct {key}"),
        None => format!("by {by}"),
    }
}
