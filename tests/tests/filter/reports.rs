//! What the built filter reports beside decisions, and which calls that takes.

use crate::host::{ContextId, Host, Outcome};
use crate::scene::*;
use prost::Message;
use serde_json::json;
use tidegate_core::{StatusDetails, Verdict};
use tidegate_wire::rls::{HeaderValue, RateLimitResponse};

const USER: [(&str, &[u8]); 1] = [("x-user", b"u")];

/// An answer that a rule in shadow would have denied.
fn in_shadow() -> Vec<u8> {
    let mut over = status(Verdict::Allow, "dark", 0, 30);
    let details =
        StatusDetails { further: Vec::new(), without_shadow: Verdict::Deny, is_uncounted: false };
    over.details = Some(Box::new(details));
    bytes_of(Verdict::Allow, vec![over])
}

fn reporting() -> Host {
    let mut plugin = plugin();
    plugin["shadow_header"] = json!("x-shadow");
    plugin["filter_state"] = json!("all");
    plugin["stat_prefix"] = json!("edge");
    started(&plugin)
}

#[test]
fn a_denial_in_shadow_is_reported_once_by_each_means() {
    let mut host = reporting();
    let (request, call) = asked(&mut host, &USER);
    allow(&mut host, &[ON_ALLOW, &["proxy_set_property"]].concat());
    host.answer(call.token, &in_shadow());
    assert_eq!(*host.outcome(request), Outcome::Resumed);
    assert_eq!(host.filter_state(request), [("wasm.tidegate.edge.shadow", "dark")]);
    host.allow(ON_RESPONSE);
    let headers = host.response_headers(request, &[(":status", b"200")]);
    assert_eq!(headers.text("x-shadow"), Some("dark"));
    assert_eq!(headers.text("ratelimit"), Some("\"dark\";r=0;t=30"));
    host.finish(request);
    allow(&mut host, ON_TICK);
    host.tick();
    assert_eq!(host.metric("tidegate.edge.rule_shadow_denied"), Some(1));
}

#[test]
fn a_denial_is_reported_to_the_access_log_if_that_is_wanted() {
    for (is_wanted, calls) in [(true, &["proxy_set_property"][..]), (false, &[])] {
        let mut host = if is_wanted { reporting() } else { started(&plugin()) };
        let (request, call) = asked(&mut host, &USER);
        allow(&mut host, &[ON_DENY, calls].concat());
        host.answer(call.token, &leased(Verdict::Deny, &call, 0, 2_000));
        assert_eq!(host.local_reply(request).status, 429);
        // By the cached denial, in its own callback.
        allow(&mut host, &[ON_REQUEST, ON_DENY, calls].concat());
        let again = host.request(&USER);
        let expected = [("wasm.tidegate.edge.denied_by", "user")];
        for request in [request, again] {
            assert_eq!(host.filter_state(request), expected[..usize::from(is_wanted)]);
        }
    }
}

#[test]
fn a_paused_request_gets_the_headers_of_its_answer_before_it_goes_on() {
    let mut host = started(&plugin());
    let (request, call) = asked(&mut host, &USER);
    let header = |key: &str, value: &str| HeaderValue { key: key.into(), value: value.into() };
    let decision = answer(Verdict::Allow, &[(Verdict::Allow, "", 9, 30)]);
    let with_headers = RateLimitResponse {
        request_headers_to_add: vec![header("X-Plan", "gold"), header("x-bad\r\n", "")],
        response_headers_to_add: vec![header("x-quota", "9")],
        ..RateLimitResponse::decode(decision.as_slice()).expect("an answer")
    };
    allow(&mut host, &[ON_ALLOW, ON_ADDITIONS].concat());
    host.answer(call.token, &with_headers.encode_to_vec());
    assert_eq!(*host.outcome(request), Outcome::Resumed);
    assert_eq!(host.request_headers(request).text("x-plan"), Some("gold"));
    assert_eq!(host.request_headers(request).len(), 2);
    host.allow(ON_RESPONSE);
    let headers = host.response_headers(request, &[(":status", b"200")]);
    assert_eq!(headers.text("x-quota"), Some("9"));
    assert_eq!(headers.text("ratelimit"), Some("\"user\";r=9;t=30"));
}

/// Both count requests of their own, in one virtual machine.
#[test]
fn plugins_of_one_machine_are_told_apart_by_their_prefixes() {
    let mut host = reporting();
    let mut other = plugin();
    other["stat_prefix"] = json!("inner");
    allow(&mut host, ON_START);
    let root = host.start_another(other.to_string().as_bytes()).expect("a good configuration");
    for (root, requests) in [(ContextId::ROOT, 1), (root, 2)] {
        for number in 0..requests {
            let user = format!("{number}");
            let (_, call) = asked_by(&mut host, root, &[("x-user", user.as_bytes())]);
            allow(&mut host, ON_ALLOW);
            host.answer(call.token, &answer(Verdict::Allow, &[(Verdict::Allow, "", 9, 30)]));
        }
    }
    allow(&mut host, ON_TICK);
    host.tick();
    for (name, expected) in [("edge", Some(1)), ("inner", Some(2))] {
        assert_eq!(host.metric(&format!("tidegate.{name}.allowed_asked")), expected);
    }
    assert_eq!(host.metric("tidegate.allowed_asked"), None);
}
