//! Limits files: what is read from good ones, and one fixture per mistake with its message.

use super::{RuleError, load};
use std::path::Path;
use tempfile::TempDir;
use tidegate_core::{Enforcement, Entry, FixedWindow, Found, Nanos, Quota, Rules, TokenBucket};

fn directory(files: &[(&str, &str)]) -> TempDir {
    let dir = TempDir::new().unwrap();
    for (name, text) in files {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

fn load_text(text: &str) -> Result<Rules, Vec<String>> {
    let dir = directory(&[("limits.yaml", text)]);
    let file = dir.path().join("limits.yaml");
    load(&file).map_err(|errors| errors.0.iter().map(|error| without(dir.path(), error)).collect())
}

/// The error as it is printed, without the directory.
fn without(dir: &Path, error: &RuleError) -> String {
    error.to_string().replace(&format!("{}/", dir.display()), "")
}

fn window(requests: u32, secs: u64) -> Quota {
    Quota::FixedWindow(FixedWindow::new(requests, Nanos::from_secs(secs)).unwrap())
}

fn bucket(requests: u32, secs: u64, burst: u32, initial: u32) -> Quota {
    let period = Nanos::from_secs(secs);
    Quota::TokenBucket(TokenBucket::new(requests, period, burst, initial).unwrap())
}

#[test]
fn a_file_in_the_ratelimit_services_schema_is_read_as_it_is() {
    let rules = load_text(
        "domain: mongo_cps
descriptors:
  - key: database
    value: users
    rate_limit:
      unit: SECOND
      requests_per_unit: 500
  - key: database
    value: 404
    rate_limit: {unit: second}
  - key: database
    descriptors:
      - key: ip
        shadow_mode: true
        rate_limit: {name: by-ip, unit: day, requests_per_unit: 10}
  - key: open
    rate_limit: {unlimited: true}
  - key: listed_only
",
    )
    .unwrap();
    let limits: Vec<(&str, Option<&str>, &Quota, Enforcement)> = rules
        .limits()
        .into_iter()
        .map(|limit| (limit.path.as_str(), limit.name.as_deref(), &limit.quota, limit.enforcement))
        .collect();
    let expected = [
        ("mongo_cps/database/ip", Some("by-ip"), &window(10, 86_400), Enforcement::Shadow),
        ("mongo_cps/database=404", None, &window(0, 1), Enforcement::Enforce),
        ("mongo_cps/database=users", None, &window(500, 1), Enforcement::Enforce),
    ];
    assert_eq!(limits, expected);
    assert_eq!(rules.find("mongo_cps", &[Entry::new("open", "x")]), Found::Unlimited);
    assert_eq!(rules.find("mongo_cps", &[Entry::new("listed_only", "x")]), Found::NoLimit);
}

#[test]
fn the_extensions_are_read_with_their_defaults() {
    let quota = |rate_limit: &str| {
        let text = format!("domain: d\ndescriptors: [{{key: k, rate_limit: {rate_limit}}}]");
        load_text(&text).map(|rules| rules.limits()[0].quota.clone())
    };
    for (rate_limit, expected) in [
        ("{period: 30s, requests: 7}", window(7, 30)),
        ("{algorithm: fixed_window, period: 2w, requests_per_unit: 7}", window(7, 1_209_600)),
        ("{algorithm: token_bucket, unit: minute, requests: 7}", bucket(7, 60, 7, 7)),
        ("{algorithm: token_bucket, period: 10s, requests: 7, burst: 9}", bucket(7, 10, 9, 9)),
        (
            "{algorithm: token_bucket, period: 10s, requests: 7, burst: 9, initial: 0}",
            bucket(7, 10, 9, 0),
        ),
    ] {
        assert_eq!(quota(rate_limit), Ok(expected), "for {rate_limit}");
    }
}

/// One fixture per mistake: a rate_limit, or a whole file where the mistake is elsewhere.
#[test]
fn every_mistake_has_its_own_message_and_place() {
    let with_descriptor = |descriptor: &str| format!("domain: d\ndescriptors:\n- {descriptor}\n");
    let with_limit = |limit: &str| with_descriptor(&format!("{{key: k, rate_limit: {limit}}}"));
    let table = [
        ("descriptors: []".to_owned(), "1:1: `domain` must be there and not empty"),
        ("domain: ''".to_owned(), "1:9: `domain` must be there and not empty"),
        ("domain: [d]".to_owned(), "1:9: `domain`: expected a string, found a list"),
        ("domain: d\ndomain: e".to_owned(), "2:1: duplicate mapping key: domain"),
        ("domain: d\n---\ndomain: e".to_owned(), "3:1: multiple YAML documents detected"),
        ("domain: [".to_owned(), "1:9: unclosed bracket '['"),
        (String::new(), "1:1: expected a limits file, found nothing"),
        ("7".to_owned(), "1:1: expected a limits file, found the number 7"),
        (
            "domain: d\ndescriptors: {key: k}".to_owned(),
            "2:14: `descriptors`: expected a list, found a map",
        ),
        (
            "domain: d\ndescriptor: []".to_owned(),
            "2:1: unknown key `descriptor` in a limits file (did you mean `descriptors`?)",
        ),
        (with_descriptor("[]"), "3:3: expected a descriptor, found a list"),
        (with_descriptor("{value: v}"), "3:4: `key` must be there and not empty"),
        (with_descriptor("{key: ''}"), "3:9: `key` must be there and not empty"),
        (
            with_descriptor("{key: k, value: true}"),
            "3:19: `value`: expected a string (put it in quotes), found `true`",
        ),
        (
            with_descriptor("{key: k}\n- {key: k, value: 007}"),
            "4:19: `value`: expected a string (put it in quotes), found the number 7",
        ),
        (
            with_descriptor("{key: k, value: 007}"),
            "3:19: `value`: expected a string (put it in quotes), found the number 7",
        ),
        (
            with_descriptor("{key: k, value: 'a*'}"),
            "3:19: wildcards (`*` in a value) are not supported by this version of tidegate",
        ),
        (
            with_descriptor("{key: k, ratelimit: {}}"),
            "3:12: unknown key `ratelimit` in a descriptor (did you mean `rate_limit`?)",
        ),
        (
            with_descriptor("{key: k, share_threshold: true}"),
            "3:12: `share_threshold` is not supported by this version of tidegate",
        ),
        (
            with_descriptor("{key: k, shadow_mode: 1}"),
            "3:25: `shadow_mode`: expected true or false, found the number 1",
        ),
        (with_descriptor("{key: k}\n- {key: k}"), "4:4: duplicate descriptor d/k"),
        (with_limit("5"), "3:24: expected a rate_limit, found the number 5"),
        (
            with_limit("{unit: hour, colour: red}"),
            "3:37: unknown key `colour` in a rate_limit; expected unit, requests_per_unit, \
             unlimited, name, algorithm, requests, period, burst, initial",
        ),
        (
            with_limit("{unit: fortnight, requests: 1}"),
            "3:31: unknown unit \"fortnight\"; expected second, minute, hour, day, week, month, \
             year",
        ),
        (
            with_limit("{period: 1 hour, requests: 1}"),
            "3:33: \"1 hour\" is not a period; expected a number and ms, s, m, h, d or w, such \
             as 30s",
        ),
        (
            with_limit("{requests: 1}"),
            "3:25: a rate_limit needs `unit` (second, minute, hour, …) or `period` (such as 30s)",
        ),
        (
            with_limit("{unit: hour, period: 1h, requests: 1}"),
            "3:45: `unit` and `period` exclude each other",
        ),
        (with_limit("{period: 1h}"), "3:25: a rate_limit with `period` needs `requests`"),
        (
            with_limit("{unit: hour, requests: 1, requests_per_unit: 1}"),
            "3:47: `requests` and `requests_per_unit` mean the same; keep one",
        ),
        (
            with_limit("{unit: hour, requests: -1}"),
            "3:47: `requests`: expected a whole number from 0 to 4294967295, found the number -1",
        ),
        (
            with_limit("{unit: hour, requests: many}"),
            "3:47: `requests`: expected a whole number from 0 to 4294967295, found \"many\"",
        ),
        (
            with_limit("{unit: hour, requests: 1, burst: 2}"),
            "3:57: `burst` is for token_bucket only",
        ),
        (
            with_limit("{unit: hour, requests: 1, algorithm: leaky}"),
            "3:61: unknown algorithm \"leaky\"; expected fixed_window or token_bucket",
        ),
        (with_limit("{period: 0s, requests: 1}"), "3:33: period 0 is not allowed (minimum 1ms)"),
        (
            with_limit("{period: 4000d, requests: 1}"),
            "3:33: period 345600000s is too long (maximum 3660d)",
        ),
        (
            with_limit("{unit: hour, algorithm: token_bucket}"),
            "3:25: requests 0 is not allowed for token_bucket (minimum 1); it would never refill",
        ),
        (
            with_limit("{unit: hour, algorithm: token_bucket, requests: 1, burst: 0}"),
            "3:82: burst 0 is not allowed (minimum 1)",
        ),
        (
            with_limit("{unit: hour, algorithm: token_bucket, requests: 1, initial: 2}"),
            "3:84: initial 2 is more than burst 1",
        ),
        (
            with_limit("{unlimited: true, unit: hour}"),
            "3:48: `unit` says nothing when `unlimited` is true; remove one",
        ),
        (
            with_limit("{unit: hour, requests: 1, replaces: []}"),
            "3:50: `replaces` is not supported by this version of tidegate",
        ),
    ];
    for (text, message) in table {
        let errors = load_text(&text).err().unwrap_or_else(|| panic!("accepted:\n{text}"));
        assert_eq!(errors, [format!("limits.yaml:{message}")], "for\n{text}");
    }
}

#[test]
fn every_mistake_of_every_file_is_told_at_once() {
    let dir = directory(&[
        ("a.yaml", "domain: one\ndescriptors:\n- key: ''\n- {key: k, valu: x}\n"),
        ("b.yml", "domain: two\ndescriptors:\n- {key: k, rate_limit: {unit: eon}}\n"),
        ("c.yaml", "domain: three\n"),
        ("d.yaml", "domain: three\n"),
        (".hidden.yaml", "nonsense"),
        ("notes.txt", "nonsense"),
    ]);
    let errors =
        load(dir.path()).unwrap_err().to_string().replace(dir.path().to_str().unwrap(), "");
    let expected = "\
/a.yaml:3:8: `key` must be there and not empty
/a.yaml:4:12: unknown key `valu` in a descriptor (did you mean `value`?)
/b.yml:3:31: unknown unit \"eon\"; expected second, minute, hour, day, week, month, year
/d.yaml:1:9: domain \"three\" is already defined by /c.yaml
4 errors in the limits";
    assert_eq!(errors, expected);
}

#[test]
fn what_cannot_be_read_is_named() {
    let dir = directory(&[("binary.yaml", "x")]);
    std::fs::write(dir.path().join("binary.yaml"), b"\xff\xfe\xfd").unwrap();
    let missing = load(&dir.path().join("none.yaml")).unwrap_err().to_string();
    assert!(missing.contains("none.yaml: cannot read: No such file"), "{missing}");
    let binary = load(dir.path()).unwrap_err().to_string();
    assert!(
        binary.contains("binary.yaml: cannot read: stream did not contain valid UTF-8"),
        "{binary}"
    );
    let empty = load(directory(&[]).path()).unwrap_err().to_string();
    assert!(empty.contains("no *.yaml or *.yml file in this directory"), "{empty}");
}

#[test]
fn hostile_yaml_is_an_error_and_no_crash() {
    let deep = format!("domain: {}", "[".repeat(100_000));
    let laughs = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\n\
                  c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\n\
                  e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n\
                  g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n";
    for text in [deep.as_str(), laughs, "a: &a [*a]", "\u{0}", "? [a]\n: b", "- - - -\n"] {
        assert!(load_text(text).is_err(), "accepted {}", &text[..text.len().min(40)]);
    }
}
