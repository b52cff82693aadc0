//! What a process knows of its holdings: rates, looks that are due, refills of late, and other sidecars.

use crate::holdings::Target;
use crate::holdings::desk::{Desk, KNOWN_MAX, Known, Recent, Sidecars, per_second};
use std::sync::Arc;
use tidegate_core::{FixedWindow, KeyHash, Nanos, Quota, Timestamp};
use tidegate_store::Hashed;

const MILLISECOND: u64 = 1_000_000;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_nanos(1_700_092_800_000 * MILLISECOND + millis * MILLISECOND)
}

fn target(number: u128) -> Target {
    let of = Quota::FixedWindow(FixedWindow::new(100, Nanos::from_secs(60)).expect("a limit"));
    Target { hash: KeyHash(number), quota: Quota::held(Arc::new(of)) }
}

fn keys(taken: Vec<(Hashed, Known)>) -> Vec<u128> {
    taken.into_iter().map(|(key, _)| key.hash).collect()
}

#[test]
fn tokens_ahead_last_for_a_second_by_the_rate_since_the_last_refill() {
    #[track_caller]
    fn check(refilled: u64, (held, needed): (u64, u64), millis: u64, ahead: u64) {
        let known = Known { tokens: refilled, ..Known::new(target(1), at(0)) };
        assert_eq!(known.ahead(held, needed, at(millis)), ahead);
    }
    check(100, (40, 0), 500, 120);
    check(100, (40, 10), 500, 140);
    check(100, (100, 0), 500, 0);
    check(100, (40, 0), 2_000, 30);
    // Others have put tokens there.
    check(100, (200, 5), 1_000, 5);
    // A moment counts as a tenth of a second.
    check(100, (90, 0), 1, 100);
    // They grow by a factor of eight at most.
    check(10, (0, 1), 100, 80);
    check(1, (0, 50), 100, 400);
    check(0, (0, 1), 100, 8);
    check(u64::MAX, (0, 1), 1, u64::MAX);
}

#[test]
fn a_rate_is_of_a_second_and_never_too_large_to_say() {
    assert_eq!(per_second(3, Nanos::from_secs(2)), 1);
    assert_eq!(per_second(30, Nanos::new(100 * MILLISECOND)), 300);
    assert_eq!(per_second(30, Nanos::ZERO), 300);
    assert_eq!(per_second(u64::MAX, Nanos::ZERO), u64::MAX);
}

#[test]
fn a_holding_is_steady_long_after_its_refill_and_lasts_longer_if_there_is_plenty() {
    let known = Known::new(target(1), at(0));
    assert_eq!(
        [1_399, 1_400, 9_000].map(|millis| known.is_steady(at(millis))),
        [false, true, true]
    );
    assert_eq!(known.seconds(), 1);
    assert_eq!(Known { has_plenty: true, ..known }.seconds(), 4);
}

#[test]
fn holdings_are_looked_at_when_that_is_due_and_once() {
    let mut desk = Desk::default();
    let key = |number| Hashed::narrow(number);
    for number in 1..=4 {
        assert!(desk.known(key(number), &target(number), at(0)).is_some());
    }
    assert_eq!(desk.known, 4);
    for (number, millis) in [(1, 300), (2, 100), (3, 200), (4, 900)] {
        desk.look_at(key(number), at(millis));
    }
    // The earliest time counts.
    desk.look_at(key(1), at(50));
    desk.look_at(key(2), at(150));
    // Nothing is known of this one.
    desk.look_at(key(5), at(1));
    assert_eq!(keys(desk.take_due(at(49), 9)), []);
    assert_eq!(keys(desk.take_due(at(50), 9)), [1]);
    assert_eq!(keys(desk.take_due(at(300), 1)), [2]);
    assert_eq!(keys(desk.take_due(at(300), 9)), [3]);
    assert_eq!(keys(desk.take_due(at(899), 9)), []);
    // It may be due again, at any time.
    desk.look_at(key(1), at(600));
    desk.forget(key(4));
    assert_eq!(keys(desk.take_due(at(1_000), 9)), [1]);
    assert_eq!((desk.known, desk.counters.len()), (3, 3));
}

#[test]
fn as_many_holdings_are_known_as_there_is_room_for() {
    let mut desk = Desk::default();
    let key = |number| Hashed::narrow(number);
    assert!(desk.known(key(1), &target(1), at(0)).is_some());
    desk.known = KNOWN_MAX;
    assert!(desk.known(key(1), &target(1), at(0)).is_some(), "it is known already");
    assert!(desk.known(key(2), &target(2), at(0)).is_none());
    assert_eq!(desk.counters.len(), 1);
    // Whatever else is on the desk stays.
    desk.counters.entry(key(3)).or_default().flight = Some(Arc::default());
    desk.counters.entry(key(4)).or_default().forming = Some(Arc::default());
    for number in [3, 4] {
        assert!(desk.known(key(number), &target(number), at(0)).is_none());
    }
    assert_eq!(desk.counters.len(), 3);
    // One is forgotten once.
    desk.forget(key(1));
    desk.forget(key(1));
    assert_eq!((desk.known, desk.counters.len()), (KNOWN_MAX - 1, 2));
    assert!(desk.known(key(2), &target(2), at(0)).is_some());
}

/// The parts of a hash that a place in the table is found by, and that tell counters there apart.
fn counter(set: u128, tag: u128) -> KeyHash {
    KeyHash(tag << 96 | set << 64 | 77)
}

#[test]
fn a_refill_is_known_for_a_second() {
    let recent = Recent::default();
    let note = |millis| recent.note(counter(8_191, 5), at(millis)).map(Nanos::as_nanos);
    assert_eq!(note(0), None);
    assert_eq!(note(700), Some(700 * MILLISECOND));
    assert_eq!(note(1_700), Some(1_000 * MILLISECOND));
    assert_eq!(note(2_701), None);
    // The milliseconds of 32 bits begin again after 49 days.
    let turn = (1_700_092_800_000_u64 >> 32) + 1;
    let before = (turn << 32) - 1_700_092_800_000 - 100;
    assert_eq!(note(before), None);
    assert_eq!(note(before + 250), Some(250 * MILLISECOND));
}

#[test]
fn a_refill_is_known_of_four_counters_at_a_place_and_displaces_the_one_of_longest_ago() {
    let recent = Recent::default();
    let is_known = |tag, millis| recent.note(counter(3, tag), at(millis)).is_some();
    assert_eq!([1, 2, 3, 4].map(|tag| is_known(tag, tag as u64)), [false; 4]);
    assert_eq!([2, 1, 3, 4].map(|tag| is_known(tag, 10 + tag as u64)), [true; 4]);
    assert!(!is_known(5, 20));
    assert_eq!([2, 3, 4, 5].map(|tag| is_known(tag, 30)), [true; 4]);
    assert!(!is_known(1, 40));
    // Neighbours have places of their own.
    for set in [0, 2, 4, 8_192 * 2 + 5] {
        assert_eq!(recent.note(counter(set, 4), at(41)), None, "set {set}");
    }
    assert_eq!(recent.note(counter(5, 4), at(41)), Some(Nanos::ZERO));
}

#[test]
fn the_most_sidecars_of_two_periods_of_ten_minutes_count() {
    let (sidecars, at) = (Sidecars::default(), |seconds: u64| at(seconds * 1_000));
    let most = |seconds| sidecars.most(at(seconds));
    assert_eq!(most(0), None);
    for (number, seconds) in [(3, 0), (2, 1), (5, 599)] {
        sidecars.note(number, at(seconds));
    }
    assert_eq!([599, 600, 1_199, 1_200].map(most), [Some(5), Some(5), Some(5), None]);
    sidecars.note(1, at(600));
    assert_eq!(
        [600, 1_199, 1_200, 1_799, 1_800].map(most),
        [Some(5), Some(5), Some(1), Some(1), None]
    );
    sidecars.note(70_000, at(1_200));
    sidecars.note(2, at(1_800));
    assert_eq!(most(1_800), Some(65_535));
}

#[test]
fn what_was_known_of_sidecars_stays_while_the_shared_counters_are_away() {
    let (sidecars, at) = (Sidecars::default(), |seconds: u64| at(seconds * 1_000));
    let most = |seconds| sidecars.most(at(seconds));
    sidecars.note(4, at(0));
    sidecars.not_reached(at(700));
    sidecars.not_reached(at(5_000));
    assert_eq!([100, 700, 10_000].map(most), [Some(4); 3]);
    sidecars.reached();
    assert_eq!([100, 700, 10_000].map(most), [Some(4), Some(4), None]);
    // An earlier process knew it.
    let sidecars = Sidecars::default();
    sidecars.remember(7, at(0));
    assert_eq!(sidecars.most(at(10_000)), Some(7));
}
