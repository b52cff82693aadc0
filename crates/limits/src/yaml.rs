//! Reads limits files in YAML: envoyproxy/ratelimit's schema, extended.
//!
//! `document` keeps positions, `reader` checks keys and types, the others give meaning to one part each.

mod algorithm;
mod covered;
mod descriptor;
mod document;
mod limit;
pub(crate) mod matching;
mod metadata;
mod period;
mod reader;

use crate::compiled::RuleNode;
use crate::loader::{Common, Loader, SameDomain};
use crate::report::RuleError;
use crate::text::{escaped, quoted};
use descriptor::{Above, read_descriptors};
use reader::{Fields, Keys, Reports};
use std::path::Path;
use std::sync::Arc;
use tidegate_core::Denied;

const FILE: Keys = Keys { of: "a limits file", known: &["domain", "descriptors", "count_denied"] };

/// One file while it is read.
struct Reading<'a, 'f> {
    reports: &'a mut Reports<'f>,
    common: &'a mut Common,
    file: Arc<Path>,
    domain: Arc<str>,
    /// What becomes of denied requests, where a limit does not say.
    denied: Denied,
}

/// Reads one more file.
pub(crate) fn read_file(loader: &mut Loader, file: &Path, text: &str) {
    let root = match document::parse(text) {
        Ok(root) => root,
        Err((place, message)) => {
            loader.errors.push(RuleError { file: file.to_owned(), place, message });
            return;
        }
    };
    let mut reports = Reports { file, source: text, errors: Vec::new(), warnings: Vec::new() };
    if let Some(fields) = Fields::read(&root, &FILE, &mut reports) {
        let name = fields.required("domain", &mut reports);
        let name = name.filter(|name| is_free(loader, name, &fields, &mut reports));
        read_domain(loader, name, &fields, &mut reports);
    }
    let Reports { mut errors, mut warnings, .. } = reports;
    errors.sort_by_key(|error| error.place);
    warnings.sort_by_key(|warning| warning.place);
    loader.errors.append(&mut errors);
    loader.warnings.append(&mut warnings);
}

/// Whether rules of this domain may come from this file; reports it if not.
fn is_free(loader: &Loader, name: &str, fields: &Fields<'_>, reports: &mut Reports<'_>) -> bool {
    match loader.files.get(name) {
        Some(other) if loader.defaults.same_domain == SameDomain::Refuse => {
            let (name, other) = (quoted(name), other.display());
            let message = format!("domain {name} is already defined by {other}");
            reports.report(fields.place_of("domain"), message);
            false
        }
        _ => true,
    }
}

/// Reads the rules. Those of no valid domain are read for their mistakes alone.
fn read_domain(
    loader: &mut Loader,
    name: Option<String>,
    fields: &Fields<'_>,
    reports: &mut Reports<'_>,
) {
    let file: Arc<Path> = reports.file.into();
    let mut nowhere = RuleNode::default();
    let (path, root) = match &name {
        Some(name) => {
            loader.files.entry(name.clone()).or_insert_with(|| file.to_path_buf());
            (escaped(name), loader.rules.domain_mut(name).root_mut())
        }
        // No path starts like that, so nothing there is called a duplicate of a rule.
        None => (format!("/{}", file.display()), &mut nowhere),
    };
    let denied = denied(fields, reports).unwrap_or(loader.defaults.denied);
    let descriptors = fields.list("descriptors", reports);
    let domain = name.unwrap_or_default().into();
    let mut reading = Reading { reports, common: &mut loader.common, file, domain, denied };
    read_descriptors(descriptors, root, &Above::top(path), &mut reading);
}

/// What becomes of denied requests, if a limit or a file says.
fn denied(fields: &Fields<'_>, reports: &mut Reports<'_>) -> Option<Denied> {
    let counts = fields.truth("count_denied", reports)?;
    Some(if counts { Denied::Count } else { Denied::Spare })
}

/// The keys of a descriptor and of a limit.
#[cfg(test)]
pub(crate) fn known_keys() -> [&'static [&'static str]; 2] {
    [descriptor::DESCRIPTOR.known, limit::RATE_LIMIT.known]
}
