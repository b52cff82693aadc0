//! The simulator can fail: each deliberate fault is found within a bounded number of events.

use tidegate_sim::limits::Algorithm;
use tidegate_sim::{Mutation, Plan, Tiers, run};

/// Runs scenarios with a fault until one fails; the message must be about that fault.
#[track_caller]
fn check(mutation: Mutation, algorithm: Algorithm, says: &[&str]) {
    check_in(Tiers::Two, mutation, algorithm, says);
}

/// The same where sidecars share their counters. Whichever of the scenario's limits it breaks first.
#[track_caller]
fn check_shared(mutation: Mutation, algorithm: Algorithm) {
    let says = ["in the period that ends", "in window", "in the window", "than burst and rate"];
    check_in(Tiers::Three, mutation, algorithm, &says);
}

#[track_caller]
fn check_in(tiers: Tiers, mutation: Mutation, algorithm: Algorithm, says: &[&str]) {
    for seed in 1..=40 {
        let plan = Plan { tiers, algorithm, seed, steps: 10_000, mutation: Some(mutation) };
        if let Err(failure) = run(plan) {
            let broken = &failure.broken;
            assert!(says.iter().any(|part| broken.contains(part)), "{broken}");
            return;
        }
    }
    panic!("{mutation:?} was not found");
}

#[test]
fn a_lease_spent_after_its_end_is_found() {
    let says = ["without a token", "of them spent"];
    check(Mutation::LeasesLast, Algorithm::TokenBucket, &says);
}

#[test]
fn a_return_that_counts_twice_is_found() {
    check(Mutation::ReturnsCountTwice, Algorithm::FixedWindow, &["given back to it of"]);
}

#[test]
fn tokens_spent_by_two_workers_are_found() {
    let says = ["without a token", "of them spent"];
    check(Mutation::WritesAlwaysSucceed, Algorithm::FixedWindow, &says);
}

#[test]
fn a_denial_that_is_ignored_is_found() {
    check(Mutation::DenialsAreIgnored, Algorithm::SlidingWindow, &["without a token"]);
}

#[test]
fn a_token_out_of_nowhere_is_found() {
    let says = ["without a token", "of them spent"];
    check(Mutation::LeasesGrow, Algorithm::FixedWindow, &says);
}

#[test]
fn counts_that_a_restart_forgets_are_found() {
    // Whichever of the scenario's limits it breaks first.
    let says = ["in the period that ends", "in window", "in the window", "than burst and rate"];
    check(Mutation::CountsAreForgotten, Algorithm::SlidingBuckets, &says);
}

#[test]
fn a_debit_that_counts_again_is_found() {
    check(Mutation::DebitsCountTwice, Algorithm::FixedWindow, &["a repeated debit counted"]);
}

#[test]
fn a_debit_that_is_answered_and_not_counted_is_found() {
    check(Mutation::DebitsAreForgotten, Algorithm::TokenBucket, &["counted 0 hits"]);
}

#[test]
fn a_debit_that_is_counted_and_refused_is_found() {
    check(Mutation::CountedDebitsAreRefused, Algorithm::FixedWindow, &["debited of"]);
}

#[test]
fn an_answer_of_the_server_that_counts_twice_is_found() {
    check_shared(Mutation::RefillsCountTwice, Algorithm::FixedWindow);
}

#[test]
fn tokens_that_are_given_back_before_they_are_taken_out_are_found() {
    check_shared(Mutation::GivenBackIsKept, Algorithm::FixedWindow);
}

#[test]
fn a_decision_by_the_clock_of_a_sidecar_is_found() {
    check_shared(Mutation::OwnClock, Algorithm::FixedWindow);
}

#[test]
fn a_command_that_was_never_answered_and_counts_as_done_is_found() {
    check_shared(Mutation::SilenceIsDone, Algorithm::SlidingBuckets);
}

#[test]
fn a_command_that_has_lost_and_counts_as_done_is_found() {
    check_shared(Mutation::LossIsDone, Algorithm::FixedWindow);
}

#[test]
fn a_server_that_forgets_counters_too_early_is_found() {
    check_shared(Mutation::KeysExpireEarly, Algorithm::SlidingBuckets);
}
