//! Reads limits files in YAML: envoyproxy/ratelimit's schema, extended.
//!
//! [`document`] parses and keeps positions, `fields` checks keys and types, and the other modules each give
//! meaning to one part of the schema.

mod algorithm;
mod context;
mod descriptor;
mod fields;
mod limit;
mod matching;
mod metadata;
mod period;
mod statistics;
mod unreachable;

use crate::compiled::RuleNode;
use crate::diagnostic::Diagnostic;
use crate::document;
use crate::loader::Loader;
use crate::path::escaped;
use context::{Context, Diagnostics};
use descriptor::{Ancestors, read_descriptors};
use fields::{Fields, Keys};
use limit::read_count_denied;
use statistics::read_statistics;
use std::path::Path;
use std::sync::Arc;

const FILE: Keys =
    Keys { map: "a limits file", known: &["domain", "descriptors", "count_denied", "statistics"] };

const TOO_DEEP: &str = "nested too deeply (maximum: 30 levels of descriptors)";

pub(crate) fn read_file(loader: &mut Loader, file: &Path, text: &str) {
    let root = match document::parse(text, TOO_DEEP) {
        Ok(root) => root,
        Err((position, message)) => {
            loader.errors.push(Diagnostic::new(file, position, message));
            return;
        }
    };
    let mut diagnostics =
        Diagnostics { file, source: text, errors: Vec::new(), warnings: Vec::new() };
    if let Some(fields) = Fields::read(&root, &FILE, &mut diagnostics) {
        read_domain(loader, &fields, &mut diagnostics);
    }
    let Diagnostics { mut errors, mut warnings, .. } = diagnostics;
    errors.sort_by_key(|error| error.position);
    warnings.sort_by_key(|warning| warning.position);
    loader.errors.append(&mut errors);
    loader.warnings.append(&mut warnings);
}

/// Reads the rules of a file. Without a valid domain they are read only to find their errors.
fn read_domain(loader: &mut Loader, fields: &Fields<'_>, diagnostics: &mut Diagnostics<'_>) {
    let file: Arc<Path> = diagnostics.file.into();
    let name = fields.required("domain", diagnostics).filter(|name| {
        let claimed = loader.claim_domain(name, &file);
        claimed.map_err(|message| diagnostics.error(fields.position_of("domain"), message)).is_ok()
    });
    let mut detached = RuleNode::default();
    let (path, root) = match &name {
        Some(name) => (escaped(name), loader.rules.root_mut(name)),
        // No rule has such a path, so nothing here is reported as a duplicate of a rule.
        None => (format!("/{}", file.display()), &mut detached),
    };
    let denied = read_count_denied(fields, diagnostics).unwrap_or(loader.defaults.denied);
    let descriptors = fields.list("descriptors", diagnostics);
    let domain = name.unwrap_or_default().into();
    let cross_file = &mut loader.cross_file;
    let mut context = Context { diagnostics, cross_file, file, domain, denied };
    read_descriptors(descriptors, root, &Ancestors::none(path), &mut context);
    read_statistics(fields, &mut context);
}

/// The keys of a descriptor and of a limit.
#[cfg(test)]
pub(crate) fn known_keys() -> [&'static [&'static str]; 2] {
    [descriptor::DESCRIPTOR.known, limit::RATE_LIMIT.known]
}
