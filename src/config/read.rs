//! Makes a [`Config`] of a document: each part is read and validated in one pass, field by field.

mod action;
mod checks;
mod commands;
mod filter_options;
mod format;
mod hits;
mod matcher;
mod metadata;
mod rate_limit;

use super::interner::Interner;
use super::node::Node;
use super::tree::Tree;
use super::unsupported::OF_THE_FILTER;
use super::{
    Config, ConfigError, DeniedReply, Enforcement, Fraction, HeaderStyle, HitsAddend, LateCharge,
    RateLimit, UndecidedMode,
};
use crate::request::descriptors::hits_of_late;
use checks::{items_up_to, not_empty, number_or};
use filter_options::{added_headers, fraction, selection, status_on_error};
use std::rc::Rc;
use std::time::Duration;

/// The default of Envoy's own rate limit filter.
const TIMEOUT_MS_DEFAULT: u32 = 20;
/// A request held for a minute is lost anyway.
const TIMEOUT_MS_MAX: u64 = 60_000;
/// With at most 857 bytes a slot, at most 7 MB of Envoy's memory.
const SLOTS_DEFAULT: u32 = 8_192;
/// At about 450 bytes a slot, 30 MB of Envoy's memory.
const SLOTS_MAX: u64 = 65_536;

/// As in Envoy.
const STAGE_MAX: u64 = 10;

const FIELDS: [&str; 18] = [
    "domain",
    "sidecar",
    "failure_mode",
    "overload_mode",
    "rate_limits",
    "shadow",
    "headers",
    "denied",
    "leases",
    "stage",
    "request_type",
    "filter_enabled",
    "filter_enforced",
    "failure_mode_deny_percent",
    "status_on_error",
    "rate_limited_as_resource_exhausted",
    "response_headers_to_add",
    "disable_x_envoy_ratelimited_header",
];

pub(super) fn config(document: &Tree) -> Result<Config, ConfigError> {
    let node = Node::document(document);
    node.object("an object", &FIELDS, &OF_THE_FILTER)?;
    let domain = not_empty(&node.required("domain")?)?.to_owned();
    let mut interner = Interner::of(document);
    let (rate_limits, late_charges) = rate_limits(&node, &mut interner, Interner::of(document))?;
    let selection = selection(&node)?;
    let sidecar = node.required("sidecar")?;
    sidecar.object("an object with `cluster`", &["cluster", "timeout_ms"], &[])?;
    let cluster = sidecar.required("cluster")?;
    Ok(Config {
        domain,
        call_target: call_target(&cluster)?,
        cluster: cluster.text()?.to_owned(),
        timeout: timeout(&sidecar)?,
        failure_mode: match variant(&node, "failure_mode", &["allow", "deny"])? {
            Some("deny") => UndecidedMode::Deny,
            _ => UndecidedMode::Allow,
        },
        failure_mode_deny_percent: fraction(&node, "failure_mode_deny_percent")?,
        status_on_error: status_on_error(&node)?,
        selection,
        filter_enforced: fraction(&node, "filter_enforced")?.unwrap_or(Fraction::ALL),
        overload_mode: match variant(&node, "overload_mode", &["deny", "allow"])? {
            Some("allow") => UndecidedMode::Allow,
            _ => UndecidedMode::Deny,
        },
        headers: match variant(&node, "headers", &["ietf", "draft03", "off"])? {
            Some("off") => HeaderStyle::Off,
            Some("draft03") => HeaderStyle::Draft03,
            _ => HeaderStyle::Ietf,
        },
        denied: denied(&node)?,
        lease_slots: lease_slots(&node.at("leases"))?,
        is_special: selection.is_some() || !late_charges.is_empty(),
        rate_limits,
        late_charges: Rc::from(late_charges),
        parameters: interner.parameters(),
        path: interner.header(":path"),
    })
}

fn call_target(cluster: &Node<'_>) -> Result<String, ConfigError> {
    let name = not_empty(cluster)?;
    tidegate_wire::grpc_service_of_cluster(name).ok_or_else(|| {
        let (bytes, max) = (name.len(), tidegate_wire::CLUSTER_NAME_BYTES_MAX);
        cluster.error(&format!("the name has {bytes} bytes (maximum {max})"))
    })
}

fn timeout(sidecar: &Node<'_>) -> Result<Duration, ConfigError> {
    let timeout_ms = number_or(sidecar, "timeout_ms", TIMEOUT_MS_DEFAULT, 1, TIMEOUT_MS_MAX)?;
    Ok(Duration::from_millis(timeout_ms.into()))
}

/// A field with one of these texts, if present.
fn variant(
    node: &Node<'_>,
    name: &str,
    known: &[&'static str],
) -> Result<Option<&'static str>, ConfigError> {
    let Some(field) = node.field(name) else { return Ok(None) };
    let text = field.text()?;
    match known.iter().find(|known| **known == text) {
        Some(known) => Ok(Some(known)),
        None => Err(field.unknown("variant", text, known)),
    }
}

fn denied(filter: &Node<'_>) -> Result<DeniedReply, ConfigError> {
    let node = filter.at("denied");
    if !node.is_absent() {
        node.object("an object with `status` or `body`", &["status", "body"], &[])?;
    }
    let status = number_or(&node, "status", 429, 400, 599)?;
    let body = node.field("body");
    let body = body.map_or(Ok("rate limit exceeded"), |body| body.text())?;
    // A gRPC client gets the body as its status message, in which a newline reads `%0A`.
    Ok(DeniedReply {
        status,
        body: body.trim_end_matches(['\r', '\n']).to_owned(),
        is_resource_exhausted: filter.flag("rate_limited_as_resource_exhausted", false)?,
        is_marked: !filter.flag("disable_x_envoy_ratelimited_header", false)?,
        added: added_headers(filter)?,
    })
}

fn lease_slots(node: &Node<'_>) -> Result<u32, ConfigError> {
    if !node.is_absent() {
        node.object("an object with `slots`", &["slots"], &[])?;
    }
    number_or(node, "slots", SLOTS_DEFAULT, 0, SLOTS_MAX)
}

/// Whether an entry, or the filter as a whole, can deny.
fn enforcement(node: &Node<'_>) -> Result<Enforcement, ConfigError> {
    let shadow = node.flag("shadow", false)?;
    Ok(if shadow { Enforcement::Shadow } else { Enforcement::Enforced })
}

/// The entries of the filter's stage. Those of other stages are validated, too, but requests do not
/// pay for them.
fn rate_limits(
    node: &Node<'_>,
    interner: &mut Interner,
    mut others: Interner,
) -> Result<(Vec<RateLimit>, Vec<LateCharge>), ConfigError> {
    let (of_the_filter, stage) = (enforcement(node)?, stage(node)?);
    let (mut valid, mut late) = (Vec::new(), Vec::new());
    for item in &items_up_to(&node.required("rate_limits")?, tidegate_wire::DESCRIPTORS_MAX)? {
        let is_own = self::stage(item)? == stage;
        let (mut rate_limit, charge) =
            rate_limit::rate_limit(item, if is_own { &mut *interner } else { &mut others })?;
        if of_the_filter == Enforcement::Shadow {
            rate_limit.enforcement = Enforcement::Shadow;
        }
        if !is_own {
            continue;
        }
        if let Some(charge) = charge {
            rate_limit.hits = HitsAddend::Number(hits_of_late(late.len()));
            late.push(charge);
        }
        valid.push(rate_limit);
    }
    if valid.is_empty() {
        return Err(node.at("rate_limits").error(&format!("no entry has the stage {stage}")));
    }
    Ok((valid, late))
}

/// The stage of the filter or of an entry.
fn stage(node: &Node<'_>) -> Result<u32, ConfigError> {
    number_or(node, "stage", 0, 0, STAGE_MAX)
}
