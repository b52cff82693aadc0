//! One descriptor: its node in the tree, its matcher, and the parts of its rule other than limits.

use super::context::Context;
use super::fields::{Fields, Keys};
use super::limit::{LIMITS_MAX, read_limits, read_rate_limit};
use super::matching::{Matching, read_matching};
use super::metadata;
use super::unreachable::SeenPatterns;
use crate::compiled::{MatcherError, Rule, RuleKind, RuleNode};
use crate::document::Node;
use crate::path::segment;
use tidegate_core::Enforcement;

pub(super) const DESCRIPTOR: Keys = Keys {
    map: "a descriptor",
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

/// Keys that affect the descriptor's own limits, not those below.
const OF_ITS_LIMITS: [&str; 4] = ["shadow_mode", "quota_mode", "detailed_metric", "metadata"];

/// What a level inherits from the levels above it.
pub(super) struct Ancestors {
    path: String,
    /// For each level, whether its value is part of the rule's name in metrics.
    metric_values: Vec<bool>,
}

impl Ancestors {
    pub(super) fn none(path: String) -> Self {
        Ancestors { path, metric_values: Vec::new() }
    }
}

pub(super) fn read_descriptors(
    descriptors: &[Node],
    parent: &mut RuleNode,
    ancestors: &Ancestors,
    context: &mut Context<'_, '_>,
) {
    let mut seen = SeenPatterns::default();
    for node in descriptors {
        if let Some(fields) = Fields::read(node, &DESCRIPTOR, context.diagnostics) {
            read_descriptor(&fields, parent, ancestors, &mut seen, context);
        }
    }
    seen.finish(context.diagnostics);
}

fn read_descriptor<'a>(
    fields: &Fields<'a>,
    parent: &mut RuleNode,
    ancestors: &Ancestors,
    seen: &mut SeenPatterns,
    context: &mut Context<'_, '_>,
) {
    let key = fields.required("key", context.diagnostics);
    let matching = read_matching(fields, context.diagnostics);
    let mut metric_values = ancestors.metric_values.clone();
    metric_values.push(fields.flag("value_to_metric", context.diagnostics));
    // The rest is read to find its errors, even if the descriptor cannot be inserted.
    let mut detached = RuleNode::default();
    let inserted = match (key, matching) {
        (Some(key), Some(matching)) => {
            if key.contains('*') {
                let message = "`*` in a key stands for itself; patterns go into `value`";
                context.diagnostics.warn(fields.position_of("key"), message);
            }
            let path = format!("{}/{}", ancestors.path, segment(&key, &matching.matcher));
            seen.add(&key, &matching.matcher, fields.position, context.diagnostics);
            insert(fields, parent, &key, &matching, &path, context).map(|node| (node, path))
        }
        _ => None,
    };
    let (node, path) = inserted.unwrap_or_else(|| {
        let (line, column) = fields.position;
        // No rule has such a path, so nothing below is reported as a duplicate of a rule.
        (&mut detached, format!("{}//{line}:{column}", ancestors.path))
    });
    let here = Ancestors { path, metric_values };
    if let Some(rule) = read_rule(fields, &here, context) {
        node.set_rule(rule);
    }
    let descriptors = fields.list("descriptors", context.diagnostics);
    read_descriptors(descriptors, node, &here, context);
}

/// Inserts a node. Reports a duplicate, and a pattern that does not compile.
fn insert<'a>(
    fields: &Fields<'_>,
    parent: &'a mut RuleNode,
    key: &str,
    matching: &Matching,
    path: &str,
    context: &mut Context<'_, '_>,
) -> Option<&'a mut RuleNode> {
    if let Some(first) = context.cross_file.first_definition(path, &context.file) {
        // Below a descriptor that could not be inserted, paths are made up; messages omit those parts.
        let is_made_up = path.starts_with('/') || path.contains("//");
        let name = path.rsplit('/').next().filter(|_| is_made_up).unwrap_or(path);
        let message = format!("duplicate descriptor {name}; the first is at {first}");
        context.diagnostics.error(fields.position, message);
        return None;
    }
    match parent.insert(key, &matching.matcher, matching.share.as_deref()) {
        Ok(node) => {
            let position = (context.file.clone(), fields.position);
            context.cross_file.positions.insert(path.to_owned(), position);
            Some(node)
        }
        Err(error) => {
            let message = match error {
                MatcherError::Regex(error) => format!("`regex`: {error}"),
                MatcherError::Duplicate => error.to_string(),
            };
            context.diagnostics.error(matching.position, message);
            None
        }
    }
}

fn read_rule(fields: &Fields<'_>, here: &Ancestors, context: &mut Context<'_, '_>) -> Option<Rule> {
    let enforcement = read_enforcement(fields, context);
    let detailed = fields.flag("detailed_metric", context.diagnostics);
    let metadata = metadata::read(fields, context.diagnostics);
    let mut metric_values = here.metric_values.clone();
    if detailed {
        metric_values.fill(true);
    } else if !metric_values.contains(&true) {
        metric_values.clear();
    }
    let Some(kind) = read_kind(fields, &here.path, context) else {
        if !fields.has("rate_limit") && !fields.has("rate_limits") {
            warn_of_no_limit(fields, context);
        }
        return None;
    };
    Some(Rule { path: here.path.clone(), kind, enforcement, metric_values, metadata })
}

fn read_enforcement(fields: &Fields<'_>, context: &mut Context<'_, '_>) -> Enforcement {
    let shadow = fields.flag("shadow_mode", context.diagnostics);
    let quota = fields.flag("quota_mode", context.diagnostics);
    match (shadow, quota) {
        (false, false) => Enforcement::Enforce,
        (false, true) => Enforcement::Quota,
        (true, _) => {
            if quota {
                let message = "`quota_mode` has no effect beside `shadow_mode`";
                context.diagnostics.warn(fields.key_position("quota_mode"), message);
            }
            Enforcement::Shadow
        }
    }
}

fn read_kind(fields: &Fields<'_>, path: &str, context: &mut Context<'_, '_>) -> Option<RuleKind> {
    match (fields.value("rate_limit"), fields.value("rate_limits")) {
        (None, None) => {
            for key in ["rate_limit", "rate_limits"].into_iter().filter(|key| fields.is_empty(key))
            {
                let message = format!(
                    "`{key}` is empty, so there is no limit here; indent what belongs to it"
                );
                context.diagnostics.warn(fields.key_position(key), message);
            }
            None
        }
        (Some(one), None) => read_rate_limit(one, path, context),
        (None, Some(_)) => {
            let before = context.diagnostics.errors.len();
            let limits = fields.list("rate_limits", context.diagnostics);
            if context.diagnostics.errors.len() > before {
                return None;
            }
            if limits.is_empty() || limits.len() > LIMITS_MAX {
                let message =
                    format!("`rate_limits`: expected 1 to {LIMITS_MAX}, found {}", limits.len());
                context.diagnostics.error(fields.position_of("rate_limits"), message);
            }
            read_limits(limits, path, context)
        }
        (Some(one), Some(several)) => {
            let message = "`rate_limit` and `rate_limits` exclude each other";
            context.diagnostics.error(several.position(), message);
            let _ = read_rate_limit(one, path, context);
            let limits = fields.list("rate_limits", context.diagnostics);
            let _ = read_limits(limits, path, context);
            None
        }
    }
}

/// A descriptor without limits of its own only leads to those below, which these keys do not affect.
fn warn_of_no_limit(fields: &Fields<'_>, context: &mut Context<'_, '_>) {
    let has_effect = |key: &&str| fields.has(key) && !fields.is_default(key);
    for key in OF_ITS_LIMITS.into_iter().filter(has_effect) {
        let message = format!(
            "`{key}` has no effect in a descriptor without rate_limit; it does not reach the \
             descriptors below"
        );
        context.diagnostics.warn(fields.key_position(key), message);
    }
}
