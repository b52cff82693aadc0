//! The token bucket agrees with its slow twin on random traces with clock steps, and keeps its bound.

use crate::slow_buckets::BucketModel;
use crate::slow_contract::{self, Model};
use crate::slow_contract::{
    START, at, charges, check_spans, delays, expected, first, forward_steps, periods, runner, said,
    spent_at, steps,
};
use proptest::prelude::*;
use tidegate_core::{Charge, Hits, Nanos, Quota, TokenBucket, decide};

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400 * SECOND;

fn bucket(requests: u32, period: u64, burst: u32, initial: u32) -> Quota {
    Quota::TokenBucket(TokenBucket::new(requests, Nanos::new(period), burst, initial).unwrap())
}

/// Requests, burst and initial: small ones, and ones whose credits need two words.
fn sizes() -> impl Strategy<Value = (u32, u32, u32)> {
    let small = (1u32..20, 1u32..30, 0u32..60);
    let large = (1u32..=u32::MAX, 1u32..=u32::MAX, any::<u32>());
    prop_oneof![3 => small, 1 => large]
        .prop_map(|(requests, burst, initial)| (requests, burst, initial.min(burst)))
}

#[test]
fn its_decisions_are_the_twins() {
    // Up to a second, so that no bucket takes longer to fill than a timestamp can represent.
    let large_periods = periods().prop_map(|period| period.min(SECOND));
    runner(400)
        .run(
            &(sizes(), periods(), large_periods, START, steps(charges())),
            |((requests, burst, initial), period, short, start, steps)| {
                let period = if burst < 100 { period } else { short };
                let quota = bucket(requests, period, burst, initial);
                let mut twin = BucketModel::new(requests, period, burst, initial);
                let (mut state, mut now) = ([0; 4], start);
                for (index, step) in steps.iter().enumerate() {
                    now = step.moves(now, period);
                    let decision = decide(&mut state, &quota, step.charge, at(now));
                    let expected = expected(&mut twin, step.charge, now);
                    prop_assert_eq!(said(&decision, now), expected, "step {} {:?}", index, step);
                }
                Ok(())
            },
        )
        .unwrap();
}

#[test]
fn large_credits_are_as_exact_as_small_ones() {
    // Twins by scale: a bucket of a million times the tokens, with a million times the requests and charged
    // a million times the hits, decides the same. One fits into a word, the other does not.
    const SCALE: u64 = 1_000_000;
    let strategy = (1u32..20, DAY / 2..DAY * 2, 1u32..100, START, steps(charges()));
    runner(300)
        .run(&strategy, |(requests, period, burst, start, steps)| {
            let small = bucket(requests, period, burst, burst);
            let (requests, burst) = (requests * SCALE as u32, burst * SCALE as u32);
            let large = bucket(requests, period, burst, burst);
            let (mut small_state, mut large_state, mut now) = ([0; 4], [0; 4], start);
            for step in &steps {
                now = step.moves(now, period);
                let scaled = |hits: Hits| Hits::new(hits.get().max(1).saturating_mul(SCALE));
                let (one, million) = match step.charge {
                    Charge::Take(hits) => (Charge::Take(hits), Charge::Take(scaled(hits))),
                    // Forced charges take whole tokens, which differ between the scales.
                    Charge::Force(hits) => (Charge::Take(hits), Charge::Take(scaled(hits))),
                    Charge::Refund(hits) => (Charge::Refund(hits), Charge::Refund(scaled(hits))),
                };
                if one.hits() == Hits::PEEK {
                    continue;
                }
                let one = decide(&mut small_state, &small, one, at(now));
                let million = decide(&mut large_state, &large, million, at(now));
                prop_assert_eq!(one.outcome, million.outcome);
                prop_assert_eq!(one.remaining, million.remaining / SCALE);
                prop_assert_eq!(one.keep_until, million.keep_until);
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn it_never_passes_burst_plus_rate_in_any_span() {
    let strategy = (1u32..20, periods(), 1u32..30, START, forward_steps());
    runner(300)
        .run(&strategy, |(requests, period, burst, start, steps)| {
            let quota = bucket(requests, period, burst, burst);
            let (mut state, mut now, mut admitted) = ([0; 4], start, Vec::new());
            for step in &steps {
                now = step.moves(now, period);
                if decide(&mut state, &quota, step.charge, at(now)).is_allow() {
                    admitted.push((now, step.charge.hits().get()));
                }
            }
            check_spans(&admitted, |span, hits| {
                let (span, period) = (u128::from(span), u128::from(period));
                let bound = u128::from(burst) * period + u128::from(requests) * span;
                u128::from(hits) * period <= bound
            })
        })
        .unwrap();
}

/// Hits within a span, against the burst and what refills in the span and the time of a lease.
fn fits_lease_bound(
    requests: u32,
    period: u64,
    burst: u32,
    ttl: u64,
    span: u64,
    hits: u64,
) -> bool {
    let (span, period) = (u128::from(span) + u128::from(ttl), u128::from(period));
    u128::from(hits) * period <= u128::from(burst) * period + u128::from(requests) * span
}

#[test]
fn hits_charged_ahead_keep_the_bound_with_the_time_of_a_lease() {
    let strategy = (
        1u32..20,
        periods(),
        1u32..30,
        START,
        steps(slow_contract::takes()),
        delays(),
        1u64..3_000,
    );
    runner(400)
        .run(&strategy, |(requests, period, burst, start, steps, delays, ttl_mils)| {
            let (quota, ttl) = (bucket(requests, period, burst, burst), period / 1_000 * ttl_mils);
            let (mut state, mut now, mut newest, mut spent) = ([0; 4], start, 0, Vec::new());
            for (step, mils) in steps.iter().zip(delays) {
                now = step.moves(now, period);
                if decide(&mut state, &quota, step.charge, at(now)).is_allow() {
                    // If the clock steps back, time stands still until it has caught up.
                    newest = now.max(newest);
                    prop_assert_eq!(quota.spendable_until(&state, at(now)), at(u64::MAX));
                    spent.push((spent_at(newest, newest + ttl, mils), step.charge.hits().get()));
                }
            }
            check_spans(&spent, |span, hits| {
                fits_lease_bound(requests, period, burst, ttl, span, hits)
            })
        })
        .unwrap();
}

/// Tokens that were charged, and may be spent for a while.
struct Held {
    tokens: u64,
    since: u64,
    until: u64,
}

/// Holders charge, spend and return at random, at times of a clock that may step back.
#[test]
fn returned_tokens_keep_that_bound() {
    let kinds = prop::collection::vec((0..6u8, any::<prop::sample::Index>(), 1u64..20), 60);
    let strategy = (1u32..20, periods(), 1u32..30, START, steps(charges()), kinds, 1u64..3_000);
    runner(600)
        .run(&strategy, |(requests, period, burst, start, steps, kinds, ttl_mils)| {
            let (quota, ttl) = (bucket(requests, period, burst, burst), period / 1_000 * ttl_mils);
            let (mut state, mut now) = ([0; 4], start);
            let (mut held, mut spent) = (Vec::<Held>::new(), Vec::new());
            for (step, (kind, index, hits)) in steps.iter().zip(kinds) {
                now = step.moves(now, period);
                // The bucket's own time.
                let present = quota.effective_time(&state, at(now)).as_nanos();
                held.retain(|held| held.until > present && held.tokens > 0);
                let charge = Charge::Take(Hits::new(hits));
                if kind < 2 || held.is_empty() {
                    if decide(&mut state, &quota, charge, at(now)).is_allow() {
                        let since = quota.effective_time(&state, at(now)).as_nanos();
                        held.push(Held { tokens: hits, since, until: since + ttl });
                    }
                    continue;
                }
                let len = held.len();
                let held = &mut held[index.index(len)];
                let tokens = hits.min(held.tokens);
                if kind < 4 {
                    spent.push((present, tokens));
                } else {
                    let worth = quota.returnable(&state, held.tokens, at(held.since), at(now));
                    prop_assert!(worth <= held.tokens);
                    let refund = Charge::Refund(Hits::new(worth.min(tokens)));
                    decide(&mut state, &quota, refund, at(now));
                }
                held.tokens -= tokens;
            }
            check_spans(&spent, |span, hits| {
                fits_lease_bound(requests, period, burst, ttl, span, hits)
            })
        })
        .unwrap();
}

/// A holder kept its tokens while the bucket refilled in their place, returned them with its next charge,
/// and so gathered 140 at one time where the bound is 120.
#[test]
fn tokens_cannot_accumulate_through_returns_and_new_charges() {
    // 10 a second, at most 100; leases of two seconds.
    let quota = bucket(10, SECOND, 100, 100);
    let mut state = [0; 4];
    let mut charge = |hits: u64, charge: fn(Hits) -> Charge, secs: u64| {
        decide(&mut state, &quota, charge(Hits::new(hits)), at(secs * SECOND)).remaining
    };
    charge(20, Charge::Take, 1_000);
    assert_eq!(charge(100, Charge::Take, 1_002), 0, "full again");
    let worth = |held, secs| quota.returnable(&[0; 4], held, at(1_000 * SECOND), at(secs * SECOND));
    assert_eq!(worth(20, 1_002), 0, "the twenty have been refilled");
    assert_eq!(worth(20, 1_001), 10);
    assert_eq!(worth(25, 1_000), 25);
    let half = quota.returnable(&[0; 4], 20, at(1_000 * SECOND), at(1_000 * SECOND + SECOND / 20));
    assert_eq!(half, 19, "half a token is a token");
    // Behind a clock that was ahead, the bucket has refilled by that.
    let ahead = [1_002 * SECOND, 0, 0, 0];
    assert_eq!(quota.returnable(&ahead, 20, at(1_000 * SECOND), at(1_000 * SECOND)), 0);
    assert_eq!(quota.effective_time(&ahead, at(SECOND)), at(1_002 * SECOND));
}

#[test]
fn a_clock_that_steps_back_refills_nothing_twice() {
    let strategy = (1u32..20, periods(), 1u32..30, START, steps(slow_contract::takes()));
    runner(300)
        .run(&strategy, |(requests, period, burst, start, steps)| {
            let quota = bucket(requests, period, burst, burst);
            let (mut state, mut now) = ([0; 4], start);
            let (mut newest, mut first_take, mut admitted) = (0, None, 0u128);
            for step in &steps {
                now = step.moves(now, period);
                if decide(&mut state, &quota, step.charge, at(now)).is_allow() {
                    first_take.get_or_insert(now);
                    newest = newest.max(now);
                    admitted += u128::from(step.charge.hits().get());
                }
            }
            // The refill of the whole span that the clock has ever covered.
            let span = u128::from(newest.saturating_sub(first_take.unwrap_or(newest)));
            let bound = u128::from(burst) * u128::from(period) + u128::from(requests) * span;
            prop_assert!(admitted * u128::from(period) <= bound);
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_boundary_makes_no_difference() {
    // A hundred a minute; a fixed window admits 200 around the minute.
    let period = 60 * SECOND;
    let quota = bucket(100, period, 100, 100);
    let boundary = period * 30_000_000;
    let mut state = [0; 4];
    let mut flood = |now| {
        (0..1_000).filter(|_| decide(&mut state, &quota, Charge::ONE, at(now)).is_allow()).count()
    };
    assert_eq!(flood(boundary - period / 100), 100);
    assert_eq!(flood(boundary + period / 100), 2);
}

#[test]
fn a_denied_charge_succeeds_at_its_retry_after_and_not_before() {
    let strategy = ((1u32..20, 1u32..30, 0u32..30), periods(), START, steps(charges()));
    runner(300)
        .run(&strategy, |((requests, burst, initial), period, start, steps)| {
            let quota = bucket(requests, period, burst, initial.min(burst));
            let (mut state, mut now) = ([0; 4], start);
            for step in &steps {
                now = step.moves(now, period);
                let decision = decide(&mut state, &quota, step.charge, at(now));
                let Some(retry_at) = said(&decision, now).retry_at else { continue };
                if step.charge.hits().get() > burst.into() {
                    let whole = decide(&mut state.clone(), &quota, Charge::PEEK, at(retry_at));
                    prop_assert_eq!(whole.remaining, u64::from(burst));
                    continue;
                }
                let again = |now| {
                    let take = Charge::Take(step.charge.hits());
                    decide(&mut state.clone(), &quota, take, at(now)).is_allow()
                };
                prop_assert!(!again(retry_at - 1));
                prop_assert!(again(retry_at));
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_state_past_its_keep_until_decides_as_a_new_one() {
    let strategy = ((1u32..20, 1u32..30), periods(), START, steps(charges()), charges());
    runner(300)
        .run(&strategy, |((requests, burst), period, start, steps, last)| {
            let quota = bucket(requests, period, burst, burst);
            let (mut state, mut now) = ([0; 4], start);
            for step in &steps {
                now = step.moves(now, period);
                let kept = decide(&mut state, &quota, step.charge, at(now)).keep_until;
                let with_state = decide(&mut state.clone(), &quota, last, kept);
                prop_assert_eq!(with_state, decide(&mut [0; 4], &quota, last, kept));
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_bucket_that_does_not_start_full_is_full_for_a_period_before_it_is_forgotten() {
    let mut twin = BucketModel::new(2, SECOND, 10, 1);
    let quota = bucket(2, SECOND, 10, 1);
    let mut state = [0; 4];
    let now = 1_000 * SECOND;
    let kept = decide(&mut state, &quota, Charge::ONE, at(now)).keep_until.as_nanos();
    expected(&mut twin, Charge::ONE, now);
    assert_eq!(first(&twin, now, |twin, at| twin.left(at) == 10) + SECOND, kept);
    assert_eq!(decide(&mut state, &quota, Charge::PEEK, at(kept - SECOND)).remaining, 10);
    assert_eq!(decide(&mut [0; 4], &quota, Charge::PEEK, at(kept)).remaining, 1);
}

#[test]
fn a_refund_makes_no_tokens_out_of_nothing() {
    #[track_caller]
    fn check(initial: u32, charges: &[(Charge, u64)]) {
        let quota = bucket(1, 3_600 * SECOND, 10, initial);
        let mut state = [0; 4];
        for (charge, remaining) in charges {
            let decision = decide(&mut state, &quota, *charge, at(5_000 * SECOND));
            assert_eq!(decision.remaining, *remaining, "{charge:?}");
        }
    }
    let (take, refund) = (|n| Charge::Take(Hits::new(n)), |n| Charge::Refund(Hits::new(n)));
    check(10, &[(refund(5), 10), (take(10), 0), (refund(3), 3), (refund(u64::MAX), 10)]);
    check(4, &[(refund(5), 4), (take(4), 0), (refund(0), 0), (refund(2), 2)]);

    let mut state = [0; 4];
    decide(&mut state, &bucket(1, SECOND, 10, 4), refund(7), at(SECOND));
    assert_eq!(state, [0; 4], "a new counter stays new");
}

#[test]
fn a_bucket_that_is_lowered_is_full_if_it_held_more() {
    // 2^64 credits and three tokens, where the new bucket has ten.
    let mut state = [5_000 * SECOND, 3 * SECOND, 1, 0];
    let quota = bucket(1, SECOND, 10, 10);
    let decision = decide(&mut state, &quota, Charge::ONE, at(5_000 * SECOND));
    assert!(decision.is_allow());
    assert_eq!(decision.remaining, 9);
}

/// The part of a debit that a bucket does not hold becomes debt: at most a burst, and not more after
/// retries.
#[test]
fn a_debit_larger_than_the_level_is_owed_once() {
    let quota = bucket(60, 60 * SECOND, 10, 10);
    let force = |hits| Charge::Force(Hits::new(hits));
    let mut state = [0; 4];
    let mut ask = |charge, secs: u64| {
        let decision = decide(&mut state, &quota, charge, at((5_000 + secs) * SECOND));
        (decision.is_allow(), decision.remaining, decision.wait(at((5_000 + secs) * SECOND)))
    };
    let secs = Nanos::from_secs;
    assert_eq!(ask(force(6), 0), (true, 4, secs(1)));
    // It counts in full: six are owed.
    assert_eq!(ask(force(10), 0), (false, 0, secs(16)));
    assert_eq!(ask(Charge::PEEK, 0), (false, 0, secs(7)));
    assert_eq!(ask(force(1_000), 3), (false, 0, secs(13)));
    assert_eq!(ask(Charge::PEEK, 6), (false, 0, secs(1)));
    assert_eq!(ask(Charge::PEEK, 7), (true, 1, secs(1)));
    // A debit larger than the burst counts as a burst.
    assert_eq!(ask(force(u64::MAX), 7), (false, 0, secs(19)));
    assert_eq!(ask(Charge::ONE, 16), (false, 0, secs(1)));
    assert_eq!(ask(Charge::ONE, 17), (true, 0, secs(1)));
}

#[test]
fn no_state_and_no_time_make_a_decision_fail() {
    let quotas = prop_oneof![
        Just(bucket(1, 3_660 * DAY, u32::MAX, 1)),
        Just(bucket(u32::MAX, 1_000_000, 1, 0)),
        Just(bucket(7, 60 * SECOND, 100, 100)),
    ];
    // Half of them with credits that fit into one word.
    let words = (any::<[u64; 4]>(), 0u64..2)
        .prop_map(|([last, low, high, rest], two)| [last, low, high.wrapping_mul(two), rest]);
    let nows = prop_oneof![any::<u64>(), Just(0u64), Just(u64::MAX)];
    let charge = (0..3, any::<u64>()).prop_map(|(kind, hits)| match kind {
        0 => Charge::Take(Hits::new(hits)),
        1 => Charge::Force(Hits::new(hits)),
        _ => Charge::Refund(Hits::new(hits)),
    });
    runner(2_000)
        .run(&(quotas, words, nows, charge), |(quota, mut state, now, charge)| {
            for _ in 0..3 {
                let decision = decide(&mut state, &quota, charge, at(now));
                prop_assert!(decision.remaining <= u64::from(quota.capacity()));
                let hits = charge.hits().get();
                prop_assert!(quota.returnable(&state, hits, at(now / 2), at(now)) <= hits);
            }
            Ok(())
        })
        .unwrap();
}
