//! The action `jwt_claim`: the descriptor extension `envoy.rate_limit_descriptors.jwt_claim` of
//! Envoy 1.40, with its fields.

use super::checks::{header_name, not_empty, when_absent};
use crate::config::ConfigError;
use crate::config::encoded::Encoded;
use crate::config::interner::Interner;
use crate::config::node::Node;
use crate::config::rate_limit::{Action, Claim, Source, WhenAbsent};

const NAME: &str = "envoy.rate_limit_descriptors.jwt_claim";
const TYPE: &str = "envoy.extensions.rate_limit_descriptors.jwt_claim.v3.Descriptor";

const FIELDS: [&str; 8] = [
    "descriptor_key",
    "header_name",
    "cookie",
    "value_prefix",
    "claim_name",
    "default_value",
    "skip_if_absent",
    // Of Envoy's form.
    "@type",
];

/// The form of Envoy: the only extension that a Wasm filter can stand in for.
pub(super) fn extension(node: &Node<'_>, interner: &mut Interner) -> Result<Action, ConfigError> {
    node.object("an object with `name` and `typed_config`", &["name", "typed_config"], &[])?;
    let name = node.required("name")?;
    // Envoy finds an extension by its type.
    name.text()?;
    let config = node.required("typed_config")?;
    let of_type = config.at("@type");
    let is_claim = match of_type.is_absent() {
        true => name.text()? == NAME,
        false => of_type.text()?.rsplit('/').next() == Some(TYPE),
    };
    if !is_claim {
        let message = "not supported: a Wasm filter cannot call Envoy's descriptor extensions; \
                       only that of `jwt_claim` is here";
        return Err(node.error(message));
    }
    jwt_claim(&config, interner)
}

pub(super) fn jwt_claim(node: &Node<'_>, interner: &mut Interner) -> Result<Action, ConfigError> {
    node.object("an object with `descriptor_key` and `claim_name`", &FIELDS, &[])?;
    let key = not_empty(&node.required("descriptor_key")?)?;
    let text = |name: &str| match node.field(name) {
        Some(field) => field.text().map(str::to_owned),
        None => Ok(String::new()),
    };
    let (header, cookie) = (text("header_name")?, text("cookie")?);
    let fact = match (header.is_empty(), cookie.is_empty()) {
        (false, true) => interner.header(&header_name(&node.at("header_name"))?),
        (true, false) => interner.fact(Source::Cookie(cookie)),
        _ => return Err(node.error("expected exactly one of `header_name`, `cookie`")),
    };
    let default_value = text("default_value")?;
    let when_absent = match default_value.as_str() {
        "" => when_absent(node)?,
        value => WhenAbsent::Entry(Encoded::entry(key, value)),
    };
    let claim_name = not_empty(&node.required("claim_name")?)?;
    Ok(Action::Claim(Box::new(Claim {
        key: Encoded::key(key),
        fact,
        prefix: text("value_prefix")?,
        path: claim_name.split('.').map(str::to_owned).collect(),
        when_absent,
    })))
}
