//! Each sliding window agrees with its slow twin on random traces with clock steps, and keeps its bound.

use crate::slow_contract::{
    Model, START, Said, Step, at, charges, check_spans, delays, expected, first, forward_steps,
    periods, runner, said, spent_at, steps, takes,
};
use crate::slow_sliding::{Daily, Expiry, LogModel, RingModel, Store, WindowModel};
use proptest::prelude::*;
use tidegate_core::{
    Charge, DailyReset, Hits, Nanos, Quota, QuotaError, SlidingBuckets, SlidingExact,
    SlidingWindow, Timestamp, Zone, decide,
};

const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3_600 * SECOND;
const DAY: u64 = 24 * HOUR;

fn window(limit: u32, period: u64) -> Quota {
    Quota::SlidingWindow(SlidingWindow::new(limit, Nanos::new(period)).unwrap())
}

fn ring(limit: u32, period: u64) -> Quota {
    Quota::SlidingBuckets(SlidingBuckets::new(limit, Nanos::new(period)).unwrap())
}

fn exact(limit: u32, secs: u64) -> Quota {
    Quota::SlidingExact(SlidingExact::new(limit, Nanos::from_secs(secs)).unwrap())
}

/// The same limit with a daily reset, `secs` after midnight UTC.
fn reset_daily(quota: Quota, secs: u64) -> Quota {
    let reset = DailyReset::new(Nanos::from_secs(secs), &Zone::utc()).unwrap();
    match quota {
        Quota::SlidingWindow(window) => Quota::SlidingWindow(window.with_reset(reset)),
        Quota::SlidingBuckets(buckets) => Quota::SlidingBuckets(buckets.with_reset(reset)),
        Quota::SlidingExact(exact) => Quota::SlidingExact(exact.with_reset(reset)),
        other => panic!("{other:?}"),
    }
}

fn take(hits: u64) -> Charge {
    Charge::Take(Hits::new(hits))
}

/// Mostly small limits, so that traces reach them.
fn limits() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0u32..30, 1 => 1_000_000u32..=u32::MAX]
}

fn agree(quota: &Quota, twin: impl Model, start: u64, steps: &[Step]) -> Result<(), TestCaseError> {
    agree_and(quota, twin, start, steps, |_, _, _| Ok(()))
}

/// As [`agree`], with a check of the state and the twin at the time of each step.
fn agree_and<M: Model>(
    quota: &Quota,
    mut twin: M,
    start: u64,
    steps: &[Step],
    check: impl Fn(&[u64], &M, u64) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let (mut state, mut now) = ([0; 33], start);
    for (index, step) in steps.iter().enumerate() {
        now = step.moves(now, twin.period());
        let decision = decide(&mut state, quota, step.charge, at(now));
        let expected = expected(&mut twin, step.charge, now);
        prop_assert_eq!(said(&decision, now), expected, "step {} {:?}", index, step);
        check(&state, &twin, now)?;
    }
    Ok(())
}

#[test]
fn window_decisions_are_the_twins() {
    runner(250)
        .run(&(limits(), periods(), START, steps(charges())), |(limit, period, start, steps)| {
            agree(&window(limit, period), WindowModel::new(limit, period), start, &steps)
        })
        .unwrap();
}

#[test]
fn ring_decisions_are_the_twins() {
    runner(250)
        .run(&(limits(), periods(), START, steps(charges())), |(limit, period, start, steps)| {
            agree(&ring(limit, period), RingModel::new(limit, period), start, &steps)
        })
        .unwrap();
}

#[test]
fn the_first_windows_of_all_time_are_like_all_others() {
    runner(200)
        .run(&(0u32..30, periods(), steps(charges())), |(limit, period, steps)| {
            agree(&window(limit, period), WindowModel::new(limit, period), 0, &steps)?;
            agree(&ring(limit, period), RingModel::new(limit, period), 0, &steps)
        })
        .unwrap();
}

/// Periods that a day cuts short, and others.
fn spans() -> impl Strategy<Value = u64> {
    prop_oneof![3 => periods(), 2 => HOUR..3 * DAY, 2 => Just(DAY), 1 => Just(9 * DAY)]
}

#[test]
fn a_limit_with_a_daily_reset_agrees_with_its_twin_and_records_its_last_hit() {
    fn check<M: Model>(
        quota: &Quota,
        twin: Daily<M>,
        start: u64,
        steps: &[Step],
    ) -> Result<(), TestCaseError> {
        let ticks = if matches!(quota, Quota::SlidingBuckets(_)) && twin.period() < DAY {
            1_000_000
        } else {
            1
        };
        agree_and(quota, twin, start, steps, |state, twin, now| {
            if twin.left(now) < twin.limit() {
                let noted = quota.last_hit(state, at(now)).map(Timestamp::as_nanos);
                prop_assert_eq!(noted, twin.last.map(|last| last / ticks * ticks));
            }
            Ok(())
        })
    }
    let steps = prop_oneof![steps(charges()), steps(takes())];
    let strategy = (1u32..30, spans(), START, 0..86_400u64, steps);
    runner(400)
        .run(&strategy, |(limit, period, start, secs, steps)| {
            let reset = Some(secs * SECOND);
            let quota = reset_daily(window(limit, period), secs);
            let twin = Daily::new(WindowModel::new(limit, period), reset);
            check(&quota, twin, start, &steps)?;
            let quota = reset_daily(ring(limit, period), secs);
            check(&quota, Daily::new(RingModel::new(limit, period), reset), start, &steps)
        })
        .unwrap();
}

#[test]
fn a_limit_without_a_reset_records_its_last_hit_as_well() {
    let strategy = (1u32..30, spans(), START, steps(charges()));
    runner(200)
        .run(&strategy, |(limit, period, start, steps)| {
            let mut window_twin = Daily::new(WindowModel::new(limit, period), None);
            let mut ring_twin = Daily::new(RingModel::new(limit, period), None);
            let quotas = [window(limit, period), ring(limit, period)];
            let (mut states, mut now) = ([[0; 33]; 2], start);
            for step in &steps {
                now = step.moves(now, period);
                for (quota, state) in quotas.iter().zip(&mut states) {
                    decide(state, quota, step.charge, at(now));
                }
                expected(&mut window_twin, step.charge, now);
                expected(&mut ring_twin, step.charge, now);
                let last = |index: usize| {
                    quotas[index].last_hit(&states[index], at(now)).map(Timestamp::as_nanos)
                };
                if window_twin.left(now) < u64::from(limit) {
                    prop_assert_eq!(last(0), window_twin.last);
                }
                if ring_twin.left(now) < u64::from(limit) {
                    let ticks = if period < DAY { 1_000_000 } else { 1 };
                    prop_assert_eq!(last(1), ring_twin.last.map(|last| last / ticks * ticks));
                }
            }
            Ok(())
        })
        .unwrap();
}

/// The day of the reset, by the second: earlier hits are forgotten, later ones are not, and an exhausted
/// limit reports when it is full again.
#[test]
fn a_reset_ends_what_came_before_it_and_nothing_else() {
    let midnight = 20_000 * DAY;
    let reset = midnight + 3 * HOUR;
    for quota in [
        window(5, DAY),
        window(5, 7 * HOUR + 1),
        ring(5, DAY),
        ring(5, DAY - 7),
        ring(5, 30 * DAY),
        exact(5, 86_400),
    ] {
        let quota = reset_daily(quota, 3 * 3_600);
        let mut store = Store::new(Expiry::Keep);
        let mut ask = |charge, now| said(&store.decide(&quota, charge, at(now)), now);
        assert!(ask(take(4), reset - HOUR).allowed);
        assert!(ask(take(1), reset - SECOND).allowed);
        let denied = ask(take(1), reset - SECOND);
        let found = (denied.allowed, denied.retry_at, denied.reset_at);
        assert_eq!(found, (false, Some(reset), reset), "{quota:?}");
        assert!(!ask(take(1), reset - 1).allowed, "{quota:?}");
        assert_eq!(ask(Charge::PEEK, reset).remaining, 5, "{quota:?}");
        assert!(ask(take(2), reset).allowed);
        // The clock steps back before the reset, which brings nothing back.
        assert!(ask(Charge::PEEK, reset - 1).remaining <= 3, "{quota:?}");
        assert_eq!(ask(Charge::PEEK, reset + SECOND).remaining, 3, "{quota:?}");
    }
}

/// Leased hits are forgotten at the next reset, and must be spent before.
#[test]
fn hits_may_be_spent_until_the_reset_at_the_latest() {
    let midnight = 20_000 * DAY;
    for (quota, otherwise) in [
        (window(5, DAY), midnight + DAY),
        (ring(5, 2 * DAY), midnight + 2 * HOUR),
        (ring(5, HOUR), midnight + 31 * 60 * SECOND),
        (exact(5, 86_400), midnight + 1_801 * SECOND),
    ] {
        let half_past = midnight + 30 * 60 * SECOND;
        let mut state = [0; 33 * 5];
        decide(&mut state, &quota, take(1), at(half_past));
        assert_eq!(quota.spendable_until(&state, at(half_past)), at(otherwise), "{quota:?}");
        let reset = half_past + 20 * SECOND;
        let quota = reset_daily(quota, 1_820);
        let mut state = [0; 33 * 5];
        decide(&mut state, &quota, take(1), at(half_past));
        let until = quota.spendable_until(&state, at(half_past));
        assert_eq!(until, at(otherwise.min(reset)), "{quota:?}");
        // Afterwards, a refund would not return the hits that were charged before.
        let after = quota.refund_spendable_until(&state, at(reset));
        assert!(after > at(reset), "{quota:?}: {after:?}");
    }
}

/// Hits of the second before a reset do not count after it, for any time stamps in any order. Otherwise
/// everything is as without a reset.
#[test]
fn an_exact_window_with_a_daily_reset_agrees_with_a_log() {
    let strategy = (1u32..30, seconds(), START, 0..86_400u64, steps(charges()));
    runner(400)
        .run(&strategy, |(limit, secs, start, time, steps)| {
            let quota = reset_daily(exact(limit, secs), time);
            let mut twin = LogModel::new(limit, secs).with_reset(time);
            let (mut store, mut now) = (Store::new(Expiry::Keep), start);
            for (index, step) in steps.iter().enumerate() {
                now = step.moves(now, secs * SECOND);
                if twin.may_be_out_of_reach(now) {
                    // `exact_agrees_with_a_log_whatever_the_clock_does` covers the rest.
                    break;
                }
                let decision = store.decide(&quota, step.charge, at(now));
                let expected = expected(&mut twin, step.charge, now);
                let found = said(&decision, now);
                let both = (found.allowed, found.remaining);
                prop_assert_eq!(both, (expected.allowed, expected.remaining), "step {}", index);
                prop_assert!(found.reset_at <= expected.reset_at, "step {}", index);
                prop_assert!(found.keep_until >= expected.keep_until, "step {}", index);
                if step.charge.hits().get() <= limit.into() {
                    prop_assert!(found.retry_at <= expected.retry_at, "step {}", index);
                }
            }
            Ok(())
        })
        .unwrap();
}

/// Times and hits that were admitted.
fn admitted(quota: &Quota, start: u64, period: u64, steps: &[Step]) -> Vec<(u64, u64)> {
    let (mut store, mut now, mut admitted) = (Store::new(Expiry::Drop), start, Vec::new());
    for step in steps {
        now = step.moves(now, period);
        if store.decide(quota, step.charge, at(now)).is_allow() {
            admitted.push((now, step.charge.hits().get()));
        }
    }
    admitted
}

/// The most hits that a sliding window of two counters admits between a first and a last hit.
fn window_bound(limit: u64, period: u64, span: u64) -> u64 {
    let more = u128::from(limit) * u128::from(span.saturating_sub(1)) / u128::from(period);
    limit + more as u64
}

#[test]
fn a_window_admits_at_most_a_bucket_of_its_limit_in_any_span() {
    runner(400)
        .run(&(1u32..40, periods(), START, forward_steps()), |(limit, period, start, steps)| {
            let hits = admitted(&window(limit, period), start, period, &steps);
            let bound = |span| window_bound(limit.into(), period, span);
            check_spans(&hits, |span, hits| hits <= bound(span))?;
            check_spans(&hits, |span, hits| span > period || hits < 2 * u64::from(limit))
        })
        .unwrap();
}

/// Times at which the hits of `steps` are spent, each delayed by `delays`. If the clock steps back, time
/// stands still until it has caught up.
fn spent_late(
    quota: &Quota,
    start: u64,
    period: u64,
    steps: &[Step],
    delays: &[u64],
) -> Vec<(u64, u64)> {
    let (mut state, mut now, mut newest, mut spent) = ([0; 33], start, 0, Vec::new());
    for (step, mils) in steps.iter().zip(delays) {
        now = step.moves(now, period);
        let is_allowed = decide(&mut state, quota, step.charge, at(now)).is_allow();
        if is_allowed && step.charge.hits() != Hits::PEEK {
            newest = now.max(newest);
            let until = quota.spendable_until(&state, at(now)).as_nanos();
            spent.push((spent_at(newest, until, *mils), step.charge.hits().get()));
        }
    }
    spent
}

#[test]
fn hits_charged_ahead_keep_the_bound_of_a_window() {
    let strategy = (1u32..40, periods(), START, steps(takes()), delays());
    runner(600)
        .run(&strategy, |(limit, period, start, steps, delays)| {
            let spent = spent_late(&window(limit, period), start, period, &steps, &delays);
            check_spans(&spent, |span, hits| hits <= window_bound(limit.into(), period, span))
        })
        .unwrap();
}

#[test]
fn hits_charged_ahead_keep_the_bound_of_a_ring() {
    let strategy = (1u32..40, periods(), START, steps(takes()), delays());
    runner(600)
        .run(&strategy, |(limit, period, start, steps, delays)| {
            let spent = spent_late(&ring(limit, period), start, period, &steps, &delays);
            check_spans(&spent, |span, hits| span > period || hits <= limit.into())
        })
        .unwrap();
}

/// Time stamps decide, as in the exact window: the clock may step anywhere.
#[test]
fn hits_charged_ahead_keep_the_bound_of_an_exact_window() {
    let strategy = (1u32..30, seconds(), START, steps(takes()), delays());
    runner(400)
        .run(&strategy, |(limit, secs, start, steps, delays)| {
            let quota = exact(limit, secs);
            let (mut store, mut now, mut spent) = (Store::new(Expiry::Keep), start, Vec::new());
            for (step, mils) in steps.iter().zip(&delays) {
                now = step.moves(now, secs * SECOND);
                if store.decide(&quota, step.charge, at(now)).is_allow() {
                    let until = quota.spendable_until(&[], at(now)).as_nanos();
                    spent.push((spent_at(now, until, *mils), step.charge.hits().get()));
                }
            }
            check_spans(&spent, |span, hits| span > secs * SECOND || hits <= limit.into())
        })
        .unwrap();
}

/// A refund starts with the newest second of the minute. After a step back that is a later second than the
/// current one, whose hits must not be returned instead of current ones.
#[test]
fn an_exact_window_names_the_second_of_a_refund() {
    let quota = exact(10, 60);
    let (mut store, now) = (Store::new(Expiry::Keep), 20_000 * DAY + 30 * SECOND);
    let refunded = |store: &Store, now: u64| {
        let parts = quota.parts(at(now));
        let part = |label: &u64| store.parts.get(label).copied().unwrap_or([0; 33]);
        let state: Vec<u64> = parts.labels().iter().flat_map(part).collect();
        quota.refund_spendable_until(&state, at(now)).as_nanos()
    };
    assert_eq!(refunded(&store, now), now + SECOND, "of a new counter");
    store.decide(&quota, take(3), at(now));
    for later in [0, 1, SECOND, 29 * SECOND] {
        assert_eq!(refunded(&store, now + later), now + SECOND);
    }
    assert_eq!(refunded(&store, now + 30 * SECOND), now + 31 * SECOND, "in another minute");
    store.decide(&quota, take(2), at(now + 5 * SECOND));
    assert_eq!(refunded(&store, now), now + 6 * SECOND);
    store.decide(&quota, Charge::Refund(Hits::new(2)), at(now));
    assert_eq!(refunded(&store, now), now + SECOND);
}

#[test]
fn an_adversary_reaches_exactly_the_bound_of_a_window() {
    // All of the limit in the last nanosecond of a window, then whatever fits, a bit of a window later.
    let strategy = (1u32..2_000, periods(), 1u64..10_000, 0..1_000_000u64);
    runner(400)
        .run(&strategy, |(limit, period, number, part)| {
            let quota = window(limit, period);
            let boundary = number * period;
            let elapsed = (u128::from(period) * u128::from(part) / 1_000_000) as u64;
            let mut state = [0; 4];
            let first = take(limit.into());
            prop_assert!(decide(&mut state, &quota, first, at(boundary - 1)).is_allow());
            let left = decide(&mut state, &quota, Charge::PEEK, at(boundary + elapsed)).remaining;
            let bound = window_bound(limit.into(), period, elapsed + 1);
            prop_assert_eq!(u64::from(limit) + left, bound);
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_window_counts_evenly_spread_traffic_to_one_hit() {
    let strategy = (1u64..500, periods(), 1u64..10_000, 0..1_000u64);
    runner(300)
        .run(&strategy, |(per_window, period, number, part)| {
            let quota = window(100_000, period);
            let (mut state, start) = ([0; 4], number * period);
            let end = start + period + period / 1_000 * part;
            let times: Vec<u64> = (0u64..)
                .map(|hit| start + hit * (period / per_window))
                .take_while(|time| *time <= end)
                .collect();
            for time in &times {
                decide(&mut state, &quota, Charge::ONE, at(*time));
            }
            let counted = 100_000 - decide(&mut state, &quota, Charge::PEEK, at(end)).remaining;
            let truth = times.iter().filter(|time| **time + period > end).count() as u64;
            prop_assert!(counted.abs_diff(truth) <= 1, "{counted} counted of {truth}");
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_ring_never_admits_more_than_the_limit_in_any_period() {
    runner(400)
        .run(&(1u32..40, periods(), START, forward_steps()), |(limit, period, start, steps)| {
            let hits = admitted(&ring(limit, period), start, period, &steps);
            check_spans(&hits, |span, hits| span > period || hits <= limit.into())
        })
        .unwrap();
}

#[test]
fn a_ring_holds_a_hit_for_a_period_and_at_most_one_bucket_more() {
    runner(300)
        .run(&(periods(), START), |(period, now)| {
            let quota = ring(1, period);
            let mut state = [0; 33];
            decide(&mut state, &quota, Charge::ONE, at(now));
            let denied = decide(&mut state, &quota, Charge::ONE, at(now));
            let held = said(&denied, now).retry_at.unwrap() - now;
            let bucket = RingModel::new(1, period).width();
            prop_assert!(held > period);
            let buckets = if period < DAY { 60 } else { 24 };
            prop_assert!(held < period + bucket + buckets);
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_boundary_makes_no_difference() {
    // A fixed window admits twice the limit around its boundary.
    #[track_caller]
    fn check(quota: &Quota, period: u64, before: usize, after: usize) {
        let boundary = period * 20_000;
        let mut store = Store::new(Expiry::Drop);
        let mut flood = |now| {
            let asks = (0..1_000).map(|_| store.decide(quota, Charge::ONE, at(now)).is_allow());
            asks.filter(|allowed| *allowed).count()
        };
        let (first, second) = (flood(boundary - period / 100), flood(boundary + period / 100));
        assert_eq!((first, second), (before, after), "{}", quota.algorithm());
    }
    for period in [100 * SECOND, HOUR, DAY] {
        check(&window(100, period), period, 100, 1);
        check(&ring(100, period), period, 100, 0);
        check(&exact(100, period / SECOND), period, 100, 0);
    }
}

/// All three kinds, with periods of whole seconds that suit all of them, with and without a daily reset.
fn quotas() -> impl Strategy<Value = (Quota, u64)> {
    let periods = prop_oneof![Just(1u64), Just(60), 1..4_000u64, Just(86_400)];
    let resets = prop::option::of(0..86_400u64);
    (0..3, 1u32..30, periods, resets).prop_map(|(kind, limit, secs, reset)| {
        let quota = match kind {
            0 => window(limit, secs * SECOND),
            1 => ring(limit, secs * SECOND),
            _ => exact(limit, secs),
        };
        (reset.map_or(quota.clone(), |reset| reset_daily(quota, reset)), secs * SECOND)
    })
}

#[test]
fn a_denied_charge_succeeds_at_its_retry_after_and_not_before() {
    runner(400)
        .run(&(quotas(), START, steps(charges())), |((quota, period), start, steps)| {
            let (mut store, mut now) = (Store::new(Expiry::Keep), start);
            let counts_seconds = matches!(quota, Quota::SlidingExact(_));
            for step in &steps {
                now = step.moves(now, period);
                let decision = store.decide(&quota, step.charge, at(now));
                let Some(retry_at) = said(&decision, now).retry_at else { continue };
                prop_assert!(retry_at > now || step.charge.hits().get() > quota.capacity().into());
                if step.charge.hits().get() > quota.capacity().into() {
                    let whole = store.clone().decide(&quota, Charge::PEEK, at(retry_at));
                    prop_assert_eq!(whole.remaining, u64::from(quota.capacity()));
                    continue;
                }
                let again =
                    |now| store.clone().decide(&quota, take(step.charge.hits().get()), at(now));
                prop_assert!(!again(retry_at - 1).is_allow());
                prop_assert!(counts_seconds || again(retry_at).is_allow());
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_state_past_its_keep_until_decides_as_a_new_one() {
    let strategy = (quotas(), START, steps(charges()), charges());
    runner(400)
        .run(&strategy, |((quota, period), start, steps, last)| {
            let (mut store, mut now) = (Store::new(Expiry::Keep), start);
            for step in &steps {
                now = step.moves(now, period);
                let kept = store.decide(&quota, step.charge, at(now)).keep_until;
                let with_state = store.clone().decide(&quota, last, kept);
                let mut without = Store::new(Expiry::Keep).decide(&quota, last, kept);
                if matches!(quota, Quota::SlidingExact(_)) {
                    // The minute of its newest hit may be unknown.
                    prop_assert!(with_state.keep_until >= without.keep_until);
                    without.keep_until = with_state.keep_until;
                }
                prop_assert_eq!(with_state, without);
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_limit_of_zero_denies_for_a_period() {
    for quota in [window(0, 60 * SECOND), ring(0, 60 * SECOND), exact(0, 60)] {
        let mut state = [0; 33 * 5];
        for charge in [Charge::ONE, Charge::PEEK, Charge::Force(Hits::ONE)] {
            let decision = decide(&mut state, &quota, charge, at(START.start));
            assert_eq!(decision.wait(at(START.start)), Nanos::from_secs(60));
            assert_eq!(decision.reset_at, at(START.start + 60 * SECOND));
            assert!(!decision.is_allow());
        }
        assert_eq!(state, [0; 33 * 5]);
    }
}

#[test]
fn a_raised_or_lowered_limit_keeps_its_counts() {
    #[track_caller]
    fn check(quota: impl Fn(u32) -> Quota) {
        let mut store = Store::new(Expiry::Drop);
        let now = at(DAY * 20_000 + 7);
        assert!(store.decide(&quota(10), take(6), now).is_allow());
        assert_eq!(store.decide(&quota(20), Charge::PEEK, now).remaining, 14);
        let lowered = store.decide(&quota(4), Charge::ONE, now);
        assert!(!lowered.is_allow());
        let retry_at = said(&lowered, now.as_nanos()).retry_at.unwrap();
        assert!(!store.decide(&quota(4), Charge::ONE, at(retry_at - 1)).is_allow());
        assert!(store.decide(&quota(4), Charge::ONE, at(retry_at)).is_allow());
    }
    check(|limit| window(limit, HOUR));
    check(|limit| ring(limit, HOUR));
    check(|limit| exact(limit, 30));
}

/// Periods in seconds that end in the same minute, in the same hour, or far apart.
fn seconds() -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => 1..10u64,
        2 => 50..70u64,
        2 => 100..4_000u64,
        1 => Just(3_600),
        2 => Just(86_400),
        1 => 4_000..86_400u64,
    ]
}

/// No time is too late, with one exception: if only the hour of the last hits is known, the end of that
/// hour.
fn check_times(
    quota: &Quota,
    charge: Charge,
    said: &Said,
    exact: &Said,
) -> Result<(), TestCaseError> {
    if charge.hits().get() <= quota.capacity().into() {
        prop_assert!(said.retry_at <= exact.retry_at);
    } else {
        prop_assert!(said.retry_at >= exact.retry_at);
        prop_assert!(said.retry_at <= exact.retry_at.map(|whole_at| whole_at + HOUR));
    }
    prop_assert!(said.reset_at <= exact.reset_at);
    prop_assert!(said.keep_until >= exact.keep_until);
    prop_assert!(said.keep_until <= exact.keep_until + HOUR + 60 * SECOND);
    Ok(())
}

/// Agrees with the twin, at times at which the count is known.
fn agree_exactly(
    quota: &Quota,
    mut twin: LogModel,
    mut store: Store,
    times: impl Iterator<Item = (u64, Charge)>,
) -> Result<(), TestCaseError> {
    for (index, (now, charge)) in times.enumerate() {
        let (before, parts_before) = (twin.clone(), store.parts.clone());
        let decision = store.decide(quota, charge, at(now));
        // The last word of the root only records the last hit.
        let counts = |part: &[u64; 33]| part[..32].to_vec();
        let wrote = store
            .parts
            .iter()
            .any(|(label, part)| parts_before.get(label).map(counts) != Some(counts(part)));
        let expected = expected(&mut twin, charge, now);
        let retry_at = said(&decision, now).retry_at;
        if decision.is_allow() == expected.allowed
            && decision.remaining == expected.remaining
            && wrote == (twin.log != before.log)
        {
            if !before.may_be_out_of_reach(now) {
                check_times(quota, charge, &said(&decision, now), &expected)?;
            }
            continue;
        }
        prop_assert!(before.may_be_out_of_reach(now), "step {}: {:?}", index, decision);
        prop_assert_eq!(decision.remaining, 0);
        prop_assert!(retry_at.is_none_or(|retry_at| retry_at > now));
        prop_assert_eq!(decision.is_allow(), matches!(charge, Charge::Refund(_)));
        prop_assert!(!wrote, "nothing is taken, and nothing given back");
        twin = before;
    }
    Ok(())
}

#[test]
fn exact_agrees_with_a_log_whatever_the_clock_does() {
    runner(400)
        .run(&(limits(), seconds(), START, steps(charges())), |(limit, secs, start, steps)| {
            let mut now = start;
            let times = steps.iter().map(|step| {
                now = step.moves(now, secs * SECOND);
                (now, step.charge)
            });
            let store = Store::new(Expiry::Keep);
            agree_exactly(&exact(limit, secs), LogModel::new(limit, secs), store, times)
        })
        .unwrap();
}

#[test]
fn exact_agrees_with_a_log_when_parts_expire_and_the_clock_steps_back_by_a_minute() {
    runner(400)
        .run(&(limits(), seconds(), START, steps(charges())), |(limit, secs, start, steps)| {
            let (mut now, mut newest) = (start, start);
            let times = steps.iter().map(|step| {
                now = step.moves(now, secs * SECOND).max(newest - 60 * SECOND);
                newest = newest.max(now);
                (now, step.charge)
            });
            let store = Store::new(Expiry::Drop);
            agree_exactly(&exact(limit, secs), LogModel::new(limit, secs), store, times)
        })
        .unwrap();
}

#[test]
fn exact_never_admits_more_than_the_limit_in_any_period_of_time_stamps_in_any_order() {
    runner(400)
        .run(&(1u32..30, seconds(), START, steps(takes())), |(limit, secs, start, steps)| {
            let quota = exact(limit, secs);
            let (mut store, mut now, mut admitted) = (Store::new(Expiry::Keep), start, Vec::new());
            for step in &steps {
                now = step.moves(now, secs * SECOND);
                if store.decide(&quota, step.charge, at(now)).is_allow() {
                    admitted.push((now, step.charge.hits().get()));
                }
            }
            check_spans(&admitted, |span, hits| span > secs * SECOND || hits <= limit.into())
        })
        .unwrap();
}

#[test]
fn exact_denials_lead_to_the_exact_second_in_a_few_retries() {
    let strategy = (1u32..30, seconds(), START, forward_steps(), 1u64..30);
    runner(400)
        .run(&strategy, |(limit, secs, start, steps, hits)| {
            let (quota, mut twin) = (exact(limit, secs), LogModel::new(limit, secs));
            let (mut store, mut now) = (Store::new(Expiry::Drop), start);
            for step in &steps {
                now = step.moves(now, secs * SECOND);
                store.decide(&quota, step.charge, at(now));
                expected(&mut twin, step.charge, now);
            }
            let hits = hits.min(limit.into());
            let fits_at = first(&twin, now, |twin, at| twin.left(at) >= hits);
            let mut asks = 0;
            while now < fits_at {
                let denied = store.decide(&quota, take(hits), at(now));
                now = said(&denied, now).retry_at.unwrap();
                asks += 1;
            }
            prop_assert_eq!(now, fits_at);
            prop_assert!(asks <= 4, "{asks} asks");
            prop_assert!(store.decide(&quota, take(hits), at(now)).is_allow());
            Ok(())
        })
        .unwrap();
}

#[test]
fn the_last_day_at_23_30_33_is_counted_over_all_its_seams() {
    // 34 seconds, 30 minutes and 23 hours of today, 26 seconds and 29 minutes of yesterday; and the second
    // 23:30:33 of yesterday, so that no window of 24 hours exceeds the limit.
    let midnight = 20_000 * 86_400;
    let clock =
        |days: u64, h: u64, m: u64, s: u64| midnight - days * 86_400 + h * 3_600 + m * 60 + s;
    let seams = [
        (clock(1, 23, 30, 33), 1),
        (clock(1, 23, 30, 34), 2),
        (clock(1, 23, 30, 59), 4),
        (clock(1, 23, 31, 0), 8),
        (clock(1, 23, 59, 59), 16),
        (clock(0, 0, 0, 0), 32),
        (clock(0, 0, 59, 59), 64),
        (clock(0, 22, 59, 59), 128),
        (clock(0, 23, 0, 0), 256),
        (clock(0, 23, 29, 59), 512),
        (clock(0, 23, 30, 0), 1_024),
        (clock(0, 23, 30, 33), 2_048),
    ];
    let now = clock(0, 23, 30, 33);
    let quota = exact(10_000, 86_400);
    let used = |store: &Store, second: u64| {
        let now = at(second * SECOND + SECOND - 1);
        10_000 - store.clone().decide(&quota, Charge::PEEK, now).remaining
    };
    let mut store = Store::new(Expiry::Drop);
    // A hit that is a second too old does not count.
    store.decide(&quota, take(5_000), at((clock(1, 23, 30, 32) + 1) * SECOND - 1));
    let mut sum = 0;
    for (second, hits) in seams {
        assert!(store.decide(&quota, take(hits), at(second * SECOND)).is_allow());
        sum += hits;
    }
    assert_eq!(used(&store, now), sum);
    // They leave one by one, each a second after its day.
    for (second, hits) in seams {
        assert_eq!(used(&store, second + 86_400), sum);
        sum -= hits;
        assert_eq!(used(&store, second + 86_401), sum);
    }
}

#[test]
fn exact_reads_at_most_five_parts_and_the_root_first() {
    #[track_caller]
    fn check(secs: u64, at_second: u64, parts: usize) {
        let found = exact(1, secs).parts(at(at_second * SECOND));
        assert_eq!((found.labels().len(), found.labels()[0]), (parts, 0));
    }
    let noon = 20_000 * 86_400 + 12 * 3_600;
    check(30, noon + 59, 3);
    check(30, noon + 89, 4);
    check(30, noon + 29, 5);
    check(86_400, noon, 5);
    check(86_400, 0, 3);
}

#[test]
fn exact_denies_what_it_no_longer_knows() {
    let quota = exact(10, 3_600);
    let noon = START.start;
    let mut store = Store::new(Expiry::Keep);
    assert!(store.decide(&quota, take(10), at(noon)).is_allow());
    assert!(store.decide(&quota, take(10), at(noon + 30 * HOUR)).is_allow());
    // So far back that the first ten are needed, which the root has dropped.
    let denied = store.decide(&quota, Charge::ONE, at(noon - HOUR / 2));
    assert!(!denied.is_allow());
    let retry_at = said(&denied, noon - HOUR / 2).retry_at.unwrap();
    // Outside the ring, until its oldest hour begins.
    assert_eq!(retry_at, (noon / HOUR + 30 - 25) * HOUR);
    assert!(!store.decide(&quota, Charge::ONE, at(retry_at - 1)).is_allow());
    assert_eq!(store.decide(&quota, Charge::ONE, at(retry_at)).remaining, 0);
    assert!(!store.decide(&quota, Charge::ONE, at(retry_at)).is_allow(), "later hits count too");
    assert_eq!(store.decide(&quota, Charge::Refund(Hits::ONE), at(noon)).remaining, 0);
}

#[test]
fn exact_takes_whole_seconds_up_to_a_day() {
    #[track_caller]
    fn check(period: u64, allowed: bool) {
        let made = SlidingExact::new(1, Nanos::new(period));
        let expected = QuotaError::PeriodNotExact(Nanos::new(period));
        assert_eq!(made.err(), (!allowed).then_some(expected));
    }
    check(SECOND, true);
    check(86_400 * SECOND, true);
    check(86_401 * SECOND, false);
    check(SECOND / 2, false);
    check(SECOND * 3 / 2, false);
    check(2 * SECOND + 1, false);
}

#[test]
fn a_part_of_another_owner_is_empty() {
    let quota = exact(10, 60);
    let now = at(START.start);
    let mut state = vec![0; quota.parts(now).labels().len() * 33];
    assert!(decide(&mut state, &quota, take(4), now).is_allow());
    for part in 1..state.len() / 33 {
        state[part * 33] += 1;
    }
    // The root still holds the hour, but seconds decide about a window of a minute.
    assert_eq!(decide(&mut state, &quota, Charge::PEEK, now).remaining, 10);
    assert_eq!(decide(&mut state, &quota, take(3), now).remaining, 7);
}

#[test]
fn a_refund_makes_no_room_out_of_nothing() {
    #[track_caller]
    fn check(quota: &Quota) {
        let mut store = Store::new(Expiry::Drop);
        let now = at(DAY * 20_000 + 30 * SECOND);
        let refund = |hits| Charge::Refund(Hits::new(hits));
        for (charge, remaining) in [
            (refund(5), 10),
            (take(10), 0),
            (refund(0), 0),
            (refund(3), 3),
            (Charge::Force(Hits::new(9)), 0),
            (refund(u64::MAX), 10),
            (refund(1), 10),
        ] {
            let decision = store.decide(quota, charge, now);
            assert_eq!(decision.remaining, remaining, "{} {charge:?}", quota.algorithm());
            if charge == refund(5) {
                assert!(store.parts.is_empty(), "a new counter stays new");
            }
        }
    }
    check(&window(10, HOUR));
    check(&ring(10, HOUR));
    check(&exact(10, 3_600));
}

/// A debit larger than the remaining hits keeps a window closed for as long as its hits count, however few
/// were left. Further attempts add nothing.
#[test]
fn a_debit_larger_than_the_rest_counts_up_to_the_whole_limit() {
    #[track_caller]
    fn check(quota: &Quota, opens: u64) {
        let mut store = Store::new(Expiry::Drop);
        let begin = DAY * 20_000;
        let after = |secs: u64| at(begin + secs * SECOND);
        let force = |hits| Charge::Force(Hits::new(hits));
        // Ten hits, one each 6 s; then a debit that replaces only the oldest.
        for hit in 0..10 {
            assert!(store.decide(quota, Charge::ONE, after(hit * 6)).is_allow());
        }
        let first =
            (60..200).find(|secs| store.decide(quota, Charge::PEEK, after(*secs)).is_allow());
        let first = first.expect("the first hit fades");
        assert!(!store.decide(quota, force(1_000), after(first)).is_allow());
        for _ in 0..5 {
            assert!(!store.decide(quota, force(1_000), after(first)).is_allow());
        }
        let next =
            (first..).find(|secs| store.decide(quota, Charge::PEEK, after(*secs)).is_allow());
        assert_eq!(next.expect("it opens") - first, opens, "{}", quota.algorithm());
    }
    check(&window(10, 60 * SECOND), 60);
    check(&ring(10, 60 * SECOND), 61);
    check(&exact(10, 60), 61);
}

#[test]
fn a_corrupt_total_of_a_ring_is_found_when_it_wraps_around() {
    let quota = ring(100, 60 * SECOND);
    // 61 buckets of a second are the ring.
    let over = 61 * 28_000_000 * SECOND;
    let mut state = [0; 33];
    for second in 1..=10 {
        decide(&mut state, &quota, take(5), at(over - (11 - second) * SECOND));
    }
    #[track_caller]
    fn check(quota: &Quota, state: &[u64; 33], total: u64, now: u64, remaining: u64) {
        let mut state = *state;
        state[1] = total;
        let peeked = decide(&mut state, quota, Charge::PEEK, at(now));
        assert_eq!(peeked.remaining, remaining, "total {total}");
    }
    for total in [0, 1, 77, u64::MAX] {
        check(&quota, &state, total, over, 50);
    }
    // Until then the total is believed, unless it is zero.
    check(&quota, &state, 77, over - SECOND, 23);
    check(&quota, &state, 0, over - SECOND, 50);
    check(&quota, &state, u64::MAX, over - SECOND, 0);
    // Hits that no bucket has leave with the newest bucket.
    let mut alone = [0; 33];
    (alone[0], alone[1]) = (over / SECOND + 1, 100);
    let denied = said(&decide(&mut alone, &quota, take(1), at(over)), over);
    let leave = over + 61 * SECOND;
    assert_eq!((denied.allowed, denied.retry_at, denied.reset_at), (false, Some(leave), leave));
}

/// States from before last hits were recorded.
#[test]
fn a_last_hit_that_was_not_recorded_is_the_start_of_what_counts_it() {
    let now = 20_000 * DAY + HOUR;
    for (quota, start) in [
        (window(5, DAY), now - HOUR),
        (ring(5, HOUR), now),
        (ring(5, 2 * DAY), now / (2 * HOUR) * (2 * HOUR)),
    ] {
        let mut state = [0; 33];
        let last = |state: &[u64; 33]| quota.last_hit(state, at(now + 9)).map(Timestamp::as_nanos);
        assert_eq!(last(&state), None, "{quota:?}");
        decide(&mut state, &quota, take(2), at(now + 5_000_000));
        assert_eq!(last(&state), Some(now + 5_000_000), "{quota:?}");
        // The last word of either state; below a day, its upper half.
        match quota {
            Quota::SlidingWindow(_) => state[3] = 0,
            _ => state[32] &= if start == now { u64::from(u32::MAX) } else { 0 },
        }
        assert_eq!(last(&state), Some(start), "{quota:?}");
        decide(&mut state, &quota, Charge::Refund(Hits::new(2)), at(now + 9));
        assert_eq!(last(&state), None, "{quota:?}");
    }
    assert_eq!(window(5, DAY).last_hit(&[0, 3, 2, 0], at(now)), None, "of a damaged state");
}

#[test]
fn no_state_and_no_time_make_a_decision_fail() {
    let quotas = prop_oneof![
        Just(window(u32::MAX, 3_660 * DAY)),
        Just(window(7, 1_000_000)),
        Just(ring(u32::MAX, 3_660 * DAY)),
        Just(ring(7, 1_000_000)),
        Just(exact(u32::MAX, 86_400)),
        Just(exact(7, 1)),
        Just(reset_daily(window(u32::MAX, 3_660 * DAY), 10_800)),
        Just(reset_daily(ring(u32::MAX, 3_660 * DAY), 10_800)),
        Just(reset_daily(ring(7, 1_000_000), 10_800)),
        Just(reset_daily(exact(7, 86_400), 10_800)),
    ];
    let nows = prop_oneof![any::<u64>(), Just(0u64), Just(u64::MAX)];
    let charge = (0..3, any::<u64>()).prop_map(|(kind, hits)| match kind {
        0 => Charge::Take(Hits::new(hits)),
        1 => Charge::Force(Hits::new(hits)),
        _ => Charge::Refund(Hits::new(hits)),
    });
    // Arbitrary words, some small numbers, and some valid heads.
    let words = prop::collection::vec(
        prop_oneof![any::<u64>(), 0u64..5, Just(u64::MAX), Just(0u64)],
        33 * 5,
    );
    runner(3_000)
        .run(&(quotas, words, nows, charge, 0..3u64), |(quota, mut state, now, charge, near)| {
            let hours = now / HOUR;
            if near > 0 {
                // Parts with valid owners.
                for (part, own) in
                    [hours + near, hours + 1, now / (60 * SECOND) + 1].iter().enumerate()
                {
                    state[part * 33] = *own;
                }
            }
            for _ in 0..3 {
                let decision = decide(&mut state, &quota, charge, at(now));
                prop_assert!(decision.remaining <= u64::from(quota.capacity()));
                let _ = quota.last_hit(&state, at(now));
                prop_assert!(quota.spendable_until(&state, at(now)) >= at(now));
            }
            Ok(())
        })
        .unwrap();
}
