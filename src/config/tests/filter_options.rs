//! The options of Envoy's own filter, in its spelling.

use super::{FULL, read};
use crate::config::structured::tests::struct_of_json;
use crate::config::{
    AddedHeader, AppendAction, Config, ConfigError, Fraction, RequestType, Selection,
};

/// With these fields besides those of FULL.
fn with(fields: &str) -> Result<Config, ConfigError> {
    read(&FULL.replacen('{', &format!("{{{fields},"), 1))
}

fn refused(fields: &str) -> String {
    match with(fields) {
        Ok(_) => panic!("taken: {fields}"),
        Err(error) => error.to_string().replace("plugin configuration: ", ""),
    }
}

#[test]
fn absent_options_have_no_effect() {
    let config = read(FULL).unwrap();
    assert_eq!((config.selection, config.filter_enforced), (None, Fraction::ALL));
    assert_eq!((config.failure_mode_deny_percent, config.status_on_error), (None, 500));
    let denied = config.denied;
    assert!(!denied.is_resource_exhausted && denied.is_marked && denied.added.is_empty());
}

#[test]
fn shares_are_read_in_each_spelling_of_their_denominator() {
    let table = [
        (r#""numerator": 7"#, (7, 100)),
        (r#""numerator": 7, "denominator": "HUNDRED""#, (7, 100)),
        (r#""numerator": 7, "denominator": "TEN_THOUSAND""#, (7, 10_000)),
        (r#""numerator": 7, "denominator": "MILLION""#, (7, 1_000_000)),
        (r#""numerator": 7, "denominator": 0"#, (7, 100)),
        (r#""numerator": 7, "denominator": 1"#, (7, 10_000)),
        (r#""numerator": 7, "denominator": 2"#, (7, 1_000_000)),
        (r#""denominator": 2"#, (0, 1_000_000)),
    ];
    for (text, (numerator, denominator)) in table {
        let value = format!(r#"{{"default_value": {{{text}}}, "runtime_key": "a.b"}}"#);
        let share = Fraction { numerator, denominator };
        let enabled = with(&format!(r#""filter_enabled": {value}"#)).unwrap();
        let selection = Selection { request_type: RequestType::Both, enabled: share };
        assert_eq!((enabled.selection, enabled.filter_enforced), (Some(selection), Fraction::ALL));
        let enforced = with(&format!(r#""filter_enforced": {value}"#)).unwrap();
        assert_eq!((enforced.selection, enforced.filter_enforced), (None, share));
        let denies = with(&format!(r#""failure_mode_deny_percent": {value}"#)).unwrap();
        assert_eq!(denies.failure_mode_deny_percent, Some(share));
    }
}

#[test]
fn requests_are_internal_external_or_both() {
    let table = [
        ("both", RequestType::Both),
        ("", RequestType::Both),
        ("internal", RequestType::Internal),
        ("external", RequestType::External),
    ];
    for (text, expected) in table {
        let config = with(&format!(r#""request_type": "{text}""#)).unwrap();
        let found = config.selection.map(|selection| selection.request_type);
        assert_eq!(found.unwrap_or(RequestType::Both), expected, "{text:?}");
    }
}

#[test]
fn replies_are_as_configured() {
    let config = with(
        r#""status_on_error": {"code": 503}, "rate_limited_as_resource_exhausted": true,
        "disable_x_envoy_ratelimited_header": true,
        "response_headers_to_add": [
            {"header": {"key": "X-Plan", "value": "100%% of it"}},
            {"header": {"key": "a", "value": "1"}, "append_action": "ADD_IF_ABSENT"},
            {"header": {"key": "b", "value": "2"}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"},
            {"header": {"key": "c", "value": "3"}, "append_action": "OVERWRITE_IF_EXISTS"},
            {"header": {"key": "d", "value": "4"}, "append_action": "APPEND_IF_EXISTS_OR_ADD"},
            {"header": {"key": "left-out"}},
            {"header": {"key": "kept"}, "keep_empty_value": true}
        ]"#,
    )
    .unwrap();
    assert_eq!(config.status_on_error, 503);
    assert!(config.denied.is_resource_exhausted && !config.denied.is_marked);
    use AppendAction::{AddIfAbsent, AppendOrAdd, OverwriteIfExists, OverwriteOrAdd};
    let expected = [
        ("x-plan", "100% of it", AppendOrAdd),
        ("a", "1", AddIfAbsent),
        ("b", "2", OverwriteOrAdd),
        ("c", "3", OverwriteIfExists),
        ("d", "4", AppendOrAdd),
        ("kept", "", AppendOrAdd),
    ];
    let header = |(name, value, action): (&str, &str, _)| AddedHeader {
        name: name.to_owned(),
        value: value.to_owned(),
        action,
    };
    assert_eq!(config.denied.added, expected.map(header));
}

/// Several filters may share one list of entries, as several of Envoy's own do.
#[test]
fn a_filter_has_the_entries_of_its_stage() {
    let entries = |stage| {
        let json = format!(
            r#"{{"domain": "d", "sidecar": {{"cluster": "c"}}, "stage": {stage}, "rate_limits": [
                {{"actions": [{{"remote_address": {{}}}}]}},
                {{"stage": 2, "actions": [{{"source_cluster": {{}}}}, {{"remote_address": {{}}}}]}},
                {{"stage": 0, "disable_key": "k", "actions": [{{"source_cluster": {{}}}}]}}
            ]}}"#
        );
        let config = read(&json).map_err(|error| error.to_string())?;
        Ok(config.rate_limits.iter().map(|limit| limit.actions.len()).collect::<Vec<_>>())
    };
    assert_eq!(entries(0), Ok(vec![1, 1]));
    assert_eq!(entries(2), Ok(vec![2]));
    let message = "plugin configuration: rate_limits: no entry has the stage 3".to_owned();
    assert_eq!(entries(3), Err(message));
}

#[test]
fn the_deprecated_action_is_the_one_that_replaces_it() {
    let with_action = |action: &str| {
        let replaced = format!(r#"{{{action}}}"#);
        read(&FULL.replacen(r#"{"remote_address": {}}"#, &replaced, 1)).unwrap().rate_limits
    };
    let of = r#""descriptor_key": "user", "default_value": "none",
        "metadata_key": {"key": "ns", "path": [{"key": "a"}]}"#;
    let deprecated = with_action(&format!(r#""dynamic_metadata": {{{of}}}"#));
    assert_eq!(deprecated, with_action(&format!(r#""metadata": {{{of}, "source": "DYNAMIC"}}"#)));
    assert_eq!(deprecated, with_action(&format!(r#""metadata": {{{of}}}"#)));
}

/// As Kubernetes tools write it.
#[test]
fn fields_may_be_in_camel_case() {
    let camel = |name: &str| {
        let mut is_next_upper = false;
        name.chars().fold(String::new(), |mut camel, char| {
            match (char, is_next_upper) {
                ('_', _) => {}
                (char, true) => camel.push(char.to_ascii_uppercase()),
                (char, false) => camel.push(char),
            }
            is_next_upper = char == '_';
            camel
        })
    };
    // Only names have quotes and a colon after them.
    let mut text = String::new();
    for part in FULL.split_inclusive("\":") {
        let (before, name) = part.trim_end_matches("\":").rsplit_once('"').unwrap_or((part, ""));
        text += before;
        if part.ends_with("\":") {
            text += &format!("\"{}\":", camel(name));
        }
    }
    assert!(text.contains("\"rateLimits\"") && text.contains("\"v4PrefixMaskLen\""), "{text}");
    assert_eq!(read(&text), read(FULL));
    let twice = FULL.replacen('{', r#"{"rateLimits": [],"#, 1);
    assert!(read(&twice).unwrap_err().message.contains("duplicate key `rate_limits`"));
    // In a Struct they are two keys of a map, whose order means nothing.
    let both: serde_json::Value = serde_json::from_str(&twice).unwrap();
    let error = Config::from_envoy(&struct_of_json(&both)).unwrap_err();
    assert_eq!((error.path.as_str(), error.message.as_str()), ("", "duplicate key `rate_limits`"));
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(Config::from_envoy(&struct_of_json(&value)), read(FULL));
}

#[test]
fn a_misspelt_name_gets_a_suggestion() {
    for (slip, meant) in [
        ("hedaers", Some("headers")),
        ("statge", Some("stage")),
        ("lease", Some("leases")),
        ("filter_enforce", Some("filter_enforced")),
        ("anything", None),
    ] {
        let error = refused(&format!(r#""{slip}": 0"#));
        let hint = meant.map(|meant| format!(" (did you mean `{meant}`?)")).unwrap_or_default();
        let expected = format!("{slip}: unknown field `{slip}`{hint}, expected one of ");
        assert!(error.starts_with(&expected), "{error}");
    }
    let long = "x".repeat(65);
    assert!(!refused(&format!(r#""{long}": 0"#)).contains("did you mean"));
}

#[test]
fn mistakes_are_refused_with_their_place() {
    let added = |item: &str| refused(&format!(r#""response_headers_to_add": [{item}]"#));
    let many = [r#"{"header": {"key": "a", "value": "b"}}"#; 11].join(",");
    let long = "x".repeat(4_096);
    let table = [
        (
            refused(r#""filter_enabled": 50"#),
            "filter_enabled: invalid type: integer `50`, expected an object with `default_value`",
        ),
        (refused(r#""filter_enforced": {}"#), "filter_enforced: missing field `default_value`"),
        (
            refused(r#""filter_enforced": {"default_value": {"denominator": "TEN"}}"#),
            "filter_enforced.default_value.denominator: unknown variant `TEN`, expected one of \
             `HUNDRED`, `TEN_THOUSAND`, `MILLION`",
        ),
        (
            refused(r#""filter_enforced": {"default_value": {"denominator": 3}}"#),
            "filter_enforced.default_value.denominator: 3 is out of range (0 to 2)",
        ),
        (
            refused(r#""filter_enabled": {"default_value": {}, "runtime_key": 3}"#),
            "filter_enabled.runtime_key: invalid type: integer `3`, expected a string",
        ),
        (
            refused(r#""request_type": "all""#),
            "request_type: unknown variant `all`, expected one of `both`, `internal`, `external`, \
             ``",
        ),
        (
            refused(r#""request_type": "x""#),
            "request_type: unknown variant `x`, expected one of `both`, `internal`, `external`, ``",
        ),
        (
            refused(r#""status_on_error": {"code": 200}"#),
            "status_on_error.code: 200 is out of range (400 to 599)",
        ),
        (refused(r#""status_on_error": {}"#), "status_on_error: missing field `code`"),
        (added(&many), "response_headers_to_add: 11 are too many (maximum 10)"),
        (added("{}"), "response_headers_to_add[0]: missing field `header`"),
        (
            added(r#"{"header": {"key": "a b", "value": "c"}}"#),
            "response_headers_to_add[0].header.key: \"a b\" is not a header name",
        ),
        (
            added(r#"{"header": {"key": ":status", "value": "200"}}"#),
            "response_headers_to_add[0].header.key: \":status\" cannot be added",
        ),
        (
            added(r#"{"header": {"key": "a", "value": "%PROTOCOL%"}}"#),
            "response_headers_to_add[0].header.value: not supported: a Wasm filter cannot format \
             it; only plain values are added",
        ),
        (
            added(r#"{"header": {"key": "a", "value": "b\r\nc: d"}}"#),
            "response_headers_to_add[0].header.value: a value must not contain line ends or NUL",
        ),
        (
            added(&format!(r#"{{"header": {{"key": "a", "value": "{long}"}}}}"#)),
            "response_headers_to_add: 4097 bytes of names and values (maximum 4096)",
        ),
        (
            added(r#"{"header": {"key": "a", "raw_value": "b"}}"#),
            "response_headers_to_add[0].header.raw_value: not supported: use `value`",
        ),
        (
            added(r#"{"header": {"key": "a", "value": "b"}, "append": true}"#),
            "response_headers_to_add[0].append: not supported: it is deprecated in Envoy; use \
             `append_action`",
        ),
        (
            added(r#"{"header": {"key": "a"}, "append_action": "REPLACE"}"#),
            "response_headers_to_add[0].append_action: unknown variant `REPLACE`, expected one of \
             `APPEND_IF_EXISTS_OR_ADD`, `ADD_IF_ABSENT`, `OVERWRITE_IF_EXISTS_OR_ADD`, \
             `OVERWRITE_IF_EXISTS`",
        ),
    ];
    for (error, expected) in table {
        assert_eq!(error, expected);
    }
}
