//! Accepted and refused configurations, as Envoy passes them.

mod bounds;
mod denied;
mod envoy_fields;
mod filter_options;
mod hostile;
mod mistakes;
mod reports;
mod virtual_hosts;

use super::*;

/// Every field at least once.
const FULL: &str = r#"{
    "domain": "shop",
    "sidecar": {"cluster": "tidegate", "timeout_ms": 25},
    "failure_mode": "deny",
    "overload_mode": "allow",
    "shadow": false,
    "rate_limits": [
        {"actions": [
            {"request_headers": {"header_name": "X-App", "descriptor_key": "app"}},
            {"remote_address": {}},
            {"generic_key": {"descriptor_value": "v"}}
        ]},
        {
            "actions": [
                {"request_headers": {"header_name": "x-app", "descriptor_key": "a", "skip_if_absent": true}},
                {"query_parameters": {"query_parameter_name": "q", "descriptor_key": "query", "skip_if_absent": true}},
                {"masked_remote_address": {"v4_prefix_mask_len": 24, "v6_prefix_mask_len": 64}},
                {"remote_address_match": {"descriptor_value": "inside", "descriptor_key": "net", "address_matcher": {
                    "ranges": [{"address_prefix": "10.0.0.0", "prefix_len": 8}], "invert_match": true}}},
                {"generic_key": {"descriptor_key": "k", "default_value": "other"}}
            ],
            "hits_addend": {"number": 3},
            "routes": ["checkout", "cart"],
            "route_metadata": {"metadata_key": {"key": "shop", "path": [{"key": "tier"}]}, "value": "strict"},
            "shadow": true
        },
        {
            "actions": [
                {"header_value_match": {"descriptor_value": "h", "descriptor_key": "hm", "expect_match": false, "headers": [
                    {"name": "a", "string_match": {"exact": "x", "ignore_case": true}, "invert_match": true},
                    {"name": "b", "present_match": true, "treat_missing_header_as_empty": true},
                    {"name": "c", "range_match": {"start": "-1", "end": 9}},
                    {"name": "d", "exact_match": "x"},
                    {"name": "e", "prefix_match": "x"},
                    {"name": "f", "suffix_match": "x"},
                    {"name": "g", "contains_match": "x"},
                    {"name": "h", "safe_regex_match": {"google_re2": {}, "regex": "x+"}}
                ]}},
                {"query_parameter_value_match": {"descriptor_value": "q", "query_parameters": [
                    {"name": "p", "string_match": {"safe_regex": {"regex": "[0-9]+"}}},
                    {"name": "r", "present_match": false}
                ]}},
                {"metadata": {"descriptor_key": "user", "default_value": "none", "source": "ROUTE_ENTRY",
                    "metadata_key": {"key": "ns", "path": [{"key": "a"}, {"key": "b"}]}, "skip_if_absent": true}},
                {"source_cluster": {}},
                {"destination_cluster": {}}
            ],
            "hits_addend": {"format": "%REQ(X-Cost)%"}
        }
    ],
    "headers": "draft03",
    "denied": {"status": 503, "body": "later\r\n\n"},
    "leases": {"slots": 100}
}"#;

fn read(json: &str) -> Result<Config, ConfigError> {
    Config::from_envoy(json.as_bytes())
}

#[test]
fn a_full_configuration_is_read() {
    let config = read(FULL).unwrap();
    assert_eq!((config.domain.as_str(), config.cluster.as_str()), ("shop", "tidegate"));
    assert_eq!(config.timeout, Duration::from_millis(25));
    assert_eq!(config.failure_mode, UndecidedMode::Deny);
    assert_eq!(config.overload_mode, UndecidedMode::Allow);
    assert_eq!(config.headers, HeaderStyle::Draft03);
    // Without the final newlines, which a gRPC client would see as `%0A`.
    let denied = &config.denied.content;
    assert_eq!((denied.status, denied.text.as_str()), (503, "later"));
    assert_eq!(config.lease_slots, 100);
    let enforcement: Vec<_> = config.rate_limits.iter().map(|limit| limit.enforcement).collect();
    use Enforcement::{Enforced, Shadow};
    assert_eq!(enforcement, [Enforced, Shadow, Enforced]);
    assert_eq!(config.rate_limits[1].conditions.len(), 2);
    let lengths: Vec<_> = config.rate_limits.iter().map(|limit| limit.actions.len()).collect();
    assert_eq!(lengths, [3, 5, 5]);
}

#[test]
fn one_fact_has_one_number_wherever_it_is_used() {
    let config = read(FULL).unwrap();
    let Action::Value { fact: upper, .. } = &config.rate_limits[0].actions[0] else { panic!() };
    let Action::Value { fact: lower, .. } = &config.rate_limits[1].actions[0] else { panic!() };
    assert_eq!(upper, lower);
    assert_eq!(upper.source, Source::Header("x-app".into()));
    assert_ne!(config.path.number, upper.number);
}

#[test]
fn absent_fields_have_envoys_defaults() {
    let json = r#"{"domain":"d","sidecar":{"cluster":"c"},
        "rate_limits":[{"actions":[{"masked_remote_address":{}}]}]}"#;
    let config = read(json).unwrap();
    assert_eq!(config.timeout, Duration::from_millis(20));
    assert_eq!(config.failure_mode, UndecidedMode::Allow);
    assert_eq!(config.headers, HeaderStyle::Ietf);
    assert_eq!(config.denied.content.status, 429);
    assert_eq!(config.lease_slots, 8_192);
    let [limit] = config.rate_limits.as_slice() else { panic!("one recipe") };
    assert_eq!(limit.enforcement, Enforcement::Enforced);
    assert_eq!(limit.hits, HitsAddend::Number(1));
    assert_eq!(limit.conditions, []);
    let Action::Network { v4_prefix_mask_len, v6_prefix_mask_len, .. } = &limit.actions[0] else {
        panic!()
    };
    assert_eq!((*v4_prefix_mask_len, *v6_prefix_mask_len), (32, 128));
}

#[test]
fn modes_and_the_style_of_headers_are_known_by_name() {
    let of = |fields: &str| {
        let json = format!(
            r#"{{"domain":"d","sidecar":{{"cluster":"c"}},{fields}
                "rate_limits":[{{"actions":[{{"remote_address":{{}}}}]}}]}}"#
        );
        let config = read(&json).unwrap();
        (config.failure_mode, config.overload_mode, config.headers)
    };
    use HeaderStyle::{Draft03, Ietf, Off};
    use UndecidedMode::{Allow, Deny};
    let table = [
        ("", (Allow, Deny, Ietf)),
        (r#""failure_mode":"allow","overload_mode":"deny","headers":"ietf","#, (Allow, Deny, Ietf)),
        (r#""failure_mode":"deny","#, (Deny, Deny, Ietf)),
        (r#""overload_mode":"allow","#, (Allow, Allow, Ietf)),
        (r#""headers":"draft03","#, (Allow, Deny, Draft03)),
        (r#""headers":"off","#, (Allow, Deny, Off)),
    ];
    for (fields, expected) in table {
        assert_eq!(of(fields), expected, "{fields}");
    }
}

#[test]
fn shadow_of_the_filter_is_shadow_of_every_entry() {
    let config = read(&FULL.replacen("false", "true", 1)).unwrap();
    assert!(config.rate_limits.iter().all(|limit| limit.enforcement == Enforcement::Shadow));
}

#[test]
fn envoys_default_values_have_no_effect_here() {
    let said = FULL.replacen(
        r#"{"actions": ["#,
        r#"{"stage": 0, "disable_key": "", "limit": null, "apply_on_stream_done": false,
            "hits_addend": null,
            "x_ratelimit_option": "UNSPECIFIED", "actions": ["#,
        1,
    );
    let said = said.replacen(
        r#"{"remote_address": {}}"#,
        r#"{"extension": null, "remote_address": {}}"#,
        1,
    );
    // Was refused: an empty key is an absent one, as in any protobuf message.
    let said = said.replacen(
        r#""descriptor_value": "v""#,
        r#""descriptor_value": "v", "descriptor_key": """#,
        1,
    );
    assert_eq!(read(&said), read(FULL));
}

#[test]
fn a_source_is_known_by_name_and_by_number() {
    let sources = [
        ("\"DYNAMIC\"", "0", ["metadata", "filter_metadata"].as_slice()),
        ("\"ROUTE_ENTRY\"", "1", &["xds", "route_metadata", "filter_metadata"]),
        ("\"CLUSTER_ENTRY\"", "2", &["xds", "cluster_metadata", "filter_metadata"]),
    ];
    for (name, number, root) in sources {
        for source in [name, number] {
            let config = read(&FULL.replacen("\"ROUTE_ENTRY\"", source, 1)).unwrap();
            let Action::Value { fact, .. } = &config.rate_limits[2].actions[2] else { panic!() };
            let path = [root, &["ns", "a", "b"]].concat();
            assert_eq!(fact.source, Source::Text(path.into_iter().map(Into::into).collect()));
        }
    }
}

/// The `rate_limits` of a route in the style of Envoy's documentation, with the usual fields.
#[test]
fn rate_limits_of_an_envoy_route_can_be_pasted() {
    let block = r#"[
        {"stage": 0, "actions": [
            {"source_cluster": {}},
            {"destination_cluster": {}},
            {"header_value_match": {"descriptor_value": "post", "expect_match": true, "headers": [
                {"name": ":method", "string_match": {"exact": "POST"}},
                {"name": ":path", "safe_regex_match": {"google_re2": {}, "regex": "/v[0-9]+/orders(/.*)?"}}
            ]}}
        ]},
        {"actions": [
            {"request_headers": {"header_name": ":authority", "descriptor_key": "host", "skip_if_absent": false}},
            {"metadata": {"descriptor_key": "user", "source": "DYNAMIC", "metadata_key": {
                "key": "envoy.filters.http.jwt_authn", "path": [{"key": "payload"}, {"key": "sub"}]}}}
        ], "hits_addend": {"number": 2}}
    ]"#;
    let json = format!(r#"{{"domain":"d","sidecar":{{"cluster":"c"}},"rate_limits":{block}}}"#);
    let config = read(&json).unwrap();
    assert_eq!(config.rate_limits.len(), 2);
    assert_eq!(config.rate_limits[1].hits, HitsAddend::Number(2));
}

#[test]
fn rate_limits_are_bounded_by_the_sidecars_descriptors() {
    let with = |count: usize| {
        let mut value: serde_json::Value = serde_json::from_str(FULL).unwrap();
        value["rate_limits"] = vec![value["rate_limits"][0].clone(); count].into();
        read(&value.to_string())
    };
    assert!(with(128).is_ok());
    let error = ConfigError::new("rate_limits".into(), "129 are too many (maximum 128)");
    assert_eq!(with(129), Err(error));
}

/// Envoy 1.40 passes a configuration written as a Struct as protobuf bytes, which the filter took
/// for bad JSON.
#[test]
fn a_struct_means_the_same_as_its_json() {
    let value: serde_json::Value = serde_json::from_str(FULL).unwrap();
    let bytes = structured::tests::struct_of_json(&value);
    let expected = read(FULL).unwrap();
    assert_eq!(Config::from_envoy(&bytes), Ok(expected));
    assert!(read(&format!("\n{FULL}")).is_ok());
    let mut wrong = value;
    wrong["sidecar"]["timeout_ms"] = serde_json::json!(20.5);
    let error = Config::from_envoy(&structured::tests::struct_of_json(&wrong)).unwrap_err();
    let message = "invalid type: a number that is not an integer, or too large, expected a non-negative integer";
    assert_eq!(error, ConfigError::new("sidecar.timeout_ms".into(), message));
}

/// Every example in the reference is a configuration, or an entry of one.
#[test]
fn the_examples_of_the_reference_are_valid() {
    let pages = [
        include_str!("../../docs/reference/filter.md"),
        include_str!("../../docs/reference/filter-actions.md"),
        include_str!("../../docs/reference/filter-costs.md"),
        include_str!("../../docs/reference/filter-routes.md"),
        include_str!("../../docs/reference/filter-replies.md"),
    ]
    .concat();
    let blocks: Vec<&str> = pages
        .split("```json\n")
        .skip(1)
        .filter_map(|rest| rest.split_once("```").map(|(block, _)| block))
        .collect();
    assert_eq!(blocks.len(), 12);
    for block in blocks {
        let json = if block.contains("\"domain\"") {
            block.to_owned()
        } else if block.contains("\"actions\"") {
            format!(r#"{{"domain":"d","sidecar":{{"cluster":"c"}},"rate_limits":[{block}]}}"#)
        } else {
            let fields = block.trim().strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
            let fields = fields.unwrap();
            let full = FULL.replacen(r#""denied": {"status": 503, "body": "later\r\n\n"},"#, "", 1);
            full.replacen('{', &format!("{{{fields},"), 1)
        };
        assert_eq!(read(&json).err(), None, "for {block}");
    }
}
