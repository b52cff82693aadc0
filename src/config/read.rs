//! Makes a [`Config`] of a document: each part is read and validated in one pass, field by field.

mod action;
mod checks;
mod commands;
mod denied;
mod filter_options;
mod format;
mod hits;
mod jwt_claim;
pub(crate) mod limit;
mod matcher;
mod metadata;
mod rate_limit;
mod reports;
mod virtual_hosts;
#[cfg(feature = "cel")]
mod when;

use super::interner::Interner;
use super::node::Node;
use super::tree::Tree;
use super::unsupported::OF_THE_FILTER;
use super::{
    Action, Config, ConfigError, Enforcement, EntryOptions, Fraction, HeaderStyle, RateLimit,
    UndecidedMode, VirtualHosts, XRateLimitOption,
};
use checks::{not_empty, number_or};
use filter_options::{fraction, selection, status_on_error};
use std::time::Duration;
use virtual_hosts::Lists;

/// The default of Envoy's own rate limit filter.
const TIMEOUT_MS_DEFAULT: u32 = 20;
/// A request held for a minute is lost anyway.
const TIMEOUT_MS_MAX: u64 = 60_000;
/// With at most 857 bytes a slot, at most 7 MB of Envoy's memory; 16 MB if each descriptor meets
/// several limits.
const SLOTS_DEFAULT: u32 = 8_192;
/// At about 450 bytes a slot, 30 MB of Envoy's memory.
const SLOTS_MAX: u64 = 65_536;

/// As in Envoy.
const STAGE_MAX: u64 = 10;

const FIELDS: [&str; 22] = [
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
    "stat_prefix",
    "shadow_header",
    "filter_state",
    "virtual_hosts",
];

pub(super) fn config(document: &Tree) -> Result<Config, ConfigError> {
    let node = Node::document(document);
    node.object("an object", &FIELDS, &OF_THE_FILTER)?;
    let domain = not_empty(&node.required("domain")?)?.to_owned();
    let mut interner = Interner::of(document);
    let selection = selection(&node)?;
    let sidecar = node.required("sidecar")?;
    sidecar.object("an object with `cluster`", &["cluster", "timeout_ms"], &[])?;
    let cluster = not_empty(&sidecar.required("cluster")?)?.to_owned();
    let mut denied = denied::denied(&node, &mut interner)?;
    let Lists { mut rate_limits, mut virtual_hosts, late_charges } =
        virtual_hosts::limits(&node, &denied.content, &mut interner, Interner::of(document))?;
    let entry_options = entry_options(&node, &mut rate_limits, virtual_hosts.as_deref_mut())?;
    denied.has_rules |= entry_options.iter().any(|options| options.denied.is_some());
    let is_own =
        |options: &EntryOptions| options.x_ratelimit_option != XRateLimitOption::Unspecified;
    let has_options = entry_options.iter().any(is_own);
    let headers_by_default = match variant(&node, "headers", &["ietf", "draft03", "off"])? {
        Some("off") => HeaderStyle::Off,
        Some("draft03") => HeaderStyle::Draft03,
        _ => HeaderStyle::Ietf,
    };
    Ok(Config {
        domain,
        call_target: tidegate_wire::grpc_service_of_cluster(&cluster),
        cluster,
        timeout: timeout(&sidecar)?,
        failure_mode: match variant(&node, "failure_mode", &["allow", "deny"])? {
            Some("deny") => UndecidedMode::Deny,
            _ => UndecidedMode::Allow,
        },
        failure_mode_deny_percent: fraction(&node, "failure_mode_deny_percent")?,
        status_on_error: status_on_error(&node)?,
        filter_enforced: fraction(&node, "filter_enforced")?.unwrap_or(Fraction::ALL),
        overload_mode: match variant(&node, "overload_mode", &["deny", "allow"])? {
            Some("allow") => UndecidedMode::Allow,
            _ => UndecidedMode::Deny,
        },
        headers: if has_options { HeaderStyle::ByEntry } else { headers_by_default },
        headers_by_default,
        denied,
        reports: reports::reports(&node)?,
        lease_slots: lease_slots(&node.at("leases"))?,
        is_special: selection.is_some() || !late_charges.is_empty(),
        selection,
        rate_limits,
        virtual_hosts,
        entry_options,
        late_charges,
        parameters: interner.parameters(),
        path: interner.header(":path"),
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

/// The options of entries, each once. If there are any, each descriptor gets the number of its
/// entry's.
fn entry_options(
    filter: &Node<'_>,
    rate_limits: &mut [RateLimit],
    virtual_hosts: Option<&mut VirtualHosts>,
) -> Result<Vec<EntryOptions>, ConfigError> {
    let lists = virtual_hosts.into_iter().flat_map(|hosts| hosts.lists.iter_mut());
    let mut entries: Vec<&mut RateLimit> = rate_limits.iter_mut().chain(lists.flatten()).collect();
    let none = EntryOptions::default();
    if entries.iter().all(|entry| entry.options == none) {
        return Ok(Vec::new());
    }
    let mut all: Vec<EntryOptions> = Vec::new();
    for entry in &mut entries {
        let options = std::mem::take(&mut entry.options);
        let number = match all.iter().position(|known| *known == options) {
            Some(number) => number,
            None => {
                all.push(options);
                all.len().saturating_sub(1)
            }
        };
        let Ok(number) = u8::try_from(number) else {
            let message =
                "more than 256 entries have a `denied` or `x_ratelimit_option` of their own";
            return Err(filter.error(message));
        };
        entry.actions.insert(0, Action::Origin(number));
    }
    Ok(all)
}

/// The stage of the filter or of an entry.
fn stage(node: &Node<'_>) -> Result<u32, ConfigError> {
    number_or(node, "stage", 0, 0, STAGE_MAX)
}
