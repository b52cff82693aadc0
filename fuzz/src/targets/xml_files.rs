//! `srv.xml`, `map.xml` and XML itself, compared with an independent XML reader: an accepted document has the
//! same elements and attributes there.
//!
//! Deliberate differences: text, processing instructions, document types, more than eight attributes, and
//! long values are refused here; names are not checked against XML's rule, since every unknown one is
//! refused; and the prefix of a name is ignored.

use super::Target;
use crate::input::Input;
use crate::memory::Meter;
use crate::work::Bound;
use roxmltree::{Document, Node};
use std::time::Duration;
use tidegate_cli::fuzzing::{self, Mistake, Pieces};

pub(super) const TARGET: Target = Target { name: "xml_files", run, seeds };

pub(super) const WORK: Bound = Bound { fixed: Duration::from_millis(2), nanos_per_byte: 2_000 };
/// Time zones are looked up in the database, by code that is not optimised in this build: some 25 ms for each. A file
/// that names two took 53 ms.
const WORK_OF_FILES: Bound = Bound { fixed: Duration::from_millis(500), nanos_per_byte: 2_000 };

fn run(input: &[u8]) {
    let mut input = Input(input);
    let which = input.byte() % 3;
    let bytes = input.rest();
    let meter = Meter::begin();
    match which {
        0 => compare(bytes, 1 + bytes.len() % 4),
        1 => srv(bytes),
        _ => map(bytes),
    }
    let allowed = (1 << 20) + 256 * bytes.len();
    assert!(meter.peak() <= allowed, "{} bytes for {}", meter.peak(), bytes.len());
}

/// Reads the document by both readers. Returns the result of this one.
pub(super) fn compare(bytes: &[u8], depth_max: usize) {
    let read = WORK.check(bytes.len(), || fuzzing::xml(bytes, depth_max));
    let text = text(bytes);
    // Names and prefixes of unusual form are not compared.
    let is_plain = |pieces: &Pieces| {
        pieces.iter().flatten().all(|(name, attributes)| {
            is_name(name) && attributes.iter().all(|(name, _)| is_name(name))
        })
    };
    match (&read, Document::parse(text)) {
        (Ok(pieces), Ok(document)) if is_plain(pieces) => {
            let mut expected = Vec::new();
            flatten(document.root_element(), &mut expected);
            assert_eq!(*pieces, expected, "{text}");
        }
        (Ok(pieces), Err(error)) if is_plain(pieces) => {
            panic!("no XML to the other reader: {error}: {text:?}");
        }
        (Err((true, message)), Ok(document)) if !is_restricted(&document, text) => {
            panic!("XML to the other reader: {message}: {text:?}");
        }
        _ => {}
    }
}

/// Valid XML that is refused here, and may hide mistakes after it.
fn is_restricted(document: &Document<'_>, text: &str) -> bool {
    let is_odd = |node: Node<'_, '_>| {
        node.is_pi()
            || node.is_text() && node.text().is_some_and(|text| !text.trim().is_empty())
            || node.tag_name().namespace().is_some()
    };
    document.descendants().any(is_odd) || text.contains("<?") || text.contains("xmlns")
}

fn text(bytes: &[u8]) -> &str {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
        && name != "xmlns"
}

fn flatten(node: Node<'_, '_>, pieces: &mut Pieces) {
    let attributes = node.attributes().map(|a| (a.name().to_owned(), a.value().to_owned()));
    pieces.push(Some((node.tag_name().name().to_owned(), attributes.collect())));
    for child in node.children().filter(Node::is_element) {
        flatten(child, pieces);
    }
    pieces.push(None);
}

fn srv(bytes: &[u8]) {
    match WORK_OF_FILES.check(bytes.len(), || fuzzing::srv(bytes)) {
        Err(mistakes) => check_mistakes(&mistakes, bytes),
        Ok(flags) => {
            let document = Document::parse(text(bytes)).expect("it is XML");
            let root = document.root_element();
            assert_eq!(root.tag_name().name(), "srv");
            let flag = |id: &str| flags.iter().find(|(known, _)| *known == id);
            let has = |name: &str| root.attribute(name).is_some();
            assert_eq!(flag("workers").is_some(), has("workers"));
            assert_eq!(flag("frs").is_some(), has("port"));
            for part in ["files", "key-nodes", "chain"] {
                assert_eq!(flag("geometry").is_some(), has(part));
            }
            assert_eq!(flag("frs-self-update").is_some(), has("self-update"));
        }
    }
}

fn map(bytes: &[u8]) {
    match WORK_OF_FILES.check(bytes.len(), || fuzzing::limits("map.xml", bytes)) {
        Err(mistakes) => check_mistakes(&mistakes, bytes),
        Ok((rules, _)) => {
            let document = Document::parse(text(bytes)).expect("it is XML");
            let of = |name: &'static str| move |node: &Node<'_, '_>| node.has_attribute(name);
            let businesses = document.root_element().children().filter(Node::is_element);
            let businesses: Vec<Node<'_, '_>> = businesses.collect();
            let count = |name| businesses.iter().filter(|node| of(name)(node)).count();
            let expected = count("max") + count("max-per-minute") + count("max-per-day");
            assert_eq!(rules.limits().len(), expected);
        }
    }
}

/// Each mistake is short, and at a position inside the file.
pub(super) fn check_mistakes(mistakes: &[Mistake], bytes: &[u8]) {
    assert!(!mistakes.is_empty(), "refused without a reason");
    let lines = bytes.iter().filter(|byte| **byte == b'\n' || **byte == b'\r').count() as u64 + 2;
    for (place, message) in mistakes {
        assert!(!message.is_empty() && message.len() < 2_000, "{message}");
        if let Some((line, column)) = *place {
            assert!((1..=lines).contains(&line) && column >= 1, "{line}:{column}: {message}");
            assert!(column <= bytes.len() as u64 + 2, "{line}:{column}: {message}");
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let seed = |which: u8, text: &str| [&[which][..], text.as_bytes()].concat();
    vec![
        seed(0, "<?xml version=\"1.0\"?>\n<a b='c' d=\"e&amp;&#x41;\"><!-- f --><g/></a>\n"),
        seed(0, "<a><b><c x='1'/></b></a>"),
        seed(
            1,
            "<?xml version=\"1.0\"?>\n<srv workers=\"4\" host=\"::1\" port=\"8090\" self-update=\"03:00\" timezone=\"+08:00\"/>",
        ),
        seed(1, "<srv files=\"4\" key-nodes=\"65536\" chain=\"35\"/>"),
        seed(1, "<srv/>"),
        seed(1, "<srv workers=\"31\" port=\"70000\" colour=\"red\"/>"),
        seed(
            2,
            "<map domain='own' reset='03:00' timezone='+08:00'>\n<business id='a' max='10' interval='1h' max-per-minute='5' max-per-day='7'/>\n<business id='b' max-per-day='1' reset='off'/></map>",
        ),
        seed(
            2,
            "<map><business id='a' max='1' interval='100ms' timezone='UTC'/><business id='a&lt;'/></map>",
        ),
    ]
}
