//! Turns of Envoy's event loop: which requests call, wait, queue and end, and when.

use super::authority::{Authority, made_up, status};
use super::world::{Envoy, MILLI, NoFacts};
use super::{answer_all, fail_all, only_call, replied, resumed};
use crate::host::{RequestFacts, StreamId};
use crate::worker::call_error::{CallError, Undecided};
use crate::worker::pending_calls::{CALLS_MAX, Requester, Waiter};
use crate::worker::tick_clock::Tick;
use crate::worker::{HeadersStatus, Worker};
use tidegate_core::Verdict;

/// A request from this address.
struct From(Option<&'static str>);

impl RequestFacts for From {
    fn header<T>(&self, _: &str, _: impl FnOnce(&[u8]) -> T) -> Option<T> {
        None
    }

    fn property<T>(&self, path: &[&str], read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        assert_eq!(path, ["source", "address"]);
        self.0.map(|address| read(address.as_bytes()))
    }
}

#[test]
fn a_request_is_decided_by_the_descriptors_that_its_configuration_makes() {
    let mut envoy = Envoy::new(1, 64);
    let worker = &mut envoy.workers[0];
    assert_eq!(worker.on_request(StreamId(1), &From(None)), HeadersStatus::Continue);
    assert_eq!(envoy.world().sent.len(), 0);
    for (stream, address) in [(2, "10.0.0.1:80"), (3, "10.0.0.2:80")] {
        let status = envoy.workers[0].on_request(StreamId(stream), &From(Some(address)));
        assert_eq!(status, HeadersStatus::Pause);
    }
    let messages: Vec<String> = envoy
        .world()
        .sent
        .iter()
        .map(|call| String::from_utf8_lossy(&call.message).into_owned())
        .collect();
    assert_eq!(messages.len(), 2);
    assert!(messages[0].contains("10.0.0.1") && messages[1].contains("10.0.0.2"), "{messages:?}");
}

/// A waiter for one hit of `name`, which must be decided by the end of this tick.
fn waiter(envoy: &Envoy, stream: u32, name: &str, deadline: Tick) -> Waiter {
    let descriptors = envoy.descriptors(0, &[(name, 1)]);
    Waiter { requester: Requester::Stream(StreamId(stream)), descriptors, deadline }
}

#[test]
fn a_queued_request_calls_until_its_deadline_has_passed() {
    for (deadline, expected) in [(4, Err(Undecided::Overload)), (5, Ok(())), (6, Ok(()))] {
        let mut envoy = Envoy::new(1, 64);
        (0..5).for_each(|_| envoy.tick_all());
        let (waiter, now) = (waiter(&envoy, 1, "a", Tick::new(deadline)), envoy.now());
        assert_eq!(envoy.workers[0].submit(waiter, &[], now), expected, "by {deadline}");
        assert_eq!(envoy.world().sent.len(), usize::from(expected.is_ok()));
        let logged = envoy.world().logs.iter().any(|line| line.contains("came too late"));
        assert_eq!(logged, expected.is_err());
    }
}

#[test]
fn a_call_ends_by_the_deadline_of_the_request_that_made_it() {
    let mut envoy = Envoy::new(1, 64);
    let (waiter, now) = (waiter(&envoy, 1, "a", Tick::new(1)), envoy.now());
    envoy.workers[0].submit(waiter, &[], now).unwrap();
    envoy.tick_all();
    assert_eq!(envoy.world().sent.len(), 1);
    envoy.tick_all();
    assert_eq!(envoy.world().sent.len(), 0);
}

/// The response must be in time for all that wait for it.
#[test]
fn of_requests_decided_again_the_one_with_the_earliest_deadline_calls() {
    let mut envoy = Envoy::new(1, 64);
    let (one, two) = (envoy.request(0, &[("a", 1)]).0, envoy.request(0, &[("b", 1)]).0);
    envoy.world_mut().sent.clear();
    let later = waiter(&envoy, one.0, "c", Tick::new(9));
    let earlier = waiter(&envoy, two.0, "c", Tick::new(8));
    let now = envoy.now();
    envoy.workers[0].begin_turn();
    envoy.workers[0].decide_again(vec![later, earlier], now);
    let call = only_call(&envoy);
    assert_eq!(envoy.workers[0].calls.requester_of(call.id), Some(Requester::Stream(two)));
    assert_eq!(envoy.workers[0].calls.calls(), 3);
}

#[test]
fn requests_that_are_gone_neither_call_nor_spend_tokens() {
    let mut envoy = Envoy::new(1, 64);
    let (requester, _) = envoy.request(0, &[("a", 1)]);
    let (gone, _) = envoy.request(0, &[("a", 1)]);
    let call = only_call(&envoy);
    envoy.world_mut().sent.clear();
    envoy.workers[0].on_gone(requester, &NoFacts);
    envoy.workers[0].on_gone(gone, &NoFacts);
    let ends = envoy.world().now + 100 * MILLI;
    let granted = status(Verdict::Allow, 9, ends);
    envoy.workers[0].on_answer(call.id, Ok(&made_up(Verdict::Allow, vec![granted])));
    assert_eq!((envoy.slot("a").pool.left(envoy.now()), envoy.world().sent.len()), (8, 0));
    assert_eq!(super::held_tokens(&envoy, "a"), Some(1), "what a waiter needed stays at hand");
}

/// The response headers of a request that another filter has answered meanwhile.
#[test]
fn a_request_answered_by_another_filter_counts_as_paused_until_it_is_gone() {
    let mut envoy = Envoy::new(1, 64);
    let (stream, _) = envoy.request(0, &[("a", 1)]);
    envoy.workers[0].on_response(stream, &NoFacts);
    assert_eq!(envoy.workers[0].paused(), 1);
    assert_eq!(envoy.world().headers, []);
    envoy.workers[0].on_gone(stream, &NoFacts);
    assert_eq!(envoy.workers[0].paused(), 0);
}

/// Forty requests wait for the response of one call.
fn forty_waiting(envoy: &mut Envoy, authority: &mut Authority) {
    for _ in 0..41 {
        envoy.request(0, &[("100", 1)]);
    }
    answer_all(envoy, authority);
    assert_eq!(resumed(envoy), [1]);
}

#[test]
fn a_turn_finishes_sixteen_requests_and_asks_once_for_another_turn() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    forty_waiting(&mut envoy, &mut authority);
    let call = only_call(&envoy);
    let answer = authority.decide(&call, envoy.world().now);
    envoy.workers[0].on_answer(call.id, Ok(&answer));
    let mut found = Vec::new();
    for _ in 0..3 {
        let due = envoy.workers[0].resume_queue.due();
        found.push((resumed(&envoy).len(), due, envoy.world().wakes.len()));
        envoy.world_mut().wakes.clear();
        envoy.workers[0].on_wake();
    }
    assert_eq!(found, [(16, 24, 1), (16, 8, 1), (8, 0, 0)]);
}

#[test]
fn ticks_finish_what_is_due_if_envoy_refuses_the_wake() {
    let (mut envoy, mut authority) = (Envoy::new(1, 64), Authority::default());
    forty_waiting(&mut envoy, &mut authority);
    envoy.world_mut().no_wakes = true;
    answer_all(&mut envoy, &mut authority);
    let mut found = vec![resumed(&envoy).len()];
    for _ in 0..2 {
        envoy.tick_all();
        found.push(resumed(&envoy).len());
    }
    assert_eq!(found, [16, 16, 8]);
}

#[test]
fn the_end_of_a_failed_call_finishes_nothing_before_the_next_turn() {
    let mut envoy = Envoy::new(1, 64);
    // A turn that may still finish requests.
    envoy.tick_all();
    let (stream, _) = envoy.request(0, &[("a", 1)]);
    let call = only_call(&envoy);
    envoy.workers[0].on_answer(call.id, Err(CallError::Unreachable));
    assert_eq!((replied(&envoy), envoy.world().wakes.len()), (vec![], 1));
    envoy.wake_all();
    assert_eq!(replied(&envoy), [(stream.0, 500)]);
}

#[test]
fn requests_that_find_envoy_full_queue_until_a_call_ends() {
    let mut envoy = Envoy::new(1, 64);
    envoy.request(0, &[("a", 1)]);
    envoy.request(0, &[("b", 1)]);
    envoy.request(0, &[("b", 1)]);
    let [first, second] = &std::mem::take(&mut envoy.world_mut().sent)[..] else {
        panic!("two calls")
    };
    envoy.workers[0].on_answer(second.id, Err(CallError::Overflow));
    envoy.wake_all();
    assert_eq!((replied(&envoy), envoy.world().sent.len()), (vec![], 0));
    assert_eq!(envoy.workers[0].calls.waiting(), 3);
    envoy.request(0, &[("c", 1)]);
    assert_eq!(envoy.world().sent.len(), 0, "there is no room for others either");
    let answer = made_up(Verdict::Allow, vec![status(Verdict::Allow, 0, 0)]);
    envoy.workers[0].on_answer(first.id, Ok(&answer));
    envoy.wake_all();
    assert_eq!(envoy.world().sent.len(), 2);
}

#[test]
fn requests_that_find_envoy_full_call_again_at_the_next_tick() {
    let mut envoy = Envoy::new(1, 64);
    envoy.request(0, &[("a", 1)]);
    assert_eq!(fail_all(&mut envoy, CallError::Overflow), 1);
    assert_eq!(envoy.world().sent.len(), 0);
    envoy.tick_all();
    assert_eq!(envoy.world().sent.len(), 1);
}

/// The end of the earlier call was lost: its requests must not wait for it.
#[test]
fn a_call_whose_id_envoy_uses_again_has_ended() {
    let mut envoy = Envoy::new(1, 64);
    let (stream, _) = envoy.request(0, &[("a", 1)]);
    envoy.world_mut().calls = 0;
    envoy.request(0, &[("b", 1)]);
    envoy.tick_all();
    assert_eq!(replied(&envoy), [(stream.0, 503)]);
    assert_eq!((envoy.workers[0].calls.calls(), envoy.workers[0].calls.waiting()), (1, 1));
}

#[test]
fn a_call_that_fails_at_once_ends_with_its_cause_or_at_the_next_tick() {
    for (cause, expected) in [(Some(CallError::Late), 503), (None, 500)] {
        let mut envoy = Envoy::new(1, 64);
        envoy.world_mut().fails_at_once = true;
        let (stream, step) = envoy.request(0, &[("a", 1)]);
        assert_eq!((step, envoy.workers[0].calls.waiting()), (HeadersStatus::Pause, 1));
        if let Some(cause) = cause {
            envoy.workers[0].on_answer(crate::host::CallId(7), Err(cause));
            envoy.wake_all();
        } else {
            envoy.tick_all();
        }
        assert_eq!(replied(&envoy), [(stream.0, expected)]);
        assert_eq!(envoy.workers[0].calls.waiting(), 0);
    }
}

#[test]
fn a_worker_that_ends_decides_queued_requests_too() {
    let mut envoy = Envoy::new(1, 64);
    for number in 0..CALLS_MAX + 5 {
        envoy.request(0, &[(&format!("{number}"), 1)]);
    }
    assert_eq!(envoy.world().sent.len(), CALLS_MAX);
    let decided = envoy.workers[0].on_end();
    envoy.workers[0].adopt(decided);
    envoy.wake_all();
    assert_eq!(replied(&envoy).len(), CALLS_MAX + 5);
    assert_eq!(envoy.workers[0].calls.waiting(), 0);
}

/// Another worker adopts the requests of one that has ended.
#[test]
fn adopted_requests_are_finished_unless_they_are_gone() {
    let mut envoy = Envoy::new(2, 64);
    for _ in 0..40 {
        envoy.request(0, &[("a", 1)]);
    }
    let (ended, adopting) = envoy.workers.split_at_mut(1);
    let (ended, adopting): (&mut Worker<_>, &mut Worker<_>) = (&mut ended[0], &mut adopting[0]);
    let decided = ended.on_end();
    adopting.adopt(decided);
    let finished = replied(&envoy).len();
    assert_eq!(envoy.workers[1].paused(), 40 - finished);
    envoy.workers[1].on_gone(StreamId(40), &NoFacts);
    envoy.wake_all();
    let rest = replied(&envoy);
    assert_eq!(rest.len(), 40 - finished - 1);
    assert!(!rest.contains(&(40, 500)));
}
