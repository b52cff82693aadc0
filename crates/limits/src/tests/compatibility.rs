//! Files of envoyproxy/ratelimit load unchanged, and are refused for the same reasons as there.

use super::*;
use tidegate_core::{Enforcement, Value};

#[test]
fn a_tree_of_descriptors_is_read_as_it_is() {
    let rules = rules(
        "domain: mongo_cps
descriptors:
  - key: database
    value: users
    rate_limit:
      unit: SECOND
      requests_per_unit: 500
  - key: database
    value: ''
    descriptors:
      - key: ip
        shadow_mode: true
        rate_limit: {name: by-ip, unit: Day, requests_per_unit: 10}
      - key: ip
        value: 10.0.0.1
        rate_limit: {unit: month}
  - key: open
    rate_limit: {unlimited: true, name: free}
  - key: listed_only
",
    );
    let limits: Vec<(&str, Option<&str>, &str, Quota)> = rules
        .limits()
        .into_iter()
        .map(|l| (l.path.as_str(), l.name.as_deref(), l.label.as_str(), l.quota.clone()))
        .collect();
    let fixed = |requests, secs| Quota::FixedWindow(window(requests, secs));
    let expected = [
        ("mongo_cps/database/ip", Some("by-ip"), "", fixed(10, 86_400)),
        ("mongo_cps/database/ip=10.0.0.1", None, "", fixed(0, 30 * 86_400)),
        ("mongo_cps/database=users", None, "", fixed(500, 1)),
    ];
    assert_eq!(limits, expected);
    let met = |words: &[(&str, &str)]| rule(&rules, "mongo_cps", words);
    let by_ip = met(&[("database", "x"), ("ip", "y")]).unwrap();
    assert_eq!(by_ip.enforcement, Enforcement::Shadow);
    assert_eq!(met(&[("database", "users")]).unwrap().enforcement, Enforcement::Enforce);
    let open = RuleKind::Unlimited { name: Some("free".to_owned()), replaces: Vec::new() };
    assert_eq!(met(&[("open", "x")]).unwrap().kind, open);
    assert_eq!(met(&[("listed_only", "x")]), None);
    // A descriptor must end where the rule ends.
    assert_eq!(met(&[("database", "other")]), None);
    assert_eq!(met(&[("database", "users"), ("ip", "y")]), None);
}

#[test]
fn units_are_read_in_any_case() {
    let day = 86_400;
    for (unit, secs) in [
        ("second", 1),
        ("Minute", 60),
        ("HOUR", 3_600),
        ("dAY", day),
        ("week", 7 * day),
        ("month", 30 * day),
        ("YEAR", 365 * day),
    ] {
        let limit = only_limit(&with_limit(&format!("{{unit: {unit}, requests_per_unit: 7}}")));
        assert_eq!(limit.quota, Quota::FixedWindow(window(7, secs)), "for {unit}");
    }
}

/// A plain number or boolean in place of a string is taken as its source text.
#[test]
fn plain_words_are_taken_as_they_are_written() {
    for (word, value) in [
        ("404", "404"),
        ("007", "007"),
        ("0x1F", "0x1F"),
        ("1_000", "1_000"),
        ("-5", "-5"),
        ("+5", "+5"),
        ("true", "true"),
        ("False", "False"),
        ("yes", "yes"),
        ("off", "off"),
        ("2026-11-21", "2026-11-21"),
        ("10.0.0.1", "10.0.0.1"),
        ("08:30", "08:30"),
        ("'1.10'", "1.10"),
        ("\"404\"", "404"),
        ("'null'", "null"),
        ("a b # said so", "a b"),
        ("404 # said so", "404"),
        ("|-\n    404", "404"),
        ("&anchor 404", "404"),
        ("é", "é"),
    ] {
        let text = format!(
            "# ü\ndomain: d\ndescriptors:\n- key: k\n  value: {word}\n  \
                            rate_limit: {{unit: hour}}\n"
        );
        for text in [text.clone(), text.replace('\n', "\r\n"), format!("\u{feff}{text}")] {
            let rules = rules(&text);
            assert!(rule(&rules, "d", &[("k", value)]).is_some(), "{value:?} in {text:?}");
        }
    }
    let key = rules("domain: 7\ndescriptors: [{key: 12, rate_limit: {unit: hour, name: 0}}]");
    let limit = key.limits()[0];
    assert_eq!((limit.path.as_str(), limit.name.as_deref()), ("7/12", Some("0")));
}

#[test]
fn numbers_and_truth_values_are_read_as_there() {
    for (number, requests) in
        [("0", 0), ("4294967295", u32::MAX), ("1_000", 1_000), ("0x10", 16), ("010", 8), ("+5", 5)]
    {
        let limit =
            only_limit(&with_limit(&format!("{{unit: hour, requests_per_unit: {number}}}")));
        assert_eq!(limit.quota.requests(), requests, "for {number}");
    }
    for (word, shadow) in [("true", true), ("yes", true), ("On", true), ("no", false), ("~", false)]
    {
        let text = with_descriptor(&format!(
            "{{key: k, shadow_mode: {word}, rate_limit: {{unit: hour}}}}"
        ));
        let expected = if shadow { Enforcement::Shadow } else { Enforcement::Enforce };
        assert_eq!(only_rule(&text).enforcement, expected, "for {word}");
    }
}

#[test]
fn anchors_aliases_and_merges_are_followed() {
    let rules = rules(
        "domain: d
descriptors:
- {key: a, value: &v 404, rate_limit: &hour {unit: hour, requests_per_unit: 5}}
- {key: b, value: *v, rate_limit: *hour}
- {key: c, rate_limit: {<<: *hour, requests_per_unit: 7}}
",
    );
    let paths: Vec<(&str, u32)> =
        rules.limits().into_iter().map(|l| (l.path.as_str(), l.quota.requests())).collect();
    assert_eq!(paths, [("d/a=404", 5), ("d/b=404", 5), ("d/c", 7)]);
}

#[test]
fn two_files_of_a_domain_are_refused_or_merged() {
    let files = [
        ("a.yaml", "domain: d\ndescriptors: [{key: a, rate_limit: {unit: hour}}]"),
        ("b.yaml", "domain: d\ndescriptors: [{key: b, rate_limit: {unit: hour}}]"),
    ];
    let errors = load_files(&files, SameDomain::Refuse).unwrap_err();
    assert_eq!(errors, ["b.yaml:1:9: domain \"d\" is already defined by a.yaml"]);
    let (rules, warnings) = load_files(&files, SameDomain::Merge).unwrap();
    assert_eq!(warnings, [""; 0]);
    let paths: Vec<&str> = rules.limits().iter().map(|limit| limit.path.as_str()).collect();
    assert_eq!(paths, ["d/a", "d/b"]);

    let again = [files[0], files[1], ("c.yaml", files[0].1)];
    let errors = load_files(&again, SameDomain::Merge).unwrap_err();
    assert_eq!(errors, ["c.yaml:2:16: duplicate descriptor d/a; the first is at a.yaml:2:16"]);
}

#[test]
fn modes_set_the_enforcement() {
    for (modes, expected) in [
        ("shadow_mode: false", Enforcement::Enforce),
        ("shadow_mode: true", Enforcement::Shadow),
        ("quota_mode: true", Enforcement::Quota),
        ("quota_mode: false", Enforcement::Enforce),
    ] {
        let text = with_descriptor(&format!("{{key: k, {modes}, rate_limit: {{unit: hour}}}}"));
        assert_eq!(only_rule(&text).enforcement, expected, "for {modes}");
    }
}

#[test]
fn metrics_have_the_values_that_are_asked_for() {
    let rules = rules(
        "domain: d
descriptors:
- key: a
  value_to_metric: true
  descriptors:
  - {key: b, rate_limit: {unit: hour}}
  - {key: c, value_to_metric: true, rate_limit: {unit: hour}}
- key: e
  rate_limit: {unit: hour}
  descriptors:
  - {key: f, detailed_metric: true, rate_limit: {unit: hour}}
  - {key: g, detailed_metric: false, rate_limit: {unit: hour}}
",
    );
    let values: Vec<(&str, &[bool])> =
        rules.rules().into_iter().map(|r| (r.path.as_str(), r.metric_values.as_slice())).collect();
    let expected: [(&str, &[bool]); 5] = [
        ("d/a/b", &[true, false]),
        ("d/a/c", &[true, true]),
        ("d/e", &[]),
        ("d/e/f", &[true, true]),
        ("d/e/g", &[]),
    ];
    assert_eq!(values, expected);
}

#[test]
fn metadata_are_any_map() {
    let text = with_descriptor(
        "{key: k, rate_limit: {unit: hour}, \
         metadata: {owner: me, unit: [1, 2.5, true, ~, '7'], deep: {er: {}}, 5: x}}",
    );
    let metadata = only_rule(&text).metadata.unwrap();
    let of = |value: &str| Value::Text(value.to_owned());
    let unit =
        vec![Value::Number(1.0), Value::Number(2.5), Value::Bool(true), Value::Null, of("7")];
    let expected = Value::Map(vec![
        ("owner".to_owned(), of("me")),
        ("unit".to_owned(), Value::List(unit)),
        ("deep".to_owned(), Value::Map(vec![("er".to_owned(), Value::Map(Vec::new()))])),
        ("5".to_owned(), of("x")),
    ]);
    assert_eq!(metadata, expected);
    assert_eq!(only_rule(&with_limit("{unit: hour}")).metadata, None);
}

#[test]
fn replaces_names_other_limits() {
    let rules = rules(
        "domain: d
descriptors:
- {key: a, rate_limit: {name: one, unit: hour, replaces: [{name: two}, {name: three}]}}
- {key: b, rate_limit: {name: two, unlimited: true, replaces: [{name: three}]}}
- {key: c, rate_limit: {name: three, unit: hour}}
",
    );
    let replaces = |key| -> Vec<String> {
        rule(&rules, "d", &[(key, "x")]).unwrap().replaces().map(str::to_owned).collect()
    };
    assert_eq!(replaces("a"), ["two", "three"]);
    assert_eq!(replaces("b"), ["three"]);
    assert_eq!(replaces("c"), [""; 0]);
}
