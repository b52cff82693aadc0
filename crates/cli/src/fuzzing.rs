//! Private functions for the fuzzer. Not for any other use.

use crate::defaults::srv;
use std::path::Path;
use tidegate_limits::Rules;
use tidegate_limits::{self as rules, Diagnostic, Origin, SameDomain, Source, SourceFile};
use tidegate_xml::{self as xml, Document, ErrorKind};

/// Line and column, and the message.
pub type Mistake = (Option<(u64, u64)>, String);

/// The elements of a document, opened (name and attributes) or closed.
pub type Pieces = Vec<Option<(String, Vec<(String, String)>)>>;

/// Reads a document. An error says whether the document is malformed, and why.
///
/// # Errors
/// The first mistake.
pub fn xml(bytes: &[u8], depth_max: usize) -> Result<Pieces, (bool, String)> {
    let message = |mistake: xml::XmlError| (mistake.kind == ErrorKind::Malformed, mistake.message);
    let mut document =
        Document::new(xml::text(bytes).map_err(message)?, depth_max).map_err(message)?;
    let mut pieces = Vec::new();
    loop {
        pieces.push(match document.next_event().map_err(message)? {
            xml::Event::End => return Ok(pieces),
            xml::Event::Close => None,
            xml::Event::Open(element) => {
                let attributes = element.attributes.iter();
                let attributes = attributes.map(|a| (a.name.to_owned(), a.value.clone().into()));
                Some((element.name.to_owned(), attributes.collect()))
            }
        });
    }
}

/// Loads one limits file with its warnings.
///
/// # Errors
/// Every mistake.
pub fn limits(name: &str, bytes: &[u8]) -> Result<(Rules, Vec<Mistake>), Vec<Mistake>> {
    let path = Path::new(name);
    let file = SourceFile { path: path.to_owned(), bytes: Ok(bytes.to_vec()) };
    let source = Source::brought(path, vec![file], Origin::Path);
    match rules::load_source(&source, SameDomain::Refuse) {
        Ok(loaded) => Ok((loaded.rules, without_file(loaded.warnings))),
        Err(errors) => Err(without_file(errors.0)),
    }
}

/// Reads an `srv.xml`, and returns the equivalent flags.
///
/// # Errors
/// Every mistake.
pub fn srv(bytes: &[u8]) -> Result<Vec<(&'static str, String)>, Vec<Mistake>> {
    srv::parse(Path::new("srv.xml"), bytes)
        .map(|srv| srv.flags().into_iter().map(|flag| (flag.id, flag.value)).collect())
        .map_err(without_file)
}

fn without_file(all: Vec<Diagnostic>) -> Vec<Mistake> {
    all.into_iter().map(|one| (one.position, one.message)).collect()
}
