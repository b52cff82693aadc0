//! Requests and the descriptors extracted from them, by configurations as users write them.

mod actions;
mod as_envoy;
mod claims;
mod formats;
mod limits;
mod matchers;
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
