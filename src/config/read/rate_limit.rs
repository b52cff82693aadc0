//! One entry of `rate_limits`: its actions, its cost, and its conditions.

use super::action::action;
use super::checks::{header_name, in_range, items_up_to, not_empty};
use super::metadata::{ROUTE_ENTRY, metadata_key};
use super::{enforcement, format};
use crate::config::ConfigError;
use crate::config::format::{Command, Moment, Show};
use crate::config::interner::Interner;
use crate::config::node::Node;
use crate::config::rate_limit::{Condition, HITS_MAX, HitsAddend, RateLimit, Source};
use crate::config::unsupported::{OF_A_RATE_LIMIT, OF_HITS};

pub(super) fn rate_limit(
    node: &Node<'_>,
    interner: &mut Interner,
) -> Result<RateLimit, ConfigError> {
    let fields =
        ["actions", "hits_addend", "routes", "route_metadata", "shadow", "stage", "disable_key"];
    node.object("an object with `actions`", &fields, &OF_A_RATE_LIMIT)?;
    // Of Envoy's runtime, which a Wasm filter cannot read. Without a value there, it has no effect.
    if let Some(key) = node.field("disable_key") {
        key.text()?;
    }
    let conditions = conditions(node, interner)?;
    let hits = match node.field("hits_addend") {
        Some(hits) => hits_addend(&hits, interner)?,
        None => HitsAddend::Number(1),
    };
    let mut actions = Vec::new();
    for item in &items_up_to(&node.required("actions")?, tidegate_wire::ENTRIES_MAX)? {
        actions.push(action(item, interner)?);
    }
    Ok(RateLimit { enforcement: enforcement(node)?, conditions, hits, actions })
}

fn conditions(node: &Node<'_>, interner: &mut Interner) -> Result<Vec<Condition>, ConfigError> {
    let mut conditions = Vec::new();
    if let Some(routes) = node.field("routes") {
        let mut one_of = Vec::new();
        for route in &routes.items()? {
            one_of.push(not_empty(route)?.to_owned());
        }
        if one_of.is_empty() {
            return Err(routes.error("must not be empty; leave it out for all routes"));
        }
        conditions.push(Condition { fact: interner.property(&["xds", "route_name"]), one_of });
    }
    if let Some(metadata) = node.field("route_metadata") {
        let expected = "an object with `metadata_key` and `value`";
        metadata.object(expected, &["metadata_key", "value"], &[])?;
        let source = metadata_key(&metadata.required("metadata_key")?, ROUTE_ENTRY)?;
        let value = not_empty(&metadata.required("value")?)?.to_owned();
        let fact = interner.fact(Source::Text(source));
        conditions.push(Condition { fact, one_of: vec![value] });
    }
    Ok(conditions)
}

fn hits_addend(node: &Node<'_>, interner: &mut Interner) -> Result<HitsAddend, ConfigError> {
    let fields = ["number", "format", "header"];
    node.object("an object with `number`, `format` or `header`", &fields, &OF_HITS)?;
    let name = match (node.field("number"), node.field("format"), node.field("header")) {
        (Some(number), None, None) => {
            return Ok(HitsAddend::Number(in_range(&number, 0, HITS_MAX)?.into()));
        }
        (None, Some(format), None) => {
            let command = format::command(&format, Moment::Request, interner)?;
            return Ok(match command {
                Command { fact, or: None, show: Show::Bytes, length_max: None } => {
                    HitsAddend::Header(fact)
                }
                command => HitsAddend::Command(Box::new(command)),
            });
        }
        (None, None, Some(name)) => header_name(&name)?,
        _ => return Err(node.error("expected exactly one of `number`, `format`, `header`")),
    };
    Ok(HitsAddend::Header(interner.header(&name)))
}
