//! Makes a [`Config`] of a document: each part is read and validated in one pass, field by field.

mod action;
mod checks;
mod matcher;
mod metadata;
mod rate_limit;

use super::document::Tree;
use super::interner::Interner;
use super::node::Node;
use super::unsupported::OF_THE_FILTER;
use super::{
    Config, ConfigError, DeniedReply, Enforcement, FailureMode, HeaderStyle, Leases, OverloadMode,
    RateLimit,
};
use checks::{in_range, not_empty};
use std::time::Duration;

/// The default of Envoy's own rate limit filter.
const TIMEOUT_MS_DEFAULT: u32 = 20;
/// A request held for a minute is lost anyway.
const TIMEOUT_MS_MAX: u64 = 60_000;
/// At about 450 bytes a slot, 30 MB of Envoy's memory.
const SLOTS_MAX: u64 = 65_536;

const FIELDS: [&str; 9] = [
    "domain",
    "sidecar",
    "failure_mode",
    "overload_mode",
    "rate_limits",
    "shadow",
    "headers",
    "denied",
    "leases",
];

pub(super) fn config(document: &Tree) -> Result<Config, ConfigError> {
    let node = Node::document(document);
    node.object("an object", &FIELDS, &OF_THE_FILTER)?;
    let domain = not_empty(&node.required("domain")?)?.to_owned();
    let mut interner = Interner::of(document);
    let sidecar = node.required("sidecar")?;
    sidecar.object("an object with `cluster`", &["cluster", "timeout_ms"], &[])?;
    let cluster = sidecar.required("cluster")?;
    Ok(Config {
        domain,
        call_target: call_target(&cluster)?,
        cluster: cluster.text()?.to_owned(),
        timeout: timeout(&sidecar)?,
        failure_mode: failure_mode(&node)?,
        overload_mode: overload_mode(&node)?,
        headers: header_style(&node)?,
        denied: denied(&node.at("denied"))?,
        leases: leases(&node.at("leases"))?,
        rate_limits: rate_limits(&node, &mut interner)?,
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
    let timeout_ms = match sidecar.field("timeout_ms") {
        Some(timeout_ms) => in_range(&timeout_ms, 1, TIMEOUT_MS_MAX)?,
        None => TIMEOUT_MS_DEFAULT,
    };
    Ok(Duration::from_millis(timeout_ms.into()))
}

fn failure_mode(node: &Node<'_>) -> Result<FailureMode, ConfigError> {
    let Some(field) = node.field("failure_mode") else { return Ok(FailureMode::default()) };
    match field.text()? {
        "allow" => Ok(FailureMode::Allow),
        "deny" => Ok(FailureMode::Deny),
        other => Err(field.unknown("variant", other, &["allow", "deny"])),
    }
}

fn overload_mode(node: &Node<'_>) -> Result<OverloadMode, ConfigError> {
    let Some(field) = node.field("overload_mode") else { return Ok(OverloadMode::default()) };
    match field.text()? {
        "deny" => Ok(OverloadMode::Deny),
        "allow" => Ok(OverloadMode::Allow),
        other => Err(field.unknown("variant", other, &["deny", "allow"])),
    }
}

fn header_style(node: &Node<'_>) -> Result<HeaderStyle, ConfigError> {
    let Some(field) = node.field("headers") else { return Ok(HeaderStyle::default()) };
    match field.text()? {
        "ietf" => Ok(HeaderStyle::Ietf),
        "draft03" => Ok(HeaderStyle::Draft03),
        "off" => Ok(HeaderStyle::Off),
        other => Err(field.unknown("variant", other, &["ietf", "draft03", "off"])),
    }
}

fn denied(node: &Node<'_>) -> Result<DeniedReply, ConfigError> {
    let mut reply = DeniedReply { status: 429, body: "rate limit exceeded".to_owned() };
    if node.is_absent() {
        return Ok(reply);
    }
    node.object("an object with `status` or `body`", &["status", "body"], &[])?;
    if let Some(status) = node.field("status") {
        reply.status = in_range(&status, 400, 599)?;
    }
    if let Some(body) = node.field("body") {
        // A gRPC client gets the body as its status message, in which a newline reads `%0A`.
        body.text()?.trim_end_matches(['\r', '\n']).clone_into(&mut reply.body);
    }
    Ok(reply)
}

fn leases(node: &Node<'_>) -> Result<Leases, ConfigError> {
    let mut leases = Leases::default();
    if node.is_absent() {
        return Ok(leases);
    }
    node.object("an object with `slots`", &["slots"], &[])?;
    if let Some(slots) = node.field("slots") {
        leases.slots = in_range(&slots, 0, SLOTS_MAX)?;
    }
    Ok(leases)
}

/// Whether an entry, or the filter as a whole, can deny.
fn enforcement(node: &Node<'_>) -> Result<Enforcement, ConfigError> {
    match node.flag("shadow")? {
        Some(true) => Ok(Enforcement::Shadow),
        Some(false) | None => Ok(Enforcement::Enforced),
    }
}

fn rate_limits(node: &Node<'_>, interner: &mut Interner) -> Result<Vec<RateLimit>, ConfigError> {
    let of_the_filter = enforcement(node)?;
    let list = node.required("rate_limits")?;
    let items = list.items()?;
    if items.is_empty() {
        return Err(list.error("must not be empty"));
    }
    let (count, max) = (items.len(), tidegate_wire::DESCRIPTORS_MAX);
    if count > max {
        return Err(list.error(&format!("{count} are too many (maximum {max})")));
    }
    let mut valid = Vec::with_capacity(count);
    for item in &items {
        let mut rate_limit = rate_limit::rate_limit(item, interner)?;
        if of_the_filter == Enforcement::Shadow {
            rate_limit.enforcement = Enforcement::Shadow;
        }
        valid.push(rate_limit);
    }
    Ok(valid)
}
