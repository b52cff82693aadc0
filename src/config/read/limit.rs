//! The override of a limit, from the configuration or from metadata.

use super::checks::{in_range, number_of, property_path};
use super::metadata::{DYNAMIC, metadata_key};
use crate::config::ConfigError;
use crate::config::encoded::{Encoded, encoded_override};
use crate::config::interner::Interner;
use crate::config::node::Node;
use crate::config::rate_limit::{Action, LimitSource, Source};

/// The names of [`UNITS`](crate::config::encoded::UNITS), after the one that is none.
pub(crate) const UNIT_NAMES: [&str; 7] =
    ["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR"];

pub(super) fn limit(node: &Node<'_>, interner: &mut Interner) -> Result<Action, ConfigError> {
    let fields = ["dynamic_metadata", "rate_limit"];
    node.object("an object with `dynamic_metadata` or `rate_limit`", &fields, &[])?;
    let source = match node.one_of(&fields)? {
        ("rate_limit", of) => LimitSource::Constant(constant(&of)?),
        (_, of) => {
            of.object("an object with `metadata_key`", &["metadata_key"], &[])?;
            let key = of.required("metadata_key")?;
            let path = metadata_key(&key, DYNAMIC)?;
            let mut fact = |name: &str| {
                let path = path.iter().cloned().chain([name.to_owned()]).collect();
                Ok(interner.fact(Source::Property(property_path(&key, path)?)))
            };
            let (requests_per_unit, unit) = (fact("requests_per_unit")?, fact("unit")?);
            LimitSource::Metadata { requests_per_unit, unit }
        }
    };
    Ok(Action::Limit(Box::new(source)))
}

fn constant(node: &Node<'_>) -> Result<Encoded, ConfigError> {
    let fields = ["requests_per_unit", "unit"];
    node.object("an object with `requests_per_unit` and `unit`", &fields, &[])?;
    let requests = match node.field("requests_per_unit") {
        Some(requests) => in_range(&requests, 0, u32::MAX.into())?,
        None => 0,
    };
    let unit = node.required("unit")?;
    match number_of(&unit, &UNIT_NAMES)?.checked_sub(1).map(u8::try_from) {
        Some(Ok(index)) => Ok(Encoded(encoded_override(requests, index).to_vec())),
        _ => Err(unit.error("an override needs a unit")),
    }
}
