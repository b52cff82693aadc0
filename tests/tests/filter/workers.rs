//! Two workers of one Envoy: two machines with the built filter on mock hosts that share their data.

use crate::host::{ContextId, GrpcCall, Host, Outcome};
use crate::scene::*;
use prost::Message;
use std::time::Duration;
use tidegate_core::Verdict;
use tidegate_wire::rls::RateLimitRequest;

const USER: [(&str, &[u8]); 1] = [("x-user", b"u")];

/// The workers, open for whatever they do.
fn workers() -> [Host; 2] {
    let mut first = started(&plugin());
    let mut second = started_beside(&first.shared_data().clone(), &plugin());
    allow_all(&mut first);
    allow_all(&mut second);
    [first, second]
}

/// Sends a request, has the calls that come of it denied for ten seconds, and says whether it passed.
fn passes(host: &mut Host) -> bool {
    let request = host.request(&USER);
    while *host.outcome(request) == Outcome::Paused {
        let calls = host.take_grpc_calls();
        assert!(!calls.is_empty(), "it waits for nothing");
        for call in calls {
            host.answer(call.token, &leased(Verdict::Deny, &call, 0, 10_000));
        }
    }
    let passed = matches!(host.outcome(request), Outcome::Continued | Outcome::Resumed);
    host.finish(request);
    passed
}

/// Sends a request that needs a call, and leases this many tokens beside.
fn leases(host: &mut Host, tokens: u32, millis: u64) -> (ContextId, GrpcCall) {
    let request = host.request(&USER);
    assert_eq!(*host.outcome(request), Outcome::Paused);
    let call = host.take_grpc_calls().remove(0);
    host.answer(call.token, &leased(Verdict::Allow, &call, tokens, millis));
    assert_eq!(*host.outcome(request), Outcome::Resumed);
    (request, call)
}

#[test]
fn they_spend_one_lease_together_and_not_a_token_more() {
    let mut workers = workers();
    leases(&mut workers[0], 20, 2_000);
    let mut passed = [0; 2];
    for turn in 0..60 {
        passed[turn % 2] += u32::from(passes(&mut workers[turn % 2]));
    }
    assert_eq!(passed[0] + passed[1], 20, "{passed:?}");
    assert!(passed[0] > 0 && passed[1] > 0, "{passed:?}");
}

#[test]
fn what_one_of_them_is_denied_the_other_denies_without_asking() {
    let mut workers = workers();
    assert!(!passes(&mut workers[0]));
    for _ in 0..5 {
        let request = workers[1].request(&USER);
        let reply = workers[1].local_reply(request);
        assert_eq!((reply.status, workers[1].grpc_calls_in_flight()), (429, 0));
    }
    // For the granted time, and no longer.
    workers[1].advance(Duration::from_secs(10));
    let request = workers[1].request(&USER);
    assert_eq!(*workers[1].outcome(request), Outcome::Paused);
}

/// The tokens that the calls since the last look give back, of the lease with this number.
fn returned(host: &mut Host, number: u64) -> u64 {
    let mut tokens = 0;
    for call in host.take_grpc_calls() {
        let leases = call.metadata.text("tidegate-return").expect("a return and no ask");
        assert_eq!(leases, format!("{number:016x}"));
        let request = RateLimitRequest::decode(call.message.as_slice()).expect("a request");
        let [descriptor] = request.descriptors.as_slice() else { panic!("{request:?}") };
        assert_eq!(
            (descriptor.entries[0].value.as_str(), descriptor.is_negative_hits),
            ("u", true)
        );
        tokens += descriptor.hits_addend.expect("tokens");
        host.answer(call.token, &answer(Verdict::Allow, &[(Verdict::Allow, "", 9, 30)]));
    }
    tokens
}

#[test]
fn what_both_of_them_leave_goes_back_to_the_sidecar_once() {
    let mut workers = workers();
    let (_, call) = leases(&mut workers[0], 100, 60_000);
    // Each takes a chunk of it, and spends a few.
    for turn in 0..12 {
        assert!(passes(&mut workers[turn % 2]));
    }
    let mut back = 0;
    for _ in 0..20 {
        for worker in &mut workers {
            worker.advance(Duration::from_millis(100));
            worker.tick();
            back += returned(worker, number_of(&call));
        }
    }
    assert_eq!(back, 100 - 12);
    // Nothing is left to spend of what was given back.
    assert!(!passes(&mut workers[0]) && !passes(&mut workers[1]));
}

#[test]
fn a_worker_that_ends_leaves_its_tokens_to_the_other() {
    let mut workers = workers();
    let (request, _) = leases(&mut workers[0], 20, 2_000);
    let mut passed = 0;
    for _ in 0..4 {
        passed += u32::from(passes(&mut workers[0]));
    }
    let [first, second] = &mut workers;
    first.finish(request);
    first.end_plugin(ContextId::ROOT);
    for _ in 0..40 {
        passed += u32::from(passes(second));
    }
    assert_eq!(passed, 20);
}
