//! Arbitrary bytes: an error or a configuration, never a panic.

use super::super::*;
use super::{FULL, read};
use proptest::prelude::*;
use serde_json::{Value, json};

#[test]
fn bytes_other_than_a_json_object_are_refused() {
    let object = "expected a JSON object with `domain`, `sidecar` and `rate_limits`";
    let table: [(&[u8], &str); 5] = [
        (b" ", object),
        (b"[]", object),
        (b"null", object),
        (b"\xff", object),
        (b"{", "not JSON: EOF while parsing an object at line 1 column 1"),
    ];
    for (json, message) in table {
        let error = Config::from_envoy(json).unwrap_err();
        assert_eq!(error.to_string(), format!("plugin configuration: {message}"));
    }
    assert!(read(&format!("{FULL} {FULL}")).is_err());
}

#[test]
fn every_prefix_and_every_changed_byte_of_a_configuration() {
    for end in 0..FULL.len() {
        assert!(Config::from_envoy(&FULL.as_bytes()[..end]).is_err());
        let mut changed = FULL.as_bytes().to_vec();
        changed[end] ^= 0x5a;
        let _ = Config::from_envoy(&changed);
    }
}

/// Values with a meaning somewhere in a configuration, and trees of them.
fn tree() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        Just(json!({})),
        Just(json!([])),
        Just(json!("%REQ(x)%")),
        Just(json!("(a{99}){99}")),
    ];
    let key = prop_oneof![
        "[a-z_]{1,8}",
        prop::sample::select(vec![
            "actions",
            "remote_address",
            "headers",
            "name",
            "string_match",
            "regex",
            "number",
            "metadata_key",
            "key",
            "path",
            "rate_limits",
            "hits_addend",
            "routes",
            "ranges",
            "virtual_hosts",
            "per_route",
            "domain",
        ])
        .prop_map(str::to_owned),
    ];
    leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key.clone(), inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// The JSON pointers of all values in a document.
fn pointers(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                pointers(item, &format!("{at}/{index}"), all);
            }
        }
        Value::Object(fields) => {
            for (key, field) in fields {
                pointers(field, &format!("{at}/{key}"), all);
            }
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_tree(tree in tree()) {
        let _ = read(&tree.to_string());
        if tree.is_object() {
            let _ = Config::from_envoy(&structured::tests::struct_of_json(&tree));
        }
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Config::from_envoy(&bytes).is_err());
    }

    /// A configuration with one value replaced is accepted or refused with a message, twice alike.
    #[test]
    fn a_configuration_with_any_value_replaced(place in any::<prop::sample::Index>(), tree in tree()) {
        let mut document: Value = serde_json::from_str(FULL).unwrap();
        let mut all = Vec::new();
        pointers(&document, "", &mut all);
        let pointer: &String = place.get(&all);
        *document.pointer_mut(pointer).unwrap() = tree;
        let read_once = read(&document.to_string());
        if let Err(error) = &read_once {
            prop_assert!(!error.message.is_empty());
        }
        prop_assert_eq!(read_once, read(&document.to_string()));
    }
}
