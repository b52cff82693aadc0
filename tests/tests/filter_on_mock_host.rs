//! The built filter on a strict mock of Envoy's proxy-wasm host, where a host call that a test
//! did not allow is a failure. What needs Envoy's own behaviour is in `envoy.rs`.

mod host;

use host::{ContextId, GrpcCall, Host, Outcome};
use prost::Message;
use serde_json::{Value, json};
use tidegate_core::{Answer, LimitView, Nanos, Status, Unit, Verdict};
use tidegate_tests::artifacts;
use tidegate_wire::rls::RateLimitRequest;
use tidegate_wire::{RLS_METHOD, RLS_SERVICE, grpc_service_of_cluster, response_to_wire};

const ON_START: &[&str] = &["proxy_get_buffer_bytes"];
const ON_REQUEST: &[&str] =
    &["proxy_get_header_map_value", "proxy_get_property", "proxy_grpc_call"];
/// The SDK sets the effective context before each gRPC callback.
const ON_ALLOW: &[&str] =
    &["proxy_set_effective_context", "proxy_get_buffer_bytes", "proxy_continue_stream"];
const ON_DENY: &[&str] =
    &["proxy_set_effective_context", "proxy_get_buffer_bytes", "proxy_send_local_response"];
const ON_RESPONSE: &[&str] = &["proxy_add_header_map_value"];

fn plugin() -> Value {
    json!({
        "domain": "test",
        "sidecar": {"cluster": "tidegate", "timeout_ms": 35},
        "rate_limits": [
            {"actions": [
                {"request_headers": {"header_name": "x-app", "descriptor_key": "app"}},
                {"remote_address": {}},
            ]},
            {"actions": [{"request_headers": {"header_name": "x-user", "descriptor_key": "user"}}]},
        ],
    })
}

fn started(plugin: &Value) -> Host {
    let mut host = Host::load(&artifacts::filter().expect("the built filter"));
    host.set_property(&["source", "address"], b"203.0.113.9:4711");
    host.allow(ON_START);
    assert!(host.start(plugin.to_string().as_bytes()), "{:?}", host.logs());
    host
}

/// Sends a request that the filter asks about, and returns its ask.
fn asked(host: &mut Host, headers: &[(&str, &[u8])]) -> (ContextId, GrpcCall) {
    host.allow(ON_REQUEST);
    let request = host.request(headers);
    assert_eq!(*host.outcome(request), Outcome::Paused);
    let mut calls = host.take_grpc_calls();
    assert_eq!(calls.len(), 1);
    (request, calls.remove(0))
}

fn entries(call: &GrpcCall) -> Vec<Vec<(String, String)>> {
    let request = RateLimitRequest::decode(call.message.as_slice()).expect("a RateLimitRequest");
    assert_eq!((request.domain.as_str(), request.hits_addend), ("test", 1));
    let descriptors = request.descriptors.into_iter();
    descriptors.map(|d| d.entries.into_iter().map(|e| (e.key, e.value)).collect()).collect()
}

fn answer(verdict: Verdict, statuses: &[(Verdict, &str, u32, u64)]) -> Vec<u8> {
    let status = |(verdict, name, remaining, secs): &(Verdict, &str, u32, u64)| Status {
        verdict: *verdict,
        limit: Some(LimitView { requests: 10, unit: Some(Unit::Minute), name: (*name).to_owned() }),
        remaining: *remaining,
        reset: Nanos::from_secs(*secs),
    };
    let statuses = statuses.iter().map(status).collect();
    response_to_wire(&Answer { verdict, statuses, metadata: None }).encode_to_vec()
}

#[test]
fn a_request_is_asked_about_and_goes_on_with_its_headers() {
    let mut host = started(&plugin());
    host.clear_calls();
    let (request, call) = asked(&mut host, &[(":path", b"/"), ("x-app", b"a"), ("x-user", b"u")]);
    let target = grpc_service_of_cluster("tidegate").expect("a short name");
    assert_eq!(call.cluster, target.as_bytes());
    assert_eq!((call.service.as_str(), call.method.as_str()), (RLS_SERVICE, RLS_METHOD));
    assert_eq!(call.timeout_ms, 35);
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let app = vec![pair("app", "a"), pair("remote_address", "203.0.113.9")];
    assert_eq!(entries(&call), [app, vec![pair("user", "u")]]);

    host.allow(ON_ALLOW);
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
    // The whole cost of a request with two descriptors, call by call.
    let calls: Vec<(&str, u32)> = host.calls().iter().map(|(name, n)| (*name, *n)).collect();
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
    host.allow(ON_DENY);
    let statuses = [(Verdict::Allow, "per-app", 9, 3_000), (Verdict::Deny, "per\"user\n", 0, 12)];
    host.answer(call.token, &answer(Verdict::Deny, &statuses));
    let reply = host.local_reply(request);
    assert_eq!((reply.status, reply.body.as_slice()), (429, &b"rate limit exceeded\n"[..]));
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
    host.allow(&["proxy_get_header_map_value"]);
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
        let (_, call) = asked(&mut host, &[("x-user", &[b'u', byte])]);
        assert_eq!(entries(&call), [[("user".to_owned(), "u\u{fffd}".to_owned())]]);
    }
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
        Failure::Close(4),
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
            // The first failure is told in the log, which wants to know the time.
            let told = ["proxy_get_current_time_nanoseconds"];
            host.allow(&[if mode == "allow" { ON_ALLOW } else { ON_DENY }, &told].concat());
            match failure {
                Failure::Close(status) => host.close(call.token, *status),
                Failure::Bytes(bytes) => host.answer(call.token, bytes),
            }
            match mode {
                "allow" => assert_eq!(*host.outcome(request), Outcome::Resumed),
                _ => assert_eq!(host.local_reply(request).status, 500),
            }
        }
        let news = |line: &&host::LogLine| line.text.contains("failure_mode");
        assert_eq!(host.logs().iter().filter(news).count(), 1, "told once, not per request");
    }
}

#[test]
fn outages_that_come_and_go_are_told_once_in_ten_seconds() {
    let mut host = started(&plugin());
    let mut told = Vec::new();
    for outage in 0..30u64 {
        let (_, call) = asked(&mut host, &[("x-user", b"u")]);
        host.allow(&[ON_ALLOW, &["proxy_get_current_time_nanoseconds"]].concat());
        host.close(call.token, 14);
        let (_, call) = asked(&mut host, &[("x-user", b"u")]);
        host.allow(ON_ALLOW);
        host.answer(call.token, &answer(Verdict::Allow, &[]));
        host.advance(std::time::Duration::from_secs(1));
        told.push((outage, host.logs().len()));
    }
    // Two lines each, for its beginning and its end.
    let expected: Vec<_> = (0..30).map(|outage| (outage, 2 + 2 * (outage as usize / 10))).collect();
    assert_eq!(told, expected);
}

#[test]
fn an_ask_that_envoy_cannot_send_ends_in_failure_mode() {
    let mut host = started(&plugin());
    for status in [host::Status::ParseFailure, host::Status::InternalFailure] {
        host.set_grpc_call_status(status);
        host.allow(&[ON_REQUEST, &["proxy_get_current_time_nanoseconds"]].concat());
        let request = host.request(&[("x-user", b"u")]);
        assert_eq!(*host.outcome(request), Outcome::Continued);
    }
}

#[test]
fn an_answer_that_comes_after_its_request_ended_changes_nothing() {
    let mut host = started(&plugin());
    let (gone, late) = asked(&mut host, &[("x-user", b"gone")]);
    let (waiting, call) = asked(&mut host, &[("x-user", b"waits")]);
    host.allow(&[]);
    host.finish(gone);
    host.answer(late.token, &answer(Verdict::Deny, &[]));
    assert_eq!(*host.outcome(waiting), Outcome::Paused);
    host.allow(ON_ALLOW);
    host.answer(call.token, &answer(Verdict::Allow, &[]));
    assert_eq!(*host.outcome(waiting), Outcome::Resumed);
}

#[test]
fn a_bad_configuration_is_refused_with_a_log_line_that_names_the_field() {
    let mut plugin = plugin();
    plugin["failure_mode"] = json!("open");
    let mut host = Host::load(&artifacts::filter().expect("the built filter"));
    host.allow(ON_START);
    assert!(!host.start(plugin.to_string().as_bytes()));
    let told: Vec<&str> = host.logs().iter().map(|line| line.text.as_str()).collect();
    let message = "tidegate: plugin configuration: failure_mode: unknown variant `open`, \
                   expected `allow` or `deny`";
    assert_eq!(told, [message]);
}

#[test]
fn the_module_wants_nothing_of_its_host_but_proxy_wasm_and_wasi() {
    let module = std::fs::read(artifacts::filter().expect("the built filter")).expect("readable");
    let engine = wasmtime::Engine::default();
    let module = wasmtime::Module::new(&engine, module).expect("a module");
    let from: std::collections::BTreeSet<&str> =
        module.imports().map(|import| import.module()).collect();
    assert_eq!(Vec::from_iter(from), ["env", "wasi_snapshot_preview1"]);
    assert!(module.exports().any(|export| export.name() == "proxy_abi_version_0_2_1"));
}
