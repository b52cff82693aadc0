//! Steady load on several workers, with a round trip of a millisecond: the number of calls, and the
//! usage of a limit.

use super::authority::Authority;
use super::world::{Envoy, MILLI};
use crate::worker::HeadersStatus;

/// The result of a second of load.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    allowed: u64,
    paused: u64,
    calls: u64,
}

/// `each` requests per millisecond and worker, for a second.
fn second(envoy: &mut Envoy, authority: &mut Authority, each: usize, name: &str) -> Outcome {
    let mut outcome = Outcome { allowed: 0, paused: 0, calls: 0 };
    for ms in 0..1_000 {
        for worker in 0..envoy.workers.len() {
            for _ in 0..each {
                match envoy.request(worker, &[(name, 1)]).1 {
                    HeadersStatus::Continue => outcome.allowed += 1,
                    HeadersStatus::Pause => outcome.paused += 1,
                }
            }
        }
        let now = envoy.world().now;
        let calls = std::mem::take(&mut envoy.world_mut().sent);
        let answers: Vec<Vec<u8>> =
            calls.iter().map(|call| authority.decide(call, now + MILLI / 2)).collect();
        envoy.pass_ms(1);
        for (call, answer) in calls.iter().zip(answers) {
            outcome.calls += 1;
            envoy.workers[call.worker].on_answer(call.id, Ok(&answer));
        }
        if ms % 100 == 99 {
            envoy.tick_all();
        }
    }
    let mut world = envoy.world_mut();
    outcome.allowed += world.resumed.drain(..).count() as u64;
    let replied = world.replies.drain(..).count() as u64;
    outcome.paused = outcome.paused.saturating_sub(replied);
    outcome
}

/// Load on a limit: the requests that pass in each second, and the most calls.
#[test]
fn a_hot_key_costs_few_calls_and_its_limit_is_used_up() {
    let table = [
        (1, 1, "100000", 1_000, 10),
        (4, 1, "100000", 4_000, 20),
        (4, 4, "100000", 16_000, 20),
        (1, 1, "1000", 1_000, 60),
        (4, 1, "1000", 1_000, 60),
        (8, 2, "10000", 10_000, 100),
        (4, 1, "100", 100, 60),
        (1, 1, "100", 100, 30),
    ];
    for (workers, each, name, allowed, calls) in table {
        let (mut envoy, mut authority) = (Envoy::new(workers, 64), Authority::default());
        for number in 0..3 {
            let row = format!("{workers} workers, {each} a ms, limit {name}, second {number}");
            let outcome = second(&mut envoy, &mut authority, each, name);
            assert_eq!(outcome.allowed, allowed, "{row}");
            assert!(outcome.calls <= calls, "{row}: {outcome:?}");
            assert!(outcome.paused <= calls * each as u64, "{row}: {outcome:?}");
        }
    }
}
