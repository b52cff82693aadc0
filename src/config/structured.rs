//! Parses a protobuf Struct into a tree of values.
//!
//! By hand: a Struct has three messages with six fields, and generated code with its maps would be
//! as large as all other code that reads the configuration.

use super::tree::{Tree, field_name};

/// The deepest nesting of messages, as in other protobuf decoders. A value in a Struct in a value
/// is three deep.
const DEPTH_MAX: u32 = 100;

/// The object in a serialized Struct; none if the bytes are not a Struct.
pub(super) fn tree_of_struct(bytes: &[u8]) -> Option<Tree> {
    // Every non-empty Struct starts with the tag of its only field.
    if bytes.first() != Some(&0x0a) {
        return None;
    }
    object(bytes, DEPTH_MAX)
}

/// A `Struct`: a map, whose entries are messages of a key (1) and a value (2).
fn object(mut bytes: &[u8], depth: u32) -> Option<Tree> {
    let depth = depth.checked_sub(1)?;
    let mut object: Vec<(String, Tree)> = Vec::new();
    while !bytes.is_empty() {
        if let (1, Field::Bytes(entry)) = field(&mut bytes)? {
            let (key, tree) = entry_of(entry, depth)?;
            // As in every protobuf map, the last one counts.
            object.retain(|(known, _)| *known != key);
            object.push((key, tree));
        }
    }
    let named = object.into_iter().map(|(key, tree)| (field_name(key), tree));
    Some(Tree::Object(named.collect()))
}

fn entry_of(mut bytes: &[u8], depth: u32) -> Option<(String, Tree)> {
    let depth = depth.checked_sub(1)?;
    let mut entry = (String::new(), Tree::Null);
    while !bytes.is_empty() {
        match field(&mut bytes)? {
            (1, Field::Bytes(key)) => entry.0 = text(key)?,
            (2, Field::Bytes(value)) => entry.1 = tree(value, depth)?,
            _ => {}
        }
    }
    Some(entry)
}

/// A `Value`: a oneof, whose last field counts.
fn tree(mut bytes: &[u8], depth: u32) -> Option<Tree> {
    let depth = depth.checked_sub(1)?;
    let mut tree = Tree::Null;
    while !bytes.is_empty() {
        tree = match field(&mut bytes)? {
            (1, Field::Number(_)) => Tree::Null,
            (2, Field::Double(double)) => Tree::number(double),
            (3, Field::Bytes(bytes)) => Tree::Text(text(bytes)?),
            (4, Field::Number(flag)) => Tree::Flag(flag != 0),
            (5, Field::Bytes(bytes)) => object(bytes, depth)?,
            (6, Field::Bytes(bytes)) => list(bytes, depth)?,
            // Of another type than the field has, or of a later version.
            (1..=6, _) => return None,
            _ => tree,
        };
    }
    Some(tree)
}

/// A `ListValue`: values (1).
fn list(mut bytes: &[u8], depth: u32) -> Option<Tree> {
    let mut items = Vec::new();
    while !bytes.is_empty() {
        if let (1, Field::Bytes(item)) = field(&mut bytes)? {
            items.push(tree(item, depth)?);
        }
    }
    Some(Tree::List(items))
}

fn text(bytes: &[u8]) -> Option<String> {
    std::str::from_utf8(bytes).ok().map(str::to_owned)
}

/// The content of a field, by its wire type.
pub(crate) enum Field<'a> {
    Number(u64),
    Double(f64),
    Bytes(&'a [u8]),
}

/// Takes the next field and its number from a message.
pub(crate) fn field<'a>(bytes: &mut &'a [u8]) -> Option<(u64, Field<'a>)> {
    let tag = varint(bytes)?;
    let field = match tag & 7 {
        0 => Field::Number(varint(bytes)?),
        1 => Field::Double(f64::from_le_bytes(taken(bytes, 8)?.try_into().ok()?)),
        2 => {
            let length = usize::try_from(varint(bytes)?).ok()?;
            Field::Bytes(taken(bytes, length)?)
        }
        5 => Field::Number(u32::from_le_bytes(taken(bytes, 4)?.try_into().ok()?).into()),
        // Groups, which no Struct has, and invalid wire types.
        _ => return None,
    };
    let number = tag >> 3;
    (number != 0).then_some((number, field))
}

fn taken<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    // Ten times seven bits hold every 64-bit number.
    for shift in (0..70).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::config::document;
    use prost::Message;
    use prost_types::{ListValue, Struct, value::Kind};
    use serde_json::Value;

    /// Encodes inputs of tests.
    pub(crate) fn struct_of_json(value: &Value) -> Vec<u8> {
        match kind(value) {
            Kind::StructValue(fields) => fields.encode_to_vec(),
            other => panic!("no object: {other:?}"),
        }
    }

    fn kind(value: &Value) -> Kind {
        let wrapped = |value: &Value| prost_types::Value { kind: Some(kind(value)) };
        match value {
            Value::Null => Kind::NullValue(0),
            Value::Bool(value) => Kind::BoolValue(*value),
            Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap()),
            Value::String(text) => Kind::StringValue(text.clone()),
            Value::Array(list) => {
                let values = list.iter().map(wrapped).collect();
                Kind::ListValue(ListValue { values })
            }
            Value::Object(fields) => {
                let fields = fields.iter().map(|(name, value)| (name.clone(), wrapped(value)));
                Kind::StructValue(Struct { fields: fields.collect() })
            }
        }
    }

    #[test]
    fn values_survive_the_encoding() {
        let value = serde_json::json!({
            "whole": 20, "negative": -3, "half": 0.5, "text": "t", "yes": true, "none": null,
            "list": [1, "x", {"deep": []}],
        });
        let tree = document::object(value.to_string().as_bytes()).unwrap();
        assert_eq!(tree_of_struct(&struct_of_json(&value)), Some(tree));
    }

    #[test]
    fn bytes_other_than_a_struct_are_refused() {
        for bytes in [&b""[..], b"{}", b"\n{}", b"\x0a\xff", b"\x0a\x05\x0a\x7fxxx"] {
            assert_eq!(tree_of_struct(bytes), None, "for {bytes:?}");
        }
    }

    #[test]
    fn the_last_of_a_key_counts_and_unknown_fields_do_not() {
        let entry = |flag: u8| [0x0a, 7, 0x0a, 1, b'k', 0x12, 2, 0x20, flag];
        let unknown = [0x10, 1, 0x1a, 1, b'x', 0x25, 1, 2, 3, 4];
        let bytes = [&entry(0)[..], &unknown, &entry(1)].concat();
        let expected = Tree::Object(vec![("k".to_owned(), Tree::Flag(true))]);
        assert_eq!(tree_of_struct(&bytes), Some(expected));
    }

    #[test]
    fn the_last_kind_of_a_value_counts_and_later_kinds_do_not() {
        // {"k": VALUE}
        let of = |value: &[u8]| {
            let (long, entry) = (value.len() as u8, value.len() as u8 + 5);
            let bytes = [&[0x0a, entry, 0x0a, 1, b'k', 0x12, long][..], value].concat();
            let Some(Tree::Object(mut fields)) = tree_of_struct(&bytes) else { return None };
            fields.pop().map(|(_, tree)| tree)
        };
        assert_eq!(of(&[0x20, 1]), Some(Tree::Flag(true)));
        assert_eq!(of(&[0x20, 1, 0x08, 0]), Some(Tree::Null));
        assert_eq!(of(&[0x20, 1, 0x20, 0]), Some(Tree::Flag(false)));
        // A field 7 of a later version, then a flag that is a text.
        assert_eq!(of(&[0x20, 1, 0x38, 1]), Some(Tree::Flag(true)));
        assert_eq!(of(&[0x22, 1, b'x']), None);
    }

    #[test]
    fn a_struct_that_is_too_deep_is_refused() {
        let nested = |levels| {
            let value = (0..levels).fold(Value::Null, |inner, _| serde_json::json!({"k": inner}));
            tree_of_struct(&struct_of_json(&value))
        };
        assert!(nested(30).is_some());
        assert_eq!(nested(40), None);
    }
}
