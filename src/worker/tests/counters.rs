//! Each outcome of a request and of a call has its counter.

use super::authority::{made_up, status};
use super::world::{Envoy, MILLI};
use super::{fail_all, only_call};
use crate::config::UndecidedMode;
use crate::host::CallId;
use crate::leases::local_table::ReturnableTokens;
use crate::leases::token_pool::LeaseTokens;
use crate::worker::call_error::CallError;
use tidegate_core::{Nanos, Verdict};

/// The counters that changed are these, by one each.
fn check(envoy: &mut Envoy, expected: &[&str]) {
    let mut expected: Vec<(String, i64)> =
        expected.iter().map(|name| ((*name).to_owned(), 1)).collect();
    expected.sort_unstable();
    assert_eq!(envoy.counted(), expected);
}

/// Answers the only call with this verdict and this many tokens, for 100 ms.
fn answer(envoy: &mut Envoy, verdict: Verdict, tokens: u32) -> CallId {
    let call = only_call(envoy);
    envoy.world_mut().sent.clear();
    let ends = envoy.world().now + 100 * MILLI;
    let answer = made_up(verdict, vec![status(verdict, tokens, ends)]);
    envoy.workers[0].on_answer(call.id, Ok(&answer));
    call.id
}

#[test]
fn a_decision_is_counted_by_its_outcome_and_its_place() {
    let mut envoy = Envoy::new(1, 64);
    envoy.request(0, &[("a", 1)]);
    check(&mut envoy, &["asks", "lease_misses"]);
    answer(&mut envoy, Verdict::Allow, 50);
    check(&mut envoy, &["allowed_asked", "leases_granted"]);
    envoy.request(0, &[("a", 1)]);
    check(&mut envoy, &["allowed_local"]);
    envoy.request(0, &[("b", 1)]);
    check(&mut envoy, &["asks", "lease_misses"]);
    answer(&mut envoy, Verdict::Deny, 0);
    check(&mut envoy, &["denied_asked"]);
    envoy.request(0, &[("b", 1)]);
    check(&mut envoy, &["denied_local"]);
}

#[test]
fn in_shadow_only_denials_and_calls_are_counted() {
    let mut envoy = Envoy::new(1, 64);
    envoy.request_with_shadow(0, &[], &[("a", 1)]);
    check(&mut envoy, &["asks"]);
    answer(&mut envoy, Verdict::Allow, 50);
    check(&mut envoy, &["leases_granted"]);
    envoy.request_with_shadow(0, &[], &[("a", 1)]);
    check(&mut envoy, &[]);
    envoy.request_with_shadow(0, &[], &[("b", 1)]);
    check(&mut envoy, &["asks"]);
    answer(&mut envoy, Verdict::Deny, 0);
    check(&mut envoy, &["shadow_denied"]);
    envoy.request_with_shadow(0, &[], &[("b", 1)]);
    check(&mut envoy, &["shadow_denied"]);
}

/// A request that its enforced descriptors deny never reaches the upstream, so it is no hit in
/// shadow either.
#[test]
fn a_denied_request_does_not_count_in_shadow() {
    let mut envoy = Envoy::new(1, 64);
    envoy.request(0, &[("b", 1)]);
    answer(&mut envoy, Verdict::Deny, 0);
    envoy.counted();
    envoy.request_with_shadow(0, &[("b", 1)], &[("b", 1)]);
    check(&mut envoy, &["denied_local"]);
}

#[test]
fn a_failed_call_is_counted_by_its_cause_and_by_what_became_of_the_request() {
    use CallError::{Late, Malformed, Refused, Shed, Silent, Status, Stuck, Unreachable};
    let (failure, overload) =
        (["failure_denied", "failure_allowed"], ["overload_denied", "overload_allowed"]);
    let table = [
        (Unreachable, "asks_unreachable", failure),
        (Silent, "asks_unanswered", failure),
        (Status(12), "asks_failed", failure),
        (Malformed, "asks_failed", failure),
        (Stuck, "asks_stuck", failure),
        (Late, "asks_late", overload),
        (Shed, "asks_shed", overload),
        (Refused, "asks_refused", overload),
    ];
    for (error, cause, outcomes) in table {
        for (mode, outcome) in [UndecidedMode::Deny, UndecidedMode::Allow].into_iter().zip(outcomes)
        {
            let mut envoy = Envoy::with(1, |config| {
                (config.failure_mode, config.overload_mode) = (mode, mode);
            });
            envoy.request(0, &[("a", 1)]);
            envoy.counted();
            fail_all(&mut envoy, error);
            check(&mut envoy, &["ask_errors", cause, outcome]);
        }
    }
}

/// The two modes are set apart: one that allows says nothing about the other.
#[test]
fn each_mode_decides_its_own_causes() {
    for (failure_mode, overload_mode, error, outcome) in [
        (UndecidedMode::Allow, UndecidedMode::Deny, CallError::Unreachable, "failure_allowed"),
        (UndecidedMode::Allow, UndecidedMode::Deny, CallError::Late, "overload_denied"),
        (UndecidedMode::Deny, UndecidedMode::Allow, CallError::Unreachable, "failure_denied"),
        (UndecidedMode::Deny, UndecidedMode::Allow, CallError::Late, "overload_allowed"),
    ] {
        let mut envoy = Envoy::with(1, |config| {
            (config.failure_mode, config.overload_mode) = (failure_mode, overload_mode);
        });
        envoy.request(0, &[("a", 1)]);
        fail_all(&mut envoy, error);
        assert!(envoy.counted().contains(&(outcome.to_owned(), 1)), "{outcome}");
    }
}

#[test]
fn a_call_that_cannot_be_sent_is_a_failure_at_once() {
    let mut envoy = Envoy::new(1, 64);
    envoy.world_mut().unsendable = true;
    envoy.request(0, &[("a", 1)]);
    check(&mut envoy, &["lease_misses", "ask_errors", "asks_unreachable", "failure_denied"]);
    assert!(envoy.workers[0].streams.is_empty());
}

#[test]
fn returns_are_no_asks_and_only_tokens_that_existed_are_returned() {
    let mut envoy = Envoy::new(1, 64);
    let (key, expires_at) = (envoy.key("a"), envoy.now().saturating_add(Nanos::from_secs(9)));
    let entries = envoy.descriptors(0, &[("a", 1)]).iter().next().unwrap().entries.into();
    let lease = LeaseTokens { id: 1, left: 5, granted: 9, expires_at };
    let tokens = ReturnableTokens { key, entries, lease };
    let worker = &mut envoy.workers[0];
    worker.queue_return(tokens.clone());
    let recall = LeaseTokens { id: 2, left: u32::MAX, granted: 0, expires_at };
    worker.recalls.push_back(ReturnableTokens { lease: recall, ..tokens });
    envoy.tick_all();
    fail_all(&mut envoy, CallError::Unreachable);
    check(&mut envoy, &[]);
    envoy.tick_all();
    let call = only_call(&envoy);
    envoy.workers[0].on_answer(call.id, Ok(&made_up(Verdict::Allow, vec![])));
    assert_eq!(envoy.counted(), [("tokens_returned".to_owned(), 5)]);
}

#[test]
fn writes_lost_to_other_workers_are_counted() {
    let mut envoy = Envoy::new(1, 64);
    envoy.world_mut().conflicts = 3;
    envoy.change_slot("a", |_| {});
    assert_eq!(envoy.counted(), [("conflicts".to_owned(), 3)]);
}

#[test]
fn gauges_show_this_moment_and_lose_the_share_of_a_worker_that_ends() {
    let mut envoy = Envoy::new(1, 64);
    let gauges = |envoy: &mut Envoy| {
        let names = ["waiting", "leases_held", "breakers_open"];
        let counted = envoy.counted();
        let of =
            |name: &str| counted.iter().find(|(other, _)| other == name).map_or(0, |row| row.1);
        names.map(of)
    };
    envoy.request(0, &[("a", 1)]);
    answer(&mut envoy, Verdict::Allow, 50);
    envoy.request(0, &[("a", 1)]);
    envoy.request(0, &[("b", 1)]);
    envoy.request(0, &[("b", 1)]);
    envoy.workers[0].on_tick();
    assert_eq!(gauges(&mut envoy), [2, 1, 0]);
    let now = envoy.now();
    envoy.workers[0].breaker.silent(now, 0);
    fail_all(&mut envoy, CallError::Late);
    envoy.workers[0].on_tick();
    assert_eq!(gauges(&mut envoy), [-2, 0, 1]);
    envoy.workers[0].on_end();
    assert_eq!(gauges(&mut envoy), [0, -1, -1]);
}
