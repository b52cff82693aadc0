//! One row per mistake, each with its message and the path of its field. Here are those of the whole
//! document, and fields of Envoy's own filter.

mod actions;
mod entries;

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
