//! How many tokens a lease has, and when it ends for its holder.

use crate::slow_contract::runner;
use proptest::prelude::*;
use tidegate_core::{
    Charge, DailyReset, Demand, FirstHitWindow, FixedWindow, Hits, Lease, LeaseRequest, Nanos,
    Quota, SlidingBuckets, SlidingExact, SlidingWindow, Timestamp, TokenBucket, Zone, decide,
    lease_tokens,
};

#[track_caller]
fn check(left: u64, capacity: u32, proxies: u32, (waiting, wanted): (u64, u64), tokens: u32) {
    assert_eq!(lease_tokens(left, capacity, proxies, Demand { waiting, wanted }), tokens);
}

#[test]
fn waiting_requests_come_first_and_the_rest_is_shared() {
    check(100, 100, 1, (0, 1_000), 25);
    check(100, 100, 1, (0, 10), 10);
    check(100, 100, 5, (0, 1_000), 5);
    check(100, 100, 1, (20, 1_000), 40);
    check(100, 100, 1, (200, 1_000), 100);
    check(100, 100, 0, (0, 1_000), 25);
    check(0, 100, 1, (5, 5), 0);
}

#[test]
fn near_the_limit_only_waiting_requests_get_tokens() {
    check(3, 100, 1, (0, 1_000), 0);
    check(4, 100, 1, (0, 1_000), 1);
    check(3, 100, 1, (2, 1_000), 2);
}

#[test]
fn small_limits_have_tokens_for_waiting_requests_only() {
    check(9, 9, 1, (0, 9), 0);
    check(9, 9, 1, (3, 9), 3);
    check(10, 10, 1, (0, 9), 2);
}

#[test]
fn no_numbers_lead_to_more_than_is_left() {
    let numbers = [0, 1, 3, 9, 10, 1 << 32, (1 << 33) + 5, u64::MAX - 1, u64::MAX];
    for (left, waiting) in numbers.into_iter().flat_map(|left| numbers.map(|other| (left, other))) {
        for wanted in numbers {
            for proxies in [0, 1, 64, u32::MAX] {
                let tokens = lease_tokens(left, u32::MAX, proxies, Demand { waiting, wanted });
                assert!(u64::from(tokens) <= left && tokens != Lease::UNLIMITED);
                assert!(u64::from(tokens) >= waiting.min(left).min(u64::from(u32::MAX - 1)));
            }
        }
    }
}

#[test]
fn a_lease_ends_slightly_early_for_its_holder() {
    #[track_caller]
    fn check(left: u64, clock: u64, until: Option<u64>) {
        let deadline = Lease::deadline(Nanos::new(left), Timestamp::from_nanos(clock));
        assert_eq!(deadline, until.map(Timestamp::from_nanos));
    }
    check(2_048, 7, Some(7 + 2_046));
    check(2_049, 7, Some(7 + 2_046));
    check(2, 0, Some(1));
    check(1, 0, None);
    check(0, 0, None);
    check(2_048, u64::MAX, None);
    check(2_048, u64::MAX - 2_046, Some(u64::MAX));
}

/// A client computes it, too, to return tokens of a lease whose answer was lost.
#[test]
fn the_id_of_a_lease_follows_from_the_call_and_the_place_of_its_descriptor() {
    assert_eq!([0, 1, 2].map(|index| LeaseRequest::lease_id(7, index)), [7, 8, 9]);
    assert_eq!(LeaseRequest::lease_id(u64::MAX, 1), 0);
}

/// Of any algorithm, for any limit and period, with and without what changes the times of windows.
fn quotas() -> impl Strategy<Value = Quota> {
    let limits = prop_oneof![4 => 0u32..50, 1 => any::<u32>()];
    let secs = prop_oneof![4 => 1u64..5_000, 1 => Just(86_400)];
    let borrows = prop_oneof![2 => Just(0u32), 1 => 0u32..50];
    let resets = proptest::option::of(0..86_400u64);
    (0..7, limits, secs, borrows, resets, zones(), 1u32..13).prop_map(
        |(algorithm, limit, secs, borrow, reset, zone, months)| {
            let period = Nanos::from_secs(secs);
            let reset = reset.map(|secs| DailyReset::new(Nanos::from_secs(secs), &zone).unwrap());
            let borrow = if limit == 0 { 0 } else { borrow.min(u32::MAX - limit) };
            let fixed = |window: FixedWindow| window.in_zone(&zone).with_borrow(borrow).unwrap();
            match algorithm {
                0 => Quota::FixedWindow(with(
                    FixedWindow::with_reset,
                    fixed(FixedWindow::new(limit, period).unwrap()),
                    reset,
                )),
                1 => Quota::FixedWindow(fixed(FixedWindow::calendar(limit, months).unwrap())),
                2 => Quota::FirstHitWindow(with(
                    FirstHitWindow::with_reset,
                    FirstHitWindow::new(limit, period).unwrap().with_borrow(borrow).unwrap(),
                    reset,
                )),
                3 => {
                    let limit = limit.max(1);
                    Quota::TokenBucket(TokenBucket::new(limit, period, limit, limit / 2).unwrap())
                }
                4 => Quota::SlidingWindow(with(
                    SlidingWindow::with_reset,
                    SlidingWindow::new(limit, period).unwrap(),
                    reset,
                )),
                5 => Quota::SlidingBuckets(with(
                    SlidingBuckets::with_reset,
                    SlidingBuckets::new(limit, period).unwrap(),
                    reset,
                )),
                _ => Quota::SlidingExact(with(
                    SlidingExact::with_reset,
                    SlidingExact::new(limit, period).unwrap(),
                    reset,
                )),
            }
        },
    )
}

fn with<Q>(with_reset: fn(Q, DailyReset) -> Q, quota: Q, reset: Option<DailyReset>) -> Q {
    match reset {
        Some(reset) => with_reset(quota, reset),
        None => quota,
    }
}

/// Times of the test are within hours of the change.
fn zones() -> impl Strategy<Value = Zone> {
    let change = 1_699_990_000i64..1_700_010_000;
    prop_oneof![
        Just(Zone::utc()),
        (-43_200..43_200).prop_map(Zone::fixed),
        (change, -7_200..7_200).prop_map(|(at, offset)| Zone::changing(3_600, vec![(at, offset)])),
    ]
}

/// Words as a decision writes them, and any others.
fn words() -> impl Strategy<Value = Vec<u64>> {
    let now = 1_700_000_000_u64;
    let word = prop_oneof![
        4 => Just(0u64),
        2 => 0u64..100,
        2 => (now - 100_000)..(now + 100_000),
        2 => ((now - 10_000) * 1_000_000_000)..((now + 10_000) * 1_000_000_000),
        2 => (now / 3_600 - 30)..(now / 3_600 + 3),
        2 => (now / 60 - 30)..(now / 60 + 3),
        1 => any::<u64>(),
    ];
    prop::collection::vec(word, 5 * 33)
}

/// A lease charges what a peek at the same state found, and undoes nothing: so that must fit, whatever the state.
#[test]
fn what_a_peek_finds_can_be_taken_of_any_state() {
    let nanos = 1_699_999_000_000_000_000u64..1_700_001_000_000_000_000;
    runner(4_000)
        .run(&(quotas(), words(), nanos, any::<u32>()), |(quota, mut state, now, wanted)| {
            let now = Timestamp::from_nanos(now);
            let left = decide(&mut state, &quota, Charge::PEEK, now).remaining;
            let taken = left.min(wanted.into());
            if taken > 0 {
                let before = state.clone();
                let decision = decide(&mut state, &quota, Charge::Take(Hits::new(taken)), now);
                prop_assert!(decision.is_allow(), "{} of {} of {:?}", taken, left, before);
            }
            Ok(())
        })
        .unwrap();
}
