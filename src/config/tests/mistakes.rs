//! One row per mistake, each with its message and the path of its field.

use super::{FULL, read};

/// The part of FULL to replace, its replacement, and the message.
fn check(table: &[(&str, &str, &str)]) {
    for (part, replacement, message) in table {
        assert!(FULL.contains(part), "the row replaces nothing: {part}");
        let json = FULL.replacen(part, replacement, 1);
        let error = match read(&json) {
            Ok(_) => panic!("taken: {replacement}"),
            Err(error) => error.to_string(),
        };
        assert_eq!(error, format!("plugin configuration: {message}"), "for {replacement}");
    }
}

#[test]
fn of_the_document() {
    check(&[
        (r#""shop""#, "7", "domain: invalid type: integer `7`, expected a string"),
        (r#""shop""#, r#""""#, "domain: must not be empty"),
        (r#""domain": "shop","#, "", "missing field `domain`"),
        (
            r#""sidecar""#,
            r#""sidecars""#,
            "sidecars: unknown field `sidecars` (did you mean `sidecar`?), expected one of `domain`, `sidecar`, \
             `failure_mode`, `overload_mode`, `rate_limits`, `shadow`, `headers`, `denied`, `leases`, \
             `stage`, `request_type`, `filter_enabled`, `filter_enforced`, `failure_mode_deny_percent`, \
             `status_on_error`, `rate_limited_as_resource_exhausted`, `response_headers_to_add`, \
             `disable_x_envoy_ratelimited_header`, `stat_prefix`, `shadow_header`, `filter_state`, \
             `virtual_hosts`",
        ),
        (r#""tidegate""#, r#""""#, "sidecar.cluster: must not be empty"),
        (
            r#""timeout_ms": 25"#,
            r#""timeout_ms": 0"#,
            "sidecar.timeout_ms: 0 is out of range (1 to 60000)",
        ),
        (
            r#""timeout_ms": 25"#,
            r#""timeout_ms": -1"#,
            "sidecar.timeout_ms: invalid value: integer `-1`, expected a non-negative integer",
        ),
        (
            r#""timeout_ms": 25"#,
            r#""timeout_ms": "20ms""#,
            "sidecar.timeout_ms: invalid type: string \"20ms\", expected a non-negative \
             integer",
        ),
        (
            r#""failure_mode": "deny""#,
            r#""failure_mode": "open""#,
            "failure_mode: unknown variant `open`, expected `allow` or `deny`",
        ),
        (
            r#""overload_mode": "allow""#,
            r#""overload_mode": "open""#,
            "overload_mode: unknown variant `open`, expected `deny` or `allow`",
        ),
        (
            r#""shadow": false"#,
            r#""shadow": 1"#,
            "shadow: invalid type: integer `1`, expected a boolean",
        ),
        (
            r#""draft03""#,
            r#""x""#,
            "headers: unknown variant `x`, expected one of `ietf`, `draft03`, `off`",
        ),
        (
            r#"{"cluster": "tidegate", "timeout_ms": 25}"#,
            r#""tidegate""#,
            "sidecar: invalid type: string \"tidegate\", expected an object with `cluster`",
        ),
        (
            r#"{"status": 503, "body": "later\r\n\n"}"#,
            r#"[503, "later"]"#,
            "denied: invalid type: list, expected an object with `status` or `body`",
        ),
        (r#""status": 503"#, r#""status": 200"#, "denied.status: 200 is out of range (400 to 599)"),
        (
            r#""slots": 100"#,
            r#""slots": 65537"#,
            "leases.slots: 65537 is out of range (0 to 65536)",
        ),
        (
            r#""slots""#,
            r#""slot""#,
            "leases.slot: unknown field `slot` (did you mean `slots`?), expected `slots`",
        ),
        (
            r#""failure_mode": "deny","#,
            r#""failure_mode": "deny", "domain": "b","#,
            "duplicate key `domain` at line 4 column 36",
        ),
        (
            r#""failure_mode": "deny","#,
            r#""failure_mode_deny": true,"#,
            "failure_mode_deny: not supported: use `failure_mode`: \"allow\" or \"deny\"",
        ),
    ]);
}

/// A configuration of Envoy's own filter, field by field.
#[test]
fn of_envoys_own_fields() {
    let fields = [
        ("timeout", "\"0.02s\""),
        ("failure_mode_deny", "true"),
        ("rate_limit_service", "{}"),
        ("enable_x_ratelimit_headers", "1"),
        ("rate_limited_status", "{\"code\": 503}"),
    ];
    for (field, value) in fields {
        let json = FULL.replacen('{', &format!("{{\"{field}\": {value},"), 1);
        let error = read(&json).unwrap_err();
        assert_eq!(error.path, field);
        assert!(error.message.starts_with("not supported: "), "{error}");
    }
}

#[test]
fn of_an_entry() {
    check(&[
        (
            r#"{"actions": ["#,
            r#"[], {"actions": ["#,
            "rate_limits[0]: invalid type: list, expected an object with `actions`",
        ),
        (
            r#"{"actions": ["#,
            r#"{"actions": []}, {"actions": ["#,
            "rate_limits[0].actions: must not be empty",
        ),
        (
            r#"{"actions": ["#,
            r#"{"actions": {}}, {"actions": ["#,
            "rate_limits[0].actions: invalid type: object, expected a list",
        ),
        (
            r#"{"actions": ["#,
            r#"{"stage": 11, "actions": ["#,
            "rate_limits[0].stage: 11 is out of range (0 to 10)",
        ),
        (
            r#"{"actions": ["#,
            r#"{"disable_key": 7, "actions": ["#,
            "rate_limits[0].disable_key: invalid type: integer `7`, expected a string",
        ),
        (
            r#"{"actions": ["#,
            r#"{"limit": {}, "actions": ["#,
            "rate_limits[0].limit: expected exactly one of `dynamic_metadata`, `rate_limit`",
        ),
        (
            r#"{"actions": ["#,
            r#"{"limit": {"dynamic_metadata": {"key": "n"}}, "actions": ["#,
            "rate_limits[0].limit.dynamic_metadata.key: unknown field `key`, expected \
             `metadata_key`",
        ),
        (
            r#"{"actions": ["#,
            r#"{"limit": {"rate_limit": {"requests_per_unit": 5}}, "actions": ["#,
            "rate_limits[0].limit.rate_limit: missing field `unit`",
        ),
        (
            r#"{"actions": ["#,
            r#"{"limit": {"rate_limit": {"requests_per_unit": -5}}, "actions": ["#,
            "rate_limits[0].limit.rate_limit.requests_per_unit: invalid value: integer `-5`, \
             expected a non-negative integer",
        ),
        (
            r#"{"actions": ["#,
            r#"{"limit": {"rate_limit": {"unit": "HOURS"}}, "actions": ["#,
            "rate_limits[0].limit.rate_limit.unit: unknown variant `HOURS` (did you mean \
             `HOUR`?), expected one of `UNKNOWN`, `SECOND`, `MINUTE`, `HOUR`, `DAY`, `MONTH`, \
             `YEAR`",
        ),
        (
            r#"{"actions": ["#,
            r#"{"limit": {"rate_limit": {"unit": 0}}, "actions": ["#,
            "rate_limits[0].limit.rate_limit.unit: an override needs a unit",
        ),
        (
            r#"{"actions": ["#,
            r#"{"apply_on_stream_done": "yes", "actions": ["#,
            "rate_limits[0].apply_on_stream_done: invalid type: string \"yes\", expected a boolean",
        ),
        (
            r#"{"actions": ["#,
            r#"{"x_ratelimit_option": "ON", "actions": ["#,
            "rate_limits[0].x_ratelimit_option: unknown variant `ON`, expected one of \
             `UNSPECIFIED`, `OFF`, `DRAFT_VERSION_03`",
        ),
        (
            r#"{"actions": ["#,
            r#"{"x_ratelimit_option": false, "actions": ["#,
            "rate_limits[0].x_ratelimit_option: write \"OFF\" with quotes, as YAML reads OFF as a \
             boolean",
        ),
        (
            r#"{"actions": ["#,
            r#"{"x_ratelimit_option": 3, "actions": ["#,
            "rate_limits[0].x_ratelimit_option: 3 is out of range (0 to 2)",
        ),
        (
            r#"{"actions": ["#,
            r#"{"denied": {"limits": []}, "actions": ["#,
            "rate_limits[0].denied.limits: unknown field `limits`, expected one of `status`, \
             `body`, `format`",
        ),
        (
            r#"{"actions": ["#,
            r#"{"route": "x", "actions": ["#,
            if cfg!(feature = "cel") {
                "rate_limits[0].route: unknown field `route` (did you mean `routes`?), expected one \
                 of `actions`, `hits_addend`, `apply_on_stream_done`, `routes`, `route_metadata`, `shadow`, `stage`, \
                 `disable_key`, `limit`, `x_ratelimit_option`, `denied`, `when`"
            } else {
                "rate_limits[0].route: unknown field `route` (did you mean `routes`?), expected one \
                 of `actions`, `hits_addend`, `apply_on_stream_done`, `routes`, `route_metadata`, `shadow`, `stage`, \
                 `disable_key`, `limit`, `x_ratelimit_option`, `denied`"
            },
        ),
        (
            r#""routes": ["checkout", "cart"]"#,
            r#""routes": []"#,
            "rate_limits[1].routes: must not be empty; leave it out for all routes",
        ),
        (r#""cart""#, r#""""#, "rate_limits[1].routes[1]: must not be empty"),
        (
            r#""cart""#,
            "7",
            "rate_limits[1].routes[1]: invalid type: integer `7`, expected a string, or an object \
             with one test of a text",
        ),
        (
            r#""cart""#,
            r#"{"prefx": "cart"}"#,
            "rate_limits[1].routes[1].prefx: unknown field `prefx` (did you mean `prefix`?), \
             expected one of `exact`, `prefix`, `suffix`, `contains`, `safe_regex`, `ignore_case`",
        ),
        (
            r#""cart""#,
            r#"{"safe_regex": {"regex": ".{999}.{99}"}}"#,
            "rate_limits[1].routes[1].safe_regex.regex: the expression compiles to 1102 states (maximum 1024 states)",
        ),
        (r#""strict""#, r#""""#, "rate_limits[1].route_metadata.value: must not be empty"),
        (
            r#"[{"key": "tier"}]"#,
            "[]",
            "rate_limits[1].route_metadata.metadata_key.path: must not be empty",
        ),
        (
            r#"{"number": 3}"#,
            r#"{"number": 1000000001}"#,
            "rate_limits[1].hits_addend.number: 1000000001 is out of range (0 to 1000000000)",
        ),
        (
            r#"{"number": 3}"#,
            r#"{"number": 3, "header": "x"}"#,
            "rate_limits[1].hits_addend: expected exactly one of `number`, `format`, `header`, \
             `response_header`",
        ),
        (
            r#"{"number": 3}"#,
            "{}",
            "rate_limits[1].hits_addend: expected exactly one of `number`, `format`, `header`, \
             `response_header`",
        ),
        (
            r#"{"number": 3}"#,
            r#"{"header": "x cost"}"#,
            "rate_limits[1].hits_addend.header: \"x cost\" is not a header name",
        ),
        (
            "%REQ(X-Cost)%",
            "%BYTES_RECEIVED%",
            "rate_limits[2].hits_addend.format: `%BYTES_RECEIVED%` has no value when a request \
             arrives; only a cost with `apply_on_stream_done` may use it",
        ),
        (
            "%REQ(X-Cost)%",
            "%REQ(x cost)%",
            "rate_limits[2].hits_addend.format: \"x cost\" is not a header name",
        ),
        (
            "%REQ(X-Cost)%",
            "1%REQ(x-cost)%",
            "rate_limits[2].hits_addend.format: expected exactly one command, such as \
             \"%REQ(x-cost)%\"",
        ),
        (
            "%REQ(X-Cost)%",
            "5",
            "rate_limits[2].hits_addend.format: expected exactly one command, such as \
             \"%REQ(x-cost)%\"",
        ),
        (
            "%REQ(X-Cost)%",
            "",
            "rate_limits[2].hits_addend.format: expected exactly one command, such as \
             \"%REQ(x-cost)%\"",
        ),
    ]);
}

#[test]
fn of_a_cost_at_the_end() {
    check(&[
        (
            r#"{"number": 3}"#,
            r#"{"response_header": "x-cost"}"#,
            "rate_limits[1].hits_addend.response_header: has no value when a request arrives; set \
             `apply_on_stream_done`, or use it as `actual` beside an `estimate`",
        ),
        (
            r#""hits_addend": {"number": 3}"#,
            r#""apply_on_stream_done": true, "hits_addend": {"response_header": "x cost"}"#,
            "rate_limits[1].hits_addend.response_header: \"x cost\" is not a header name",
        ),
        (
            r#""hits_addend": {"number": 3}"#,
            r#""apply_on_stream_done": true, "hits_addend": {"format": "%RESP(a)%", "number": 1}"#,
            "rate_limits[1].hits_addend: expected exactly one of `number`, `format`, `header`, \
             `response_header`",
        ),
        (
            r#"{"number": 3}"#,
            r#"{"is_negative_hits": 1}"#,
            "rate_limits[1].hits_addend.is_negative_hits: invalid type: integer `1`, expected a \
             boolean",
        ),
        (
            r#"{"number": 3}"#,
            r#"{"is_negative_hits": true, "format": "%RESP(x)%"}"#,
            "rate_limits[1].hits_addend.format: `%RESP%` has no value when a request arrives; only \
             a cost with `apply_on_stream_done` may use it",
        ),
        (
            r#"{"number": 3}"#,
            r#"{"estimate": 0, "actual": {"response_header": "x"}}"#,
            "rate_limits[1].hits_addend.estimate: 0 is out of range (1 to 1000000000)",
        ),
        (
            r#"{"number": 3}"#,
            r#"{"estimate": 5}"#,
            "rate_limits[1].hits_addend: missing field `actual`",
        ),
        (
            r#"{"number": 3}"#,
            r#"{"actual": {"response_header": "x"}}"#,
            "rate_limits[1].hits_addend.actual: needs `estimate` beside it",
        ),
        (
            r#"{"number": 3}"#,
            r#"{"estimate": 5, "actual": {}}"#,
            "rate_limits[1].hits_addend.actual: expected exactly one of `number`, `format`, \
             `header`, `response_header`",
        ),
        (
            r#"{"number": 3}"#,
            r#"{"estimate": 5, "actual": {"estimate": 5}}"#,
            "rate_limits[1].hits_addend.actual.estimate: unknown field `estimate`, expected one of \
             `number`, `format`, `header`, `response_header`",
        ),
        (
            r#"{"number": 3}"#,
            r#"{"estimate": 5, "header": "x-cost", "actual": {"response_header": "x"}}"#,
            "rate_limits[1].hits_addend.header: belongs into `actual`, since there is an `estimate`",
        ),
        (
            r#""hits_addend": {"number": 3}"#,
            r#""apply_on_stream_done": true,
               "hits_addend": {"estimate": 5, "actual": {"response_header": "x"}}"#,
            "rate_limits[1].hits_addend.estimate: takes hits when the request arrives, which \
             `apply_on_stream_done` forbids; leave out one of them",
        ),
        (
            r#"{"number": 3}"#,
            r#"{"is_negative_hits": true, "estimate": 5, "actual": {"response_header": "x"}}"#,
            "rate_limits[1].hits_addend.estimate: is taken and cannot be refunded; leave out \
             `is_negative_hits`",
        ),
    ]);
}

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
