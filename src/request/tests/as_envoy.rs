//! The same descriptors as Envoy's own rate limit filter makes.
//!
//! `envoy_1_40.json` was recorded from Envoy 1.40: a route with one entry of `rate_limits` per list
//! of actions (each after a constant action), HTTP requests, and the calls to a rate limit service.
//! Each request lists the entries that made a descriptor: `constant` those whose only value is `v`,
//! `values` the others in full.

use super::{ADDRESS, Facts, config, descriptors, entries_of};
use crate::config::Config;
use serde_json::{Value, json};

/// The facts that a Wasm filter saw in that Envoy.
fn facts(request: &Value) -> Facts {
    let mut known: Vec<(String, Vec<u8>)> = Vec::new();
    let mut address = "127.0.0.1:41534".to_owned();
    for (name, value) in request["headers"].as_object().unwrap() {
        let value = value.as_str().unwrap();
        if name == "x-forwarded-for" {
            let is_v6 = value.contains(':');
            address = if is_v6 { format!("[{value}]:0") } else { format!("{value}:0") };
        }
        // HTTP removes the spaces around a value.
        known.push((name.clone(), value.trim().into()));
    }
    known.push((":path".into(), request["path"].as_str().unwrap().into()));
    known.push((ADDRESS.into(), address.into()));
    let properties: [(&str, &[u8]); 5] = [
        ("xds|node|cluster", b"edge-proxy"),
        ("xds|cluster_name", b"upstream"),
        ("metadata|filter_metadata|dyn.ns|s", b"text"),
        ("metadata|filter_metadata|dyn.ns|n", &3.0_f64.to_le_bytes()),
        ("xds|route_metadata|filter_metadata|my.ns|o|deep", b"down"),
    ];
    known.extend(properties.map(|(path, value)| (path.to_owned(), value.to_vec())));
    let known = known.iter().map(|(name, value)| (name.as_str(), value.as_slice()));
    super::facts(&known.collect::<Vec<_>>())
}

/// The entries after the first of the descriptor, if the configuration made one.
fn made(config: &Config, facts: &Facts) -> Option<Value> {
    let (enforced, _) = descriptors(config, facts);
    let descriptor = enforced.iter().next()?;
    let entries = entries_of(descriptor.entries);
    Some(entries.iter().skip(1).map(|entry| json!([entry.key, entry.value])).collect())
}

#[test]
fn every_action_makes_what_envoy_made_of_it() {
    let recorded: Value = serde_json::from_str(include_str!("envoy_1_40.json")).unwrap();
    let actions = recorded["entries"].as_array().unwrap();
    let first = json!({"generic_key": {"descriptor_value": "first"}});
    let config_of = |actions: &Value| {
        let all: Value =
            std::iter::once(&first).chain(actions.as_array().unwrap()).cloned().collect();
        config(&json!([{"actions": all}]))
    };
    let configs: Vec<Config> = actions.iter().map(config_of).collect();
    let requests = recorded["requests"].as_array().unwrap();
    assert_eq!((configs.len(), requests.len()), (189, 19));
    for request in requests {
        let facts = facts(request);
        let constant = request["constant"].as_array().unwrap();
        for (index, config) in configs.iter().enumerate() {
            let made = made(config, &facts);
            let shown = format!("{} of {request}", actions[index]);
            if actions[index].to_string().contains(r#""path":[{"key":"n"}]"#) {
                // Envoy ignores a number here. A filter cannot distinguish it from a text that a
                // client chose, and must not drop the descriptor.
                assert!(made.is_some_and(|made| made[0][1] != ""), "{shown}");
                continue;
            }
            if constant.contains(&json!(index)) {
                let made = made.unwrap_or_default();
                assert_eq!((made[0][1].as_str(), made.get(1)), (Some("v"), None), "{shown}");
            } else {
                assert_eq!(made.as_ref(), request["values"].get(index.to_string()), "{shown}");
            }
        }
    }
}

/// The bytes of a recorded text, which has a character for each byte.
fn bytes_of(text: &Value) -> Vec<u8> {
    text.as_str().unwrap().chars().map(|char| u8::try_from(char).unwrap()).collect()
}

/// `envoy_1_40_values.json` was recorded in the same way, with formats enabled, in plain text and
/// with TLS. A Wasm filter before Envoy's own recorded the properties that it saw (`facts`).
#[test]
fn formats_items_and_claims_have_the_values_that_envoy_gave_them() {
    let recorded: Value = serde_json::from_str(include_str!("envoy_1_40_values.json")).unwrap();
    let actions = recorded["entries"].as_array().unwrap();
    let requests = recorded["requests"].as_array().unwrap();
    assert_eq!((actions.len(), requests.len()), (97, 9));
    let first = json!({"generic_key": {"descriptor_value": "first"}});
    let of = |action: &Value| config(&json!([{"actions": [first, action]}]));
    let configs: Vec<Config> = actions.iter().map(of).collect();
    for request in requests {
        let path = bytes_of(&request["path"]);
        let mut known = vec![(":path", path), (":method", b"GET".to_vec())];
        known.extend([(":authority", b"h.example".to_vec())]);
        for (name, value) in request["headers"].as_object().unwrap() {
            known.push((name, bytes_of(value).trim_ascii().to_vec()));
        }
        let facts = request["facts"].as_object().unwrap();
        known.extend(facts.iter().map(|(name, value)| (name.as_str(), bytes_of(value))));
        let known: Vec<(&str, &[u8])> =
            known.iter().map(|(name, value)| (*name, value.as_slice())).collect();
        let facts = super::facts(&known);
        for (index, (config, action)) in configs.iter().zip(actions).enumerate() {
            let made = made(config, &facts);
            let mut expected = request["values"].get(index.to_string()).cloned();
            for entry in expected.iter_mut().flat_map(|all| all.as_array_mut().unwrap()) {
                let text = |part: &Value| json!(String::from_utf8_lossy(&bytes_of(part)));
                *entry = json!([text(&entry[0]), text(&entry[1])]);
            }
            let several = action.to_string().contains("_SAN%") && expected.is_some();
            if several {
                // Envoy joins all names of a certificate; a filter sees the first.
                let text = |made: &Option<Value>| made.clone().unwrap()[0][1].clone();
                let all = text(&expected);
                let names: Vec<&str> = all.as_str().unwrap().split(',').collect();
                assert_eq!(text(&made), json!(names[0]), "{action}");
                continue;
            }
            assert_eq!(made, expected, "{action} of {request}");
        }
    }
}
