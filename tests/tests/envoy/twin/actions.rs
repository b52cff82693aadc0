//! Actions, each with any of its options.

use super::configuration::Place;
use super::dice::Dice;
use super::matchers::{address_matcher, header_matcher, query_matcher};
use super::pools::{DESCRIPTOR_KEYS, FORMATS, HEADERS, PARAMETERS};
use serde_json::{Value, json};

/// One arm for each action. Envoy's filter has not the last one in its own list.
const ACTIONS: [fn(&mut Dice) -> Value; 15] = [
    request_headers,
    request_headers,
    query_parameters,
    query_parameters,
    |_| json!({"remote_address": {}}),
    masked_remote_address,
    remote_address_match,
    generic_key,
    header_value_match,
    query_parameter_value_match,
    metadata,
    jwt_claim,
    |_| json!({"source_cluster": {}}),
    |_| json!({"destination_cluster": {}}),
    dynamic_metadata,
];

/// Any action of an entry at this place.
pub(super) fn action(dice: &mut Dice, place: Place) -> Value {
    let count = if place == Place::Filter { ACTIONS.len() - 1 } else { ACTIONS.len() };
    dice.make(&ACTIONS[..count])
}

/// Sets an option in two of three cases.
fn maybe(dice: &mut Dice, of: &mut Value, name: &str, value: impl FnOnce(&mut Dice) -> Value) {
    if !dice.one_in(3) {
        of[name] = value(dice);
    }
}

fn flag(dice: &mut Dice) -> Value {
    json!(dice.one_in(2))
}

fn descriptor_key(dice: &mut Dice) -> Value {
    json!(dice.pick(&DESCRIPTOR_KEYS))
}

/// The key and the value of an action with a configured value. Envoy accepts no empty one.
fn constant(dice: &mut Dice) -> Value {
    let value = match dice.one_in(2) {
        true => dice.pick(&FORMATS),
        false => dice.pick(&["given", "a b", "é"]),
    };
    let mut of = json!({"descriptor_value": value});
    maybe(dice, &mut of, "default_value", |dice| json!(dice.pick(&["", "instead"])));
    maybe(dice, &mut of, "descriptor_key", |dice| json!(dice.pick(&["", "k", "a key", "é"])));
    of
}

fn request_headers(dice: &mut Dice) -> Value {
    let mut of =
        json!({"header_name": dice.pick(&HEADERS), "descriptor_key": descriptor_key(dice)});
    maybe(dice, &mut of, "skip_if_absent", flag);
    json!({"request_headers": of})
}

fn query_parameters(dice: &mut Dice) -> Value {
    let name = dice.pick(&PARAMETERS);
    let mut of = json!({"query_parameter_name": name, "descriptor_key": descriptor_key(dice)});
    maybe(dice, &mut of, "skip_if_absent", flag);
    json!({"query_parameters": of})
}

fn masked_remote_address(dice: &mut Dice) -> Value {
    let mut of = json!({});
    maybe(dice, &mut of, "v4_prefix_mask_len", |dice| json!(dice.below(33)));
    maybe(dice, &mut of, "v6_prefix_mask_len", |dice| json!(dice.below(129)));
    json!({"masked_remote_address": of})
}

fn remote_address_match(dice: &mut Dice) -> Value {
    let mut of = constant(dice);
    of["address_matcher"] = address_matcher(dice);
    json!({"remote_address_match": of})
}

fn generic_key(dice: &mut Dice) -> Value {
    json!({"generic_key": constant(dice)})
}

fn header_value_match(dice: &mut Dice) -> Value {
    let mut of = constant(dice);
    of["headers"] = json!(dice.some(1, 3, header_matcher));
    maybe(dice, &mut of, "expect_match", flag);
    json!({"header_value_match": of})
}

fn query_parameter_value_match(dice: &mut Dice) -> Value {
    let mut of = constant(dice);
    of["query_parameters"] = json!(dice.some(1, 3, query_matcher));
    maybe(dice, &mut of, "expect_match", flag);
    json!({"query_parameter_value_match": of})
}

/// A key of metadata of the request (`dyn`, and `header` from the header `x-meta`), of its route, or
/// of its cluster.
fn metadata_key(dice: &mut Dice) -> Value {
    // Not the path of a number, a boolean, a list or an object ("Values").
    let (key, path) = dice.pick(&[
        ("dyn", json!([{"key": "text"}])),
        ("dyn", json!([{"key": "empty"}])),
        ("dyn", json!([{"key": "none"}])),
        ("dyn", json!([{"key": "deep"}, {"key": "er"}])),
        ("dyn", json!([{"key": "deep"}, {"key": "none"}])),
        ("dyn", json!([{"key": "text"}, {"key": "below"}])),
        ("dyn", json!([{"key": "list"}, {"index": 0}])),
        ("dyn", json!([{"key": "list"}, {"index": 9}])),
        ("dyn", json!([{"key": "list"}, {"index": 1}, {"key": "inner"}])),
        ("dyn", json!([{"key": "list"}, {"index": 2}, {"index": 1}])),
        ("dyn", json!([{"key": "list"}, {"key": "inner"}])),
        ("dyn", json!([{"key": "text"}, {"index": 0}])),
        ("none", json!([{"key": "none"}])),
        ("header", json!([{"key": "meta"}])),
        ("header", json!([{"key": "meta"}])),
    ]);
    json!({"key": key, "path": path})
}

fn jwt_claim(dice: &mut Dice) -> Value {
    const TYPE: &str =
        "type.googleapis.com/envoy.extensions.rate_limit_descriptors.jwt_claim.v3.Descriptor";
    let mut of = json!({"@type": TYPE, "descriptor_key": descriptor_key(dice)});
    match dice.below(3) {
        0 => of["cookie"] = json!("token"),
        _ => of["header_name"] = json!("authorization"),
    }
    maybe(dice, &mut of, "value_prefix", |dice| json!(dice.pick(&["Bearer ", "Bearer ", ""])));
    of["claim_name"] =
        json!(dice.pick(&["sub", "sub", "deep.er", "deep.none", "none", "empty", "sub.x"]));
    maybe(dice, &mut of, "default_value", |dice| json!(dice.pick(&["", "default"])));
    maybe(dice, &mut of, "skip_if_absent", flag);
    json!({"extension": {"name": "envoy.rate_limit_descriptors.jwt_claim", "typed_config": of}})
}

fn dynamic_metadata(dice: &mut Dice) -> Value {
    let mut of =
        json!({"descriptor_key": descriptor_key(dice), "metadata_key": metadata_key(dice)});
    maybe(dice, &mut of, "default_value", |dice| json!(dice.pick(&["", "default", "é"])));
    json!({"dynamic_metadata": of})
}

fn metadata(dice: &mut Dice) -> Value {
    let mut of = dynamic_metadata(dice)["dynamic_metadata"].take();
    maybe(dice, &mut of, "source", |dice| {
        dice.pick(&[json!("DYNAMIC"), json!("ROUTE_ENTRY"), json!("CLUSTER_ENTRY"), json!(1)])
    });
    maybe(dice, &mut of, "skip_if_absent", flag);
    json!({"metadata": of})
}
