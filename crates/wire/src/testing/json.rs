//! Metadata of an answer as JSON, with keys in order.

use prost_types::value::Kind;
use prost_types::{Struct, Value};

/// Writes `fields` on one line, such as `{"a": [1, null], "b": "x"}`.
pub(super) fn json(fields: &Struct) -> String {
    let fields = fields.fields.iter().map(|(key, value)| format!("{key:?}: {}", json_value(value)));
    format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
}

fn json_value(value: &Value) -> String {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => "null".to_owned(),
        Some(Kind::BoolValue(value)) => value.to_string(),
        Some(Kind::NumberValue(value)) => value.to_string(),
        Some(Kind::StringValue(value)) => format!("{value:?}"),
        Some(Kind::ListValue(list)) => {
            let values = list.values.iter().map(json_value);
            format!("[{}]", values.collect::<Vec<_>>().join(", "))
        }
        Some(Kind::StructValue(fields)) => json(fields),
    }
}
