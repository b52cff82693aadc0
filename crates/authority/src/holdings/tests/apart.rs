//! Requests that are decided directly, over counters that no single update reaches.

use super::world::{Memory, Network, World};
use crate::{Authority, JointUse, Modes};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidegate_core::{
    Answer, DebitRequest, Descriptor, Direction, Entry, Hits, Request, Status, Verdict,
};

/// Limits that are decided directly, in every mode.
const LIMITS: &str = "- key: k
  rate_limits: [ { name: a, unit: day, requests: 7, count_denied: true } ]
- key: l
  rate_limits:
  - { name: a, unit: day, requests: 5 }
  - { name: b, algorithm: sliding_window, period: 1d, requests: 9 }
- key: q
  quota_mode: true
  rate_limit: { unit: day, requests_per_unit: 3 }
- key: s
  shadow_mode: true
  rate_limit: { unit: day, requests_per_unit: 4 }
";

fn descriptor(kind: usize, value: u64, direction: Direction) -> Descriptor {
    let entry = Entry::new(["k", "l", "q", "s"][kind], format!("v{value}"));
    Descriptor { direction, ..Descriptor::new(vec![entry]) }
}

fn request(descriptors: Vec<Descriptor>, hits: u64) -> Request {
    Request { domain: "d".into(), descriptors, hits: Hits::new(hits) }
}

type Asked = (u64, Vec<(usize, u64, bool)>);

fn asked() -> impl Strategy<Value = Vec<Asked>> {
    let descriptor = (0..4_usize, 0..2_u64, prop::bool::weighted(0.15));
    let request = (0..4_u64, prop::collection::vec(descriptor, 1..5));
    prop::collection::vec(request, 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// A request at a time gets the answers that one update of all counters would give, and leaves as much.
    #[test]
    fn answers_are_those_of_one_update(asks in asked()) {
        let mut world = World::new(1, LIMITS);
        world.set_delay(0);
        let alone = Authority::new(
            Memory::new(5), world.rules(), Modes::default(), Arc::new(()),
        ).expect("an authority");
        for (hits, descriptors) in asks {
            // One limit that counts denied hits has the whole request decided directly.
            let mut all = vec![descriptor(0, 9, Direction::Take)];
            // A counter that a request refunds is not taken from by it: which comes first would matter.
            let has_refunds = descriptors.iter().any(|(_, _, is_refund)| *is_refund);
            all.extend(descriptors.into_iter().map(|(kind, value, is_refund)| match is_refund {
                true => descriptor(kind, 1, Direction::Refund),
                false if has_refunds => descriptor(kind, 0, Direction::Take),
                false => descriptor(kind, value, Direction::Take),
            }));
            let request = request(all, hits);
            let expected = crate::wait(alone.decide(&request, world.now())).expect("an answer");
            let answer = crate::wait(world.sidecars[0].authority.decide(&request, world.now()));
            let answer = answer.expect("an answer");
            prop_assert_eq!(shown(&answer), shown(&expected));
        }
    }
}

fn shown(answer: &Answer) -> (Verdict, Vec<(Verdict, u32)>) {
    let status = |status: &Status| (status.verdict, status.remaining);
    (answer.verdict, answer.statuses.iter().map(status).collect())
}

/// Two requests at once, for the last hit of the same two limits: one of them gets it.
#[test]
fn requests_at_once_exceed_nothing_and_do_not_deny_each_other() {
    let limits = "- key: k\n  rate_limits: [ { unit: day, requests: 100, count_denied: true } ]
- key: l\n  rate_limit: { unit: day, requests_per_unit: 5 }
- key: m\n  rate_limit: { unit: day, requests_per_unit: 5 }\n";
    let mut world = World::new(2, limits);
    let of = |key: &str| Descriptor::new(vec![Entry::new(key, "v")]);
    for number in 0..40 {
        let mut descriptors = vec![of("k"), of("l"), of("m")];
        descriptors.rotate_left(number % 3);
        world.ask(number % 2, 1, descriptors);
        world.pass(300);
    }
    world.pass(50_000);
    assert_eq!((world.waiting(), world.allowed()), (0, 5));
    // All hits of denied requests came back.
    let left = [of("l"), of("m")].map(|descriptor| world.left(vec![descriptor]));
    assert_eq!(left, [0, 0]);
}

/// A place that is not reached: the failure rule decides, and what was reserved elsewhere comes back if it can.
#[test]
fn a_request_that_has_no_decision_keeps_nothing() {
    let mut world = World::new(1, LIMITS);
    let all = || vec![descriptor(0, 0, Direction::Take), descriptor(1, 0, Direction::Take)];
    world.ask(0, 1, all());
    world.pass(50_000);
    let before = world.allowed();
    assert_eq!(before, 1);
    // The second place is parted while the first one is asked.
    world.ask(0, 1, all());
    world.pass(500);
    *world.server.network.lock().unwrap() = Network::Down;
    world.pass(10_000);
    *world.server.network.lock().unwrap() = Network::Up;
    world.pass(50_000);
    assert_eq!((world.waiting(), world.allowed()), (0, before), "deny is the rule");
    assert!(world.server.commands.load(Ordering::Relaxed) >= 5);
}

/// Nodes of the FRS that are used as one.
#[test]
fn nodes_are_used_together() {
    let mut world = World::new(1, LIMITS);
    world.set_delay(0);
    let pair = request(vec![key_of("l", "x"), key_of("s", "x")], 4);
    for (how, expected, counts) in [
        (JointUse::Look, Verdict::Allow, [0, 0, 0]),
        (JointUse::Acquire, Verdict::Allow, [4, 4, 4]),
        (JointUse::Acquire, Verdict::Deny, [4, 4, 4]),
        (JointUse::Look, Verdict::Deny, [4, 4, 4]),
    ] {
        let used = world.sidecars[0].authority.use_nodes(&pair, how, world.now(), |verdict, of| {
            (verdict, of.iter().flatten().map(|window| window.count()).collect::<Vec<_>>())
        });
        let used = crate::wait(used).expect("known nodes");
        assert_eq!(used, (expected, counts.to_vec()), "{how:?}");
    }
}

/// A debit that arrives twice counts once, at each place.
#[test]
fn a_debit_counts_once_at_each_place() {
    let mut world = World::new(1, LIMITS);
    world.set_delay(0);
    let debits = request(
        vec![
            descriptor(0, 1, Direction::Take),
            descriptor(0, 2, Direction::Take),
            descriptor(0, 3, Direction::Take),
        ],
        2,
    );
    let debit = || DebitRequest { sequence: 3, call: 8, streams: vec![3], ages: Vec::new() };
    for _ in 0..3 {
        let (now, authority) = (world.now(), world.sidecars[0].authority.clone());
        let (debits, debit) = (debits.clone(), debit());
        let answer = Box::pin(async move { authority.debit(&debits, &debit, None, now).await });
        world.finish(answer).expect("an answer");
    }
    let left = |value| world.left(vec![descriptor(0, value, Direction::Take)]);
    assert_eq!([1, 2, 3].map(left), [5, 5, 5]);
}

fn key_of(name: &str, value: &str) -> Descriptor {
    Descriptor::new(vec![Entry::new(name, value)])
}
