use super::*;

fn slots(most: usize, bytes: usize, grace: Duration) -> Slots {
    let timeouts = Timeouts { request: Duration::from_secs(60), idle: Duration::from_secs(60) };
    Slots::new(Bounds { slots: most, bytes, grace, timeouts }, Arc::new(()), "test")
}

/// Makes a connection seem to have been in its phase for longer.
fn age(slot: &Slot, by: Duration) {
    let state = slot.own.state.load(Ordering::Relaxed);
    let since = (state >> 2).saturating_sub(millis(by));
    slot.own.state.store(since << 2 | state & 3, Ordering::Relaxed);
}

fn is_evicted(slot: &Slot) -> bool {
    slot.own.is_evicted.load(Ordering::Relaxed)
}

/// Slots of an endpoint that opened long ago.
fn long_open(mut slots: Slots) -> Slots {
    let shared = Arc::get_mut(&mut slots.0).expect("no other");
    shared.opened = Instant::now().checked_sub(Duration::from_secs(3_600)).expect("a past");
    slots
}

#[test]
fn the_connection_that_waits_longest_is_evicted() {
    let slots = long_open(slots(3, 0, Duration::ZERO));
    let three: Vec<Slot> = (0..3).filter_map(|_| slots.acquire()).collect();
    three[0].set_phase(Phase::Receiving);
    three[1].set_phase(Phase::Answering);
    for (slot, secs) in three.iter().zip([20, 30, 10]) {
        age(slot, Duration::from_secs(secs));
    }
    let fourth = slots.acquire().expect("a slot");
    assert_eq!(three.iter().map(is_evicted).collect::<Vec<_>>(), [false, true, false]);
    assert!(!is_evicted(&fourth));
    // Closed connections free their slots.
    drop(three);
    assert_eq!(slots.occupied().connections.len(), 1);
    assert_eq!(slots.occupied().evicting, 0);
    let _two = [slots.acquire(), slots.acquire()].map(|slot| slot.expect("a slot"));
    assert!(!is_evicted(&fourth));
}

#[test]
fn a_byte_now_and_then_does_not_restart_the_wait() {
    let slots = long_open(slots(2, 0, Duration::ZERO));
    let [slow, idle] = [slots.acquire(), slots.acquire()].map(|slot| slot.expect("a slot"));
    slow.set_phase(Phase::Receiving);
    age(&slow, Duration::from_secs(2));
    age(&idle, Duration::from_secs(1));
    // `Paced` does this with each read.
    if slow.phase() == Phase::Idle {
        slow.set_phase(Phase::Receiving);
    }
    slots.acquire().expect("a slot");
    assert!(is_evicted(&slow) && !is_evicted(&idle));
}

#[tokio::test]
async fn a_request_under_decision_is_answered_before_the_eviction() {
    let slots = long_open(slots(1, 0, Duration::ZERO));
    let slot = slots.acquire().expect("a slot");
    slot.set_phase(Phase::Deciding);
    age(&slot, Duration::from_secs(9));
    assert!(slots.acquire().is_none());
    // Chosen just before its phase changed.
    slots.occupied().evict(&slot.own);
    slot.set_phase(Phase::Deciding);
    let wanted = tokio::time::timeout(Duration::from_millis(1), slot.evicted());
    assert!(wanted.await.is_err());
    slot.begin_answer(3);
    slot.evicted().await;
}

#[test]
fn no_connection_is_evicted_within_the_grace() {
    let slots = long_open(slots(1, 0, Duration::from_secs(5)));
    let slot = slots.acquire().expect("a slot");
    age(&slot, Duration::from_secs(4));
    assert!(slots.acquire().is_none());
    age(&slot, Duration::from_secs(2));
    assert!(slots.acquire().is_some());
}

#[test]
fn stalled_bodies_are_evicted_for_others() {
    let slots = long_open(slots(9, 100, Duration::ZERO));
    let three: Vec<Slot> = (0..3).filter_map(|_| slots.acquire()).collect();
    three.iter().for_each(|slot| slot.set_phase(Phase::Receiving));
    assert_eq!(three[0].reserve(60), Ok(()));
    // Both are recent, so the later one is refused.
    assert_eq!(three[1].reserve(60), Err(NoRoom));
    three[1].reserve(0).expect("less");
    age(&three[0], Duration::from_secs(2));
    assert_eq!(three[2].reserve(60), Ok(()));
    assert_eq!(three.iter().map(is_evicted).collect::<Vec<_>>(), [true, false, false]);
    assert_eq!(slots.occupied().bytes, 60);
    drop(three);
    assert_eq!(slots.occupied().bytes, 0);
}

#[test]
fn clients_that_exceed_a_time_limit_are_closed_but_not_during_a_decision() {
    let slots = long_open(slots(9, 1 << 30, Duration::ZERO));
    let four: Vec<Slot> = (0..4).filter_map(|_| slots.acquire()).collect();
    four[1].set_phase(Phase::Receiving);
    four[2].set_phase(Phase::Deciding);
    // A mebibyte has sixteen more seconds.
    four[3].begin_answer(1 << 20);
    let later = |secs: u64| {
        for slot in &four {
            slot.own.due.fetch_sub(secs * 1_000, Ordering::Relaxed);
        }
        slots.end_overdue();
        four.iter().map(is_evicted).collect::<Vec<_>>()
    };
    assert_eq!(later(59), [false; 4]);
    assert_eq!(later(2), [true, true, false, false]);
    assert_eq!(later(16), [true, true, false, true]);
}

#[tokio::test]
async fn no_connection_is_accepted_while_many_are_closing() {
    let slots = long_open(slots(1, 0, Duration::ZERO));
    let mut waiting: Vec<Slot> = Vec::new();
    while waiting.len() <= EVICTING_MAX {
        slots.ready_to_accept().await;
        waiting.push(slots.acquire().expect("a slot"));
        age(waiting.last().expect("one"), Duration::from_secs(1));
    }
    let waited = tokio::time::timeout(Duration::from_millis(1), slots.ready_to_accept());
    assert!(waited.await.is_err());
    waiting.remove(0);
    slots.ready_to_accept().await;
}
