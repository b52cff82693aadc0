//! One entry of `rate_limits`: its actions and its conditions. `hits` has its cost.

use super::action::action;
use super::checks::{in_range, items_up_to};
use super::denied::{self, OF_A_RULE};
use super::hits::{Hits, hits};
use super::limit::limit;
use super::matcher::{NameTest, name_test};
use super::metadata::{ROUTE_ENTRY, metadata_key};
#[cfg(feature = "cel")]
use super::when::when;
use super::{enforcement, variant};
use crate::config::denied::ReplyContent;
use crate::config::interner::Interner;
use crate::config::node::Node;
use crate::config::rate_limit::{
    Condition, EntryOptions, Fact, HitsAddend, RateLimit, Source, XRateLimitOption,
};
use crate::config::unsupported::OF_A_RATE_LIMIT;
#[cfg(feature = "cel")]
use crate::config::when::OnError;
use crate::config::{ConfigError, LateCharge};

const FIELDS: [&str; if cfg!(feature = "cel") { 12 } else { 11 }] = [
    "actions",
    "hits_addend",
    "apply_on_stream_done",
    "routes",
    "route_metadata",
    "shadow",
    "stage",
    "disable_key",
    "limit",
    "x_ratelimit_option",
    "denied",
    #[cfg(feature = "cel")]
    "when",
];

/// The entry, and its charge if that is late or a refund. `denials` is the content of denials by
/// other rules.
pub(super) fn rate_limit(
    node: &Node<'_>,
    denials: &ReplyContent,
    interner: &mut Interner,
) -> Result<(RateLimit, Option<LateCharge>), ConfigError> {
    node.object("an object with `actions`", &FIELDS, &OF_A_RATE_LIMIT)?;
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
        action(item, interner, &mut actions)?;
    }
    if let Some(limit) = node.field("limit") {
        actions.push(self::limit(&limit, interner)?);
    }
    let denied = match node.field("denied") {
        Some(denied) => Some(Box::new(denied::content(&denied, &OF_A_RULE, Some(denials))?)),
        None => None,
    };
    let options = EntryOptions { x_ratelimit_option: x_ratelimit_option(node)?, denied };
    let entry = RateLimit {
        enforcement: enforcement(node)?,
        conditions,
        #[cfg(feature = "cel")]
        when: when(node, on_error(charge.as_ref()), interner)?,
        hits,
        actions,
        options,
    };
    Ok((entry, charge))
}

/// The effect of a condition that cannot be evaluated on an entry with this charge.
#[cfg(feature = "cel")]
fn on_error(charge: Option<&LateCharge>) -> OnError {
    match charge {
        Some(LateCharge::RefundAtStart(_) | LateCharge::RefundAtEnd(_)) => OnError::Skip,
        Some(LateCharge::DebitAtEnd(_) | LateCharge::Estimate { .. }) | None => OnError::Apply,
    }
}

fn x_ratelimit_option(node: &Node<'_>) -> Result<XRateLimitOption, ConfigError> {
    const NAME: &str = "x_ratelimit_option";
    let Some(field) = node.field(NAME) else { return Ok(XRateLimitOption::Unspecified) };
    let number = match field.is_text() {
        true => match variant(node, NAME, &["UNSPECIFIED", "OFF", "DRAFT_VERSION_03"])? {
            Some("OFF") => 1,
            Some("DRAFT_VERSION_03") => 2,
            _ => 0,
        },
        false if field.is_flag() => {
            return Err(field.error("write \"OFF\" with quotes, as YAML reads OFF as a boolean"));
        }
        false => in_range(&field, 0, 2)?,
    };
    Ok(match number {
        0 => XRateLimitOption::Unspecified,
        1 => XRateLimitOption::Off,
        _ => XRateLimitOption::DraftVersion03,
    })
}

fn conditions(node: &Node<'_>, interner: &mut Interner) -> Result<Vec<Condition>, ConfigError> {
    let mut conditions = Vec::new();
    if let Some(routes) = node.field("routes") {
        let mut condition = condition(interner.property(&["xds", "route_name"]));
        let items = routes.items()?;
        if items.is_empty() {
            return Err(routes.error("must not be empty; leave it out for all routes"));
        }
        for route in &items {
            add_test(&mut condition, route, interner)?;
        }
        conditions.push(condition);
    }
    if let Some(metadata) = node.field("route_metadata") {
        let expected = "an object with `metadata_key` and `value`";
        metadata.object(expected, &["metadata_key", "value"], &[])?;
        let source = metadata_key(&metadata.required("metadata_key")?, ROUTE_ENTRY)?;
        let mut condition = condition(interner.fact(Source::Text(source)));
        add_test(&mut condition, &metadata.required("value")?, interner)?;
        conditions.push(condition);
    }
    Ok(conditions)
}

fn condition(fact: Fact) -> Condition {
    Condition { fact, one_of: Vec::new(), matchers: Vec::new() }
}

fn add_test(
    condition: &mut Condition,
    node: &Node<'_>,
    interner: &mut Interner,
) -> Result<(), ConfigError> {
    match name_test(node, interner)? {
        NameTest::Name(text) => condition.one_of.push(text),
        NameTest::Matcher(matcher) => condition.matchers.push(matcher),
    }
    Ok(())
}
