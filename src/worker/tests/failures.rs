//! The circuit breaker and the log, by the failures of calls.

use super::authority::{Authority, made_up};
use super::world::Envoy;
use super::{answer_all, fail_all, only_call, replied, resumed};
use crate::config::UndecidedMode;
use crate::leases::local_table::ReturnableTokens;
use crate::leases::token_pool::LeaseTokens;
use crate::worker::HeadersStatus;
use crate::worker::call_error::CallError;
use tidegate_core::{Nanos, Verdict};

const NOT_REACHABLE: &str =
    "cluster c: not reachable (gRPC status 14); such requests get 500 (failure_mode deny)";
const LATE: &str = "cluster c: an answer came too late; such requests get 503 (overload_mode deny)";
const AGAIN: &str = "cluster c answers again";

/// A request whose call fails by this error.
fn failed(envoy: &mut Envoy, error: CallError) {
    envoy.request(0, &[("a", 1)]);
    fail_all(envoy, error);
}

/// Five failures in a row, which open the breaker.
fn outage(envoy: &mut Envoy) {
    (0..5).for_each(|_| failed(envoy, CallError::Unreachable));
    assert!(!envoy.workers[0].breaker.is_closed());
}

fn logs(envoy: &Envoy) -> Vec<String> {
    std::mem::take(&mut envoy.world_mut().logs)
}

/// Tokens that the next tick returns.
fn queue_tokens(envoy: &mut Envoy) {
    let (key, expires_at) = (envoy.key("a"), envoy.now().saturating_add(Nanos::from_secs(59)));
    let entries = envoy.descriptors(0, &[("a", 1)]).iter().next().unwrap().entries.into();
    let lease = LeaseTokens { id: 1, left: 5, granted: 9, expires_at };
    envoy.workers[0].queue_return(ReturnableTokens { key, entries, lease });
}

#[test]
fn an_error_that_is_an_answer_ends_a_row_of_failures_and_is_none() {
    for answer in [CallError::Shed, CallError::Refused, CallError::Stuck] {
        let mut envoy = Envoy::new(1, 64);
        for _ in 0..2 {
            (0..4).for_each(|_| failed(&mut envoy, CallError::Unreachable));
            failed(&mut envoy, answer);
        }
        (0..4).for_each(|_| failed(&mut envoy, CallError::Unreachable));
        assert!(envoy.workers[0].breaker.is_closed(), "{answer:?}");
        failed(&mut envoy, CallError::Unreachable);
        assert!(!envoy.workers[0].breaker.is_closed(), "{answer:?}");
    }
}

/// Symptom: with a sidecar that stood still, a request among 5,000 got 503, not the status of `failure_mode`. Cause: Envoy ended
/// its call after two seconds, before the fifth tick of a worker that was busy with the others.
#[test]
fn a_silent_sidecar_is_found_before_envoy_ends_a_call_though_each_tick_takes_a_second() {
    let mut envoy = Envoy::new(1, 64);
    let (stream, _) = envoy.request(0, &[("a", 1)]);
    let ends = only_call(&envoy).ends;
    while !envoy.world().sent.is_empty() {
        envoy.pass_ms(1_000);
        assert!(envoy.world().now < ends, "Envoy ends the call");
        envoy.tick_all();
    }
    assert_eq!(replied(&envoy), [(stream.0, 500)]);
    assert!(!envoy.workers[0].breaker.is_closed());
}

#[test]
fn late_calls_open_no_breaker() {
    let mut envoy = Envoy::new(1, 64);
    (0..20).for_each(|_| failed(&mut envoy, CallError::Late));
    assert!(envoy.workers[0].breaker.is_closed());
}

#[test]
fn a_silent_sidecar_opens_the_breaker_with_one_call() {
    let mut envoy = Envoy::new(1, 64);
    let (stream, _) = envoy.request(0, &[("a", 1)]);
    for _ in 0..5 {
        assert_eq!(replied(&envoy), []);
        envoy.tick_all();
    }
    assert_eq!(replied(&envoy), [(stream.0, 500)]);
    assert_eq!(envoy.world().sent.len(), 0, "the call is cancelled");
    assert!(!envoy.workers[0].breaker.is_closed());
    let line = "cluster c: it answers no call; such requests get 500 (failure_mode deny)";
    assert_eq!(logs(&envoy), [line]);
}

#[test]
fn a_call_without_an_answer_is_late_while_the_sidecar_answers_others() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    let (stream, _) = envoy.request(0, &[("1", 1)]);
    let stuck = envoy.world_mut().sent.pop().unwrap();
    for number in 0..7 {
        assert_eq!(replied(&envoy), []);
        envoy.request(0, &[(&format!("{}", 10 + number), 1)]);
        answer_all(&mut envoy, &mut authority);
        resumed(&envoy);
        envoy.tick_all();
    }
    assert_eq!(replied(&envoy), []);
    envoy.tick_all();
    assert_eq!(replied(&envoy), [(stream.0, 503)]);
    assert!(envoy.workers[0].breaker.is_closed());
    assert_eq!(logs(&envoy), [LATE]);
    // Its answer comes after all.
    envoy.workers[0].on_answer(stuck.id, Ok(&made_up(Verdict::Allow, vec![])));
    assert_eq!((replied(&envoy), resumed(&envoy)), (vec![], vec![]));
}

#[test]
fn a_failed_probe_doubles_the_pause() {
    let mut envoy = Envoy::new(1, 64);
    outage(&mut envoy);
    // A pause is up to a quarter longer than it says.
    for (before_ms, probe_ms) in [(999, 300), (1_999, 600), (3_999, 1_100)] {
        envoy.pass_ms(before_ms);
        envoy.request(0, &[("a", 1)]);
        assert_eq!(envoy.world().sent.len(), 0, "after {before_ms} ms");
        envoy.pass_ms(probe_ms);
        envoy.request(0, &[("a", 1)]);
        assert_eq!(fail_all(&mut envoy, CallError::Unreachable), 1);
    }
}

#[test]
fn a_line_about_a_cause_is_logged_once_in_ten_seconds() {
    let mut envoy = Envoy::new(1, 64);
    failed(&mut envoy, CallError::Late);
    failed(&mut envoy, CallError::Unreachable);
    assert_eq!(logs(&envoy), [LATE, NOT_REACHABLE]);
    envoy.pass_ms(9_999);
    failed(&mut envoy, CallError::Late);
    assert_eq!(logs(&envoy), Vec::<String>::new());
    envoy.pass_ms(1);
    failed(&mut envoy, CallError::Late);
    assert_eq!(logs(&envoy), [LATE]);
}

#[test]
fn a_line_says_what_becomes_of_such_requests() {
    for (error, line) in [
        (
            CallError::Unreachable,
            "cluster c: not reachable (gRPC status 14); such requests pass unlimited (failure_mode allow)",
        ),
        (
            CallError::Late,
            "cluster c: an answer came too late; such requests pass unlimited (overload_mode allow)",
        ),
        (
            CallError::Overflow,
            "cluster c: Envoy has too many pending calls to it; requests wait for their turn",
        ),
    ] {
        let mut envoy = Envoy::with(1, |config| {
            (config.failure_mode, config.overload_mode) =
                (UndecidedMode::Allow, UndecidedMode::Allow);
        });
        failed(&mut envoy, error);
        assert_eq!(logs(&envoy), [line]);
    }
}

#[test]
fn the_end_of_an_outage_is_logged_if_the_outage_was() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    failed(&mut envoy, CallError::Unreachable);
    assert_eq!(logs(&envoy), [NOT_REACHABLE]);
    envoy.request(0, &[("5", 1)]);
    answer_all(&mut envoy, &mut authority);
    assert_eq!(logs(&envoy), Vec::<String>::new(), "one failed call is no outage");
    failed(&mut envoy, CallError::Late);
    assert_eq!(logs(&envoy), [LATE]);
    outage(&mut envoy);
    assert_eq!(logs(&envoy), Vec::<String>::new(), "soon after a line about the same cause");
    envoy.pass_ms(1_300);
    envoy.request(0, &[("5", 1)]);
    answer_all(&mut envoy, &mut authority);
    assert!(envoy.workers[0].breaker.is_closed());
    assert_eq!(logs(&envoy), Vec::<String>::new());
}

#[test]
fn a_failed_probe_is_logged_only_if_its_outage_was_not() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    outage(&mut envoy);
    envoy.pass_ms(12_000);
    failed(&mut envoy, CallError::Unreachable);
    assert_eq!(logs(&envoy), [NOT_REACHABLE]);
    envoy.pass_ms(12_000);
    envoy.request(0, &[("5", 1)]);
    answer_all(&mut envoy, &mut authority);
    assert_eq!(logs(&envoy), [AGAIN]);
    resumed(&envoy);

    failed(&mut envoy, CallError::Unreachable);
    assert_eq!(logs(&envoy), [NOT_REACHABLE]);
    envoy.request(0, &[("5", 1)]);
    answer_all(&mut envoy, &mut authority);
    outage(&mut envoy);
    assert_eq!(logs(&envoy), Vec::<String>::new(), "soon after a line about the same cause");
    envoy.pass_ms(10_000);
    failed(&mut envoy, CallError::Unreachable);
    assert_eq!(logs(&envoy), [NOT_REACHABLE]);
}

#[test]
fn a_failed_return_is_logged_if_it_opens_the_breaker_or_is_an_answer() {
    let mut envoy = Envoy::new(1, 64);
    queue_tokens(&mut envoy);
    for _ in 0..5 {
        assert_eq!(logs(&envoy), Vec::<String>::new());
        envoy.tick_all();
        assert_eq!(fail_all(&mut envoy, CallError::Unreachable), 1);
    }
    assert_eq!(logs(&envoy), [NOT_REACHABLE]);

    let mut envoy = Envoy::new(1, 64);
    queue_tokens(&mut envoy);
    envoy.tick_all();
    assert_eq!(fail_all(&mut envoy, CallError::Refused), 1);
    assert_eq!(logs(&envoy).len(), 1);
}

/// While the sidecar does not answer, each return would be one more failed call, and a flood of
/// them once it answers again.
#[test]
fn no_tokens_are_returned_while_the_breaker_is_open() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    queue_tokens(&mut envoy);
    outage(&mut envoy);
    envoy.tick_all();
    assert_eq!(envoy.world().sent.len(), 0);
    envoy.pass_ms(1_300);
    assert_eq!(envoy.request(0, &[("5", 1)]).1, HeadersStatus::Pause);
    answer_all(&mut envoy, &mut authority);
    envoy.tick_all();
    assert!(only_call(&envoy).metadata("tidegate-return").is_some());
}
