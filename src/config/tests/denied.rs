//! The replies to denied requests: of the filter, of its entries, and of limits by name.

use super::super::*;
use super::read;
use std::rc::Rc;

/// With this `denied` and this one of its only entry, if any.
fn with(denied: &str, of_entry: &str) -> Result<Config, ConfigError> {
    let entry = match of_entry {
        "" => String::new(),
        of_entry => format!(r#""denied": {of_entry},"#),
    };
    read(&format!(
        r#"{{"domain": "d", "sidecar": {{"cluster": "c"}}, "denied": {denied},
            "rate_limits": [{{{entry} "actions": [{{"remote_address": {{}}}}]}}]}}"#
    ))
}

fn text(status: u32, text: &str) -> ReplyContent {
    ReplyContent { status, text: text.to_owned(), formats: None }
}

fn in_formats(
    content: ReplyContent,
    choice: FormatChoice,
    bodies: [Option<&str>; 2],
) -> ReplyContent {
    let [json, problem] = bodies.map(|body| body.map(Rc::from));
    ReplyContent { formats: Some(Box::new(Formats { choice, json, problem })), ..content }
}

const DEFAULT: &str = "rate limit exceeded";

#[test]
fn bodies_are_those_of_the_format() {
    use FormatChoice::{Accept, Json, Problem};
    let default = || text(429, DEFAULT);
    let table = [
        ("{}", default()),
        (r#"{"format": "text"}"#, default()),
        (r#"{"body": "b\r\n", "status": 400}"#, text(400, "b")),
        (r#"{"body": {"text": "b\n"}}"#, text(429, "b")),
        (r#"{"body": {}}"#, default()),
        (r#"{"format": "json"}"#, in_formats(default(), Json, [None; 2])),
        (r#"{"format": "problem"}"#, in_formats(default(), Problem, [None; 2])),
        (r#"{"format": "accept"}"#, in_formats(default(), Accept, [None; 2])),
        // A text is the body of the only format, or else plain text.
        (
            r#"{"format": "json", "body": "[1]\n"}"#,
            in_formats(default(), Json, [Some("[1]"), None]),
        ),
        (
            r#"{"format": "problem", "body": " {}"}"#,
            in_formats(default(), Problem, [None, Some(" {}")]),
        ),
        (r#"{"format": "accept", "body": "b"}"#, in_formats(text(429, "b"), Accept, [None; 2])),
        (
            r#"{"format": "json", "body": {"json": "{\"a\": 1.5}", "text": "b"}}"#,
            in_formats(text(429, "b"), Json, [Some(r#"{"a": 1.5}"#), None]),
        ),
        // Bodies in several formats are for a choice.
        (r#"{"body": {"json": "1"}}"#, in_formats(default(), Accept, [Some("1"), None])),
        (
            r#"{"body": {"text": "b", "json": "1", "problem": "{}"}}"#,
            in_formats(text(429, "b"), Accept, [Some("1"), Some("{}")]),
        ),
    ];
    for (denied, expected) in table {
        let config = with(denied, "").unwrap();
        assert_eq!(config.denied.content, expected, "{denied}");
        assert!(!config.denied.has_rules && config.entry_options.is_empty());
    }
}

/// The options of an entry, by the number that its descriptors have.
fn options_of(config: &Config, entry: usize) -> EntryOptions {
    match config.entries().nth(entry).unwrap().actions[0] {
        Action::Origin(number) => config.entry_options[usize::from(number)].clone(),
        _ => EntryOptions::default(),
    }
}

/// Numbers were indexes into the filter's own list, so entries of virtual hosts had none.
#[test]
fn entries_of_virtual_hosts_and_routes_have_options() {
    let entry = |options: &str| {
        format!(r#"{{{options} "actions": [{{"generic_key": {{"descriptor_value": "v"}}}}]}}"#)
    };
    let denied = |status: u32| format!(r#""denied": {{"status": {status}}},"#);
    let config = read(&format!(
        r#"{{"domain": "d", "sidecar": {{"cluster": "c"}}, "virtual_hosts": [{{"name": "h",
            "rate_limits": [{}, {}], "routes": [{{"name": "r", "rate_limits": [{}, {}]}}]}}]}}"#,
        entry(&denied(431)),
        entry(""),
        entry(&denied(432)),
        entry(&denied(431)),
    ))
    .unwrap();
    let status = |entry| options_of(&config, entry).denied.map(|content| content.status);
    assert_eq!([0, 1, 2, 3].map(status), [Some(431), None, Some(432), Some(431)]);
    // Equal options have one number.
    assert_eq!((config.entry_options.len(), config.denied.has_rules), (3, true));
}

#[test]
fn a_rule_has_what_it_leaves_out_from_the_filter() {
    use FormatChoice::{Accept, Json};
    let general = r#"{"status": 430, "body": {"text": "all", "json": "1"}}"#;
    let all = |status, body| in_formats(text(status, body), Accept, [Some("1"), None]);
    let table = [
        (r#"{"status": 431}"#, all(431, "all")),
        ("{}", all(430, "all")),
        (r#"{"format": "text"}"#, text(430, "all")),
        (r#"{"format": "json"}"#, in_formats(text(430, "all"), Json, [Some("1"), None])),
        // Its body takes the place of all bodies.
        (r#"{"body": "own"}"#, in_formats(text(430, "own"), Accept, [None; 2])),
        (r#"{"body": {"json": "2"}}"#, in_formats(text(430, "all"), Accept, [Some("2"), None])),
        (
            r#"{"format": "json", "body": "2"}"#,
            in_formats(text(430, "all"), Json, [Some("2"), None]),
        ),
    ];
    for (rule, expected) in table {
        let config = with(general, rule).unwrap();
        let options = options_of(&config, 0);
        assert_eq!(options.denied, Some(Box::new(expected.clone())), "{rule}");
        assert!(config.denied.has_rules);
        assert_eq!(config.rate_limits[0].actions[0], Action::Origin(0));
        let limit = rule.replacen('{', r#"{"name": {"suffix": "n"}, "#, 1).replace(", }", "}");
        let limits = general.replacen('{', &format!(r#"{{"limits": [{limit}], "#), 1);
        let config = with(&limits, "").unwrap();
        let [(matcher, content)] = config.denied.by_limit.as_slice() else { panic!("{limits}") };
        assert_eq!((matcher.matches(b"in"), content), (true, &expected), "{rule}");
        assert!(config.denied.has_rules && config.entry_options.is_empty());
    }
}

#[test]
fn the_wait_may_grow_by_a_share() {
    let of = |share: &str| {
        with(&format!(r#"{{"retry_after_jitter": {share}}}"#), "")
            .unwrap()
            .denied
            .retry_after_jitter
    };
    let fraction = |numerator, denominator| Some(Fraction { numerator, denominator });
    assert_eq!(of(r#"{"numerator": 20}"#), fraction(20, 100));
    assert_eq!(of(r#"{"numerator": 20, "denominator": "TEN_THOUSAND"}"#), fraction(20, 10_000));
    assert_eq!(of(r#"{"numerator": 100}"#), fraction(100, 100));
    assert_eq!((of("{}"), of("null")), (None, None));
}

#[test]
fn entries_say_which_headers_show_their_limits() {
    let of = |option: &str, headers: &str| {
        let config = read(&format!(
            r#"{{"domain": "d", "sidecar": {{"cluster": "c"}}, "headers": "{headers}", "rate_limits": [
                {{"actions": [{{"remote_address": {{}}}}]}},
                {{"x_ratelimit_option": {option}, "actions": [{{"remote_address": {{}}}}]}}]}}"#
        ))
        .unwrap();
        let [first, second] = [0, 1].map(|entry| options_of(&config, entry).x_ratelimit_option);
        assert_eq!(first, XRateLimitOption::Unspecified);
        let is_numbered = usize::from(!config.entry_options.is_empty());
        assert_eq!(config.rate_limits[0].actions.len(), 1 + is_numbered);
        (second, config.headers, config.headers_by_default)
    };
    use HeaderStyle::{ByEntry, Draft03, Ietf, Off};
    let unspecified = (XRateLimitOption::Unspecified, Ietf, Ietf);
    assert_eq!([of("\"UNSPECIFIED\"", "ietf"), of("0", "ietf")], [unspecified; 2]);
    let off = (XRateLimitOption::Off, ByEntry, Draft03);
    assert_eq!([of("\"OFF\"", "draft03"), of("1", "draft03")], [off; 2]);
    let draft = (XRateLimitOption::DraftVersion03, ByEntry, Off);
    assert_eq!([of("\"DRAFT_VERSION_03\"", "off"), of("2", "off")], [draft; 2]);
}

#[test]
fn mistakes_are_refused_with_their_place() {
    let long = format!("\\\"{}\\\"", "x".repeat(4_095));
    let many = [r#"{"name": {"exact": "a"}}"#; 129].join(",");
    let name = "x".repeat(65);
    let table = [
        (
            r#"{"format": "xml"}"#,
            "format: unknown variant `xml`, expected one of `text`, `json`, `problem`, `accept`",
        ),
        (r#"{"body": 7}"#, "body: invalid type: integer `7`, expected a string"),
        (
            r#"{"body": {"html": "a"}}"#,
            "body.html: unknown field `html`, expected one of `text`, `json`, `problem`",
        ),
        (r#"{"body": {"text": 7}}"#, "body.text: invalid type: integer `7`, expected a string"),
        (
            r#"{"format": "json", "body": "late"}"#,
            "body: not JSON: expected value at line 1 column 1",
        ),
        (
            r#"{"body": {"json": "{\"a\": }"}}"#,
            "body.json: not JSON: expected value at line 1 column 7",
        ),
        (
            r#"{"body": {"json": "{\"a\":1,\"a\":2}"}}"#,
            "body.json: not JSON: duplicate key `a` at line 1 column 10",
        ),
        (r#"{"body": {"problem": "[]"}}"#, "body.problem: must be a JSON object"),
        (
            &format!(r#"{{"body": {{"json": "{long}"}}}}"#),
            "body.json: 4097 bytes are too many (maximum 4096)",
        ),
        (
            r#"{"format": "text", "body": {"json": "1"}}"#,
            "body.json: is never sent with this `format`",
        ),
        (
            r#"{"format": "json", "body": {"problem": "{}"}}"#,
            "body.problem: is never sent with this `format`",
        ),
        (
            r#"{"retry_after_jitter": 20}"#,
            "retry_after_jitter: invalid type: integer `20`, expected an object with `numerator`",
        ),
        (
            r#"{"retry_after_jitter": {"numerator": 101}}"#,
            "retry_after_jitter: 101 of 100 is more than the wait",
        ),
        (r#"{"limits": [{"status": 430}]}"#, "limits[0]: missing field `name`"),
        (
            r#"{"limits": [{"name": {"exact": "a"}, "status": 600}]}"#,
            "limits[0].status: 600 is out of range (400 to 599)",
        ),
        (
            r#"{"limits": [{"name": "a"}]}"#,
            "limits[0].name: invalid type: string \"a\", expected an object with one test of a text",
        ),
        (
            &format!(r#"{{"limits": [{{"name": {{"exact": "{name}"}}}}]}}"#),
            "limits[0].name.exact: 65 bytes, but names are cut at 64; use `prefix`",
        ),
        (&format!(r#"{{"limits": [{many}]}}"#), "limits: 129 are too many (maximum 128)"),
        (
            r#"{"limit": []}"#,
            "limit: unknown field `limit` (did you mean `limits`?), expected one of `status`, `body`, `format`, `retry_after_jitter`, `limits`",
        ),
    ];
    for (denied, expected) in table {
        let error = with(denied, "").map(drop).unwrap_err().to_string();
        assert_eq!(error, format!("plugin configuration: denied.{expected}"));
    }
}
