//! Values with substitution commands, of descriptors and of costs.

use super::*;

/// The descriptor of one entry with this value and this default.
fn check(value: &str, default: &str, known: Known<'_>, expected: Option<&str>) {
    let key = json!({"descriptor_value": value, "default_value": default});
    let config = config(&json!([{"actions": [{"generic_key": key}]}]));
    let expected: Vec<String> =
        expected.iter().map(|value| format!("generic_key={value}")).collect();
    let (enforced, _) = descriptors(&config, &facts(known));
    assert_eq!(shown(&enforced), expected, "for {value} of {known:?}");
}

#[test]
fn a_format_is_filled_in_and_counts_as_absent_when_it_is_empty() {
    let value = |value: &str, known: Known<'_>, expected: &str| {
        check(value, "", known, Some(expected));
    };
    value("%REQ(a)%", &[("a", b"1")], "1");
    value("x-%REQ(a)%%%%REQ(b)%-y", &[("a", b"1"), ("b", b"2")], "x-1%2-y");
    value("%REQ(a?b)%", &[("b", b"2")], "2");
    value("[%REQ(a)%]", &[], "[]");
    // No value is a command.
    value("%REQ(a)%", &[("a", b"%REQ(b)% %%")], "%REQ(b)% %%");
    value("100%", &[], "100%");
    value("50%%", &[], "50%%");
    check("%REQ(a)%", "", &[], None);
    check("%REQ(a)%", "", &[("a", b"")], None);
    check("%REQ(a)%", "d", &[], Some("d"));
    check("%REQ(a)%", "d", &[("a", b"")], Some("d"));
    check("%REQ(a):0%", "", &[("a", b"1")], None);
    // A header that is present and empty is not replaced.
    check("%REQ(a?b)%", "d", &[("a", b""), ("b", b"2")], Some("d"));
}

#[test]
fn the_forms_of_values() {
    let value = |value: &str, known: Known<'_>, expected: &str| {
        check(value, "", known, Some(expected));
    };
    value("%PATH%", &[(":path", b"/a?b")], "/a?b");
    value("%PATH(NQ)%", &[(":path", b"/a?b?c")], "/a");
    value("%PATH(NQ)%", &[(":path", b"/a?b"), ("x-envoy-original-path", b"/o?p")], "/o");
    value("%PATH(NQ):2%", &[(":path", b"/abc?d")], "/a");
    value("%PATH(NQ):9%", &[(":path", b"/abc?d")], "/abc");
    value("%QUERY_PARAM(q)%", &[(":path", b"/?q=%41&q=b")], "A");
    let address = "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%";
    value(address, &[(ADDRESS, b"203.0.113.9:4711")], "203.0.113.9");
    value(address, &[(ADDRESS, b"[2001:db8::7]:1")], "2001:db8::7");
    value("%DOWNSTREAM_REMOTE_ADDRESS%", &[(ADDRESS, b"[2001:db8::7]:1")], "[2001:db8::7]:1");
    let port: Known<'_> = &[("destination|port", &443_u64.to_le_bytes())];
    value("%DOWNSTREAM_LOCAL_PORT%", port, "443");
    value("%PROTOCOL%", &[("request|protocol", b"HTTP/2")], "HTTP/2");
    check("%REQUESTED_SERVER_NAME%", "", &[("connection|requested_server_name", b"")], None);
}

#[test]
fn metadata_is_shown_by_its_type() {
    let in_metadata = |length: &str, bytes: &[u8], expected: Option<&str>| {
        let value = format!("%METADATA(ROUTE:n:k){length}%");
        check(&value, "", &[("xds|route_metadata|filter_metadata|n|k", bytes)], expected);
    };
    in_metadata("", b"text", Some("text"));
    in_metadata(":2", b"text", Some("te"));
    in_metadata("", b"", None);
    for (number, expected) in [
        (7.0_f64, "7"),
        (0.0, "0"),
        (-3.0, "-3"),
        (1_048_577.0, "1048577"),
        (17_592_186_044_416.0, "17592186044416"),
    ] {
        in_metadata("", &number.to_le_bytes(), Some(expected));
        in_metadata(":1", &number.to_le_bytes(), expected.get(..1));
    }
    in_metadata("", &[1], Some("true"));
    in_metadata("", &[0], Some("false"));
    // Not whole, or not a number.
    in_metadata("", &3.5_f64.to_le_bytes(), Some("\0\0\0\0\0\0\u{c}@"));
    in_metadata("", &f64::NAN.to_le_bytes(), Some("\0\0\0\0\0\0\u{fffd}\u{7f}"));
    in_metadata("", b"12345678", Some("12345678"));
    in_metadata("", b"abcdefg@", Some("abcdefg@"));
}

#[test]
fn other_actions_with_a_value_have_formats_too() {
    let value = json!("%REQ(a)%");
    let headers = json!([{"name": "h"}]);
    let actions = [
        json!({"header_value_match": {"descriptor_value": value, "headers": headers}}),
        json!({"query_parameter_value_match":
            {"descriptor_value": value, "query_parameters": [{"name": "q"}]}}),
        json!({"remote_address_match": {"descriptor_value": value, "address_matcher":
            {"ranges": [{"address_prefix": "10.0.0.0", "prefix_len": 8}]}}}),
    ];
    let keys = ["header_match", "query_match", "remote_address_match"];
    let matching: Known<'_> =
        &[("h", b""), (":path", b"/?q"), (ADDRESS, b"10.1.1.1:1"), ("a", b"1")];
    let other: Known<'_> = &[("a", b"1"), (":path", b"/"), (ADDRESS, b"11.1.1.1:1")];
    for (action, key) in actions.iter().zip(keys) {
        super::check(action, matching, Some(&format!("g=1,{key}=1")));
        super::check(action, &matching[..3], None);
        super::check(action, other, None);
    }
}

#[test]
fn a_cost_is_the_number_that_a_command_has() {
    let check = |format: &str, known: Known<'_>, expected: u64| {
        let actions = json!([{"generic_key": {"descriptor_value": "v"}}]);
        let config = config(&json!([{"actions": actions, "hits_addend": {"format": format}}]));
        let (enforced, _) = descriptors(&config, &facts(known));
        let hits = enforced.iter().next().unwrap().hits;
        assert_eq!(hits, expected, "for {format} of {known:?}");
    };
    check("%REQ(a?b)%", &[("b", b"7")], 7);
    check("%REQ(a?b)%", &[], 1);
    check("%REQ(a):1%", &[("a", b"42")], 4);
    check("%QUERY_PARAM(n)%", &[(":path", b"/?n=3")], 3);
    check("%DOWNSTREAM_LOCAL_PORT%", &[("destination|port", &9_u64.to_le_bytes())], 9);
    // Of a header, eight bytes are no number but a text.
    check("%REQ(a?b)%", &[("a", b"abcdefg@")], 1);
    let of_metadata = |bytes: &[u8], expected| {
        check("%DYNAMIC_METADATA(n:k)%", &[("metadata|filter_metadata|n|k", bytes)], expected);
    };
    let of_number = |number: f64, expected| of_metadata(&number.to_le_bytes(), expected);
    of_metadata(b"42", 42);
    of_metadata(b" 2.5 ", 3);
    of_metadata(b"12345678", 12_345_678);
    of_metadata(b"text", 1);
    of_metadata(&[1], 1);
    of_number(0.0, 0);
    of_number(42.0, 42);
    of_number(2.5, 3);
    of_number(0.1, 1);
    of_number(1e9, HITS_MAX);
    of_number(1e9 + 1.0, HITS_MAX);
    of_number(-3.0, 1);
    of_number(1e300, 1);
    of_number(f64::NAN, 1);
    of_number(f64::INFINITY, 1);
}

/// Whatever a client sends, a value is UTF-8 of bounded length, and its tail counts.
#[test]
fn long_values_and_other_bytes_are_shortened_and_replaced() {
    let long = |end: u8| [vec![b'x'; 60_000], vec![end]].concat();
    let value = |format: &str, value: &[u8]| {
        let config = config(&json!([{"actions": [{"generic_key": {"descriptor_value": format}}]}]));
        let path = [b"/", value].concat();
        let (enforced, _) = descriptors(&config, &facts(&[("a", value), (":path", &path)]));
        let value = entries_of(enforced.iter().next().unwrap().entries).remove(0).value;
        assert!(value.len() <= TEXT_BYTES_MAX, "{}", value.len());
        value
    };
    let short = VALUE_BYTES_KEPT + "~".len() + 32;
    for format in ["%REQ(a)%", "%REQ(a)%%REQ(a)%", "%PATH(NQ)%"] {
        assert_ne!(value(format, &long(b'1')), value(format, &long(b'2')), "{format}");
    }
    assert_eq!(value("%REQ(a)%", &long(b'1')).len(), short);
    // Together too long: shortened once more.
    assert_eq!(value("%REQ(a)%", &[b'x'; 1024]).len(), 1024);
    assert_eq!(value("%REQ(a)%-", &[b'x'; 1024]).len(), short);
    // A client that changes only the query, or what is cut off, keeps its counter.
    let query = |query: &str| [long(b'1'), query.as_bytes().to_vec()].concat();
    assert_eq!(value("%PATH(NQ)%", &query("?1")), value("%PATH(NQ)%", &query("?2")));
    assert_eq!(value("%REQ(a):1000%", &long(b'1')), "x".repeat(1000));
    assert_eq!(value("%PATH(NQ):1000%", &query("?1")), format!("/{}", "x".repeat(999)));
    assert_eq!(value("%REQ(a)%-%REQ(a)%", b"a\xff"), "a\u{fffd}-a\u{fffd}");
    // Cut in the middle of a character.
    assert_eq!(value("%REQ(a):4%", "caf\u{e9}".as_bytes()), "caf\u{fffd}");
    let bytes = "\u{fffd}".len() * VALUE_BYTES_MAX;
    assert!(value("%REQ(a)%", &[0xff; VALUE_BYTES_MAX]).len() <= bytes);
}

#[test]
fn commands_share_the_facts_of_actions() {
    let config = config(&json!([{
        "actions": [
            {"request_headers": {"header_name": "a", "descriptor_key": "a"}},
            {"generic_key": {"descriptor_value": "%REQ(a?b)%-%REQ(a)%"}},
            {"remote_address": {}},
        ],
        "hits_addend": {"format": "%REQ(a?b)%"},
    }]));
    let facts = facts(&[("a", b"3"), (ADDRESS, b"1.1.1.1:1")]);
    let (enforced, _) = descriptors(&config, &facts);
    assert_eq!(shown(&enforced), ["a=3,generic_key=3-3,remote_address=1.1.1.1*3"]);
    assert_eq!(*facts.read.borrow(), ["a", ADDRESS]);
}
