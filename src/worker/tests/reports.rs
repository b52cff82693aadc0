//! What a request gets besides its decision: reports of denials and of those that a shadow mode
//! prevented, headers, body and metadata of the service.

use super::NoFacts;
use super::authority::{made_up, status};
use super::states::after_ms;
use super::world::Envoy;
use super::{fail_all, only_call, resumed};
use crate::config::{Config, FilterState, Fraction, HeaderStyle, UndecidedMode};
use crate::host::{NamedHeader, StreamId};
use crate::leases::token_pool::LeaseTokens;
use crate::worker::HeadersStatus;
use crate::worker::call_error::CallError;
use prost::Message;
use tidegate_core::{Status, StatusDetails, Verdict};
use tidegate_wire::rls::{HeaderValue, RateLimitResponse};

const HEADER: &str = "x-shadow";

fn reporting(change: impl Fn(&mut Config)) -> Envoy {
    Envoy::with(1, |config| {
        config.reports.shadow_header = Some(HEADER.to_owned());
        config.reports.filter_state = FilterState::All;
        change(config);
    })
}

/// Answers the oldest call.
fn answer(envoy: &mut Envoy, bytes: &[u8]) {
    let call = envoy.world_mut().sent.remove(0);
    envoy.workers[call.worker].on_answer(call.id, Ok(bytes));
    envoy.wake_all();
}

/// Allows one descriptor that a rule in shadow would have denied.
fn allow_in_shadow() -> Vec<u8> {
    made_up(Verdict::Allow, vec![in_shadow()])
}

pub(super) fn in_shadow() -> Status {
    let details =
        StatusDetails { further: Vec::new(), without_shadow: Verdict::Deny, is_uncounted: false };
    Status {
        remaining: 0,
        lease: None,
        details: Some(Box::new(details)),
        ..status(Verdict::Allow, 0, 0)
    }
}

/// A denial, which is cached.
fn deny(envoy: &Envoy) -> Vec<u8> {
    let ends = after_ms(envoy, 900).as_nanos();
    made_up(Verdict::Deny, vec![status(Verdict::Deny, 0, ends)])
}

/// The filter state set since the last look.
fn filter_state(envoy: &Envoy) -> Vec<(u32, String, String)> {
    let set = std::mem::take(&mut envoy.world_mut().filter_state);
    set.into_iter().map(|(stream, name, value)| (stream.0, name, value)).collect()
}

fn state(stream: u32, name: &str, value: &str) -> (u32, String, String) {
    (stream, name.to_owned(), value.to_owned())
}

/// The headers of the response that are not about limits.
fn response(envoy: &mut Envoy, stream: u32) -> Vec<NamedHeader> {
    envoy.workers[0].on_response(StreamId(stream), &NoFacts);
    std::mem::take(&mut envoy.world_mut().appended)
}

fn header(name: &str, value: &str) -> NamedHeader {
    (name.to_owned(), value.to_owned())
}

fn none() -> Fraction {
    Fraction { numerator: 0, denominator: 100 }
}

fn counted(envoy: &mut Envoy, name: &str) -> i64 {
    envoy.counted().iter().find(|(known, _)| known == name).map_or(0, |(_, count)| *count)
}

// Denials that a shadow mode prevented.

#[test]
fn a_rule_in_shadow_is_reported_for_the_request_that_it_would_have_denied() {
    let mut envoy = reporting(|_| {});
    envoy.request(0, &[("a", 1)]);
    answer(&mut envoy, &allow_in_shadow());
    assert_eq!(resumed(&envoy), [1]);
    assert_eq!(filter_state(&envoy), [state(1, "tidegate.shadow", "n")]);
    assert_eq!(response(&mut envoy, 1), [header(HEADER, "n")]);
    assert_eq!(response(&mut envoy, 1), [], "once");
    assert_eq!(counted(&mut envoy, "rule_shadow_denied"), 1);
    // One with room is not.
    envoy.request(0, &[("a", 1)]);
    answer(&mut envoy, &made_up(Verdict::Allow, vec![status(Verdict::Allow, 0, 0)]));
    assert_eq!((filter_state(&envoy), response(&mut envoy, 2)), (vec![], vec![]));
    assert_eq!(counted(&mut envoy, "rule_shadow_denied"), 0);
}

/// A request that another limit denies was prevented by no shadow.
#[test]
fn a_denied_request_is_reported_as_denied_alone() {
    let mut envoy = reporting(|_| {});
    envoy.request(0, &[("a", 1), ("b", 1)]);
    let denied = Status { lease: None, ..status(Verdict::Deny, 0, 0) };
    answer(&mut envoy, &made_up(Verdict::Deny, vec![denied, in_shadow()]));
    assert_eq!(filter_state(&envoy), [state(1, "tidegate.denied_by", "n")]);
    assert_eq!(counted(&mut envoy, "rule_shadow_denied"), 0);
}

#[test]
fn a_denial_that_is_not_enforced_is_reported_wherever_it_was_made() {
    let mut envoy = reporting(|config| config.filter_enforced = none());
    // By the answer, by the cached denial after waiting for it, and at once.
    envoy.request(0, &[("a", 1)]);
    envoy.request(0, &[("a", 1)]);
    let denial = deny(&envoy);
    answer(&mut envoy, &denial);
    envoy.request(0, &[("a", 1)]);
    assert_eq!(resumed(&envoy), [1, 2]);
    let expected = [1, 2, 3].map(|stream| state(stream, "tidegate.shadow", "n"));
    assert_eq!(filter_state(&envoy), expected);
    for stream in [1, 2, 3] {
        assert_eq!(response(&mut envoy, stream), [header(HEADER, "n")]);
    }
    assert_eq!(counted(&mut envoy, "shadow_denied"), 3);
}

#[test]
fn entries_in_shadow_are_reported_if_their_denial_is_known_before_the_request_goes_on() {
    let mut envoy = reporting(|_| {});
    // Not yet known: it only counts.
    let (_, first) = envoy.request_with_shadow(0, &[], &[("a", 1)]);
    let denial = deny(&envoy);
    answer(&mut envoy, &denial);
    assert_eq!((first, filter_state(&envoy)), (HeadersStatus::Continue, vec![]));
    assert_eq!(counted(&mut envoy, "shadow_denied"), 1);
    let (_, second) = envoy.request_with_shadow(0, &[], &[("a", 1)]);
    assert_eq!(second, HeadersStatus::Continue);
    assert_eq!(filter_state(&envoy), [state(2, "tidegate.shadow", "n")]);
    assert_eq!(response(&mut envoy, 2), [header(HEADER, "n")]);
    // A request that waits keeps it until it passes, with what its answer adds.
    envoy.request_with_shadow(0, &[("b", 1)], &[("a", 1)]);
    assert_eq!(filter_state(&envoy), []);
    envoy.workers[0].on_tick();
    assert_eq!(counted(&mut envoy, "waiting"), 1);
    let mut over = in_shadow();
    over.limit.as_mut().unwrap().name = "other".to_owned();
    answer(&mut envoy, &made_up(Verdict::Allow, vec![over]));
    assert_eq!(resumed(&envoy), [3]);
    assert_eq!(filter_state(&envoy), [state(3, "tidegate.shadow", "other,n")]);
    assert_eq!(response(&mut envoy, 3), [header(HEADER, "other,n")]);
    // Denied after all, or without a decision.
    envoy.request_with_shadow(0, &[("c", 1)], &[("a", 1)]);
    let denial = deny(&envoy);
    answer(&mut envoy, &denial);
    assert_eq!(filter_state(&envoy), [state(4, "tidegate.denied_by", "n")]);
    envoy.workers[0].config.failure_mode = UndecidedMode::Allow;
    envoy.request_with_shadow(0, &[("d", 1)], &[("a", 1)]);
    fail_all(&mut envoy, CallError::Unreachable);
    assert_eq!(filter_state(&envoy), [state(5, "tidegate.shadow", "n")]);
}

#[test]
fn nothing_is_reported_that_is_not_wanted() {
    let mut envoy = Envoy::new(1, 64);
    envoy.request(0, &[("a", 1)]);
    let denial = deny(&envoy);
    answer(&mut envoy, &denial);
    envoy.request(0, &[("a", 1)]);
    assert_eq!(filter_state(&envoy), [], "denials");
    envoy.request_with_shadow(0, &[], &[("a", 1)]);
    assert_eq!(filter_state(&envoy), [state(3, "tidegate.shadow", "n")]);
    assert!(envoy.workers[0].streams.is_empty(), "nothing to do for the response");
}

#[test]
fn denials_are_reported_wherever_they_were_made_under_the_prefix_of_the_plugin() {
    let mut envoy = reporting(|config| config.reports.stat_prefix = "edge".to_owned());
    envoy.request(0, &[("a", 1)]);
    envoy.request(0, &[("a", 1)]);
    let denial = deny(&envoy);
    answer(&mut envoy, &denial);
    envoy.request(0, &[("a", 1)]);
    let expected = [1, 2, 3].map(|stream| state(stream, "tidegate.edge.denied_by", "n"));
    assert_eq!(filter_state(&envoy), expected);
}

/// Requests for a descriptor that a rule in shadow would deny waited for one another's answers, one
/// at a time, until their deadline, though the sidecar leases nothing of it. A rule in shadow so
/// denied requests for overload.
#[test]
fn requests_over_a_limit_in_shadow_do_not_wait_for_one_another() {
    let mut envoy = reporting(|_| {});
    for _ in 0..1_000 {
        envoy.request(0, &[("a", 1)]);
    }
    let mut rounds = 0;
    while !envoy.world().sent.is_empty() {
        rounds += 1;
        let calls = envoy.world().sent.len();
        for _ in 0..calls {
            answer(&mut envoy, &allow_in_shadow());
        }
    }
    assert_eq!(resumed(&envoy).len(), 1_000);
    // As many at once as calls may be under way, after the first.
    assert!(rounds <= 2 + 1_000 / 16, "{rounds} rounds");
    assert_eq!(counted(&mut envoy, "rule_shadow_denied"), 1_000);
}

// Answers with more than a decision.

/// An answer with a header for each direction, a body and metadata.
fn with_additions(decision: &[u8], response: &[(&str, &str)]) -> Vec<u8> {
    let header = |(key, value): (&str, &str)| HeaderValue { key: key.into(), value: value.into() };
    RateLimitResponse {
        response_headers_to_add: response.iter().copied().map(header).collect(),
        request_headers_to_add: vec![header(("X-Plan", "gold"))],
        raw_body: b"no more".to_vec(),
        dynamic_metadata: Some(prost_types::Struct {
            fields: [("plan".to_owned(), prost_types::Value::from("gold".to_owned()))].into(),
        }),
        ..RateLimitResponse::decode(decision).unwrap()
    }
    .encode_to_vec()
}

#[test]
fn a_request_that_passes_has_the_headers_of_its_answer() {
    let mut envoy = Envoy::with(1, |config| config.headers = HeaderStyle::Ietf);
    envoy.request(0, &[("a", 1)]);
    let decision = made_up(Verdict::Allow, vec![status(Verdict::Allow, 0, 0)]);
    // The filter writes the second itself.
    let headers = [("X-Quota", "9"), ("RateLimit", "theirs"), ("x-quota", "8")];
    answer(&mut envoy, &with_additions(&decision, &headers));
    assert_eq!(resumed(&envoy), [1]);
    assert_eq!(envoy.world().added_to_requests, [(StreamId(1), header("x-plan", "gold"))]);
    assert_eq!(filter_state(&envoy), [state(1, "tidegate.metadata", r#"{"plan":"gold"}"#)]);
    assert_eq!(response(&mut envoy, 1), [header("x-quota", "9"), header("x-quota", "8")]);
    let own: Vec<&str> = envoy.world().headers.iter().map(|(name, _)| *name).collect();
    assert_eq!(own, ["ratelimit-policy", "ratelimit"]);
}

#[test]
fn a_denial_has_the_headers_and_the_body_of_its_answer() {
    let mut envoy = Envoy::new(1, 64);
    envoy.request(0, &[("a", 1)]);
    let denial = deny(&envoy);
    answer(&mut envoy, &with_additions(&denial, &[("X-Quota", "0"), ("Retry-After", "77")]));
    let world = envoy.world();
    let (_, _, headers) = &world.replies[0];
    assert!(headers.iter().all(|(name, _)| *name != "retry-after"), "{headers:?}");
    assert_eq!(world.added[0], [header("x-quota", "0"), header("retry-after", "77")]);
    assert_eq!(world.bodies[0], "no more");
    assert_eq!(world.added_to_requests, [], "it goes nowhere");
    drop(world);
    assert_eq!(filter_state(&envoy), [state(1, "tidegate.metadata", r#"{"plan":"gold"}"#)]);
}

#[test]
fn answers_to_others_than_a_waiting_request_change_nothing() {
    let mut envoy = Envoy::new(1, 64);
    let decision = made_up(Verdict::Allow, vec![status(Verdict::Allow, 0, 0)]);
    let additions = with_additions(&decision, &[("x-quota", "9")]);
    // In shadow, and gone.
    envoy.request_with_shadow(0, &[], &[("a", 1)]);
    answer(&mut envoy, &additions);
    envoy.request(0, &[("b", 1)]);
    envoy.workers[0].on_gone(StreamId(2), &NoFacts);
    let call = only_call(&envoy);
    envoy.workers[0].on_answer(call.id, Ok(&additions));
    let world = envoy.world();
    assert!(world.added_to_requests.is_empty() && world.filter_state.is_empty());
}

#[test]
fn a_response_to_a_paused_request_leaves_its_notes() {
    let mut envoy = reporting(|_| {});
    envoy.request(0, &[("a", 1)]);
    let denial = deny(&envoy);
    answer(&mut envoy, &denial);
    filter_state(&envoy);
    envoy.request_with_shadow(0, &[("b", 1)], &[("a", 1)]);
    // Another filter answers it.
    assert_eq!(response(&mut envoy, 2), []);
    answer(&mut envoy, &allow_in_shadow());
    assert_eq!(filter_state(&envoy), [state(2, "tidegate.shadow", "n")]);
}

/// Tokens at hand are spent before a cached denial applies. A request that passed with them was
/// reported as one that only shadow mode had let pass.
#[test]
fn a_request_that_passes_with_tokens_is_not_reported() {
    let mut envoy = reporting(|_| {});
    let (now, ends) = (envoy.now(), after_ms(&envoy, 900));
    let tokens = LeaseTokens { id: 7, left: 5, granted: 5, expires_at: ends };
    let state = &mut envoy.record(0, "a").state;
    state.grant(tokens, now).unwrap();
    state.denied_until = ends;
    let (_, passed) = envoy.request(0, &[("a", 1)]);
    assert_eq!(passed, HeadersStatus::Continue);
    assert_eq!(filter_state(&envoy), []);
}
