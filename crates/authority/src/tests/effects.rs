//! Effects follow a commit, once, however often an update runs. Its runs may differ: counters that answer later run
//! each update on states that were never committed first.

use super::leases::{leasing, of_k, wants};
use super::*;
use tidegate_core::{LeaseReturn, Nanos};

const TTL: Nanos = Nanos::from_secs(2);
const WINDOW: &str = "- {key: k, rate_limit: {unit: day, requests_per_unit: 100}}";

fn counts(recorder: &Recorder) -> [u64; 4] {
    let Counts { hits, leases, leased, returned, .. } = &*recorder.0;
    [hits, leases, leased, returned].map(|count| count.load(Ordering::Relaxed))
}

fn refund(tokens: u64) -> Request {
    let refund = |of| Descriptor { direction: Direction::Refund, ..of };
    let descriptors = of_k().into_iter().map(refund).collect();
    Request { domain: "d".into(), descriptors, hits: Hits::new(tokens) }
}

#[test]
fn decisions_leases_and_returns_are_reported_once() {
    let recorder = Recorder::default();
    let modes = Modes { lease_ttl: Some(TTL), ..Modes::default() };
    let fixture = observed(WINDOW, modes, Arc::new(recorder.clone()));
    fixture.ask_at(0, 3, of_k());
    assert_eq!(counts(&recorder), [3, 0, 0, 0]);
    let answer = fixture.ask_leasing(0, of_k(), &wants(1, 10, 0));
    let lease = answer.statuses[0].lease.expect("a lease");
    assert_eq!(counts(&recorder), [4, 1, 10, 0]);
    let back = LeaseReturn { call: 1 << 20, leases: vec![lease.id] };
    let now = Timestamp::from_secs(START);
    wait(fixture.engine.return_tokens(&refund(4), &back, now)).expect("an answer");
    assert_eq!(counts(&recorder), [4, 1, 10, 4]);
    assert_eq!(fixture.left(&[("k", "v")]), 100 - 3 - 1 - 6);
}

/// A lease takes the room of its record and of the users of its counter; a return in full frees that of the record.
#[test]
fn the_room_of_leases_is_accounted_for_once() {
    let fixture = leasing(WINDOW);
    let now = Timestamp::from_secs(START);
    let left = || fixture.engine.lease_room.left(now);
    let all = left();
    let lease = fixture.ask_leasing(0, of_k(), &wants(1, 10, 0)).statuses[0].lease;
    assert_eq!(all - left(), 2);
    let back = LeaseReturn { call: 1 << 20, leases: vec![lease.expect("a lease").id] };
    wait(fixture.engine.return_tokens(&refund(10), &back, now)).expect("an answer");
    assert_eq!(all - left(), 1);
}

#[test]
fn descriptors_of_one_request_share_the_room_of_leases() {
    let fixture = leasing(WINDOW);
    let now = Timestamp::from_secs(START);
    let left = || fixture.engine.lease_room.left(now);
    let of = |value: u64| descriptor(&[("k", &value.to_string())]);
    let mut value = 0;
    while left() >= 4 {
        let before = left();
        fixture.ask_leasing(0, vec![of(value)], &wants(1, 10, 0));
        assert_eq!(before - left(), 2);
        value += 1;
    }
    let answer = fixture.ask_leasing(0, vec![of(value), of(value + 1)], &wants(1, 10, 0));
    let are_leased: Vec<bool> =
        answer.statuses.iter().map(|status| status.lease.is_some()).collect();
    assert_eq!(are_leased, [true, false]);
}

/// An update that fails has no effects.
#[test]
fn too_many_counters_are_refused_without_a_report() {
    let recorder = Recorder::default();
    let fixture = observed(WINDOW, Modes::default(), Arc::new(recorder.clone()));
    let descriptors = (0..300).map(|value| descriptor(&[("k", &value.to_string())])).collect();
    let request = Request { domain: "d".into(), descriptors, hits: Hits::ONE };
    let refused = wait(fixture.engine.decide(&request, Timestamp::from_secs(START)));
    assert!(refused.as_ref().is_err_and(Undecided::is_too_large), "{refused:?}");
    assert_eq!(counts(&recorder), [0; 4]);
    assert_eq!(fixture.left(&[("k", "0")]), 100);
}
