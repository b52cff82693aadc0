//! Two engines on one simulated server.

use super::*;
use std::task::{Context, Poll, Waker};
use tidegate_store::Entries;

const KEY: [Hashed; 1] = [Hashed::narrow(7)];
const SECOND: u64 = 1_000_000_000;
/// The server's time at the local time 0, in microseconds.
const START: u64 = 1_000_000_000_000;

fn engine(client: u64) -> Engine {
    let engine = Engine::new(5, client, Duration::from_millis(100));
    engine.connect();
    engine.observe(START);
    engine
}

/// Adds one to the first word, and returns what it was before. The commands of `engine` are executed at once.
fn add(engine: &Engine, server: &mut Server) -> u64 {
    let (now, mut before) = (engine.now().unwrap(), 0);
    let mut update = |entries: &mut Entries<'_>| {
        let entry = entries.get(0);
        before = entry.state[0];
        entry.state[0] += 1;
        *entry.expires_at = now.as_nanos() + 60 * SECOND;
    };
    let mut updating = Box::pin(engine.update(&KEY, now, &mut update));
    let mut context = Context::from_waker(Waker::noop());
    while updating.as_mut().poll(&mut context) == Poll::Pending {
        for command in engine.depart() {
            let answer = server.execute(&command, START);
            assert_eq!(engine.answered(&command, answer), Next::Landed);
        }
    }
    drop(updating);
    before
}

#[test]
fn engines_see_each_others_updates_until_a_failover_forgets_some() {
    let (one, two, mut server) = (engine(1), engine(2), Server::default());
    let added = [add(&one, &mut server), add(&two, &mut server), add(&one, &mut server)];
    assert_eq!(added, [0, 1, 2]);
    assert_eq!(server.entry(&KEY[0], START).unwrap().state[0], 3);
    assert_eq!(server.forget_since(START), 3);
    assert_eq!(add(&two, &mut server), 0);
    // Kept for ten seconds beyond its end.
    assert!(server.entry(&KEY[0], START + 69_000_000).is_some());
    assert!(server.entry(&KEY[0], START + 71_000_000).is_none());
}

#[test]
fn a_command_of_a_time_to_come_is_sent_again() {
    let (engine, mut server) = (engine(1), Server::default());
    let now = engine.now().unwrap();
    let mut update = |entries: &mut Entries<'_>| {
        entries.get(0).state[0] = 1;
        *entries.get(0).expires_at = now.as_nanos() + SECOND;
    };
    let mut updating = std::pin::pin!(engine.update(&KEY, now, &mut update));
    let mut context = Context::from_waker(Waker::noop());
    assert!(updating.as_mut().poll(&mut context).is_pending());
    let command = engine.depart().remove(0);
    let early = server.execute(&command, START - 10_000);
    assert_eq!(engine.answered(&command, early), Next::Again(10_001_000));
    let answer = server.execute(&command, START);
    assert_eq!(engine.answered(&command, answer), Next::Landed);
    assert_eq!(updating.as_mut().poll(&mut context), Poll::Ready(Ok(())));
}
