//! `rate_limit` and `rate_limits`: the limits of one descriptor.

use super::algorithm::read_quota;
use super::context::{Context, Diagnostics};
use super::fields::{Fields, Keys};
use crate::compiled::{Limit, RuleKind};
use crate::diagnostic::Position;
use crate::document::{Content, Node};
use crate::loader::Replaced;
use crate::path::escaped;
use std::collections::HashMap;
use tidegate_core::{DeniedHits, Quota};

/// The most limits of one descriptor. Each is a counter that a request updates.
pub(super) const LIMITS_MAX: usize = 16;

pub(super) const RATE_LIMIT: Keys = Keys {
    map: "a rate_limit",
    known: &[
        "unit",
        "requests_per_unit",
        "unlimited",
        "name",
        "replaces",
        "algorithm",
        "requests",
        "period",
        "burst",
        "initial",
        "timezone",
        "borrow",
        "exact",
        "reset",
        "count_denied",
    ],
};

const REPLACES: Keys = Keys { map: "an entry of replaces", known: &["name"] };

/// Keys allowed with `unlimited: true`; `requests_per_unit` has no effect there.
const OF_UNLIMITED: [&str; 4] = ["unlimited", "name", "replaces", "requests_per_unit"];

/// The only limit of a descriptor. Its name is not part of its counters' identity, so it may change.
pub(super) fn read_rate_limit(
    node: &Node,
    path: &str,
    context: &mut Context<'_, '_>,
) -> Option<RuleKind> {
    let fields = Fields::read(node, &RATE_LIMIT, context.diagnostics)?;
    let name = read_name(&fields, context);
    let own: Vec<&str> = name.as_deref().into_iter().collect();
    let is_unlimited = fields.flag("unlimited", context.diagnostics);
    let replaces = read_replaces(&fields, &own, context);
    if is_unlimited {
        check_unlimited(&fields, context);
        return Some(RuleKind::Unlimited { name, replaces });
    }
    let (quota, denied) = read_rate(&fields, context)?;
    let (path, label) = (path.to_owned(), String::new());
    let timezone = timezone(&fields);
    Some(RuleKind::Limits(vec![Limit { name, path, label, quota, timezone, denied, replaces }]))
}

pub(super) fn read_limits(
    limits: &[Node],
    path: &str,
    context: &mut Context<'_, '_>,
) -> Option<RuleKind> {
    let mut maps = Vec::with_capacity(limits.len());
    for node in limits {
        maps.push(Fields::read(node, &RATE_LIMIT, context.diagnostics)?);
    }
    let names: Vec<Option<String>> = maps.iter().map(|map| read_name(map, context)).collect();
    let own: Vec<&str> = names.iter().flatten().map(String::as_str).collect();
    let paths = read_paths(&maps, &names, path, context);
    let mut read: Vec<(Limit, Position)> = Vec::with_capacity(limits.len());
    let mut complete = true;
    for ((fields, name), path) in maps.iter().zip(&names).zip(paths) {
        let replaces = read_replaces(fields, &own, context);
        if fields.flag("unlimited", context.diagnostics) {
            let message = "`unlimited` is for `rate_limit`, not for one of several limits";
            context.diagnostics.error(fields.key_position("unlimited"), message);
            complete = false;
            continue;
        }
        let Some((quota, denied)) = read_rate(fields, context) else {
            complete = false;
            continue;
        };
        let (name, label) = (name.clone(), name.clone().unwrap_or_default());
        let timezone = timezone(fields);
        let limit = Limit { name, path, label, quota, timezone, denied, replaces };
        read.push((limit, fields.position));
    }
    check_counters(&read, context);
    let limits: Vec<Limit> = read.into_iter().map(|(limit, _)| limit).collect();
    (complete && !limits.is_empty()).then_some(RuleKind::Limits(limits))
}

/// The name of the time zone, which was read before, unless it is that of limits without one.
fn timezone(fields: &Fields<'_>) -> Option<String> {
    match &fields.value("timezone")?.content {
        Content::Text(text) if text != "UTC" => Some(text.clone()),
        // All others were reported.
        _ => None,
    }
}

/// The path of each limit: by its name, or by its number from 1.
fn read_paths(
    maps: &[Fields<'_>],
    names: &[Option<String>],
    path: &str,
    context: &mut Context<'_, '_>,
) -> Vec<String> {
    let mut paths = Vec::with_capacity(maps.len());
    let mut first: HashMap<String, (usize, Position)> = HashMap::new();
    for (index, (fields, name)) in maps.iter().zip(names).enumerate() {
        let suffix = name.as_deref().map_or_else(|| (index + 1).to_string(), escaped);
        let position = fields.position_of("name");
        if let Some((other, (line, column))) = first.get(&suffix) {
            let message = if names[*other] == *name {
                format!("the limit at {line}:{column} already has this name")
            } else {
                format!(
                    "{suffix:?} is the name of one limit and the number of another; give all \
                     of them names"
                )
            };
            context.diagnostics.error(position, message);
        }
        first.entry(suffix.clone()).or_insert((index, position));
        paths.push(format!("{path}#{suffix}"));
    }
    paths
}

/// Limits of one list with the same algorithm and period and without names would share counters.
fn check_counters(limits: &[(Limit, Position)], context: &mut Context<'_, '_>) {
    for (index, (limit, position)) in limits.iter().enumerate() {
        // Equal names are an error of their own.
        let same =
            |(other, _): &&(Limit, Position)| limit.label.is_empty() && limit.has_counter_of(other);
        if let Some((_, (line, column))) = limits[..index].iter().find(same) {
            let message = format!(
                "this has the algorithm and period of the limit at {line}:{column}, so both would \
                 share counters; give them names"
            );
            context.diagnostics.error(*position, message);
        }
    }
}

fn read_rate(fields: &Fields<'_>, context: &mut Context<'_, '_>) -> Option<(Quota, DeniedHits)> {
    let denied = read_count_denied(fields, context.diagnostics).unwrap_or(context.denied);
    Some((read_quota(fields, context)?, denied))
}

/// How denied hits are handled, if `count_denied` is set.
pub(super) fn read_count_denied(
    fields: &Fields<'_>,
    diagnostics: &mut Diagnostics<'_>,
) -> Option<DeniedHits> {
    let counts = fields.truth("count_denied", diagnostics)?;
    Some(if counts { DeniedHits::Count } else { DeniedHits::Ignore })
}

fn read_name(fields: &Fields<'_>, context: &mut Context<'_, '_>) -> Option<String> {
    // As in envoyproxy/ratelimit, an empty name is none.
    let name = fields.text("name", context.diagnostics).filter(|name| !name.is_empty())?;
    let names = context.cross_file.names.entry(context.domain.clone()).or_default();
    names.insert(name.clone());
    Some(name)
}

/// The names in `replaces`; `own` are those of the descriptor's limits.
fn read_replaces(fields: &Fields<'_>, own: &[&str], context: &mut Context<'_, '_>) -> Vec<String> {
    let mut replaces = Vec::new();
    for node in fields.list("replaces", context.diagnostics) {
        if matches!(node.content, Content::Null) {
            context.diagnostics.error(node.position(), "an entry of replaces needs a `name`");
            continue;
        }
        let Some(entry) = Fields::read(node, &REPLACES, context.diagnostics) else { continue };
        let Some(name) = entry.required("name", context.diagnostics) else { continue };
        let position = entry.position_of("name");
        if own.contains(&name.as_str()) {
            let message = "`replaces` must not name a limit of the same descriptor";
            context.diagnostics.error(position, message);
            continue;
        }
        let (domain, file) = (context.domain.clone(), context.file.clone());
        context.cross_file.replaced.push(Replaced { domain, name: name.clone(), file, position });
        replaces.push(name);
    }
    replaces
}

fn check_unlimited(fields: &Fields<'_>, context: &mut Context<'_, '_>) {
    for key in RATE_LIMIT.known.iter().filter(|key| !OF_UNLIMITED.contains(key)) {
        if fields.has(key) {
            let message = format!("`{key}` contradicts `unlimited: true`; remove one");
            context.diagnostics.error(fields.position_of(key), message);
        }
    }
    if fields.has("requests_per_unit") && !fields.is_default("requests_per_unit") {
        let message = "`requests_per_unit` has no effect when `unlimited` is true";
        context.diagnostics.warn(fields.key_position("requests_per_unit"), message);
    }
}
