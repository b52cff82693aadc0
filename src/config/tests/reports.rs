//! Options of reports.

use super::{FULL, read};
use crate::config::{Config, ConfigError, FilterState, Reports};

fn with(fields: &str) -> Result<Config, ConfigError> {
    read(&FULL.replacen('{', &format!("{{{fields},"), 1))
}

#[test]
fn reports_are_read_and_absent_by_default() {
    assert_eq!(read(FULL).unwrap().reports, Reports::default());
    let fields =
        r#""stat_prefix": "edge.v2_a-B", "shadow_header": "X-Shadow", "filter_state": "all""#;
    let expected = Reports {
        stat_prefix: "edge.v2_a-B".to_owned(),
        shadow_header: Some("x-shadow".to_owned()),
        filter_state: FilterState::All,
    };
    assert_eq!(with(fields).unwrap().reports, expected);
    let fields = r#""stat_prefix": "", "filter_state": "shadow""#;
    assert_eq!(with(fields).unwrap().reports, Reports::default());
    let longest = format!(r#""statPrefix": "{}""#, "x".repeat(64));
    assert_eq!(with(&longest).unwrap().reports.stat_prefix.len(), 64);
}

#[test]
fn mistakes_are_refused_with_their_place() {
    let long = "x".repeat(65);
    let prefix = |prefix: &str| {
        let expected = format!(
            "stat_prefix: {prefix:?} is not a part of a statistic's name; use letters, digits, `_` \
             and `-`, and single dots between them"
        );
        (format!("\"stat_prefix\": {prefix:?}"), expected)
    };
    let field = |field: &str, expected: &str| (field.to_owned(), expected.to_owned());
    let table = [
        prefix("a b"),
        prefix("."),
        prefix(".a"),
        prefix("a."),
        prefix("a..b"),
        prefix("é"),
        field(
            &format!(r#""stat_prefix": "{long}""#),
            "stat_prefix: 65 bytes are too many (maximum 64)",
        ),
        field(r#""stat_prefix": 1"#, "stat_prefix: invalid type: integer `1`, expected a string"),
        field(r#""shadow_header": """#, "shadow_header: must not be empty"),
        field(r#""shadow_header": "x y""#, "shadow_header: \"x y\" is not a header name"),
        field(r#""shadow_header": ":status""#, "shadow_header: \":status\" cannot be added"),
        field(
            r#""filter_state": "on""#,
            "filter_state: unknown variant `on`, expected `shadow` or `all`",
        ),
    ];
    for (fields, expected) in table {
        let message = with(&fields).unwrap_err().to_string();
        assert_eq!(message, format!("plugin configuration: {expected}"));
    }
}
