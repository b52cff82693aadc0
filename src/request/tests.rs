//! Requests and the descriptors extracted from them, by configurations as users write them.

mod as_envoy;
mod claims;
mod formats;
mod limits;
mod virtual_hosts;
#[cfg(feature = "cel")]
mod when;
#[cfg(feature = "cel")]
mod when_twin;

use super::*;
use crate::config::encoded::{encoded, entries_of};
use crate::request::descriptors::DescriptorRef;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// A request, and the values read from it.
#[derive(Debug, Default)]
struct Facts {
    headers: BTreeMap<String, Vec<Vec<u8>>>,
    properties: BTreeMap<String, Vec<u8>>,
    read: RefCell<Vec<String>>,
}

impl RequestFacts for Facts {
    fn header<T>(&self, name: &str, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        self.read.borrow_mut().push(name.to_owned());
        self.headers.get(name)?.first().map(|value| read(value))
    }

    fn find_header<T>(&self, name: &str, mut read: impl FnMut(&[u8]) -> Option<T>) -> Option<T> {
        self.read.borrow_mut().push(format!("all {name}"));
        self.headers.get(name)?.iter().find_map(|value| read(value))
    }

    fn property<T>(&self, path: &[&str], read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let path = path.join("|");
        self.read.borrow_mut().push(path.clone());
        self.properties.get(&path).map(|value| read(value))
    }
}

/// Headers, and properties with `|` between the parts of their path.
type Known<'a> = &'a [(&'a str, &'a [u8])];

fn facts(known: Known<'_>) -> Facts {
    let mut facts = Facts::default();
    for (name, value) in known {
        let (name, value) = ((*name).to_owned(), value.to_vec());
        if name.contains('|') {
            facts.properties.insert(name, value);
        } else {
            facts.headers.entry(name).or_default().push(value);
        }
    }
    facts
}

fn config(rate_limits: &Value) -> Config {
    let json = json!({"domain": "d", "sidecar": {"cluster": "c"}, "rate_limits": rate_limits});
    Config::from_envoy(json.to_string().as_bytes()).unwrap()
}

fn descriptors(config: &Config, facts: &Facts) -> (Descriptors, Descriptors) {
    let (mut enforced, mut shadowed) = (Descriptors::default(), Descriptors::default());
    extract(config, facts, 7, &mut enforced, &mut shadowed);
    (enforced, shadowed)
}

/// Descriptors as `key=value` joined by commas, with `*hits` unless 1.
fn shown(descriptors: &Descriptors) -> Vec<String> {
    let show = |descriptor: DescriptorRef<'_>| {
        let entries = entries_of(descriptor.entries);
        let entries = entries.iter().map(|entry| format!("{}={}", entry.key, entry.value));
        let hits =
            if descriptor.hits == 1 { String::new() } else { format!("*{}", descriptor.hits) };
        entries.collect::<Vec<_>>().join(",") + &hits
    };
    descriptors.iter().map(show).collect()
}

/// One action after a constant one: the descriptor, or none if it was dropped.
fn check(action: &Value, known: Known<'_>, expected: Option<&str>) {
    let first = json!({"generic_key": {"descriptor_key": "g", "descriptor_value": "1"}});
    let config = config(&json!([{"actions": [first, action]}]));
    let (enforced, shadowed) = descriptors(&config, &facts(known));
    let expected: Vec<String> = expected.map(str::to_owned).into_iter().collect();
    assert_eq!(shown(&enforced), expected, "for {action} of {known:?}");
    assert!(shadowed.is_empty());
}

const ADDRESS: &str = "source|address";

#[test]
fn actions_that_have_the_value_of_a_header() {
    let header = json!({"request_headers": {"header_name": "X-App", "descriptor_key": "app"}});
    check(&header, &[("x-app", b"a")], Some("g=1,app=a"));
    check(&header, &[("x-app", b"")], Some("g=1,app="));
    check(&header, &[("x-app", b"\xffa\xc3")], Some("g=1,app=\u{fffd}a\u{fffd}"));
    check(&header, &[], None);
    let mut skip = header;
    skip["request_headers"]["skip_if_absent"] = json!(true);
    check(&skip, &[], Some("g=1"));
    check(&skip, &[("x-app", b"a")], Some("g=1,app=a"));
}

#[test]
fn actions_that_have_a_query_parameter() {
    let query = json!({"query_parameters": {"query_parameter_name": "q"}});
    check(&query, &[(":path", b"/?q=%41&q=2")], Some("g=1,query_param=A"));
    check(&query, &[(":path", b"/?q")], Some("g=1,query_param="));
    check(&query, &[(":path", b"/q=1")], None);
    check(&query, &[], None);
    let skip = json!({"query_parameters": {
        "query_parameter_name": "q", "descriptor_key": "k", "skip_if_absent": true}});
    check(&skip, &[(":path", b"/?q=a")], Some("g=1,k=a"));
    check(&skip, &[(":path", b"/")], Some("g=1"));
}

/// Each action used to read the path again.
#[test]
fn the_path_is_read_once_for_all_parameters() {
    let query = |name: &str| {
        json!({"query_parameters": {"query_parameter_name": name, "descriptor_key": name,
            "skip_if_absent": true}})
    };
    let matched = json!({"query_parameter_value_match": {"descriptor_value": "v",
    "query_parameters": [
        {"name": "b", "string_match": {"safe_regex": {"regex": "x.z"}}},
        {"name": "c", "present_match": false},
    ]}});
    let config = config(&json!([
        {"actions": [query("a"), query("b"), query("d")]},
        {"actions": [matched, query("a%")]},
    ]));
    let facts = facts(&[(":path", b"/?b=x%FFz&%61=1%2f&a=2&a%25=%41&d")]);
    let (enforced, _) = descriptors(&config, &facts);
    assert_eq!(shown(&enforced), ["a=1/,b=x\u{fffd}z,d=", "query_match=v,a%=A"]);
    assert_eq!(*facts.read.borrow(), [":path"]);
}

/// An expression sees the bytes of a value, not the U+FFFD in its descriptor.
#[test]
fn an_invalid_byte_evades_no_expression() {
    let of = |regex: &str| {
        json!({"header_value_match": {"descriptor_value": regex, "headers": [
            {"name": "x-text", "string_match": {"safe_regex": {"regex": regex}}}]}})
    };
    let (any, one) = ("/api/.*", r"/api/[a-z\xc3]*");
    let config = config(&json!([{"actions": [of(any)]}, {"actions": [of(one)]}]));
    let matched = |value: &[u8]| shown(&descriptors(&config, &facts(&[("x-text", value)])).0);
    let [any, one] = [any, one].map(|regex| format!("header_match={regex}"));
    assert_eq!(matched(b"/api/\xff"), std::slice::from_ref(&any));
    assert_eq!(matched("/api/\u{e9}".as_bytes()), std::slice::from_ref(&any));
    assert_eq!(matched(b"/api/\xc3"), [any, one]);
}

/// A value is shortened once, whichever actions use it.
#[test]
fn a_long_value_has_one_short_form_and_is_tested_whole() {
    let value = json!({"request_headers": {"header_name": "x-text", "descriptor_key": "k"}});
    let matched = json!({"header_value_match": {"descriptor_value": "v", "headers": [
        {"name": "x-text", "string_match": {"safe_regex": {"regex": ".*b"}}},
        {"name": "x-text", "string_match": {"suffix": "ab"}}]}});
    let config = config(&json!([{"actions": [value, matched, value]}]));
    let mut text = vec![b'a'; 5_000];
    text.push(b'b');
    let facts = facts(&[("x-text", &text)]);
    let (enforced, _) = descriptors(&config, &facts);
    let entries = entries_of(enforced.iter().next().unwrap().entries);
    assert_eq!((entries.len(), &entries[0]), (3, &entries[2]));
    assert_eq!(entries[0].value.len(), 64 + 1 + 32);
    assert_eq!(*facts.read.borrow(), ["x-text"]);
}

#[test]
fn actions_of_the_address() {
    let remote = json!({"remote_address": {}});
    check(&remote, &[(ADDRESS, b"203.0.113.9:4711")], Some("g=1,remote_address=203.0.113.9"));
    check(&remote, &[(ADDRESS, b"[2001:DB8:0:0::7]:1")], Some("g=1,remote_address=2001:db8::7"));
    check(&remote, &[(ADDRESS, b"/run/envoy.sock")], None);
    check(&remote, &[], None);
    let masked = json!({"masked_remote_address": {
        "v4_prefix_mask_len": 24, "v6_prefix_mask_len": 32}});
    let expected = "g=1,masked_remote_address=192.168.1.0/24";
    check(&masked, &[(ADDRESS, b"192.168.1.77:1")], Some(expected));
    let expected = "g=1,masked_remote_address=2001:db8::/32";
    check(&masked, &[(ADDRESS, b"[2001:db8:1:2::9]:1")], Some(expected));
    check(&masked, &[(ADDRESS, b"x")], None);
    let whole = json!({"masked_remote_address": {}});
    check(&whole, &[(ADDRESS, b"1.2.3.4:1")], Some("g=1,masked_remote_address=1.2.3.4/32"));
    let matched = |invert: bool| {
        json!({"remote_address_match": {"descriptor_value": "v", "address_matcher": {
            "ranges": [{"address_prefix": "10.9.9.9", "prefix_len": 8},
                {"address_prefix": "fd00::", "prefix_len": 8}],
            "invert_match": invert}}})
    };
    let expected = Some("g=1,remote_address_match=v");
    let table: [(&[u8], bool); 3] =
        [(b"10.1.1.1:1", true), (b"[fd12::1]:1", true), (b"11.1.1.1:1", false)];
    for (address, inside) in table {
        check(&matched(false), &[(ADDRESS, address)], expected.filter(|_| inside));
        check(&matched(true), &[(ADDRESS, address)], expected.filter(|_| !inside));
    }
    check(&matched(true), &[], None);
}

#[test]
fn actions_that_are_always_the_same() {
    let generic = json!({"generic_key": {"descriptor_value": "50%OFF 5%"}});
    check(&generic, &[], Some("g=1,generic_key=50%OFF 5%"));
    let default = json!({"generic_key": {"descriptor_value": "", "default_value": "d"}});
    check(&default, &[], Some("g=1,generic_key=d"));
}

#[test]
fn actions_of_properties() {
    let source = json!({"source_cluster": {}});
    check(&source, &[("xds|node|cluster", b"edge")], Some("g=1,source_cluster=edge"));
    check(&source, &[], None);
    let destination = json!({"destination_cluster": {}});
    let expected = Some("g=1,destination_cluster=shop");
    check(&destination, &[("xds|cluster_name", b"shop")], expected);
    check(&destination, &[], None);
    let metadata = |source: &str, rest: &Value| {
        let mut action = json!({"metadata": {"descriptor_key": "m", "source": source,
            "metadata_key": {"key": "a.b", "path": [{"key": "c"}, {"key": "d"}]}}});
        action["metadata"].as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        action
    };
    let table = [
        ("DYNAMIC", "metadata|filter_metadata|a.b|c|d"),
        ("ROUTE_ENTRY", "xds|route_metadata|filter_metadata|a.b|c|d"),
        ("CLUSTER_ENTRY", "xds|cluster_metadata|filter_metadata|a.b|c|d"),
    ];
    for (source, property) in table {
        let plain = metadata(source, &json!({}));
        check(&plain, &[(property, b"v")], Some("g=1,m=v"));
        check(&plain, &[(property, b"")], None);
        check(&plain, &[], None);
        // Values that were not texts dropped the descriptor, and so did texts that resembled
        // numbers or were not UTF-8: a client could evade its limit.
        check(&plain, &[(property, b"abc\xff")], Some("g=1,m=abc\u{fffd}"));
        check(&plain, &[(property, b"eszf87be")], Some("g=1,m=eszf87be"));
        check(&plain, &[(property, b"a\x01b")], Some("g=1,m=a\u{1}b"));
        check(&plain, &[(property, &3.0_f64.to_le_bytes())], Some("g=1,m=\0\0\0\0\0\0\u{8}@"));
        check(&metadata(source, &json!({"skip_if_absent": true})), &[], Some("g=1"));
        let default = metadata(source, &json!({"default_value": "d", "skip_if_absent": true}));
        check(&default, &[], Some("g=1,m=d"));
        check(&default, &[(property, b"")], Some("g=1,m=d"));
    }
    // Envoy counts the items of a list in the path of the property.
    let item = json!({"metadata": {"descriptor_key": "m", "metadata_key":
        {"key": "a.b", "path": [{"key": "roles"}, {"index": 0}, {"index": 12}]}}});
    check(&item, &[("metadata|filter_metadata|a.b|roles|0|12", b"v")], Some("g=1,m=v"));
    check(&item, &[], None);
}

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

#[test]
fn what_a_request_costs() {
    let table: [(Value, Option<&[u8]>, &str); 17] = [
        (json!({"number": 0}), None, "generic_key=v*0"),
        (json!({"number": 1_000_000_000}), None, "generic_key=v*1000000000"),
        (json!({"header": "X-Cost"}), Some(b"7"), "generic_key=v*7"),
        (json!({"format": "%REQ(X-Cost)%"}), Some(b" 7 "), "generic_key=v*7"),
        (json!({"header": "x-cost"}), Some(b"0"), "generic_key=v*0"),
        (json!({"header": "x-cost"}), Some(b"2.1"), "generic_key=v*3"),
        (json!({"header": "x-cost"}), Some(b"99999999999999999999"), "generic_key=v*1000000000"),
        (json!({"header": "x-cost"}), None, "generic_key=v"),
        (json!({"header": "x-cost"}), Some(b""), "generic_key=v"),
        (json!({"header": "x-cost"}), Some(b"-5"), "generic_key=v"),
        // Cost 1; Envoy's own filter takes it for a number.
        (json!({"header": "x-cost"}), Some(b"+4"), "generic_key=v*4"),
        (json!({"header": "x-cost"}), Some(b"+-4"), "generic_key=v"),
        (json!({"header": "x-cost"}), Some(b"1e3"), "generic_key=v*1000"),
        (json!({"header": "x-cost"}), Some(b"1e999"), "generic_key=v*1000000000"),
        (json!({"header": "x-cost"}), Some(b"nan"), "generic_key=v"),
        (json!({"header": "x-cost"}), Some(b"inf"), "generic_key=v"),
        (json!({"header": "x-cost"}), Some(b"\xff"), "generic_key=v"),
    ];
    for (addend, value, expected) in table {
        let actions = json!([{"generic_key": {"descriptor_value": "v"}}]);
        let config = config(&json!([{"actions": actions, "hits_addend": addend}]));
        let known: Vec<(&str, &[u8])> = value.map(|value| ("x-cost", value)).into_iter().collect();
        assert_eq!(
            shown(&descriptors(&config, &facts(&known)).0),
            [expected],
            "for {addend} {value:?}"
        );
    }
}

#[test]
fn entries_of_rate_limits_apply_on_their_routes() {
    let key = |value: &str| json!([{"generic_key": {"descriptor_value": value}}]);
    let strict = json!({"metadata_key": {"key": "n", "path": [{"key": "t"}]}, "value": "strict"});
    let config = config(&json!([
        {"actions": key("all")},
        {"actions": key("named"), "routes": ["a", "b"]},
        {"actions": key("marked"), "route_metadata": strict},
        {"actions": key("both"), "routes": ["a"], "route_metadata": strict},
    ]));
    let (route, tier) = ("xds|route_name", "xds|route_metadata|filter_metadata|n|t");
    let table: [(Known<'_>, &[&str]); 5] = [
        (&[], &["all"]),
        (&[(route, b"b")], &["all", "named"]),
        (&[(route, b"c")], &["all"]),
        (&[(tier, b"strict")], &["all", "marked"]),
        (&[(route, b"a"), (tier, b"strict")], &["all", "named", "marked", "both"]),
    ];
    for (known, expected) in table {
        let facts = facts(known);
        let expected: Vec<_> =
            expected.iter().map(|value| format!("generic_key={value}")).collect();
        assert_eq!(shown(&descriptors(&config, &facts).0), expected, "for {known:?}");
    }
}

#[test]
fn routes_are_known_by_parts_of_their_names_and_metadata() {
    let key = |value: &str| json!([{"generic_key": {"descriptor_value": value}}]);
    let metadata_key = json!({"key": "n", "path": [{"key": "t"}]});
    let strict =
        json!({"metadata_key": metadata_key, "value": {"safe_regex": {"regex": "strict|.x"}}});
    let config = config(&json!([
        {"actions": key("prefix"), "routes": ["a", {"prefix": "api-"}]},
        {"actions": key("regex"), "routes": [{"safe_regex": {"regex": "api-v[0-9]+"}}]},
        {"actions": key("case"), "routes": [{"exact": "API-V1", "ignore_case": true}]},
        {"actions": key("end"), "routes": [{"suffix": "v1"}, {"contains": "\u{e9}"}]},
        {"actions": key("tier"), "route_metadata": strict},
    ]));
    let (route, tier) = ("xds|route_name", "xds|route_metadata|filter_metadata|n|t");
    let table: [(Known<'_>, &[&str]); 9] = [
        (&[], &[]),
        (&[(route, b"")], &[]),
        (&[(route, b"a")], &["prefix"]),
        (&[(route, b"api-v1")], &["prefix", "regex", "case", "end"]),
        (&[(route, b"api-v1x")], &["prefix"]),
        (&[(route, "\u{e9}t".as_bytes())], &["end"]),
        (&[(tier, b"strict")], &["tier"]),
        (&[(tier, b"\xffx")], &["tier"]),
        (&[(tier, b"strict2")], &[]),
    ];
    for (known, expected) in table {
        let expected: Vec<_> =
            expected.iter().map(|value| format!("generic_key={value}")).collect();
        assert_eq!(shown(&descriptors(&config, &facts(known)).0), expected, "for {known:?}");
    }
}

#[test]
fn shadow_is_extracted_separately() {
    let actions = |value: &str| json!([{"generic_key": {"descriptor_value": value}}]);
    let config = config(&json!([
        {"actions": actions("a")}, {"actions": actions("b"), "shadow": true}, {"actions": actions("c")},
    ]));
    let (enforced, shadowed) = descriptors(&config, &facts(&[]));
    assert_eq!(shown(&enforced), ["generic_key=a", "generic_key=c"]);
    assert_eq!(shown(&shadowed), ["generic_key=b"]);
}

/// A host call costs more than the rest of an action.
#[test]
fn each_fact_is_read_at_most_once_and_only_if_it_is_needed() {
    let header = json!({"request_headers": {"header_name": "x-app", "descriptor_key": "app"}});
    let query = json!({"query_parameters": {"query_parameter_name": "q"}});
    let path = json!({"header_value_match": {
        "descriptor_value": "v", "headers": [{"name": ":path"}, {"name": "x-app"}]}});
    let remote = json!({"remote_address": {}});
    let masked = json!({"masked_remote_address": {}});
    let absent = json!({"request_headers": {"header_name": "x-none", "descriptor_key": "n"}});
    let never = json!({"request_headers": {"header_name": "x-never", "descriptor_key": "n"}});
    let config = config(&json!([
        {"actions": [header, remote, query]},
        {"actions": [header, masked, query, path], "hits_addend": {"header": "x-app"}},
        {"actions": [absent, never]},
        {"actions": [absent, never], "routes": ["x"]},
        {"actions": [never], "routes": ["x"]},
    ]));
    let facts = facts(&[("x-app", b"2"), (":path", b"/?q=1"), (ADDRESS, b"1.1.1.1:1")]);
    let (mut enforced, mut shadowed) = descriptors(&config, &facts);
    assert_eq!(
        shown(&enforced),
        [
            "app=2,remote_address=1.1.1.1,query_param=1",
            "app=2,masked_remote_address=1.1.1.1/32,query_param=1,header_match=v*2"
        ]
    );
    let expected = ["x-app", ADDRESS, ":path", "x-none", "xds|route_name"];
    assert_eq!(*facts.read.borrow(), expected);
    // Nothing is remembered for the next request.
    extract(&config, &Facts::default(), 7, &mut enforced, &mut shadowed);
    assert!(enforced.is_empty());
}

#[test]
fn a_long_value_is_shortened_and_still_tells_values_apart() {
    let config = config(&json!([{"actions": [
        {"request_headers": {"header_name": "h", "descriptor_key": "k"}}]}]));
    let value = |end: u8| [vec![b'x'; VALUE_BYTES_MAX], vec![end]].concat();
    let extracted =
        |value: &[u8]| shown(&descriptors(&config, &facts(&[("h", value)])).0).remove(0);
    let (first, second) = (extracted(&value(b'1')), extracted(&value(b'2')));
    assert_ne!(first, second);
    assert_eq!(first.len(), "k=".len() + VALUE_BYTES_KEPT + "~".len() + 32);
    assert!(first.starts_with(&format!("k={}~", "x".repeat(VALUE_BYTES_KEPT))));
    assert_eq!(extracted(&value(b'1')[..VALUE_BYTES_MAX]).len(), "k=".len() + VALUE_BYTES_MAX);
}

/// Every action that reads a value, without `skip_if_absent`.
fn everything() -> Value {
    let matcher = json!({"name": "h", "string_match": {"safe_regex": {"regex": ".*a|b\\d{2,9}"}}});
    let contains = json!({"name": "h", "string_match": {"contains": "A", "ignore_case": true}});
    let key = json!({"key": "n", "path": [{"key": "p"}]});
    let actions = [
        json!({"request_headers": {"header_name": "h", "descriptor_key": "k"}}),
        json!({"query_parameters": {"query_parameter_name": "a", "descriptor_key": "k"}}),
        json!({"remote_address": {}}),
        json!({"masked_remote_address": {"v4_prefix_mask_len": 3, "v6_prefix_mask_len": 77}}),
        json!({"remote_address_match": {"descriptor_value": "v", "address_matcher": {
            "ranges": [{"address_prefix": "::", "prefix_len": 1}]}}}),
        json!({"header_value_match": {"descriptor_value": "v", "headers": [matcher, contains,
            {"name": "h", "range_match": {"start": -9, "end": 9}, "invert_match": true}]}}),
        json!({"query_parameter_value_match": {"descriptor_value": "v", "query_parameters": [
            {"name": "a", "string_match": {"suffix": "b"}}]}}),
        json!({"metadata": {"descriptor_key": "k", "metadata_key": key}}),
        json!({"source_cluster": {}}),
        json!({"destination_cluster": {}}),
    ];
    let entry = |action| json!({"actions": [action], "hits_addend": {"header": "h"}});
    actions.into_iter().map(entry).collect()
}

/// The largest lossy conversion of [`VALUE_BYTES_MAX`] bytes: three for each.
const TEXT_BYTES_MAX: usize = 3 * VALUE_BYTES_MAX;

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        prop::collection::vec(prop::sample::select(b"?&=%a41b#\xff\xc3\x00+.: ".to_vec()), 0..40),
        (any::<u8>(), 1000_usize..10_000).prop_map(|(byte, count)| vec![byte; count]),
        any::<std::net::SocketAddr>().prop_map(|address| address.to_string().into_bytes()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_become_texts_of_bounded_length(
        h in bytes(), path in bytes(), address in bytes(), property in bytes(),
    ) {
        let config = config(&everything());
        let facts = facts(&[
            ("h", &h),
            (":path", &[b"/?a=", &path[..]].concat()),
            (ADDRESS, &address),
            ("metadata|filter_metadata|n|p", &property),
            ("xds|node|cluster", &property),
            ("xds|cluster_name", &property),
        ]);
        let (enforced, _) = descriptors(&config, &facts);
        // The first two and the last two always apply.
        prop_assert!(enforced.len() >= 4);
        for descriptor in enforced.iter() {
            prop_assert!(descriptor.hits <= HITS_MAX);
            let entries = entries_of(descriptor.entries);
            prop_assert_eq!(entries.len(), 1);
            prop_assert!(entries[0].value.len() <= TEXT_BYTES_MAX);
            // Decoded to the last byte, so all of it is UTF-8.
            prop_assert_eq!(descriptor.entries, encoded(&[&entries[0].key, &entries[0].value]));
        }
    }
}
