//! One entry of `rate_limits`: its actions and its conditions. `hits` has its cost.

use super::action::action;
use super::checks::{items_up_to, not_empty};
use super::enforcement;
use super::hits::{Hits, hits};
use super::metadata::{ROUTE_ENTRY, metadata_key};
use crate::config::interner::Interner;
use crate::config::node::Node;
use crate::config::rate_limit::{Condition, HitsAddend, RateLimit, Source};
use crate::config::unsupported::OF_A_RATE_LIMIT;
use crate::config::{ConfigError, LateCharge};

/// The entry, and its charge if that is late or a refund.
pub(super) fn rate_limit(
    node: &Node<'_>,
    interner: &mut Interner,
) -> Result<(RateLimit, Option<LateCharge>), ConfigError> {
    let fields = [
        "actions",
        "hits_addend",
        "apply_on_stream_done",
        "routes",
        "route_metadata",
        "shadow",
        "stage",
        "disable_key",
    ];
    node.object("an object with `actions`", &fields, &OF_A_RATE_LIMIT)?;
    // Of Envoy's runtime, which a Wasm filter cannot read. Without a value there, it has no effect.
    if let Some(key) = node.field("disable_key") {
        key.text()?;
    }
    let conditions = conditions(node, interner)?;
    let (hits, charge) = match hits(node, interner)? {
        Hits::OfRequest(hits) => (hits, None),
        Hits::Late(charge) => (HitsAddend::Number(0), Some(charge)),
    };
    let mut actions = Vec::new();
    for item in &items_up_to(&node.required("actions")?, tidegate_wire::ENTRIES_MAX)? {
        actions.push(action(item, interner)?);
    }
    Ok((RateLimit { enforcement: enforcement(node)?, conditions, hits, actions }, charge))
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
