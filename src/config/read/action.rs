//! The actions, with the field names of Envoy's route configuration.

use super::checks::{
    empty, has_command, header_name, literal, not_empty, number_or, some_items, when_absent,
};
use super::format;
use super::matcher::{address_matcher, header_matcher, query_matcher, sense};
use super::metadata::{FIELDS, FIELDS_DYNAMIC, metadata};
use crate::config::ConfigError;
use crate::config::encoded::Encoded;
use crate::config::format::{Format, Moment};
use crate::config::interner::Interner;
use crate::config::node::Node;
use crate::config::rate_limit::{Action, Formatted, WhenAbsent};
use crate::config::unsupported::OF_AN_ACTION;

const ACTIONS: [&str; 12] = [
    "request_headers",
    "query_parameters",
    "remote_address",
    "masked_remote_address",
    "remote_address_match",
    "generic_key",
    "header_value_match",
    "query_parameter_value_match",
    "metadata",
    "dynamic_metadata",
    "source_cluster",
    "destination_cluster",
];

/// A protobuf oneof: an object with one of the actions.
pub(super) fn action(node: &Node<'_>, interner: &mut Interner) -> Result<Action, ConfigError> {
    node.object("an object with one action", &ACTIONS, &OF_AN_ACTION)?;
    let (name, of) = node.one_of(&ACTIONS)?;
    match name {
        "request_headers" => request_headers(&of, interner),
        "query_parameters" => query_parameters(&of, interner),
        "remote_address" => {
            empty(&of)?;
            Ok(Action::Address { key: Encoded::key("remote_address") })
        }
        "masked_remote_address" => masked_remote_address(&of),
        "remote_address_match" => remote_address_match(&of, interner),
        "generic_key" => {
            of.object("an object with `descriptor_value`", &FIXED, &[])?;
            let fixed = fixed(&of, "generic_key", interner)?;
            Ok(fixed.entry_of(Action::Constant))
        }
        "header_value_match" | "query_parameter_value_match" => value_match(name, &of, interner),
        "metadata" => metadata(&of, &FIELDS, interner),
        "dynamic_metadata" => metadata(&of, &FIELDS[..FIELDS_DYNAMIC], interner),
        "source_cluster" => property(&of, name, interner, &["xds", "node", "cluster"]),
        _ => property(&of, name, interner, &["xds", "cluster_name"]),
    }
}

fn property(
    node: &Node<'_>,
    key: &str,
    interner: &mut Interner,
    path: &[&str],
) -> Result<Action, ConfigError> {
    empty(node)?;
    let (key, fact) = (Encoded::key(key), interner.property(path));
    Ok(Action::Value { key, fact, when_absent: WhenAbsent::DropDescriptor })
}

/// `descriptor_key`, or its default.
fn key_or<'a>(node: &'a Node<'a>, default: &'a str) -> Result<&'a str, ConfigError> {
    match node.field("descriptor_key") {
        Some(key) => not_empty(&key),
        None => Ok(default),
    }
}

/// The fields of an entry with a configured value.
const FIXED: [&str; 3] = ["descriptor_value", "descriptor_key", "default_value"];

/// The entry of an action with a configured value.
struct Fixed {
    /// Empty if the value is a format.
    entry: Encoded,
    /// Its key, its value, and its default.
    format: Option<(Encoded, Format, Option<Encoded>)>,
}

impl Fixed {
    /// The action that adds it, made of the one that adds a constant.
    fn entry_of(self, action: impl FnOnce(Encoded) -> Action) -> Action {
        let action = action(self.entry);
        match self.format {
            Some((key, format, default)) => {
                Action::Formatted(Box::new(Formatted { action, key, format, default }))
            }
            None => action,
        }
    }
}

/// Reads the value of an entry. A value with a command is a format. `default_value` replaces an
/// empty value; a configured one means an absent one.
fn fixed(
    node: &Node<'_>,
    key_default: &str,
    interner: &mut Interner,
) -> Result<Fixed, ConfigError> {
    let key = key_or(node, key_default)?;
    let default = match node.field("default_value") {
        Some(value) if !value.text()?.is_empty() => Some(Encoded::entry(key, literal(&value)?)),
        _ => None,
    };
    let value = match node.field("descriptor_value") {
        Some(value) => value.text()?,
        None => "",
    };
    if has_command(value.as_bytes()) {
        let format = format::format(&node.at("descriptor_value"), Moment::Request, interner)?;
        let format = Some((Encoded::key(key), format, default));
        return Ok(Fixed { entry: Encoded(Vec::new()), format });
    }
    let entry = match (value, default) {
        ("", Some(default)) => default,
        ("", None) => {
            return Err(node.at("descriptor_value").error("is required and must not be empty"));
        }
        (value, _) => Encoded::entry(key, value),
    };
    Ok(Fixed { entry, format: None })
}

fn request_headers(node: &Node<'_>, interner: &mut Interner) -> Result<Action, ConfigError> {
    let fields = ["header_name", "descriptor_key", "skip_if_absent"];
    node.object("an object with `header_name` and `descriptor_key`", &fields, &[])?;
    let name = header_name(&node.required("header_name")?)?;
    Ok(Action::Value {
        key: Encoded::key(not_empty(&node.required("descriptor_key")?)?),
        fact: interner.header(&name),
        when_absent: when_absent(node)?,
    })
}

fn query_parameters(node: &Node<'_>, interner: &mut Interner) -> Result<Action, ConfigError> {
    let fields = ["query_parameter_name", "descriptor_key", "skip_if_absent"];
    node.object("an object with `query_parameter_name`", &fields, &[])?;
    let name = not_empty(&node.required("query_parameter_name")?)?;
    Ok(Action::Value {
        key: Encoded::key(key_or(node, "query_param")?),
        fact: interner.parameter(name),
        when_absent: when_absent(node)?,
    })
}

fn masked_remote_address(node: &Node<'_>) -> Result<Action, ConfigError> {
    let fields = ["v4_prefix_mask_len", "v6_prefix_mask_len"];
    node.object("an object with the lengths of prefixes", &fields, &[])?;
    Ok(Action::Network {
        key: Encoded::key("masked_remote_address"),
        v4_prefix_mask_len: number_or(node, "v4_prefix_mask_len", 32, 0, 32)?,
        v6_prefix_mask_len: number_or(node, "v6_prefix_mask_len", 128, 0, 128)?,
    })
}

fn remote_address_match(node: &Node<'_>, interner: &mut Interner) -> Result<Action, ConfigError> {
    let fields = ["descriptor_value", "descriptor_key", "default_value", "address_matcher"];
    node.object("an object with `address_matcher`", &fields, &[])?;
    let fixed = fixed(node, "remote_address_match", interner)?;
    let matcher = address_matcher(&node.required("address_matcher")?)?;
    Ok(fixed.entry_of(|entry| Action::AddressMatch { entry, matcher }))
}

/// `header_value_match` or `query_parameter_value_match`.
fn value_match(
    name: &str,
    node: &Node<'_>,
    interner: &mut Interner,
) -> Result<Action, ConfigError> {
    let of_headers = name == "header_value_match";
    let (key_default, list) = match of_headers {
        true => ("header_match", "headers"),
        false => ("query_match", "query_parameters"),
    };
    let fields = ["descriptor_value", "descriptor_key", "default_value", "expect_match", list];
    node.object(&format!("an object with `descriptor_value` and `{list}`"), &fields, &[])?;
    let fixed = fixed(node, key_default, interner)?;
    let mut matchers = Vec::new();
    for item in &some_items(&node.required(list)?)? {
        matchers.push(match of_headers {
            true => header_matcher(item, interner)?,
            false => query_matcher(item, interner)?,
        });
    }
    let sense = sense(!node.flag("expect_match", true)?);
    Ok(fixed.entry_of(|entry| Action::ValueMatch { entry, matchers, sense }))
}
