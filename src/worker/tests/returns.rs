//! Tokens on their way back: from a worker to the slot, from there to the sidecar, and the leases
//! that a lost response may have granted.

use super::authority::{made_up, status};
use super::states::{after_ms, high_demand, left, tokens};
use super::world::{Envoy, Sent};
use super::{fail_all, held_tokens, names_of_one_set, only_call};
use crate::config::encoded::domain_mark;
use crate::leases::local_table::ReturnableTokens;
use crate::leases::token_pool::LeaseTokens;
use crate::worker::HeadersStatus;
use crate::worker::call_error::CallError;
use prost::Message;
use tidegate_core::{Charge, Hits, LeaseRequest, Status, Timestamp, Verdict};
use tidegate_wire::{request_from_wire, rls};

fn entries_of(envoy: &Envoy, name: &str) -> Box<[u8]> {
    envoy.descriptors(0, &[(name, 1)]).iter().next().unwrap().entries.into()
}

fn returnable(envoy: &Envoy, name: &str, lease: LeaseTokens) -> ReturnableTokens {
    ReturnableTokens { key: envoy.key(name), entries: entries_of(envoy, name), lease }
}

/// A record that holds these tokens itself, and that ticks visit.
fn hold(envoy: &mut Envoy, name: &str, lease: LeaseTokens) {
    let entries = entries_of(envoy, name);
    let record = envoy.record(0, name);
    record.state.pool.put(lease, Timestamp::default()).unwrap();
    record.entries = entries;
    let index = envoy.workers[0].local.find(envoy.key(name)).unwrap();
    envoy.workers[0].local.watch(index);
}

fn open_breaker(envoy: &mut Envoy) {
    let now = envoy.now();
    assert!(envoy.workers[0].breaker.silent(now, 0));
}

/// The leases of a return.
fn returned(call: &Sent) -> Vec<u64> {
    let value_of = |name: &'static str| call.metadata(name).map(str::as_bytes);
    let request = rls::RateLimitRequest::decode(&*call.message).unwrap();
    tidegate_wire::returned_from(request.descriptors.len(), value_of).unwrap().unwrap().leases
}

/// The domain of a call has to be that of all its descriptors.
#[test]
fn tokens_go_back_to_the_domain_that_they_are_from() {
    let mut envoy = Envoy::new(1, 64);
    let domains = [None, Some("one"), Some("one"), None, Some("two"), None];
    for (number, domain) in domains.iter().enumerate() {
        let lease = tokens(&envoy, number as u64, 5);
        let mut tokens = returnable(&envoy, "a", lease);
        let mark = domain.map(|domain| domain_mark(domain).0).unwrap_or_default();
        tokens.entries = [&*tokens.entries, &mark].concat().into();
        // Of leases that a lost response may have granted, too.
        match number {
            4.. => envoy.workers[0].recalls.push_back(tokens),
            _ => envoy.workers[0].queue_return(tokens),
        }
    }
    (0..2).for_each(|_| envoy.tick_all());
    let world = envoy.world();
    let calls = world.sent.iter().map(|sent| {
        let request = rls::RateLimitRequest::decode(&*sent.message).unwrap();
        let entries = request.descriptors.iter().all(|descriptor| descriptor.entries.len() == 1);
        assert!(entries, "the mark is no entry: {request:?}");
        (request.domain, returned(sent))
    });
    let own = || "d".to_owned();
    let expected = vec![
        (own(), vec![0]),
        ("one".to_owned(), vec![1, 2]),
        (own(), vec![3]),
        ("two".to_owned(), vec![4]),
        (own(), vec![5]),
    ];
    assert_eq!(calls.collect::<Vec<_>>(), expected);
}

// From the worker to the slot.

#[test]
fn tokens_stay_in_the_worker_while_they_are_spent_and_go_to_the_slot_after() {
    let mut envoy = Envoy::new(1, 64);
    let lease = tokens(&envoy, 1, 90);
    hold(&mut envoy, "a", lease);
    let demand = high_demand(&envoy);
    envoy.change_slot("a", |slot| slot.demand = demand);
    assert_eq!(envoy.request(0, &[("a", 1)]).1, HeadersStatus::Continue);
    envoy.tick_all();
    assert_eq!(left(&mut envoy, "a"), (89, 0));
    envoy.tick_all();
    assert_eq!(left(&mut envoy, "a"), (0, 89));
    assert_eq!(envoy.slot("a").demand.tokens, 100 - 89, "what goes back was not needed");
    assert_eq!(envoy.workers[0].local.watched(), 1);
}

/// A client that only asks would keep them from others.
#[test]
fn tokens_that_are_only_peeked_at_go_to_the_slot() {
    let mut envoy = Envoy::new(1, 64);
    let lease = tokens(&envoy, 1, 90);
    hold(&mut envoy, "a", lease);
    let demand = high_demand(&envoy);
    envoy.change_slot("a", |slot| slot.demand = demand);
    assert_eq!(envoy.request(0, &[("a", 0)]).1, HeadersStatus::Continue);
    envoy.tick_all();
    assert_eq!(left(&mut envoy, "a"), (0, 90));
}

#[test]
fn the_tokens_of_an_open_breaker_wait_in_the_slot_for_requests() {
    let mut envoy = Envoy::new(1, 64);
    let lease = tokens(&envoy, 1, 90);
    hold(&mut envoy, "a", lease);
    open_breaker(&mut envoy);
    (0..3).for_each(|_| envoy.tick_all());
    assert_eq!(left(&mut envoy, "a"), (0, 90));
    assert_eq!(envoy.request(0, &[("a", 1)]).1, HeadersStatus::Continue);
}

/// The entries of long descriptors are not kept, and without them no tokens can be returned.
#[test]
fn tokens_without_entries_stay_in_the_slot() {
    let mut envoy = Envoy::new(1, 64);
    let lease = tokens(&envoy, 1, 90);
    hold(&mut envoy, "a", lease);
    envoy.record(0, "a").entries = Box::default();
    (0..3).for_each(|_| envoy.tick_all());
    assert_eq!((left(&mut envoy, "a"), envoy.world().sent.len()), ((0, 90), 0));
}

#[test]
fn the_entries_of_a_long_descriptor_are_not_kept() {
    let mut envoy = Envoy::new(1, 64);
    for (name, kept) in [("a".to_owned(), true), ("a".repeat(1_100), false)] {
        envoy.request(0, &[(&name, 1)]);
        let call = only_call(&envoy);
        envoy.world_mut().sent.clear();
        let ends = after_ms(&envoy, 500).as_nanos();
        let answer = made_up(Verdict::Allow, vec![status(Verdict::Allow, 9, ends)]);
        envoy.workers[0].on_answer(call.id, Ok(&answer));
        assert_eq!(!envoy.record(0, &name).entries.is_empty(), kept);
    }
}

#[test]
fn expired_tokens_go_nowhere() {
    let mut envoy = Envoy::new(1, 64);
    let now = envoy.now();
    let ended = LeaseTokens { expires_at: now, ..tokens(&envoy, 1, 90) };
    hold(&mut envoy, "a", ended);
    envoy.tick_all();
    assert_eq!((envoy.world().sent.len(), envoy.workers[0].to_return.len()), (0, 0));
    assert_eq!(envoy.slot("a").pool.each().count(), 0);
    assert_eq!((envoy.workers[0].local.watched(), envoy.record(0, "a").entries.len()), (0, 0));
}

/// A tick visits 256 records, so that it stays short; the next one goes on from there.
#[test]
fn ticks_visit_all_records_in_turn() {
    let mut envoy = Envoy::new(1, 100_000);
    // The breaker is open: the slots keep the tokens, so the records stay watched.
    open_breaker(&mut envoy);
    let names: Vec<String> = (0..300).map(|number| format!("a{number}")).collect();
    for name in &names {
        let lease = tokens(&envoy, 1, 9);
        hold(&mut envoy, name, lease);
    }
    let held = |envoy: &Envoy| {
        names.iter().filter(|name| held_tokens(envoy, name).is_some_and(|held| held > 0)).count()
    };
    assert_eq!(held(&envoy), 300);
    envoy.tick_all();
    assert_eq!(held(&envoy), 300 - 256);
    envoy.tick_all();
    assert_eq!(held(&envoy), 0);
    assert_eq!(envoy.workers[0].local.watched(), 300);
}

#[test]
fn tokens_that_find_no_place_in_the_slot_go_to_the_sidecar() {
    for (slot_full, expected) in [(false, vec![]), (true, vec![3])] {
        let mut envoy = Envoy::new(1, 64);
        let leases = [tokens(&envoy, 1, 1), tokens(&envoy, 2, 1)];
        let (demand, now) = (high_demand(&envoy), envoy.now());
        envoy.change_slot("a", |slot| {
            slot.demand = demand;
            if slot_full {
                slot.pool.leases = leases;
            }
        });
        let tokens = returnable(&envoy, "a", tokens(&envoy, 3, 7));
        envoy.workers[0].return_to_slot(tokens, now);
        let back: Vec<u64> =
            envoy.workers[0].to_return.iter().map(|tokens| tokens.lease.id).collect();
        assert_eq!(back, expected);
        assert_eq!(envoy.slot("a").demand.tokens, 93);
    }
}

#[test]
fn a_worker_that_ends_puts_queued_tokens_into_their_slot() {
    let mut envoy = Envoy::new(1, 64);
    let tokens = returnable(&envoy, "a", tokens(&envoy, 1, 7));
    envoy.workers[0].queue_return(tokens);
    drop(envoy.workers[0].on_end());
    assert_eq!(left(&mut envoy, "a"), (0, 7));
}

#[test]
fn the_queue_of_tokens_is_bounded_and_takes_none_that_cannot_be_returned() {
    let mut envoy = Envoy::new(1, 64);
    let tokens = returnable(&envoy, "a", tokens(&envoy, 1, 7));
    envoy.workers[0].queue_return(ReturnableTokens { entries: Box::default(), ..tokens.clone() });
    assert_eq!(envoy.workers[0].to_return.len(), 0);
    for _ in 0..300 {
        envoy.workers[0].queue_return(tokens.clone());
    }
    assert_eq!(envoy.workers[0].to_return.len(), 256);
}

// From the slot to the worker.

#[test]
fn a_worker_takes_tokens_with_what_else_the_slot_knows() {
    let mut envoy = Envoy::new(1, 64);
    let lease = tokens(&envoy, 1, 9);
    let [ended, later] = [envoy.now(), after_ms(&envoy, 100)];
    for (denied_until, expected) in [(ended, Timestamp::default()), (later, later)] {
        envoy.record(0, "a").state = Default::default();
        envoy.change_slot("a", |slot| {
            slot.pool.leases[0] = lease;
            (slot.denied_until, slot.denied_hits) = (denied_until, 500);
            (slot.unlimited_until, slot.stale_from) = (ended, ended);
            slot.limit = crate::leases::limit_info::LimitInfo::new("n");
            slot.limit.remaining = 40;
        });
        assert_eq!(envoy.request(0, &[("a", 1)]).1, HeadersStatus::Continue);
        let slot = envoy.slot("a");
        let state = envoy.record(0, "a").state;
        assert_eq!(state.denied_until, expected);
        assert_eq!(state.unlimited_until, ended);
        assert_eq!((state.limit.name(), state.limit.remaining), ("n", 40 + 8));
        assert_eq!((slot.demand.last, slot.pool.left(ended)), (ended, 8));
    }
}

#[test]
fn records_are_watched_if_they_hold_tokens_and_not_for_a_denial() {
    let mut envoy = Envoy::new(1, 64);
    let (lease, later) = (tokens(&envoy, 1, 100), after_ms(&envoy, 100));
    envoy.change_slot("a", |slot| slot.deny(1, later, Timestamp::default()));
    envoy.request(0, &[("a", 1)]);
    assert_eq!(envoy.workers[0].local.watched(), 0);
    envoy.change_slot("b", |slot| slot.pool.leases[0] = lease);
    let demand = high_demand(&envoy);
    envoy.record(0, "b").state.demand = demand;
    envoy.request(0, &[("b", 1)]);
    assert!(held_tokens(&envoy, "b") > Some(0));
    assert_eq!(envoy.workers[0].local.watched(), 1);
}

#[test]
fn the_worker_that_takes_the_last_third_requests_the_next_lease() {
    for (left, calls) in [(40, 0), (30, 1)] {
        let mut envoy = Envoy::new(2, 64);
        let lease = LeaseTokens { left, ..tokens(&envoy, 1, 100) };
        let demand = high_demand(&envoy);
        let later = after_ms(&envoy, 900);
        envoy.change_slot("a", |slot| {
            (slot.pool.leases[0], slot.demand, slot.stale_from) = (lease, demand, later);
        });
        envoy.request(0, &[("a", 1)]);
        assert_eq!(envoy.world().sent.len(), calls, "with {left} of 100");
        // Another worker leaves it to the first.
        envoy.request(1, &[("a", 1)]);
        assert_eq!(envoy.world().sent.len(), calls);
        if calls == 1 {
            assert_eq!(envoy.slot("a").refreshing_until, after_ms(&envoy, 20));
            assert_eq!(only_call(&envoy).metadata("tidegate-lease"), Some("1010"));
        }
    }
}

/// Nine descriptors of a request share a set of eight records, so the last evicts the first.
#[test]
fn a_request_that_evicts_its_own_record_spends_nothing() {
    let mut envoy = Envoy::new(1, 64);
    let names = names_of_one_set("1000", 9);
    for name in &names {
        let lease = tokens(&envoy, 1, 5);
        envoy.change_slot(name, |slot| slot.pool.leases[0] = lease);
    }
    let needs: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    assert_eq!(envoy.request(0, &needs).1, HeadersStatus::Pause);
    let mut all = 0;
    for name in &names {
        let held = held_tokens(&envoy, name).unwrap_or(0);
        let now = envoy.now();
        all += held + envoy.slot(name).pool.left(now);
    }
    assert_eq!(all, 9 * 5);
}

// To the sidecar.

#[test]
fn tokens_go_back_as_a_refund_of_their_lease_while_it_lasts() {
    for (ms, expected) in [(99, true), (100, false)] {
        let mut envoy = Envoy::new(1, 64);
        let lease = LeaseTokens { expires_at: after_ms(&envoy, 100), ..tokens(&envoy, 77, 5) };
        let tokens = returnable(&envoy, "a", lease);
        envoy.workers[0].queue_return(tokens);
        envoy.pass_ms(ms);
        envoy.tick_all();
        assert_eq!(envoy.world().sent.len(), usize::from(expected), "after {ms} ms");
        assert_eq!(envoy.workers[0].to_return.len(), 0);
        if expected {
            let call = only_call(&envoy);
            assert_eq!(returned(&call), [77]);
            let request = rls::RateLimitRequest::decode(&*call.message).unwrap();
            let request = request_from_wire(request).unwrap();
            let charge = request.charge_of(&request.descriptors[0]);
            assert_eq!(charge, Charge::Refund(Hits::new(5)));
        }
    }
}

#[test]
fn a_failed_return_is_sent_again_unless_the_sidecar_refused_it_or_its_leases_have_ended() {
    let again = [CallError::Unreachable, CallError::Late, CallError::Stuck, CallError::Overflow];
    let table = again.into_iter().map(|error| (error, true));
    for (error, expected) in table.chain([(CallError::Shed, false), (CallError::Refused, false)]) {
        for (ms, lasts) in [(99, true), (100, false)] {
            let mut envoy = Envoy::new(1, 64);
            let lease = LeaseTokens { expires_at: after_ms(&envoy, 100), ..tokens(&envoy, 77, 5) };
            let tokens = returnable(&envoy, "a", lease);
            envoy.workers[0].queue_return(tokens);
            envoy.tick_all();
            assert_eq!(fail_all(&mut envoy, error), 1);
            envoy.pass_ms(ms);
            envoy.tick_all();
            let calls = envoy.world().sent.len();
            assert_eq!(calls, usize::from(expected && lasts), "{error:?} {ms}");
            assert_eq!(envoy.workers[0].unanswered.len(), 0);
        }
    }
}

#[test]
fn a_return_that_cannot_be_sent_waits_and_the_oldest_of_many_is_dropped() {
    let mut envoy = Envoy::new(1, 64);
    envoy.world_mut().unsendable = true;
    for id in 0..20 {
        let tokens = returnable(&envoy, "a", tokens(&envoy, id, 5));
        envoy.workers[0].queue_return(tokens);
        // Failures in a row would open the breaker.
        envoy.workers[0].breaker.answered();
        let now = envoy.now();
        let unanswered = std::mem::take(&mut envoy.workers[0].unanswered);
        envoy.workers[0].return_tokens(now);
        let new = envoy.workers[0].unanswered.pop_back().unwrap();
        envoy.workers[0].unanswered = unanswered;
        envoy.workers[0].keep_unanswered(new);
    }
    let ids: Vec<u64> =
        envoy.workers[0].unanswered.iter().map(|back| back.tokens[0].lease.id).collect();
    assert_eq!(ids, (4..20).collect::<Vec<_>>());
}

#[test]
fn a_tick_returns_the_tokens_of_four_calls_of_32_leases() {
    let mut envoy = Envoy::new(1, 64);
    for id in 0..200 {
        let tokens = returnable(&envoy, "a", tokens(&envoy, id, 5));
        envoy.workers[0].queue_return(tokens);
    }
    envoy.tick_all();
    let ids: Vec<Vec<u64>> = envoy.world_mut().sent.drain(..).map(|call| returned(&call)).collect();
    assert_eq!(
        ids,
        (0..4).map(|call| (call * 32..(call + 1) * 32).collect::<Vec<u64>>()).collect::<Vec<_>>()
    );
    envoy.tick_all();
    assert_eq!(envoy.world().sent.iter().map(|call| returned(call).len()).sum::<usize>(), 72);
}

// Leases of lost responses.

/// Fails a call of a request for these names, whose first asks for a lease.
fn recalls_after(error: CallError, names: &[(&str, u64)]) -> (Envoy, u64) {
    let mut envoy = Envoy::new(1, 64);
    let demand = high_demand(&envoy);
    envoy.change_slot(names[0].0, |slot| slot.demand = demand);
    envoy.request(0, names);
    let number = envoy.workers[0].calls.first().and_then(|call| envoy.workers[0].calls.take(call));
    let number = number.map(|mut pending| {
        let (number, now) = (pending.number, envoy.now());
        envoy.workers[0].recover_tokens(&mut pending, error, now);
        number
    });
    (envoy, number.unwrap())
}

#[test]
fn leases_are_recalled_if_the_call_may_have_granted_them() {
    use CallError::{
        Late, Malformed, NotSent, Overflow, Refused, Shed, Silent, Status, Stuck, Unreachable,
    };
    for error in [Late, Malformed, Silent, Status(12), Unreachable] {
        // Nothing was requested for the second.
        let (envoy, number) = recalls_after(error, &[("a", 1), ("b", 1)]);
        let recalls = &envoy.workers[0].recalls;
        assert_eq!(recalls.len(), 1, "{error:?}");
        assert_eq!(recalls[0].lease.id, LeaseRequest::lease_id(number, 0));
        assert_eq!((recalls[0].lease.left, recalls[0].lease.granted), (u32::MAX, 0));
        assert_eq!(recalls[0].lease.expires_at, after_ms(&envoy, 10_000));
    }
    for error in [NotSent, Overflow, Refused, Shed, Stuck] {
        let (envoy, _) = recalls_after(error, &[("a", 1), ("b", 1)]);
        assert_eq!(envoy.workers[0].recalls.len(), 0, "{error:?}");
    }
}

#[test]
fn leases_for_waiting_requests_are_recalled_too() {
    let mut envoy = Envoy::new(1, 64);
    envoy.request(0, &[("a", 1)]);
    let call = envoy.workers[0].calls.first().unwrap();
    let mut pending = envoy.workers[0].calls.take(call).unwrap();
    assert_eq!((pending.wishes[0].wanted, pending.wishes[0].waiting), (0, 0));
    pending.wishes[0].waiting = 1;
    let now = envoy.now();
    envoy.workers[0].recover_tokens(&mut pending, CallError::Late, now);
    assert_eq!(envoy.workers[0].recalls.len(), 1);
}

/// An outage of a sidecar with many clients loses a response for each.
#[test]
fn recalls_are_bounded_and_the_oldest_is_dropped() {
    let mut envoy = Envoy::new(1, 64);
    envoy.request(0, &[("a", 1)]);
    let call = envoy.workers[0].calls.first().unwrap();
    let mut pending = envoy.workers[0].calls.take(call).unwrap();
    pending.wishes[0].waiting = 1;
    let now = envoy.now();
    for number in 0..300 {
        pending.number = number * 1_000;
        envoy.workers[0].recover_tokens(&mut pending, CallError::Late, now);
    }
    let recalls = &envoy.workers[0].recalls;
    assert_eq!(recalls.len(), 256);
    assert_eq!(recalls[0].lease.id, LeaseRequest::lease_id(44_000, 0));
}

#[test]
fn recalls_end_with_their_time() {
    for (ms, expected) in [(9_999, 1), (10_000, 0)] {
        let (mut envoy, _) = recalls_after(CallError::Late, &[("a", 1)]);
        envoy.pass_ms(ms);
        envoy.tick_all();
        assert_eq!(
            envoy
                .world()
                .sent
                .iter()
                .filter(|call| call.metadata("tidegate-return").is_some())
                .count(),
            expected
        );
    }
}

#[test]
fn without_leases_nothing_is_recalled() {
    let mut envoy = Envoy::new(1, 0);
    envoy.request(0, &[("a", 1)]);
    let call = envoy.workers[0].calls.first().unwrap();
    let mut pending = envoy.workers[0].calls.take(call).unwrap();
    pending.wishes[0].waiting = 1;
    let now = envoy.now();
    envoy.workers[0].recover_tokens(&mut pending, CallError::Late, now);
    assert_eq!(envoy.workers[0].recalls.len(), 0);
}

/// When hundreds of keys became idle at once, ticks queued more tokens than they returned. What found
/// no place in the queue stayed charged until the windows ended: 40 % of what the keys had used.
#[test]
fn the_tokens_of_many_keys_that_become_idle_at_once_all_go_back() {
    let mut envoy = Envoy::new(1, 4_096);
    let names: Vec<String> = (0..1_000).map(|number| format!("k{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        let lease = tokens(&envoy, number as u64, 5);
        hold(&mut envoy, name, lease);
    }
    // A few share a set of the worker's table with too many others.
    let held = envoy.workers[0].local.watched();
    assert!(held > 990, "{held}");
    let mut back = Vec::new();
    while tick_returns(&mut envoy, &mut back) {}
    back.sort_unstable();
    back.dedup();
    assert_eq!(back.len(), held);
}

/// Ticks until nothing more goes back. Answers each return, and adds its leases to `back`.
fn tick_returns(envoy: &mut Envoy, back: &mut Vec<u64>) -> bool {
    envoy.pass_ms(20);
    envoy.tick_all();
    let calls = std::mem::take(&mut envoy.world_mut().sent);
    for call in &calls {
        back.extend(returned(call));
        let statuses = returned(call).iter().map(|_| Status::NO_LIMIT).collect();
        envoy.workers[0].on_answer(call.id, Ok(&made_up(Verdict::Allow, statuses)));
    }
    !calls.is_empty() || envoy.workers[0].local.watched() > 0
}
