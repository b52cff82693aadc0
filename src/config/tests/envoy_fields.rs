//! The page of Envoy's fields, row by row: what it says of a field is what the reader does with it.
//!
//! `envoy_fields.json` has the place of each message in a configuration (`$`), the fields that it needs
//! there, and for each field others that set it to a value with an effect. An end-to-end test compares
//! the rows of the page with Envoy's messages.

use super::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The base of all configurations: an entry for each of two stages.
fn base() -> Value {
    json!({
        "domain": "d",
        "sidecar": {"cluster": "c"},
        "rate_limits": [
            {"actions": [{"remote_address": {}}]},
            {"actions": [{"destination_cluster": {}}], "stage": 1},
        ],
    })
}

/// `least` with `fields` at `place`.
fn placed(sample: &Value, fields: &Value) -> Result<Config, ConfigError> {
    let object = merged(sample["least"].clone(), fields);
    let fields = replaced(&sample["place"], &object);
    read(&merged(base(), &fields).to_string())
}

fn merged(mut object: Value, fields: &Value) -> Value {
    for (name, value) in fields.as_object().unwrap() {
        object[name] = value.clone();
    }
    object
}

/// The value with `object` for `$`.
fn replaced(value: &Value, object: &Value) -> Value {
    match value {
        Value::String(text) if text == "$" => object.clone(),
        Value::Array(items) => items.iter().map(|item| replaced(item, object)).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (name.clone(), replaced(value, object))).collect()
        }
        value => value.clone(),
    }
}

/// What the page says, by message and field.
fn rows() -> Vec<(&'static str, &'static str, &'static str)> {
    let page = include_str!("../../../docs/reference/envoy-fields.md");
    let (mut message, mut rows) = ("", Vec::new());
    for line in page.lines() {
        if let Some(name) = line.strip_prefix("### `") {
            message = name.trim_end_matches('`');
        } else if !message.is_empty()
            && let Some(row) = line.strip_prefix("| `")
        {
            let cells: Vec<&str> = row.trim_end_matches(" |").splitn(3, " | ").collect();
            rows.push((message, cells[0].trim_end_matches('`'), cells[2]));
        }
    }
    rows
}

/// Fields that set what has another name in the page.
fn other_name(name: &str) -> Value {
    match name {
        "sidecar.timeout_ms" => json!({"sidecar": {"cluster": "c", "timeout_ms": 1000}}),
        "sidecar.cluster" => json!({"sidecar": {"cluster": "other"}}),
        "failure_mode" => json!({"failure_mode": "deny"}),
        "headers" => json!({"headers": "draft03"}),
        "denied.status" => json!({"denied": {"status": 503}}),
        other => panic!("no sample of `{other}`"),
    }
}

/// What is wrong about a row.
fn mistake(sample: Option<&Value>, field: &str, here: &str) -> Option<String> {
    if let Some(name) = here.strip_prefix("as `").and_then(|rest| rest.strip_suffix('`')) {
        let other = read(&merged(base(), &other_name(name)).to_string());
        if other.is_err() || other == read(&base().to_string()) {
            return Some(format!("{name}: {other:?}"));
        }
    }
    let Some(sample) = sample else {
        // Of a message that no field here has.
        let is_here = here == "yes" || here.starts_with("no effect: ");
        return is_here.then(|| "no sample".to_owned());
    };
    let fields = &sample["fields"][field];
    if !fields.is_object() {
        return Some("no sample".to_owned());
    }
    let (without, with) = (placed(sample, &json!({})), placed(sample, fields));
    let is_right = match here {
        "yes" => with.is_ok() && with != without,
        _ if here.starts_with("no effect: ") => with.is_ok() && with == without,
        _ if here.starts_with("no: ") || here.starts_with("as `") => {
            let error = with.as_ref().err().map(ToString::to_string).unwrap_or_default();
            error.contains(field) && error.contains("not supported")
        }
        _ => return Some("not a word that the page explains".to_owned()),
    };
    (!is_right).then(|| with.map_or_else(|error| error.to_string(), |_| "it is taken".to_owned()))
}

#[test]
fn the_reader_takes_the_fields_of_envoy_that_the_page_says() {
    let samples: Vec<Value> = serde_json::from_str(include_str!("envoy_fields.json")).unwrap();
    let of_message = samples.iter().map(|sample| (sample["message"].as_str().unwrap(), sample));
    let samples: BTreeMap<&str, &Value> = of_message.collect();
    let rows = rows();
    assert!(rows.len() > 130, "{} rows", rows.len());
    let mistakes = rows.iter().filter_map(|(message, field, here)| {
        let mistake = mistake(samples.get(message).copied(), field, here)?;
        Some(format!("{message}.{field} is {here:?}: {mistake}"))
    });
    let mistakes: Vec<String> = mistakes.collect();
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}
