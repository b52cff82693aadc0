//! Every algorithm agrees with its slow twin on random traces, clock steps included, and keeps
//! the bound it promises.

mod slow;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use slow::{FixedWindowTwin, Said, TokenBucketTwin};
use tidegate_core::{
    Decision, FixedWindow, Hits, Nanos, Quota, State, Timestamp, TokenBucket, decide,
};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// A step of a trace: the clock moves (mostly forward, sometimes back), then an ask comes.
#[derive(Debug, Clone)]
struct Step {
    clock_ms: i64,
    hits: u64,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let clock_ms = prop_oneof![
        6 => 0i64..700,
        2 => 700i64..5_000,
        1 => -3_000i64..0,
        1 => 100_000i64..10_000_000,
    ];
    let hits = prop_oneof![1 => Just(0u64), 8 => 1u64..4, 1 => 4u64..50];
    prop::collection::vec(
        (clock_ms, hits).prop_map(|(clock_ms, hits)| Step { clock_ms, hits }),
        1..120,
    )
}

fn periods() -> impl Strategy<Value = Nanos> {
    // Odd lengths, so that nothing divides evenly.
    prop_oneof![Just(Nanos::from_secs(1)), (1_000_000u64..3_000_000_000).prop_map(Nanos::new),]
}

/// Seeded, so that a failure here is a failure everywhere, wasm32 included.
fn runner() -> TestRunner {
    let config = Config {
        cases: 400,
        rng_seed: RngSeed::Fixed(20_261_121),
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new(config)
}

fn moved(now: Timestamp, step: &Step) -> Timestamp {
    Timestamp::from_nanos(now.as_nanos().saturating_add_signed(step.clock_ms * 1_000_000))
}

fn said(decision: &Decision) -> Said {
    Said { allowed: decision.is_allow(), remaining: decision.remaining }
}

fn agree(
    quota: &Quota,
    start: u64,
    steps: &[Step],
    mut twin: impl FnMut(Hits, Timestamp) -> Said,
) -> Result<(), TestCaseError> {
    let mut state = State::default();
    let mut now = Timestamp::from_nanos(start);
    for (index, step) in steps.iter().enumerate() {
        now = moved(now, step);
        let hits = Hits::new(step.hits);
        let decision = decide(&mut state, quota, hits, now);
        prop_assert_eq!(said(&decision), twin(hits, now), "step {} at {:?}", index, now);
    }
    Ok(())
}

const START: std::ops::Range<u64> = 1_700_000_000_000_000_000..1_900_000_000_000_000_000;

#[test]
fn fixed_window_agrees_with_its_twin() {
    runner()
        .run(&(0u32..20, periods(), START, steps()), |(requests, period, start, steps)| {
            let quota = Quota::FixedWindow(FixedWindow::new(requests, period).unwrap());
            let mut twin = FixedWindowTwin::new(requests, period);
            agree(&quota, start, &steps, |hits, now| twin.decide(hits, now))
        })
        .unwrap();
}

#[test]
fn token_bucket_agrees_with_its_twin() {
    let strategy = (1u32..20, periods(), 1u32..30, 0u32..30, START, steps());
    runner()
        .run(&strategy, |(requests, period, burst, initial, start, steps)| {
            let initial = initial.min(burst);
            let bucket = TokenBucket::new(requests, period, burst, initial).unwrap();
            let mut twin = TokenBucketTwin::new(requests, period, burst, initial);
            agree(&Quota::TokenBucket(bucket), start, &steps, |hits, now| twin.decide(hits, now))
        })
        .unwrap();
}

#[test]
fn token_bucket_never_passes_burst_plus_rate_in_any_span() {
    let strategy = (1u32..20, periods(), 1u32..30, START, steps());
    runner()
        .run(&strategy, |(requests, period, burst, start, steps)| {
            let quota =
                Quota::TokenBucket(TokenBucket::new(requests, period, burst, burst).unwrap());
            let mut state = State::default();
            let mut now = Timestamp::from_nanos(start);
            let mut admitted: Vec<(u64, u64)> = Vec::new();
            for step in steps.iter().filter(|step| step.clock_ms >= 0) {
                now = moved(now, step);
                if decide(&mut state, &quota, Hits::new(step.hits), now).is_allow() {
                    admitted.push((now.as_nanos(), step.hits));
                }
            }
            for (first, (from, _)) in admitted.iter().enumerate() {
                let mut sum = 0u128;
                for (to, hits) in &admitted[first..] {
                    sum += u128::from(*hits);
                    let span = u128::from(to - from);
                    let period = u128::from(period.as_nanos());
                    let bound = u128::from(burst) * period + u128::from(requests) * span;
                    prop_assert!(sum * period <= bound, "{sum} hits in {span} ns");
                }
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_denied_ask_succeeds_at_its_retry_after_and_not_before() {
    let strategy = (1u32..20, periods(), 1u32..30, 0u32..30, START, steps(), any::<bool>());
    runner()
        .run(&strategy, |(requests, period, burst, initial, start, steps, bucket)| {
            let (quota, most) = if bucket {
                let bucket = TokenBucket::new(requests, period, burst, initial.min(burst)).unwrap();
                (Quota::TokenBucket(bucket), u64::from(burst))
            } else {
                let window = FixedWindow::new(requests, period).unwrap();
                (Quota::FixedWindow(window), u64::from(requests))
            };
            let mut state = State::default();
            let mut now = Timestamp::from_nanos(start);
            for step in &steps {
                now = moved(now, step);
                let hits = Hits::new(step.hits.min(most));
                let decision = decide(&mut state, &quota, hits, now);
                if decision.is_allow() {
                    continue;
                }
                let wait = decision.wait(now).as_nanos();
                let mut early = state;
                let before = Timestamp::from_nanos(now.as_nanos() + wait - 1);
                prop_assert!(!decide(&mut early, &quota, hits, before).is_allow());
                let mut later = state;
                let after = Timestamp::from_nanos(now.as_nanos() + wait);
                prop_assert!(decide(&mut later, &quota, hits, after).is_allow());
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_state_past_its_keep_until_decides_as_a_new_one() {
    let strategy = (1u32..20, periods(), 1u32..30, START, steps(), any::<bool>());
    runner()
        .run(&strategy, |(requests, period, burst, start, steps, bucket)| {
            let quota = if bucket {
                Quota::TokenBucket(TokenBucket::new(requests, period, burst, burst).unwrap())
            } else {
                Quota::FixedWindow(FixedWindow::new(requests, period).unwrap())
            };
            let mut state = State::default();
            let mut now = Timestamp::from_nanos(start);
            for step in &steps {
                now = moved(now, step);
                let kept = decide(&mut state, &quota, Hits::new(step.hits), now).keep_until;
                let (mut kept_state, mut new_state) = (state, State::default());
                let kept = kept.max(now);
                let with_state = decide(&mut kept_state, &quota, Hits::ONE, kept);
                let without = decide(&mut new_state, &quota, Hits::ONE, kept);
                prop_assert_eq!(with_state, without);
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn no_state_bytes_and_no_time_make_a_decision_fail() {
    let strategy = (any::<[u64; 4]>(), any::<u64>(), any::<u64>(), any::<bool>());
    runner()
        .run(&strategy, |(words, now, hits, bucket)| {
            let quota = if bucket {
                let period = Nanos::from_secs(3_660 * 86_400);
                Quota::TokenBucket(TokenBucket::new(1, period, u32::MAX, 1).unwrap())
            } else {
                Quota::FixedWindow(FixedWindow::new(u32::MAX, Nanos::from_secs(60)).unwrap())
            };
            let mut state = State(words);
            let now = Timestamp::from_nanos(now);
            let decision = decide(&mut state, &quota, Hits::new(hits), now);
            prop_assert!(decision.remaining <= u64::from(u32::MAX));
            Ok(())
        })
        .unwrap();
}
