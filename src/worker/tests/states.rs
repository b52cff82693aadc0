//! The state of a descriptor in a worker and in the slot that all workers share: what each event
//! stores, moves and requests.

use super::authority::{made_up, status};
use super::world::{Envoy, MILLI, NoFacts};
use super::{fail_all, names_of_one_set, only_call, replied, resumed};
use crate::config::HeaderStyle;
use crate::host::StreamId;
use crate::leases::demand::Demand;
use crate::leases::token_pool::LeaseTokens;
use crate::worker::HeadersStatus;
use crate::worker::call_error::CallError;
use tidegate_core::{Lease, Nanos, Status, Timestamp, Verdict};

pub(super) fn after_ms(envoy: &Envoy, ms: u64) -> Timestamp {
    envoy.now().saturating_add(Nanos::new(ms * MILLI))
}

/// Tokens of a lease that lasts for a second.
pub(super) fn tokens(envoy: &Envoy, id: u64, left: u32) -> LeaseTokens {
    LeaseTokens { id, left, granted: left, expires_at: after_ms(envoy, 1_000) }
}

/// A demand of 1,000 tokens a second.
pub(super) fn high_demand(envoy: &Envoy) -> Demand {
    Demand { since: envoy.now(), last: envoy.now(), tokens: 100, rate: 0 }
}

/// A status without a lease.
fn unleased(verdict: Verdict) -> Status {
    Status { lease: None, ..status(verdict, 0, 0) }
}

/// A status with a lease for this time.
fn leased(envoy: &Envoy, verdict: Verdict, tokens: u32, ms: u64) -> Status {
    status(verdict, tokens, envoy.world().now + ms * MILLI)
}

fn unlimited(envoy: &Envoy, ms: u64) -> Status {
    let lease = Lease { id: 1, tokens: Lease::UNLIMITED, valid_until: after_ms(envoy, ms) };
    Status { lease: Some(lease), ..Status::NO_LIMIT }
}

/// Answers the oldest call.
fn answer(envoy: &mut Envoy, statuses: Vec<Status>) {
    let denied = statuses.iter().any(|status| status.verdict == Verdict::Deny);
    let verdict = if denied { Verdict::Deny } else { Verdict::Allow };
    let call = envoy.world_mut().sent.remove(0);
    envoy.workers[call.worker].on_answer(call.id, Ok(&made_up(verdict, statuses)));
    envoy.wake_all();
}

pub(super) fn left(envoy: &mut Envoy, name: &str) -> (u64, u64) {
    let now = envoy.now();
    (envoy.record(0, name).state.pool.left(now), envoy.slot(name).pool.left(now))
}

// Leases that are stored.

#[test]
fn waiting_requests_get_their_tokens_and_the_slot_the_rest() {
    let mut envoy = Envoy::new(1, 64);
    for _ in 0..4 {
        envoy.request(0, &[("a", 2)]);
    }
    // Three requests wait for six tokens. They are gone, so none spends them.
    let status = leased(&envoy, Verdict::Allow, 50, 100);
    (2..=4).for_each(|stream| envoy.workers[0].on_gone(StreamId(stream), &NoFacts));
    answer(&mut envoy, vec![status]);
    assert_eq!(left(&mut envoy, "a"), (6, 44));
    assert_eq!(envoy.slot("a").demand.last, envoy.now());
}

#[test]
fn a_lease_without_a_place_in_the_worker_goes_to_the_slot_and_one_without_any_goes_back() {
    for (slot_full, expected) in [(false, (2, 9)), (true, (2, 2))] {
        let mut envoy = Envoy::new(1, 64);
        envoy.request(0, &[("a", 3)]);
        envoy.request(0, &[("a", 3)]);
        let [one, two] = [tokens(&envoy, 1, 1), tokens(&envoy, 2, 1)];
        envoy.record(0, "a").state.pool.leases = [one, two];
        if slot_full {
            envoy.change_slot("a", |slot| slot.pool.leases = [one, two]);
        }
        // The waiter is gone by then, but the call keeps three tokens for it.
        envoy.workers[0].on_gone(StreamId(2), &NoFacts);
        let status = leased(&envoy, Verdict::Allow, 9, 500);
        answer(&mut envoy, vec![status]);
        assert_eq!(left(&mut envoy, "a"), expected);
        let back: Vec<u32> =
            envoy.workers[0].to_return.iter().map(|tokens| tokens.lease.left).collect();
        assert_eq!(back, if slot_full { vec![9] } else { vec![] });
    }
}

#[test]
fn the_tokens_of_a_full_slot_stay_in_the_worker() {
    let mut envoy = Envoy::new(1, 64);
    envoy.request(0, &[("a", 1)]);
    let leases = [tokens(&envoy, 1, 1), tokens(&envoy, 2, 1)];
    envoy.change_slot("a", |slot| slot.pool.leases = leases);
    let status = leased(&envoy, Verdict::Allow, 9, 500);
    answer(&mut envoy, vec![status]);
    assert_eq!((left(&mut envoy, "a"), envoy.workers[0].to_return.len()), ((9, 2), 0));
}

#[test]
fn a_granted_lease_ends_its_request_and_a_denial_in_the_slot() {
    let mut envoy = Envoy::new(1, 64);
    envoy.request(0, &[("a", 2)]);
    let later = after_ms(&envoy, 900);
    envoy.change_slot("a", |slot| {
        (slot.refreshing_until, slot.denied_until, slot.denied_hits) = (later, later, 2);
    });
    let status = leased(&envoy, Verdict::Allow, 9, 500);
    answer(&mut envoy, vec![status]);
    let slot = envoy.slot("a");
    assert_eq!(slot.refreshing_until, Timestamp::default());
    assert!(!slot.is_denied(2, envoy.now()));
    assert_eq!((slot.limit.quota, slot.limit.name()), (100, "n"));
}

/// Their tokens are in the slot only, and would stay charged if no tick looked after them.
#[test]
fn leases_that_no_request_takes_from_go_back_when_idle() {
    let mut envoy = Envoy::new(1, 64);
    envoy.request(0, &[("a", 1)]);
    let status = leased(&envoy, Verdict::Allow, 9, 900);
    answer(&mut envoy, vec![status]);
    assert_eq!(envoy.workers[0].local.watched(), 1);
    envoy.pass_ms(301);
    envoy.tick_all();
    assert!(only_call(&envoy).metadata("tidegate-return").is_some());
    assert_eq!(envoy.workers[0].local.watched(), 0);
}

#[test]
fn a_lease_of_no_tokens_or_no_time_is_none() {
    for (tokens, ms) in [(0, 100), (9, 0)] {
        let mut envoy = Envoy::new(1, 64);
        envoy.request(0, &[("a", 1)]);
        let status = leased(&envoy, Verdict::Allow, tokens, ms);
        envoy.counted();
        answer(&mut envoy, vec![status]);
        assert_eq!(envoy.counted(), [("allowed_asked".to_owned(), 1)], "{tokens} for {ms} ms");
        assert_eq!(envoy.workers[0].local.watched(), 0);
    }
}

// Denials and times without a limit that are stored.

#[test]
fn a_denial_is_cached_in_the_worker_and_for_all_workers() {
    let mut envoy = Envoy::with(2, |config| config.headers = HeaderStyle::Ietf);
    envoy.request(0, &[("a", 1)]);
    let mark = after_ms(&envoy, 900);
    envoy.change_slot("a", |slot| slot.refreshing_until = mark);
    let status = leased(&envoy, Verdict::Deny, 0, 100);
    answer(&mut envoy, vec![status]);
    assert_eq!(envoy.slot("a").refreshing_until, Timestamp::default());
    envoy.world_mut().replies.clear();
    for (worker, uses) in [(0, 0), (1, 1), (1, 0)] {
        let before = envoy.world().shared_uses;
        envoy.request(worker, &[("a", 1)]);
        assert_eq!(envoy.world().shared_uses - before, uses);
        let (_, status, headers) = envoy.world_mut().replies.remove(0);
        assert_eq!(status, 429);
        let limit = headers.iter().find(|(name, _)| *name == "ratelimit").map(|(_, value)| value);
        assert_eq!(limit.map(String::as_str), Some("\"n\";r=0;t=5"), "worker {worker}");
    }
    assert_eq!(envoy.world().sent.len(), 0);
}

/// The sidecar denied a call because another had just leased the rest. The worker then denied for
/// as long as the sidecar said, though the slot had those tokens, and they ended unspent.
#[test]
fn a_worker_that_was_denied_soon_looks_at_the_tokens_in_the_slot_again() {
    // Tokens in the slot, and for how long the worker denies by itself, in ms.
    for (left, denied) in [(9, 200), (0, 900)] {
        let mut envoy = Envoy::new(1, 64);
        envoy.request(0, &[("a", 1)]);
        let lease = tokens(&envoy, 7, left);
        envoy.change_slot("a", |slot| slot.pool.leases[0] = lease);
        let status = leased(&envoy, Verdict::Deny, 0, 900);
        answer(&mut envoy, vec![status]);
        let until = after_ms(&envoy, denied);
        assert_eq!(envoy.record(0, "a").state.denied_until, until);
        assert_eq!(envoy.request(0, &[("a", 1)]).1, HeadersStatus::Pause);
        envoy.pass_ms(201);
        let expected = if left > 0 { HeadersStatus::Continue } else { HeadersStatus::Pause };
        assert_eq!(envoy.request(0, &[("a", 1)]).1, expected, "{left} tokens");
    }
}

#[test]
fn an_allowed_call_ends_a_denial_of_as_many_hits_and_no_other() {
    // Denied hits, and what becomes of a request for three: replies and calls.
    for (hits, expected) in [(2, (0, 1)), (3, (1, 0))] {
        let mut envoy = Envoy::new(1, 64);
        envoy.request(0, &[("a", 2)]);
        // It was denied between the two.
        let later = after_ms(&envoy, 900);
        envoy.record(0, "a").state.denied_until = later;
        envoy.record(0, "a").state.denied_hits = hits;
        answer(&mut envoy, vec![unleased(Verdict::Allow)]);
        envoy.request(0, &[("a", 3)]);
        assert_eq!((replied(&envoy).len(), envoy.world().sent.len()), expected, "{hits} denied");
    }
}

#[test]
fn a_denied_call_ends_no_denial() {
    let mut envoy = Envoy::new(1, 64);
    envoy.request(0, &[("a", 1)]);
    let later = after_ms(&envoy, 900);
    envoy.record(0, "a").state.deny(1, later, Timestamp::default());
    answer(&mut envoy, vec![unleased(Verdict::Deny)]);
    assert_eq!(envoy.record(0, "a").state.denied_until, later);
}

#[test]
fn a_key_without_a_limit_needs_one_call_for_all_workers() {
    let mut envoy = Envoy::new(2, 64);
    envoy.request(0, &[("a", 1)]);
    let status = unlimited(&envoy, 900);
    answer(&mut envoy, vec![status]);
    for worker in [0, 1] {
        assert_eq!(envoy.request(worker, &[("a", 1)]).1, HeadersStatus::Continue);
    }
    assert_eq!((envoy.world().sent.len(), envoy.workers[0].local.watched()), (0, 0));
}

/// A key that worker 0 knows to have no limit, after two thirds of the time for which it holds.
fn stale_unlimited(workers: usize) -> Envoy {
    let mut envoy = Envoy::new(workers, 64);
    envoy.request(0, &[("a", 1)]);
    let status = unlimited(&envoy, 900);
    answer(&mut envoy, vec![status]);
    resumed(&envoy);
    envoy.pass_ms(600);
    envoy
}

#[test]
fn a_rare_key_without_a_limit_is_not_refreshed() {
    let mut envoy = stale_unlimited(1);
    assert_eq!(envoy.request(0, &[("a", 1)]).1, HeadersStatus::Continue);
    assert_eq!(envoy.world().sent.len(), 0);
}

#[test]
fn one_worker_refreshes_a_key_without_a_limit_and_looks_once_meanwhile() {
    let mut envoy = stale_unlimited(2);
    let demand = high_demand(&envoy);
    let uses = |envoy: &mut Envoy, worker| {
        envoy.record(worker, "a").state.demand = demand;
        let before = envoy.world().shared_uses;
        assert_eq!(envoy.request(worker, &[("a", 1)]).1, HeadersStatus::Continue);
        envoy.world().shared_uses - before
    };
    let slot = envoy.slot("a");
    envoy.record(1, "a").state = slot;
    assert_eq!([uses(&mut envoy, 0), uses(&mut envoy, 0), uses(&mut envoy, 1)], [2, 0, 1]);
    assert_eq!(envoy.world().sent.len(), 1);
    assert_eq!(envoy.slot("a").refreshing_until, after_ms(&envoy, 20));
    // The call is lost, and the mark ends.
    fail_all(&mut envoy, CallError::Late);
    envoy.pass_ms(20);
    assert_eq!(uses(&mut envoy, 1), 2);
    assert_eq!(envoy.world().sent.len(), 1);
}

#[test]
fn a_worker_adopts_the_time_without_a_limit_that_another_has_renewed() {
    let mut envoy = stale_unlimited(1);
    let (demand, later) = (high_demand(&envoy), after_ms(&envoy, 900));
    envoy.change_slot("a", |slot| slot.unlimited_until = later);
    envoy.record(0, "a").state.demand = demand;
    assert_eq!(envoy.request(0, &[("a", 1)]).1, HeadersStatus::Continue);
    assert_eq!(envoy.record(0, "a").state.unlimited_until, later);
    assert_eq!(envoy.world().sent.len(), 0);
}

#[test]
fn nothing_is_refreshed_while_the_breaker_is_open_or_calls_are_full_or_about_the_key() {
    let block: [fn(&mut Envoy, Timestamp); 3] = [
        |envoy, now| assert!(envoy.workers[0].breaker.silent(now, 0)),
        |envoy, _| envoy.workers[0].calls.overflow(),
        |envoy, _| {
            // A call about the same key is pending.
            let unlimited = std::mem::take(&mut envoy.record(0, "a").state);
            envoy.change_slot("a", |slot| slot.unlimited_until = Timestamp::default());
            envoy.request(0, &[("a", 1)]);
            envoy.world_mut().sent.clear();
            envoy.record(0, "a").state = unlimited;
        },
    ];
    for (number, block) in block.into_iter().enumerate() {
        let mut envoy = stale_unlimited(1);
        let (now, demand) = (envoy.now(), high_demand(&envoy));
        block(&mut envoy, now);
        envoy.record(0, "a").state.demand = demand;
        assert_eq!(envoy.request(0, &[("a", 1)]).1, HeadersStatus::Continue);
        assert_eq!(envoy.world().sent.len(), 0, "case {number}");
    }
}

// Requests for leases.

#[test]
fn a_lease_that_was_not_granted_may_be_requested_again_soon() {
    let mut envoy = Envoy::new(1, 64);
    let demand = high_demand(&envoy);
    envoy.change_slot("a", |slot| slot.demand = demand);
    envoy.request(0, &[("a", 1)]);
    assert_eq!(only_call(&envoy).metadata("tidegate-lease"), Some("1000"));
    assert_eq!(envoy.slot("a").refreshing_until, after_ms(&envoy, 20));
    answer(&mut envoy, vec![unleased(Verdict::Allow)]);
    assert_eq!(envoy.slot("a").refreshing_until, after_ms(&envoy, 5));
}

#[test]
fn a_mark_that_ends_sooner_stays() {
    let mut envoy = Envoy::new(1, 64);
    let demand = high_demand(&envoy);
    envoy.change_slot("a", |slot| slot.demand = demand);
    envoy.request(0, &[("a", 1)]);
    let soon = after_ms(&envoy, 3);
    envoy.change_slot("a", |slot| slot.refreshing_until = soon);
    answer(&mut envoy, vec![unleased(Verdict::Allow)]);
    assert_eq!(envoy.slot("a").refreshing_until, soon);
}

#[test]
fn a_call_requests_no_lease_while_another_worker_does_and_leaves_its_mark() {
    let mut envoy = Envoy::new(1, 64);
    let (demand, mark) = (high_demand(&envoy), after_ms(&envoy, 10));
    envoy.change_slot("a", |slot| (slot.demand, slot.refreshing_until) = (demand, mark));
    envoy.request(0, &[("a", 1)]);
    assert_eq!(only_call(&envoy).metadata("tidegate-lease"), Some("0"));
    answer(&mut envoy, vec![unleased(Verdict::Allow)]);
    assert_eq!(envoy.slot("a").refreshing_until, mark);
    // From the end of the mark on it does.
    envoy.pass_ms(10);
    envoy.request(0, &[("a", 1)]);
    let wanted = only_call(&envoy).metadata("tidegate-lease").unwrap().to_owned();
    assert!(wanted.parse::<u64>().unwrap() > 0, "{wanted}");
}

#[test]
fn no_request_waits_for_a_key_that_was_not_leased_until_a_second_has_passed() {
    let mut envoy = Envoy::new(1, 64);
    let until = after_ms(&envoy, 1_000);
    envoy.record(0, "a").unleased_until = until;
    envoy.pass_ms(999);
    envoy.request(0, &[("a", 1)]);
    envoy.request(0, &[("a", 1)]);
    assert_eq!(envoy.world_mut().sent.drain(..).count(), 2);
    envoy.pass_ms(1);
    envoy.request(0, &[("a", 1)]);
    assert_eq!(envoy.world().sent.len(), 0, "it waits for a pending call");
}

/// Whether the first name counts as not leased after a call for which another request waited was
/// answered by these statuses.
fn unleased_after(envoy: &mut Envoy, statuses: Vec<Status>, names: &[(&str, u64)]) -> bool {
    for _ in 0..3 {
        envoy.request(0, names);
    }
    // Two requests wait for the first call; one of them makes the second.
    let first = names.iter().map(|_| Status { remaining: 0, ..unleased(Verdict::Allow) });
    answer(envoy, first.collect());
    let waiting = only_call(envoy).metadata("tidegate-waiting").map(str::to_owned);
    assert!(waiting.is_some_and(|waiting| waiting.starts_with('1')));
    answer(envoy, statuses);
    envoy.now() < envoy.record(0, names[0].0).unleased_until
}

#[test]
fn a_key_counts_as_not_leased_if_it_could_have_been() {
    let remaining = |remaining| Status { remaining, ..unleased(Verdict::Allow) };
    let table = [
        ("some are left", vec![remaining(1)], true),
        ("none is left", vec![remaining(0)], false),
        ("no limit", vec![Status::NO_LIMIT], true),
        ("denied", vec![unleased(Verdict::Deny)], true),
    ];
    for (name, statuses, expected) in table {
        let mut envoy = Envoy::new(1, 64);
        assert_eq!(unleased_after(&mut envoy, statuses, &[("a", 1)]), expected, "{name}");
    }
    // A request that another descriptor denies is granted nothing.
    let mut envoy = Envoy::new(1, 64);
    let statuses = vec![remaining(1), unleased(Verdict::Deny)];
    assert!(!unleased_after(&mut envoy, statuses, &[("a", 1), ("b", 1)]));
}

#[test]
fn a_lease_ends_the_time_in_which_a_key_counts_as_not_leased() {
    let mut envoy = Envoy::new(1, 64);
    envoy.request(0, &[("a", 1)]);
    let later = after_ms(&envoy, 900);
    envoy.record(0, "a").unleased_until = later;
    let status = leased(&envoy, Verdict::Allow, 9, 500);
    answer(&mut envoy, vec![status]);
    assert_eq!(envoy.record(0, "a").unleased_until, Timestamp::default());
}

// Decisions.

#[test]
fn several_keys_are_decided_in_turn_without_a_call() {
    let mut envoy = Envoy::new(1, 64);
    for name in ["a", "b"] {
        let lease = tokens(&envoy, 1, 9);
        envoy.record(0, name).state.pool.put(lease, Timestamp::default()).unwrap();
    }
    for needs in [&[("a", 1)][..], &[("b", 1)], &[("a", 1), ("b", 1)], &[("b", 1), ("a", 1)]] {
        assert_eq!(envoy.request(0, needs).1, HeadersStatus::Continue, "{needs:?}");
    }
    assert_eq!((left(&mut envoy, "a").0, left(&mut envoy, "b").0), (6, 6));
}

/// The sidecar would charge all of them, so tokens at hand do not help.
#[test]
fn a_request_that_needs_a_call_is_denied_by_any_cached_denial() {
    let mut envoy = Envoy::new(1, 64);
    let (lease, later) = (tokens(&envoy, 1, 9), after_ms(&envoy, 900));
    let state = &mut envoy.record(0, "a").state;
    state.pool.leases[0] = lease;
    (state.denied_until, state.denied_hits) = (later, 1);
    let (stream, _) = envoy.request(0, &[("a", 1), ("b", 1)]);
    assert_eq!((replied(&envoy), envoy.world().sent.len()), (vec![(stream.0, 429)], 0));
    assert_eq!(left(&mut envoy, "a").0, 9);
}

#[test]
fn requests_wait_only_for_calls_about_what_they_lack() {
    let mut envoy = Envoy::new(1, 64);
    let lease = tokens(&envoy, 1, 9);
    envoy.record(0, "a").state.pool.leases[0] = lease;
    envoy.request(0, &[("b", 1)]);
    // It has tokens of one, and waits for the call about the other.
    envoy.request(0, &[("a", 1), ("b", 1)]);
    assert_eq!(envoy.world().sent.len(), 1);
    assert_eq!(envoy.workers[0].calls.waiting(), 2);
}

#[test]
fn the_record_that_no_request_has_used_for_longest_is_evicted() {
    let mut envoy = Envoy::new(1, 64);
    let names = names_of_one_set("1000", 9);
    for name in names[..8].iter().chain([&names[0]]) {
        envoy.pass_ms(1);
        envoy.request(0, &[(name, 1)]);
    }
    envoy.pass_ms(1);
    envoy.request(0, &[(&names[8], 1)]);
    let known = |name: &String| envoy.workers[0].local.find(envoy.key(name)).is_some();
    let known: Vec<bool> = names.iter().map(known).collect();
    assert_eq!(known, [true, false, true, true, true, true, true, true, true]);
}

#[test]
fn headers_count_the_tokens_of_worker_and_slot() {
    let mut envoy = Envoy::with(1, |config| config.headers = HeaderStyle::Ietf);
    envoy.request(0, &[("a", 1)]);
    let (waiter, _) = envoy.request(0, &[("a", 1)]);
    let status = leased(&envoy, Verdict::Allow, 50, 500);
    answer(&mut envoy, vec![status]);
    envoy.workers[0].on_response(waiter, &NoFacts);
    let headers = std::mem::take(&mut envoy.world_mut().headers);
    // 40 at the sidecar, and 50 leased: the waiter spent one of them.
    assert_eq!(headers[1].1, "\"n\";r=89;t=5");
}
