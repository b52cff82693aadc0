//! What a worker reports of its own decisions: when, in which calls, and what bounds it.

use super::authority::{Authority, made_up, status};
use super::world::{Envoy, MILLI, Sent};
use super::{answer_all, fail_all, names_of_one_set, only_call, replied, warmed};
use crate::config::encoded::{domain_mark, encoded};
use crate::host::StreamId;
use crate::request::descriptors::Descriptors;
use crate::worker::call_error::CallError;
use tidegate_core::{
    FurtherLimit, Lease, LimitView, Nanos, Report, Status, StatusDetails, TalliedHits, Timestamp,
    Verdict,
};
use tidegate_wire::report_of;

fn allowed(allowed: u64) -> TalliedHits {
    TalliedHits { allowed, ..TalliedHits::default() }
}

/// What a call reports: values of descriptors, and their hits.
fn told(call: &Sent) -> Vec<(String, TalliedHits)> {
    let tallies = report_of(&call.message).map_or(Vec::new(), |report| report.tallies);
    tallies.into_iter().map(|tally| (tally.entries[0].value.clone(), tally.hits)).collect()
}

fn report(call: &Sent) -> Report {
    report_of(&call.message).expect("a report")
}

/// Ticks for this time, in which no call is answered.
fn tick_for(envoy: &mut Envoy, ms: u64) {
    for _ in 0..ms / 100 {
        envoy.pass_ms(100);
        envoy.tick_all();
    }
}

/// The same while the sidecar answers; returns the number of calls.
fn answered_for(envoy: &mut Envoy, authority: &mut Authority, ms: u64) -> usize {
    let mut calls = 0;
    for _ in 0..ms / 100 {
        tick_for(envoy, 100);
        loop {
            match answer_all(envoy, authority) {
                0 => break,
                answered => calls += answered,
            }
        }
    }
    calls
}

fn lost(envoy: &mut Envoy) -> i64 {
    let counted = envoy.counted();
    counted.iter().find(|(name, _)| name == "reports_lost").map_or(0, |(_, hits)| *hits)
}

/// Denies a request for `name` for so long. Returns the call about it.
fn deny(envoy: &mut Envoy, name: &str, ms: u64, denial: Status) -> Sent {
    envoy.request(0, &[(name, 1)]);
    let call = only_call(envoy);
    envoy.world_mut().sent.clear();
    let ends = envoy.world().now + ms * MILLI;
    let lease =
        denial.lease.map(|lease| Lease { valid_until: Timestamp::from_nanos(ends), ..lease });
    let answer = made_up(Verdict::Deny, vec![Status { lease, ..denial }]);
    envoy.workers[0].on_answer(call.id, Ok(&answer));
    envoy.wake_all();
    replied(envoy);
    call
}

#[test]
fn hits_by_tokens_are_told_by_the_next_call_whatever_it_is_about() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    warmed(&mut envoy, &mut authority, "100000");
    authority.reported.clear();
    answered_for(&mut envoy, &mut authority, 5_000);
    let before = authority.reported["100000"];
    warmed(&mut envoy, &mut authority, "100000");
    let mut local = 0;
    for _ in 0..10 {
        local += u64::from(envoy.request(0, &[("100000", 3)]).1 == super::HeadersStatus::Continue);
    }
    let so_far = authority.reported["100000"].allowed - before.allowed;
    envoy.world_mut().sent.clear();
    envoy.request(0, &[("never", 1)]);
    let [(name, hits)] = &*told(&only_call(&envoy)) else { panic!("one descriptor") };
    assert_eq!(name, "100000");
    assert!(local == 10 && hits.allowed >= 30, "{hits:?} and {so_far}");
    assert_eq!((hits.denied, hits.denied_elsewhere), (0, 0));
    // The next call has nothing more to tell.
    answer_all(&mut envoy, &mut authority);
    envoy.request(0, &[("never", 1)]);
    assert_eq!(told(&only_call(&envoy)), []);
}

#[test]
fn what_waits_is_told_within_five_seconds_by_a_call_that_returns_nothing() {
    let mut envoy = Envoy::new(1, 64);
    deny(&mut envoy, "5", 900, status(Verdict::Deny, 0, 1));
    envoy.request(0, &[("5", 2)]);
    tick_for(&mut envoy, 3_900);
    assert_eq!(envoy.world().sent.len(), 0, "it may go with another call");
    tick_for(&mut envoy, 200);
    let call = only_call(&envoy);
    let hits = TalliedHits { denied: 2, ..TalliedHits::default() };
    assert_eq!(told(&call), [("5".to_owned(), hits)]);
    assert_eq!(call.metadata("tidegate-return"), Some("0000000000000000"));
    assert_eq!(call.metadata("tidegate-lease"), None);
    let mut authority = Authority::default();
    answer_all(&mut envoy, &mut authority);
    assert_eq!((authority.charged.len(), authority.returned), (0, 0));
    // Then nothing is left to tell.
    assert_eq!(answered_for(&mut envoy, &mut authority, 20_000), 0);
    assert_eq!(envoy.counted().iter().filter(|(name, _)| name == "asks").count(), 1, "the first");
}

#[test]
fn a_denied_request_is_denied_for_one_descriptor_and_elsewhere_for_the_others() {
    let mut envoy = Envoy::new(1, 64);
    deny(&mut envoy, "5", 900, status(Verdict::Deny, 0, 1));
    // One that is known and has room, one that nobody knows, and one that looks only.
    envoy.record(0, "7");
    for _ in 0..3 {
        envoy.request(0, &[("7", 2), ("5", 1), ("8", 4), ("9", 0)]);
    }
    assert_eq!(replied(&envoy).len(), 3);
    envoy.request(0, &[("other", 1)]);
    let mut told = told(&only_call(&envoy));
    told.sort_by(|one, two| one.0.cmp(&two.0));
    let elsewhere = |denied_elsewhere| TalliedHits { denied_elsewhere, ..TalliedHits::default() };
    let denied = TalliedHits { denied: 3, ..TalliedHits::default() };
    let expected = [("5", denied), ("7", elsewhere(6)), ("8", elsewhere(12))];
    assert_eq!(told, expected.map(|(name, hits)| (name.to_owned(), hits)));
}

/// A denial with two limits, the second of which has room or not.
fn with_further(name: &str, further: &str, verdict: Verdict) -> Status {
    let view = |name: &str| LimitView { requests: 100, unit: None, name: name.to_owned() };
    let further = FurtherLimit { limit: view(further), remaining: 0, reset: Nanos::ZERO, verdict };
    let details = StatusDetails {
        further: vec![further],
        without_shadow: Verdict::Allow,
        is_uncounted: false,
    };
    let limit = Some(view(name));
    Status { limit, details: Some(Box::new(details)), ..status(Verdict::Deny, 0, 1) }
}

/// A descriptor with several limits was denied by one of them, and later by another.
#[test]
fn of_several_limits_a_report_names_those_that_denied() {
    let mut envoy = Envoy::new(1, 64);
    deny(&mut envoy, "5", 300, with_further("day", "second", Verdict::Allow));
    envoy.request(0, &[("5", 1)]);
    envoy.pass_ms(400);
    envoy.request(0, &[("5", 1)]);
    let call = only_call(&envoy);
    let first = &report(&call).tallies[0];
    assert_eq!((first.hits.denied, &*first.over), (1, &["day".to_owned()][..]));
    envoy.world_mut().sent.clear();
    let denial = with_further("second", "day", Verdict::Deny);
    let ends = envoy.world().now + 300 * MILLI;
    let lease =
        denial.lease.map(|lease| Lease { valid_until: Timestamp::from_nanos(ends), ..lease });
    let answer = made_up(Verdict::Deny, vec![Status { lease, ..denial }]);
    envoy.workers[0].on_answer(call.id, Ok(&answer));
    envoy.request(0, &[("5", 3)]);
    envoy.request(0, &[("other", 1)]);
    let second = &report(&only_call(&envoy)).tallies[0];
    assert_eq!(second.hits.denied, 3);
    assert_eq!(second.over, ["second", "day"]);
}

/// An answer with other limits came between two denials, and the first of these counted under the
/// limits of the second.
#[test]
fn denials_belong_to_the_limits_that_were_in_force() {
    let mut envoy = Envoy::new(1, 64);
    deny(&mut envoy, "5", 900, with_further("day", "second", Verdict::Allow));
    envoy.request(0, &[("5", 2)]);
    // One hit may fit where two do not, so it is asked about; the call tells of nothing yet.
    envoy.record(0, "5").state.denied_hits = 2;
    envoy.change_slot("5", |slot| slot.denied_hits = 2);
    envoy.workers[0].tallies.is_under_way = true;
    deny(&mut envoy, "5", 900, with_further("second", "day", Verdict::Allow));
    envoy.request(0, &[("5", 4)]);
    envoy.workers[0].tallies.is_under_way = false;
    envoy.request(0, &[("other", 1)]);
    let report = report(&only_call(&envoy));
    let mut told: Vec<_> =
        report.tallies.iter().map(|tally| (&*tally.over, tally.hits.denied)).collect();
    told.sort_unstable();
    assert_eq!(told, [(&["day".to_owned()][..], 2), (&["second".to_owned()][..], 4)]);
}

#[test]
fn a_report_without_an_answer_comes_again_unchanged_and_before_any_other() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    deny(&mut envoy, "5", 4_900, status(Verdict::Deny, 0, 1));
    envoy.request(0, &[("5", 2)]);
    envoy.request(0, &[("a", 1)]);
    let first = report(&only_call(&envoy));
    // It was counted, and the answer was lost.
    let call = only_call(&envoy);
    authority.decide(&call, envoy.world().now);
    for error in [CallError::Late, CallError::Shed, CallError::Refused, CallError::Malformed] {
        envoy.request(0, &[("5", 7)]);
        fail_all(&mut envoy, error);
        envoy.request(0, &[("b", 1)]);
        assert_eq!(report(&only_call(&envoy)), first, "after {error:?}");
    }
    // A second call at the same time tells nothing, as it might come first.
    envoy.request(0, &[("c", 1)]);
    assert_eq!(told(&envoy.world().sent[1]), []);
    let calls = answered_for(&mut envoy, &mut authority, 100);
    assert!(calls >= 2, "{calls}");
    envoy.request(0, &[("d", 1)]);
    let second = report(&only_call(&envoy));
    assert!(second.is_newer(first.number) && second.sequence == first.sequence);
    answer_all(&mut envoy, &mut authority);
    assert_eq!(authority.reported["5"].denied, 30);
    assert_eq!(lost(&mut envoy), 0);
}

/// Without requests nobody would find out that the sidecar is back.
#[test]
fn after_an_outage_without_requests_all_is_told() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    deny(&mut envoy, "5", 4_900, status(Verdict::Deny, 0, 1));
    envoy.request(0, &[("5", 2)]);
    for number in 0..5 {
        envoy.request(0, &[(&format!("x{number}"), 1)]);
        fail_all(&mut envoy, CallError::Unreachable);
    }
    assert!(!envoy.workers[0].breaker.is_closed());
    for _ in 0..100 {
        tick_for(&mut envoy, 100);
        fail_all(&mut envoy, CallError::Unreachable);
    }
    assert!(!envoy.workers[0].breaker.is_closed());
    answered_for(&mut envoy, &mut authority, 20_000);
    assert!(envoy.workers[0].breaker.is_closed());
    assert_eq!(authority.reported["5"].denied, 2);
}

#[test]
fn thousands_of_descriptors_are_told_in_calls_of_a_few_within_five_seconds() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    let names: Vec<String> = (0..5_000).map(|number| format!("{}", 1_000 + number)).collect();
    let ends = envoy.now().saturating_add(Nanos::from_secs(600));
    for name in &names {
        // Evicts others from the table, which has 2,048 places.
        envoy.record(0, name).state.deny(1, ends, Timestamp::default());
        envoy.request(0, &[(name, 2)]);
    }
    let mut calls = 0;
    for _ in 0..49 {
        tick_for(&mut envoy, 100);
        while !envoy.world().sent.is_empty() {
            let call = only_call(&envoy);
            assert!((1..=32).contains(&told(&call).len()));
            calls += answer_all(&mut envoy, &mut authority);
        }
    }
    let told: u64 = authority.reported.values().map(|hits| hits.denied).sum();
    assert_eq!((told, authority.reported.len()), (10_000, 5_000));
    assert!(calls >= 5_000 / 32, "{calls} calls");
    assert!(!envoy.workers[0].local.has_tallies() && envoy.workers[0].tallies.is_empty());
}

#[test]
fn what_an_evicted_record_had_to_tell_is_told() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    let names = names_of_one_set("1000", 20);
    for name in &names {
        let call = deny(&mut envoy, name, 4_000, status(Verdict::Deny, 0, 1));
        authority.count_report(&call);
        // What is under way meanwhile, so that more than the table has room for waits.
        envoy.workers[0].tallies.is_under_way = true;
        envoy.request(0, &[(name, 1)]);
    }
    envoy.workers[0].tallies.is_under_way = false;
    assert!(!envoy.workers[0].tallies.is_empty(), "some were evicted");
    answered_for(&mut envoy, &mut authority, 5_000);
    let told: Vec<u64> = names.iter().map(|name| authority.reported[name].denied).collect();
    assert_eq!(told, [1; 20]);
    assert_eq!(lost(&mut envoy), 0);
}

/// Clients may vary a descriptor that another one of their requests denies.
#[test]
fn descriptors_that_clients_invent_are_bounded_and_crowd_out_no_others() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    deny(&mut envoy, "5", 4_900, status(Verdict::Deny, 0, 1));
    for number in 0..10_000 {
        envoy.request(0, &[("5", 1), (&format!("{number}invented"), 1)]);
    }
    let dropped = lost(&mut envoy);
    assert!((10_000 - 2_048..10_000).contains(&dropped), "{dropped}");
    // Records that are evicted still find room.
    let tally = |number: u64| crate::leases::local_table::KeyTally {
        key: envoy.key(&format!("{number}known")),
        entries: Box::from(&encoded(&["k", &format!("{number}known")])[..]),
        hits: allowed(1),
        over: Vec::new(),
    };
    let known: Vec<_> = (0..1_000).map(tally).collect();
    known.into_iter().for_each(|tally| envoy.workers[0].keep_tally(tally));
    assert_eq!(lost(&mut envoy), 0);
    answered_for(&mut envoy, &mut authority, 5_000);
    let sum = |of: fn(&TalliedHits) -> u64| authority.reported.values().map(of).sum::<u64>();
    assert_eq!(sum(|hits| hits.denied), 10_000);
    assert_eq!(sum(|hits| hits.denied_elsewhere) as i64, 10_000 - dropped);
    assert_eq!(sum(|hits| hits.allowed), 1_000);
}

/// The table keeps only short descriptors.
#[test]
fn long_descriptors_are_told_and_take_bounded_memory() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    let long = |number: usize| format!("{number}{}", "x".repeat(5_000));
    for number in 0..3 {
        let call = deny(&mut envoy, &long(number), 4_900, status(Verdict::Deny, 0, 1));
        authority.count_report(&call);
        for _ in 0..4 {
            envoy.request(0, &[(&long(number), 1)]);
        }
    }
    answered_for(&mut envoy, &mut authority, 5_000);
    let told: Vec<u64> = authority.reported.values().map(|hits| hits.denied).collect();
    assert_eq!(told, [4; 3]);
    assert_eq!(lost(&mut envoy), 0);
    let ends = envoy.now().saturating_add(Nanos::from_secs(600));
    for number in 0..2_000 {
        envoy.record(0, &long(number)).state.deny(1, ends, Timestamp::default());
        envoy.request(0, &[(&long(number), 1)]);
    }
    let dropped = lost(&mut envoy);
    assert!((1_500..2_000).contains(&dropped), "{dropped}");
}

#[test]
fn a_worker_that_takes_over_tells_what_the_other_had_to_tell() {
    let (mut envoy, mut authority) = (Envoy::new(2, 64), Authority::default());
    deny(&mut envoy, "5", 4_900, status(Verdict::Deny, 0, 1));
    envoy.request(0, &[("5", 2)]);
    // One report is counted, without an answer, and more waits behind it.
    envoy.request(0, &[("a", 1)]);
    let call = only_call(&envoy);
    authority.decide(&call, envoy.world().now);
    envoy.request(0, &[("5", 3)]);
    envoy.world_mut().sent.clear();
    let left = envoy.workers[0].on_end();
    envoy.workers[1].adopt(left);
    answered_for(&mut envoy, &mut authority, 5_000);
    assert_eq!(authority.reported["5"].denied, 5);
    assert_eq!(lost(&mut envoy), 0);
}

#[test]
fn what_nobody_takes_over_is_counted_as_lost() {
    let mut envoy = Envoy::new(2, 64);
    deny(&mut envoy, "5", 4_900, status(Verdict::Deny, 0, 1));
    envoy.request(0, &[("5", 2)]);
    envoy.request(0, &[("a", 1)]);
    envoy.request(0, &[("5", 3)]);
    let left = envoy.workers[0].on_end();
    envoy.workers[0].abandon(left);
    assert_eq!(lost(&mut envoy), 5);
}

/// A call has one domain, and so has its report.
#[test]
fn a_report_is_in_a_call_of_its_own_domain() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    let request = |envoy: &mut Envoy, stream: u32, name: &str, domain: Option<&str>| {
        let mut descriptors = Descriptors::default();
        let mark = domain.map(|domain| domain_mark(domain).0).unwrap_or_default();
        descriptors.append(&[encoded(&["k", name]), mark].concat());
        descriptors.finish(envoy.workers[0].process.seed, 1);
        envoy.workers[0].decide_request(StreamId(stream), &descriptors, &Descriptors::default())
    };
    let domain = |call: &Sent| {
        use prost::Message;
        tidegate_wire::rls::RateLimitRequest::decode(&*call.message).unwrap().domain
    };
    for (stream, of) in [(1, None), (2, Some("e"))] {
        request(&mut envoy, stream, "5", of);
        let call = only_call(&envoy);
        envoy.world_mut().sent.clear();
        let ends = envoy.world().now + 4_900 * MILLI;
        let answer = made_up(Verdict::Deny, vec![status(Verdict::Deny, 0, ends)]);
        envoy.workers[0].on_answer(call.id, Ok(&answer));
        request(&mut envoy, stream + 10, "5", of);
    }
    let mut domains = Vec::new();
    for _ in 0..49 {
        tick_for(&mut envoy, 100);
        while !envoy.world().sent.is_empty() {
            let call = only_call(&envoy);
            if !told(&call).is_empty() {
                domains.push(domain(&call));
            }
            answer_all(&mut envoy, &mut authority);
        }
    }
    domains.sort_unstable();
    assert_eq!(domains, ["d", "e"]);
}

#[test]
fn without_leases_there_is_nothing_to_tell() {
    let (mut envoy, mut authority) = (Envoy::new(1, 0), Authority::default());
    for _ in 0..10 {
        envoy.request(0, &[("5", 1)]);
        assert_eq!(told(&only_call(&envoy)), []);
        answer_all(&mut envoy, &mut authority);
    }
    assert_eq!(answered_for(&mut envoy, &mut authority, 10_000), 0);
}
