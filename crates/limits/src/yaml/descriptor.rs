//! One descriptor: where it stands, what it matches, what its rule says besides the limits.

use super::Reading;
use super::covered::Covered;
use super::document::Spot;
use super::limit::{LIMITS_MAX, read_limits, read_rate_limit};
use super::matching::{Matching, read_matching};
use super::metadata;
use super::reader::{Fields, Keys};
use crate::text::escaped;
use crate::{MatcherError, Rule, RuleKind, RuleNode};
use tidegate_core::Enforcement;

pub(super) const DESCRIPTOR: Keys = Keys {
    of: "a descriptor",
    known: &[
        "key",
        "value",
        "match",
        "rate_limit",
        "rate_limits",
        "shadow_mode",
        "quota_mode",
        "detailed_metric",
        "value_to_metric",
        "share_threshold",
        "metadata",
        "descriptors",
    ],
};

/// Keys that say something of the limits beside them, not of those below.
const OF_ITS_LIMITS: [&str; 4] = ["shadow_mode", "quota_mode", "detailed_metric", "metadata"];

/// What the levels above say to those below.
pub(super) struct Above {
    path: String,
    /// For each level, whether its value is part of the names of metrics.
    metric_values: Vec<bool>,
}

impl Above {
    pub(super) fn top(path: String) -> Self {
        Above { path, metric_values: Vec::new() }
    }
}

pub(super) fn read_descriptors(
    descriptors: &[Spot],
    parent: &mut RuleNode,
    above: &Above,
    reading: &mut Reading<'_, '_>,
) {
    let mut covered = Covered::default();
    for spot in descriptors {
        if let Some(fields) = Fields::read(spot, &DESCRIPTOR, reading.reports) {
            read_descriptor(&fields, parent, above, &mut covered, reading);
        }
    }
    covered.finish(reading.reports);
}

fn read_descriptor<'a>(
    fields: &Fields<'a>,
    parent: &mut RuleNode,
    above: &Above,
    covered: &mut Covered,
    reading: &mut Reading<'_, '_>,
) {
    let key = fields.required("key", reading.reports);
    let matching = read_matching(fields, reading.reports);
    let mut metric_values = above.metric_values.clone();
    metric_values.push(fields.flag("value_to_metric", reading.reports));
    // The rest is read for its mistakes even if the place itself is one.
    let mut nowhere = RuleNode::default();
    let place = match (key, matching) {
        (Some(key), Some(matching)) => {
            if key.contains('*') {
                let message = "`*` in a key stands for itself; patterns go into `value`";
                reading.reports.warn(fields.place_of("key"), message);
            }
            let path = format!("{}/{}", above.path, matching.segment(&escaped(&key)));
            covered.add(&key, &matching.matcher, fields.place, reading.reports);
            insert(fields, parent, &key, &matching, &path, reading).map(|node| (node, path))
        }
        _ => None,
    };
    let (node, path) = place.unwrap_or_else(|| {
        let (line, column) = fields.place;
        // No path has such a part, so nothing below is called a duplicate of a rule.
        (&mut nowhere, format!("{}//{line}:{column}", above.path))
    });
    let here = Above { path, metric_values };
    if let Some(rule) = read_rule(fields, &here, reading) {
        node.set_rule(rule);
    }
    let descriptors = fields.list("descriptors", reading.reports);
    read_descriptors(descriptors, node, &here, reading);
}

/// Makes the place in the tree; reports it if there is one already, or its pattern is none.
fn insert<'a>(
    fields: &Fields<'_>,
    parent: &'a mut RuleNode,
    key: &str,
    matching: &Matching,
    path: &str,
    reading: &mut Reading<'_, '_>,
) -> Option<&'a mut RuleNode> {
    if let Some((file, (line, column))) = reading.common.places.get(path) {
        let first = if **file == *reading.file {
            format!("{line}:{column}")
        } else {
            format!("{}:{line}:{column}", file.display())
        };
        // Below what has no place, the path is not one that an operator knows.
        let is_made_up = path.starts_with('/') || path.contains("//");
        let name = path.rsplit('/').next().filter(|_| is_made_up).unwrap_or(path);
        let message = format!("duplicate descriptor {name}; the first is at {first}");
        reading.reports.report(fields.place, message);
        return None;
    }
    match parent.insert(key, &matching.matcher, matching.share.as_deref()) {
        Ok(node) => {
            let place = (reading.file.clone(), fields.place);
            reading.common.places.insert(path.to_owned(), place);
            Some(node)
        }
        Err(MatcherError::Regex(error)) => {
            reading.reports.report(matching.place, format!("`regex`: {error}"));
            None
        }
        Err(error) => {
            reading.reports.report(matching.place, error.to_string());
            None
        }
    }
}

fn read_rule(fields: &Fields<'_>, here: &Above, reading: &mut Reading<'_, '_>) -> Option<Rule> {
    let enforcement = read_enforcement(fields, reading);
    let detailed = fields.flag("detailed_metric", reading.reports);
    let metadata = metadata::read(fields, reading.reports);
    let mut metric_values = here.metric_values.clone();
    if detailed {
        metric_values.fill(true);
    } else if !metric_values.contains(&true) {
        metric_values.clear();
    }
    let Some(kind) = read_kind(fields, &here.path, reading) else {
        if !fields.has("rate_limit") && !fields.has("rate_limits") {
            warn_of_no_limit(fields, reading);
        }
        return None;
    };
    Some(Rule { path: here.path.clone(), kind, enforcement, metric_values, metadata })
}

fn read_enforcement(fields: &Fields<'_>, reading: &mut Reading<'_, '_>) -> Enforcement {
    let shadow = fields.flag("shadow_mode", reading.reports);
    let quota = fields.flag("quota_mode", reading.reports);
    match (shadow, quota) {
        (false, false) => Enforcement::Enforce,
        (false, true) => Enforcement::Quota,
        (true, _) => {
            if quota {
                let message = "`quota_mode` has no effect beside `shadow_mode`";
                reading.reports.warn(fields.place_of_key("quota_mode"), message);
            }
            Enforcement::Shadow
        }
    }
}

fn read_kind(fields: &Fields<'_>, path: &str, reading: &mut Reading<'_, '_>) -> Option<RuleKind> {
    match (fields.value("rate_limit"), fields.value("rate_limits")) {
        (None, None) => {
            for key in ["rate_limit", "rate_limits"].into_iter().filter(|key| fields.is_empty(key))
            {
                let message = format!(
                    "`{key}` is empty, so there is no limit here; indent what belongs to it"
                );
                reading.reports.warn(fields.place_of_key(key), message);
            }
            None
        }
        (Some(one), None) => read_rate_limit(one, path, reading),
        (None, Some(_)) => {
            let before = reading.reports.errors.len();
            let limits = fields.list("rate_limits", reading.reports);
            if reading.reports.errors.len() > before {
                return None;
            }
            if limits.is_empty() || limits.len() > LIMITS_MAX {
                let message =
                    format!("`rate_limits`: expected 1 to {LIMITS_MAX}, found {}", limits.len());
                reading.reports.report(fields.place_of("rate_limits"), message);
            }
            read_limits(limits, path, reading)
        }
        (Some(one), Some(several)) => {
            let message = "`rate_limit` and `rate_limits` exclude each other";
            reading.reports.report(several.place(), message);
            let _ = read_rate_limit(one, path, reading);
            let limits = fields.list("rate_limits", reading.reports);
            let _ = read_limits(limits, path, reading);
            None
        }
    }
}

/// Without limits of its own a descriptor only leads to those below, which read none of these.
fn warn_of_no_limit(fields: &Fields<'_>, reading: &mut Reading<'_, '_>) {
    for key in OF_ITS_LIMITS.into_iter().filter(|key| fields.has(key)) {
        let message = format!(
            "`{key}` has no effect in a descriptor without rate_limit; it does not reach the \
             descriptors below"
        );
        reading.reports.warn(fields.place_of_key(key), message);
    }
}
