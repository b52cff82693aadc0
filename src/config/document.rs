//! Parses the bytes of a configuration into a tree of values: a JSON object without duplicate keys,
//! or a protobuf Struct.

use super::tree::{Tree, field_name};
use super::{ConfigError, structured};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;

const EXPECTED: &str = "expected a JSON object with `domain`, `sidecar` and `rate_limits`";

/// The object in `bytes`.
pub(super) fn object(bytes: &[u8]) -> Result<Tree, ConfigError> {
    // JSON first: its text may begin with a line feed, which is a Struct's first byte, but a Struct
    // is never valid JSON as a whole.
    let error = match json(bytes) {
        Ok(object @ Tree::Object(_)) => return Ok(object),
        Ok(_) => return Err(ConfigError::new(String::new(), EXPECTED)),
        Err(error) => error,
    };
    if let Some(structured) = structured::tree_of_struct(bytes) {
        return Ok(structured);
    }
    let message = if error.classify() == Category::Data {
        error.to_string()
    } else if bytes.trim_ascii_start().first() == Some(&b'{') {
        format!("not JSON: {error}")
    } else {
        EXPECTED.to_owned()
    };
    Err(ConfigError::new(String::new(), &message))
}

/// A JSON text without duplicate keys.
pub(super) fn json(bytes: &[u8]) -> serde_json::Result<Tree> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Strict.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// Reads any value but refuses duplicate keys: the library would silently use the last one.
struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Tree;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Tree;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Flag(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(i64::try_from(value).map_or(Tree::OtherNumber, Tree::Whole))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Whole(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Tree, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Strict)? {
            list.push(item);
        }
        Ok(Tree::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Tree, A::Error> {
        let mut object: Vec<(String, Tree)> = Vec::new();
        while let Some(key) = fields.next_key::<String>()?.map(field_name) {
            if object.iter().any(|(known, _)| *known == key) {
                return Err(A::Error::custom(format!("duplicate key `{key}`")));
            }
            object.push((key, fields.next_value_seed(Strict)?));
        }
        Ok(Tree::Object(object))
    }
}
