//! Debits: hits that have happened and count whether or not they fit, once each, and refunds of hits that have not.

use super::leases::{EVERY_ALGORITHM, leasing, wants};
use super::*;
use std::time::Duration;
use tidegate_core::DebitRequest;

const SECOND: u64 = 1_000_000_000;
const SEQUENCE: u64 = 0x5e9;

fn at(nanos: u64) -> Timestamp {
    Timestamp::from_secs(START).saturating_add(Nanos::new(nanos))
}

fn of(value: &str, hits: u64) -> Descriptor {
    Descriptor { hits: Some(Hits::new(hits)), ..descriptor(&[("k", value)]) }
}

fn refund_of(value: &str, hits: u64) -> Descriptor {
    Descriptor { direction: Direction::Refund, ..of(value, hits) }
}

fn call(call: u64, streams: &[usize], age: Duration) -> DebitRequest {
    let count = streams.iter().sum();
    let age = Nanos::new(u64::try_from(age.as_nanos()).expect("a short time"));
    DebitRequest { call, sequence: SEQUENCE, streams: streams.to_vec(), ages: vec![age; count] }
}

impl Fixture {
    /// Debits by a call of this number, each descriptor of a stream of its own.
    fn debits(&self, nanos: u64, number: u64, descriptors: Vec<Descriptor>) -> Answer {
        let debit = call(number, &vec![1; descriptors.len()], Duration::ZERO);
        self.debit_call(nanos, &debit, descriptors)
    }

    fn debit_call(&self, nanos: u64, debit: &DebitRequest, descriptors: Vec<Descriptor>) -> Answer {
        let request = Request { domain: "d".into(), descriptors, hits: Hits::ONE };
        wait(self.engine.debit(&request, debit, None, at(nanos))).expect("counted")
    }

    fn rest_at(&self, nanos: u64, value: &str) -> (Verdict, u32) {
        let request =
            Request { domain: "d".into(), descriptors: vec![of(value, 0)], hits: Hits::ONE };
        let answer = wait(self.engine.decide(&request, at(nanos))).expect("decided");
        (answer.verdict, answer.statuses[0].remaining)
    }
}

fn rule(limit: &str) -> String {
    format!("- {{key: k, rate_limit: {limit}}}")
}

#[test]
fn a_debit_counts_though_it_does_not_fit_and_the_limit_stays_leasable() {
    for limit in EVERY_ALGORITHM {
        let engine = leasing(&rule(limit));
        let answer = engine.debits(0, 1, vec![of("a", 70)]);
        assert_eq!((answer.verdict, answer.statuses[0].remaining), (Verdict::Allow, 30), "{limit}");
        let answer = engine.debits(0, 2, vec![of("a", 70)]);
        assert_eq!((answer.verdict, answer.statuses[0].remaining), (Verdict::Deny, 0), "{limit}");
        assert_eq!(engine.rest_at(0, "a"), (Verdict::Deny, 0), "{limit}");
        let request =
            Request { domain: "d".into(), descriptors: vec![of("b", 5)], hits: Hits::ONE };
        let (debit, lease) = (call(3, &[1], Duration::ZERO), wants(0xa1, 20, 0));
        let answer = wait(engine.engine.debit(&request, &debit, Some(&lease), at(0))).unwrap();
        let lease = answer.statuses[0].lease.expect("a lease with a debit");
        assert_eq!((lease.tokens, answer.statuses[0].remaining), (20, 75), "{limit}");
    }
}

#[test]
fn the_answer_to_a_debit_lets_the_denial_be_cached_and_others_get_leases() {
    let engine = leasing(&rule("{unit: day, requests_per_unit: 100}"));
    let descriptors = vec![of("a", 500), of("b", 5)];
    let request = Request { domain: "d".into(), descriptors, hits: Hits::ONE };
    let (debit, lease) = (call(1, &[1, 1], Duration::ZERO), wants(0xa1, 20, 0));
    let answer = wait(engine.engine.debit(&request, &debit, Some(&lease), at(0))).unwrap();
    let tokens = |index: usize| answer.statuses[index].lease.map(|lease| lease.tokens);
    assert_eq!((answer.verdict, tokens(0), tokens(1)), (Verdict::Deny, Some(0), Some(20)));
}

#[test]
fn each_descriptor_is_charged_by_itself() {
    let engine = engine(&rule("{unit: day, requests_per_unit: 100}"));
    engine.debits(SECOND, 1, vec![of("a", 101), of("b", 30)]);
    engine.debits(SECOND, 2, vec![of("a", 1), refund_of("b", 10), of("b", 1)]);
    let rest = |value| engine.rest_at(SECOND, value).1;
    assert_eq!((rest("a"), rest("b")), (0, 79));
}

#[test]
fn a_call_counts_once_however_often_it_arrives_and_an_older_one_not_at_all() {
    for rules in [rule("{unit: day, requests_per_unit: 100}"), rule(EVERY_ALGORITHM[5])] {
        let engine = engine(&rules);
        for number in [5, 5, 5] {
            let answer = engine.debits(0, number, vec![of("a", 10), of("b", 7)]);
            let left: Vec<u32> = answer.statuses.iter().map(|status| status.remaining).collect();
            assert_eq!(left, [90, 93]);
        }
        engine.debits(0, 6, vec![of("a", 10)]);
        engine.debits(0, 5, vec![of("a", 10)]);
        assert_eq!(engine.rest_at(0, "a").1, 80);
        // Numbers wrap around.
        engine.debits(0, u64::MAX / 2, vec![of("a", 1)]);
        engine.debits(0, u64::MAX - 1, vec![of("a", 1)]);
        engine.debits(0, 3, vec![of("a", 1)]);
        assert_eq!(engine.rest_at(0, "a").1, 77);
        let other = DebitRequest { sequence: 1, ..call(5, &[1], Duration::ZERO) };
        engine.debit_call(0, &other, vec![of("a", 7)]);
        assert_eq!(engine.rest_at(0, "a").1, 70, "of another sequence");
    }
}

#[test]
fn a_call_that_was_counted_is_not_reported_again() {
    let recorder = Recorder::default();
    let rules = rule("{unit: day, requests_per_unit: 100}");
    let engine = observed(&rules, Modes::default(), Arc::new(recorder.clone()));
    for _ in 0..3 {
        engine.debits(0, 1, vec![of("a", 10)]);
    }
    assert_eq!(recorder.0.hits.load(Ordering::Relaxed), 10);
}

/// A refund in a window that never counted the hits would open it.
#[test]
fn a_refund_is_made_in_the_window_of_its_hits_and_in_no_later_one() {
    // The limit, the time of the refund, the age of its hits, and what is left of 100 after 60 were taken at 1 s and 60
    // right before the refund in a later window.
    for (limit, at_secs, age_secs, left) in [
        (EVERY_ALGORITHM[0], 9, 8, 90),
        (EVERY_ALGORITHM[0], 11, 10, 40),
        (EVERY_ALGORITHM[1], 10, 9, 90),
        (EVERY_ALGORITHM[1], 12, 11, 40),
        (EVERY_ALGORITHM[3], 9, 8, 90),
        // 60 of the last window weigh 54 yet.
        (EVERY_ALGORITHM[3], 11, 10, 0),
        // Within a bucket of 10 s.
        ("{algorithm: sliding_buckets, period: 600s, requests: 100}", 9, 8, 90),
        ("{algorithm: sliding_buckets, period: 600s, requests: 100}", 11, 10, 40),
        // 10 s refill one token.
        (EVERY_ALGORITHM[2], 11, 10, 90),
    ] {
        let engine = engine(&rule(limit));
        engine.debits(SECOND, 1, vec![of("a", 60)]);
        let now = at_secs * SECOND + SECOND / 8;
        if at_secs > 10 && !limit.contains("bucket") {
            engine.debits(now, 2, vec![of("a", 60)]);
        }
        let age = Duration::from_secs(age_secs);
        engine.debit_call(now, &call(3, &[1], age), vec![refund_of("a", 50)]);
        assert_eq!(engine.rest_at(now, "a").1, left, "{limit} at {at_secs} s");
    }
}

#[test]
fn a_refund_is_made_once() {
    let engine = engine(&rule("{unit: day, requests_per_unit: 100}"));
    engine.debits(0, 1, vec![of("a", 60)]);
    for _ in 0..3 {
        engine.debits(SECOND, 2, vec![refund_of("a", 10)]);
    }
    assert_eq!(engine.rest_at(SECOND, "a").1, 50);
}

#[test]
fn a_limit_replaces_those_of_its_own_stream_only() {
    let rules = "\
- {key: k, rate_limit: {name: plain, unit: day, requests_per_unit: 100}}
- {key: inside, rate_limit: {unlimited: true, replaces: [{name: plain}]}}";
    let inside = || descriptor(&[("inside", "x")]);
    for (streams, left) in [(vec![2], 100), (vec![1, 1], 90)] {
        let engine = engine(rules);
        let debit = call(1, &streams, Duration::ZERO);
        engine.debit_call(0, &debit, vec![of("a", 10), inside()]);
        assert_eq!(engine.rest_at(0, "a").1, left, "{streams:?}");
    }
}

/// The counters of an exact window are in many parts, more than one update has room for.
#[test]
fn streams_that_are_too_many_for_one_update_are_counted_one_by_one_and_once() {
    let engine = engine(&rule(EVERY_ALGORITHM[5]));
    let all = || (0..60).map(|value| of(&format!("v{value}"), 7)).collect::<Vec<_>>();
    for _ in 0..2 {
        let answer = engine.debits(0, 1 << 20, all());
        assert_eq!(answer.statuses.len(), 60);
        assert!(answer.statuses.iter().all(|status| status.remaining == 93));
    }
    for value in [0, 31, 59] {
        assert_eq!(engine.rest_at(0, &format!("v{value}")).1, 93);
    }
}

#[test]
fn a_window_that_borrows_pays_for_a_debit_in_the_next_one() {
    let engine = engine(&rule("{period: 10s, requests: 100, borrow: 50}"));
    engine.debits(0, 1, vec![of("a", 1_000)]);
    assert_eq!(engine.rest_at(0, "a"), (Verdict::Deny, 0));
    assert_eq!(
        engine.rest_at(10 * SECOND, "a").1,
        100,
        "50 of the next window's 150 are paid back"
    );
    assert_eq!(engine.rest_at(20 * SECOND, "a").1, 150);
}
