//! Debits on their way: what they are paid from, when they are sent again, and what bounds them.

use super::*;

#[test]
fn debits_wait_for_the_call_under_way_and_ride_on_the_next_as_one_for_each_key() {
    let (mut envoy, mut authority) = (envoy_of(1, &[DEBIT], 64), Authority::default());
    let mut streams = clients(&mut envoy);
    for stream in 0..3_000_u32 {
        run(&mut streams, &format!("{}x", 1_000 + stream % 40), 2.0);
    }
    assert_eq!(debits(&only_call(&envoy)), [taken("1000x", 2)]);
    answer_all(&mut envoy, &mut authority);
    let second = debits(&only_call(&envoy));
    assert_eq!(second.len(), 32);
    answer_all(&mut envoy, &mut authority);
    assert_eq!(debits(&only_call(&envoy)).len(), 8);
    answer_all(&mut envoy, &mut authority);
    assert_eq!(envoy.world().sent.len(), 0);
    assert_eq!(spent(&authority), 6_000);
    assert_eq!(counts(&mut envoy, &["debits", "debits_lost"]), [6_000, 0]);
}

#[test]
fn a_debit_spends_what_is_held_before_it_calls() {
    let (mut envoy, mut authority) = (envoy_of(1, &[PEEK, DEBIT], 64), Authority::default());
    let mut asks = Vec::new();
    for _ in 0..100 {
        let (id, status) = clients(&mut envoy).begin("100000");
        while status == HeadersStatus::Pause && resumed(&envoy).is_empty() {
            assert!(answer_all(&mut envoy, &mut authority) > 0);
        }
        clients(&mut envoy).end(id, &double(30.0));
        envoy.pass_ms(5);
        asks.push(answer_all(&mut envoy, &mut authority));
    }
    let debited = counts(&mut envoy, &["debits", "allowed_local", "denied_local"]);
    assert!(debited[0] == 3_000 && debited[1] > 90, "{debited:?}");
    // Later ones are decided, and paid, by leases: a call for a lease now and then.
    let later: usize = asks[20..].iter().sum();
    assert!(later < 20, "{later} calls for 160 peeks and debits: {asks:?}");
    let charged: u64 = authority.charged.values().sum();
    assert!(charged >= 3_000, "{charged}");
}

#[test]
fn what_is_more_than_the_rest_counts_and_closes_the_key() {
    let (mut envoy, mut authority) = (envoy_of(1, &[PEEK, DEBIT], 64), Authority::default());
    let (id, status) = clients(&mut envoy).begin("100");
    assert_eq!(status, HeadersStatus::Pause);
    answer_all(&mut envoy, &mut authority);
    clients(&mut envoy).end(id, &double(5_000.0));
    answer_all(&mut envoy, &mut authority);
    assert_eq!(authority.charged.values().sum::<u64>(), 5_000);
    let (_, status) = clients(&mut envoy).begin("100");
    assert_eq!(status, HeadersStatus::Pause);
    assert_eq!(replied(&envoy).last().map(|(_, status)| *status), Some(429));
    assert_eq!(envoy.world().sent.len(), 0, "the denial is cached");
}

#[test]
fn a_debit_without_an_answer_is_sent_again_unchanged_and_before_any_other() {
    let (mut envoy, mut authority) = (envoy_of(1, &[DEBIT], 64), Authority::default());
    run(&mut clients(&mut envoy), "100", 7.0);
    let first = only_call(&envoy);
    // It was counted, and its answer was lost.
    let now = envoy.world().now;
    authority.decide(&first, now);
    fail_all(&mut envoy, CallError::Unreachable);
    run(&mut clients(&mut envoy), "200", 9.0);
    assert_eq!(envoy.world().sent.len(), 0, "not before the next tick");
    envoy.tick_all();
    let again = only_call(&envoy);
    let of = |call: &Sent| (call.metadata("tidegate-call").map(str::to_owned), asked(call));
    assert_eq!(of(&again), of(&first));
    answer_all(&mut envoy, &mut authority);
    assert_eq!(debits(&only_call(&envoy)), [taken("200", 9)]);
    answer_all(&mut envoy, &mut authority);
    assert_eq!(authority.charged.values().sum::<u64>(), 16, "each was counted once");
    assert_eq!(counts(&mut envoy, &["debits", "debits_lost"]), [16, 0]);
}

#[test]
fn debits_wait_while_the_sidecar_is_away_for_a_minute_at_most() {
    for (wait_ms, lost) in [(50_000, 0), (70_000, 7)] {
        let (mut envoy, mut authority) = (envoy_of(1, &[DEBIT], 64), Authority::default());
        let now = envoy.now();
        assert!(envoy.workers[0].breaker.silent(now, 0));
        run(&mut clients(&mut envoy), "100", 7.0);
        envoy.pass_ms(wait_ms);
        envoy.tick_all();
        assert!(envoy.world().sent.iter().all(|call| call.metadata("tidegate-debit").is_none()));
        envoy.world_mut().sent.clear();
        envoy.workers[0].breaker.answered();
        envoy.tick_all();
        answer_all(&mut envoy, &mut authority);
        assert_eq!(counts(&mut envoy, &["debits", "debits_lost"]), [7 - lost, lost]);
        assert_eq!(envoy.world().logs.len(), usize::from(lost > 0), "{:?}", envoy.world().logs);
    }
}

/// The breaker was probed by requests only: what had ended before the last request of an outage was
/// not counted until the next one came, or not at all.
#[test]
fn debits_that_wait_probe_the_sidecar_without_requests() {
    let (mut envoy, mut authority) = (envoy_of(1, &[DEBIT], 64), Authority::default());
    let now = envoy.now();
    assert!(envoy.workers[0].breaker.silent(now, 0));
    run(&mut clients(&mut envoy), "100", 7.0);
    envoy.pass_ms(1_500);
    envoy.tick_all();
    assert_eq!(asked(&only_call(&envoy)), [taken("100", 0)], "a probe");
    answer_all(&mut envoy, &mut authority);
    envoy.tick_all();
    assert_eq!(debits(&only_call(&envoy)), [taken("100", 7)]);
}

/// One counter that cannot be used must not keep the others from being counted.
#[test]
fn debits_that_are_refused_together_are_sent_one_by_one() {
    let (mut envoy, mut authority) = (envoy_of(1, &[DEBIT], 64), Authority::default());
    let mut streams = clients(&mut envoy);
    for key in ["100", "200", "300"] {
        run(&mut streams, key, 7.0);
    }
    answer_all(&mut envoy, &mut authority);
    assert_eq!(debits(&only_call(&envoy)).len(), 2);
    fail_all(&mut envoy, CallError::Stuck);
    for _ in 0..2 {
        envoy.tick_all();
        assert_eq!(debits(&only_call(&envoy)).len(), 1);
        answer_all(&mut envoy, &mut authority);
    }
    assert_eq!(counts(&mut envoy, &["debits", "debits_lost"]), [21, 0]);
}

#[test]
fn too_many_debits_are_counted_as_lost() {
    let mut envoy = envoy_of(1, &[DEBIT], 64);
    let now = envoy.now();
    assert!(envoy.workers[0].breaker.silent(now, 0));
    let mut streams = clients(&mut envoy);
    for key in 0..5_000 {
        run(&mut streams, &format!("{key}k"), 2.0);
    }
    // Of known keys there is room for more.
    run(&mut streams, "7k", 2.0);
    assert_eq!(counts(&mut envoy, &["debits", "debits_lost"]), [0, (5_000 - 4_096) * 2]);
    assert_eq!(envoy.world().logs.len(), 1, "one line, not one for each");
    let unfinished = envoy.workers[0].on_end();
    envoy.workers[0].abandon(unfinished);
    assert_eq!(counts(&mut envoy, &["debits_lost"]), [4_097 * 2]);
}

#[test]
fn another_worker_counts_what_an_ended_one_leaves() {
    let (mut envoy, mut authority) = (envoy_of(2, &[DEBIT], 64), Authority::default());
    run(&mut clients(&mut envoy), "100", 7.0);
    run(&mut clients(&mut envoy), "200", 8.0);
    assert!(envoy.workers[1].counts_like(&envoy.workers[0]));
    envoy.world_mut().sent.clear();
    let unfinished = envoy.workers[0].on_end();
    envoy.workers[1].adopt(unfinished);
    envoy.wake_all();
    while answer_all(&mut envoy, &mut authority) > 0 {}
    assert_eq!(authority.charged.values().sum::<u64>(), 15);
}

/// A call that had been counted, but whose answer was lost, was shed when it was sent again. Its
/// debits then went out under new numbers, and counted twice.
#[test]
fn a_debit_that_may_have_been_counted_keeps_its_number_when_it_is_refused() {
    for refusal in [CallError::Shed, CallError::Stuck] {
        let (mut envoy, mut authority) = (envoy_of(1, &[DEBIT], 64), Authority::default());
        run(&mut clients(&mut envoy), "100", 7.0);
        let first = only_call(&envoy);
        let now = envoy.world().now;
        authority.decide(&first, now);
        fail_all(&mut envoy, CallError::Late);
        envoy.tick_all();
        fail_all(&mut envoy, refusal);
        envoy.tick_all();
        let of = |call: &Sent| (call.metadata("tidegate-call").map(str::to_owned), asked(call));
        assert_eq!(of(&only_call(&envoy)), of(&first), "{refusal}");
        answer_all(&mut envoy, &mut authority);
        assert_eq!(authority.charged.values().sum::<u64>(), 7);
        assert_eq!(counts(&mut envoy, &["debits", "debits_lost"]), [7, 0]);
    }
}
