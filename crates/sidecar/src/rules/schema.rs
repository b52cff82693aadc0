//! The schema of a limits file: what each key means, and how the parts become rules.

use super::document::{self, Node, Place};
use super::reader::{Fields, Keys, Reports};
use super::{RuleError, duration};
use serde_saphyr::Spanned;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidegate_core::{
    DomainRules, Enforcement, FixedWindow, Limit, Nanos, Quota, QuotaError, Rule, RuleNode, Rules,
    TokenBucket, Unit,
};

const FILE: Keys =
    Keys { of: "a limits file", known: &["domain", "descriptors"], unsupported: &[] };

const DESCRIPTOR: Keys = Keys {
    of: "a descriptor",
    known: &["key", "value", "rate_limit", "shadow_mode", "descriptors"],
    unsupported: &[
        "rate_limits",
        "quota_mode",
        "detailed_metric",
        "value_to_metric",
        "share_threshold",
        "metadata",
    ],
};

const RATE_LIMIT: Keys = Keys {
    of: "a rate_limit",
    known: &[
        "unit",
        "requests_per_unit",
        "unlimited",
        "name",
        "algorithm",
        "requests",
        "period",
        "burst",
        "initial",
    ],
    unsupported: &["replaces", "timezone", "borrow", "exact", "count_denied"],
};

const ALGORITHMS: [&str; 2] = ["fixed_window", "token_bucket"];

/// The rules read so far, and which file each domain came from.
#[derive(Default)]
pub(super) struct Loaded {
    pub(super) rules: Rules,
    files: HashMap<String, PathBuf>,
}

impl Loaded {
    /// Reads one more file, and its mistakes into `errors`.
    pub(super) fn read_file(&mut self, file: &Path, text: &str, errors: &mut Vec<RuleError>) {
        let root = match document::parse(text) {
            Ok(root) => root,
            Err((place, message)) => {
                errors.push(RuleError { file: file.to_owned(), place, message });
                return;
            }
        };
        let mut reports = Reports { file, source: text, errors };
        let Some(fields) = Fields::read(&root, &FILE, &mut reports) else { return };
        let name = fields.required("domain", &mut reports);
        let mut domain = DomainRules::new(name.clone().unwrap_or_default());
        let descriptors = fields.list("descriptors", &mut reports);
        let path = escaped(domain.name());
        read_descriptors(descriptors, &path, domain.root_mut(), &mut reports);
        let Some(name) = name else { return };
        if self.rules.insert(domain).is_ok() {
            self.files.insert(name, file.to_owned());
        } else {
            let other = self.files.get(&name).map(|file| file.display().to_string());
            let message =
                format!("domain {name:?} is already defined by {}", other.unwrap_or_default());
            reports.report(fields.place_of("domain"), message);
        }
    }
}

fn read_descriptors(
    descriptors: &[Spanned<Node>],
    path: &str,
    parent: &mut RuleNode,
    reports: &mut Reports<'_>,
) {
    for node in descriptors {
        if let Some(fields) = Fields::read(node, &DESCRIPTOR, reports) {
            read_descriptor(&fields, path, parent, reports);
        }
    }
}

fn read_descriptor(
    fields: &Fields<'_>,
    path: &str,
    parent: &mut RuleNode,
    reports: &mut Reports<'_>,
) {
    let Some(key) = fields.required("key", reports) else {
        return;
    };
    let value = fields.text("value", reports);
    if value.is_none() && fields.has("value") {
        // Reported; it must not pass for "any value", and be called a duplicate of that.
        return;
    }
    // An empty value means any value, as in the original.
    let value = value.filter(|value| !value.is_empty());
    if value.as_deref().is_some_and(|value| value.contains('*')) {
        let message = "wildcards (`*` in a value) are not supported by this version of tidegate";
        reports.report(fields.place_of("value"), message);
        return;
    }
    let path = match &value {
        Some(value) => format!("{path}/{}={}", escaped(&key), escaped(value)),
        None => format!("{path}/{}", escaped(&key)),
    };
    let Some(node) = parent.insert(&key, value.as_deref()) else {
        reports.report(fields.place, format!("duplicate descriptor {path}"));
        return;
    };
    let enforcement = if fields.flag("shadow_mode", reports) {
        Enforcement::Shadow
    } else {
        Enforcement::Enforce
    };
    if let Some(rate_limit) = fields.value("rate_limit")
        && let Some(fields) = Fields::read(rate_limit, &RATE_LIMIT, reports)
        && let Some(rule) = read_rule(&fields, &path, enforcement, reports)
    {
        node.set_rule(rule);
    }
    read_descriptors(fields.list("descriptors", reports), &path, node, reports);
}

/// A part of a path, with what would make two paths look the same percent-encoded.
fn escaped(part: &str) -> String {
    part.replace('%', "%25").replace('/', "%2F").replace('=', "%3D")
}

fn read_rule(
    fields: &Fields<'_>,
    path: &str,
    enforcement: Enforcement,
    reports: &mut Reports<'_>,
) -> Option<Rule> {
    let name = fields.text("name", reports);
    if fields.flag("unlimited", reports) {
        for key in RATE_LIMIT.known.iter().filter(|key| !["unlimited", "name"].contains(key)) {
            if fields.has(key) {
                let message = format!("`{key}` says nothing when `unlimited` is true; remove one");
                reports.report(fields.place_of(key), message);
            }
        }
        return Some(Rule::Unlimited);
    }
    let quota = read_quota(fields, reports)?;
    Some(Rule::Limit(Arc::new(Limit { name, path: path.to_owned(), quota, enforcement })))
}

fn read_quota(fields: &Fields<'_>, reports: &mut Reports<'_>) -> Option<Quota> {
    let before = reports.errors.len();
    let period = read_period(fields, reports);
    let requests = read_requests(fields, reports);
    let burst = fields.number("burst", reports);
    let initial = fields.number("initial", reports);
    let algorithm = fields.text("algorithm", reports).unwrap_or_else(|| ALGORITHMS[0].to_owned());
    if !ALGORITHMS.contains(&algorithm.as_str()) {
        let names = ALGORITHMS.join(" or ");
        let message = format!("unknown algorithm {algorithm:?}; expected {names}");
        reports.report(fields.place_of("algorithm"), message);
    }
    if algorithm != "token_bucket" {
        for key in ["burst", "initial"].into_iter().filter(|key| fields.has(key)) {
            reports.report(fields.place_of(key), format!("`{key}` is for token_bucket only"));
        }
    }
    if reports.errors.len() > before {
        return None;
    }
    let (period, requests) = (period?, requests?);
    let quota = if algorithm == "token_bucket" {
        let burst = burst.unwrap_or(requests);
        let initial = initial.unwrap_or(burst);
        TokenBucket::new(requests, period, burst, initial).map(Quota::TokenBucket)
    } else {
        FixedWindow::new(requests, period).map(Quota::FixedWindow)
    };
    quota.map_err(|error| reports.report(place_of_fault(fields, &error), error.to_string())).ok()
}

fn place_of_fault(fields: &Fields<'_>, error: &QuotaError) -> Place {
    fields.place_of(match error {
        QuotaError::RefillZero if fields.has("requests") => "requests",
        QuotaError::RefillZero => "requests_per_unit",
        QuotaError::BurstZero => "burst",
        QuotaError::InitialAboveBurst { .. } => "initial",
        _ => "period",
    })
}

/// `unit` as envoyproxy/ratelimit has it, or `period` for any length.
fn read_period(fields: &Fields<'_>, reports: &mut Reports<'_>) -> Option<Nanos> {
    let (unit, period) = (fields.text("unit", reports), fields.text("period", reports));
    match (unit, period) {
        (Some(unit), None) => {
            let found = Unit::from_name(&unit).map(Unit::period);
            if found.is_none() {
                let names = Unit::ALL.map(Unit::name).join(", ");
                let message = format!("unknown unit {unit:?}; expected {names}");
                reports.report(fields.place_of("unit"), message);
            }
            found
        }
        (None, Some(period)) => {
            let found = duration::parse(&period);
            if found.is_none() {
                let message = format!(
                    "{period:?} is not a period; expected a number and ms, s, m, h, d or w, \
                     such as 30s"
                );
                reports.report(fields.place_of("period"), message);
            }
            found
        }
        (Some(_), Some(_)) => {
            reports.report(fields.place_of("period"), "`unit` and `period` exclude each other");
            None
        }
        (None, None) if fields.has("unit") || fields.has("period") => None,
        (None, None) => {
            let message = "a rate_limit needs `unit` (second, minute, hour, …) or `period` \
                           (such as 30s)";
            reports.report(fields.place, message);
            None
        }
    }
}

/// `requests`, or `requests_per_unit` as envoyproxy/ratelimit has it, where leaving it out is a
/// limit of 0.
fn read_requests(fields: &Fields<'_>, reports: &mut Reports<'_>) -> Option<u32> {
    match (fields.has("requests"), fields.has("requests_per_unit")) {
        (true, false) => fields.number("requests", reports),
        (false, true) => fields.number("requests_per_unit", reports),
        (false, false) if fields.has("unit") => Some(0),
        (false, false) => {
            reports.report(fields.place, "a rate_limit with `period` needs `requests`");
            None
        }
        (true, true) => {
            let message = "`requests` and `requests_per_unit` mean the same; keep one";
            reports.report(fields.place_of("requests"), message);
            None
        }
    }
}
