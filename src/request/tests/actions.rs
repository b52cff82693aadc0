//! The entry that each action makes of a request.

use super::*;

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
