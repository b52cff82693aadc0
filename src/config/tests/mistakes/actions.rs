//! Mistakes in actions and in their matchers.

use super::check;

const ALL: &str = "`request_headers`, `query_parameters`, `remote_address`, \
                   `masked_remote_address`, `remote_address_match`, `generic_key`, \
                   `header_value_match`, `query_parameter_value_match`, `metadata`, \
                   `dynamic_metadata`, `source_cluster`, `destination_cluster`, `extension`, \
                   `jwt_claim`";

#[test]
fn of_an_action() {
    let unknown = format!(
        "rate_limits[0].actions[1].remote_adress: unknown field `remote_adress` (did you mean \
         `remote_address`?), expected one of {ALL}"
    );
    let one = format!("rate_limits[0].actions[1]: expected exactly one of {ALL}");
    let remote = r#"{"remote_address": {}}"#;
    check(&[
        (remote, r#"{"remote_adress": {}}"#, &unknown),
        (remote, "{}", &one),
        (remote, r#"{"remote_address": {}, "source_cluster": {}}"#, &one),
        (
            remote,
            r#"{"query_parameters": ["q", "k", true]}"#,
            "rate_limits[0].actions[1].query_parameters: invalid type: list, expected an object with \
             `query_parameter_name`",
        ),
        (
            remote,
            "7",
            "rate_limits[0].actions[1]: invalid type: integer `7`, expected an object with one action",
        ),
        (
            remote,
            r#"{"extension": {"name": "x", "typed_config": {"@type": "y/envoy.a"}}}"#,
            "rate_limits[0].actions[1].extension: not supported: a Wasm filter cannot call Envoy's \
             descriptor extensions; only that of `jwt_claim` is here",
        ),
        (
            remote,
            r#"{"jwt_claim": {"descriptor_key": "k", "claim_name": "c"}}"#,
            "rate_limits[0].actions[1].jwt_claim: expected exactly one of `header_name`, `cookie`",
        ),
        (
            remote,
            r#"{"jwt_claim": {"descriptor_key": "k", "claim_name": "c", "header_name": "a", "cookie": "b"}}"#,
            "rate_limits[0].actions[1].jwt_claim: expected exactly one of `header_name`, `cookie`",
        ),
        (
            remote,
            r#"{"jwt_claim": {"descriptor_key": "k", "claim_name": "", "header_name": "a"}}"#,
            "rate_limits[0].actions[1].jwt_claim.claim_name: must not be empty",
        ),
        (
            remote,
            r#"{"jwt_claim": {"descriptor_key": "k", "claims_name": "x"}}"#,
            "rate_limits[0].actions[1].jwt_claim.claims_name: unknown field `claims_name` (did you \
             mean `claim_name`?), expected one of `descriptor_key`, `header_name`, `cookie`, \
             `value_prefix`, `claim_name`, `default_value`, `skip_if_absent`, `@type`",
        ),
        (
            remote,
            r#"{"dynamic_metadata": {"source": 1}}"#,
            "rate_limits[0].actions[1].dynamic_metadata.source: unknown field `source`, expected \
             one of `descriptor_key`, `metadata_key`, `default_value`",
        ),
        (
            remote,
            r#"{"remote_address": {"x": 1}}"#,
            "rate_limits[0].actions[1].remote_address.x: unknown field `x`, there are no fields",
        ),
        (
            r#""X-App""#,
            r#""x app""#,
            "rate_limits[0].actions[0].request_headers.header_name: \"x app\" is not a header name",
        ),
        (
            r#""descriptor_key": "app""#,
            r#""descriptor_key": """#,
            "rate_limits[0].actions[0].request_headers.descriptor_key: must not be empty",
        ),
        (
            r#", "descriptor_key": "app""#,
            "",
            "rate_limits[0].actions[0].request_headers: missing field `descriptor_key`",
        ),
        (
            r#"{"descriptor_value": "v"}"#,
            "{}",
            "rate_limits[0].actions[2].generic_key.descriptor_value: is required and must not be empty",
        ),
        (
            r#"{"descriptor_value": "v"}"#,
            r#"{"descriptor_value": "100%-%REQ(x)%"}"#,
            "rate_limits[0].actions[2].generic_key.descriptor_value: no command begins at byte 3; \
             a percent sign is `%%`",
        ),
        (
            r#"{"descriptor_value": "v"}"#,
            r#"{"descriptor_value": "a-%HOSTNAME%"}"#,
            "rate_limits[0].actions[2].generic_key.descriptor_value: `%HOSTNAME%` is not \
             supported: a Wasm filter cannot see it",
        ),
        (
            r#"{"descriptor_value": "v"}"#,
            r#"{"descriptor_value": "%REQ(x)%", "default_value": "%REQ(y)%"}"#,
            "rate_limits[0].actions[2].generic_key.default_value: must not have commands: it is \
             used as it is, as in Envoy",
        ),
        (
            r#""query_parameter_name": "q""#,
            r#""query_parameter_name": """#,
            "rate_limits[1].actions[1].query_parameters.query_parameter_name: must not be empty",
        ),
        (
            r#""v4_prefix_mask_len": 24"#,
            r#""v4_prefix_mask_len": 33"#,
            "rate_limits[1].actions[2].masked_remote_address.v4_prefix_mask_len: 33 is out of \
             range (0 to 32)",
        ),
        (
            r#""v6_prefix_mask_len": 64"#,
            r#""v6_prefix_mask_len": 129"#,
            "rate_limits[1].actions[2].masked_remote_address.v6_prefix_mask_len: 129 is out of \
             range (0 to 128)",
        ),
        (
            r#""ROUTE_ENTRY""#,
            "3",
            "rate_limits[2].actions[2].metadata.source: not supported: a Wasm filter cannot see \
             CLUSTER_LOCALITY_ENTRY",
        ),
        (
            r#""ROUTE_ENTRY""#,
            r#""CLUSTER_LOCALITY_ENTRY""#,
            "rate_limits[2].actions[2].metadata.source: not supported: a Wasm filter cannot see \
             CLUSTER_LOCALITY_ENTRY",
        ),
        (
            r#""ROUTE_ENTRY""#,
            "4",
            "rate_limits[2].actions[2].metadata.source: unknown variant `4`, expected one of \
             `DYNAMIC`, `ROUTE_ENTRY`, `CLUSTER_ENTRY`, `CLUSTER_LOCALITY_ENTRY`",
        ),
        (
            r#""ROUTE_ENTRY""#,
            r#""ROUTE_ENTRIE""#,
            "rate_limits[2].actions[2].metadata.source: unknown variant `ROUTE_ENTRIE` (did you \
             mean `ROUTE_ENTRY`?), expected one of `DYNAMIC`, `ROUTE_ENTRY`, `CLUSTER_ENTRY`, \
             `CLUSTER_LOCALITY_ENTRY`",
        ),
        (
            r#""ROUTE_ENTRY""#,
            "true",
            "rate_limits[2].actions[2].metadata.source: invalid type: boolean `true`, expected a \
             name or its number",
        ),
        (
            r#"{"key": "a"}, {"key": "b"}"#,
            r#"{"key": "a"}, {"key": "b", "index": 0}"#,
            "rate_limits[2].actions[2].metadata.metadata_key.path[1]: expected exactly one of \
             `key`, `index`",
        ),
        (
            r#"{"key": "a"}, {"key": "b"}"#,
            r#"{"key": "a"}, {"index": -1}"#,
            "rate_limits[2].actions[2].metadata.metadata_key.path[1].index: invalid value: integer \
             `-1`, expected a non-negative integer",
        ),
        (
            r#"{"key": "ns", "path""#,
            r#"{"key": "n\u0000s", "path""#,
            "rate_limits[2].actions[2].metadata.metadata_key: a name must not be empty or \
             contain NUL",
        ),
        (
            r#"{"key": "a"}, {"key": "b"}"#,
            r#"{"key":"1"},{"key":"2"},{"key":"3"},{"key":"4"},{"key":"5"},{"key":"6"},{"key":"7"},
               {"key":"8"},{"key":"9"},{"key":"10"},{"key":"11"},{"key":"12"},{"key":"13"}"#,
            "rate_limits[2].actions[2].metadata.metadata_key: 17 parts are too many (maximum \
             16, including Envoy's own)",
        ),
    ]);
}

#[test]
fn of_a_matcher() {
    let headers = "rate_limits[2].actions[0].header_value_match.headers";
    let query = "rate_limits[2].actions[1].query_parameter_value_match.query_parameters";
    let at = |path: &str, message: &str| format!("{path}{message}");
    check(&[
        (
            r#""address_prefix": "10.0.0.0""#,
            r#""address_prefix": "10.0.0""#,
            "rate_limits[1].actions[3].remote_address_match.address_matcher.ranges[0]\
             .address_prefix: \"10.0.0\" is not an IP address",
        ),
        (
            r#""prefix_len": 8"#,
            r#""prefix_len": 33"#,
            "rate_limits[1].actions[3].remote_address_match.address_matcher.ranges[0]\
             .prefix_len: 33 is out of range (0 to 32)",
        ),
        (
            r#"[{"address_prefix": "10.0.0.0", "prefix_len": 8}]"#,
            "[]",
            "rate_limits[1].actions[3].remote_address_match.address_matcher.ranges: must not be \
             empty",
        ),
        (
            r#"{"name": "d", "#,
            r#"{"name": "", "#,
            &at(headers, "[3].name: \"\" is not a header name"),
        ),
        (
            r#""prefix_match": "x""#,
            r#""prefix_match": "x", "suffix_match": "x""#,
            &at(headers, "[4]: expected at most one of the tests of the header"),
        ),
        (
            r#""contains_match": "x""#,
            r#""contains_match": """#,
            &at(headers, "[6].contains_match: must not be empty"),
        ),
        (
            r#""exact": "x""#,
            r#""exact": "x", "prefix": "y""#,
            &at(
                headers,
                "[0].string_match: expected exactly one of `exact`, `prefix`, `suffix`, \
                 `contains`, `safe_regex`",
            ),
        ),
        (
            r#""exact": "x""#,
            r#""prefix": """#,
            &at(headers, "[0].string_match.prefix: must not be empty"),
        ),
        (
            r#""exact": "x""#,
            r#""custom": {}"#,
            &at(
                headers,
                "[0].string_match.custom: not supported: a Wasm filter cannot call Envoy's \
                 matcher extensions",
            ),
        ),
        (
            r#""start": "-1""#,
            r#""start": "low""#,
            &at(
                headers,
                "[2].range_match.start: invalid value: string \"low\", expected an integer",
            ),
        ),
        (
            r#""regex": "x+""#,
            r#""regex": """#,
            &at(headers, "[7].safe_regex_match.regex: must not be empty"),
        ),
        (
            r#""regex": "[0-9]+""#,
            r#""regex": "[0-9""#,
            &at(
                query,
                "[0].string_match.safe_regex.regex: not a regular expression: unmatched `[` (at byte 4)",
            ),
        ),
        (r#"{"name": "r", "#, r#"{"name": "", "#, &at(query, "[1].name: must not be empty")),
        (
            r#""present_match": false"#,
            r#""present_match": false, "invert_match": true"#,
            &at(
                query,
                "[1].invert_match: unknown field `invert_match`, expected one of `name`, \
                 `string_match`, `present_match`",
            ),
        ),
    ]);
}
