//! One case per error in a file and in its descriptors, each with message and position.

use super::*;

#[test]
fn of_a_file() {
    for (text, message) in [
        ("descriptors: []", "1:1: `domain` is required and must not be empty"),
        ("domain: ''", "1:9: `domain` is required and must not be empty"),
        ("domain:\ndescriptors: []", "1:7: `domain` is required and must not be empty"),
        ("domain: [d]", "1:9: `domain`: expected a string, found a list"),
        (
            "domain: 1.5",
            "1:9: `domain`: expected a string (put it in quotes), found the number 1.5",
        ),
        ("domain: d\ndomain: e", "2:1: duplicate mapping key: domain"),
        ("domain: d\n---\ndomain: e", "3:1: multiple YAML documents detected"),
        ("domain: [", "1:9: unclosed bracket '['"),
        ("", "1:1: expected a limits file, found nothing"),
        ("7", "1:1: expected a limits file, found the number 7"),
        ("[domain, d]", "1:1: expected a limits file, found a list"),
        ("- domain: d\n", "1:1: expected a limits file, found a list"),
        ("domain: d\n  descriptors: [\n", "2:14: mapping values are not allowed in this context"),
        ("domain: d\ndescriptors: {key: k}", "2:14: `descriptors`: expected a list, found a map"),
        ("domain: d\ndescriptors: k", "2:14: `descriptors`: expected a list, found \"k\""),
        (
            "domain: d\ndescriptor: []",
            "2:1: unknown key `descriptor` in a limits file (did you mean `descriptors`?); \
             expected domain, descriptors, count_denied, statistics",
        ),
        (
            "domain: d\n12: x",
            "2:1: unknown key `12` in a limits file; expected domain, descriptors, count_denied, statistics",
        ),
        (
            "domain: d\nburst: 7",
            "2:1: unknown key `burst` in a limits file; it belongs in rate_limit",
        ),
        ("domain: d\ndescriptors: [a]", "2:15: expected a descriptor, found \"a\""),
        ("domain: d\ndescriptors: [~]", "2:15: expected a descriptor, found nothing"),
    ] {
        check_error(text, message);
    }
}

#[test]
fn of_a_descriptor() {
    for (descriptor, message) in [
        ("[]", "3:3: expected a descriptor, found a list"),
        ("{value: v}", "3:4: `key` is required and must not be empty"),
        ("{key: ''}", "3:9: `key` is required and must not be empty"),
        ("{key: ~}", "3:9: `key` is required and must not be empty"),
        ("{key: [k]}", "3:9: `key`: expected a string, found a list"),
        (
            "{key: k, value: 1.10}",
            "3:19: `value`: expected a string (put it in quotes), found the number 1.10",
        ),
        (
            "{key: k, value: .nan}",
            "3:19: `value`: expected a string (put it in quotes), found the number .nan",
        ),
        (
            "{key: k, value: !!int '7'}",
            "3:25: `value`: expected a string (put it in quotes), found the number 7",
        ),
        ("{key: k, value: {a: b}}", "3:19: `value`: expected a string, found a map"),
        (
            "{key: k, ratelimit: {}}",
            "3:12: unknown key `ratelimit` in a descriptor (did you mean `rate_limit`?); expected \
             key, value, match, rate_limit, rate_limits, shadow_mode, quota_mode, \
             detailed_metric, value_to_metric, share_threshold, metadata, descriptors",
        ),
        (
            "{key: k, algorithm: token_bucket}",
            "3:12: unknown key `algorithm` in a descriptor; it belongs in rate_limit",
        ),
        (
            "{key: k, cidr: 10.0.0.0/8}",
            "3:12: unknown key `cidr` in a descriptor; it belongs in match",
        ),
        (
            "{key: k, shadow_mode: 1}",
            "3:25: `shadow_mode`: expected true or false, found the number 1",
        ),
        (
            "{key: k, quota_mode: 'yes'}",
            "3:24: `quota_mode`: expected true or false, found \"yes\"",
        ),
        (
            "{key: k, detailed_metric: []}",
            "3:29: `detailed_metric`: expected true or false, found a list",
        ),
        (
            "{key: k, value_to_metric: 0}",
            "3:29: `value_to_metric`: expected true or false, found the number 0",
        ),
        (
            "{key: k, share_threshold: maybe}",
            "3:29: `share_threshold`: expected true or false, found \"maybe\"",
        ),
        (
            "{1: x, key: k}",
            "3:4: unknown key `1` in a descriptor; expected key, value, match, rate_limit, \
             rate_limits, shadow_mode, quota_mode, detailed_metric, value_to_metric, \
             share_threshold, metadata, descriptors",
        ),
        ("{key: k, descriptors: {key: l}}", "3:25: `descriptors`: expected a list, found a map"),
        ("{key: k}\n- {key: k}", "4:4: duplicate descriptor d/k; the first is at 3:4"),
        ("{key: k}\n- {key: k, value: ''}", "4:4: duplicate descriptor d/k; the first is at 3:4"),
        (
            "{key: k, value: 'a*'}\n- {key: k, value: 'a*'}",
            "4:4: duplicate descriptor d/k=a*; the first is at 3:4",
        ),
        (
            "{key: k, value: v}\n- {key: k, value: v}",
            "4:4: duplicate descriptor d/k=v; the first is at 3:4",
        ),
        (
            "{key: k, value: 7}\n- {key: k, value: '7'}",
            "4:4: duplicate descriptor d/k=7; the first is at 3:4",
        ),
        ("{key: k, metadata: [a]}", "3:22: `metadata`: expected a map, found a list"),
        ("{key: k, metadata: 7}", "3:22: `metadata`: expected a map, found the number 7"),
        (
            "{key: k, metadata: {a: [.inf]}, rate_limit: {unit: hour}}",
            "3:27: `metadata`: only finite numbers can be passed on",
        ),
        (
            "{key: k, rate_limit: {unit: hour}, rate_limits: [{unit: hour}]}",
            "3:51: `rate_limit` and `rate_limits` exclude each other",
        ),
    ] {
        check_error(&with_descriptor(descriptor), message);
    }
}

#[test]
fn of_values_and_matches() {
    let wants = "`share_threshold` is only for values with a wildcard (`*`) and for `match`";
    for (descriptor, message) in [
        ("{key: k, share_threshold: true}", format!("3:12: {wants}")),
        ("{key: k, value: v, share_threshold: true}", format!("3:22: {wants}")),
        ("{key: 'k*', share_threshold: true}", format!("3:15: {wants}")),
        (
            "{key: k, value: v, match: {prefix: p}}",
            "3:29: `value` and `match` exclude each other".to_owned(),
        ),
        ("{key: k, match: p*}", "3:19: expected a match, found \"p*\"".to_owned()),
        (
            "{key: k, match: {}}",
            "3:19: a match needs exactly one of prefix, cidr or regex, found 0".to_owned(),
        ),
        (
            "{key: k, match: {prefix: a, regex: b}}",
            "3:20: a match needs exactly one of prefix, cidr or regex, found 2".to_owned(),
        ),
        (
            "{key: k, match: {prefx: a, prefix: b}}",
            "3:20: unknown key `prefx` in a match (did you mean `prefix`?); expected prefix, cidr, \
             regex"
                .to_owned(),
        ),
        (
            "{key: k, match: {prefix: p}}\n- {key: k, match: {prefix: p}}",
            "4:4: duplicate descriptor d/k=prefix=p; the first is at 3:4".to_owned(),
        ),
        ("{key: k, match: {prefix: ''}}", "3:28: `prefix` is required and must not be \
        empty".to_owned()),
        ("{key: k, match: {prefix: [a]}}", "3:28: `prefix`: expected a string, found a \
        list".to_owned()),
        ("{key: k, match: {regex: ''}}", "3:27: `regex` is required and must not be \
        empty".to_owned()),
        ("{key: k, match: {cidr: []}}", "3:26: `cidr`: expected 1 to 1000 ranges, found \
        0".to_owned()),
        (
            "{key: k, match: {cidr: [10.0.0.0/8, [10.0.0.0/8]]}}",
            "3:39: `cidr`: expected a string, found a list".to_owned(),
        ),
    ] {
        check_error(&with_descriptor(descriptor), &message);
    }
    // Errors that core reports about a range or an expression also have positions.
    for (descriptor, place, word) in [
        ("{key: k, match: {cidr: 10.0.0.0/33}}", "3:26: `cidr`: ", "10.0.0.0/33"),
        ("{key: k, match: {cidr: 10.0.0.1/8}}", "3:26: `cidr`: ", "10.0.0.0/8"),
        ("{key: k, match: {cidr: [10.0.0.0/8, ten]}}", "3:39: `cidr`: ", "ten"),
        ("{key: k, match: {regex: 'a('}}", "3:27: `regex`: ", "unclosed group"),
        ("{key: k, match: {regex: '(a{1000}){1000}'}}", "3:27: `regex`: ", ""),
    ] {
        let errors = load_text(&with_descriptor(descriptor)).unwrap_err();
        let [error] = &errors[..] else { panic!("{errors:?}") };
        assert!(error.starts_with(&format!("limits.yaml:{place}")), "{error}");
        assert!(error.contains(word) && !error.contains('\n'), "{error}");
    }
}

/// Also below a descriptor that is not inserted, and in a file without a domain.
#[test]
fn all_errors_are_reported_together() {
    check_errors(
        "descriptors:
- key: ''
  descriptors:
  - {key: a, rate_limit: {unit: eon}}
  - {key: a, value: 1.5, valu: x}
- {key: b, match: {regex: '('}, descriptors: [{kye: c}, 5]}
- key: b
- key: b
  rate_limits:
  - {unit: hour, burst: 5}
  - {unit: hour, algorithm: leaky, requests: many}
",
        &[
            "1:1: `domain` is required and must not be empty",
            "2:8: `key` is required and must not be empty",
            "4:33: unknown unit \"eon\"; expected second, minute, hour, day, week, month, year",
            "5:21: `value`: expected a string (put it in quotes), found the number 1.5",
            "5:26: unknown key `valu` in a descriptor (did you mean `value`?); expected key, \
             value, match, rate_limit, rate_limits, shadow_mode, quota_mode, detailed_metric, \
             value_to_metric, share_threshold, metadata, descriptors",
            "6:27: `regex`: unclosed group",
            "6:48: unknown key `kye` in a descriptor (did you mean `key`?); expected key, value, \
             match, rate_limit, rate_limits, shadow_mode, quota_mode, detailed_metric, \
             value_to_metric, share_threshold, metadata, descriptors",
            "6:48: `key` is required and must not be empty",
            "6:57: expected a descriptor, found the number 5",
            "8:3: duplicate descriptor b; the first is at 7:3",
            "10:25: `burst` is for token_bucket only",
            "11:29: unknown algorithm \"leaky\"; expected fixed_window, first_hit_window, \
             token_bucket, sliding_window or sliding_buckets",
            "11:46: `requests`: expected a whole number from 0 to 4294967295, found \"many\"",
        ],
    );
}
