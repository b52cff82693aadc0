//! The values that a descriptor matches, its path, and shared counters.

use super::*;

/// The path of the rule for each value.
#[track_caller]
fn check(descriptors: &str, expected: &[(&str, Option<&str>)]) {
    let rules = rules(&format!("domain: d\ndescriptors: [{descriptors}]"));
    for (value, path) in expected {
        let met = rule(&rules, "d", &[("k", value)]).map(|rule| rule.path.as_str());
        assert_eq!(met, *path, "for {value:?}");
    }
}

#[test]
fn wildcards_come_after_exact_values_and_before_the_key_alone() {
    check(
        "{key: k, rate_limit: {unit: hour}}, \
         {key: k, value: 'a*', rate_limit: {unit: hour}}, \
         {key: k, value: '*z', rate_limit: {unit: hour}}, \
         {key: k, value: 'm*m*m', rate_limit: {unit: hour}}, \
         {key: k, value: ab, rate_limit: {unit: hour}}",
        &[
            ("ab", Some("d/k=ab")),
            ("a", Some("d/k=a*")),
            ("az", Some("d/k=a*")),
            ("bz", Some("d/k=*z")),
            ("mmm", Some("d/k=m*m*m")),
            ("mm", Some("d/k")),
        ],
    );
}

#[test]
fn a_match_is_a_prefix_a_range_or_an_expression() {
    check(
        "{key: k, match: {prefix: /api}, rate_limit: {unit: hour}}, \
         {key: k, match: {cidr: 10.0.0.0/8}, rate_limit: {unit: hour}}, \
         {key: k, match: {cidr: [192.168.0.0/16, '2001:db8::/32', 10.0.0.1]}, \
          rate_limit: {unit: hour}}, \
         {key: k, match: {regex: '[0-9]+=[a-z#]+'}, rate_limit: {unit: hour}}",
        &[
            ("/api/users", Some("d/k=prefix=%2Fapi")),
            ("/ap", None),
            ("10.1.2.3", Some("d/k=cidr=10.0.0.0%2F8")),
            ("192.168.7.7", Some("d/k=cidr=10.0.0.1%2F32,192.168.0.0%2F16,2001:db8::%2F32")),
            ("2001:db8::7", Some("d/k=cidr=10.0.0.1%2F32,192.168.0.0%2F16,2001:db8::%2F32")),
            ("11.0.0.1", None),
            ("17=x", Some("d/k=regex=[0-9]+%3D[a-z%23]+")),
            ("17=", None),
        ],
    );
}

/// Different descriptors have different paths, however odd their keys and values.
#[test]
fn paths_are_unique() {
    let rules = rules(
        "domain: a/b
descriptors:
- {key: k, value: prefix=x, rate_limit: {unit: hour}}
- {key: k, match: {prefix: x}, rate_limit: {unit: hour}}
- {key: 'k=prefix', value: x, rate_limit: {unit: hour}}
- {key: k%, rate_limit: {unit: hour}}
- key: k
  descriptors: [{key: x, rate_limit: {unit: hour}}]
- {key: k/x, rate_limit: {unit: hour}}
- {key: k#1, rate_limit: {unit: hour}}
",
    );
    let paths: Vec<&str> = rules.rules().into_iter().map(|rule| rule.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "a%2Fb/k%231",
            "a%2Fb/k%25",
            "a%2Fb/k%2Fx",
            "a%2Fb/k%3Dprefix=x",
            "a%2Fb/k/x",
            "a%2Fb/k=prefix%3Dx",
            "a%2Fb/k=prefix=x",
        ]
    );
}

/// The order of ranges does not matter. A hash stands for long lists.
#[test]
fn ranges_have_one_name_in_any_order() {
    let path = |ranges: &[String]| {
        let ranges = ranges.join(",");
        only_rule(&with_descriptor(&format!(
            "{{key: k, match: {{cidr: [{ranges}]}}, rate_limit: {{unit: hour}}}}"
        )))
        .path
    };
    let mut ranges: Vec<String> = (0..9).map(|n| format!("10.{n}.0.0/16")).collect();
    let many = path(&ranges);
    assert!(many.starts_with("d/k=cidr=10.0.0.0%2F16,+8~"), "{many}");
    assert!(many.len() < 70, "{many}");
    ranges.swap(3, 7);
    assert_eq!(path(&ranges), many);
    ranges[3] = "11.0.0.0/16".to_owned();
    assert_ne!(path(&ranges), many);
    let few = ["10.2.0.0/16", "10.1.0.0/16", "10.2.0.0/16"].map(str::to_owned);
    assert_eq!(path(&few), "d/k=cidr=10.1.0.0%2F16,10.2.0.0%2F16");
}

#[test]
fn values_share_counters_where_share_threshold_says_so() {
    let rules = rules(
        "domain: d
descriptors:
- key: a
  value: 'x/*'
  share_threshold: true
  rate_limit: {unit: hour}
  descriptors:
  - {key: b, match: {prefix: y}, share_threshold: true, rate_limit: {unit: hour}}
  - {key: b, rate_limit: {unit: hour}}
- {key: c, value: 'x/*', share_threshold: false, rate_limit: {unit: hour}}
",
    );
    let shared = |words: &[(&str, &str)]| match rules.find("d", &entries(words)) {
        Lookup::Rule(found) => {
            found.shared.into_iter().map(|(at, text)| (at, text.to_owned())).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    let text = |at: usize, text: &str| (at, text.to_owned());
    assert_eq!(shared(&[("a", "x/1")]), [text(0, "x%2F*")]);
    let both = [text(0, "x%2F*"), text(1, "prefix=y")];
    assert_eq!(shared(&[("a", "x/1"), ("b", "y1")]), both);
    assert_eq!(shared(&[("a", "x/1"), ("b", "z")]), [text(0, "x%2F*")]);
    assert_eq!(shared(&[("c", "x/1")]), []);
}
