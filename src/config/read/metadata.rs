//! The `metadata` action, and the keys of metadata.

use super::checks::{
    in_range, not_empty, number_of, owned, property_path, some_items, when_absent,
};
use crate::config::ConfigError;
use crate::config::encoded::Encoded;
use crate::config::interner::Interner;
use crate::config::node::Node;
use crate::config::rate_limit::{Action, Source, WhenAbsent};

/// The prefix of a kind of metadata among Envoy's properties.
pub(super) type Root = [&'static str];

pub(super) const DYNAMIC: &Root = &["metadata", "filter_metadata"];
/// Conditions on routes use it too.
pub(super) const ROUTE_ENTRY: &Root = &["xds", "route_metadata", "filter_metadata"];
pub(super) const CLUSTER_ENTRY: &Root = &["xds", "cluster_metadata", "filter_metadata"];

/// The fields of the action. Its deprecated form, `dynamic_metadata`, has the first three.
pub(super) const FIELDS: [&str; 5] =
    ["descriptor_key", "metadata_key", "default_value", "source", "skip_if_absent"];
pub(super) const FIELDS_DYNAMIC: usize = 3;

pub(super) fn metadata(
    node: &Node<'_>,
    fields: &[&str],
    interner: &mut Interner,
) -> Result<Action, ConfigError> {
    node.object("an object with `descriptor_key` and `metadata_key`", fields, &[])?;
    let key = not_empty(&node.required("descriptor_key")?)?;
    let root = match node.field("source") {
        Some(source) => root(&source)?,
        None => DYNAMIC,
    };
    let source = metadata_key(&node.required("metadata_key")?, root)?;
    let default_value = match node.field("default_value") {
        Some(value) => value.text()?,
        None => "",
    };
    let when_absent = match default_value {
        "" => when_absent(node)?,
        value => WhenAbsent::Entry(Encoded::entry(key, value)),
    };
    let fact = interner.fact(Source::Text(source));
    Ok(Action::Value { key: Encoded::key(key), fact, when_absent })
}

/// The property below `root` that a metadata key names.
pub(super) fn metadata_key(node: &Node<'_>, root: &Root) -> Result<Vec<String>, ConfigError> {
    node.object("an object with `key` and `path`", &["key", "path"], &[])?;
    let mut parts = owned(root);
    let (key, path) = (node.required("key")?, node.required("path")?);
    parts.push(key.text()?.to_owned());
    let segments = some_items(&path)?;
    for segment in &segments {
        segment.object("an object with `key` or `index`", &["key", "index"], &[])?;
        parts.push(match segment.one_of(&["key", "index"])? {
            ("key", key) => key.text()?.to_owned(),
            // Envoy counts the items of a list from 0.
            (_, index) => in_range(&index, 0, u32::MAX.into())?.to_string(),
        });
    }
    property_path(node, parts)
}

fn root(node: &Node<'_>) -> Result<&'static Root, ConfigError> {
    let known = ["DYNAMIC", "ROUTE_ENTRY", "CLUSTER_ENTRY", "CLUSTER_LOCALITY_ENTRY"];
    match number_of(node, &known)? {
        0 => Ok(DYNAMIC),
        1 => Ok(ROUTE_ENTRY),
        2 => Ok(CLUSTER_ENTRY),
        _ => Err(node.error("not supported: a Wasm filter cannot see CLUSTER_LOCALITY_ENTRY")),
    }
}
