//! A request of the FRS: the command from its header, the items from its body.
//!
//! A body is accepted or refused as a whole, so one with a mistake counts nothing.

use smallvec::SmallVec;
use std::borrow::Cow;
use tidegate_core::{Hits, Timestamp};
use tidegate_xml::{self as xml, Attribute, Document, Element, ErrorKind, Event, XmlError};

/// The maximum of items in a body: each takes a microsecond or two, and a body occupies its thread.
pub(crate) const ITEMS_MAX: usize = 256;
/// The maximum of windows, equal to the maximum of limits on a descriptor.
const WINDOWS_MAX: usize = 16;
/// The longest business and the longest key, in bytes.
const WORD_BYTES_MAX: usize = 1_024;
/// `<frs>`, `<item>`, `<window>`.
const DEPTH_MAX: usize = 3;

/// The operation on each item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    Query,
    Update,
    Acquire,
    Find,
    Create,
    UpdateNode,
    Erase,
    Reset,
}

impl Command {
    pub(crate) const ALL: [Command; 8] = [
        Command::Query,
        Command::Update,
        Command::Acquire,
        Command::Find,
        Command::Create,
        Command::UpdateNode,
        Command::Erase,
        Command::Reset,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Command::Query => "Query",
            Command::Update => "Update",
            Command::Acquire => "Acquire",
            Command::Find => "Find",
            Command::Create => "Create",
            Command::UpdateNode => "Update-Node",
            Command::Erase => "Erase",
            Command::Reset => "Reset",
        }
    }

    /// The command with this name, in any case.
    pub(crate) fn from_name(name: &[u8]) -> Option<Command> {
        Command::ALL.into_iter().find(|known| known.name().as_bytes().eq_ignore_ascii_case(name))
    }
}

#[derive(Debug)]
pub(crate) struct Body<'a> {
    pub(crate) items: Items<'a>,
    pub(crate) grouping: Grouping,
}

pub(crate) type Items<'a> = SmallVec<[Item<'a>; 4]>;

/// How the items of a body are decided.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Grouping {
    /// Each item on its own.
    #[default]
    Each,
    /// All items count, or none does.
    AllOrNone,
}

/// One item of a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Item<'a> {
    pub(crate) business: Cow<'a, str>,
    pub(crate) key: Cow<'a, str>,
    pub(crate) hits: Hits,
    pub(crate) windows: SmallVec<[WindowChange<'a>; 2]>,
}

/// The new values of a window of a node.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WindowChange<'a> {
    pub(crate) name: Cow<'a, str>,
    pub(crate) count: Option<u32>,
    pub(crate) start: Option<Timestamp>,
    pub(crate) end: Option<Timestamp>,
}

/// Reads the body of a `command`.
pub(crate) fn read(command: Command, text: &str) -> Result<Body<'_>, XmlError> {
    let mut document = Document::new(text, DEPTH_MAX)?;
    let mut items = SmallVec::new();
    let (mut grouping, mut root) = (Grouping::default(), 0);
    while let Event::Open(element) = document.next_event()? {
        root = element.at;
        if element.name != "frs" {
            return Err(element.refuse("<frs>"));
        }
        grouping = read_grouping(command, &element)?;
        while let Event::Open(element) = document.next_event()? {
            if items.len() == ITEMS_MAX {
                let message = format!("a body has at most {ITEMS_MAX} items; send more bodies");
                return Err(XmlError::new(element.at, ErrorKind::TooMuch, message));
            }
            items.push(read_item(command, &element, &mut document)?);
        }
    }
    if items.is_empty() {
        return Err(XmlError::unexpected(root, "<frs> needs at least one <item>"));
    }
    Ok(Body { items, grouping })
}

/// Reads how the items are decided; only commands that decide accept it.
fn read_grouping(command: Command, element: &Element<'_>) -> Result<Grouping, XmlError> {
    let takes_grouping = matches!(command, Command::Query | Command::Acquire);
    let mut grouping = Grouping::default();
    for attribute in &element.attributes {
        grouping = match (attribute.name, &*attribute.value) {
            ("items", "each") if takes_grouping => Grouping::Each,
            ("items", "all-or-none") if takes_grouping => Grouping::AllOrNone,
            ("items", _) if takes_grouping => return Err(attribute.wrong("each or all-or-none")),
            _ if takes_grouping => return Err(attribute.refuse("frs", "items")),
            _ => return Err(attribute.refuse("frs", "none")),
        };
    }
    Ok(grouping)
}

fn read_item<'a>(
    command: Command,
    element: &Element<'a>,
    document: &mut Document<'a>,
) -> Result<Item<'a>, XmlError> {
    if element.name != "item" {
        return Err(element.refuse("<item>"));
    }
    let takes_hits = matches!(command, Command::Update | Command::Acquire);
    let expected = if takes_hits { "business, key, hits" } else { "business, key" };
    let (mut business, mut key, mut hits) = (None, None, Hits::ONE);
    for attribute in &element.attributes {
        match attribute.name {
            "business" => business = Some(bounded_text(attribute)?),
            "key" => key = Some(bounded_text(attribute)?),
            "hits" if takes_hits => hits = read_hits(attribute)?,
            _ => return Err(attribute.refuse("item", expected)),
        }
    }
    let missing = |name| XmlError::unexpected(element.at, format!("<item> needs a {name}"));
    let business = business.ok_or_else(|| missing("business"))?;
    let key = key.ok_or_else(|| missing("key"))?;
    let mut windows: SmallVec<[WindowChange<'a>; 2]> = SmallVec::new();
    while let Event::Open(inner) = document.next_event()? {
        if !matches!(command, Command::Create | Command::UpdateNode) {
            let name = command.name();
            return Err(inner.refuse(&format!("nothing in the <item> of a {name}")));
        }
        if windows.len() == WINDOWS_MAX {
            let message = format!("an item has at most {WINDOWS_MAX} windows");
            return Err(XmlError::new(inner.at, ErrorKind::TooMuch, message));
        }
        let window = read_window(command, &inner)?;
        if windows.iter().any(|known| known.name == window.name) {
            let message = format!("window {} comes twice", xml::quoted(&window.name));
            return Err(XmlError::unexpected(inner.at, message));
        }
        windows.push(window);
        if let Event::Open(below) = document.next_event()? {
            return Err(below.refuse("nothing in <window>"));
        }
    }
    if command == Command::UpdateNode && windows.is_empty() {
        let message = "an <item> of an Update-Node needs at least one <window>";
        return Err(XmlError::unexpected(element.at, message));
    }
    Ok(Item { business, key, hits, windows })
}

fn read_window<'a>(command: Command, element: &Element<'a>) -> Result<WindowChange<'a>, XmlError> {
    if element.name != "window" {
        return Err(element.refuse("<window>"));
    }
    let (mut name, mut count, mut start, mut end) = (None, None, None, None);
    for attribute in &element.attributes {
        match attribute.name {
            "name" => name = Some(bounded_text(attribute)?),
            "count" => count = Some(read_count(attribute)?),
            "start" => start = Some(read_time(attribute)?),
            "end" => end = Some(read_time(attribute)?),
            _ => return Err(attribute.refuse("window", "name, count, start, end")),
        }
    }
    let Some(name) = name else {
        return Err(XmlError::unexpected(element.at, "<window> needs a name"));
    };
    if command == Command::UpdateNode && count.is_none() && start.is_none() && end.is_none() {
        let message = "<window> changes nothing; give it a count, a start or an end";
        return Err(XmlError::unexpected(element.at, message));
    }
    Ok(WindowChange { name, count, start, end })
}

fn bounded_text<'a>(attribute: &Attribute<'a>) -> Result<Cow<'a, str>, XmlError> {
    if attribute.value.is_empty() {
        return Err(attribute.wrong("some text"));
    }
    if attribute.value.len() > WORD_BYTES_MAX {
        let message = format!("{} is longer than {WORD_BYTES_MAX} bytes", attribute.name);
        return Err(XmlError::new(attribute.value_at, ErrorKind::TooMuch, message));
    }
    Ok(attribute.value.clone())
}

fn read_hits(attribute: &Attribute<'_>) -> Result<Hits, XmlError> {
    match number(&attribute.value).filter(|number| *number > 0) {
        Some(hits) => Ok(Hits::new(hits.into())),
        None => Err(attribute.wrong("a whole number from 1 to 4294967295")),
    }
}

fn read_count(attribute: &Attribute<'_>) -> Result<u32, XmlError> {
    number(&attribute.value).ok_or_else(|| attribute.wrong("a whole number from 0 to 4294967295"))
}

fn number(text: &str) -> Option<u32> {
    let is_plain = (1..=10).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain)
}

/// Seconds since the Unix epoch, with up to nine fractional digits.
fn read_time(attribute: &Attribute<'_>) -> Result<Timestamp, XmlError> {
    time(&attribute.value).ok_or_else(|| {
        attribute.wrong("a time as seconds since 1970-01-01 00:00 UTC, such as 1763766000.25")
    })
}

fn time(text: &str) -> Option<Timestamp> {
    let (secs, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_fraction =
        (1..=9).contains(&fraction.len()) && fraction.bytes().all(|b| b.is_ascii_digit());
    let secs = number(secs).filter(|_| is_fraction)?;
    let scale = 10_u64.pow(9 - u32::try_from(fraction.len()).ok()?);
    let nanos = fraction.parse::<u64>().ok()? * scale;
    Some(Timestamp::from_nanos(u64::from(secs) * 1_000_000_000 + nanos))
}

#[cfg(test)]
mod tests;
