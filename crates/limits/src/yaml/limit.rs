//! `rate_limit` and `rate_limits`: the limits of one descriptor.

use super::algorithm::read_quota;
use super::document::{Node, Position, Spot};
use super::reader::{Fields, Keys};
use super::{Reading, denied};
use crate::loader::Replaced;
use crate::text::escaped;
use crate::{Limit, RuleKind};
use std::collections::HashMap;
use std::mem::discriminant;
use tidegate_core::Quota;

/// The most limits of one descriptor: each is a counter that a request updates.
pub(super) const LIMITS_MAX: usize = 16;

pub(super) const RATE_LIMIT: Keys = Keys {
    of: "a rate_limit",
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

const REPLACES: Keys = Keys { of: "an entry of replaces", known: &["name"] };

/// Keys that go with `unlimited: true`; `requests_per_unit` does so without effect.
const OF_UNLIMITED: [&str; 4] = ["unlimited", "name", "replaces", "requests_per_unit"];

/// What tells a limit from the others of its rule.
struct Named {
    name: Option<String>,
    path: String,
    label: String,
}

/// The only limit of a descriptor. Its name is no part of its identity, so it may change.
pub(super) fn read_rate_limit(
    spot: &Spot,
    path: &str,
    reading: &mut Reading<'_, '_>,
) -> Option<RuleKind> {
    let fields = Fields::read(spot, &RATE_LIMIT, reading.reports)?;
    let name = read_name(&fields, reading);
    let own: Vec<&str> = name.as_deref().into_iter().collect();
    if fields.flag("unlimited", reading.reports) {
        let replaces = read_replaces(&fields, &own, reading);
        check_unlimited(&fields, reading);
        return Some(RuleKind::Unlimited { name, replaces });
    }
    let replaces = read_replaces(&fields, &own, reading);
    let named = Named { name, path: path.to_owned(), label: String::new() };
    Some(RuleKind::Limits(vec![read_limit(&fields, named, replaces, reading)?]))
}

/// Several limits of a descriptor.
pub(super) fn read_limits(
    limits: &[Spot],
    path: &str,
    reading: &mut Reading<'_, '_>,
) -> Option<RuleKind> {
    let mut maps = Vec::with_capacity(limits.len());
    for spot in limits {
        maps.push(Fields::read(spot, &RATE_LIMIT, reading.reports)?);
    }
    let names: Vec<Option<String>> = maps.iter().map(|map| read_name(map, reading)).collect();
    let own: Vec<&str> = names.iter().flatten().map(String::as_str).collect();
    let paths = read_paths(&maps, &names, path, reading);
    let mut read: Vec<(Limit, Position)> = Vec::with_capacity(limits.len());
    let mut complete = true;
    for ((fields, name), path) in maps.iter().zip(&names).zip(paths) {
        let replaces = read_replaces(fields, &own, reading);
        if fields.flag("unlimited", reading.reports) {
            let message = "`unlimited` is for a rate_limit alone, not for one of several";
            reading.reports.report(fields.place_of_key("unlimited"), message);
            complete = false;
            continue;
        }
        let label = name.clone().unwrap_or_default();
        let named = Named { name: name.clone(), path, label };
        match read_limit(fields, named, replaces, reading) {
            Some(limit) => read.push((limit, fields.place)),
            None => complete = false,
        }
    }
    check_counters(&read, reading);
    let limits: Vec<Limit> = read.into_iter().map(|(limit, _)| limit).collect();
    (complete && !limits.is_empty()).then_some(RuleKind::Limits(limits))
}

/// The path of each: its name, or its place from 1.
fn read_paths(
    maps: &[Fields<'_>],
    names: &[Option<String>],
    path: &str,
    reading: &mut Reading<'_, '_>,
) -> Vec<String> {
    let mut paths = Vec::with_capacity(maps.len());
    let mut first: HashMap<String, (usize, Position)> = HashMap::new();
    for (index, (fields, name)) in maps.iter().zip(names).enumerate() {
        let suffix = name.as_deref().map_or_else(|| (index + 1).to_string(), escaped);
        let place = fields.place_of("name");
        if let Some((other, (line, column))) = first.get(&suffix) {
            let message = if names[*other] == *name {
                format!("the limit at {line}:{column} has this name already")
            } else {
                format!(
                    "{suffix:?} is the name of one limit and the place of another here; give all \
                     of them names"
                )
            };
            reading.reports.report(place, message);
        }
        first.entry(suffix.clone()).or_insert((index, place));
        paths.push(format!("{path}#{suffix}"));
    }
    paths
}

/// Two limits of one list that are told apart by nothing would share a counter.
fn check_counters(limits: &[(Limit, Position)], reading: &mut Reading<'_, '_>) {
    for (index, (limit, place)) in limits.iter().enumerate() {
        let same = |(other, _): &&(Limit, Position)| {
            let algorithm = |quota: &Quota| discriminant(quota);
            limit.label.is_empty()
                && other.label.is_empty()
                && algorithm(&limit.quota) == algorithm(&other.quota)
                && limit.quota.period() == other.quota.period()
        };
        if let Some((_, (line, column))) = limits[..index].iter().find(same) {
            let message = format!(
                "this has the algorithm and period of the limit at {line}:{column}, so both would \
                 count in one place; give them names"
            );
            reading.reports.report(*place, message);
        }
    }
}

fn read_limit(
    fields: &Fields<'_>,
    named: Named,
    replaces: Vec<String>,
    reading: &mut Reading<'_, '_>,
) -> Option<Limit> {
    let denied = denied(fields, reading.reports).unwrap_or(reading.denied);
    let Named { name, path, label } = named;
    let quota = read_quota(fields, reading)?;
    Some(Limit { name, path, label, quota, denied, replaces })
}

fn read_name(fields: &Fields<'_>, reading: &mut Reading<'_, '_>) -> Option<String> {
    // An empty name is none, as in the original.
    let name = fields.text("name", reading.reports).filter(|name| !name.is_empty())?;
    let names = reading.common.names.entry(reading.domain.clone()).or_default();
    names.insert(name.clone());
    Some(name)
}

/// The names in `replaces`; `own` are those of the descriptor's limits.
fn read_replaces(fields: &Fields<'_>, own: &[&str], reading: &mut Reading<'_, '_>) -> Vec<String> {
    let mut replaces = Vec::new();
    for spot in fields.list("replaces", reading.reports) {
        if matches!(spot.node, Node::Null) {
            reading.reports.report(spot.place(), "an entry of replaces needs a `name`");
            continue;
        }
        let Some(entry) = Fields::read(spot, &REPLACES, reading.reports) else { continue };
        let Some(name) = entry.required("name", reading.reports) else { continue };
        let place = entry.place_of("name");
        if own.contains(&name.as_str()) {
            let message = "`replaces` must not name a limit of the same descriptor";
            reading.reports.report(place, message);
            continue;
        }
        let (domain, file) = (reading.domain.clone(), reading.file.clone());
        reading.common.replaced.push(Replaced { domain, name: name.clone(), file, place });
        replaces.push(name);
    }
    replaces
}

fn check_unlimited(fields: &Fields<'_>, reading: &mut Reading<'_, '_>) {
    for key in RATE_LIMIT.known.iter().filter(|key| !OF_UNLIMITED.contains(key)) {
        if fields.has(key) {
            let message = format!("`{key}` says nothing when `unlimited` is true; remove one");
            reading.reports.report(fields.place_of(key), message);
        }
    }
    if fields.has("requests_per_unit") {
        let message = "`requests_per_unit` has no effect when `unlimited` is true";
        reading.reports.warn(fields.place_of_key("requests_per_unit"), message);
    }
}
