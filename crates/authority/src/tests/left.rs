//! What operators see of counters, and what is left once they set it.

use super::*;

const RULES: &str = "\
- {key: fixed, rate_limit: {unit: day, requests: 10}}
- {key: borrow, rate_limit: {unit: day, requests: 10, borrow: 5}}
- {key: first, rate_limit: {algorithm: first_hit_window, unit: day, requests: 10}}
- {key: bucket, rate_limit: {algorithm: token_bucket, requests: 10, period: 1d}}
- {key: sliding, rate_limit: {algorithm: sliding_window, unit: day, requests: 10}}
- {key: ring, rate_limit: {algorithm: sliding_buckets, unit: day, requests: 10}}
- {key: exact, rate_limit: {algorithm: sliding_buckets, exact: true, unit: day, requests: 10}}
- {key: debits, rate_limit: {unit: day, requests: 10, count_denied: true}}
- {key: slow, rate_limit: {algorithm: token_bucket, requests: 10, period: 1d, initial: 3}}
- key: two
  rate_limits:
  - {name: hour, unit: hour, requests: 10}
  - {name: day, unit: day, requests: 20}
- {key: free, rate_limit: {unlimited: true}}
";
const KEYS: [&str; 8] =
    ["fixed", "borrow", "first", "bucket", "sliding", "ring", "exact", "debits"];
const HOUR: u64 = 3_600;

fn node(key: &str) -> Request {
    let descriptors = vec![descriptor(&[(key, "v")])];
    Request { domain: "d".into(), descriptors, hits: Hits::new(0) }
}

fn at(secs: u64) -> Timestamp {
    Timestamp::from_secs(START + secs)
}

impl Fixture {
    fn looked_at(&self, secs: u64, key: &str) -> Vec<u64> {
        let looked = wait(self.engine.look(&node(key), at(secs))).expect("a look");
        looked.limits.iter().map(|limit| limit.now.remaining).collect()
    }

    fn set_at(&self, secs: u64, key: &str, limit: &str, left: u64) -> Result<u64, LeftError> {
        wait(self.engine.set_left(&node(key), limit, left, at(secs)))
    }
}

#[test]
fn as_much_is_left_as_was_set_whatever_the_algorithm() {
    for key in KEYS {
        let fixture = engine(RULES);
        let path = format!("d/{key}");
        let most = if key == "borrow" { 15 } else { 10 };
        fixture.ask_at(HOUR, 4, node(key).descriptors);
        fixture.ask_at(5 * HOUR, 2, node(key).descriptors);
        let mut before = fixture.looked_at(6 * HOUR, key)[0];
        for left in [0, 3, most, 7, 1, 7] {
            let found = fixture.set_at(6 * HOUR, key, &path, left).expect("set");
            assert_eq!(found, before, "{key}, to {left}");
            assert_eq!(fixture.looked_at(6 * HOUR, key), [left], "{key}, to {left}");
            before = left;
        }
        // Requests find it, too.
        let answer = fixture.ask_at(6 * HOUR, 7, node(key).descriptors);
        assert_eq!(answer.verdict, Verdict::Allow, "{key}");
        let answer = fixture.ask_at(6 * HOUR, 1, node(key).descriptors);
        assert_eq!(answer.verdict, Verdict::Deny, "{key}");
        let refused = fixture.set_at(6 * HOUR, key, &path, most + 1).unwrap_err().to_string();
        let expected = format!("{path} cannot have {} hits left now; {most} at most", most + 1);
        assert_eq!(refused, expected);
        assert_eq!(fixture.looked_at(6 * HOUR, key), [0], "{key}: a refusal changes nothing");
    }
}

/// Hits of earlier hours are in parts of their own, and would count again once these are read.
#[test]
fn a_counter_that_starts_anew_counts_no_old_hits_later() {
    let fixture = engine(RULES);
    fixture.ask_at(HOUR, 6, node("exact").descriptors);
    fixture.set_at(12 * HOUR, "exact", "d/exact", 9).expect("set");
    for secs in (12 * HOUR..30 * HOUR).step_by(600) {
        let left = fixture.looked_at(secs, "exact")[0];
        assert!((9..=10).contains(&left), "{left} after {secs} s");
    }
}

#[test]
fn one_limit_of_several_is_set() {
    let fixture = engine(RULES);
    fixture.ask_at(10, 4, node("two").descriptors);
    assert_eq!(fixture.set_at(20, "two", "d/two#hour", 10).expect("set"), 6);
    assert_eq!(fixture.looked_at(20, "two"), [10, 16]);
    let error = fixture.set_at(20, "two", "d/two", 1).unwrap_err().to_string();
    assert_eq!(error, "the descriptor has no limit \"d/two\"; it has d/two#hour, d/two#day");
    let unknown = fixture.set_at(20, "unknown", "d/two", 1).unwrap_err();
    assert!(matches!(unknown, LeftError::Node(NodeError::UnknownBusiness)), "{unknown}");
    let free = fixture.set_at(20, "free", "d/free", 1).unwrap_err();
    assert!(matches!(free, LeftError::UnknownLimit { .. }), "{free}");
}

/// More than a new bucket holds cannot be made of it.
#[test]
fn a_bucket_that_starts_with_few_tokens_is_filled_by_time_alone() {
    let fixture = engine(RULES);
    let error = fixture.set_at(10, "slow", "d/slow", 9).unwrap_err().to_string();
    assert_eq!(error, "d/slow cannot have 9 hits left now; 3 at most");
    assert_eq!(fixture.set_at(10, "slow", "d/slow", 1).expect("set"), 3);
}

#[test]
fn a_look_changes_nothing() {
    let recorder = Recorder::default();
    let fixture = observed(RULES, Modes::default(), Arc::new(recorder.clone()));
    for _ in 0..3 {
        assert_eq!(fixture.looked_at(10, "two"), [10, 20]);
    }
    let mut request = node("two");
    request.hits = Hits::new(11);
    let looked = wait(fixture.engine.look(&request, at(10))).expect("a look");
    let verdicts = looked.limits.iter().map(|limit| limit.then.is_allow());
    assert_eq!((looked.verdict, verdicts.collect::<Vec<_>>()), (Verdict::Deny, vec![false, true]));
    assert!(looked.held_of(&looked.limits[0]).is_none(), "no machine shares them");
    assert!(
        fixture.looked_at(10, "free").is_empty() && fixture.looked_at(10, "unknown").is_empty()
    );
    assert_eq!(recorder.0.hits.load(Ordering::Relaxed), 0);
    assert_eq!(recorder.0.domain_not_found.load(Ordering::Relaxed), 0);
}
