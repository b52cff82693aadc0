//! Warnings for valid parts without effect, and similar parts that must not cause warnings.

use super::*;

#[test]
fn a_known_key_in_the_wrong_map_is_a_warning() {
    check_warnings(
        "domain: d
shadow_mode: true
key: k
descriptors:
- key: k
  domain: d
  unit: hour
  name: n
  rate_limit: {unit: hour, shadow_mode: true, key: x, replaces: [{name: m, unit: day}]}
- key: m
  rate_limit: {unit: hour, name: m, descriptors: []}
",
        &[
            "2:1: `shadow_mode` is known but has no effect in a limits file; it belongs in a \
             descriptor",
            "3:1: `key` is known but has no effect in a limits file; it belongs in a descriptor",
            "6:3: `domain` is known but has no effect in a descriptor; it belongs in the file",
            "7:3: `unit` is known but has no effect in a descriptor; it belongs in rate_limit",
            "8:3: `name` is known but has no effect in a descriptor; it belongs in rate_limit",
            "9:28: `shadow_mode` is known but has no effect in a rate_limit; it belongs in a \
             descriptor",
            "9:47: `key` is known but has no effect in a rate_limit; it belongs in a descriptor",
            "9:76: `unit` is known but has no effect in an entry of replaces; it belongs in \
             rate_limit",
            "11:37: `descriptors` is known but has no effect in a rate_limit; it belongs in a \
             descriptor or the file",
        ],
    );
}

/// Wrong indentation made a limit vanish, without a word about the key that was left empty.
#[test]
fn an_empty_rate_limit_is_a_warning() {
    check_warnings(
        "domain: d
descriptors:
- key: k
  rate_limit:
  unit: hour
  requests_per_unit: 5
",
        &[
            "4:3: `rate_limit` is empty, so there is no limit here; indent what belongs to it",
            "5:3: `unit` is known but has no effect in a descriptor; it belongs in rate_limit",
            "6:3: `requests_per_unit` is known but has no effect in a descriptor; it belongs in \
             rate_limit",
        ],
    );
}

#[test]
fn keys_without_effect_are_warnings() {
    for (descriptor, message) in [
        (
            "{key: k, rate_limit: {unlimited: true, requests_per_unit: 5}}",
            "3:42: `requests_per_unit` has no effect when `unlimited` is true",
        ),
        (
            "{key: k, shadow_mode: true, quota_mode: true, rate_limit: {unit: hour}}",
            "3:31: `quota_mode` has no effect beside `shadow_mode`",
        ),
        (
            "{key: k, shadow_mode: true, descriptors: [{key: l, rate_limit: {unit: hour}}]}",
            "3:12: `shadow_mode` has no effect in a descriptor without rate_limit; it does not \
             reach the descriptors below",
        ),
        (
            "{key: k, metadata: {a: b}}",
            "3:12: `metadata` has no effect in a descriptor without rate_limit; it does not reach \
             the descriptors below",
        ),
        (
            "{key: 'k*', rate_limit: {unit: hour}}",
            "3:9: `*` in a key stands for itself; patterns go into `value`",
        ),
        (
            "{key: k, rate_limit: {unit: hour, replaces: [{name: m}]}}",
            "3:55: `replaces`: no limit of domain \"d\" has the name \"m\"",
        ),
    ] {
        check_warnings(&with_descriptor(descriptor), &[message]);
    }
}

/// Generators write out all keys, and what holds anyway is no mistake.
#[test]
fn what_says_the_default_is_no_warning() {
    for descriptor in [
        "{key: k, rate_limit: {unlimited: true, requests_per_unit: 0}}",
        "{key: k, shadow_mode: false, quota_mode: false, detailed_metric: false, \
         descriptors: [{key: l, rate_limit: {unit: hour}}]}",
        "{key: k, rate_limit: {unit: hour, shadow_mode: false, value_to_metric: false}}",
    ] {
        check_warnings(&with_descriptor(descriptor), &[]);
    }
    check_warnings(
        &with_descriptor("{key: k, rate_limit: {unit: hour, shadow_mode: true}}"),
        &[
            "3:37: `shadow_mode` is known but has no effect in a rate_limit; it belongs in a descriptor",
        ],
    );
}

/// The file with the name may be read after the file that replaces it. Other domains do not count.
#[test]
fn replaced_names_are_those_of_the_whole_domain() {
    let replaces =
        "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: hour, replaces: [{name: m}]}}";
    let named = |domain: &str| {
        format!(
            "domain: {domain}\ndescriptors: [{{key: l, rate_limits: [{{name: m, unit: day}}]}}]"
        )
    };
    let (same, other) = (named("d"), named("e"));
    let load = |second: &str| {
        load_files(&[("a.yaml", replaces), ("b.yaml", second)], SameDomain::Merge).unwrap().1
    };
    assert_eq!(load(&same), [""; 0]);
    let warning = "a.yaml:3:55: `replaces`: no limit of domain \"d\" has the name \"m\"";
    assert_eq!(load(&other), [warning]);
}

#[test]
fn unreachable_descriptors_are_warnings() {
    let lost = |place: &str, by: &str| {
        format!("{place}: no request can reach this: {by} matches all its values first")
    };
    for (first, second, expected) in [
        ("value: 'a*'", "value: 'ab*'", Some(("4:4", "3:4"))),
        ("value: 'a*'", "value: 'a*b'", Some(("4:4", "3:4"))),
        ("value: 'a**'", "match: {prefix: ab}", Some(("4:4", "3:4"))),
        ("match: {prefix: é}", "value: 'éa*'", Some(("4:4", "3:4"))),
        ("value: '*'", "match: {cidr: 10.0.0.0/8}", Some(("4:4", "3:4"))),
        ("value: '*'", "value: ''", Some(("4:4", "3:4"))),
        ("value: ''", "value: '*'", Some(("3:4", "4:4"))),
        (
            "match: {cidr: [10.0.0.0/8, '2001:db8::/32']}",
            "match: {cidr: [10.1.0.0/16, '2001:db8:7::/48']}",
            Some(("4:4", "3:4")),
        ),
        ("match: {cidr: 10.0.0.0/8}", "match: {cidr: [10.1.0.0/16, 11.0.0.0/8]}", None),
        ("match: {cidr: 10.1.0.0/16}", "match: {cidr: 10.0.0.0/8}", None),
        // Every IPv6 address and no IPv4 address.
        ("match: {cidr: '::/0'}", "match: {cidr: 10.0.0.0/8}", None),
        ("match: {cidr: 0.0.0.0/0}", "match: {cidr: '::/0'}", None),
        ("match: {cidr: 0.0.0.0/0}", "value: '10.*'", None),
        ("value: 'a*'", "value: ab", None),
        ("value: 'a*b'", "value: 'a*'", None),
        ("value: '*a'", "value: '*ba'", None),
        ("value: 'ab*'", "value: 'a*'", None),
        ("match: {regex: '.*'}", "value: 'a*'", None),
        ("value: 'a*'", "value: ''", None),
    ] {
        let text = with_descriptor(&format!(
            "{{key: k, {first}, rate_limit: {{unit: hour}}}}\n\
             - {{key: k, {second}, rate_limit: {{unit: hour}}}}\n\
             - {{key: l, {second}, rate_limit: {{unit: hour}}}}"
        ));
        let expected: Vec<String> =
            expected.into_iter().map(|(place, by)| lost(place, by)).collect();
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        check_warnings(&text, &expected);
    }
}

/// An entry without a limit lets a value pass: envoyproxy/ratelimit's form of an allow-list.
#[test]
fn an_allow_list_is_left_in_peace() {
    let rules = rules(
        "domain: d
descriptors:
- {key: ip, rate_limit: {unit: hour}}
- {key: ip, value: 10.0.0.1}
- {key: ip, value: '10.*'}
- {key: ip, value: '192.*', share_threshold: true, value_to_metric: true}
",
    );
    assert!(rule(&rules, "d", &[("ip", "10.0.0.1")]).is_none());
    assert!(rule(&rules, "d", &[("ip", "10.0.0.2")]).is_none());
    assert!(rule(&rules, "d", &[("ip", "11.0.0.1")]).is_some());
}
