//! Tokens in cookies: which calls the built filter makes to find one, and the cost of headers that
//! clients fill with cookies.

use crate::host::{self, Host, Outcome};
use crate::scene::*;
use serde_json::{Value, json};
use tidegate_core::Verdict;

/// `{"alg":"HS256"}`, `{"sub":"ann"}`, and any signature.
const TOKEN: &[u8] = b"jwt=eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2ln";

const FIRST: &[&str] = &["proxy_get_header_map_value", "proxy_grpc_call"];
const ALL: &[&str] =
    &["proxy_get_header_map_value", "proxy_get_header_map_pairs", "proxy_grpc_call"];

fn plugin_of_cookie() -> Value {
    let mut plugin = plugin();
    let claim = json!({"jwt_claim":
        {"descriptor_key": "user", "cookie": "jwt", "claim_name": "sub", "default_value": "none"}});
    plugin["rate_limits"] = json!([{"actions": [claim]}]);
    plugin
}

/// Answers what was asked, and returns the user that it was about.
fn user(host: &mut Host, request: host::ContextId) -> String {
    let call = host.take_grpc_calls().remove(0);
    let user = entries(&call)[0][0].1.clone();
    allow(host, ON_ALLOW);
    host.answer(call.token, &answer(Verdict::Allow, &[(Verdict::Allow, "", 9, 30)]));
    assert_eq!(*host.outcome(request), Outcome::Resumed);
    host.allow(&[]);
    host.finish(request);
    user
}

/// A single `cookie` header with the token costs the one read of any header.
#[test]
fn all_headers_are_read_only_where_the_first_has_no_such_cookie() {
    let mut host = started(&plugin_of_cookie());
    let mut check = |headers: &[(&str, &[u8])], calls: &[&'static str], expected: &str| {
        allow(&mut host, calls);
        host.clear_calls();
        let request = host.request(headers);
        let pairs = host.calls().get("proxy_get_header_map_pairs").copied().unwrap_or_default();
        assert_eq!(pairs, u32::from(calls == ALL), "of {headers:?}");
        assert_eq!(user(&mut host, request), expected, "of {headers:?}");
    };
    check(&[(":path", b"/")], FIRST, "none");
    check(&[("cookie", TOKEN)], FIRST, "ann");
    check(&[("cookie", TOKEN), ("cookie", b"jwt=")], FIRST, "ann");
    check(&[("cookie", b"jwt="), ("cookie", TOKEN)], FIRST, "none");
    check(&[(":path", b"/"), ("cookie", b""), ("cookie", TOKEN)], ALL, "ann");
    check(&[("cookie", b"a=b"), ("x-cookie", TOKEN)], ALL, "none");
}

/// Instructions of a request with these cookies, after one of the same kind.
fn cost(headers: &[(&str, &[u8])]) -> u64 {
    let mut host = started(&plugin_of_cookie());
    allow(&mut host, ALL);
    let request = host.request(headers);
    assert_eq!(user(&mut host, request), "none");
    allow(&mut host, ALL);
    host.clear_calls();
    let _ = host.request(headers);
    host.instructions()["proxy_on_request_headers"]
}

#[test]
fn headers_full_of_cookies_cost_a_few_instructions_a_byte() {
    for piece in ["a=b; ", ";", "=", " ", "jwt;", "jwt", " jwt =", "\u{e9}"] {
        let headers = |bytes: usize| piece.repeat(bytes / piece.len()).into_bytes();
        let [short, long] = [6_000, 60_000].map(|bytes| cost(&[("cookie", &headers(bytes))]));
        println!("COST {} a byte of {piece:?}", long / 60_000);
        assert!(long <= 100 * 60_000, "{piece:?}: {long}");
        assert!(long <= short * 11, "{piece:?}: {short} for a tenth of {long}");
    }
    // As many as an Envoy may be configured to let through, ten times its default and more.
    for name in ["cookie", "x"] {
        let many = |headers: usize| {
            [vec![("cookie", &b"a"[..])], vec![(name, &b"a"[..]); headers]].concat()
        };
        let [few, many] = [1_000, 10_000].map(|headers| cost(&many(headers)));
        println!("COST {} a header of {name:?}", many / 10_000);
        assert!(many <= 200 * 10_000, "{name}: {many}");
        assert!(many <= few * 11, "{name}: {few} for a tenth of {many}");
    }
}
