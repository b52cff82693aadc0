//! Counters in rare use, which decide without holdings.

use super::world::{Network, World, key};
use crate::Modes;
use crate::holdings::Failure;
use crate::holdings::rare::RARE_MAX;
use std::sync::atomic::Ordering;

const LIMITS: &str = "- {key: k, rate_limit: {unit: day, requests_per_unit: 50}}\n\
    - {key: few, rate_limit: {unit: day, requests_per_unit: 2}}\n";

fn of(entry: &str, value: &str) -> Vec<tidegate_core::Descriptor> {
    let mut descriptors = key(value);
    descriptors[0].entries[0].key = entry.into();
    descriptors
}

/// Asks, and waits for the answer.
fn ask(world: &mut World, descriptors: Vec<tidegate_core::Descriptor>) {
    world.ask(0, 1, descriptors);
    world.pass(10_000);
}

/// The registration of a sidecar is a command too, every 20 seconds.
fn registered(limits: &str, failure: Failure) -> World {
    let mut world = World::with(1, limits, Modes::default(), failure);
    ask(&mut world, of("k", "first"));
    world
}

#[test]
fn a_key_that_comes_once_takes_one_command_and_leaves_nothing_here() {
    let mut world = registered(LIMITS, Failure::Deny);
    let (commands, held) = (world.commands(), world.local_keys(0));
    for number in 0..100 {
        ask(&mut world, of("k", &format!("v{number}")));
    }
    assert_eq!((world.allowed(), world.waiting()), (101, 0));
    assert_eq!((world.commands() - commands, world.local_keys(0)), (100, held));
    assert_eq!(world.left(of("k", "v7")), 49);
}

#[test]
fn a_limit_is_exact_however_rarely_it_is_asked() {
    let mut world = registered(LIMITS, Failure::Deny);
    for turn in 1..=4 {
        ask(&mut world, of("few", "v"));
        world.pass(1_500_000);
        assert_eq!(world.allowed(), 1 + turn.min(2));
    }
    let last = world.answered.last().and_then(|last| last.answer.as_ref().ok());
    assert_eq!(last.expect("an answer").statuses[0].remaining, 0);
}

#[test]
fn the_second_request_within_a_second_fills_the_holding() {
    let mut world = registered(LIMITS, Failure::Deny);
    let held = world.local_keys(0);
    ask(&mut world, of("k", "v"));
    assert_eq!(world.local_keys(0), held);
    ask(&mut world, of("k", "v"));
    assert_eq!(world.local_keys(0), held + 1);
    assert!(world.left(of("k", "v")) <= 48);
}

#[test]
fn descriptors_at_several_places_are_decided_over_holdings() {
    let mut world = registered(LIMITS, Failure::Deny);
    let held = world.local_keys(0);
    let both = [of("k", "v"), of("few", "v")].concat();
    for _ in 0..3 {
        ask(&mut world, both.clone());
        world.pass(1_500_000);
    }
    assert_eq!(world.allowed(), 3);
    assert!(world.local_keys(0) > held);
    world.rest(3_000);
    assert_eq!((world.left(of("k", "v")), world.left(of("few", "v"))), (48, 0));
}

#[test]
fn the_failure_mode_decides_while_the_server_is_away() {
    for (failure, passes) in [(Failure::Deny, 0), (Failure::Allow, 10), (Failure::Local, 10)] {
        let mut world = registered(LIMITS, failure);
        world.rest(1_000);
        *world.server.network.lock().unwrap() = Network::Down;
        for number in 0..10 {
            ask(&mut world, of("k", &format!("v{number}")));
        }
        assert_eq!((world.allowed(), world.waiting()), (1 + passes, 0), "{failure:?}");
    }
}

#[test]
fn more_than_may_be_under_way_wait_for_refills() {
    let mut world = registered(LIMITS, Failure::Deny);
    let holdings = world.sidecars[0].authority.holdings.clone().expect("holdings");
    for (under_way, flights) in [(RARE_MAX - 1, 0), (RARE_MAX, 1)] {
        holdings.rare.store(under_way, Ordering::Relaxed);
        world.ask(0, 1, of("k", &format!("{under_way}")));
        assert_eq!(holdings.desk().flights, flights);
        world.pass(10_000);
        assert_eq!(holdings.rare.load(Ordering::Relaxed), under_way);
    }
}

/// Symptom: hits that a sidecar had admitted without the server never counted there if the counter was asked less than once a
/// second afterwards. Cause: such a request is decided by the true counter alone, and only a refill charges what is owed.
#[test]
fn what_is_owed_is_charged_however_rarely_the_counter_is_asked() {
    let mut world = registered(LIMITS, Failure::Local);
    ask(&mut world, of("k", "v"));
    world.rest(2_500);
    *world.server.network.lock().unwrap() = Network::Down;
    for _ in 0..30 {
        ask(&mut world, of("k", "v"));
    }
    assert_eq!(world.allowed(), 1 + 31);
    *world.server.network.lock().unwrap() = Network::Up;
    for _ in 0..2 {
        world.rest(2_500);
        ask(&mut world, of("k", "v"));
    }
    world.rest(2_500);
    assert_eq!((world.allowed(), world.left(of("k", "v"))), (1 + 33, 50 - 33));
}

/// Symptom: a hit counted twice if its answer took a second, whatever the limit. Cause: what concerns tokens of a bucket alone
/// was true of all.
#[test]
fn a_hit_counts_once_however_long_its_answer_takes() {
    let mut world = registered(LIMITS, Failure::Deny);
    world.set_delay(800_000_000);
    ask(&mut world, of("k", "v"));
    world.rest(5_000);
    assert_eq!((world.allowed(), world.left(of("k", "v"))), (2, 49));
}

/// A request whose answer comes in the next window counts there.
#[test]
fn hits_happen_in_the_window_that_counts_them() {
    let mut world = World::new(1, "- {key: k, rate_limit: {unit: second, requests_per_unit: 1}}\n");
    for turn in 0..40 {
        world.rest(2_500);
        // The end of a second comes while the request is on its way.
        let micros = world.now().as_nanos() / 1_000 % 1_000_000;
        world.pass(2_000_000 - micros - turn * 24);
        ask(&mut world, of("k", "v"));
        ask(&mut world, of("k", "v"));
    }
    let passed = world.answered.iter().filter(|answered| answered.is_allow());
    let mut seconds: Vec<u64> = passed.map(|passed| passed.true_at / 1_000_000_000).collect();
    let passed = seconds.len();
    seconds.dedup();
    assert_eq!((seconds.len(), passed), (passed, 40));
}
