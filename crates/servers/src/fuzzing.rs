//! Private functions for the fuzzer, and for no other use.

use crate::frs::request;
use tidegate_xml as xml;

/// An item of a body: business, key, hits, and the names of its windows.
pub type Item = (String, String, u64, Vec<String>);

/// The number of commands.
pub const COMMANDS: usize = request::Command::ALL.len();

/// Reads the body of a command, given by its number.
///
/// # Errors
/// The first mistake, and its byte offset.
pub fn frs_items(command: usize, bytes: &[u8]) -> Result<Vec<Item>, (usize, String)> {
    let error = |mistake: xml::XmlError| (mistake.at, mistake.message);
    let command = request::Command::ALL[command % COMMANDS];
    let body = request::read(command, xml::text(bytes).map_err(error)?).map_err(error)?;
    let items = body.items.iter().map(|item| {
        let windows = item.windows.iter().map(|window| window.name.to_string());
        (item.business.to_string(), item.key.to_string(), item.hits.get(), windows.collect())
    });
    Ok(items.collect())
}
