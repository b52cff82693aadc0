//! The built filter on a strict mock of Envoy's proxy-wasm host, where a host call that a test
//! did not allow is a failure. What needs Envoy's own behaviour is in `envoy/`.

use crate::host::{self, ContextId, Host, Outcome};
use crate::scene::*;
use prost::Message;
use serde_json::json;
use std::time::Duration;
use tidegate_core::Verdict;
use tidegate_tests::artifacts;
use tidegate_wire::rls::RateLimitRequest;
use tidegate_wire::{RLS_METHOD, RLS_SERVICE, grpc_service_of_cluster};

#[test]
fn a_request_is_asked_about_and_goes_on_with_its_headers() {
    let mut host = started(&plugin());
    host.clear_calls();
    let (request, call) = asked(&mut host, &[(":path", b"/"), ("x-app", b"a"), ("x-user", b"u")]);
    assert_eq!(call.cluster, grpc_service_of_cluster("tidegate"));
    assert_eq!((call.service.as_str(), call.method.as_str()), (RLS_SERVICE, RLS_METHOD));
    // Envoy only ends what no tick of the worker does.
    assert_eq!(call.timeout_ms, 35 + 10_000);
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let app = vec![pair("app", "a"), pair("remote_address", "203.0.113.9")];
    assert_eq!(entries(&call), [app, vec![pair("user", "u")]]);
    // A first request says nothing about the next, so no tokens are wanted in advance.
    assert_eq!(call.metadata.text("tidegate-lease"), Some("0,0"));
    assert_eq!(call.metadata.text("tidegate-waiting"), None);
    for name in ["tidegate-proxy", "tidegate-call"] {
        let digits = call.metadata.text(name).expect("a number");
        assert!(digits.len() == 16 && u64::from_str_radix(digits, 16).is_ok(), "{name}: {digits}");
    }
    assert!(clock_of(&call) > 0);

    allow(&mut host, ON_ALLOW);
    let statuses = [(Verdict::Allow, "per-app", 9, 30), (Verdict::Allow, "", 4, 12)];
    host.answer(call.token, &answer(Verdict::Allow, &statuses));
    assert_eq!(*host.outcome(request), Outcome::Resumed);
    host.allow(ON_RESPONSE);
    let headers = host.response_headers(request, &[(":status", b"200")]);
    let policy = "\"per-app\";q=10;w=60, \"user\";q=10;w=60";
    assert_eq!(headers.text("ratelimit-policy"), Some(policy));
    assert_eq!(headers.text("ratelimit"), Some("\"per-app\";r=9;t=30, \"user\";r=4;t=12"));
    host.allow(&[]);
    host.finish(request);
    // The whole cost of a request with two descriptors, call by call, beside that of its leases.
    let of_leases = |name: &str| ALWAYS.contains(&name) || name == "random_get";
    let calls = host.calls().iter().filter(|(name, _)| !of_leases(name));
    let calls: Vec<(&str, u32)> = calls.map(|(name, n)| (*name, *n)).collect();
    let expected = [
        ("proxy_add_header_map_value", 2),
        ("proxy_continue_stream", 1),
        ("proxy_get_buffer_bytes", 1),
        ("proxy_get_header_map_value", 2),
        ("proxy_get_property", 1),
        ("proxy_grpc_call", 1),
        ("proxy_set_effective_context", 1),
    ];
    assert_eq!(calls, expected);
}

#[test]
fn a_denial_names_the_longest_wait_of_those_that_deny() {
    let mut host = started(&plugin());
    let (request, call) = asked(&mut host, &[("x-app", b"a"), ("x-user", b"u")]);
    allow(&mut host, ON_DENY);
    let statuses = [(Verdict::Allow, "per-app", 9, 3_000), (Verdict::Deny, "per\"user\n", 0, 12)];
    host.answer(call.token, &answer(Verdict::Deny, &statuses));
    let reply = host.local_reply(request);
    assert_eq!((reply.status, reply.body.as_slice()), (429, &b"rate limit exceeded"[..]));
    let details = "tidegate_rate_limited{per_user_}";
    assert_eq!((reply.details.as_str(), reply.grpc_status), (details, None));
    assert_eq!(reply.headers.text("retry-after"), Some("12"));
    assert_eq!(reply.headers.text("x-envoy-ratelimited"), Some("true"));
    // A name from a file can neither end the string nor the header.
    let state = "\"per-app\";r=9;t=3000, \"per\\\"user?\";r=0;t=12";
    assert_eq!(reply.headers.text("ratelimit"), Some(state));
    // The filter's own reply runs through its response path, and must stay as it is.
    host.allow(&[]);
    host.local_reply_headers(request);
    host.finish(request);
}

#[test]
fn without_descriptors_nobody_is_asked() {
    let mut host = started(&plugin());
    host.allow(&["proxy_get_header_map_value", "proxy_get_property"]);
    let request = host.request(&[(":path", b"/")]);
    assert_eq!(*host.outcome(request), Outcome::Continued);
    host.allow(&[]);
    host.response_headers(request, &[(":status", b"200")]);
    host.finish(request);
}

#[test]
fn a_repeated_header_counts_as_its_first_value() {
    let mut host = started(&plugin());
    let (_, call) = asked(&mut host, &[("x-user", b"first"), ("x-user", b"second")]);
    assert_eq!(entries(&call), [[("user".to_owned(), "first".to_owned())]]);
}

#[test]
fn any_header_bytes_make_an_ask() {
    let mut host = started(&plugin());
    for byte in 0x80..=0xff {
        // Each of another user: nobody has to wait for the answer to another.
        let user = [&[b'u', byte], byte.to_string().as_bytes()].concat();
        let (_, call) = asked(&mut host, &[("x-user", &user)]);
        assert_eq!(entries(&call), [[("user".to_owned(), format!("u\u{fffd}{byte}"))]]);
    }
}

/// Sends a request for a user of its own, which the sidecar lets pass: failures are in a row no more.
fn answered(host: &mut Host, user: &[u8]) {
    let (request, call) = asked(host, &[("x-user", user)]);
    allow(host, ON_ALLOW);
    host.answer(call.token, &answer(Verdict::Allow, &[(Verdict::Allow, "", 9, 30)]));
    assert_eq!(*host.outcome(request), Outcome::Resumed);
    host.allow(&[]);
    host.finish(request);
}

/// What may come back instead of an answer.
enum Failure {
    Close(u32),
    Bytes(&'static [u8]),
}

#[test]
fn every_failure_of_an_ask_ends_in_failure_mode() {
    let failures = [
        Failure::Close(14),
        Failure::Close(13),
        Failure::Close(0xffff_ffff),
        Failure::Bytes(b""),
        Failure::Bytes(b"\xff\xff\xff"),
        Failure::Bytes(b"\x08\x00"),
        Failure::Bytes(b"\x08\x07"),
        Failure::Bytes(b"\x12\xff\xff\xff\xff\x0f"),
    ];
    for mode in ["allow", "deny"] {
        let mut plugin = plugin();
        plugin["failure_mode"] = json!(mode);
        let mut host = started(&plugin);
        for failure in &failures {
            let (request, call) = asked(&mut host, &[("x-user", b"u")]);
            let decided = if mode == "allow" { ON_ALLOW } else { ON_DENY };
            allow(&mut host, &[ON_CLOSE, decided].concat());
            match failure {
                Failure::Close(status) => host.close(call.token, *status),
                Failure::Bytes(bytes) => host.answer(call.token, bytes),
            }
            match mode {
                "allow" => assert_eq!(*host.outcome(request), Outcome::Resumed),
                _ => {
                    let reply = host.local_reply(request);
                    assert_eq!((reply.status, reply.details.as_str()), (500, "tidegate_error"));
                }
            }
            host.allow(ON_RESPONSE);
            host.finish(request);
            answered(&mut host, b"good");
        }
        // Each cause once, not once for each request.
        let causes = ["not reachable", "gRPC status 13"];
        let logged = host.logs().iter().filter(|line| line.text.contains("failure_mode"));
        let logged: Vec<&str> = logged.map(|line| line.text.as_str()).collect();
        assert!(
            logged.len() == 2
                && logged.iter().zip(causes).all(|(line, cause)| line.contains(cause)),
            "{logged:?}"
        );
    }
}

/// Clients can bring these about, and each opened the limits of all others: `failure_mode` decided.
#[test]
fn what_clients_can_bring_about_never_ends_in_failure_mode() {
    let causes = [
        (3, "", "it refused a call (gRPC status 3)", "asks_refused"),
        (4, "", "an answer came too late", "asks_late"),
        (8, "overloaded", "it has no room (gRPC status 8)", "asks_shed"),
        (14, "upstream request timeout", "an answer came too late", "asks_late"),
    ];
    for (overload_mode, effect) in [("deny", "get 503"), ("allow", "pass unlimited")] {
        for (status, message, cause, counter) in causes {
            let mut plugin = plugin();
            // Neither may be what is left of the other.
            let failure_mode = if overload_mode == "deny" { "allow" } else { "deny" };
            plugin["failure_mode"] = json!(failure_mode);
            plugin["overload_mode"] = json!(overload_mode);
            let mut host = started(&plugin);
            allow_all(&mut host);
            for _ in 0..20 {
                let request = host.request(&[("x-user", b"u")]);
                let call = host.take_grpc_calls().remove(0);
                host.close_with(call.token, status, message);
                match overload_mode {
                    "deny" => {
                        let reply = host.local_reply(request);
                        assert_eq!(
                            (reply.status, reply.details.as_str()),
                            (503, "tidegate_overload")
                        );
                        assert_eq!(reply.headers.text("retry-after"), Some("1"));
                    }
                    _ => assert_eq!(*host.outcome(request), Outcome::Resumed),
                }
                host.finish(request);
            }
            host.tick();
            assert_eq!(host.metric(&format!("tidegate.{counter}")), Some(20));
            assert_eq!(host.metric("tidegate.breakers_open"), Some(0));
            assert_eq!(host.logs().len(), 1);
            let line = &host.logs()[0].text;
            let mode = format!("{effect} (overload_mode {overload_mode})");
            assert!(line.contains(cause) && line.contains(&mode), "{line}");
        }
    }
}

/// The sidecar answers, and says that it cannot get at this counter: `failure_mode` decides such requests, and
/// others are asked about as ever.
#[test]
fn a_counter_that_a_stopped_process_holds_goes_by_failure_mode_alone() {
    for (failure_mode, effect) in [("deny", "get 500"), ("allow", "pass unlimited")] {
        let mut plugin = plugin();
        plugin["failure_mode"] = json!(failure_mode);
        // It must not be what is applied.
        plugin["overload_mode"] = json!(if failure_mode == "deny" { "allow" } else { "deny" });
        let mut host = started(&plugin);
        for _ in 0..20 {
            allow_all(&mut host);
            let request = host.request(&[("x-user", b"held")]);
            let call = host.take_grpc_calls().remove(0);
            host.close_with(
                call.token,
                10,
                "process 7 holds a key-node and has not moved for 9 ms",
            );
            match failure_mode {
                "deny" => {
                    let reply = host.local_reply(request);
                    assert_eq!((reply.status, reply.details.as_str()), (500, "tidegate_error"));
                }
                _ => assert_eq!(*host.outcome(request), Outcome::Resumed),
            }
            host.finish(request);
            answered(&mut host, b"other");
        }
        allow_all(&mut host);
        host.tick();
        assert_eq!(host.metric("tidegate.asks_stuck"), Some(20));
        assert_eq!(host.metric("tidegate.breakers_open"), Some(0));
        assert_eq!(host.logs().len(), 1);
        let line = &host.logs()[0].text;
        let mode = format!("{effect} (failure_mode {failure_mode})");
        assert!(line.contains("gRPC status 10") && line.contains(&mode), "{line}");
    }
}

/// Has the ask for a user of its own fail.
fn failed(host: &mut Host, user: &str) {
    let (request, call) = asked(host, &[("x-user", user.as_bytes())]);
    allow(host, &[ON_CLOSE, ON_ALLOW].concat());
    host.close(call.token, 14);
    assert_eq!(*host.outcome(request), Outcome::Resumed);
}

const UNREACHABLE: &str = "cluster tidegate: not reachable (gRPC status 14); such requests pass \
                           unlimited (failure_mode allow)";

#[test]
fn a_failed_ask_among_answered_ones_is_logged_once_in_ten_seconds() {
    let mut host = started(&plugin());
    let mut logged = Vec::new();
    for second in 0..30 {
        failed(&mut host, &format!("{second}"));
        answered(&mut host, b"u");
        host.advance(Duration::from_secs(1));
        logged.push(host.logs().len());
    }
    let expected: Vec<usize> = (0..30).map(|second| 1 + second / 10).collect();
    assert_eq!(logged, expected);
    assert!(host.logs().iter().all(|line| line.text.ends_with(UNREACHABLE)), "{:?}", host.logs());
}

#[test]
fn outages_that_come_and_go_are_logged_once_in_ten_seconds() {
    let mut host = started(&plugin());
    let mut logged = Vec::new();
    for outage in 0..15 {
        for ask in 0..5 {
            failed(&mut host, &format!("{outage} {ask}"));
        }
        // The breaker is open: nobody waits, and after a while one asks whether all is well.
        host.advance(Duration::from_secs(2));
        allow(&mut host, ON_REQUEST);
        let request = host.request(&[("x-user", b"probe")]);
        assert_eq!(*host.outcome(request), Outcome::Continued);
        let probe = host.take_grpc_calls().remove(0);
        allow(&mut host, ON_ALLOW);
        host.answer(probe.token, &answer(Verdict::Allow, &[(Verdict::Allow, "", 9, 30)]));
        logged.push(host.logs().len());
    }
    // Two lines each, for its beginning and its end.
    let expected: Vec<usize> = (0..15).map(|outage| 2 + 2 * (outage / 5)).collect();
    assert_eq!(logged, expected);
    let last = host.logs().last().map(|line| line.text.as_str());
    assert!(last.is_some_and(|text| text.ends_with("cluster tidegate answers again")), "{last:?}");
}

#[test]
fn an_outage_that_began_too_soon_after_another_is_logged_by_a_later_probe() {
    let mut host = started(&plugin());
    failed(&mut host, "first");
    answered(&mut host, b"u");
    for ask in 0..5 {
        failed(&mut host, &format!("{ask}"));
    }
    assert_eq!(host.logs().len(), 1);
    host.advance(Duration::from_secs(10));
    allow(&mut host, ON_REQUEST);
    host.request(&[("x-user", b"probe")]);
    let probe = host.take_grpc_calls().remove(0);
    allow(&mut host, ON_CLOSE);
    host.close(probe.token, 14);
    assert_eq!(host.logs().len(), 2);
    assert!(host.logs().iter().all(|line| line.text.ends_with(UNREACHABLE)), "{:?}", host.logs());
}

/// A tick, with an answer to others before it.
fn tick_with_an_answer(host: &mut Host, number: u32) {
    host.request(&[("x-user", format!("other {number}").as_bytes())]);
    let other = host.take_grpc_calls().pop().expect("an ask");
    host.answer(other.token, &answer(Verdict::Allow, &[(Verdict::Allow, "", 9, 30)]));
    host.advance(Duration::from_millis(100));
    host.tick();
}

/// The wait of a request ends by its own time, however often it has to be asked about.
#[test]
fn a_request_that_waited_in_vain_asks_with_the_rest_of_its_time() {
    let mut host = started(&plugin());
    allow_all(&mut host);
    let first = host.request(&[("x-user", b"u")]);
    let call = host.take_grpc_calls().remove(0);
    let waiting = [(); 2].map(|()| host.request(&[("x-user", b"u")]));
    assert_eq!(host.take_grpc_calls(), []);
    for number in 0..3 {
        tick_with_an_answer(&mut host, number);
    }
    host.close(call.token, 14);
    assert_eq!(*host.outcome(first), Outcome::Resumed);
    let again = host.take_grpc_calls();
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].metadata.text("tidegate-waiting"), Some("1"));
    // The tick that they came in, one for the timeout, and six more.
    for number in 3..7 {
        tick_with_an_answer(&mut host, number);
        assert!(waiting.iter().all(|request| *host.outcome(*request) == Outcome::Paused));
    }
    tick_with_an_answer(&mut host, 7);
    assert!(waiting.iter().all(|request| host.local_reply(*request).status == 503));
    let asks = host.take_grpc_calls();
    let asks = asks.iter().filter(|call| call.metadata.text("tidegate-lease").is_some());
    assert_eq!(asks.count(), 0, "only what the first may have been granted is asked back");
}

/// A worker that was busy for longer than the timeout took all answers for late, opened the breaker, and
/// let everything pass, though the sidecar had answered at once.
#[test]
fn a_worker_that_is_late_itself_blames_nobody() {
    let mut host = started(&plugin());
    allow_all(&mut host);
    for round in 0..10 {
        let requests: Vec<_> = (0..20)
            .map(|user| host.request(&[("x-user", format!("{round} {user}").as_bytes())]))
            .collect();
        // One round of Envoy's event loop: the tick is due, and then the answers are read.
        host.advance(Duration::from_secs(3));
        host.tick();
        for call in host.take_grpc_calls() {
            host.answer(call.token, &answer(Verdict::Deny, &[(Verdict::Deny, "", 0, 30)]));
        }
        assert!(requests.iter().all(|request| host.local_reply(*request).status == 429));
    }
    assert_eq!(host.logs(), []);
}

/// A sidecar that stands still answers nothing: after a few ticks all that wait are decided by
/// `failure_mode`, and nobody waits any more until it answers again.
#[test]
fn a_silent_sidecar_is_found_out_in_half_a_second() {
    let mut host = started(&plugin());
    allow_all(&mut host);
    let users = 0..500;
    let requests: Vec<_> =
        users.map(|user| host.request(&[("x-user", format!("{user}").as_bytes())])).collect();
    for _ in 0..4 {
        host.advance(Duration::from_millis(100));
        host.tick();
        assert!(requests.iter().all(|request| *host.outcome(*request) == Outcome::Paused));
    }
    host.advance(Duration::from_millis(100));
    host.tick();
    assert!(requests.iter().all(|request| *host.outcome(*request) == Outcome::Resumed));
    assert_eq!(host.grpc_calls_in_flight(), 0);
    let expected = "tidegate: cluster tidegate: it answers no call; such requests pass unlimited \
                    (failure_mode allow)";
    assert_eq!(host.logs().iter().map(|line| line.text.as_str()).collect::<Vec<_>>(), [expected]);
    host.take_grpc_calls();
    let request = host.request(&[("x-user", b"later")]);
    assert_eq!(*host.outcome(request), Outcome::Continued);
    assert_eq!(host.take_grpc_calls(), []);
    host.tick();
    assert_eq!(host.metric("tidegate.failure_allowed"), Some(501));
    assert_eq!(host.metric("tidegate.overload_denied"), Some(0));
}

/// One answer settled all that waited for it in one callback, and Envoy carried the replies out one
/// inside the other: some 310 of them overflowed the stack and ended the machine of the worker.
#[test]
fn thousands_that_wait_for_one_answer_are_settled_without_nesting() {
    const REQUESTS: usize = 5_000;
    for passed in [0, 50, REQUESTS] {
        let mut host = started(&plugin());
        allow_all(&mut host);
        host.answer_directly();
        let requests: Vec<_> = (0..REQUESTS).map(|_| host.request(&[("x-user", b"u")])).collect();
        // The first ask is granted nothing in advance; one of the next has all tokens, the others none.
        let mut tokens = u32::try_from(passed).expect("few");
        loop {
            let calls = host.take_grpc_calls();
            if calls.is_empty() {
                break;
            }
            for call in calls {
                let wanted = call.metadata.text("tidegate-waiting").is_some();
                let answer = match (tokens, wanted) {
                    (0, _) => leased(Verdict::Deny, &call, 0, 60_000),
                    (_, false) => {
                        tokens -= 1;
                        bytes_of(Verdict::Allow, vec![status(Verdict::Allow, "", 9, 30)])
                    }
                    (_, true) => {
                        let granted = std::mem::take(&mut tokens) - 1;
                        leased(Verdict::Allow, &call, granted, 60_000)
                    }
                };
                host.answer(call.token, &answer);
            }
        }
        let resumed =
            requests.iter().filter(|request| *host.outcome(**request) == Outcome::Resumed);
        let resumed = resumed.count();
        let denied = requests
            .iter()
            .filter(|request| matches!(host.outcome(**request), Outcome::LocalReply(_)));
        assert_eq!(resumed + denied.count(), REQUESTS, "of {passed}");
        assert!(resumed.abs_diff(passed) <= 1, "{resumed} of {passed}");
        assert!(host.depth_max() > 2, "the host nests");
    }
}

/// What Envoy refuses at once fails inside of the callback that asked for it: so do chains of such calls.
#[test]
fn thousands_that_fail_at_once_are_settled_without_nesting() {
    for mode in ["allow", "deny"] {
        let mut plugin = plugin();
        plugin["failure_mode"] = json!(mode);
        let mut host = started(&plugin);
        allow_all(&mut host);
        host.answer_directly();
        let users = 0..3_000;
        let requests: Vec<_> =
            users.map(|user| host.request(&[("x-user", format!("{user}").as_bytes())])).collect();
        loop {
            let calls = host.take_grpc_calls();
            if calls.is_empty() {
                break;
            }
            for call in calls {
                host.close(call.token, 14);
            }
        }
        let is_paused = |request: &&ContextId| *host.outcome(**request) == Outcome::Paused;
        assert_eq!(requests.iter().filter(is_paused).count(), 0);
        host.tick();
        assert_eq!(host.metric("tidegate.breakers_open"), Some(1));
    }
}

#[test]
fn an_ask_that_envoy_cannot_send_ends_in_failure_mode() {
    let mut host = started(&plugin());
    host.set_grpc_call_status(host::Status::ParseFailure);
    allow(&mut host, ON_REQUEST);
    let request = host.request(&[("x-user", b"u")]);
    assert_eq!(*host.outcome(request), Outcome::Continued);
    // A cluster without a healthy host.
    host.fail_calls_with(14, "no healthy upstream");
    allow(&mut host, &[ON_REQUEST, ON_CLOSE, ON_ALLOW].concat());
    let request = host.request(&[("x-user", b"u")]);
    assert_eq!(*host.outcome(request), Outcome::Resumed);
    let logged = |line: &host::LogLine| line.text.contains("failure_mode allow");
    assert!(host.logs().iter().all(logged), "{:?}", host.logs());
}

/// Envoy fails calls at once that are too many for the cluster's circuit breaker. That counted as a sidecar
/// that is gone: clients that caused it passed, and opened the breaker for all others.
#[test]
fn calls_that_are_too_many_for_envoy_wait_for_their_turn() {
    let overflow =
        "upstream connect error or disconnect/reset before headers. reset reason: overflow";
    let mut host = started(&plugin());
    allow_all(&mut host);
    let first = host.request(&[("x-user", b"first")]);
    let call = host.take_grpc_calls().remove(0);
    host.fail_calls_with(14, overflow);
    let users = 0..3_000;
    let requests: Vec<_> =
        users.map(|user| host.request(&[("x-user", format!("{user}").as_bytes())])).collect();
    host.tick();
    assert!(requests.iter().all(|request| *host.outcome(*request) == Outcome::Paused));
    // Each turn tries one, not all.
    let tried = host.metric("tidegate.asks_overflowed").expect("a counter");
    assert!((1..=10).contains(&tried), "{tried}");
    // There is room again as soon as a call has ended.
    host.set_grpc_call_status(host::Status::Ok);
    let good = answer(Verdict::Allow, &[(Verdict::Allow, "", 9, 30)]);
    host.answer(call.token, &good);
    assert_eq!(*host.outcome(first), Outcome::Resumed);
    loop {
        let calls = host.take_grpc_calls();
        if calls.is_empty() {
            break;
        }
        for call in calls {
            host.answer(call.token, &good);
        }
    }
    assert!(requests.iter().all(|request| *host.outcome(*request) == Outcome::Resumed));
    host.tick();
    assert_eq!(host.metric("tidegate.failure_allowed"), Some(0));
    assert_eq!(host.metric("tidegate.breakers_open"), Some(0));
    assert_eq!(host.logs().len(), 1);
    assert!(host.logs()[0].text.ends_with("requests wait for their turn"), "{:?}", host.logs());
}

#[test]
fn an_answer_that_comes_after_its_request_ended_resumes_no_other() {
    let mut host = started(&plugin());
    let (gone, late) = asked(&mut host, &[("x-user", b"gone")]);
    let (waiting, call) = asked(&mut host, &[("x-user", b"waits")]);
    allow(&mut host, &[]);
    host.finish(gone);
    allow(&mut host, ON_DENY);
    host.answer(late.token, &answer(Verdict::Deny, &[(Verdict::Deny, "", 0, 12)]));
    assert_eq!(*host.outcome(waiting), Outcome::Paused);
    allow(&mut host, ON_ALLOW);
    host.answer(call.token, &answer(Verdict::Allow, &[(Verdict::Allow, "", 9, 30)]));
    assert_eq!(*host.outcome(waiting), Outcome::Resumed);
}

/// The SDK dropped an answer whose request was gone, though others waited for it.
#[test]
fn an_answer_serves_those_who_wait_for_it_though_its_own_request_is_gone() {
    let mut host = started(&plugin());
    let (gone, call) = asked(&mut host, &[("x-user", b"u")]);
    allow(&mut host, ON_REQUEST);
    let waiting = host.request(&[("x-user", b"u")]);
    assert_eq!(*host.outcome(waiting), Outcome::Paused);
    assert_eq!(host.take_grpc_calls(), [], "it waits for the answer that is on its way");
    allow(&mut host, &[]);
    host.finish(gone);

    allow(&mut host, ON_ALLOW);
    host.answer(call.token, &leased(Verdict::Allow, &call, 5, 2_000));
    assert_eq!(*host.outcome(waiting), Outcome::Resumed);
}

#[test]
fn plugins_in_one_machine_keep_to_their_own_configuration() {
    let mut host = started(&plugin());
    let mut other = plugin();
    other["domain"] = json!("other");
    other["rate_limits"] = json!([{"actions": [
        {"request_headers": {"header_name": "x-team", "descriptor_key": "team"}},
    ]}]);
    allow(&mut host, ON_START);
    let root = host.start_another(other.to_string().as_bytes()).expect("a good configuration");
    let headers: [(&str, &[u8]); 2] = [("x-user", b"u"), ("x-team", b"t")];
    let (mine, my_call) = asked(&mut host, &headers);
    let (theirs, their_call) = asked_by(&mut host, root, &headers);
    assert_eq!(entries(&my_call), [[("user".to_owned(), "u".to_owned())]]);
    let request = RateLimitRequest::decode(their_call.message.as_slice()).expect("a request");
    let keys: Vec<&str> =
        request.descriptors.iter().map(|descriptor| descriptor.entries[0].key.as_str()).collect();
    assert_eq!((request.domain.as_str(), keys), ("other", vec!["team"]));

    allow(&mut host, ON_ALLOW);
    let passed = answer(Verdict::Allow, &[(Verdict::Allow, "", 9, 30)]);
    host.answer(their_call.token, &passed);
    assert_eq!(*host.outcome(theirs), Outcome::Resumed);
    assert_eq!(*host.outcome(mine), Outcome::Paused);
    allow(&mut host, ON_TICK);
    host.tick();
    host.finish(theirs);
    host.end_plugin(root);
    allow(&mut host, ON_ALLOW);
    host.answer(my_call.token, &passed);
    assert_eq!(*host.outcome(mine), Outcome::Resumed);
}

#[test]
fn values_of_any_size_are_read_and_their_memory_is_used_again() {
    let mut host = started(&plugin());
    let sizes = [0, 1, 4_096, 4_097, 100_000];
    let mut after_first = 0;
    for round in 0..20 {
        for size in sizes {
            let user = vec![b'u'; size];
            let (request, call) = asked(&mut host, &[("x-user", &user)]);
            let value = &entries(&call)[0][0].1;
            match size {
                0..=1_024 => assert_eq!(value.as_bytes(), user),
                _ => assert!(value.len() < 1_024, "a long value is shortened"),
            }
            allow(&mut host, ON_ALLOW);
            host.answer(call.token, &answer(Verdict::Allow, &[(Verdict::Allow, "", 9, 30)]));
            host.finish(request);
        }
        if round == 0 {
            after_first = host.memory_bytes();
        }
    }
    assert_eq!(host.memory_bytes(), after_first);
}

#[test]
fn a_worker_that_is_configured_ticks_and_defines_its_stats_once() {
    let mut host = started(&plugin());
    assert_eq!(host.tick_period(), Some(Duration::from_millis(100)));
    assert_eq!(host.metric("tidegate.allowed_local"), Some(0));
    assert_eq!(host.metric("tidegate.breakers_open"), Some(0));
    let defined = host.calls()["proxy_define_metric"];
    assert_eq!(defined, 31);
    assert!(host.start_another(plugin().to_string().as_bytes()).is_some());
    assert_eq!(host.calls()["proxy_define_metric"], defined, "Envoy keeps all that it defines");
    allow(&mut host, ON_TICK);
    host.tick();
    assert_eq!(host.metric("tidegate.allowed_local"), Some(0));
}

#[test]
fn a_bad_configuration_is_refused_with_a_log_line_that_names_the_field() {
    let mut plugin = plugin();
    plugin["failure_mode"] = json!("open");
    let mut host = Host::load(&artifacts::filter().expect("the built filter"));
    allow(&mut host, ON_START);
    assert!(!host.start(plugin.to_string().as_bytes()));
    let logged: Vec<&str> = host.logs().iter().map(|line| line.text.as_str()).collect();
    let message = "tidegate: plugin configuration: failure_mode: unknown variant `open`, \
                   expected `allow` or `deny`";
    assert_eq!(logged, [message]);
}

/// Envoy calls every callback that it finds, for every request: what is not exported costs nothing.
#[test]
fn the_module_exports_what_it_needs_and_nothing_else() {
    let module = built();
    let mut exports: Vec<&str> = module.exports().map(|export| export.name()).collect();
    exports.sort_unstable();
    let expected = [
        "_initialize",
        "memory",
        "proxy_abi_version_0_2_1",
        "proxy_on_configure",
        "proxy_on_context_create",
        "proxy_on_delete",
        "proxy_on_grpc_close",
        "proxy_on_grpc_receive",
        "proxy_on_memory_allocate",
        "proxy_on_queue_ready",
        "proxy_on_request_headers",
        "proxy_on_response_headers",
        "proxy_on_tick",
    ];
    assert_eq!(exports, expected);
}

#[test]
fn the_module_wants_nothing_of_its_host_but_proxy_wasm_and_a_little_of_wasi() {
    // Clock and random bits; the rest of WASI is for the message of a panic.
    let wasi = ["clock_time_get", "environ_get", "environ_sizes_get", "fd_write", "proc_exit"];
    for import in built().imports() {
        let name = import.name();
        match import.module() {
            "env" => assert!(name.starts_with("proxy_"), "{name}"),
            "wasi_snapshot_preview1" => assert!(wasi.contains(&name) || name == "random_get"),
            other => panic!("the module wants {name} of {other}"),
        }
    }
}

fn built() -> wasmi::Module {
    let module = std::fs::read(artifacts::filter().expect("the built filter")).expect("readable");
    wasmi::Module::new(&wasmi::Engine::default(), module).expect("a module")
}
