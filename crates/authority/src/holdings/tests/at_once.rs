//! Calls that are answered within the call, or not begun.

use super::world::{World, key};
use tidegate_core::{Answer, Descriptor, Direction, Hits, Request, Verdict};
use tidegate_wire::{RequestReader, encode_request};

const LIMITS: &str = "- {key: k, rate_limit: {unit: day, requests_per_unit: 5000}}\n\
    - {key: counted, rate_limit: {unit: day, requests_per_unit: 5000, count_denied: true}}\n";

fn call(world: &World, hits: u64, descriptors: Vec<Descriptor>) -> Option<Answer> {
    let request = Request { domain: "d".into(), descriptors, hits: Hits::new(hits) };
    let (authority, now) = (&world.sidecars[0].authority, world.now());
    let mut reader = RequestReader::default();
    let message = encode_request(&request);
    let called = authority.answer_call(&mut reader, &message, |_| None, || now);
    called.expect("no error").answered().map(|(_, answer)| answer)
}

#[test]
fn a_call_is_answered_at_once_if_holdings_or_a_recent_denial_decide() {
    let mut world = World::new(1, LIMITS);
    assert_eq!(call(&world, 1, key("v")), None, "nothing is held");
    world.pass(10_000);
    assert_eq!((world.commands(), world.left(key("v"))), (0, 5_000), "nothing has happened");
    for _ in 0..5 {
        world.ask(0, 1, key("v"));
        world.pass(10_000);
    }
    let (before, commands) = (world.answered.len(), world.commands());
    assert_eq!((before, world.allowed()), (5, 5));
    let answer = call(&world, 1, key("v")).expect("tokens are held");
    assert_eq!(answer.verdict, Verdict::Allow);
    world.pass(10_000);
    assert_eq!(world.commands(), commands);
    world.ask(0, 6_000, key("v"));
    world.pass(10_000);
    let answer = call(&world, 6_000, key("v")).expect("a denial is recent");
    assert_eq!(answer.verdict, Verdict::Deny);
}

#[test]
fn a_call_that_needs_the_true_state_is_not_begun() {
    let mut world = World::new(1, LIMITS);
    let mut counted = key("v");
    counted[0].entries[0].key = "counted".into();
    let mut refund = key("v");
    refund[0].direction = Direction::Refund;
    for descriptors in [counted, refund] {
        assert_eq!(call(&world, 1, descriptors), None);
        world.pass(10_000);
        assert_eq!(world.commands(), 0, "nothing has happened");
    }
    let mut none = key("v");
    none[0].entries[0].key = "unlimited".into();
    assert_eq!(call(&world, 1, none).expect("no limit applies").verdict, Verdict::Allow);
}
