//! Short runs of every algorithm: no promise may break.

use tidegate_sim::limits::Algorithm;
use tidegate_sim::{Plan, Tally, run};

/// Runs some scenarios of an algorithm.
#[track_caller]
fn check(algorithm: Algorithm) {
    let mut all = Tally::default();
    for seed in 1..=3 {
        match run(Plan { algorithm, seed, steps: 8_000, mutation: None }) {
            Ok(outcome) => all += outcome.tally,
            Err(failure) => panic!("{failure}"),
        }
    }
    // Otherwise it would have checked nothing.
    for count in [all.admitted, all.denied, all.local, all.leases, all.asks, all.debits] {
        assert!(count > 0, "{all:?}");
    }
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

#[test]
fn a_seed_is_one_run() {
    let plan = Plan { algorithm: Algorithm::FixedWindow, seed: 5, steps: 10_000, mutation: None };
    let digest = || run(plan).map(|outcome| (outcome.digest, outcome.tally)).unwrap();
    assert_eq!(digest(), digest());
}
