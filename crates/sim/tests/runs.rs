//! Short runs of every algorithm: no promise may break.

use tidegate_sim::limits::Algorithm;
use tidegate_sim::{Plan, Tally, Tiers, run};

/// Runs some scenarios of an algorithm.
#[track_caller]
fn check(algorithm: Algorithm) {
    let all = run_some(Tiers::Two, algorithm);
    assert!(all.debits > 0, "{all:?}");
    let all = run_some(Tiers::Three, algorithm);
    assert!(all.commands > 0, "{all:?}");
}

fn run_some(tiers: Tiers, algorithm: Algorithm) -> Tally {
    let mut all = Tally::default();
    for seed in 1..=3 {
        match run(Plan { tiers, algorithm, seed, steps: 8_000, mutation: None }) {
            Ok(outcome) => all += outcome.tally,
            Err(failure) => panic!("{failure}"),
        }
    }
    // Otherwise it would have checked nothing.
    for count in [all.admitted, all.denied, all.local, all.leases, all.asks] {
        assert!(count > 0, "{all:?}");
    }
    all
}

#[test]
fn fixed_window_holds() {
    check(Algorithm::FixedWindow);
}

#[test]
fn fixed_window_with_borrow_holds() {
    check(Algorithm::Borrow);
}

#[test]
fn fixed_window_in_a_time_zone_holds() {
    check(Algorithm::Zone);
}

#[test]
fn first_hit_window_holds() {
    check(Algorithm::FirstHitWindow);
}

#[test]
fn token_bucket_holds() {
    check(Algorithm::TokenBucket);
}

#[test]
fn sliding_window_holds() {
    check(Algorithm::SlidingWindow);
}

#[test]
fn sliding_buckets_hold() {
    check(Algorithm::SlidingBuckets);
}

#[test]
fn exact_sliding_window_holds() {
    check(Algorithm::Exact);
}

/// Symptom: a hit that its call was charged for had no token. Cause: an answer arrived in the turn in which another call
/// had failed, so the filter left its requests to a wake, and the ledger had already forgotten what the answer granted.
#[test]
fn requests_that_an_answer_leaves_to_a_wake_have_its_tokens() {
    let (tiers, algorithm) = (Tiers::Three, Algorithm::TokenBucket);
    let plan = Plan { tiers, algorithm, seed: 7, steps: 13_000, mutation: None };
    run(plan).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn a_seed_is_one_run() {
    for tiers in [Tiers::Two, Tiers::Three] {
        let (algorithm, seed) = (Algorithm::FixedWindow, 5);
        let plan = Plan { tiers, algorithm, seed, steps: 10_000, mutation: None };
        let digest = || run(plan).map(|outcome| (outcome.digest, outcome.tally)).unwrap();
        assert_eq!(digest(), digest(), "{tiers:?}");
    }
}
