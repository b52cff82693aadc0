//! Statistics: those of valid files, and one case per error.

use super::*;
use crate::Statistic;
use std::sync::Arc;

/// A file with these statistics.
fn with_statistics(statistics: &str) -> String {
    format!("domain: d\nstatistics: {statistics}\n")
}

#[test]
fn are_read_with_their_domain() {
    let one = "domain: shop\nstatistics:\n- { name: app-calls, by: [app] }\n- { name: 7, by: [app, 1] }\n";
    let two = "domain: bank\nstatistics: [{ name: users, by: [app], distinct: user }]\n";
    let files = [("a.yaml", one), ("b.yaml", two)];
    let (rules, warnings) = load_files(&files, SameDomain::Refuse).unwrap();
    assert_eq!(warnings, [""; 0]);
    let statistic = |name: &str, domain: &str, by: &[&str], distinct: Option<&str>| {
        Arc::new(Statistic {
            name: name.to_owned(),
            domain: domain.into(),
            by: by.iter().map(|key| (*key).to_owned()).collect(),
            distinct: distinct.map(str::to_owned),
        })
    };
    let expected = [
        statistic("app-calls", "shop", &["app"], None),
        statistic("7", "shop", &["app", "1"], None),
        statistic("users", "bank", &["app"], Some("user")),
    ];
    assert_eq!(rules.statistics(), expected);
    assert_eq!(super::rules("domain: d\nstatistics:\n").statistics(), []);
}

#[test]
fn count_descriptors_with_all_their_keys() {
    let rules = rules(&with_statistics("[{ name: s, by: [app, interface], distinct: user }]"));
    let statistic = &rules.statistics()[0];
    let values = |words: &[(&str, &str)]| {
        let entries = entries(words);
        let found = statistic.values(&entries.iter().map(|entry| (&*entry.key, &*entry.value)));
        found.map(|(by, of)| (by.join("|"), of.map(str::to_owned)))
    };
    let found = Some(("web|pay".to_owned(), Some("u1".to_owned())));
    assert_eq!(values(&[("app", "web"), ("interface", "pay"), ("user", "u1")]), found);
    // In any order, among others, and by the first of equal keys.
    let words = [("user", "u1"), ("x", ""), ("interface", "pay"), ("user", "u2"), ("app", "web")];
    assert_eq!(values(&words), found);
    assert_eq!(values(&[("app", "web"), ("interface", "pay")]), None);
    assert_eq!(values(&[("app", "web"), ("user", "u1")]), None);
    assert_eq!(values(&[]), None);
}

#[test]
fn each_mistake_has_its_place() {
    let long = "a".repeat(64);
    let name = format!("[{{name: {long}, by: [k]}}]");
    let is_long = format!(
        "2:21: `name`: \"{long}\" is no name of a statistic; expected up to 63 of a-z, 0-9 and -"
    );
    check_error(&with_statistics(&name), &is_long);
    check_each_error(
        with_statistics,
        &[
            ("{name: s}", "2:13: `statistics`: expected a list, found a map"),
            ("[s]", "2:14: expected a statistic, found \"s\""),
            ("[{by: [k]}]", "2:15: `name` is required and must not be empty"),
            ("[{name: '', by: [k]}]", "2:21: `name` is required and must not be empty"),
            (
                "[{name: App, by: [k]}]",
                "2:21: `name`: \"App\" is no name of a statistic; expected up to 63 of a-z, 0-9 and -",
            ),
            ("[{name: s}]", "2:15: `by` is required and must have at least one key"),
            ("[{name: s, by: []}]", "2:28: `by` is required and must have at least one key"),
            ("[{name: s, by: k}]", "2:28: `by`: expected a list, found \"k\""),
            ("[{name: s, by: [k, [l]]}]", "2:32: `by`: expected a string, found a list"),
            ("[{name: s, by: ['']}]", "2:29: `by`: a key must not be empty"),
            ("[{name: s, by: [k, k]}]", "2:32: `by`: \"k\" is there twice"),
            ("[{name: s, by: [a, b, c, d, e]}]", "2:41: `by`: more than 4 keys"),
            (
                "[{name: s, by: [k], distinct: k}]",
                "2:43: `distinct`: \"k\" is a key of `by`, so a series has one value of it",
            ),
            ("[{name: s, by: [k], distinct: ''}]", "2:43: `distinct`: a key must not be empty"),
            (
                "[{name: s, by: [k], distinct: [u]}]",
                "2:43: `distinct`: expected a string, found a list",
            ),
            (
                "[{name: s, by: [k], distinkt: u}]",
                "2:33: unknown key `distinkt` in a statistic (did you mean `distinct`?); expected name, by, distinct",
            ),
            (
                "[{name: s, by: [k]}, {name: s, by: [l]}]",
                "2:41: duplicate statistic \"s\"; the first is at 2:21",
            ),
        ],
    );
    check_error(
        "domain: d\ndescriptors:\n- { key: k, statistics: [] }",
        "3:13: unknown key `statistics` in a descriptor; it belongs in the file",
    );
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let text = with_statistics("[{name: A, by: [k, k], distinct: ''}, {by: []}]");
    check_errors(
        &text,
        &[
            "2:21: `name`: \"A\" is no name of a statistic; expected up to 63 of a-z, 0-9 and -",
            "2:32: `by`: \"k\" is there twice",
            "2:46: `distinct`: a key must not be empty",
            "2:52: `name` is required and must not be empty",
            "2:56: `by` is required and must have at least one key",
        ],
    );
}

#[test]
fn names_and_number_hold_for_all_files() {
    let statistics = |from: usize, count: usize| {
        let all = (from..from + count).map(|n| format!("{{name: s{n}, by: [k]}}"));
        format!("statistics: [{}]\n", all.collect::<Vec<_>>().join(", "))
    };
    let files = |b: &str| {
        let (a, b) = (format!("domain: a\n{}", statistics(0, 60)), format!("domain: b\n{b}"));
        load_files(&[("a.yaml", &a), ("b.yaml", &b)], SameDomain::Refuse)
            .map(|(rules, _)| rules.statistics().len())
    };
    assert_eq!(files(&statistics(60, 4)), Ok(64));
    let errors = files(&statistics(60, 5)).unwrap_err();
    assert_eq!(errors, ["b.yaml:2:109: more than 64 statistics in all files together"]);
    let errors = files(&statistics(1, 1)).unwrap_err();
    assert_eq!(errors, ["b.yaml:2:21: duplicate statistic \"s1\"; the first is at a.yaml:2:42"]);
}
