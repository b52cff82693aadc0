//! `metadata`: any map, passed on with the answer.

use super::context::Diagnostics;
use super::fields::Fields;
use crate::document::{Content, Node};
use tidegate_core::Value;

/// The metadata of a descriptor. The parser bounds its depth.
pub(super) fn read(fields: &Fields<'_>, diagnostics: &mut Diagnostics<'_>) -> Option<Value> {
    let node = fields.value("metadata")?;
    if !matches!(node.content, Content::Map(_)) {
        diagnostics.wrong_type(node, "metadata", "a map");
        return None;
    }
    Some(value(node, diagnostics))
}

fn value(node: &Node, diagnostics: &mut Diagnostics<'_>) -> Value {
    match &node.content {
        Content::Null => Value::Null,
        Content::Bool(value) => Value::Bool(*value),
        Content::Int(number) => Value::Number(*number as f64),
        Content::Float(number) => {
            if !number.is_finite() {
                let message = "`metadata`: only finite numbers can be passed on";
                diagnostics.error(node.position(), message);
            }
            Value::Number(*number)
        }
        Content::Text(text) => Value::Text(text.clone()),
        Content::List(items) => {
            Value::List(items.iter().map(|item| value(item, diagnostics)).collect())
        }
        Content::Map(entries) => {
            let entries = entries.iter();
            Value::Map(
                entries.map(|(key, of)| (key.name.clone(), value(of, diagnostics))).collect(),
            )
        }
    }
}
