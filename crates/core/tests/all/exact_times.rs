//! The times that an exact sliding window names, to the second, and what it makes of parts that are lost or of
//! another owner. The twin in `sliding` allows times that are early or late; these tables do not.

use crate::slow_contract::{at, said};
use crate::slow_sliding::{Expiry, Store};
use tidegate_core::{
    Charge, DailyReset, Hits, Nanos, Quota, SlidingExact, StateSize, Timestamp, Zone, decide,
};

const SECOND: u64 = 1_000_000_000;
/// Midnight UTC.
const START: u64 = 20_000 * 86_400;
const HOURS_2: u64 = 7_200;
/// Parts are kept for a minute after their hits count.
const SLACK: u64 = 60;

fn exact(limit: u32, secs: u64) -> SlidingExact {
    SlidingExact::new(limit, Nanos::from_secs(secs)).unwrap()
}

fn take(hits: u64) -> Charge {
    Charge::Take(Hits::new(hits))
}

fn time(secs: u64) -> Timestamp {
    at((START + secs) * SECOND)
}

/// Seconds after the start, rounded up.
fn secs(nanos: u64) -> u64 {
    nanos.div_ceil(SECOND) - START
}

/// Takes the whole limit at `taken`, and checks a denial at each time: its retry, and the end of the counter.
#[track_caller]
fn check(window: SlidingExact, taken: u64, denials: &[(u64, u64, u64)]) {
    let quota = Quota::SlidingExact(window);
    for (now, retry_at, keep_until) in denials {
        let mut store = Store::new(Expiry::Keep);
        let hits = take(quota.capacity().into());
        assert!(store.decide(&quota, hits, time(taken)).is_allow());
        let denied = said(&store.decide(&quota, take(1), time(*now)), (START + now) * SECOND);
        assert!(!denied.allowed, "at {now} s");
        assert_eq!(denied.retry_at.map(secs), Some(*retry_at), "at {now} s");
        assert_eq!(secs(denied.reset_at), *retry_at, "at {now} s");
        assert_eq!(secs(denied.keep_until), *keep_until, "at {now} s");
    }
}

/// The retry is the exact second where the hits are in the current or the oldest minute, and else the first one
/// possible; the counter is kept for the last one possible.
#[test]
fn a_window_names_the_earliest_time_of_a_retry_and_the_latest_of_its_hits() {
    let (second, minute, hour) = (130, 120, 0);
    let end = |last: u64| last + 1 + HOURS_2 + SLACK;
    let retry = |first: u64| first + 1 + HOURS_2;
    check(
        exact(3, HOURS_2),
        second,
        &[
            (second, retry(second), end(second)),
            (second + 49, retry(second), end(second)),
            (second + 50, retry(minute), end(minute + 59)),
            (hour + 3_599, retry(minute), end(minute + 59)),
            (hour + 3_600, retry(hour), end(hour + 3_599)),
            (hour + HOURS_2 - 1, retry(hour), end(hour + 3_599)),
            // The oldest hour is that of the hits, and then the oldest minute.
            (hour + HOURS_2 + minute - 1, retry(minute), end(hour + 3_599)),
            (hour + HOURS_2 + minute, retry(second), end(hour + 3_599)),
            (hour + HOURS_2 + second, retry(second), end(hour + 3_599)),
        ],
    );
}

/// A daily reset that comes at the end of the second of a hit was missed, and the hit denied for a period.
#[test]
fn hits_end_with_a_reset_in_the_next_second() {
    const NOON: u64 = 43_200;
    let reset = DailyReset::new(Nanos::from_secs(NOON), &Zone::utc()).unwrap();
    let window = || exact(3, HOURS_2).with_reset(reset.clone());
    check(window(), NOON - 1, &[(NOON - 1, NOON, NOON + SLACK)]);
    check(window(), NOON - 2, &[(NOON - 1, NOON, NOON + SLACK)]);
    // After the reset a hit counts for its period again.
    check(window(), NOON, &[(NOON, NOON + HOURS_2 + 1, NOON + HOURS_2 + 1 + SLACK)]);
}

/// Hits in several seconds, minutes and hours: a charge fits when as many as it needs are gone.
#[test]
fn a_retry_passes_over_the_hits_that_need_not_be_gone() {
    let quota = Quota::SlidingExact(exact(10, HOURS_2));
    let mut store = Store::new(Expiry::Keep);
    for taken in [10, 20, 70, 80, 3_700, 3_760, 3_770, 3_780, 3_781, 3_785] {
        assert!(store.decide(&quota, take(1), time(taken)).is_allow());
    }
    let mut retry = |now: u64, hits: u64| {
        let denied = store.decide(&quota, take(hits), time(now));
        said(&denied, (START + now) * SECOND).retry_at.map(|at| secs(at) - 1 - HOURS_2)
    };
    // The minutes of the first hour are not known; of the second all are, and the seconds of the current one.
    for (hits, first) in
        [(1, 0), (4, 0), (5, 3_660), (6, 3_720), (7, 3_720), (8, 3_780), (9, 3_781), (10, 3_785)]
    {
        assert_eq!(retry(3_790, hits), Some(first), "{hits} hits");
    }
    // The seconds of the first minute are known when that is the oldest, and the minutes of its hour.
    for (hits, first) in [(1, 10), (2, 20), (3, 60), (4, 60), (5, 3_600), (10, 3_600)] {
        assert_eq!(retry(HOURS_2 + 5, hits), Some(first), "{hits} hits");
    }
    assert_eq!(retry(HOURS_2 + 15, 1), None);
}

/// The state of a decision, by parts.
fn state(quota: &Quota, now: Timestamp) -> Vec<u64> {
    vec![0; quota.parts(now).labels().len() * StateSize::Wide.words()]
}

/// A part that belongs to another minute counts as empty; a refund returns none of its hits.
#[test]
fn a_part_of_another_minute_is_not_refunded() {
    let quota = Quota::SlidingExact(exact(10, HOURS_2));
    let now = time(130);
    let mut own = state(&quota, now);
    assert!(decide(&mut own, &quota, take(4), now).is_allow());
    let end = |secs: u64| time(secs);
    assert_eq!(quota.refund_spendable_until(&own, time(170)), end(131));
    let words = StateSize::Wide.words();
    let labels = quota.parts(now);
    let seconds = labels.labels().iter().position(|label| label >> 62 == 2).unwrap();
    let mut stale = own.clone();
    stale[seconds * words] -= 1;
    assert_eq!(quota.refund_spendable_until(&stale, time(170)), end(171));
    let before = stale.clone();
    let refund = decide(&mut stale, &quota, Charge::Refund(Hits::new(4)), time(170));
    assert_eq!((refund.remaining, &stale), (6, &before));
}

/// Of a counter that has lost its minutes, or its hours, no hit is returned that these do not have.
#[test]
fn a_refund_returns_only_hits_that_all_levels_have() {
    let quota = Quota::SlidingExact(exact(10, HOURS_2));
    let (now, words) = (time(130), StateSize::Wide.words());
    let mut own = state(&quota, now);
    decide(&mut own, &quota, take(4), now);
    let refund = Charge::Refund(Hits::new(3));
    let mut whole = own.clone();
    assert_eq!(decide(&mut whole, &quota, refund, now).remaining, 9);
    let labels = quota.parts(now);
    let minutes = labels.labels().iter().position(|label| label >> 62 == 1).unwrap();
    let mut without = own.clone();
    without[minutes * words..][..words].fill(0);
    let before = without.clone();
    assert_eq!(decide(&mut without, &quota, refund, now).remaining, 6);
    assert_eq!(without, before);
    // The root still has its hour, with fewer hits.
    let mut fewer = state(&quota, now);
    decide(&mut fewer, &quota, take(1), now);
    let mut mixed = own.clone();
    mixed[..words].copy_from_slice(&fewer[..words]);
    assert_eq!(decide(&mut mixed, &quota, refund, now).remaining, 10);
    assert_eq!(quota.refund_spendable_until(&mixed, now), time(131), "three of four are left");
}

/// The hits of the current minute are returned from its first second on, whatever the second of the oldest is.
#[test]
fn a_refund_takes_all_of_the_current_minute() {
    let quota = Quota::SlidingExact(exact(10, HOURS_2));
    let mut store = Store::new(Expiry::Keep);
    store.decide(&quota, take(4), time(121));
    let refund = Charge::Refund(Hits::new(3));
    assert_eq!(store.decide(&quota, refund, time(179)).remaining, 9);
    assert_eq!(store.decide(&quota, refund, time(179)).remaining, 10);
}

#[test]
fn a_window_records_its_last_hit_and_nothing_else() {
    let quota = Quota::SlidingExact(exact(3, HOURS_2));
    let mut store = Store::new(Expiry::Keep);
    let last = |store: &Store| {
        let root = store.parts.get(&0).copied().unwrap_or([0; 33]);
        quota.last_hit(&root, time(9_000)).map(|last| last.as_nanos() - START * SECOND)
    };
    let force = |hits| Charge::Force(Hits::new(hits));
    let refund = Charge::Refund(Hits::new(1));
    for (charge, nanos, expected) in [
        (take(0), 5, None),
        (force(9), 10 * SECOND + 7, Some(10 * SECOND + 7)),
        (refund, 11 * SECOND, Some(10 * SECOND + 7)),
        (take(1), 12 * SECOND, Some(12 * SECOND)),
        (take(1), 12 * SECOND + 1, Some(12 * SECOND)),
        // A hit without room has happened all the same, unless it is a peek.
        (force(1), 13 * SECOND, Some(13 * SECOND)),
        (force(0), 14 * SECOND, Some(13 * SECOND)),
        // The clock steps back.
        (force(1), 12 * SECOND, Some(13 * SECOND)),
        (take(4), 8_000 * SECOND, Some(13 * SECOND)),
        (take(1), 8_000 * SECOND, Some(8_000 * SECOND)),
    ] {
        store.decide(&quota, charge, at(START * SECOND + nanos));
        assert_eq!(last(&store), expected, "after {charge:?} at {nanos}");
    }
    // A counter whose hits are all gone is a new one, and its last hit may be earlier.
    let mut store = Store::new(Expiry::Keep);
    store.decide(&quota, take(1), time(50));
    store.decide(&quota, refund, time(50));
    store.decide(&quota, take(1), time(20));
    assert_eq!(last(&store), Some(20 * SECOND));
}

/// A part that is not among the labels would be left behind when the counter is erased.
#[test]
fn the_labels_of_a_counter_name_each_part_that_may_hold_hits_once() {
    for period in [60, HOURS_2, 86_400] {
        let quota = Quota::SlidingExact(exact(3, period));
        for now in [0, 59, 3_599, 3_600, 50_000] {
            let labels = quota.part_labels(time(now));
            assert_eq!(labels[0], 0);
            let mut sorted = labels.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), labels.len());
            // A ring of 26 hours, and the minutes of these.
            assert_eq!(labels.len(), 1 + 27 + 26 * 60 + 1);
            for before in (0..=25 * 3_600).step_by(59) {
                let parts = quota.parts(at((START + now - before) * SECOND));
                let own = parts.labels().iter().filter(|label| {
                    // The parts of the hits themselves; those of the oldest second may be older.
                    let (level, number) = (*label >> 62, *label & (u64::MAX >> 2));
                    let second = START + now - before;
                    level == 0 || number == second / if level == 1 { 3_600 } else { 60 }
                });
                for label in own {
                    assert!(sorted.binary_search(label).is_ok(), "{before} s before {now} s");
                }
            }
        }
    }
    let early = Quota::SlidingExact(exact(3, 60)).part_labels(at(61 * SECOND));
    assert_eq!(early, [0, 1 << 62, 2 << 62, (2 << 62) + 1]);
}
