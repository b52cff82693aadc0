//! Reads files of Envoy's configuration: YAML or JSON, and several documents in one file as Kubernetes tools write
//! them. Bounds their size, depth and number.

use anyhow::{Context, bail, ensure};
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use tidegate_limits::Position;
use tidegate_limits::document::{self, Content, Node};

/// A dump of a large gateway has some megabytes.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Each document is parsed with the lines before it as empty lines.
const DOCUMENTS_MAX: usize = 256;

/// A file and its documents.
#[derive(Debug)]
pub(super) struct File {
    name: String,
    pub(super) documents: Vec<Node>,
}

/// Reads these files; `-` is standard input.
pub(super) fn read(paths: &[PathBuf]) -> anyhow::Result<Vec<File>> {
    paths.iter().map(|path| read_file(path)).collect()
}

fn read_file(path: &Path) -> anyhow::Result<File> {
    let is_stdin = path == Path::new("-");
    let name = if is_stdin { "standard input".to_owned() } else { path.display().to_string() };
    let mut text = String::new();
    let read = match is_stdin {
        true => std::io::stdin().lock().take(FILE_BYTES_MAX + 1).read_to_string(&mut text),
        false => std::fs::File::open(path)
            .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)),
    };
    let bytes = read.with_context(|| format!("cannot read {name}"))?;
    ensure!(bytes as u64 <= FILE_BYTES_MAX, "{name} has more than {} MiB", FILE_BYTES_MAX >> 20);
    let documents = parse(&name, &text)?;
    Ok(File { name, documents })
}

impl File {
    /// The documents of a text.
    #[cfg(test)]
    pub(super) fn of(name: &str, text: &str) -> anyhow::Result<File> {
        Ok(File { name: name.to_owned(), documents: parse(name, text)? })
    }

    /// Where its values are.
    pub(super) fn at<'a>(&'a self, node: &'a Node) -> At<'a> {
        At { file: &self.name, node }
    }
}

fn parse(name: &str, text: &str) -> anyhow::Result<Vec<Node>> {
    let mut documents = Vec::new();
    for (lines, document) in split(text) {
        if document.lines().all(|line| line.trim_start().starts_with('#') || line.trim().is_empty())
        {
            continue;
        }
        ensure!(documents.len() < DOCUMENTS_MAX, "{name} has more than {DOCUMENTS_MAX} documents");
        // So that positions are those in the file.
        let document = "\n".repeat(lines) + document;
        match document::parse(&document, "nested too deeply (maximum: 72 levels)") {
            Ok(document) => documents.push(document),
            Err((Some((line, column)), message)) => bail!("{name}:{line}:{column}: {message}"),
            Err((None, message)) => bail!("{name}: {message}"),
        }
    }
    ensure!(!documents.is_empty(), "{name} is empty");
    Ok(documents)
}

/// The documents of a file, each with the number of lines before it. A marker stands at the beginning of a line, where
/// no value of a document can.
fn split(text: &str) -> Vec<(usize, &str)> {
    let (mut documents, mut start, mut first_line, mut at) = (Vec::new(), 0, 0, 0);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let end = at + line.len();
        if matches!(line.trim_end(), "---" | "...") {
            documents.push((first_line, &text[start..at]));
            (start, first_line) = (end, number + 1);
        }
        at = end;
    }
    documents.push((first_line, &text[start..]));
    documents
}

/// A value of a file, by the names that protobuf has for fields: `rate_limits` is `rateLimits` too.
#[derive(Debug, Clone, Copy)]
pub(super) struct At<'a> {
    file: &'a str,
    node: &'a Node,
}

impl<'a> At<'a> {
    /// `file:line:column`.
    pub(super) fn place(&self) -> String {
        let (line, column) = self.position();
        format!("{}:{line}:{column}", self.file)
    }

    pub(super) fn position(&self) -> Position {
        match &self.node.content {
            // A reader looks for a map at its first key.
            Content::Map(entries) => {
                entries.first().map_or(self.node.position(), |(key, _)| key.position())
            }
            _ => self.node.position(),
        }
    }

    fn with(&self, node: &'a Node) -> At<'a> {
        At { file: self.file, node }
    }

    /// A field of an object, unless it is absent or null.
    pub(super) fn field(&self, name: &str) -> Option<At<'a>> {
        let Content::Map(entries) = &self.node.content else { return None };
        let (_, value) = entries.iter().find(|(key, _)| field_name(&key.name) == name)?;
        (!matches!(value.content, Content::Null)).then(|| self.with(value))
    }

    /// The field at the end of this path.
    pub(super) fn at(&self, path: &[&str]) -> Option<At<'a>> {
        path.iter().try_fold(*self, |at, name| at.field(name))
    }

    /// The fields of an object with their names as they are written.
    pub(super) fn fields(&self) -> Vec<(&'a str, At<'a>)> {
        let Content::Map(entries) = &self.node.content else { return Vec::new() };
        entries.iter().map(|(key, value)| (key.name.as_str(), self.with(value))).collect()
    }

    /// Whether it is the same value at the same place.
    pub(super) fn is_at(&self, other: &At<'_>) -> bool {
        std::ptr::eq(self.node, other.node)
    }

    pub(super) fn is_map(&self) -> bool {
        matches!(self.node.content, Content::Map(_))
    }

    pub(super) fn items(&self) -> Vec<At<'a>> {
        let Content::List(items) = &self.node.content else { return Vec::new() };
        items.iter().map(|item| self.with(item)).collect()
    }

    pub(super) fn is_list(&self) -> bool {
        matches!(self.node.content, Content::List(_))
    }

    pub(super) fn text(&self) -> Option<&'a str> {
        match &self.node.content {
            Content::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The text of a field.
    pub(super) fn text_of(&self, name: &str) -> Option<&'a str> {
        self.field(name)?.text()
    }

    pub(super) fn is_true(&self, name: &str) -> bool {
        self.field(name).is_some_and(|field| matches!(field.node.content, Content::Bool(true)))
    }

    /// The value as the filter reads it: names with underscores.
    pub(super) fn json(&self) -> Value {
        json(self.node)
    }

    /// The value at a path as the filter's reader writes it, such as `actions[1].generic_key`, or the nearest one
    /// above it.
    pub(super) fn at_path(&self, path: &str) -> At<'a> {
        let mut at = *self;
        for step in path.split(['.', '[']) {
            let next = match step.strip_suffix(']').and_then(|index| index.parse::<usize>().ok()) {
                Some(index) => at.items().get(index).copied(),
                None => at.field(step),
            };
            let Some(next) = next else { return at };
            at = next;
        }
        at
    }

    /// A field that is there in both spellings.
    pub(super) fn twice(&self) -> Option<(String, At<'a>)> {
        let fields = self.fields();
        let mut names = HashSet::new();
        for (name, at) in &fields {
            let name = field_name(name);
            if !names.insert(name.clone()) {
                return Some((name, *at));
            }
        }
        let below = fields.into_iter().map(|(_, at)| at).chain(self.items());
        below.into_iter().find_map(|at| at.twice())
    }
}

fn json(node: &Node) -> Value {
    match &node.content {
        Content::Null => Value::Null,
        Content::Bool(value) => (*value).into(),
        Content::Int(number) => (*number).into(),
        Content::Float(number) => (*number).into(),
        Content::Text(text) => text.as_str().into(),
        Content::List(items) => items.iter().map(json).collect(),
        Content::Map(entries) => {
            let mut map = Map::new();
            for (key, value) in entries {
                map.entry(field_name(&key.name)).or_insert_with(|| json(value));
            }
            Value::Object(map)
        }
    }
}

/// `snake_case` of the `lowerCamelCase` that protobuf's JSON has.
pub(super) fn field_name(written: &str) -> String {
    if written.contains('_') || !written.starts_with(|first: char| first.is_ascii_lowercase()) {
        return written.to_owned();
    }
    let mut name = String::with_capacity(written.len() + 4);
    for char in written.chars() {
        if char.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(char.to_ascii_lowercase());
    }
    name
}
