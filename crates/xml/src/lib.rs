//! A strict reader of small XML documents from untrusted sources: elements, attributes, comments and white
//! space only.
//!
//! The library splits a document into markup, matches end tags, checks comments and resolves references. This
//! crate refuses what the library accepts: text, CDATA, document types, processing instructions, a second
//! root, and characters that XML forbids. So no document stands for more than its text, and reading one
//! takes time and memory in proportion to its bytes.
//!
//! Tags are read by hand, because the library accepts bad names, attributes without white space between them
//! and `<` in values, and its errors about references have no position.

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::{BytesRef, Event as Markup};
use quick_xml::reader::Reader;
use smallvec::SmallVec;
use std::borrow::Cow;

/// More than any known element has.
const ATTRIBUTES_MAX: usize = 8;
/// The longest value of an attribute before references are resolved: a key of 1,024 bytes, each spelt with the
/// 10 bytes of `&#x10ffff;`.
const VALUE_BYTES_MAX: usize = 10_240;
/// Longer words are shortened in messages.
const WORD_CHARS_MAX: usize = 60;

/// An error in a document, and its byte offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XmlError {
    pub at: usize,
    pub kind: ErrorKind,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// Not XML.
    Malformed,
    /// XML that is never accepted, such as a document type.
    Forbidden,
    /// XML that does not belong there.
    Unexpected,
    /// Beyond a bound.
    TooMuch,
}

impl XmlError {
    pub fn new(at: usize, kind: ErrorKind, message: impl Into<String>) -> XmlError {
        XmlError { at, kind, message: message.into() }
    }

    fn malformed(at: usize, message: impl Into<String>) -> XmlError {
        XmlError::new(at, ErrorKind::Malformed, message)
    }

    pub fn unexpected(at: usize, message: impl Into<String>) -> XmlError {
        XmlError::new(at, ErrorKind::Unexpected, message)
    }
}

/// Line and column of a byte, both from 1.
pub fn position(text: &str, at: usize) -> (u64, u64) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.rsplit('\n').next().unwrap_or_default();
    (before.matches('\n').count() as u64 + 1, line.chars().count() as u64 + 1)
}

/// A word in quotes, shortened if necessary.
pub fn quoted(word: &str) -> String {
    match word.char_indices().nth(WORD_CHARS_MAX) {
        None => format!("{word:?}"),
        Some((end, _)) => format!("{:?}…", &word[..end]),
    }
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "matched at once, and never stored")]
pub enum Event<'a> {
    Open(Element<'a>),
    /// The end of the innermost open element.
    Close,
    End,
}

#[derive(Debug)]
pub struct Element<'a> {
    pub name: &'a str,
    pub at: usize,
    pub attributes: Attributes<'a>,
}

/// Few elements have more than four attributes.
type Attributes<'a> = SmallVec<[Attribute<'a>; 4]>;

/// An attribute with its references resolved.
#[derive(Debug)]
pub struct Attribute<'a> {
    pub name: &'a str,
    pub at: usize,
    pub value: Cow<'a, str>,
    /// Where the value starts.
    pub value_at: usize,
}

/// A document while it is read.
pub struct Document<'a> {
    text: &'a str,
    reader: Reader<&'a [u8]>,
    depth: usize,
    depth_max: usize,
    has_root: bool,
    /// The last element was an empty-element tag, so its end comes next.
    is_closing: bool,
}

/// The text of a document without its byte order mark.
pub fn text(bytes: &[u8]) -> Result<&str, XmlError> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| XmlError::malformed(error.valid_up_to(), "this is not UTF-8"))?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

impl<'a> Document<'a> {
    /// Reads `text`, in which elements may be nested up to `depth_max` deep.
    pub fn new(text: &'a str, depth_max: usize) -> Result<Self, XmlError> {
        check_characters(text)?;
        let mut reader = Reader::from_str(text);
        reader.config_mut().check_comments = true;
        Ok(Document { text, reader, depth: 0, depth_max, has_root: false, is_closing: false })
    }

    /// The next start or end of an element, or the end of the document.
    pub fn next_event(&mut self) -> Result<Event<'a>, XmlError> {
        if std::mem::take(&mut self.is_closing) {
            self.depth -= 1;
            return Ok(Event::Close);
        }
        loop {
            let at = self.offset();
            let markup = self.reader.read_event().map_err(|error| {
                let at = usize::try_from(self.reader.error_position()).unwrap_or(at);
                XmlError::malformed(at, shortened(&error.to_string()))
            })?;
            let forbidden = |what: &str| Err(XmlError::new(at, ErrorKind::Forbidden, what));
            match markup {
                Markup::Start(_) => return self.open(at).map(Event::Open),
                Markup::Empty(_) => {
                    self.is_closing = true;
                    return self.open(at).map(Event::Open);
                }
                Markup::End(_) => {
                    self.depth = self.depth.saturating_sub(1);
                    return Ok(Event::Close);
                }
                Markup::Text(text) => {
                    let spaces = text.len() - text.trim_start_matches(is_space).len();
                    if spaces < text.len() {
                        return Err(XmlError::unexpected(at + spaces, "text is not expected here"));
                    }
                }
                Markup::GeneralRef(_) | Markup::CData(_) => {
                    return Err(XmlError::unexpected(at, "text is not expected here"));
                }
                Markup::Comment(_) => {}
                Markup::Decl(_) => self.declaration(at)?,
                Markup::PI(_) => return forbidden("processing instructions are not allowed"),
                Markup::DocType(_) => return forbidden("a document type (DTD) is not allowed"),
                Markup::Eof => return self.end(at),
            }
        }
    }

    fn offset(&self) -> usize {
        usize::try_from(self.reader.buffer_position()).unwrap_or(self.text.len())
    }

    fn end(&self, at: usize) -> Result<Event<'a>, XmlError> {
        match (self.has_root, self.depth) {
            (true, 0) => Ok(Event::End),
            (false, _) => Err(XmlError::malformed(at, "the document has no element")),
            _ => Err(XmlError::malformed(at, "the document ends inside an element")),
        }
    }

    /// Reads the start tag at `at`, which the library has just passed.
    fn open(&mut self, at: usize) -> Result<Element<'a>, XmlError> {
        if self.depth == 0 && self.has_root {
            let message = "a document has a single root element; this is a second one";
            return Err(XmlError::malformed(at, message));
        }
        if self.depth == self.depth_max {
            let message = format!("elements are nested more than {} deep", self.depth_max);
            return Err(XmlError::new(at, ErrorKind::TooMuch, message));
        }
        self.has_root = true;
        self.depth += 1;
        let markup = self.text.get(at..self.offset()).unwrap_or_default();
        let inner = markup.strip_prefix('<').and_then(|inner| inner.strip_suffix('>'));
        let inner = inner.unwrap_or_default();
        let inner = if self.is_closing { inner.strip_suffix('/').unwrap_or(inner) } else { inner };
        let mut scan = TagScanner { text: inner, from: at + 1, at: 0 };
        let name = scan.name()?;
        let attributes = scan.attributes()?;
        Ok(Element { name, at, attributes })
    }

    /// Checks `<?xml version="1.0" encoding="UTF-8"?>`, which may come first.
    fn declaration(&self, at: usize) -> Result<(), XmlError> {
        if at != 0 {
            let message = "an XML declaration is allowed at the very beginning only";
            return Err(XmlError::malformed(at, message));
        }
        let markup = self.text.get(..self.offset()).unwrap_or_default();
        let inner = markup.strip_prefix("<?xml").and_then(|inner| inner.strip_suffix("?>"));
        let mut scan = TagScanner { text: inner.unwrap_or_default(), from: 5, at: 0 };
        let attributes = scan.attributes()?;
        if attributes.first().is_none_or(|first| first.name != "version") {
            let message = "an XML declaration must start with its version";
            return Err(XmlError::malformed(at, message));
        }
        for attribute in &attributes {
            let (at, value) = (attribute.value_at, &attribute.value);
            let is_known = match attribute.name {
                "version" => value == "1.0",
                "encoding" => ["utf-8", "us-ascii"].iter().any(|a| value.eq_ignore_ascii_case(a)),
                "standalone" => value == "yes" || value == "no",
                _ => false,
            };
            if !is_known {
                let (name, value) = (quoted(attribute.name), quoted(value));
                let message =
                    format!("{name} {value} of the XML declaration: expected version 1.0, UTF-8");
                return Err(XmlError::new(at, ErrorKind::Forbidden, message));
            }
        }
        Ok(())
    }
}

impl<'a> Element<'a> {
    pub fn attribute(&self, name: &str) -> Option<&Attribute<'a>> {
        self.attributes.iter().find(|attribute| attribute.name == name)
    }

    /// The error of an unknown element.
    pub fn refuse(&self, expected: &str) -> XmlError {
        let message = format!("unknown element {}; expected {expected}", quoted(self.name));
        XmlError::unexpected(self.at, message)
    }
}

impl Attribute<'_> {
    /// The error of an unknown attribute.
    pub fn refuse(&self, element: &str, expected: &str) -> XmlError {
        let name = quoted(self.name);
        let message = format!("unknown attribute {name} of <{element}>; expected {expected}");
        XmlError::unexpected(self.at, message)
    }

    /// The error of an invalid value.
    pub fn wrong(&self, expected: &str) -> XmlError {
        let (name, value) = (self.name, quoted(&self.value));
        XmlError::unexpected(self.value_at, format!("{name} {value}: expected {expected}"))
    }
}

/// Reads the inside of a tag.
struct TagScanner<'a> {
    text: &'a str,
    /// Its offset in the document.
    from: usize,
    /// The offset in `text` of what is left.
    at: usize,
}

impl<'a> TagScanner<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn malformed(&self, message: impl Into<String>) -> XmlError {
        XmlError::malformed(self.from + self.at, message)
    }

    /// Skips white space. True if there was any.
    fn space(&mut self) -> bool {
        let rest = self.rest();
        let spaces = rest.len() - rest.trim_start_matches(is_space).len();
        self.at += spaces;
        spaces > 0
    }

    fn name(&mut self) -> Result<&'a str, XmlError> {
        let rest = self.rest();
        let end = rest.find(|c: char| !is_name(c)).unwrap_or(rest.len());
        let starts_well = |c: char| !(c.is_ascii_digit() || matches!(c, '-' | '.' | '\u{b7}'));
        if end == 0 || !rest.starts_with(starts_well) {
            return Err(self.malformed("expected a name"));
        }
        self.at += end;
        Ok(&rest[..end])
    }

    fn attributes(&mut self) -> Result<Attributes<'a>, XmlError> {
        let mut attributes: Attributes<'a> = SmallVec::new();
        loop {
            let is_apart = self.space();
            if self.rest().is_empty() {
                return Ok(attributes);
            }
            if !is_apart {
                return Err(self.malformed("expected white space before an attribute"));
            }
            let attribute = self.attribute()?;
            if attributes.iter().any(|known| known.name == attribute.name) {
                let message = format!("duplicate attribute {}", quoted(attribute.name));
                return Err(XmlError::malformed(attribute.at, message));
            }
            if attributes.len() == ATTRIBUTES_MAX {
                let message = format!("an element has more than {ATTRIBUTES_MAX} attributes");
                return Err(XmlError::new(attribute.at, ErrorKind::TooMuch, message));
            }
            attributes.push(attribute);
        }
    }

    fn attribute(&mut self) -> Result<Attribute<'a>, XmlError> {
        let at = self.from + self.at;
        let name = self.name()?;
        self.space();
        if !self.rest().starts_with('=') {
            return Err(self.malformed(format!("attribute {} has no value", quoted(name))));
        }
        self.at += 1;
        self.space();
        let rest = self.rest();
        let quote = rest.chars().next().filter(|quote| matches!(quote, '"' | '\''));
        let quote = quote.ok_or_else(|| self.malformed("expected a value in quotes"))?;
        let length =
            rest[1..].find(quote).ok_or_else(|| self.malformed("a value is not closed"))?;
        self.at += 1;
        let raw = &rest[1..=length];
        if length > VALUE_BYTES_MAX {
            let message = format!("a value is longer than {VALUE_BYTES_MAX} bytes");
            return Err(XmlError::new(self.from + self.at, ErrorKind::TooMuch, message));
        }
        let value_at = self.from + self.at;
        let value = resolved(raw, value_at)?;
        self.at += length + 1;
        Ok(Attribute { name, at, value, value_at })
    }
}

/// The value of an attribute, with references resolved and white space as spaces.
fn resolved(raw: &str, at: usize) -> Result<Cow<'_, str>, XmlError> {
    let is_special = |byte: u8| matches!(byte, b'&' | b'<' | b'\t' | b'\n' | b'\r');
    if !raw.bytes().any(is_special) {
        return Ok(Cow::Borrowed(raw));
    }
    let mut value = String::with_capacity(raw.len());
    let mut characters = raw.char_indices();
    while let Some((index, c)) = characters.next() {
        match c {
            '<' => {
                return Err(XmlError::malformed(at + index, "write < as &lt; here"));
            }
            // Each form of a line end is one space.
            '\r' if raw[index + 1..].starts_with('\n') => {}
            '\t' | '\n' | '\r' => value.push(' '),
            '&' => {
                let reference = raw[index + 1..].split_once(';').map(|(name, _)| name);
                let Some((name, c)) = reference.and_then(|name| Some((name, referred(name)?)))
                else {
                    let message = "not one of &amp; &lt; &gt; &apos; &quot; and &#N;";
                    return Err(XmlError::new(at + index, ErrorKind::Forbidden, message));
                };
                value.push(c);
                // Skips the name, which is ASCII, and the semicolon.
                characters.nth(name.len());
            }
            other => value.push(other),
        }
    }
    Ok(Cow::Owned(value))
}

/// The character of a reference: one of XML's five entities, or a number.
fn referred(name: &str) -> Option<char> {
    let c = match resolve_xml_entity(name) {
        Some(text) => text.chars().next(),
        None => BytesRef::new(name).resolve_char_ref().ok()?,
    };
    c.filter(|c| is_character(*c))
}

/// Whether XML 1.0 allows this character.
pub fn is_character(c: char) -> bool {
    (c >= ' ' || matches!(c, '\t' | '\n' | '\r')) && !matches!(c, '\u{fffe}' | '\u{ffff}')
}

fn check_characters(text: &str) -> Result<(), XmlError> {
    let is_control = |byte: &u8| *byte < b' ' && !matches!(byte, b'\t' | b'\n' | b'\r');
    if !text.as_bytes().iter().any(|byte| is_control(byte) || *byte == 0xef) {
        return Ok(());
    }
    text.char_indices().find(|(_, c)| !is_character(*c)).map_or(Ok(()), |(at, c)| {
        let message = format!("U+{:04X} is not a character of XML", u32::from(c));
        Err(XmlError::malformed(at, message))
    })
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

/// Wider than XML's rule, which does not matter: callers refuse all names but the known ones.
fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-' | '.') || !c.is_ascii()
}

fn shortened(message: &str) -> String {
    match message.char_indices().nth(4 * WORD_CHARS_MAX) {
        None => message.to_owned(),
        Some((end, _)) => format!("{}…", &message[..end]),
    }
}

/// Appends `value` escaped for an attribute in double quotes. Names of limits may have control characters,
/// which XML cannot represent; they become question marks.
pub fn escape(value: &str, out: &mut Vec<u8>) {
    let special = |byte: &u8| *byte < b' ' || matches!(byte, b'&' | b'<' | b'>' | b'"');
    if !value.as_bytes().iter().any(special) {
        out.extend_from_slice(value.as_bytes());
        return;
    }
    for byte in value.bytes() {
        match byte {
            b'&' => out.extend_from_slice(b"&amp;"),
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            b'"' => out.extend_from_slice(b"&quot;"),
            b'\t' => out.extend_from_slice(b"&#9;"),
            b'\n' => out.extend_from_slice(b"&#10;"),
            b'\r' => out.extend_from_slice(b"&#13;"),
            0..b' ' => out.push(b'?'),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests;
