//! A protobuf Struct as the JSON value it stands for.

use serde_json::{Map, Number, Value};
use tidegate_wire::{Kind, Struct, decode_struct};

/// The JSON object that serialized Struct `bytes` stand for; none when they are no Struct.
pub(super) fn json_of_struct(bytes: &[u8]) -> Option<Value> {
    decode_struct(bytes).map(object)
}

fn object(fields: Struct) -> Value {
    let fields = fields.fields.into_iter().map(|(name, value)| (name, json(value.kind)));
    Value::Object(fields.collect::<Map<_, _>>())
}

fn json(kind: Option<Kind>) -> Value {
    match kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(value)) => Value::Bool(value),
        Some(Kind::NumberValue(value)) => number(value),
        Some(Kind::StringValue(value)) => Value::String(value),
        Some(Kind::ListValue(list)) => {
            Value::Array(list.values.into_iter().map(|value| json(value.kind)).collect())
        }
        Some(Kind::StructValue(fields)) => object(fields),
    }
}

/// A Struct has only doubles; a whole one was an integer when it was written.
fn number(value: f64) -> Value {
    // Doubles are exact up to 2^53, and no number in a configuration is larger.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() <= EXACT_MAX {
        Value::from(value as i64)
    } else {
        Number::from_f64(value).map_or(Value::Null, Value::Number)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use prost::Message;

    /// The way back, to make inputs with.
    pub(in crate::config) fn struct_of_json(value: &Value) -> Vec<u8> {
        match kind(value) {
            Kind::StructValue(fields) => fields.encode_to_vec(),
            other => panic!("no object: {other:?}"),
        }
    }

    fn kind(value: &Value) -> Kind {
        let wrapped = |value: &Value| tidegate_wire::Value { kind: Some(kind(value)) };
        match value {
            Value::Null => Kind::NullValue(0),
            Value::Bool(value) => Kind::BoolValue(*value),
            Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap()),
            Value::String(text) => Kind::StringValue(text.clone()),
            Value::Array(list) => {
                let values = list.iter().map(wrapped).collect();
                Kind::ListValue(prost_types::ListValue { values })
            }
            Value::Object(fields) => {
                let fields = fields.iter().map(|(name, value)| (name.clone(), wrapped(value)));
                Kind::StructValue(Struct { fields: fields.collect() })
            }
        }
    }

    #[test]
    fn values_become_what_they_were() {
        let value = serde_json::json!({
            "whole": 20, "negative": -3, "half": 0.5, "text": "t", "yes": true, "none": null,
            "list": [1, "x", {"deep": []}],
        });
        assert_eq!(json_of_struct(&struct_of_json(&value)), Some(value));
    }

    #[test]
    fn what_is_no_struct_is_not_taken_for_one() {
        for bytes in [&b""[..], b"{}", b"\n{}", b"\x0a\xff", b"\x0a\x05\x0a\x7fxxx"] {
            assert_eq!(json_of_struct(bytes), None, "for {bytes:?}");
        }
    }
}
