//! Values of an evaluation. `all` are the bytes read of the request so far, which ranges are in.

use super::{Cause, number};
use crate::config::when::Constant;
use crate::request::metadata::{self, Found};
use std::ops::Range;

#[derive(Debug, Clone)]
pub(super) enum Value<'e> {
    Null,
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(Text<'e>),
    List(List<'e>),
    Map(Map<'e>),
}

/// A text.
#[derive(Debug, Clone)]
pub(super) enum Text<'e> {
    Constant(&'e str),
    Read(Range<usize>),
}

/// A list of the expression, or one in metadata.
#[derive(Debug, Clone)]
pub(super) enum List<'e> {
    Constant(&'e [Constant]),
    Read(Range<usize>),
}

/// A map of the expression, all metadata, or a map in it.
#[derive(Debug, Clone)]
pub(super) enum Map<'e> {
    Constant(&'e [(Constant, Constant)]),
    Namespaces(Range<usize>),
    Read(Range<usize>),
}

impl Text<'_> {
    pub(super) fn bytes<'a>(&'a self, all: &'a [u8]) -> &'a [u8] {
        match self {
            Text::Constant(text) => text.as_bytes(),
            Text::Read(range) => all.get(range.clone()).unwrap_or_default(),
        }
    }
}

impl<'e> Value<'e> {
    fn found(found: Found) -> Self {
        match found {
            Found::Null => Value::Null,
            Found::Bool(value) => Value::Bool(value),
            Found::Number(number) => Value::Double(number),
            Found::Text(range) => Value::Text(Text::Read(range)),
            Found::List(range) => Value::List(List::Read(range)),
            Found::Map(range) => Value::Map(Map::Read(range)),
        }
    }

    /// The bytes of a text.
    pub(super) fn bytes<'a>(&'a self, all: &'a [u8]) -> Result<&'a [u8], Cause> {
        match self {
            Value::Text(text) => Ok(text.bytes(all)),
            _ => Err(Cause::Type),
        }
    }

    /// Whether two values are equal. Values of different types are not; two lists or two maps are
    /// not compared.
    pub(super) fn equals(&self, other: &Value<'_>, all: &[u8]) -> Result<bool, Cause> {
        Ok(match (self, other) {
            (Value::List(_), Value::List(_)) | (Value::Map(_), Value::Map(_)) => {
                return Err(Cause::Type);
            }
            (Value::Null, Value::Null) => true,
            (Value::Bool(one), Value::Bool(other)) => one == other,
            (Value::Text(one), Value::Text(other)) => one.bytes(all) == other.bytes(all),
            (one, other) => number::order(one, other).flatten().is_some_and(|order| order.is_eq()),
        })
    }

    /// The element at an index, or the value of a key.
    pub(super) fn at(&self, key: &Value<'_>, all: &[u8]) -> Result<Value<'e>, Cause> {
        let found = match (self, key) {
            (Value::List(list), Value::Int(index)) => {
                let index = usize::try_from(*index).map_err(|_| Cause::Absent)?;
                match list {
                    List::Constant(items) => items.get(index).map(Value::of),
                    List::Read(range) => {
                        metadata::element(all, range.clone(), index).map(Value::found)
                    }
                }
            }
            // No map has such a key.
            (Value::Map(_), Value::Null | Value::List(_) | Value::Map(_)) => {
                return Err(Cause::Type);
            }
            (Value::Map(Map::Constant(entries)), key) => {
                let mut entries = entries.iter();
                let found =
                    entries.find(|(known, _)| Value::of(known).equals(key, all).unwrap_or(false));
                found.map(|(_, value)| Value::of(value))
            }
            (Value::Map(Map::Namespaces(range)), Value::Text(name)) => {
                let found = metadata::namespace(all, range.clone(), name.bytes(all));
                found.map(|range| Value::Map(Map::Read(range)))
            }
            (Value::Map(Map::Read(range)), Value::Text(name)) => {
                metadata::field(all, range.clone(), name.bytes(all)).map(Value::found)
            }
            // Metadata has only texts as keys.
            (Value::Map(_), Value::Bool(_) | Value::Int(_) | Value::Double(_)) => None,
            _ => return Err(Cause::Type),
        };
        found.ok_or(Cause::Absent)
    }

    /// Whether a list has an element, or a map has a key.
    pub(super) fn has(&self, element: &Value<'_>, all: &[u8]) -> Result<bool, Cause> {
        let equals = |item: &Value<'_>| item.equals(element, all).unwrap_or(false);
        match self {
            Value::List(List::Constant(items)) => {
                Ok(items.iter().any(|item| equals(&Value::of(item))))
            }
            Value::List(List::Read(range)) => {
                let mut elements = metadata::elements(all, range.clone()).map(Value::found);
                Ok(elements.any(|item| equals(&item)))
            }
            Value::Map(_) => match self.at(element, all) {
                Ok(_) => Ok(true),
                Err(Cause::Absent) => Ok(false),
                Err(cause) => Err(cause),
            },
            _ => Err(Cause::Type),
        }
    }

    /// The characters of a text, or the elements of a list or a map.
    pub(super) fn size(&self, all: &[u8]) -> Result<Value<'e>, Cause> {
        let size = match self {
            Value::Text(text) => {
                // Each character has one byte that does not continue another.
                text.bytes(all).iter().filter(|byte| **byte & 0xc0 != 0x80).count()
            }
            Value::List(List::Constant(items)) => items.len(),
            Value::Map(Map::Constant(entries)) => entries.len(),
            Value::List(List::Read(range))
            | Value::Map(Map::Namespaces(range) | Map::Read(range)) => {
                metadata::len(all, range.clone())
            }
            _ => return Err(Cause::Type),
        };
        Ok(Value::Int(i64::try_from(size).map_err(|_| Cause::Range)?))
    }
}
