//! Workers of one Envoy with a small sidecar: single cases here, random mixtures in `schedules`.

mod authority;
mod counters;
mod failures;
mod filter_options;
mod late;
mod limits;
mod load;
mod replies;
mod reports;
mod returns;
mod schedules;
mod states;
mod tallies;
mod turns;
mod world;

use super::HeadersStatus;
use crate::config::{HeaderStyle, UndecidedMode};
use crate::host::StreamId;
use crate::worker::call_error::CallError;
use crate::worker::pending_calls::CALLS_MAX;
use authority::{Authority, made_up, status};
use proptest::prelude::*;
use states::after_ms;
use tidegate_core::{Lease, LimitView, Nanos, Status, Timestamp, Unit, Verdict};
use world::{Envoy, MILLI, NoFacts, Sent, WAIT_MS_MAX};

/// Lets the sidecar answer all pending calls once.
fn answer_all(envoy: &mut Envoy, authority: &mut Authority) -> usize {
    let calls = std::mem::take(&mut envoy.world_mut().sent);
    for call in &calls {
        let now = envoy.world().now;
        let answer = authority.decide(call, now);
        envoy.workers[call.worker].on_answer(call.id, Ok(&answer));
        envoy.wake_all();
    }
    calls.len()
}

fn fail_all(envoy: &mut Envoy, error: CallError) -> usize {
    let calls = std::mem::take(&mut envoy.world_mut().sent);
    for call in &calls {
        envoy.workers[call.worker].on_answer(call.id, Err(error));
        envoy.wake_all();
    }
    calls.len()
}

/// Denies the pending call for 900 ms.
fn deny_only_call(envoy: &mut Envoy) {
    let ends = after_ms(envoy, 900).as_nanos();
    let call = only_call(envoy);
    let denial = made_up(Verdict::Deny, vec![status(Verdict::Deny, 0, ends)]);
    envoy.world_mut().sent.clear();
    envoy.workers[0].on_answer(call.id, Ok(&denial));
    envoy.wake_all();
}

fn only_call(envoy: &Envoy) -> Sent {
    let world = envoy.world();
    assert_eq!(world.sent.len(), 1);
    world.sent[0].clone()
}

fn resumed(envoy: &Envoy) -> Vec<u32> {
    envoy.world_mut().resumed.drain(..).map(|stream| stream.0).collect()
}

fn replied(envoy: &Envoy) -> Vec<(u32, u32)> {
    let replies = &mut envoy.world_mut().replies;
    replies.drain(..).map(|(stream, status, _)| (stream.0, status)).collect()
}

/// A worker that holds a lease of `name` with many tokens.
fn warmed(envoy: &mut Envoy, authority: &mut Authority, name: &str) {
    for _ in 0..20 {
        envoy.request(0, &[(name, 1)]);
        answer_all(envoy, authority);
        envoy.pass_ms(5);
    }
    answer_all(envoy, authority);
    resumed(envoy);
    envoy.world_mut().sent.clear();
}

#[test]
fn local_tokens_are_spent_with_no_host_call_but_the_clock() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    warmed(&mut envoy, &mut authority, "100000");
    let mut quiet = 0;
    for _ in 0..50 {
        let before = (envoy.world().clock_reads, envoy.world().shared_uses);
        assert_eq!(envoy.request(0, &[("100000", 1)]).1, HeadersStatus::Continue);
        let after = (envoy.world().clock_reads, envoy.world().shared_uses);
        assert_eq!(after.0, before.0 + 1);
        quiet += u32::from(after.1 == before.1);
        answer_all(&mut envoy, &mut authority);
        envoy.pass_ms(1);
    }
    // A chunk is for 50 ms of the demand so far, which grows here.
    assert!(quiet >= 40, "{quiet} of 50");
    assert!(envoy.workers[0].streams.is_empty());
}

#[test]
fn a_burst_of_a_new_key_takes_two_calls() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    for _ in 0..100 {
        assert_eq!(envoy.request(0, &[("1000", 1)]).1, HeadersStatus::Pause);
    }
    let first = only_call(&envoy);
    assert_eq!(first.metadata("tidegate-lease"), Some("0"));
    assert_eq!(first.metadata("tidegate-waiting"), None);
    answer_all(&mut envoy, &mut authority);
    assert_eq!(resumed(&envoy), [1]);
    let second = only_call(&envoy);
    assert_eq!(second.metadata("tidegate-waiting"), Some("98"));
    answer_all(&mut envoy, &mut authority);
    assert_eq!(resumed(&envoy), (2..=100).collect::<Vec<_>>());
    assert_eq!((envoy.workers[0].calls.waiting(), envoy.world().sent.len()), (0, 0));
}

/// Calls beyond Envoy's limit of pending requests fail at once. That many new clients made
/// `failure_mode` decide, opened the breaker, and all other requests passed as well.
#[test]
fn a_flood_of_new_keys_is_queued_and_opens_no_breaker() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    // Of different limits, so that no request can wait for another's response.
    let names: Vec<String> = (0..1_100).map(|client| format!("{}", 1_000 + client)).collect();
    for name in &names {
        assert_eq!(envoy.request(0, &[(name, 1)]).1, HeadersStatus::Pause);
    }
    let mut most = 0;
    while !envoy.world().sent.is_empty() {
        most = most.max(envoy.world().sent.len());
        answer_all(&mut envoy, &mut authority);
    }
    assert_eq!((resumed(&envoy).len(), replied(&envoy).len(), most), (1_100, 0, CALLS_MAX));

    // A sidecar that does not answer: a queued request waits for its own time, and no longer.
    for name in &names {
        envoy.request(0, &[(&format!("9{name}"), 1)]);
    }
    for _ in 0..WAIT_MS_MAX / 100 {
        envoy.pass_ms(100);
        envoy.tick_all();
    }
    assert_eq!((envoy.workers[0].calls.calls(), envoy.workers[0].calls.waiting()), (0, 0));
    assert_eq!(resumed(&envoy).len() + replied(&envoy).len(), 1_100);
}

/// The tokens of a lost response stayed charged until their window ended: a sidecar killed at a bad
/// moment took a good part of a limit with it. The ids of their leases derive from the call's
/// number, so they can be recalled.
#[test]
fn leases_of_a_lost_response_are_recalled() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    for _ in 0..40 {
        envoy.request(0, &[("1000", 1)]);
    }
    answer_all(&mut envoy, &mut authority);
    let lost = only_call(&envoy);
    authority.decide(&lost, envoy.world().now);
    let granted: u64 = authority.leased.values().sum();
    assert!(granted >= 38, "{granted}");
    fail_all(&mut envoy, CallError::Late);
    // The requests that waited called again; their tokens are not in doubt.
    answer_all(&mut envoy, &mut authority);
    let both: u64 = authority.leased.values().sum();
    envoy.tick_all();
    answer_all(&mut envoy, &mut authority);
    assert_eq!((authority.returned, authority.leased.values().sum()), (granted, both - granted));
    envoy.tick_all();
    assert_eq!(envoy.world().sent.len(), 0);
}

/// Tokens whose return met a dead sidecar were never returned again. Sent again under the same
/// number, they are accepted once, whatever became of the first return.
#[test]
fn an_unanswered_return_is_sent_again_unchanged() {
    for first_arrives in [false, true] {
        let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
        warmed(&mut envoy, &mut authority, "100000");
        let lease: u64 = authority.leased.values().sum();
        while envoy.world().sent.is_empty() {
            envoy.pass_ms(100);
            envoy.tick_all();
        }
        let first = only_call(&envoy);
        assert!(first.metadata("tidegate-return").is_some());
        if first_arrives {
            authority.decide(&first, envoy.world().now);
        }
        fail_all(&mut envoy, CallError::Unreachable);
        envoy.tick_all();
        let again = only_call(&envoy);
        assert_eq!((&again.message, &again.metadata), (&first.message, &first.metadata));
        answer_all(&mut envoy, &mut authority);
        let left: u64 = authority.leased.values().sum();
        assert!(authority.returned > 0 && left + authority.returned == lease);
        envoy.tick_all();
        assert_eq!(envoy.world().sent.len(), 0);
    }
}

#[test]
fn a_burst_over_the_limit_takes_one_more_call() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    for _ in 0..20 {
        envoy.request(0, &[("10", 1)]);
    }
    let mut calls = 0;
    while !envoy.world().sent.is_empty() {
        calls += answer_all(&mut envoy, &mut authority);
    }
    assert_eq!((resumed(&envoy).len(), replied(&envoy).len(), calls), (10, 10, 3));
    let (stream, step) = envoy.request(0, &[("10", 1)]);
    assert_eq!((step, replied(&envoy)), (HeadersStatus::Pause, vec![(stream.0, 429)]));
    envoy.pass_ms(200);
    assert_eq!(envoy.request(0, &[("10", 1)]).1, HeadersStatus::Pause);
    assert_eq!(envoy.world().sent.len(), 1);
}

/// Requests for a key that the sidecar never leases waited for one another, a round trip each, and
/// the last ones had no time left.
#[test]
fn no_request_waits_for_leases_that_are_never_granted() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    for _ in 0..10 {
        envoy.request(0, &[("never", 1)]);
    }
    assert_eq!(answer_all(&mut envoy, &mut authority), 1);
    assert_eq!(answer_all(&mut envoy, &mut authority), 1);
    assert_eq!(answer_all(&mut envoy, &mut authority), 8);
    assert_eq!(resumed(&envoy).len(), 10);
    envoy.request(0, &[("never", 1)]);
    envoy.request(0, &[("never", 1)]);
    assert_eq!(envoy.world().sent.len(), 2);
}

/// Every two seconds a request for a descriptor without a limit had to wait for the sidecar.
#[test]
fn an_unlimited_key_in_use_is_refreshed_before_it_expires() {
    let mut envoy = Envoy::new(2, 64);
    let (mut paused, mut answered) = (0, 0);
    for _ in 0..6_000 {
        for worker in 0..2 {
            paused += u32::from(envoy.request(worker, &[("free", 1)]).1 == HeadersStatus::Pause);
        }
        let calls = std::mem::take(&mut envoy.world_mut().sent);
        let ends = Timestamp::from_nanos(envoy.world().now + 2_000 * MILLI);
        let lease = Some(Lease { id: 1, tokens: Lease::UNLIMITED, valid_until: ends });
        let free = made_up(Verdict::Allow, vec![Status { lease, ..Status::NO_LIMIT }]);
        envoy.pass_ms(1);
        for call in &calls {
            envoy.workers[call.worker].on_answer(call.id, Ok(&free));
        }
        answered += calls.len();
    }
    // Each worker once, and then every 1.3 s.
    assert_eq!((paused, answered), (2, 6));
}

#[test]
fn workers_share_one_lease_and_idle_tokens_go_back() {
    let (mut envoy, mut authority) = (Envoy::new(2, 64), Authority::default());
    warmed(&mut envoy, &mut authority, "1000");
    assert_eq!(envoy.request(1, &[("1000", 1)]).1, HeadersStatus::Continue);
    let window = authority::window_of(envoy.world().now);
    let count = ("1000".to_owned(), window);
    assert!(authority.charged[&count] > 21);
    for _ in 0..6 {
        envoy.pass_ms(100);
        envoy.tick_all();
        answer_all(&mut envoy, &mut authority);
    }
    assert_eq!(authority.charged[&count], 21);
    assert!(authority.returned > 0);
    assert_eq!(envoy.workers[0].local.watched() + envoy.workers[1].local.watched(), 0);
}

/// A worker whose configuration was replaced never got the results of its calls.
#[test]
fn an_ending_worker_finishes_requests_and_shares_its_tokens() {
    let (mut envoy, mut authority) = (Envoy::new(2, 64), Authority::default());
    warmed(&mut envoy, &mut authority, "1000");
    let all = |envoy: &Envoy| {
        let window = authority::window_of(envoy.world().now);
        authority.leased[&("1000".to_owned(), window)]
    };
    let (requester, _) = envoy.request(0, &[("7", 1)]);
    let (waiter, _) = envoy.request(0, &[("7", 1)]);
    assert!(held_tokens(&envoy, "1000") > Some(0));
    drop(envoy.workers[0].on_end());
    assert_eq!(replied(&envoy), [(requester.0, 500), (waiter.0, 500)]);
    assert_eq!(held_tokens(&envoy, "1000"), Some(0));
    let mut spent = 0;
    while envoy.request(1, &[("1000", 1)]).1 == HeadersStatus::Continue {
        spent += 1;
    }
    // Of the 20 requests before, the first two called.
    assert_eq!(spent + 18, all(&envoy));
}

/// The request of a call that had failed at once was forgotten while the cause had not arrived.
#[test]
fn an_ending_worker_finishes_requests_of_calls_that_failed_at_once() {
    let mut envoy = Envoy::new(1, 64);
    envoy.world_mut().fails_at_once = true;
    let (stream, step) = envoy.request(0, &[("7", 1)]);
    assert_eq!((step, replied(&envoy)), (HeadersStatus::Pause, vec![]));
    let decided = envoy.workers[0].on_end();
    envoy.workers[0].adopt(decided);
    envoy.wake_all();
    assert_eq!(replied(&envoy), [(stream.0, 500)]);
}

#[test]
fn all_descriptors_are_spent_or_none() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    warmed(&mut envoy, &mut authority, "1000");
    let key = envoy.descriptors(0, &[("1000", 1)]).iter().next().unwrap().key;
    let left = |envoy: &Envoy| {
        let now = Timestamp::from_nanos(envoy.world().now);
        envoy.workers[0].local.of(key).unwrap().state.pool.left(now)
    };
    envoy.request(0, &[("0", 1)]);
    answer_all(&mut envoy, &mut authority);
    replied(&envoy);
    let before = left(&envoy);
    let (stream, _) = envoy.request(0, &[("1000", 1), ("0", 1)]);
    assert_eq!((replied(&envoy), left(&envoy)), (vec![(stream.0, 429)], before));
    assert!(before >= 2);
    assert_eq!(envoy.request(0, &[("1000", 1), ("1000", 1)]).1, HeadersStatus::Continue);
    assert_eq!(left(&envoy), before - 2);
    // Once more as much as there is, in one request with the descriptor twice.
    let all = before - 2;
    let (_, step) = envoy.request(0, &[("1000", all), ("1000", 9_999)]);
    assert_eq!((step, left(&envoy)), (HeadersStatus::Pause, all));
}

#[test]
fn a_duplicate_descriptor_gets_one_lease_for_waiting_requests() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    for _ in 0..5 {
        envoy.request(0, &[("1000", 1), ("1000", 2)]);
    }
    answer_all(&mut envoy, &mut authority);
    assert_eq!(only_call(&envoy).metadata("tidegate-waiting"), Some("9,0"));
    answer_all(&mut envoy, &mut authority);
    assert_eq!(resumed(&envoy), [1, 2, 3, 4, 5]);
}

#[test]
fn a_response_serves_waiting_requests_after_its_requester_is_gone() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    let (requester, _) = envoy.request(0, &[("1000", 1)]);
    let (gone, _) = envoy.request(0, &[("1000", 1)]);
    let (waiter, _) = envoy.request(0, &[("1000", 1)]);
    envoy.workers[0].on_gone(requester, &NoFacts);
    envoy.workers[0].on_gone(gone, &NoFacts);
    answer_all(&mut envoy, &mut authority);
    answer_all(&mut envoy, &mut authority);
    assert_eq!(resumed(&envoy), [waiter.0]);
    assert_eq!(envoy.workers[0].calls.waiting(), 0);
}

#[test]
fn a_dead_sidecar_costs_five_timeouts_and_then_none() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    warmed(&mut envoy, &mut authority, "100000");
    for number in 0..5 {
        envoy.request(0, &[(&format!("{number}"), 1)]);
        assert_eq!(fail_all(&mut envoy, CallError::Unreachable), 1);
    }
    assert_eq!(replied(&envoy).len(), 5);
    let line =
        "cluster c: not reachable (gRPC status 14); such requests get 500 (failure_mode deny)";
    assert_eq!(std::mem::take(&mut envoy.world_mut().logs), [line]);
    let (stream, step) = envoy.request(0, &[("9", 1)]);
    assert_eq!((step, replied(&envoy)), (HeadersStatus::Pause, vec![(stream.0, 500)]));
    assert_eq!(envoy.world().sent.len(), 0);
    // Tokens at hand are still honoured.
    assert_eq!(envoy.request(0, &[("100000", 1)]).1, HeadersStatus::Continue);
    envoy.pass_ms(1_300);
    envoy.request(0, &[("9", 1)]);
    let probe = only_call(&envoy);
    envoy.request(0, &[("9", 1)]);
    assert_eq!(envoy.world().sent.len(), 1);
    assert_eq!(replied(&envoy).len(), 2);
    let now = envoy.world().now;
    let answer = authority.decide(&probe, now);
    envoy.world_mut().sent.clear();
    envoy.workers[0].on_answer(probe.id, Ok(&answer));
    assert_eq!(envoy.world().logs, ["cluster c answers again"]);
    assert_eq!(authority.charged[&("9".to_owned(), authority::window_of(now))], 0);
    assert_eq!(envoy.request(0, &[("9", 1)]).1, HeadersStatus::Pause);
    assert_eq!(envoy.world().sent.len(), 1);
    assert_eq!(replied(&envoy), []);
}

#[test]
fn refusals_do_not_open_the_breaker() {
    let mut envoy = Envoy::new(1, 64);
    for _ in 0..20 {
        envoy.request(0, &[("9", 1)]);
        assert_eq!(fail_all(&mut envoy, CallError::Refused), 1);
    }
    assert_eq!(envoy.world().logs.len(), 1);
}

/// Five calls about a counter of a stopped process would have opened the breaker, and no request
/// could call about any other counter.
#[test]
fn a_stuck_counter_follows_failure_mode_and_opens_no_breaker() {
    for mode in [UndecidedMode::Allow, UndecidedMode::Deny] {
        let mut authority = Authority::default();
        let mut envoy = Envoy::with(1, |config| config.failure_mode = mode);
        for _ in 0..20 {
            let (stream, step) = envoy.request(0, &[("9", 1)]);
            assert_eq!((step, fail_all(&mut envoy, CallError::Stuck)), (HeadersStatus::Pause, 1));
            let (allowed, denied) = match mode {
                UndecidedMode::Allow => (vec![stream.0], vec![]),
                UndecidedMode::Deny => (vec![], vec![(stream.0, 500)]),
            };
            assert_eq!((resumed(&envoy), replied(&envoy)), (allowed, denied));
        }
        let (stream, step) = envoy.request(0, &[("8", 1)]);
        assert_eq!((step, answer_all(&mut envoy, &mut authority)), (HeadersStatus::Pause, 1));
        assert_eq!(resumed(&envoy), [stream.0], "others are asked about as ever");
        let logs = std::mem::take(&mut envoy.world_mut().logs);
        assert_eq!(logs.len(), 1, "{logs:?}");
        assert!(logs[0].contains("a stopped process holds a counter"), "{logs:?}");
        assert!(logs[0].contains("failure_mode"), "{logs:?}");
    }
}

#[test]
fn shadow_never_pauses_and_never_denies_but_is_charged() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    for _ in 0..10 {
        let (_, step) = envoy.request_with_shadow(0, &[], &[("3", 1)]);
        assert_eq!(step, HeadersStatus::Continue);
        answer_all(&mut envoy, &mut authority);
    }
    let window = authority::window_of(envoy.world().now);
    assert_eq!(authority.charged[&("3".to_owned(), window)], 3);
    assert_eq!((resumed(&envoy), replied(&envoy)), (vec![], vec![]));
}

#[test]
fn without_slots_each_request_calls_without_lease_metadata() {
    let (mut envoy, mut authority) = (Envoy::new(1, 0), Authority::default());
    for _ in 0..5 {
        envoy.request(0, &[("1000", 1)]);
    }
    assert_eq!(envoy.world().sent.len(), 5);
    assert!(envoy.world().sent.iter().all(|call| call.metadata.is_empty()));
    answer_all(&mut envoy, &mut authority);
    assert_eq!((resumed(&envoy).len(), envoy.world().shared.len()), (5, 1));
}

#[test]
fn long_descriptors_take_a_call_for_each_request() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    let name = format!("1000{}", "x".repeat(1_100));
    for _ in 0..5 {
        envoy.request(0, &[(&name, 1)]);
    }
    assert_eq!(envoy.world().sent.len(), 5);
    assert!(envoy.world().sent.iter().all(|call| call.metadata("tidegate-lease") == Some("0")));
    answer_all(&mut envoy, &mut authority);
    assert_eq!(resumed(&envoy).len(), 5);
}

#[test]
fn a_lease_lasts_a_minute_at_most_and_none_after_its_end() {
    for (ends_ms, still_ms, over_ms) in [(500, 499, 500), (3_600_000, 59_999, 60_000)] {
        let mut envoy = Envoy::new(1, 64);
        envoy.request(0, &[("100", 1)]);
        let call = only_call(&envoy);
        let start = envoy.world().now;
        let granted = status(Verdict::Allow, 50, start + ends_ms * MILLI);
        let answer = made_up(Verdict::Allow, vec![granted]);
        envoy.workers[0].on_answer(call.id, Ok(&answer));
        envoy.world_mut().now = start + still_ms * MILLI;
        assert_eq!(envoy.request(0, &[("100", 1)]).1, HeadersStatus::Continue, "at {still_ms}");
        envoy.world_mut().now = start + over_ms * MILLI;
        assert_eq!(envoy.request(0, &[("100", 1)]).1, HeadersStatus::Pause, "at {over_ms}");
    }
}

#[test]
fn a_malformed_response_is_a_failure_and_never_a_panic() {
    let statuses = |count: usize| vec![status(Verdict::Allow, 5, u64::MAX); count];
    let denied_with_tokens = vec![status(Verdict::Deny, 5, u64::MAX)];
    let table = [
        made_up(Verdict::Allow, statuses(0)),
        made_up(Verdict::Allow, statuses(2)),
        made_up(Verdict::Deny, denied_with_tokens),
        Vec::new(),
        b"\xff\xff\xff".to_vec(),
    ];
    for bytes in table {
        let mut envoy = Envoy::new(1, 64);
        let (stream, _) = envoy.request(0, &[("100", 1)]);
        let call = only_call(&envoy);
        envoy.workers[0].on_answer(call.id, Ok(&bytes));
        envoy.workers[0].on_answer(call.id, Ok(&bytes));
        assert_eq!(replied(&envoy), [(stream.0, 500)], "for {bytes:?}");
    }
}

#[test]
fn responses_tell_what_is_left_with_the_tokens_at_hand() {
    let mut envoy = Envoy::with(1, |config| config.headers = HeaderStyle::Ietf);
    let (first, _) = envoy.request(0, &[("100", 1)]);
    let call = only_call(&envoy);
    let now = envoy.world().now;
    let answer = made_up(Verdict::Allow, vec![status(Verdict::Allow, 10, now + 2_000 * MILLI)]);
    envoy.workers[0].on_answer(call.id, Ok(&answer));
    let ratelimit_headers = |envoy: &mut Envoy, stream: StreamId| {
        envoy.workers[0].on_response(stream, &NoFacts);
        envoy.workers[0].on_gone(stream, &NoFacts);
        let headers: Vec<String> =
            envoy.world_mut().headers.drain(..).map(|(_, value)| value).collect();
        headers.join(" / ")
    };
    assert_eq!(ratelimit_headers(&mut envoy, first), "\"n\";q=100 / \"n\";r=50;t=5");
    envoy.pass_ms(1_000);
    let (second, step) = envoy.request(0, &[("100", 1)]);
    assert_eq!(step, HeadersStatus::Continue);
    assert_eq!(ratelimit_headers(&mut envoy, second), "\"n\";q=100 / \"n\";r=49;t=4");
    assert!(envoy.workers[0].streams.is_empty());
}

#[test]
fn waiting_requests_are_bounded() {
    let mut envoy = Envoy::new(1, 64);
    for _ in 0..crate::worker::pending_calls::WAITING_MAX {
        assert_eq!(envoy.request(0, &[("100", 1)]).1, HeadersStatus::Pause);
    }
    assert_eq!(replied(&envoy), []);
    let (stream, _) = envoy.request(0, &[("100", 1)]);
    assert_eq!(replied(&envoy), [(stream.0, 503)]);
    assert_eq!(envoy.workers[0].paused(), crate::worker::pending_calls::WAITING_MAX);
    let line = "cluster c: too many requests wait for its answers; \
                such requests get 503 (overload_mode deny)";
    assert_eq!(envoy.world().logs, [line]);
    assert!(envoy.counted().contains(&("waiting_full".to_owned(), 1)));
}

#[test]
fn tokens_stay_in_place_after_repeated_conflicts() {
    let (mut envoy, mut authority) = (Envoy::new(2, 64), Authority::default());
    warmed(&mut envoy, &mut authority, "1000");
    envoy.world_mut().conflicts = 8;
    assert_eq!(envoy.request(1, &[("1000", 1)]).1, HeadersStatus::Pause);
    assert_eq!(envoy.world().conflicts, 0);
    assert_eq!(envoy.request(1, &[("1000", 1)]).1, HeadersStatus::Continue);
}

/// Names of descriptors of this limit that share a set of the local table.
fn names_of_one_set(limit: &str, count: usize) -> Vec<String> {
    let envoy = Envoy::new(1, 1);
    let of_the_set = |name: &String| {
        let key = envoy.descriptors(0, &[(name, 1)]).iter().next().unwrap().key;
        key.0 & 0xff == 0
    };
    let letters = || 'a'..='z';
    let pairs = letters().flat_map(|one| letters().map(move |two| (one, two)));
    let names =
        pairs.flat_map(|(one, two)| letters().map(move |last| format!("{limit}{one}{two}{last}")));
    let names: Vec<String> = names.filter(of_the_set).take(count).collect();
    assert_eq!(names.len(), count);
    names
}

/// The tokens of `name` that worker 0 holds itself; none if it has no record.
fn held_tokens(envoy: &Envoy, name: &str) -> Option<u64> {
    let now = Timestamp::from_nanos(envoy.world().now);
    let key = envoy.descriptors(0, &[(name, 1)]).iter().next().unwrap().key;
    envoy.workers[0].local.of(key).map(|record| record.state.pool.left(now))
}

#[test]
fn evicted_tokens_go_back_to_the_slot() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    let names = names_of_one_set("1000", 9);
    for name in &names[..8] {
        warmed(&mut envoy, &mut authority, name);
    }
    assert!(names[..8].iter().all(|name| held_tokens(&envoy, name) > Some(0)));
    envoy.request(0, &[(&names[8], 1)]);
    assert_eq!((held_tokens(&envoy, &names[0]), &envoy.workers[0].to_return), (None, &Vec::new()));
    // The next request finds them.
    assert_eq!(envoy.request(0, &[(&names[0], 1)]).1, HeadersStatus::Continue);
}

#[test]
fn plugins_with_another_cluster_or_domain_share_nothing() {
    let seed = |cluster: &str, domain: &str| {
        Envoy::with(1, |config| {
            config.cluster = cluster.to_owned();
            config.domain = domain.to_owned();
        })
        .workers[0]
            .process
            .seed
    };
    assert_eq!(seed("c", "d"), seed("c", "d"));
    let mut seeds = [seed("c", "d"), seed("cd", ""), seed("d", "c"), seed("c", "e")];
    seeds.sort_unstable();
    assert!(seeds.windows(2).all(|pair| pair[0] != pair[1]));
    let envoy = Envoy::new(3, 64);
    let [one, two, three] = &envoy.workers[..] else { panic!("three") };
    assert_eq!((one.process, two.process), (two.process, three.process));
}

proptest! {
    /// Whatever a response says, the request is decided, and the worker continues.
    #[test]
    fn no_answer_makes_it_panic(
        statuses in prop::collection::vec(any_status(), 2..3),
        allow in any::<bool>(),
        later in 0_u64..120_000,
    ) {
        let mut envoy = Envoy::with(1, |config| config.headers = HeaderStyle::Ietf);
        let needs = [("5", 1), ("7", u64::MAX)];
        for _ in 0..3 {
            envoy.request(0, &needs);
        }
        let verdict = if allow { Verdict::Allow } else { Verdict::Deny };
        let answer = made_up(verdict, statuses);
        for _ in 0..4 {
            let calls = std::mem::take(&mut envoy.world_mut().sent);
            for call in calls {
                envoy.workers[0].on_answer(call.id, Ok(&answer));
            }
            envoy.tick_all();
        }
        prop_assert_eq!(envoy.workers[0].calls.waiting(), 0);
        envoy.pass_ms(later);
        let (stream, _) = envoy.request(0, &needs);
        envoy.workers[0].on_response(stream, &NoFacts);
        envoy.tick_all();
    }
}

fn any_status() -> impl Strategy<Value = Status> {
    let numbers = any::<(u64, u32, u64, u32, u32, u64)>();
    (numbers, any::<[bool; 3]>(), "\\PC{0,90}").prop_map(
        |((id, tokens, ends, requests, remaining, reset), [allow, limit, lease], name)| {
            let limit = limit.then_some(LimitView { requests, unit: Some(Unit::Day), name });
            // Around the tests' own time, or anywhere.
            let near = 1_000_000 * MILLI + (ends >> 1) % (1 << 37);
            let ends = if ends % 2 == 0 { ends >> 1 } else { near };
            Status {
                verdict: if allow { Verdict::Allow } else { Verdict::Deny },
                limit,
                remaining,
                // The largest value that a message can carry.
                reset: Nanos::new(reset >> 1),
                lease: lease.then_some(Lease {
                    id,
                    tokens,
                    valid_until: Timestamp::from_nanos(ends),
                }),
                details: None,
            }
        },
    )
}
