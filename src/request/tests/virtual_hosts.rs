//! Which entries apply by virtual host and route.

use super::*;
use crate::config::encoded::domain_of;

const HOST: &str = "xds|virtual_host_name";
const ROUTE: &str = "xds|route_name";
const CLUSTER: &str = "xds|cluster_name";

fn key(value: &str) -> Value {
    json!({"actions": [{"generic_key": {"descriptor_key": "k", "descriptor_value": value}}]})
}

fn config(fields: &Value) -> Config {
    let mut json = json!({"domain": "d", "sidecar": {"cluster": "c"}});
    json.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    Config::from_envoy(json.to_string().as_bytes()).unwrap()
}

/// The values of the descriptors of a request, each with its domain if that is not the filter's.
fn values(config: &Config, known: Known<'_>) -> Vec<String> {
    let (enforced, _) = descriptors(config, &facts(known));
    let value = |descriptor: DescriptorRef<'_>| {
        let domain = domain_of(descriptor.entries).map(|domain| format!("{domain}/"));
        domain.unwrap_or_default() + &entries_of(descriptor.entries)[0].value
    };
    enforced.iter().map(value).collect()
}

#[track_caller]
fn check(config: &Config, host: &str, route: Option<&str>, expected: &[&str]) {
    let mut known: Vec<(&str, &[u8])> = vec![(HOST, host.as_bytes()), (CLUSTER, b"c")];
    known.extend(route.map(|route| (ROUTE, route.as_bytes())));
    assert_eq!(values(config, &known), expected, "for {host} {route:?}");
}

#[test]
fn a_route_overrides_includes_or_ignores_its_virtual_host() {
    let option = |option: &str| json!({"vh_rate_limits": option});
    let config = config(&json!({"virtual_hosts": [
        {"name": "a", "rate_limits": [key("a1"), key("a2")], "routes": [
            {"name": "plain", "rate_limits": [key("r")]},
            {"name": "empty", "rate_limits": []},
            {"name": "override", "rate_limits": [key("r")], "per_route": option("OVERRIDE")},
            {"name": "include", "rate_limits": [key("r")], "per_route": option("INCLUDE")},
            {"name": "ignore", "rate_limits": [key("r")], "per_route": option("IGNORE")},
            {"name": "ignore-empty", "per_route": option("IGNORE")},
            {"name": "old", "rate_limits": [key("r")], "include_vh_rate_limits": true, "per_route": option("IGNORE")},
            {"name": "other-stage", "rate_limits": [
                {"stage": 1, "actions": [{"remote_address": {}}]}]},
            {"rate_limits": [key("unnamed")]},
        ]},
        {"name": "b", "per_route": option("IGNORE"), "rate_limits": [key("b")], "routes": [
            {"name": "own", "per_route": option("INCLUDE")},
            {"name": "host's", "rate_limits": [key("r")]},
        ]},
        {"name": "c", "rate_limits": [key("c")]},
    ]}));
    check(&config, "a", Some("plain"), &["r"]);
    check(&config, "a", Some("empty"), &["a1", "a2"]);
    check(&config, "a", Some("override"), &["r"]);
    check(&config, "a", Some("include"), &["r", "a1", "a2"]);
    check(&config, "a", Some("ignore"), &["r"]);
    check(&config, "a", Some("ignore-empty"), &[]);
    check(&config, "a", Some("old"), &["r", "a1", "a2"]);
    check(&config, "a", Some("other-stage"), &[]);
    check(&config, "a", Some("another"), &["a1", "a2"]);
    check(&config, "a", Some(""), &["unnamed"]);
    check(&config, "a", None, &["unnamed"]);
    check(&config, "b", Some("own"), &["b"]);
    check(&config, "b", Some("host's"), &["r"]);
    check(&config, "b", None, &[]);
    check(&config, "c", Some("plain"), &["c"]);
    check(&config, "c", None, &["c"]);
    check(&config, "d", Some("plain"), &[]);
}

#[test]
fn a_list_of_the_route_replaces_the_filters_own_and_that_replaces_all_others() {
    let with = |list: Value| json!({"rate_limits": list});
    let config = config(&json!({
        "rate_limits": [key("filter")],
        "virtual_hosts": [
            {"name": "a", "routes": [
                {"name": "x", "per_route": with(json!([key("x")]))},
                {"name": "y", "per_route": with(json!([]))},
            ]},
            {"name": "b", "per_route": with(json!([key("b")])), "routes": [
                {"name": "x", "per_route": with(json!([key("x")]))},
                {"name": "y", "per_route": {"vh_rate_limits": "INCLUDE"}},
            ]},
        ],
    }));
    check(&config, "a", Some("x"), &["x"]);
    check(&config, "a", Some("y"), &["filter"]);
    check(&config, "a", None, &["filter"]);
    check(&config, "b", Some("x"), &["x"]);
    check(&config, "b", Some("y"), &["filter"]);
    check(&config, "b", Some("z"), &["b"]);
    check(&config, "c", Some("x"), &["filter"]);
    // A request that Envoy answers itself.
    for known in [&[] as Known<'_>, &[(HOST, b"a"), (ROUTE, b"x")], &[(HOST, b"c")]] {
        assert_eq!(values(&config, known), [""; 0], "for {known:?}");
    }
}

#[test]
fn names_are_tried_exactly_first_and_then_by_matchers_in_order() {
    let config = config(&json!({"virtual_hosts": [
        {"name": {"prefix": "shop-"}, "rate_limits": [key("prefix")]},
        {"name": "shop-1", "rate_limits": [key("exact")], "routes": [
            {"name": {"safe_regex": {"regex": ".+"}}, "rate_limits": [key("any")]},
            {"name": {"prefix": "a"}, "rate_limits": [key("never")]},
            {"name": {"exact": "b"}, "rate_limits": [key("b")]},
        ]},
        {"name": {"safe_regex": {"regex": ".*"}}, "rate_limits": [key("all")]},
    ]}));
    check(&config, "shop-2", None, &["prefix"]);
    check(&config, "shop-1", None, &["exact"]);
    check(&config, "shop-1", Some("a"), &["any"]);
    check(&config, "shop-1", Some("b"), &["b"]);
    check(&config, "other", Some("b"), &["all"]);
    check(&config, "\u{fffd}", None, &["all"]);
}

#[test]
fn a_route_may_have_a_domain_of_its_own() {
    let other = json!({"vh_rate_limits": "INCLUDE", "domain": "other"});
    let skipped = json!({"request_headers":
        {"header_name": "x-none", "descriptor_key": "k", "skip_if_absent": true}});
    let config = config(&json!({"virtual_hosts": [
        {"name": "a", "rate_limits": [key("a"), {"actions": [skipped]}], "routes": [
            {"name": "x", "rate_limits": [key("r")], "per_route": other},
            {"name": "y", "rate_limits": [key("r")], "per_route": {"domain": "third"}},
            {"name": "z", "rate_limits": [key("r")]},
        ]},
    ]}));
    check(&config, "a", Some("x"), &["other/r", "other/a"]);
    check(&config, "a", Some("y"), &["third/r"]);
    check(&config, "a", Some("z"), &["r"]);
    // Tokens of one domain are not spent in another.
    let keys = ["x", "y", "z"].map(|route| {
        let known = [(HOST, &b"a"[..]), (CLUSTER, b"c"), (ROUTE, route.as_bytes())];
        descriptors(&config, &facts(&known)).0.iter().next().unwrap().key
    });
    assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2]);
}

/// A host call costs more than the rest of it.
#[test]
fn names_are_read_at_most_once_and_only_if_they_are_needed() {
    let config = config(&json!({"virtual_hosts": [
        {"name": "a", "rate_limits": [key("a")]},
        {"name": {"safe_regex": {"regex": "b.?"}}, "rate_limits": [
            {"actions": [{"destination_cluster": {}}], "routes": ["x", "y"]}], "routes": [
            {"name": {"safe_regex": {"regex": "z.?"}}}]},
        {"name": "n", "per_route": {"vh_rate_limits": "IGNORE"}, "rate_limits": [key("n")]},
    ]}));
    let table: [(Known<'_>, &[&str], &[&str]); 5] = [
        (&[], &[HOST], &[]),
        (&[(HOST, b"other"), (CLUSTER, b"c")], &[HOST], &[]),
        (&[(HOST, b"a"), (CLUSTER, b"c")], &[HOST, CLUSTER], &["k=a"]),
        (&[(HOST, b"n"), (CLUSTER, b"c")], &[HOST], &[]),
        (
            &[(HOST, b"b2"), (ROUTE, b"y"), (CLUSTER, b"c")],
            &[HOST, ROUTE, CLUSTER],
            &["destination_cluster=c"],
        ),
    ];
    for (known, read, expected) in table {
        let facts = facts(known);
        assert_eq!(shown(&descriptors(&config, &facts).0), expected, "for {known:?}");
        assert_eq!(*facts.read.borrow(), read, "for {known:?}");
    }
}
