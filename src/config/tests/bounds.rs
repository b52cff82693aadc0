//! The bounds of a configuration: above each one is refused with its number, one less is accepted.

use super::read;
use serde_json::{Value, json};

fn plugin(rate_limits: &Value) -> String {
    json!({"domain": "d", "sidecar": {"cluster": "c"}, "rate_limits": rate_limits}).to_string()
}

fn check(rate_limits: impl Fn(usize) -> Value, max: usize, message: &str) {
    assert_eq!(read(&plugin(&rate_limits(max))).map(drop), Ok(()));
    let error = read(&plugin(&rate_limits(max + 1))).unwrap_err().to_string();
    assert_eq!(error, format!("plugin configuration: {message}"));
}

fn actions(count: usize) -> Value {
    vec![json!({"remote_address": {}}); count].into()
}

/// The sidecar accepts a bounded number of entries per descriptor: with more, every call failed,
/// and `failure_mode` decided about every request.
#[test]
fn the_actions_of_an_entry_are_bounded_by_the_sidecars_entries() {
    check(
        |count| json!([{"actions": actions(count)}]),
        256,
        "rate_limits[0].actions: 257 are too many (maximum 256)",
    );
}

#[test]
fn entries_are_bounded_by_the_sidecars_descriptors() {
    check(
        |count| vec![json!({"actions": actions(1)}); count].into(),
        128,
        "rate_limits: 129 are too many (maximum 128)",
    );
}

fn of_path(regex: &str) -> Value {
    json!({"actions": [{"header_value_match": {"descriptor_value": "v", "headers": [
        {"name": ":path", "safe_regex_match": {"regex": regex}}]}}]})
}

/// Each is within its own bound.
#[test]
fn all_expressions_together_are_bounded() {
    let different =
        |count: usize| (0..count).map(|n| of_path(&format!("{n}(..){{400}}"))).collect();
    let states = "safe_regex_match.regex: up to here, all expressions compile to ";
    assert_eq!(read(&plugin(&different(80))).map(drop), Ok(()));
    let error = read(&plugin(&different(90))).unwrap_err().to_string();
    assert!(error.contains(states), "{error}");
    assert!(error.ends_with("states (maximum 65536)"), "{error}");
    // A repeated expression is compiled once.
    let same: Value = vec![of_path("(..){400}"); 100].into();
    assert_eq!(read(&plugin(&same)).map(drop), Ok(()));
}
