//! One row per mistake in an expression, each with its message and position; and the bounds.

use super::names::{FUNCTIONS, VARIABLES};
use crate::config::Config;
use crate::config::when::Expr;
use serde_json::json;

fn read(when: &str) -> Result<Config, String> {
    let json = json!({"domain": "d", "sidecar": {"cluster": "c"}, "rate_limits": [
        {"actions": [{"remote_address": {}}], "when": when}]});
    Config::from_envoy(json.to_string().as_bytes()).map_err(|error| {
        assert_eq!(error.path, "rate_limits[0].when", "for {when}");
        error.message
    })
}

fn check(table: &[(&str, &str)]) {
    for (when, message) in table {
        let error = read(when).expect_err(when);
        assert_eq!(error, *message, "for {when}");
    }
}

#[test]
fn what_is_not_an_expression_of_cel_is_refused() {
    check(&[
        ("", "must not be empty"),
        (
            "request.method ==",
            "not an expression of CEL: Syntax error: mismatched input '<EOF>' expecting expression \
             (at byte 17)",
        ),
        (
            "request.method = 'GET'",
            "not an expression of CEL: Syntax error: mismatched input '=' expecting <EOF> (at byte 15)",
        ),
        (
            "true &\n& false",
            "not an expression of CEL: unexpected single '&', expected '&&' (at byte 5)",
        ),
        (
            "request.method == 'GET",
            "not an expression of CEL: unterminated string literal (at byte 18)",
        ),
        (
            "request.path == 'a' \u{e9}",
            "not an expression of CEL: unexpected character (at byte 20)",
        ),
    ]);
}

#[test]
fn unknown_names_are_refused() {
    let variables = "expected one of `request.method`, `request.path`, `request.url_path`, \
        `request.query`, `request.host`, `request.scheme`, `request.headers`, `request.referer`, \
        `request.useragent`, `request.id`, `request.protocol`, `request.size`, `source.address`, \
        `source.port`, `destination.address`, `destination.port`, `connection.mtls`, \
        `connection.requested_server_name`, `connection.tls_version`, \
        `connection.subject_peer_certificate`, `connection.dns_san_peer_certificate`, \
        `connection.uri_san_peer_certificate`, `xds.route_name`, `xds.virtual_host_name`, \
        `xds.cluster_name`, `metadata.filter_metadata`, `jwt.claims`";
    let functions = "expected one of `has`, `size`, `int`, `double`, `startsWith`, `endsWith`, \
        `contains`, `matches`";
    let rows = [
        (
            "true && request.metod == 'GET'",
            format!(
                "unknown variable `request.metod` (did you mean `request.method`?), {variables} (at byte 15)"
            ),
        ),
        ("method == 'GET'", format!("unknown variable `method`, {variables} (at byte 0)")),
        (
            "jwt.claim.tier == 'gold'",
            format!(
                "unknown variable `jwt.claim` (did you mean `jwt.claims`?), {variables} (at byte 3)"
            ),
        ),
        (
            "metadata['ns']['key'] == 'a'",
            format!("unknown variable `metadata`, {variables} (at byte 0)"),
        ),
        (
            "request.path.startswith('/')",
            format!(
                "unknown function `startswith` (did you mean `startsWith`?), {functions} (at byte 23)"
            ),
        ),
        ("lower(request.path) == ''", format!("unknown function `lower`, {functions} (at byte 0)")),
        ("f(1, 2)", format!("unknown function `f`, {functions} (at byte 0)")),
        ("matches(request.path)", "expected the form x.matches(y) (at byte 0)".to_owned()),
        ("size(request.path, 1) > 1", "expected the form size(x) (at byte 0)".to_owned()),
    ];
    for (when, message) in rows {
        check(&[(when, &message)]);
    }
}

#[test]
fn values_of_a_wrong_type_are_refused() {
    check(&[
        ("request.method", "this is a string, expected a bool (at byte 7)"),
        ("1", "this is an int, expected a bool (at byte 0)"),
        ("request.method == 5", "a string is compared with an int (at byte 15)"),
        ("request.size < '5'", "an int is compared with a string (at byte 13)"),
        (
            "connection.mtls < true",
            "this is a bool, expected an int or a double or a string (at byte 10)",
        ),
        ("!request.method", "this is a string, expected a bool (at byte 8)"),
        ("request.path && true", "this is a string, expected a bool (at byte 7)"),
        (
            "request.method + 'x' == 'y'",
            "this is a string, expected an int or a double (at byte 7)",
        ),
        (
            "request.size + 1.5 > 2.0",
            "an int and a double are combined; use int(x) or double(x) (at byte 13)",
        ),
        ("1.5 % 2.0 > 1.0", "`%` is for ints (at byte 4)"),
        ("-request.method > 1", "this is a string, expected an int or a double (at byte 8)"),
        ("request.size.startsWith('1')", "this is an int, expected a string (at byte 7)"),
        (
            "size(request.size) > 1",
            "this is an int, expected a string or a list or a map (at byte 12)",
        ),
        ("request.method.x == 1", "this is a string, expected a map (at byte 7)"),
        ("'a' in request.method", "this is a string, expected a list or a map (at byte 14)"),
        ("[1]['a'] == 1", "this is a string, expected an int (at byte 4)"),
        (
            "[1] == [1]",
            "this is a list, expected null or a bool or an int or a double or a string (at byte 0)",
        ),
        ("request.method == null", "a string is compared with null (at byte 15)"),
    ]);
}

/// What would make the work depend on more than the length of a value, or needs memory.
#[test]
fn what_has_no_bounds_is_refused() {
    let macros = "macros such as `all`, `exists`, `filter` and `map` are not supported: a client may \
                  determine how often they repeat (at byte ";
    for (when, at) in [
        ("jwt.claims.groups.exists(g, g == 'a')", 24),
        ("[1, 2].all(x, x > 0)", 10),
        ("size(jwt.claims.groups.map(g, g)) > 1", 26),
        ("size(jwt.claims.groups.filter(g, true)) > 1", 29),
        ("[1].exists_one(x, true)", 14),
    ] {
        check(&[(when, &format!("{macros}{at})"))]);
    }
    let one_header =
        "name one header: request.headers['x-app'] or 'x-app' in request.headers (at byte ";
    check(&[
        ("size(request.headers) > 100", &format!("{one_header}12)")),
        ("has(request.headers)", &format!("{one_header}0)")),
        (
            "request.headers[request.path] == 'a'",
            "the name of a header must be a constant string (at byte 23)",
        ),
        ("request.headers['x app'] == 'a'", "\"x app\" is not a header name (at byte 16)"),
        (
            "request.path.matches(request.query)",
            "the expression of `matches` must be a constant string (at byte 28)",
        ),
        (
            "request.path.matches('(')",
            "not a regular expression: unmatched `(` (at byte 1) (at byte 21)",
        ),
        (
            "request.path.matches('a)(b')",
            "not a regular expression: unmatched `)` (at byte 1) (at byte 21)",
        ),
        ("[request.path] == 1", "lists and maps may contain only constants (at byte 8)"),
        ("{'a': 1, 'a': 2}['a'] == 1", "the map has this key twice (at byte 9)"),
        ("{1.5: 1}[1] == 1", "a key must be a string, an int or a bool (at byte 1)"),
        ("b'a' == b'a'", "bytes and unsigned numbers are not supported (at byte 0)"),
        ("1u == 1u", "bytes and unsigned numbers are not supported (at byte 0)"),
        ("a.B{} == 1", "messages are not supported (at byte 1)"),
    ]);
}

#[test]
fn length_depth_and_parts_are_bounded() {
    let length = |bytes: usize| format!("true // {}", "x".repeat(bytes - 8));
    assert!(read(&length(2048)).is_ok());
    assert_eq!(read(&length(2049)).unwrap_err(), "the expression has 2049 bytes (maximum 2048)");
    let nested = |depth: usize| format!("{}true{}", "!(".repeat(depth), ")".repeat(depth));
    assert!(read(&nested(31)).is_ok());
    let message = "the expression is nested too deep (maximum 32) (at byte 64)";
    assert_eq!(read(&nested(32)).unwrap_err(), message);
    // Here the parser gives up, which says no place.
    let message = "the expression is nested too deep (maximum 32)";
    assert_eq!(read(&nested(40)).unwrap_err(), message);
    let chain = |operators: usize| format!("{}1 > 0", "1+".repeat(operators - 1));
    assert!(read(&chain(256)).unwrap_err().starts_with("the expression is nested too deep"));
    let message = "the expression has 257 operators, dots and brackets (maximum 256)";
    assert_eq!(read(&chain(257)).unwrap_err(), message);
    // A name in a text is none of them.
    assert!(read(&format!("request.path == '{}'", ".".repeat(1_000))).is_ok());
    assert!(read(&format!("request.path in [{}'z']", "'a',".repeat(200))).is_ok());
    let parts = |tests: usize| vec!["request.size>1"; tests].join("||");
    assert!(read(&parts(64)).is_ok());
    let error = read(&parts(65)).unwrap_err();
    assert!(error.starts_with("the expression has too many parts (maximum 256)"), "{error}");
}

/// Each costs a host call, so only those that occur are read.
#[test]
fn facts_are_shared_with_actions_and_other_expressions() {
    let number = |config: &Config, index: usize| {
        let when = config.rate_limits[index].when.as_ref().unwrap();
        let Expr::Compare(_, parts) = &when.root else { panic!("a comparison") };
        let Expr::Variable(fact, _) = &parts[0] else { panic!("a variable") };
        fact.number
    };
    let entry = |when: &str| {
        json!({"when": when, "actions": [
            {"request_headers": {"header_name": ":path", "descriptor_key": "p"}}]})
    };
    let json = json!({"domain": "d", "sidecar": {"cluster": "c"}, "rate_limits": [
        entry("request.path == '/'"), entry("request.query == 'a'"),
        entry("request.headers[':PATH'] == '/'")]});
    let config = Config::from_envoy(json.to_string().as_bytes()).unwrap();
    assert_eq!([number(&config, 0), number(&config, 1), number(&config, 2)], [0, 0, 0]);
}

/// As those of matchers: together they would fill the memory of a worker.
#[test]
fn all_expressions_of_matches_together_are_bounded() {
    let entry = |number: usize| {
        json!({"actions": [{"remote_address": {}}],
            "when": format!("request.path.matches('{number}.{{900}}')")})
    };
    let read = |count: usize| {
        let json = json!({"domain": "d", "sidecar": {"cluster": "c"},
            "rate_limits": (0..count).map(entry).collect::<Vec<_>>()});
        Config::from_envoy(json.to_string().as_bytes()).map(drop)
    };
    assert_eq!(read(70), Ok(()));
    let error = read(90).unwrap_err().message;
    assert!(error.contains("all expressions compile to"), "{error}");
}

/// The page lists every variable and function, and its examples are entries.
#[test]
fn the_reference_is_true() {
    let page = include_str!("../../../../docs/reference/cel.md");
    for (name, _) in VARIABLES {
        assert!(page.contains(&format!("`{name}")), "{name} is not in docs/reference/cel.md");
    }
    for name in FUNCTIONS {
        assert!(page.contains(&format!("`{name}")), "{name} is not in docs/reference/cel.md");
    }
    let blocks = page.split("```json\n").skip(1).filter_map(|rest| rest.split_once("```"));
    let blocks: Vec<&str> = blocks.map(|(block, _)| block).collect();
    assert_eq!(blocks.len(), 1);
    for block in blocks {
        let json =
            format!(r#"{{"domain":"d","sidecar":{{"cluster":"c"}},"rate_limits":[{block}]}}"#);
        assert_eq!(Config::from_envoy(json.as_bytes()).err(), None, "{block}");
    }
    for when in [
        "has(jwt.claims.tier) && jwt.claims.tier != 'gold'",
        "int(jwt.claims.seats) % 10 == 0",
        "request.url_path.startsWith('/v1/') && request.headers['x-plan'] in ['free', 'trial'] \
         && request.headers['user-agent'].matches('^(curl|wget)/')",
    ] {
        assert!(read(when).is_ok(), "{when}");
    }
}
