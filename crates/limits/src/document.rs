//! A YAML document as a tree of keys and values with their positions: of a limits file, or of Envoy's
//! configuration.
//!
//! The library's typed interface would stop at the first error; a tree lets all errors be reported. It also
//! keeps the source of plain values, because YAML's reading of `007` is not what an operator means.

use crate::diagnostic::Position;
use crate::text::{quoted, shortened};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::NonFiniteFloatPolicy;
use serde_saphyr::{Location, Options, Spanned};
use std::fmt;
use std::num::TryFromIntError;

/// A value without its position.
#[derive(Debug)]
pub enum Content {
    Null,
    Bool(bool),
    /// A whole number of 64 bits.
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

/// A value and its position. Small, because a large file has millions.
#[derive(Debug)]
pub struct Node {
    pub content: Content,
    line: u32,
    column: u32,
    /// The bytes of the value in the source; for an alias, those of its anchor.
    start: u32,
    len: u32,
}

/// A key of a map and its position.
#[derive(Debug)]
pub struct Key {
    pub name: String,
    line: u32,
    column: u32,
}

impl Node {
    pub fn position(&self) -> Position {
        (self.line.into(), self.column.into())
    }

    /// The source of a plain value; none if it is quoted or tagged.
    pub fn written<'a>(&self, source: &'a str) -> Option<&'a str> {
        let start = self.start as usize;
        let word = source.get(start..start.checked_add(self.len as usize)?)?.trim_end();
        let plain = !word.is_empty() && !word.starts_with(['\'', '"', '!', '&', '*', '|', '>']);
        plain.then_some(word)
    }

    /// The value as messages name it after "found".
    pub fn describe(&self, source: &str) -> String {
        match &self.content {
            Content::Null => "nothing".to_owned(),
            Content::Bool(value) => format!(
                "`{}`",
                self.written(source).unwrap_or(if *value { "true" } else { "false" })
            ),
            Content::Int(value) => self.number(value, source),
            Content::Float(value) => self.number(value, source),
            Content::Text(text) => quoted(text),
            Content::List(_) => "a list".to_owned(),
            Content::Map(_) => "a map".to_owned(),
        }
    }

    fn number(&self, value: &impl ToString, source: &str) -> String {
        match self.written(source) {
            Some(written) => format!("the number {}", shortened(written)),
            None => format!("the number {}", value.to_string()),
        }
    }
}

impl Key {
    pub fn position(&self) -> Position {
        (self.line.into(), self.column.into())
    }
}

/// The stack for parsing. The parser recurses for each of at most 72 levels, with some 40 KB a level in
/// unoptimised builds: more than the 2 MB of an ordinary thread.
const STACK_BYTES: usize = 16 * 1024 * 1024;

/// Parses a document. An error is the parser's message with its position; `too_deep` is the message for one with
/// more than 72 levels.
pub fn parse(text: &str, too_deep: &str) -> Result<Node, (Option<Position>, String)> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        match thread.spawn_scoped(scope, || parse_here(text, too_deep)) {
            Ok(parsing) => parsing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(error) => Err((None, format!("cannot start a thread to read it: {error}"))),
        }
    })
}

fn parse_here(text: &str, too_deep: &str) -> Result<Node, (Option<Position>, String)> {
    let parsed = serde_saphyr::from_str_with_options::<Spanned<Content>>(text, options());
    parsed.map_err(|error| described(&error, too_deep)).and_then(|value| {
        let position = (value.referenced.line(), value.referenced.column());
        node(value).map_err(|error| (Some(position), error.to_string()))
    })
}

/// Bounds of a document. A rule of envoyproxy/ratelimit's kind takes about 11 nodes and one with three
/// limits about 45, so 200,000 of the latter fit. Each node is one or two events: its start, and the end of a
/// list or map. A node takes 64 bytes, so the worst document takes about 1 GB. The nodes of an anchor count
/// at each use, so aliases cannot exceed these bounds; 2,000,000 events are 10 for each of 200,000 rules.
/// The number of uses of one anchor is not bounded.
fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            // 30 levels of descriptors, and the limits of the last one.
            max_depth: 72,
            max_events: 24_000_000,
            max_nodes: 12_000_000,
            max_total_scalar_bytes: 64 * 1024 * 1024,
            max_aliases: 1_000_000,
            max_merge_keys: 1_000_000,
            enforce_alias_anchor_ratio: false,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 2_000_000 },
        // As envoyproxy/ratelimit reads them.
        legacy_octal_numbers: true,
        // Reported later, together with all other errors.
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        with_snippet: false,
    }
}

/// The parser's message, without its rendering of the position and its advice for Rust code.
fn described(error: &serde_saphyr::Error, too_deep: &str) -> (Option<Position>, String) {
    let position = error.location().map(|location| (location.line(), location.column()));
    let message = error.to_string();
    let line = message.lines().next().unwrap_or_default();
    let line = line.strip_prefix("error: ").unwrap_or(line);
    let placed = line.strip_prefix("line ").and_then(|rest| rest.split_once(": "));
    let message = placed.map_or(line, |(_, message)| message);
    let advice = [", set DuplicateKeyPolicy", "; use from_str_multiple"];
    let end = advice.into_iter().filter_map(|advice| message.find(advice)).min();
    let message = &message[..end.unwrap_or(message.len())];
    let placed = message.rsplit_once(" at line ").filter(|(_, position)| {
        position.bytes().all(|byte| byte.is_ascii_digit() || b", column".contains(&byte))
    });
    let message = placed.map_or(message, |(message, _)| message);
    (position, reworded(message, too_deep).unwrap_or(message).to_owned())
}

/// Replaces messages that are about the parser's interface.
fn reworded<'m>(message: &str, too_deep: &'m str) -> Option<&'m str> {
    if message.starts_with("recursive references") {
        return Some("an anchor must not contain an alias for itself");
    }
    if message.starts_with("recursion limit") || message.starts_with("budget breached: Depth") {
        return Some(too_deep);
    }
    let is_too_much = message.starts_with("budget breached: ") || message.contains("replay limit");
    is_too_much.then_some("too large for one file with its aliases expanded; split it")
}

fn node(value: Spanned<Content>) -> Result<Node, TryFromIntError> {
    let (line, column) = narrow(&value.referenced)?;
    // Without its span, only YAML's reading of a value is known, not its source.
    let span = value.defined.span();
    let start = span.byte_offset().and_then(|start| u32::try_from(start).ok());
    let len = span.byte_len().and_then(|len| u32::try_from(len).ok());
    let (start, len) = start.zip(len).unwrap_or_default();
    Ok(Node { content: value.value, line, column, start, len })
}

fn narrow(location: &Location) -> Result<(u32, u32), TryFromIntError> {
    Ok((location.line().try_into()?, location.column().try_into()?))
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Content, E> {
        Ok(Content::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Content, E> {
        Ok(Content::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Content, E> {
        // No key accepts numbers that large, and in metadata they are doubles.
        Ok(i64::try_from(value).map_or(Content::Float(value as f64), Content::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Content, E> {
        Ok(Content::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Content, E> {
        Ok(Content::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Content, E> {
        Ok(Content::Text(value))
    }

    fn visit_unit<E>(self) -> Result<Content, E> {
        Ok(Content::Null)
    }

    fn visit_none<E>(self) -> Result<Content, E> {
        Ok(Content::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Content, D::Error> {
        Content::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Content, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element::<Spanned<Content>>()? {
            list.push(node(item).map_err(serde::de::Error::custom)?);
        }
        Ok(Content::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Content, A::Error> {
        let mut map = Vec::new();
        while let Some((key, value)) = entries.next_entry::<Spanned<String>, Spanned<Content>>()? {
            let (line, column) = narrow(&key.referenced).map_err(serde::de::Error::custom)?;
            let key = Key { name: key.value, line, column };
            map.push((key, node(value).map_err(serde::de::Error::custom)?));
        }
        map.shrink_to_fit();
        Ok(Content::Map(map))
    }
}
