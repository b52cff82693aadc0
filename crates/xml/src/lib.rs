//! Small XML documents, read strictly and from the slice that they are in: elements, attributes,
//! comments, white space, and nothing else.
//!
//! The tokens are the library's; what it lets pass is refused here: text, CDATA, document types,
//! processing instructions, entities beyond the five that XML has, characters that XML has not,
//! attributes that come twice or are not set apart. So no document stands for more than is written in
//! it, and reading one takes time and memory in proportion to its bytes.

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

use quick_xml::events::Event;
use quick_xml::reader::Reader;
use smallvec::SmallVec;
use std::borrow::Cow;

/// More than any element here has.
const ATTRIBUTES_MAX: usize = 8;
/// The longest value of an attribute, as it is written: a key of 1,024 bytes, each as `&#x10ffff;`.
const VALUE_BYTES_MAX: usize = 10_240;
/// Longer words are told by their beginning.
const WORD_CHARS_MAX: usize = 60;

/// What is wrong with a document, and at which byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    pub at: usize,
    pub kind: Kind,
    pub message: String,
}

/// What kind of mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Not XML.
    Malformed,
    /// XML that is not taken from anybody.
    Forbidden,
    /// Not what belongs there.
    Unexpected,
    /// More than is taken.
    TooMuch,
}

impl Mistake {
    pub fn new(at: usize, kind: Kind, message: impl Into<String>) -> Mistake {
        Mistake { at, kind, message: message.into() }
    }

    pub fn unexpected(at: usize, message: impl Into<String>) -> Mistake {
        Mistake::new(at, Kind::Unexpected, message)
    }
}

/// Line and column of a byte, both from 1.
pub fn place(text: &str, at: usize) -> (u64, u64) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.rsplit('\n').next().unwrap_or_default();
    (before.matches('\n').count() as u64 + 1, line.chars().count() as u64 + 1)
}

/// A word in quotes, or the beginning of it.
pub fn quoted(word: &str) -> String {
    match word.char_indices().nth(WORD_CHARS_MAX) {
        None => format!("{word:?}"),
        Some((end, _)) => format!("{:?}…", &word[..end]),
    }
}

/// The next thing in a document.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "taken apart where it is handed to, and never kept")]
pub enum Piece<'a> {
    Open(Element<'a>),
    /// The end of the element that was opened last and is not closed yet.
    Close,
    End,
}

/// The beginning of an element.
#[derive(Debug)]
pub struct Element<'a> {
    pub name: &'a str,
    pub at: usize,
    pub attributes: Attributes<'a>,
}

/// Few elements have more than four.
type Attributes<'a> = SmallVec<[Attribute<'a>; 4]>;

/// An attribute, its references resolved.
#[derive(Debug)]
pub struct Attribute<'a> {
    pub name: &'a str,
    pub at: usize,
    pub value: Cow<'a, str>,
    /// Where the value is.
    pub value_at: usize,
}

/// A document while it is read.
pub struct Document<'a> {
    text: &'a str,
    reader: Reader<&'a [u8]>,
    depth: usize,
    depth_max: usize,
    root: Root,
    /// An element without content was opened, and is to be closed.
    is_closing: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Root {
    Awaited,
    Seen,
}

/// The text of a document, without the mark that some editors begin a file with.
pub fn text(bytes: &[u8]) -> Result<&str, Mistake> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| Mistake::new(error.valid_up_to(), Kind::Malformed, "this is not UTF-8"))?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

impl<'a> Document<'a> {
    /// Reads `text`, in which elements are nested `depth_max` deep at most.
    pub fn new(text: &'a str, depth_max: usize) -> Result<Self, Mistake> {
        check_characters(text)?;
        let mut reader = Reader::from_str(text);
        reader.config_mut().check_comments = true;
        Ok(Document { text, reader, depth: 0, depth_max, root: Root::Awaited, is_closing: false })
    }

    /// The next element that begins or ends.
    pub fn next(&mut self) -> Result<Piece<'a>, Mistake> {
        if std::mem::take(&mut self.is_closing) {
            self.depth -= 1;
            return Ok(Piece::Close);
        }
        loop {
            let at = self.position();
            let event = self.reader.read_event().map_err(|error| {
                let at = usize::try_from(self.reader.error_position()).unwrap_or(at);
                Mistake::new(at, Kind::Malformed, shortened(&error.to_string()))
            })?;
            let forbidden = |what: &str| Err(Mistake::new(at, Kind::Forbidden, what));
            match event {
                Event::Start(_) => return self.open(at).map(Piece::Open),
                Event::Empty(_) => {
                    self.is_closing = true;
                    return self.open(at).map(Piece::Open);
                }
                Event::End(_) => {
                    self.depth = self.depth.saturating_sub(1);
                    return Ok(Piece::Close);
                }
                Event::Text(text) if text.bytes().all(is_space) => {}
                Event::Text(text) => {
                    let spaces = text.len() - text.trim_start_matches(is_space_char).len();
                    return Err(Mistake::unexpected(at + spaces, "text is not expected here"));
                }
                Event::GeneralRef(_) | Event::CData(_) => {
                    return Err(Mistake::unexpected(at, "text is not expected here"));
                }
                Event::Comment(_) => {}
                Event::Decl(_) => self.declaration(at)?,
                Event::PI(_) => return forbidden("processing instructions are not allowed"),
                Event::DocType(_) => return forbidden("a document type (DTD) is not allowed"),
                Event::Eof => return self.end(at),
            }
        }
    }

    fn position(&self) -> usize {
        usize::try_from(self.reader.buffer_position()).unwrap_or(self.text.len())
    }

    fn end(&self, at: usize) -> Result<Piece<'a>, Mistake> {
        match (self.root, self.depth) {
            (Root::Seen, 0) => Ok(Piece::End),
            (Root::Awaited, _) => {
                Err(Mistake::new(at, Kind::Malformed, "the document has no element"))
            }
            _ => Err(Mistake::new(at, Kind::Malformed, "the document ends inside an element")),
        }
    }

    /// The element whose beginning is the markup from `at` on.
    fn open(&mut self, at: usize) -> Result<Element<'a>, Mistake> {
        if self.depth == 0 && self.root == Root::Seen {
            let message = "a document has one element that holds all others; this is a second one";
            return Err(Mistake::new(at, Kind::Malformed, message));
        }
        if self.depth == self.depth_max {
            let message = format!("elements are nested more than {} deep", self.depth_max);
            return Err(Mistake::new(at, Kind::TooMuch, message));
        }
        self.root = Root::Seen;
        self.depth += 1;
        let markup = self.text.get(at..self.position()).unwrap_or_default();
        let inner = markup.strip_prefix('<').and_then(|inner| inner.strip_suffix('>'));
        let inner = inner.unwrap_or_default();
        let inner = if self.is_closing { inner.strip_suffix('/').unwrap_or(inner) } else { inner };
        let mut scan = Scan { text: inner, from: at + 1, at: 0 };
        let name = scan.name()?;
        let attributes = scan.attributes()?;
        Ok(Element { name, at, attributes })
    }

    /// `<?xml version="1.0" encoding="UTF-8"?>`, which may come first.
    fn declaration(&self, at: usize) -> Result<(), Mistake> {
        if at != 0 {
            let message = "an XML declaration is allowed at the very beginning only";
            return Err(Mistake::new(at, Kind::Malformed, message));
        }
        let markup = self.text.get(..self.position()).unwrap_or_default();
        let inner = markup.strip_prefix("<?xml").and_then(|inner| inner.strip_suffix("?>"));
        let mut scan = Scan { text: inner.unwrap_or_default(), from: 5, at: 0 };
        let attributes = scan.attributes()?;
        if attributes.first().is_none_or(|first| first.name != "version") {
            let message = "an XML declaration begins with its version";
            return Err(Mistake::new(at, Kind::Malformed, message));
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
                return Err(Mistake::new(at, Kind::Forbidden, message));
            }
        }
        Ok(())
    }
}

impl<'a> Element<'a> {
    /// Refuses this element, which does not belong there.
    pub fn refuse(&self, expected: &str) -> Mistake {
        let name = quoted(self.name);
        Mistake::unexpected(self.at, format!("unknown element {name}; expected {expected}"))
    }
}

impl Attribute<'_> {
    /// Refuses this attribute, which its element does not have.
    pub fn refuse(&self, element: &str, expected: &str) -> Mistake {
        let name = quoted(self.name);
        let message = format!("unknown attribute {name} of <{element}>; expected {expected}");
        Mistake::unexpected(self.at, message)
    }

    /// Refuses its value.
    pub fn wrong(&self, expected: &str) -> Mistake {
        let (name, value) = (self.name, quoted(&self.value));
        Mistake::unexpected(self.value_at, format!("{name} {value}: expected {expected}"))
    }
}

/// The inside of a tag while it is read.
struct Scan<'a> {
    text: &'a str,
    /// Where it begins in the document.
    from: usize,
    at: usize,
}

impl<'a> Scan<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn malformed(&self, message: impl Into<String>) -> Mistake {
        Mistake::new(self.from + self.at, Kind::Malformed, message)
    }

    /// Skips white space; says whether there was any.
    fn space(&mut self) -> bool {
        let rest = self.rest();
        let spaces = rest.len() - rest.trim_start_matches(is_space_char).len();
        self.at += spaces;
        spaces > 0
    }

    fn name(&mut self) -> Result<&'a str, Mistake> {
        let rest = self.rest();
        let end = rest.find(|c: char| !is_name(c)).unwrap_or(rest.len());
        let starts_well = |c: char| !(c.is_ascii_digit() || matches!(c, '-' | '.' | '\u{b7}'));
        if end == 0 || !rest.starts_with(starts_well) {
            return Err(self.malformed("expected a name"));
        }
        self.at += end;
        Ok(&rest[..end])
    }

    fn attributes(&mut self) -> Result<Attributes<'a>, Mistake> {
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
                return Err(Mistake::new(attribute.at, Kind::Malformed, message));
            }
            if attributes.len() == ATTRIBUTES_MAX {
                let message = format!("an element has more than {ATTRIBUTES_MAX} attributes");
                return Err(Mistake::new(attribute.at, Kind::TooMuch, message));
            }
            attributes.push(attribute);
        }
    }

    fn attribute(&mut self) -> Result<Attribute<'a>, Mistake> {
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
        let Some(quote) = quote else {
            return Err(self.malformed("expected a value in quotes"));
        };
        let Some(length) = rest[1..].find(quote) else {
            return Err(self.malformed("a value is not closed"));
        };
        self.at += 1;
        let raw = &rest[1..=length];
        if length > VALUE_BYTES_MAX {
            let message = format!("a value is longer than {VALUE_BYTES_MAX} bytes");
            return Err(Mistake::new(self.from + self.at, Kind::TooMuch, message));
        }
        let value_at = self.from + self.at;
        let value = resolved(raw, value_at)?;
        self.at += length + 1;
        Ok(Attribute { name, at, value, value_at })
    }
}

/// The value that is meant: white space as spaces, references as what they stand for.
fn resolved(raw: &str, at: usize) -> Result<Cow<'_, str>, Mistake> {
    let is_special = |byte: u8| matches!(byte, b'&' | b'<' | b'\t' | b'\n' | b'\r');
    if !raw.bytes().any(is_special) {
        return Ok(Cow::Borrowed(raw));
    }
    let mut value = String::with_capacity(raw.len());
    let mut characters = raw.char_indices();
    while let Some((index, c)) = characters.next() {
        match c {
            '<' => return Err(Mistake::new(at + index, Kind::Malformed, "write < as &lt; here")),
            // The end of a line is one space, however it is written.
            '\r' if raw[index + 1..].starts_with('\n') => {}
            '\t' | '\n' | '\r' => value.push(' '),
            '&' => {
                let reference = raw[index + 1..].split_once(';').map(|(name, _)| name);
                let Some((name, c)) = reference.and_then(|name| Some((name, referred(name)?)))
                else {
                    let message = "not one of &amp; &lt; &gt; &apos; &quot; and &#N;";
                    return Err(Mistake::new(at + index, Kind::Forbidden, message));
                };
                value.push(c);
                // The name is ASCII, and a semicolon follows.
                characters.nth(name.len());
            }
            other => value.push(other),
        }
    }
    Ok(Cow::Owned(value))
}

/// What a reference stands for.
fn referred(name: &str) -> Option<char> {
    match name {
        "amp" => return Some('&'),
        "lt" => return Some('<'),
        "gt" => return Some('>'),
        "apos" => return Some('\''),
        "quot" => return Some('"'),
        _ => {}
    }
    let number = name.strip_prefix('#')?;
    let (digits, radix) = number.strip_prefix('x').map_or((number, 10), |digits| (digits, 16));
    let is_number = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let code = u32::from_str_radix(digits, radix).ok().filter(|_| is_number)?;
    char::from_u32(code).filter(|c| is_character(*c))
}

/// What XML 1.0 calls a character.
pub fn is_character(c: char) -> bool {
    (c >= ' ' || matches!(c, '\t' | '\n' | '\r')) && !matches!(c, '\u{fffe}' | '\u{ffff}')
}

fn check_characters(text: &str) -> Result<(), Mistake> {
    let is_control = |byte: &u8| *byte < b' ' && !matches!(byte, b'\t' | b'\n' | b'\r');
    if !text.as_bytes().iter().any(|byte| is_control(byte) || *byte == 0xef) {
        return Ok(());
    }
    match text.char_indices().find(|(_, c)| !is_character(*c)) {
        None => Ok(()),
        Some((at, c)) => {
            let message = format!("U+{:04X} is not a character of XML", u32::from(c));
            Err(Mistake::new(at, Kind::Malformed, message))
        }
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

fn is_space_char(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

/// Wider than XML's rule where it does not matter: every name but the known ones is refused.
fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-' | '.') || !c.is_ascii()
}

fn shortened(message: &str) -> String {
    match message.char_indices().nth(4 * WORD_CHARS_MAX) {
        None => message.to_owned(),
        Some((end, _)) => format!("{}…", &message[..end]),
    }
}

/// Appends `value` as the value of an attribute in double quotes. Control characters, which XML cannot
/// say, become question marks: names of limits may have them.
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
