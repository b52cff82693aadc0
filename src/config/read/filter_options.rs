//! Reads the options of Envoy's own rate limit filter.

use super::checks::{as_header_name, at_most, has_command, in_range, not_empty, number_or};
use super::variant;
use crate::config::ConfigError;
use crate::config::filter_options::{AddedHeader, AppendAction, Fraction, RequestType, Selection};
use crate::config::node::Node;

/// As in Envoy.
const ADDED_HEADERS_MAX: usize = 10;
/// Of all names and values together: each of thousands of denials that wait has a copy.
const ADDED_BYTES_MAX: usize = 4_096;

/// A `RuntimeFractionalPercent`. A Wasm filter cannot read Envoy's runtime, so a `runtime_key` has
/// no effect.
#[inline(never)]
pub(super) fn fraction(node: &Node<'_>, name: &str) -> Result<Option<Fraction>, ConfigError> {
    let Some(field) = node.field(name) else { return Ok(None) };
    field.object("an object with `default_value`", &["default_value", "runtime_key"], &[])?;
    if let Some(key) = field.field("runtime_key") {
        key.text()?;
    }
    percent(&field.required("default_value")?).map(Some)
}

/// A `FractionalPercent`.
pub(super) fn percent(share: &Node<'_>) -> Result<Fraction, ConfigError> {
    share.object("an object with `numerator`", &["numerator", "denominator"], &[])?;
    let numerator = number_or(share, "numerator", 0, 0, u32::MAX.into())?;
    let denominator = match share.field("denominator") {
        None => 100,
        Some(denominator) if denominator.is_text() => {
            match variant(share, "denominator", &["HUNDRED", "TEN_THOUSAND", "MILLION"])? {
                Some("MILLION") => 1_000_000,
                Some("TEN_THOUSAND") => 10_000,
                _ => 100,
            }
        }
        Some(denominator) => match in_range(&denominator, 0, 2)? {
            0 => 100,
            1 => 10_000,
            _ => 1_000_000,
        },
    };
    Ok(Fraction { numerator, denominator })
}

/// The requests that the filter looks at, unless it looks at all.
pub(super) fn selection(node: &Node<'_>) -> Result<Option<Selection>, ConfigError> {
    let enabled = fraction(node, "filter_enabled")?.unwrap_or(Fraction::ALL);
    let selection = Selection { request_type: request_type(node)?, enabled };
    let all = Selection { request_type: RequestType::Both, enabled: Fraction::ALL };
    Ok((selection != all).then_some(selection))
}

fn request_type(node: &Node<'_>) -> Result<RequestType, ConfigError> {
    Ok(match variant(node, "request_type", &["both", "internal", "external", ""])? {
        Some("internal") => RequestType::Internal,
        Some("external") => RequestType::External,
        _ => RequestType::Both,
    })
}

/// The status of requests without a decision.
pub(super) fn status_on_error(node: &Node<'_>) -> Result<u32, ConfigError> {
    let Some(status) = node.field("status_on_error") else { return Ok(500) };
    status.object("an object with `code`", &["code"], &[])?;
    in_range(&status.required("code")?, 400, 599)
}

pub(super) fn added_headers(node: &Node<'_>) -> Result<Vec<AddedHeader>, ConfigError> {
    let (mut added, mut bytes) = (Vec::new(), 0_usize);
    let Some(list) = node.field("response_headers_to_add") else { return Ok(added) };
    for item in &at_most(&list, ADDED_HEADERS_MAX)? {
        item.object(
            "an object with `header`",
            &["header", "append_action", "keep_empty_value"],
            &[("append", "it is deprecated in Envoy; use `append_action`")],
        )?;
        let header = item.required("header")?;
        let raw = [("raw_value", "use `value`")];
        header.object("an object with `key` and `value`", &["key", "value"], &raw)?;
        let key = header.required("key")?;
        let name = as_header_name(&key, not_empty(&key)?)?;
        if name.starts_with(':') {
            return Err(key.error(&format!("{name:?} cannot be added")));
        }
        let value = match header.field("value") {
            Some(value) => header_value(&value)?,
            None => String::new(),
        };
        let action = append_action(item)?;
        // As in Envoy.
        if value.is_empty() && !item.flag("keep_empty_value", false)? {
            continue;
        }
        bytes = bytes.saturating_add(name.len()).saturating_add(value.len());
        added.push(AddedHeader { name, value, action });
    }
    if bytes > ADDED_BYTES_MAX {
        let message = format!("{bytes} bytes of names and values (maximum {ADDED_BYTES_MAX})");
        return Err(list.error(&message));
    }
    Ok(added)
}

/// A value as Envoy's formats have it: `%%` is a percent sign.
fn header_value(node: &Node<'_>) -> Result<String, ConfigError> {
    let value = node.text()?;
    let plain = value.replace("%%", "");
    if has_command(plain.as_bytes()) {
        let message = "not supported: a Wasm filter cannot format it; only plain values are added";
        return Err(node.error(message));
    }
    if value.bytes().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
        return Err(node.error("a value must not contain line ends or NUL"));
    }
    Ok(value.replace("%%", "%"))
}

fn append_action(item: &Node<'_>) -> Result<AppendAction, ConfigError> {
    let names = [
        "APPEND_IF_EXISTS_OR_ADD",
        "ADD_IF_ABSENT",
        "OVERWRITE_IF_EXISTS_OR_ADD",
        "OVERWRITE_IF_EXISTS",
    ];
    Ok(match variant(item, "append_action", &names)? {
        Some("ADD_IF_ABSENT") => AppendAction::AddIfAbsent,
        Some("OVERWRITE_IF_EXISTS_OR_ADD") => AppendAction::OverwriteOrAdd,
        Some("OVERWRITE_IF_EXISTS") => AppendAction::OverwriteIfExists,
        _ => AppendAction::AppendOrAdd,
    })
}
