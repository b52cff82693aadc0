//! A YAML document as a tree in which every key and value knows its place.
//!
//! The parser is a library; this keeps the positions that its typed interface would lose at the
//! first mistake, so that all of them can be reported, and the words as they are written, since
//! what YAML makes of a plain `007` is not what an operator means by it.

use crate::text::{quoted, shortened};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::NonFiniteFloatPolicy;
use serde_saphyr::{Location, Options, Spanned};
use std::fmt;
use std::num::TryFromIntError;

/// Line and column, both from 1.
pub(super) type Position = (u64, u64);

/// A value.
#[derive(Debug)]
pub(super) enum Node {
    Null,
    Bool(bool),
    /// A whole number of 64 bits.
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Spot>),
    Map(Vec<(Key, Spot)>),
}

/// A value and where it is. Small, since there are millions in a large file.
#[derive(Debug)]
pub(super) struct Spot {
    pub(super) node: Node,
    line: u32,
    column: u32,
    /// The bytes that spell the value; for an alias those of what it stands for.
    start: u32,
    len: u32,
}

/// A key of a map and where it is.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: String,
    line: u32,
    column: u32,
}

impl Spot {
    pub(super) fn place(&self) -> Position {
        (self.line.into(), self.column.into())
    }

    /// How a plain value is written in `source`; none when it is in quotes or has a tag.
    pub(super) fn written<'a>(&self, source: &'a str) -> Option<&'a str> {
        let start = self.start as usize;
        let word = source.get(start..start.checked_add(self.len as usize)?)?.trim_end();
        let plain = !word.is_empty() && !word.starts_with(['\'', '"', '!', '&', '*', '|', '>']);
        plain.then_some(word)
    }

    /// What it is, for "found …".
    pub(super) fn describe(&self, source: &str) -> String {
        match &self.node {
            Node::Null => "nothing".to_owned(),
            Node::Bool(value) => format!("`{}`", self.written(source).unwrap_or(word(*value))),
            Node::Int(value) => self.number(value, source),
            Node::Float(value) => self.number(value, source),
            Node::Text(text) => quoted(text),
            Node::List(_) => "a list".to_owned(),
            Node::Map(_) => "a map".to_owned(),
        }
    }

    fn number(&self, value: &impl ToString, source: &str) -> String {
        match self.written(source) {
            Some(written) => format!("the number {}", shortened(written)),
            None => format!("the number {}", value.to_string()),
        }
    }
}

fn word(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

impl Key {
    pub(super) fn place(&self) -> Position {
        (self.line.into(), self.column.into())
    }
}

/// The stack that parsing gets. The parser calls itself for each of at most 72 levels, with some
/// 40 KB each where nothing is optimised, which is more than the 2 MB of a usual thread.
const STACK_BYTES: usize = 16 * 1024 * 1024;

/// Parses a document; the error is the parser's, with its place.
pub(super) fn parse(text: &str) -> Result<Spot, (Option<Position>, String)> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        match thread.spawn_scoped(scope, || parse_here(text)) {
            Ok(parsing) => parsing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(error) => Err((None, format!("cannot start a thread to read it: {error}"))),
        }
    })
}

fn parse_here(text: &str) -> Result<Spot, (Option<Position>, String)> {
    let parsed = serde_saphyr::from_str_with_options::<Spanned<Node>>(text, options());
    parsed.map_err(|error| told(&error)).and_then(|node| {
        let place = (node.referenced.line(), node.referenced.column());
        spot(node).map_err(|error| (Some(place), error.to_string()))
    })
}

/// What a document may be made of. A rule as envoyproxy/ratelimit has them takes about 11 nodes, one
/// with three limits of its own about 45, so 200,000 of these fit; each node has a beginning and
/// perhaps an end, which are the events. A node takes 64 bytes, so the worst document about 1 GB.
/// What an alias stands for counts each time that it is used, so aliases multiply nothing beyond
/// these bounds; 2,000,000 events are 10 for each of 200,000 rules. Many uses of one anchor are
/// fine: that is what anchors are for.
fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            // 30 levels of descriptors, and what the last one has.
            max_depth: 72,
            max_events: 24_000_000,
            max_nodes: 12_000_000,
            max_total_scalar_bytes: 64 * 1024 * 1024,
            max_aliases: 1_000_000,
            max_merge_keys: 1_000_000,
            enforce_alias_anchor_ratio: false,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 2_000_000 },
        // As the reader of envoyproxy/ratelimit has them.
        legacy_octal_numbers: true,
        // Refused with all other mistakes, instead of before them.
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        with_snippet: false,
    }
}

/// The parser's message without its rendering of the place, and without advice for those who call
/// it.
fn told(error: &serde_saphyr::Error) -> (Option<Position>, String) {
    let place = error.location().map(|location| (location.line(), location.column()));
    let message = error.to_string();
    let line = message.lines().next().unwrap_or_default();
    let line = line.strip_prefix("error: ").unwrap_or(line);
    let placed = line.strip_prefix("line ").and_then(|rest| rest.split_once(": "));
    let message = placed.map_or(line, |(_, message)| message);
    let advice = [", set DuplicateKeyPolicy", "; use from_str_multiple"];
    let end = advice.into_iter().filter_map(|advice| message.find(advice)).min();
    let message = &message[..end.unwrap_or(message.len())];
    let placed = message.rsplit_once(" at line ").filter(|(_, place)| {
        place.bytes().all(|byte| byte.is_ascii_digit() || b", column".contains(&byte))
    });
    let message = placed.map_or(message, |(message, _)| message);
    (place, in_our_words(message).unwrap_or(message).to_owned())
}

/// What the parser says in terms of its own interface.
fn in_our_words(message: &str) -> Option<&'static str> {
    if message.starts_with("recursive references") {
        return Some("an anchor must not contain an alias for itself");
    }
    if message.starts_with("recursion limit") || message.starts_with("budget breached: Depth") {
        return Some("nested too deep (maximum: 30 levels of descriptors)");
    }
    let is_too_much = message.starts_with("budget breached: ") || message.contains("replay limit");
    is_too_much.then_some("too much for one file, aliases written out; split it")
}

fn spot(node: Spanned<Node>) -> Result<Spot, TryFromIntError> {
    let (line, column) = narrow(&node.referenced)?;
    // Without its bytes a value cannot be read as it is written, only as YAML has it.
    let span = node.defined.span();
    let start = span.byte_offset().and_then(|start| u32::try_from(start).ok());
    let len = span.byte_len().and_then(|len| u32::try_from(len).ok());
    let (start, len) = start.zip(len).unwrap_or_default();
    Ok(Spot { node: node.value, line, column, start, len })
}

fn narrow(location: &Location) -> Result<(u32, u32), TryFromIntError> {
    Ok((location.line().try_into()?, location.column().try_into()?))
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
        Ok(Node::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        // No key takes numbers that large, and where they are passed on they are doubles.
        Ok(i64::try_from(value).map_or(Node::Float(value as f64), Node::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Node, E> {
        Ok(Node::Text(value))
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
        while let Some(item) = items.next_element::<Spanned<Node>>()? {
            list.push(spot(item).map_err(serde::de::Error::custom)?);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut map = Vec::new();
        while let Some((key, value)) = entries.next_entry::<Spanned<String>, Spanned<Node>>()? {
            let (line, column) = narrow(&key.referenced).map_err(serde::de::Error::custom)?;
            let key = Key { name: key.value, line, column };
            map.push((key, spot(value).map_err(serde::de::Error::custom)?));
        }
        map.shrink_to_fit();
        Ok(Node::Map(map))
    }
}
