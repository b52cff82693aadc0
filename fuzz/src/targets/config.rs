//! The plugin's configuration: a JSON object and a Struct with the same values are read alike, in every run,
//! and with limited work.
//!
//! Deliberate differences: a number beyond 2^53 is exact only in JSON, and each form has its own limit of
//! depth. Such documents are not compared.

use super::Target;
use crate::memory::Meter;
use crate::work::Bound;
use prost::Message;
use prost_types::{ListValue, Struct, value::Kind};
use serde_json::Value;
use std::time::Duration;
use tidegate::config::Config;

pub(super) const TARGET: Target = Target { name: "config", run, seeds };

/// Every object is searched for each of its keys, and expressions are compiled.
const WORK: Bound = Bound { fixed: Duration::from_millis(20), nanos_per_byte: 4_000 };
/// Both forms are compared up to this depth.
const DEPTH_MAX: usize = 30;

fn run(input: &[u8]) {
    let meter = Meter::begin();
    let read = WORK.check(input.len(), || Config::from_envoy(input));
    let allowed = (4 << 20) + 1_024 * input.len();
    assert!(meter.peak() <= allowed, "{} bytes for {}", meter.peak(), input.len());
    assert_eq!(read, Config::from_envoy(input));
    if let Err(error) = &read {
        assert!(!error.message.is_empty());
    }
    let Ok(value) = serde_json::from_slice::<Value>(input) else { return };
    if !value.is_object() || !is_comparable(&value, DEPTH_MAX) {
        return;
    }
    // A repeated key is a mistake in JSON, but the library keeps only one.
    if matches!(&read, Err(error) if error.message.contains("duplicate key")) {
        return;
    }
    let Kind::StructValue(fields) = kind(&value) else { return };
    let bytes = fields.encode_to_vec();
    if !bytes.is_empty() {
        let structured = Config::from_envoy(&bytes);
        assert_eq!(structured.is_ok(), read.is_ok(), "{structured:?}, {read:?}");
        if let (Ok(structured), Ok(read)) = (structured, read) {
            assert_eq!(structured, read);
        }
    }
}

/// Whether both forms can represent this exactly.
fn is_comparable(value: &Value, depth: usize) -> bool {
    let Some(depth) = depth.checked_sub(1) else { return false };
    match value {
        Value::Number(number) => {
            number.as_f64().is_some_and(|number| number.abs() < 9_007_199_254_740_992.0)
        }
        Value::Array(items) => items.iter().all(|item| is_comparable(item, depth)),
        Value::Object(fields) => fields.values().all(|field| is_comparable(field, depth)),
        _ => true,
    }
}

fn kind(value: &Value) -> Kind {
    let wrapped = |value: &Value| prost_types::Value { kind: Some(kind(value)) };
    match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(value) => Kind::BoolValue(*value),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(0.0)),
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Array(items) => {
            Kind::ListValue(ListValue { values: items.iter().map(wrapped).collect() })
        }
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| (name.clone(), wrapped(value)));
            Kind::StructValue(Struct { fields: fields.collect() })
        }
    }
}

/// Every action alone, as JSON and as a Struct.
fn seeds() -> Vec<Vec<u8>> {
    let actions = [
        r#"{"request_headers":{"header_name":"x","descriptor_key":"a","skip_if_absent":true}}"#,
        r#"{"query_parameters":{"query_parameter_name":"q","descriptor_key":"a"}}"#,
        r#"{"remote_address":{}}"#,
        r#"{"masked_remote_address":{"v4_prefix_mask_len":24,"v6_prefix_mask_len":64}}"#,
        r#"{"remote_address_match":{"descriptor_value":"v","address_matcher":{"ranges":[{"address_prefix":"::1","prefix_len":8}],"invert_match":true}}}"#,
        r#"{"generic_key":{"descriptor_key":"k","descriptor_value":"v"}}"#,
        r#"{"header_value_match":{"descriptor_value":"v","expect_match":false,"headers":[{"name":"a","string_match":{"exact":"x","ignore_case":true}},{"name":"c","range_match":{"start":"-1","end":9}}]}}"#,
        r#"{"header_value_match":{"descriptor_value":"v","headers":[{"name":"h","safe_regex_match":{"google_re2":{},"regex":"(a|b)*x+"}},{"name":"p","present_match":true}]}}"#,
        r#"{"query_parameter_value_match":{"descriptor_value":"v","query_parameters":[{"name":"p","string_match":{"safe_regex":{"regex":"[0-9]+"}}}]}}"#,
        r#"{"metadata":{"descriptor_key":"u","default_value":"d","source":"ROUTE_ENTRY","metadata_key":{"key":"n","path":[{"key":"a"}]}}}"#,
        r#"{"source_cluster":{}},{"destination_cluster":{}}"#,
    ];
    let more = [
        r#","hits_addend":{"number":3}"#,
        r#","hits_addend":{"format":"%REQ(X-Cost)%"},"shadow":true"#,
        r#","when":"request.path.matches('a') && size(jwt.claims.x[1]) in [1, 2.5, null] ? true : !has(source.port)""#,
        r#","routes":["a"],"route_metadata":{"metadata_key":{"key":"k","path":[{"key":"t"}]},"value":"v"}"#,
    ];
    let top = [
        "",
        r#","headers":"draft03","denied":{"status":503,"body":"later"}"#,
        r#","failure_mode":"deny","leases":{"slots":100},"shadow":false"#,
    ];
    let mut seeds = Vec::new();
    for (number, action) in actions.iter().enumerate() {
        let (more, top) = (more[number % 4], top[number % 3]);
        let text = format!(
            r#"{{"domain":"d","sidecar":{{"cluster":"t","timeout_ms":25}},"rate_limits":[{{"actions":[{action}]{more}}}]{top}}}"#
        );
        let value: Value = serde_json::from_str(&text).expect("a seed is JSON");
        if number % 3 == 0
            && let Kind::StructValue(fields) = kind(&value)
        {
            seeds.push(fields.encode_to_vec());
        }
        seeds.push(text.into_bytes());
    }
    seeds
}
