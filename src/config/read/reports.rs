//! Reads the options of reports.

use super::checks::{header_name, not_empty};
use super::variant;
use crate::config::ConfigError;
use crate::config::node::Node;
use crate::config::reports::{FilterState, Reports};

/// Envoy keeps every name of a statistic, for every worker.
const PREFIX_BYTES_MAX: usize = 64;

pub(super) fn reports(node: &Node<'_>) -> Result<Reports, ConfigError> {
    let shadow_header = node.field("shadow_header").map(|header| shadow_header(&header));
    Ok(Reports {
        stat_prefix: stat_prefix(node)?,
        shadow_header: shadow_header.transpose()?,
        filter_state: match variant(node, "filter_state", &["shadow", "all"])? {
            Some("all") => FilterState::All,
            _ => FilterState::Shadow,
        },
    })
}

/// An empty one is none, as in Envoy.
fn stat_prefix(node: &Node<'_>) -> Result<String, ConfigError> {
    let Some(field) = node.field("stat_prefix") else { return Ok(String::new()) };
    let prefix = field.text()?;
    if prefix.len() > PREFIX_BYTES_MAX {
        let bytes = prefix.len();
        return Err(
            field.error(&format!("{bytes} bytes are too many (maximum {PREFIX_BYTES_MAX})"))
        );
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let has_gap = prefix.split('.').any(str::is_empty);
    if !prefix.is_empty() && (has_gap || !prefix.bytes().all(is_plain)) {
        return Err(field.error(&format!(
            "{prefix:?} is not a part of a statistic's name; use letters, digits, `_` and `-`, and \
             single dots between them"
        )));
    }
    Ok(prefix.to_owned())
}

fn shadow_header(field: &Node<'_>) -> Result<String, ConfigError> {
    not_empty(field)?;
    let name = header_name(field)?;
    if name.starts_with(':') {
        return Err(field.error(&format!("{name:?} cannot be added")));
    }
    Ok(name)
}
