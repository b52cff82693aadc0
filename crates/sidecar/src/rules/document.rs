//! A YAML document as a tree in which every key and value knows its place.
//!
//! The parser is a library; this keeps the positions that its typed interface would lose at the
//! first mistake, so that all of them can be reported.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use std::fmt;

/// Line and column, both from 1.
pub(super) type Place = (u64, u64);

/// A value.
#[derive(Debug)]
pub(super) enum Node {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Spanned<Node>>),
    Map(Vec<(Spanned<String>, Spanned<Node>)>),
}

impl Node {
    /// What it is, for "found …".
    pub(super) fn describe(&self) -> String {
        match self {
            Node::Null => "nothing".to_owned(),
            Node::Bool(value) => format!("`{value}`"),
            Node::Int(value) => format!("the number {value}"),
            Node::Float(value) => format!("the number {value}"),
            Node::Text(text) => format!("{text:?}"),
            Node::List(_) => "a list".to_owned(),
            Node::Map(_) => "a map".to_owned(),
        }
    }
}

pub(super) fn place<T>(spanned: &Spanned<T>) -> Place {
    (spanned.referenced.line(), spanned.referenced.column())
}

/// Parses a document; the error is the parser's, with its place.
pub(super) fn parse(text: &str) -> Result<Spanned<Node>, (Option<Place>, String)> {
    serde_saphyr::from_str(text).map_err(|error| {
        let place = error.location().map(|location| (location.line(), location.column()));
        (place, first_line(&error.to_string()))
    })
}

/// The parser's message without its rendering of the place and the source, and without advice
/// for those who call it.
fn first_line(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    let line = line.strip_prefix("error: ").unwrap_or(line);
    let placed = line.strip_prefix("line ").and_then(|rest| rest.split_once(": "));
    let message = placed.map_or(line, |(_, message)| message);
    let advice = [", set DuplicateKeyPolicy", "; use from_str_multiple"];
    let end = advice.into_iter().filter_map(|advice| message.find(advice)).min();
    message[..end.unwrap_or(message.len())].to_owned()
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Int(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Int(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(Node::Map(map))
    }
}
