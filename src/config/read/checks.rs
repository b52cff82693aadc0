//! Checks of single fields; not inlined, like the steps of [`Node`].

use crate::config::ConfigError;
use crate::config::node::Node;
use crate::config::rate_limit::{PROPERTY_PARTS_MAX, WhenAbsent};

/// An object without fields.
pub(super) fn empty(node: &Node<'_>) -> Result<(), ConfigError> {
    node.object("an empty object", &[], &[])
}

/// The meaning of `skip_if_absent`.
pub(super) fn when_absent(node: &Node<'_>) -> Result<WhenAbsent, ConfigError> {
    let skip = node.flag("skip_if_absent", false)?;
    Ok(if skip { WhenAbsent::SkipEntry } else { WhenAbsent::DropDescriptor })
}

/// A text of at least one character.
#[inline(never)]
pub(super) fn not_empty<'a>(node: &Node<'a>) -> Result<&'a str, ConfigError> {
    match node.text()? {
        "" => Err(node.error("must not be empty")),
        text => Ok(text),
    }
}

/// The items of a list that is not empty.
#[inline(never)]
pub(super) fn some_items<'a>(node: &'a Node<'a>) -> Result<Vec<Node<'a>>, ConfigError> {
    let items = node.items()?;
    if items.is_empty() {
        return Err(node.error("must not be empty"));
    }
    Ok(items)
}

/// The items of a list of 1 to `max` items.
pub(super) fn items_up_to<'a>(
    node: &'a Node<'a>,
    max: usize,
) -> Result<Vec<Node<'a>>, ConfigError> {
    some_items(node)?;
    at_most(node, max)
}

/// The items of a list of up to `max` items.
pub(super) fn at_most<'a>(node: &'a Node<'a>, max: usize) -> Result<Vec<Node<'a>>, ConfigError> {
    let items = node.items()?;
    match items.len() {
        count if count > max => Err(node.error(&format!("{count} are too many (maximum {max})"))),
        _ => Ok(items),
    }
}

/// A field from `min` to `max`, or its default.
#[inline(never)]
pub(super) fn number_or(
    node: &Node<'_>,
    name: &str,
    default: u32,
    min: u64,
    max: u64,
) -> Result<u32, ConfigError> {
    node.field(name).map_or(Ok(default), |number| in_range(&number, min, max))
}

/// A number from `min` to `max` that fits into `u32`.
#[inline(never)]
pub(super) fn in_range(node: &Node<'_>, min: u64, max: u64) -> Result<u32, ConfigError> {
    const EXPECTED: &str = "a non-negative integer";
    let number = node.whole(EXPECTED)?;
    let Ok(number) = u64::try_from(number) else { return Err(node.invalid("value", EXPECTED)) };
    match u32::try_from(number) {
        Ok(valid) if (min..=max).contains(&number) => Ok(valid),
        _ => Err(node.error(&format!("{number} is out of range ({min} to {max})"))),
    }
}

/// An integer, also as a text: protobuf's JSON writes 64-bit numbers so.
#[inline(never)]
pub(super) fn whole_number(node: &Node<'_>) -> Result<i64, ConfigError> {
    const EXPECTED: &str = "an integer";
    if !node.is_text() {
        return node.whole(EXPECTED);
    }
    node.text()?.parse().map_err(|_| node.invalid("value", EXPECTED))
}

#[inline(never)]
pub(super) fn header_name(node: &Node<'_>) -> Result<String, ConfigError> {
    as_header_name(node, node.text()?)
}

/// A header name by RFC 9110 (a token), or a pseudo-header; in lower case.
pub(super) fn as_header_name(node: &Node<'_>, name: &str) -> Result<String, ConfigError> {
    let token = name.strip_prefix(':').unwrap_or(name);
    let is_token_byte =
        |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if token.is_empty() || !token.bytes().all(is_token_byte) {
        return Err(node.error(&format!("{name:?} is not a header name")));
    }
    Ok(name.to_ascii_lowercase())
}

/// A value that goes into descriptors unchanged, as in Envoy. A format here would give all clients
/// one counter.
#[inline(never)]
pub(super) fn literal<'a>(node: &Node<'a>) -> Result<&'a str, ConfigError> {
    let value = node.text()?;
    if has_command(value.as_bytes()) {
        let message = "must not have commands: it is used as it is, as in Envoy";
        return Err(node.error(message));
    }
    Ok(value)
}

/// Whether it contains a command: `%NAME%` or `%NAME(...)%`. A percent sign alone is none.
pub(super) fn has_command(mut value: &[u8]) -> bool {
    while let Some((byte, rest)) = value.split_first() {
        value = rest;
        let is_of_names =
            |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b'_';
        if *byte == b'%' && rest.first().is_some_and(u8::is_ascii_uppercase) {
            let end = rest.iter().find(|byte| !is_of_names(byte));
            if matches!(end, Some(b'%' | b'(')) {
                return true;
            }
        }
    }
    false
}

/// The path of a property; Envoy separates its parts by NUL.
#[inline(never)]
pub(super) fn property_path(node: &Node<'_>, parts: &[&str]) -> Result<Vec<String>, ConfigError> {
    if parts.len() > PROPERTY_PARTS_MAX {
        let (depth, max) = (parts.len(), PROPERTY_PARTS_MAX);
        let message = format!("{depth} parts are too many (maximum {max}, including Envoy's own)");
        return Err(node.error(&message));
    }
    if parts.iter().any(|part| part.is_empty() || part.as_bytes().contains(&0)) {
        return Err(node.error("a name must not be empty or contain NUL"));
    }
    Ok(parts.iter().map(|&part| part.to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_a_name_in_capitals_between_a_percent_sign_and_its_end() {
        let table = [
            ("%PROTOCOL%", true),
            ("a-%PROTOCOL%-b", true),
            ("%REQ(x)%", true),
            ("%START_TIME_2%", true),
            ("100%", false),
            ("50% OFF%", false),
            ("%a%", false),
            ("%2X%", false),
            ("%A", false),
            ("%A-B%", false),
            ("A(b)", false),
            ("A%", false),
            ("", false),
        ];
        for (value, expected) in table {
            assert_eq!(has_command(value.as_bytes()), expected, "{value:?}");
        }
    }
}
