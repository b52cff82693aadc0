//! What the tests of the built filter on the mock host share: plugins, what a worker may call when,
//! asks and answers.

// Each test target that includes this module uses only a part of it.
#![allow(dead_code)]

use crate::host::{ContextId, GrpcCall, Host, Outcome, SharedData};
use prost::Message;
use serde_json::{Value, json};
use tidegate_core::{Answer, Lease, LimitView, Nanos, Status, Timestamp, Unit, Verdict};
use tidegate_tests::artifacts;
use tidegate_wire::response_to_wire;
use tidegate_wire::rls::RateLimitRequest;

/// What a worker may do in any callback but that of the response: read the clock, look after leases.
pub(crate) const ALWAYS: &[&str] =
    &["clock_time_get", "proxy_get_shared_data", "proxy_set_shared_data"];
pub(crate) const ON_START: &[&str] = &[
    "proxy_define_metric",
    "proxy_get_buffer_bytes",
    "proxy_register_shared_queue",
    "proxy_set_tick_period_milliseconds",
];
pub(crate) const ON_REQUEST: &[&str] =
    &["proxy_get_header_map_value", "proxy_get_property", "proxy_grpc_call"];
/// The callback is the root's, so the request that goes on has to be named.
pub(crate) const ON_ALLOW: &[&str] =
    &["proxy_get_buffer_bytes", "proxy_set_effective_context", "proxy_continue_stream"];
pub(crate) const ON_DENY: &[&str] =
    &["proxy_get_buffer_bytes", "proxy_set_effective_context", "proxy_send_local_response"];
pub(crate) const ON_TICK: &[&str] =
    &["proxy_increment_metric", "proxy_record_metric", "proxy_grpc_call", "proxy_grpc_cancel"];
/// Requests that are too many for one turn of the event loop.
pub(crate) const ON_WAKE: &[&str] = &["proxy_enqueue_shared_queue", "proxy_dequeue_shared_queue"];
/// Envoy may fail a call inside of another callback, so what follows may have to wait for a turn.
pub(crate) const ON_CLOSE: &[&str] =
    &["proxy_get_status", "proxy_enqueue_shared_queue", "proxy_dequeue_shared_queue"];
/// What answers have beside decisions: filter state, and headers of the request.
pub(crate) const ON_ADDITIONS: &[&str] = &["proxy_set_property", "proxy_add_header_map_value"];
/// Reports show the state at that time.
pub(crate) const ON_RESPONSE: &[&str] = &["clock_time_get", "proxy_add_header_map_value"];

pub(crate) fn allow(host: &mut Host, calls: &[&'static str]) {
    host.allow(&[ALWAYS, calls].concat());
}

/// For tests of what comes out, not of how.
pub(crate) fn allow_all(host: &mut Host) {
    let all =
        [ON_START, ON_REQUEST, ON_ALLOW, ON_DENY, ON_TICK, ON_WAKE, ON_CLOSE, ON_RESPONSE].concat();
    let all = [&all, ON_ADDITIONS].concat();
    allow(host, &all);
}

pub(crate) fn plugin() -> Value {
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

/// A worker of an Envoy of its own.
pub(crate) fn started(plugin: &Value) -> Host {
    configured(Host::load(&artifacts::filter().expect("the built filter")), plugin)
}

/// One more worker of the Envoy that has this shared data.
pub(crate) fn started_beside(shared_data: &SharedData, plugin: &Value) -> Host {
    let filter = artifacts::filter().expect("the built filter");
    configured(Host::load_sharing(&filter, shared_data), plugin)
}

fn configured(mut host: Host, plugin: &Value) -> Host {
    host.set_property(&["source", "address"], b"203.0.113.9:4711");
    allow(&mut host, ON_START);
    assert!(host.start(plugin.to_string().as_bytes()), "{:?}", host.logs());
    host
}

/// Sends a request that the filter asks about, and returns its ask.
pub(crate) fn asked(host: &mut Host, headers: &[(&str, &[u8])]) -> (ContextId, GrpcCall) {
    asked_by(host, ContextId::ROOT, headers)
}

/// As `asked`, by a plugin of the caller's choice.
pub(crate) fn asked_by(
    host: &mut Host,
    root: ContextId,
    headers: &[(&str, &[u8])],
) -> (ContextId, GrpcCall) {
    allow(host, ON_REQUEST);
    let request = host.request_to(root, headers);
    assert_eq!(*host.outcome(request), Outcome::Paused);
    let mut calls = host.take_grpc_calls();
    assert_eq!(calls.len(), 1);
    (request, calls.remove(0))
}

/// The entries of an ask for one hit.
pub(crate) fn entries(call: &GrpcCall) -> Vec<Vec<(String, String)>> {
    let request = RateLimitRequest::decode(call.message.as_slice()).expect("a RateLimitRequest");
    assert_eq!((request.domain.as_str(), request.hits_addend), ("test", 1));
    let descriptors = request.descriptors.into_iter();
    descriptors.map(|d| d.entries.into_iter().map(|e| (e.key, e.value)).collect()).collect()
}

/// The time of an ask, by the worker's clock.
pub(crate) fn clock_of(call: &GrpcCall) -> u64 {
    let clock = call.metadata.text("tidegate-clock").expect("the time of the ask");
    clock.parse().expect("nanoseconds")
}

/// The number of a call, which is the id of the lease of its first descriptor.
pub(crate) fn number_of(call: &GrpcCall) -> u64 {
    let number = call.metadata.text("tidegate-call").expect("the number of the call");
    u64::from_str_radix(number, 16).expect("hex digits")
}

/// The bytes of an answer without leases.
pub(crate) fn answer(verdict: Verdict, statuses: &[(Verdict, &str, u32, u64)]) -> Vec<u8> {
    let statuses = statuses
        .iter()
        .map(|(verdict, name, remaining, secs)| status(*verdict, name, *remaining, *secs));
    bytes_of(verdict, statuses.collect())
}

pub(crate) fn bytes_of(verdict: Verdict, statuses: Vec<Status>) -> Vec<u8> {
    response_to_wire(&Answer { verdict, statuses, metadata: None }).encode_to_vec()
}

/// The answer to a call for one descriptor, with a lease of this many tokens, or none, for this time.
pub(crate) fn leased(verdict: Verdict, call: &GrpcCall, tokens: u32, millis: u64) -> Vec<u8> {
    let valid_until = Timestamp::from_nanos(clock_of(call) + millis * 1_000_000);
    let mut status = status(verdict, "", 9, 30);
    let id = if tokens > 0 { number_of(call) } else { Lease::NO_ID };
    status.lease = Some(Lease { id, tokens, valid_until });
    bytes_of(verdict, vec![status])
}

pub(crate) fn status(verdict: Verdict, name: &str, remaining: u32, secs: u64) -> Status {
    Status {
        verdict,
        limit: Some(LimitView { requests: 10, unit: Some(Unit::Minute), name: name.to_owned() }),
        remaining,
        reset: Nanos::from_secs(secs),
        lease: None,
        details: None,
    }
}
