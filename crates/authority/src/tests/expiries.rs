//! How long counters and the nodes of leases are kept.

use super::leases::{leasing, of_k, wants};
use super::*;
use crate::applied::match_limits;
use crate::plan::{Hashing, Plan};
use tidegate_core::LeaseReturn;
use tidegate_store::Entries;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

fn at(nanos: u64) -> Timestamp {
    Timestamp::from_secs(START).saturating_add(Nanos::new(nanos))
}

fn request(descriptors: Vec<Descriptor>) -> Request {
    Request { domain: "d".into(), descriptors, hits: Hits::ONE }
}

impl Fixture {
    /// The keys that a decision on `descriptors` needs.
    fn keys_at(&self, nanos: u64, descriptors: Vec<Descriptor>) -> Vec<Hashed> {
        let limits = self.engine.limits.load();
        let request = request(descriptors);
        let matched = match_limits(&limits.rules, &request);
        let (modes, seed) = (self.engine.modes, self.counters.seed());
        Plan::of(&matched.each, &request, modes, Hashing::undivided(seed), at(nanos)).keys.to_vec()
    }

    /// Which of these keys have a live state. Times must not go back from call to call.
    fn live_at(&self, nanos: u64, keys: &[Hashed]) -> Vec<bool> {
        let mut live = Vec::new();
        let mut look = |entries: &mut Entries<'_>| {
            live = (0..keys.len()).map(|index| !entries.get(index).is_new()).collect();
        };
        wait(self.counters.update(keys, at(nanos), &mut look)).expect("a look");
        live
    }

    fn put(&self, descriptors: &str) {
        let rules = rules_of(self.dir.path(), descriptors);
        self.engine.replace_limits(rules).expect("rules in force");
    }
}

/// Another thread or process may still decide by a reading of the clock from before the end.
#[test]
fn a_counter_is_kept_for_a_second_beyond_its_end() {
    let fixture = engine("- {key: k, rate_limit: {period: 10s, requests: 5}}");
    fixture.ask_at(3, 1, of_k());
    let keys = fixture.keys_at(0, of_k());
    assert_eq!(fixture.live_at(11 * SECOND - MS, &keys), [true]);
    assert_eq!(fixture.live_at(11 * SECOND, &keys), [false]);
}

#[test]
fn a_counter_that_was_leased_from_is_kept_for_a_second_beyond_its_end() {
    let limit = "{algorithm: token_bucket, requests: 1, period: 1s, burst: 100}";
    let fixture = leasing(&format!("- {{key: k, rate_limit: {limit}}}"));
    // The request's own hit, and 50 tokens.
    fixture.ask_leasing(0, of_k(), &wants(1, 0, 50));
    let keys = fixture.keys_at(0, of_k());
    assert_eq!(fixture.live_at(52 * SECOND - MS, &keys), [true]);
    assert_eq!(fixture.live_at(52 * SECOND, &keys), [false]);
}

/// A bucket that one limit refills slowly and the next one quickly was forgotten by the quick one, so under the
/// slow one it was full again.
#[test]
fn an_unchanged_counter_is_kept_for_the_longest_of_the_limits_that_read_it() {
    let bucket = |requests: u32| {
        let rate = format!("algorithm: token_bucket, requests: {requests}, period: 1s, burst: 10");
        format!("- {{key: k, rate_limit: {{{rate}}}}}")
    };
    for [first, second] in [[1, 10], [10, 1]] {
        let fixture = engine(&bucket(first));
        fixture.ask_at(0, 10, of_k());
        fixture.put(&bucket(second));
        assert_eq!(fixture.left(&[("k", "v")]), 0);
        let keys = fixture.keys_at(0, of_k());
        assert_eq!(fixture.live_at(11 * SECOND - MS, &keys), [true], "{first}, then {second}");
        assert_eq!(fixture.live_at(11 * SECOND, &keys), [false], "{first}, then {second}");
    }
}

/// Otherwise each hit would keep the parts of earlier minutes for as long as its own.
#[test]
fn a_part_of_an_exact_window_is_kept_for_its_own_hits() {
    let limit = "{algorithm: sliding_buckets, exact: true, period: 60s, requests: 5}";
    let fixture = engine(&format!("- {{key: k, rate_limit: {limit}}}"));
    fixture.ask_at(59, 1, of_k());
    fixture.ask_at(61, 1, of_k());
    // The root, the minutes of the hour, the seconds of this minute, and of the first.
    let keys = fixture.keys_at(61 * SECOND, of_k());
    assert_eq!(fixture.live_at(62 * SECOND, &keys), [true; 4]);
    // A hit counts for the rest of its second and a period; its parts stay a minute more, and the slack.
    assert_eq!(fixture.live_at((60 + 60 + 60 + 1) * SECOND, &keys), [true, true, true, false]);
    assert_eq!(fixture.live_at((62 + 60 + 60 + 1) * SECOND, &keys), [false; 4]);
}

#[test]
fn a_lease_is_kept_for_a_second_beyond_its_end() {
    for returned in [0, 4] {
        let fixture = leasing("- {key: k, rate_limit: {unit: second, requests_per_unit: 100}}");
        let lease = fixture.ask_leasing(0, of_k(), &wants(1, 10, 0)).statuses[0].lease;
        let lease = lease.expect("a lease");
        if returned > 0 {
            fixture.give_back(0, lease.id, returned);
        }
        let key = [crate::leases::record_key(fixture.counters.seed(), lease.id)];
        assert_eq!(fixture.live_at(2 * SECOND - MS, &key), [true], "{returned} returned");
        assert_eq!(fixture.live_at(2 * SECOND, &key), [false], "{returned} returned");
    }
}

/// A return of all tokens erases the lease, and one for another counter changes nothing.
#[test]
fn a_lease_is_kept_while_tokens_of_it_are_held() {
    let fixture = leasing("- {key: k, rate_limit: {unit: day, requests_per_unit: 100}}");
    let lease = fixture.ask_leasing(0, of_k(), &wants(1, 10, 0)).statuses[0].lease;
    let lease = lease.expect("a lease");
    let key = [crate::leases::record_key(fixture.counters.seed(), lease.id)];
    let refund = |value: &str| Descriptor {
        direction: Direction::Refund,
        hits: Some(Hits::new(5)),
        ..descriptor(&[("k", value)])
    };
    for (value, is_kept) in [("v", true), ("other", true), ("v", false)] {
        let call = 1 << 30 | u64::from(is_kept) << 10;
        let back = LeaseReturn { call, leases: vec![lease.id] };
        let request = request(vec![refund(value)]);
        wait(fixture.engine.return_tokens(&request, &back, at(0))).expect("an answer");
        assert_eq!(fixture.live_at(0, &key), [is_kept], "{value}");
    }
}

#[test]
fn a_node_that_was_created_is_kept_for_a_second_beyond_the_end_of_each_window() {
    let rules = "
- key: k
  rate_limits:
  - {name: hour, algorithm: first_hit_window, requests: 3, unit: hour}
  - {name: minute, algorithm: first_hit_window, requests: 2, unit: minute}
";
    let fixture = engine(rules);
    wait(fixture.engine.create_node(&request(of_k()), &[], at(0), |_| ())).expect("a node");
    let keys = fixture.keys_at(0, of_k());
    for (nanos, live) in [
        (61 * SECOND - MS, [true, true]),
        (61 * SECOND, [true, false]),
        (3_601 * SECOND - MS, [true, false]),
        (3_601 * SECOND, [false, false]),
    ] {
        assert_eq!(fixture.live_at(nanos, &keys), live, "after {nanos} ns");
    }
}

/// The store refuses an update of more keys than it takes, so none are made.
#[test]
fn a_request_of_any_number_of_descriptors_has_a_bounded_plan() {
    let fixture = engine("- {key: k, rate_limit: {unit: day, requests: 5}}");
    let of = |count: usize| {
        let each = (0..count).map(|value| descriptor(&[("k", &value.to_string())]));
        fixture.keys_at(0, each.collect()).len()
    };
    let most = tidegate_store::UPDATE_KEYS_MAX;
    assert_eq!([of(1), of(most), of(most + 1)], [1, most, most + 1]);
    assert_eq!([of(most + 2), of(20 * most)], [most + 1, most + 1]);
}
