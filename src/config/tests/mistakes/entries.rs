//! Mistakes in an entry of `rate_limits`, besides its actions.

use super::check;

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
