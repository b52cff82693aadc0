//! The `metadata` action, and the keys of metadata.

use super::checks::{not_empty, property_path, some_items, when_absent};
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
    let mut parts = root.to_vec();
    let (key, path) = (node.required("key")?, node.required("path")?);
    parts.push(key.text()?);
    let segments = some_items(&path)?;
    for segment in &segments {
        segment.object("an object with `key`", &["key"], &[])?;
        parts.push(segment.required("key")?.text()?);
    }
    property_path(node, &parts)
}

/// An enum as in protobuf's JSON: by name, or by number.
fn root(node: &Node<'_>) -> Result<&'static Root, ConfigError> {
    const EXPECTED: &str = "DYNAMIC, ROUTE_ENTRY or CLUSTER_ENTRY, or its number";
    let number = if node.is_text() {
        match node.text()? {
            "DYNAMIC" => 0,
            "ROUTE_ENTRY" => 1,
            "CLUSTER_ENTRY" => 2,
            "CLUSTER_LOCALITY_ENTRY" => 3,
            _ => -1,
        }
    } else {
        node.whole(EXPECTED)?
    };
    match number {
        0 => Ok(DYNAMIC),
        1 => Ok(ROUTE_ENTRY),
        2 => Ok(CLUSTER_ENTRY),
        3 => Err(node.error("not supported: a Wasm filter cannot see CLUSTER_LOCALITY_ENTRY")),
        _ => Err(node.error(&format!("expected {EXPECTED}"))),
    }
}
