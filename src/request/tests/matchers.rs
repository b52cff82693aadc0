//! Matchers of headers and of query parameters.

use super::*;

/// Whether the matcher of header `h` matches.
fn check_header(matcher: Value, value: Option<&[u8]>, expected: bool) {
    let mut matcher = matcher;
    matcher["name"] = json!("H");
    let known: Vec<(&str, &[u8])> = value.map(|value| ("h", value)).into_iter().collect();
    for expect_match in [true, false] {
        let action = json!({"header_value_match": {
            "descriptor_value": "v", "headers": [matcher], "expect_match": expect_match}});
        let applies = expected == expect_match;
        check(&action, &known, Some("g=1,header_match=v").filter(|_| applies));
    }
}

#[test]
fn matchers_of_headers() {
    check_header(json!({}), Some(b""), true);
    check_header(json!({}), None, false);
    check_header(json!({"present_match": true}), Some(b"x"), true);
    check_header(json!({"present_match": true}), None, false);
    check_header(json!({"present_match": false}), Some(b"x"), false);
    check_header(json!({"present_match": false}), None, true);
    check_header(json!({"present_match": true, "invert_match": true}), None, true);
    check_header(json!({"string_match": {"exact": "Ab"}}), Some(b"Ab"), true);
    check_header(json!({"string_match": {"exact": "Ab"}}), Some(b"ab"), false);
    check_header(json!({"string_match": {"exact": "Ab", "ignore_case": true}}), Some(b"aB"), true);
    check_header(json!({"string_match": {"prefix": "a"}}), Some(b"ab"), true);
    check_header(json!({"string_match": {"suffix": "b"}}), Some(b"ab"), true);
    check_header(json!({"string_match": {"contains": "b"}}), Some(b"abc"), true);
    check_header(json!({"string_match": {"safe_regex": {"regex": "a+"}}}), Some(b"aa"), true);
    check_header(json!({"string_match": {"safe_regex": {"regex": "a+"}}}), Some(b"aab"), false);
    check_header(json!({"exact_match": "x"}), Some(b"x"), true);
    check_header(json!({"exact_match": ""}), Some(b"x"), true);
    check_header(json!({"exact_match": ""}), None, false);
    check_header(json!({"prefix_match": "x"}), Some(b"xy"), true);
    check_header(json!({"suffix_match": "x"}), Some(b"xy"), false);
    check_header(json!({"contains_match": "x"}), Some(b"axb"), true);
    check_header(json!({"safe_regex_match": {"regex": "[xy]"}}), Some(b"y"), true);
    let range = |range: Value| json!({"range_match": range});
    check_header(range(json!({"start": -5, "end": 5})), Some(b"-5"), true);
    check_header(range(json!({"start": "-5", "end": "5"})), Some(b" 4 "), true);
    check_header(range(json!({"end": 5})), Some(b"5"), false);
    check_header(range(json!({"end": 5})), Some(b"1.5"), false);
    check_header(range(json!({"end": 5})), Some(b"\xff"), false);
    // A missing header matches nothing, inverted or not, unless it is treated as empty.
    let exact = |rest: Value| {
        let mut matcher = json!({"string_match": {"exact": "x"}});
        matcher.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        matcher
    };
    check_header(exact(json!({})), None, false);
    check_header(exact(json!({"invert_match": true})), None, false);
    check_header(exact(json!({"invert_match": true})), Some(b"y"), true);
    let empty = json!({"invert_match": true, "treat_missing_header_as_empty": true});
    check_header(exact(empty), None, true);
}

#[test]
fn all_matchers_of_an_action_must_match() {
    let action = json!({"header_value_match": {"descriptor_value": "v", "headers": [
        {"name": "a", "present_match": true}, {"name": "b", "present_match": true}]}});
    check(&action, &[("a", b""), ("b", b"")], Some("g=1,header_match=v"));
    check(&action, &[("a", b"")], None);
}

#[test]
fn matchers_of_query_parameters() {
    let action = |matcher: Value, expect_match: bool| {
        json!({"query_parameter_value_match": {
            "descriptor_value": "v", "query_parameters": [matcher], "expect_match": expect_match}})
    };
    let exact = json!({"name": "q", "string_match": {"exact": "a"}});
    let table: [(Value, &[u8], bool); 7] = [
        (exact.clone(), b"/?q=%61", true),
        (exact.clone(), b"/?q=b&q=a", false),
        (exact, b"/", false),
        (json!({"name": "q"}), b"/?q", true),
        (json!({"name": "q", "present_match": true}), b"/?p", false),
        (json!({"name": "q", "present_match": false}), b"/?p", true),
        (json!({"name": "q", "present_match": false}), b"/?q", false),
    ];
    for (matcher, path, matches) in table {
        for expect_match in [true, false] {
            let expected = Some("g=1,query_match=v").filter(|_| matches == expect_match);
            check(&action(matcher.clone(), expect_match), &[(":path", path)], expected);
        }
    }
}
