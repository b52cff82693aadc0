//! Debits: hits that have happened and count whether or not they fit, once each, and refunds of hits that have not.

use super::leases::{EVERY_ALGORITHM, leasing, wants};
use super::refusing::Refusing;
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
        // 10 s refill one token, and 100 ms more of another.
        (EVERY_ALGORITHM[2], 11, 10, 89),
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

/// An engine that refuses the updates with these numbers, in the order of all, and the numbers.
fn refusing(rules: &str, refused: &[u64], with: Undecided) -> (Fixture, Arc<Mutex<Vec<u64>>>) {
    let dir = tempfile::TempDir::new().expect("a directory");
    let refused = Arc::new(Mutex::new(refused.to_vec()));
    let (numbers, updates) = (refused.clone(), AtomicU64::new(0));
    let counters = Refusing::new(counters(dir.path()), move |_| {
        let number = updates.fetch_add(1, Ordering::Relaxed);
        numbers.lock().expect("no panic").contains(&number).then(|| with.clone())
    });
    (Fixture::new(counters, dir, rules, Modes::default(), Arc::new(())), refused)
}

fn busy() -> Undecided {
    UpdateError::Busy { pid: 1, millis: 500 }.into()
}

/// Sixty streams, each with a counter in many parts: more than one update has room for.
fn sixty() -> Vec<Descriptor> {
    (0..60).map(|value| of(&format!("v{value}"), 7)).collect()
}

fn uncounted(answer: &Answer) -> Vec<usize> {
    let statuses = answer.statuses.iter().enumerate();
    statuses.filter(|(_, status)| status.is_uncounted()).map(|(index, _)| index).collect()
}

/// The streams of a call that is too large for one update were counted one by one up to the first failure, and the
/// call then failed. The client sent its streams again under new numbers, so the first ones counted twice.
#[test]
fn a_call_that_could_be_counted_only_in_part_says_which_and_counts_once() {
    // The first update is of all streams, and too large.
    for again in ["unchanged", "the rest"] {
        let (engine, refused) = refusing(&rule(EVERY_ALGORITHM[5]), &[31, 50], busy());
        let answer = engine.debits(0, 1 << 20, sixty());
        assert_eq!((answer.statuses.len(), answer.verdict), (60, Verdict::Deny));
        assert_eq!(uncounted(&answer), [30, 49]);
        for number in [2, 3] {
            refused.lock().unwrap().clear();
            let answer = match again {
                // The answer was lost.
                "unchanged" => engine.debits(0, 1 << 20, sixty()),
                // The others keep their places, for rules that replace.
                _ => {
                    let mut rest = sixty();
                    let counted =
                        rest.iter_mut().enumerate().filter(|(at, _)| ![30, 49].contains(at));
                    counted.for_each(|(_, descriptor)| descriptor.hits = Some(Hits::new(0)));
                    engine.debits(0, if number == 2 { 2 << 20 } else { 1 << 20 }, rest)
                }
            };
            assert_eq!(uncounted(&answer), [0_usize; 0]);
            assert!(answer.statuses.iter().all(|status| status.remaining == 93), "{again}");
        }
    }
}

#[test]
fn refunds_that_are_too_many_for_one_update_are_made_by_their_own_ages() {
    let (engine, _) = refusing(&rule(EVERY_ALGORITHM[5]), &[], busy());
    let (noon, long_ago) = (SECOND / 2, Nanos::from_secs(7));
    engine.debits(noon, 1, sixty());
    let refunds = sixty()
        .into_iter()
        .map(|of| Descriptor { direction: Direction::Refund, ..of })
        .collect::<Vec<_>>();
    let ages = (0..60).map(|index| if index % 3 == 1 { long_ago } else { Nanos::ZERO });
    let debit = DebitRequest { ages: ages.collect(), ..call(2, &[1; 60], Duration::ZERO) };
    let answer = engine.debit_call(noon, &debit, refunds);
    for (index, status) in answer.statuses.iter().enumerate() {
        assert_eq!(status.remaining, if index % 3 == 1 { 93 } else { 100 }, "{index}");
    }
}

#[test]
fn a_call_of_which_nothing_could_be_counted_fails() {
    let all: Vec<u64> = (0..61).collect();
    let (engine, _) = refusing(&rule(EVERY_ALGORITHM[5]), &all[1..], busy());
    let request = Request { domain: "d".into(), descriptors: sixty(), hits: Hits::ONE };
    let debit = call(1 << 20, &[1; 60], Duration::ZERO);
    assert_eq!(wait(engine.engine.debit(&request, &debit, None, at(0))), Err(busy()));
}

/// What may have been counted must come again under its own number.
#[test]
fn a_call_with_a_part_that_may_be_counted_fails_and_counts_once_when_it_comes_again() {
    let lost = Undecided::Unreachable { cause: "no answer in time".into() };
    let (engine, _) = refusing(&rule(EVERY_ALGORITHM[5]), &[31], lost.clone());
    let request = Request { domain: "d".into(), descriptors: sixty(), hits: Hits::ONE };
    let debit = call(1 << 20, &[1; 60], Duration::ZERO);
    assert_eq!(wait(engine.engine.debit(&request, &debit, None, at(0))), Err(lost));
    for _ in 0..2 {
        let answer = engine.debits(0, 1 << 20, sixty());
        assert!(answer.statuses.iter().all(|status| status.remaining == 93));
    }
}

/// The record of the call took one key, so streams that met as many counters as an update has room for could be
/// decided and not be debited.
#[test]
fn as_many_counters_as_a_request_may_meet_can_be_debited_and_refunded() {
    let limits = "[{unit: day, requests_per_unit: 100}, {unit: year, requests_per_unit: 200}]";
    let engine = engine(&format!("- {{key: k, rate_limits: {limits}}}"));
    let each = |of: fn(&str, u64) -> Descriptor, hits| {
        (0..128).map(|value| of(&value.to_string(), hits)).collect::<Vec<_>>()
    };
    assert_eq!(engine.ask_at(0, 1, each(of, 1)).verdict, Verdict::Allow, "256 counters");
    let mut number = 0;
    for streams in [vec![128], vec![1; 128], vec![127, 1]] {
        for descriptors in [each(of, 7), each(refund_of, 7)] {
            number += 128;
            for _ in 0..2 {
                let debit = call(number, &streams, Duration::ZERO);
                let answer = engine.debit_call(200_000_000, &debit, descriptors.clone());
                assert_eq!(uncounted(&answer), [0_usize; 0]);
            }
            let left = 99 - if descriptors[0].direction == Direction::Take { 7 } else { 0 };
            let answer = engine.ask_at(0, 0, each(of, 0));
            assert!(answer.statuses.iter().all(|status| status.remaining == left));
        }
    }
}

/// The counters of an exact window are in many parts, more than one update has room for.
#[test]
fn streams_that_are_too_many_for_one_update_are_counted_one_by_one_and_once() {
    let engine = engine(&rule(EVERY_ALGORITHM[5]));
    for _ in 0..2 {
        let answer = engine.debits(0, 1 << 20, sixty());
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
