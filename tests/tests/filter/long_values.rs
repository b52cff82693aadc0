//! Long values: what the built filter does with them, in instructions of the module.
//!
//! Eight ordinary expressions on a path of 56 KB took 23 ms of a worker for each request, where Envoy's own filter
//! took 1.1 ms: the engine simulated an NFA, and read a value as UTF-8 for each of them. Three
//! connections with long paths kept a worker so busy that its asks were late. A byte of a value may cost
//! so much, whatever the value and the expression are, and twice the bytes twice as much.

use crate::host::{self, Host, Outcome};
use crate::scene::*;
use serde_json::{Value, json};

const SHORT: usize = 6_000;
const LONG: usize = 60_000;

/// Letters that are the same in each run.
struct Letters(u64);

impl Letters {
    fn of(&mut self, alphabet: &[u8], length: usize) -> Vec<u8> {
        let letter = |_| {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            alphabet[(self.0 >> 33) as usize % alphabet.len()]
        };
        (0..length).map(letter).collect()
    }
}

/// One descriptor for each action, whose test is of the header `x-text` or of the query.
fn plugin_of(actions: &[Value]) -> Value {
    let mut plugin = plugin();
    plugin["rate_limits"] = actions.iter().map(|action| json!({"actions": [action]})).collect();
    plugin
}

fn of_header(test: &Value) -> Value {
    json!({"header_value_match": {
        "descriptor_value": test.to_string(),
        "headers": [{"name": "x-text", "string_match": test}],
    }})
}

fn of_expression(regex: &str) -> Value {
    of_header(&json!({"safe_regex": {"regex": regex}}))
}

/// The most instructions of three equal requests; the first one is the first of its worker with a
/// long value. Only one with a short value comes before it, since the first request of a worker also makes its
/// table of leases, at a cost that no value changes.
fn cost(plugin: &Value, name: &str, value: &mut dyn FnMut() -> Vec<u8>) -> u64 {
    let mut host = started(plugin);
    allow_all(&mut host);
    let first = host.request(&[(name, b"/")]);
    end(&mut host, first);
    let mut most = 0;
    for _ in 0..3 {
        let value = value();
        host.clear_calls();
        let request = host.request(&[(name, &value)]);
        most = most.max(host.instructions()["proxy_on_request_headers"]);
        end(&mut host, request);
    }
    most
}

/// Has what was asked fail, so that the next request is as the first.
fn end(host: &mut Host, request: host::ContextId) {
    for call in host.take_grpc_calls() {
        host.answer(call.token, &answer(tidegate_core::Verdict::Allow, &[]));
    }
    assert_ne!(*host.outcome(request), Outcome::Paused);
    host.finish(request);
}

/// Checks that ten times the bytes cost about ten times as much, and a byte at most `most`.
fn check(
    what: &str,
    plugin: &Value,
    name: &str,
    most: u64,
    value: &mut dyn FnMut(usize) -> Vec<u8>,
) {
    let [short, long] = [SHORT, LONG].map(|length| cost(plugin, name, &mut || value(length)));
    let each = long / LONG as u64;
    eprintln!("COST {each} {:.1} {what}", long as f64 / short as f64);
    assert!(each <= most, "{what}: {each} instructions a byte (at most {most})");
    assert!(long <= short * 11, "{what}: {short} for {SHORT} bytes, {long} for {LONG}");
}

#[test]
fn ordinary_expressions_cost_a_few_instructions_a_byte() {
    let mut letters = Letters(1);
    for regex in [
        "/search.*",
        r".*\.(png|jpe?g|gif|css|js)",
        ".*[?&]debug=(1|true)(&.*)?",
        ".*/admin/.*",
        "(?i).*/Static/.*",
        r"/[a-z/]*(/\w+)*",
        r"/([^/]+/)*[a-z]+\.html",
        "(/(a|b|c|d|e))+.*x{0,3}y",
        "(.*)(.*)(.*)=",
        "(a+)+b|.*;",
        r"(\w+/?)+;",
        "(.+)+;",
        "(x+x+)+y|(/.*)+;",
        "[^&]{1,20}.*[^/]{2}",
    ] {
        check(regex, &plugin_of(&[of_expression(regex)]), "x-text", 60, &mut |length| {
            [b"/", letters.of(b"abcdexy/", length - 1).as_slice()].concat()
        });
    }
}

/// A value that is over at its first bytes costs what it costs to read it.
#[test]
fn an_expression_that_cannot_match_any_more_is_over() {
    let plugin = plugin_of(&["/api/.*", "v[0-9]+", "[^/]*"].map(of_expression));
    check("early ends", &plugin, "x-text", 4, &mut |length| vec![b'/'; length]);
}

/// More states than there is room for, on values that need ever new ones: the room of an expression would be
/// filled anew again and again.
#[test]
fn expressions_of_very_many_states_cost_a_bounded_number_a_byte() {
    for (regex, alphabet, most) in [
        ("(a|b)*a(a|b){12}", "ab", 3_500),
        ("(a|b)*a(a|b){60}", "ab", 12_000),
        (".*token=.{16,64};", "token=", 10_000),
        (".*a.{30}b.{30}", "ab", 12_000),
        ("(.*a){8}.{0,20}b.{0,20}c", "ab", 25_000),
        (".*[ab].{100}", "ab", 2_000),
    ] {
        let mut letters = Letters(7);
        check(regex, &plugin_of(&[of_expression(regex)]), "x-text", most, &mut |length| {
            letters.of(alphabet.as_bytes(), length)
        });
    }
}

#[test]
fn bytes_that_are_no_text_cost_no_more() {
    let regexes: Vec<Value> = (0..8).map(|n| of_expression(&format!(".*{n}.*"))).collect();
    let plugin = plugin_of(&regexes);
    check("no UTF-8", &plugin, "x-text", 800, &mut |length| vec![0xff; length]);
}

#[test]
fn tests_of_texts_cost_a_few_instructions_a_byte() {
    for test in [
        json!({"exact": "a"}),
        json!({"prefix": "aaa"}),
        json!({"suffix": "ba"}),
        json!({"contains": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"}),
        json!({"contains": "baaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}),
        json!({"contains": "AAAAAAAAAAAAAAAB", "ignore_case": true}),
    ] {
        let what = test.to_string();
        check(&what, &plugin_of(&[of_header(&test)]), "x-text", 40, &mut |length| {
            vec![b'a'; length]
        });
    }
}

/// Each action read the whole path again, and each entry hashed a long value again.
#[test]
fn many_actions_read_a_long_value_once() {
    let parameter = |n: usize| json!({"query_parameters": {"query_parameter_name": format!("n{n}"), "descriptor_key": "k"}});
    let matched = |n: usize| {
        json!({"query_parameter_value_match": {"descriptor_value": "v",
            "query_parameters": [{"name": format!("m{n}"), "present_match": true}]}})
    };
    let value = |n: usize| json!({"request_headers": {"header_name": ":path", "descriptor_key": format!("k{n}")}});
    type Value<'a> = (&'a str, Vec<u8>);
    let paths: [Value<'_>; 3] = [
        ("names", b"&a".to_vec()),
        ("near names", b"&n1%3".to_vec()),
        ("text", b"&x=abcd%20".to_vec()),
    ];
    for (what, part) in paths {
        let path = |length: usize| [b"/?", part.repeat(length / part.len()).as_slice()].concat();
        let all = |count| (0..count).flat_map(|n| [parameter(n), matched(n)]).collect::<Vec<_>>();
        check(what, &plugin_of(&all(1)), ":path", 250, &mut |length| path(length));
        check(&format!("{what} 50"), &plugin_of(&all(50)), ":path", 400, &mut |length| {
            path(length)
        });
    }
    let values: Vec<_> = (0..100).map(value).collect();
    let path = |length: usize| vec![b'/'; length];
    check("hashes", &plugin_of(&values), ":path", 80, &mut |length| path(length));
}

/// Formats read a value as often as they name it, and shorten it once.
#[test]
fn formats_cost_a_few_instructions_a_byte() {
    let of = |value: &str| plugin_of(&[json!({"generic_key": {"descriptor_value": value}})]);
    let long = |length: usize| [b"/", vec![b'a'; length - 1].as_slice()].concat();
    let many = "%REQ(x-text)%".repeat(16);
    for (format, name, most) in [
        ("%REQ(x-text)%", "x-text", 20),
        (&many, "x-text", 20),
        ("%REQ(x-text):1000%", "x-text", 20),
        ("%PATH(NQ:PATH)%", ":path", 20),
    ] {
        check(format, &of(format), name, most, &mut |length| long(length));
    }
    // The query of a path may have any length, too.
    check("%PATH(NQ:PATH)%", &of("%PATH(NQ:PATH)%"), ":path", 20, &mut |length| {
        [b"/?", vec![b'a'; length - 2].as_slice()].concat()
    });
}

/// Encodes bytes whose number is divisible by three.
fn base64url(bytes: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let of = |chunk: &[u8]| {
        let bits = chunk.iter().fold(0_usize, |bits, byte| (bits << 8) | usize::from(*byte));
        [18, 12, 6, 0].map(|shift| DIGITS[(bits >> shift) & 63])
    };
    bytes.chunks(3).flat_map(of).collect()
}

/// The payload of a token has as many values as its client likes, nested as deep.
#[test]
fn a_claim_costs_a_few_instructions_a_byte() {
    let action = json!({"jwt_claim":
        {"descriptor_key": "k", "header_name": "x-text", "claim_name": "sub"}});
    let plugin = plugin_of(&[action]);
    for (piece, end) in [
        ("\"a\":1,", "\"z\":0}"),
        ("\"a\\u0041\":\"\\n\",", "\"z\":0}"),
        ("\"a\":[[[{}]]],", "\"z\":0}"),
        ("\"sub\": ", "{}"),
        ("[", ""),
        ("\"a\":{", ""),
        ("       ", "\"z\":0}"),
    ] {
        check(&format!("claim {piece}"), &plugin, "x-text", 100, &mut |length| {
            let mut payload = b"{".to_vec();
            while payload.len() < length * 3 / 4 - 64 {
                payload.extend_from_slice(piece.as_bytes());
            }
            payload.extend_from_slice(end.as_bytes());
            payload.resize(payload.len().next_multiple_of(3), b' ');
            [&base64url(b"{\"alg\":\"HS256\"}"), &b"."[..], &base64url(&payload), b".c2ln"].concat()
        });
    }
    check("a long claim", &plugin, "x-text", 100, &mut |length| {
        let text = "\\n".repeat(length * 3 / 8 - 64);
        let mut payload = format!("{{\"sub\":\"{text}\"}}").into_bytes();
        payload.resize(payload.len().next_multiple_of(3), b' ');
        [&base64url(b"{\"alg\":\"HS256\"}"), &b"."[..], &base64url(&payload), b".c2ln"].concat()
    });
}
