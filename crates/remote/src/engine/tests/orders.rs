//! Random orders of events, and the bounds of the engine.

use super::world::World;
use super::*;
use proptest::prelude::*;

fn key(number: u64) -> Hashed {
    Hashed::narrow(u128::from(number))
}

/// One random life of a few engines that share a server.
fn live(seed: u64, keys: u64, fails_one_in: u64) -> World {
    let mut world = World::new(3, seed);
    for engine in &mut world.engines {
        // A small batch is full often.
        *engine = Engine::new(Rules { keys_max: 4, ..rules(u64::MAX) }, Lanes::One);
    }
    let events = 100 + world.random.below(300);
    for _ in 0..events {
        world.moment += world.random.below(3);
        let engine = world.random.below(3) as usize;
        match world.random.below(10) {
            0..3 => {
                let count = 1 + world.random.below(3);
                // A key may be there twice.
                let chosen = (0..count).map(|_| key(world.random.below(keys))).collect();
                let looks = world.random.below(6) == 0;
                world.begin(engine, chosen, looks);
            }
            3..6 if !world.requests.is_empty() => {
                let index = world.random.below(world.requests.len() as u64) as usize;
                if world.random.below(20) == 0 {
                    world.drop_future(index);
                } else {
                    world.poll(index);
                }
            }
            6 => _ = world.depart(engine),
            _ => _ = world.travel(fails_one_in),
        }
    }
    world.settle();
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn acknowledged_updates_are_there_exactly_once_in_one_serial_order(
        seed: u64, keys in 1..6_u64, fails_one_in in 0..30_u64,
    ) {
        live(seed, keys, fails_one_in).check();
    }

    #[test]
    fn without_failures_every_update_is_acknowledged(seed: u64, keys in 1..6_u64) {
        let world = live(seed, keys, 0);
        world.check();
        let over = world.requests.iter().filter_map(|request| request.result.as_ref());
        prop_assert!(over.clone().count() > 0 && over.clone().all(Result::is_ok));
    }
}

/// Three engines that are always busy on one key, each with the same way to the server. Before servers had
/// reservations, the first one to win knew the state, was the next one to arrive, and won for ever.
#[test]
fn engines_that_contend_for_a_key_all_make_progress() {
    let mut world = World::new(3, 1);
    let mut acknowledged = [0; 3];
    for _ in 0..2_000 {
        for engine in 0..3 {
            world.moment += 1;
            world.begin(engine, vec![key(1)], false);
            // The answer arrives, and what follows from it is at the server before the others' next flights are.
            world.travel_of(engine);
            for index in 0..world.requests.len() {
                world.poll(index);
            }
            world.depart(engine);
            world.travel_of(engine);
            world.take_acknowledged().into_iter().for_each(|engine| acknowledged[engine] += 1);
        }
    }
    let (least, most) = (acknowledged.iter().min().unwrap(), acknowledged.iter().max().unwrap());
    assert!(*least > 500 && least * 2 > *most, "{acknowledged:?}");
}
