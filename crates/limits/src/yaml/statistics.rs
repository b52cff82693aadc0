//! `statistics`: the statistics of a file's domain.

use super::context::{Context, Diagnostics};
use super::fields::{Fields, Keys, text};
use crate::diagnostic::Position;
use crate::document::Node;
use crate::statistics::{STATISTIC_KEYS_MAX, STATISTIC_NAME_BYTES_MAX, STATISTICS_MAX, Statistic};
use crate::text::quoted;

const STATISTIC: Keys = Keys { map: "a statistic", known: &["name", "by", "distinct"] };

/// Reads the statistics of a file. Those of a file without a domain are read to find their errors.
pub(super) fn read_statistics(fields: &Fields<'_>, context: &mut Context<'_, '_>) {
    for node in fields.list("statistics", context.diagnostics) {
        if let Some(fields) = Fields::read(node, &STATISTIC, context.diagnostics) {
            read_statistic(&fields, context);
        }
    }
}

fn read_statistic(fields: &Fields<'_>, context: &mut Context<'_, '_>) {
    let name = fields.required("name", context.diagnostics);
    let name = name.filter(|name| check_name(name, fields.position_of("name"), context));
    let by = read_by(fields, context.diagnostics);
    let distinct = read_distinct(fields, by.as_deref(), context.diagnostics);
    if let (Some(name), Some(by), Ok(distinct)) = (name, by, distinct) {
        let domain = context.domain.clone();
        context.cross_file.statistics.push(Statistic { name, domain, by, distinct });
    }
}

/// Whether the name is valid and new. It is taken then.
fn check_name(name: &str, at: Position, context: &mut Context<'_, '_>) -> bool {
    let shown = quoted(name);
    let message = if !Statistic::is_name(name) {
        format!(
            "`name`: {shown} is no name of a statistic; expected up to {STATISTIC_NAME_BYTES_MAX} of a-z, 0-9 and -"
        )
    } else if let Some((file, (line, column))) = context.cross_file.statistic_names.get(name) {
        let file =
            if **file == *context.file { String::new() } else { format!("{}:", file.display()) };
        format!("duplicate statistic {shown}; the first is at {file}{line}:{column}")
    } else if context.cross_file.statistic_names.len() == STATISTICS_MAX {
        format!("more than {STATISTICS_MAX} statistics in all files together")
    } else {
        let first = (context.file.clone(), at);
        context.cross_file.statistic_names.insert(name.to_owned(), first);
        return true;
    };
    context.diagnostics.error(at, message);
    false
}

/// The keys of `by`; none if one of them is wrong.
fn read_by(fields: &Fields<'_>, diagnostics: &mut Diagnostics<'_>) -> Option<Vec<String>> {
    let nodes = fields.list("by", diagnostics);
    let errors_before = diagnostics.errors.len();
    if nodes.is_empty() {
        // A wrong type has been reported already.
        if !fields.has("by") || fields.is_list("by") {
            let message = "`by` is required and must have at least one key";
            diagnostics.error(fields.position_of("by"), message);
        }
        return None;
    }
    if let Some(node) = nodes.get(STATISTIC_KEYS_MAX) {
        diagnostics.error(node.position(), format!("`by`: more than {STATISTIC_KEYS_MAX} keys"));
    }
    let mut by: Vec<String> = Vec::new();
    for node in nodes.iter().take(STATISTIC_KEYS_MAX) {
        if let Some(key) = read_key(node, "by", diagnostics) {
            if by.contains(&key) {
                let message = format!("`by`: {} is there twice", quoted(&key));
                diagnostics.error(node.position(), message);
            }
            by.push(key);
        }
    }
    (diagnostics.errors.len() == errors_before).then_some(by)
}

fn read_distinct(
    fields: &Fields<'_>,
    by: Option<&[String]>,
    diagnostics: &mut Diagnostics<'_>,
) -> Result<Option<String>, ()> {
    let Some(node) = fields.value("distinct") else { return Ok(None) };
    let key = read_key(node, "distinct", diagnostics).ok_or(())?;
    if by.is_some_and(|by| by.contains(&key)) {
        let key = quoted(&key);
        let message =
            format!("`distinct`: {key} is a key of `by`, so a series has one value of it");
        diagnostics.error(node.position(), message);
        return Err(());
    }
    Ok(Some(key))
}

fn read_key(node: &Node, of: &str, diagnostics: &mut Diagnostics<'_>) -> Option<String> {
    let key = text(node, of, diagnostics)?;
    if key.is_empty() {
        diagnostics.error(node.position(), format!("`{of}`: a key must not be empty"));
        return None;
    }
    Some(key)
}
