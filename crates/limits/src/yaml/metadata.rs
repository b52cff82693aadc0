//! `metadata`: any map, passed on with the answer.

use super::document::{Node, Spot};
use super::reader::{Fields, Reports};
use tidegate_core::Value;

/// The metadata of a descriptor. How deep they nest is bounded by the parser.
pub(super) fn read(fields: &Fields<'_>, reports: &mut Reports<'_>) -> Option<Value> {
    let spot = fields.value("metadata")?;
    if !matches!(spot.node, Node::Map(_)) {
        reports.expected(spot, "metadata", "a map");
        return None;
    }
    Some(value(spot, reports))
}

fn value(spot: &Spot, reports: &mut Reports<'_>) -> Value {
    match &spot.node {
        Node::Null => Value::Null,
        Node::Bool(value) => Value::Bool(*value),
        Node::Int(number) => Value::Number(*number as f64),
        Node::Float(number) => {
            if !number.is_finite() {
                let message = "`metadata`: only finite numbers can be passed on";
                reports.report(spot.place(), message);
            }
            Value::Number(*number)
        }
        Node::Text(text) => Value::Text(text.clone()),
        Node::List(items) => Value::List(items.iter().map(|item| value(item, reports)).collect()),
        Node::Map(entries) => {
            let entries = entries.iter();
            Value::Map(entries.map(|(key, of)| (key.name.clone(), value(of, reports))).collect())
        }
    }
}
