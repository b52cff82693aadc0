//! What a refill takes, and when its holding is looked at.

use super::*;
use tidegate_core::{FixedWindow, TokenBucket};

const NOW: Timestamp = Timestamp::from_secs(1_700_092_800);

fn after(millis: u64) -> Timestamp {
    NOW.saturating_add(Nanos::new(millis * 1_000_000))
}

fn window(requests: u32) -> Quota {
    Quota::FixedWindow(FixedWindow::new(requests, Nanos::from_secs(86_400)).expect("a limit"))
}

/// Needs of some hits, and of hits that wait elsewhere.
fn needs<const N: usize>(needs: [(u64, u64); N]) -> [Need; N] {
    needs.map(|(hits, waiting)| Need { hits, waiting, wanted: 0 })
}

fn wish(needs: &[Need]) -> Wish<'_> {
    Wish { needs, held: 0, owed: 0, ahead: 0, seconds: 1, seconds_max: 1, now: NOW }
}

/// What `wish` takes from a new counter of the limit `of`. So many sidecars are active, and others hold tokens of it.
fn taken(wish: &Wish<'_>, of: &Quota, active: u32) -> Refill {
    let mut words = Words::from_slice(&[0; 4]);
    take_of(wish, of, &mut words, active)
}

fn take_of(wish: &Wish<'_>, of: &Quota, words: &mut Words, active: u32) -> Refill {
    let Quota::Held(held, of) = Quota::held(Arc::new(of.clone())) else { panic!("not held") };
    wish.take(&held, &of, words, active, true).0
}

#[test]
fn a_holding_is_looked_at_after_a_second_or_shortly_before_its_tokens_end() {
    for (end, look) in [
        (9_000, 1_000),
        (1_100, 1_000),
        (1_099, 999),
        (500, 400),
        (101, 1),
        (100, 1_000),
        (0, 1_000),
    ] {
        assert_eq!(next_look(after(end), NOW), after(look), "tokens until {end}");
    }
}

#[test]
fn whole_requests_fit_in_their_order_and_then_what_waits_elsewhere() {
    #[track_caller]
    fn check<const N: usize>(of: [(u64, u64); N], room: u64, expected: (u64, Option<u64>)) {
        assert_eq!(wish(&needs(of)).fitting(room), expected);
    }
    check([], 10, (0, None));
    check([(4, 0), (6, 0)], 10, (10, None));
    check([(4, 0), (8, 0), (6, 0), (7, 0)], 10, (10, Some(7)));
    check([(u64::MAX, 0), (1, 0)], 10, (1, Some(u64::MAX)));
    check([(1, 0), (u64::MAX, 0)], u64::MAX, (1, Some(u64::MAX)));
    check([(4, 3), (2, 1)], 20, (10, None));
    check([(4, 30), (2, u64::MAX)], 20, (20, None));
    check([(30, 30)], 20, (20, Some(30)));
}

#[test]
fn tokens_ahead_are_for_some_seconds_within_their_window_less_what_is_left_over() {
    #[track_caller]
    fn check(held: u64, end: u64, fitting: u64, seconds: u64, expected: u64) {
        let wish = Wish { held, ahead: 100, ..wish(&[]) };
        assert_eq!(wish.ahead_until(after(end), fitting, seconds), expected);
    }
    check(0, 9_000, 0, 1, 100);
    check(0, 9_000, 0, 4, 400);
    check(0, 500, 0, 4, 50);
    check(0, 0, 0, 1, 0);
    check(30, 9_000, 10, 1, 80);
    check(30, 9_000, 40, 1, 100);
    check(500, 9_000, 0, 1, 0);
    let all = Wish { ahead: u64::MAX, ..wish(&[]) };
    assert_eq!(all.ahead_until(after(9_000), 0, 4), u64::MAX);
}

#[test]
fn a_refill_takes_what_is_needed_beyond_what_is_held_and_pays_what_is_owed() {
    let needs = needs([(5, 2)]);
    let check = |wish: &Wish<'_>, tokens, left| {
        let refill = taken(wish, &window(1_000), 1);
        let found = (refill.tokens, refill.ahead, refill.left, refill.paid, refill.denied);
        assert_eq!(found, (tokens, 0, left, wish.owed, None));
        assert_eq!((refill.end, refill.more_at), (after(86_400_000), after(86_400_000)));
    };
    check(&wish(&needs), 7, 993);
    check(&Wish { held: 3, ..wish(&needs) }, 4, 996);
    check(&Wish { held: 30, ..wish(&needs) }, 0, 1_000);
    check(&Wish { owed: 40, ..wish(&needs) }, 7, 953);
}

#[test]
fn tokens_ahead_are_for_a_second_and_for_longer_if_there_are_plenty() {
    #[track_caller]
    fn check(limit: u32, seconds_max: u64, active: u32, ahead: u64) {
        let needs = needs([(5, 0)]);
        let wish = Wish { ahead: 100, seconds_max, ..wish(&needs) };
        let refill = taken(&wish, &window(limit), active);
        assert_eq!((refill.tokens, refill.ahead), (5 + ahead, ahead));
    }
    // A quarter of an even share of what is left, at most.
    check(1_005, 1, 1, 100);
    check(405, 1, 1, 100);
    check(401, 1, 1, 99);
    check(405, 1, 2, 50);
    // For more than a second, one in 64 of an even share.
    check(100_005, 4, 1, 400);
    check(100_005, 4, 10, 156);
    check(10_005, 4, 1, 156);
    check(10_005, 4, 0, 156);
    check(1_005, 4, 1, 100);
    check(100_005, 1, 1, 100);
}

#[test]
fn a_denial_is_kept_until_the_hits_may_fit_and_no_longer_than_others_may_give_back() {
    let needs = needs([(11, 0)]);
    let denial = |is_held| {
        let Quota::Held(held, of) = Quota::held(Arc::new(window(10))) else { panic!("not held") };
        let mut words = Words::from_slice(&[0; 4]);
        let (refill, _) = wish(&needs).take(&held, &of, &mut words, 1, is_held);
        (refill.tokens, refill.denied)
    };
    assert_eq!(denial(false), (0, Some((11, after(5_000)))));
    assert_eq!(denial(true), (0, Some((11, after(200)))));
}

/// Where hits fit again one by one, each of them would ask the shared counter.
#[test]
fn a_denial_is_kept_for_a_part_of_the_time_that_the_limit_recovers_in() {
    #[track_caller]
    fn check(requests: u32, millis: u64, fits_at: Timestamp, until: Timestamp) {
        let period = Nanos::new(millis * 1_000_000);
        let bucket = TokenBucket::new(requests, period, requests, requests).expect("a limit");
        let (bucket, mut words) = (Quota::TokenBucket(bucket), Words::from_slice(&[0; 4]));
        let all = needs([(requests.into(), 0)]);
        assert_eq!(take_of(&wish(&all), &bucket, &mut words, 1).denied, None);
        let one = take_of(&wish(&needs([(1, 0)])), &bucket, &mut words, 1);
        assert_eq!((one.more_at, one.denied), (fits_at, Some((1, until))));
    }
    check(1_000, 1_000, after(1), after(20));
    check(160, 160, after(1), after(10));
    check(10, 1_000, after(100), after(100));
}

/// `keep_until` of the counter outlives what was charged.
#[test]
fn a_counter_is_kept_for_its_debt_as_well() {
    let Quota::Held(held, of) = Quota::held(Arc::new(window(10))) else { panic!("not held") };
    for (owed, hits) in [(3, 0), (0, 3), (3, 3)] {
        let needs = needs([(hits, 0)]);
        let mut words = Words::from_slice(&[0; 4]);
        let wish = Wish { owed, ..wish(&needs) };
        assert_eq!(wish.take(&held, &of, &mut words, 1, true).1, after(86_400_000));
        let left = decide(&mut words, &of, Charge::PEEK, NOW).remaining;
        assert_eq!(left, 10 - owed - hits);
    }
}
