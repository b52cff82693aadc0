//! Reads the options of Envoy's own rate limit filter.

use super::checks::{as_header_name, has_command, in_range, not_empty, number_or};
use super::variant;
use crate::config::ConfigError;
use crate::config::filter_options::{AddedHeader, AppendAction, Fraction, RequestType};
use crate::config::node::Node;

/// As in Envoy.
const ADDED_HEADERS_MAX: usize = 10;
const HEADER_VALUE_BYTES_MAX: usize = 16_384;

/// A `RuntimeFractionalPercent`. A Wasm filter cannot read Envoy's runtime, so a `runtime_key` has
/// no effect.
#[inline(never)]
pub(super) fn fraction(node: &Node<'_>, name: &str) -> Result<Option<Fraction>, ConfigError> {
    let Some(field) = node.field(name) else { return Ok(None) };
    field.object("an object with `default_value`", &["default_value", "runtime_key"], &[])?;
    if let Some(key) = field.field("runtime_key") {
        key.text()?;
    }
    let share = field.required("default_value")?;
    share.object("an object with `numerator`", &["numerator", "denominator"], &[])?;
    let numerator = number_or(&share, "numerator", 0, 0, u32::MAX.into())?;
    let denominator = match share.field("denominator") {
        None => 100,
        Some(denominator) if denominator.is_text() => {
            match variant(&share, "denominator", &["HUNDRED", "TEN_THOUSAND", "MILLION"])? {
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
    Ok(Some(Fraction { numerator, denominator }))
}

pub(super) fn request_type(node: &Node<'_>) -> Result<RequestType, ConfigError> {
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
    let mut added = Vec::new();
    let Some(list) = node.field("response_headers_to_add") else { return Ok(added) };
    let items = list.items()?;
    if items.len() > ADDED_HEADERS_MAX {
        let count = items.len();
        let message = format!("{count} are too many (maximum {ADDED_HEADERS_MAX})");
        return Err(list.error(&message));
    }
    for item in &items {
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
        // As in Envoy.
        if value.is_empty() && !item.flag("keep_empty_value", false)? {
            continue;
        }
        added.push(AddedHeader { name, value, action: append_action(item)? });
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
    if value.len() > HEADER_VALUE_BYTES_MAX {
        let (bytes, max) = (value.len(), HEADER_VALUE_BYTES_MAX);
        return Err(node.error(&format!("the value has {bytes} bytes (maximum {max})")));
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
