use super::*;

fn slots(most: usize, bytes: usize, grace: Duration) -> Slots {
    let patience = Patience { request: Duration::from_secs(60), idle: Duration::from_secs(60) };
    Slots::new(Bounds { slots: most, bytes, grace, patience }, Arc::new(()), "test")
}

/// Makes a connection seem to be at what it is at for so much longer.
fn age(slot: &Slot, by: Duration) {
    let state = slot.own.state.load(Ordering::Relaxed);
    let since = (state >> 2).saturating_sub(millis(by));
    slot.own.state.store(since << 2 | state & 3, Ordering::Relaxed);
}

fn is_leaving(slot: &Slot) -> bool {
    slot.own.is_leaving.load(Ordering::Relaxed)
}

/// A door whose clock began long ago.
fn long_open(mut slots: Slots) -> Slots {
    let shared = Arc::get_mut(&mut slots.0).expect("no other");
    shared.opened = Instant::now().checked_sub(Duration::from_secs(3_600)).expect("a past");
    slots
}

#[test]
fn the_connection_that_waits_longest_gives_way() {
    let slots = long_open(slots(3, 0, Duration::ZERO));
    let three: Vec<Slot> = (0..3).filter_map(|_| slots.enter()).collect();
    three[0].enter(Phase::Receiving);
    three[1].enter(Phase::Answering);
    for (slot, secs) in three.iter().zip([20, 30, 10]) {
        age(slot, Duration::from_secs(secs));
    }
    let fourth = slots.enter().expect("a slot");
    assert_eq!(three.iter().map(is_leaving).collect::<Vec<_>>(), [false, true, false]);
    assert!(!is_leaving(&fourth));
    // One that has left is no longer in the way.
    drop(three);
    assert_eq!(slots.taken().connections.len(), 1);
    assert_eq!(slots.taken().leaving, 0);
    let _two = [slots.enter(), slots.enter()].map(|slot| slot.expect("a slot"));
    assert!(!is_leaving(&fourth));
}

#[test]
fn a_byte_now_and_then_makes_no_connection_younger() {
    let slots = long_open(slots(2, 0, Duration::ZERO));
    let [slow, idle] = [slots.enter(), slots.enter()].map(|slot| slot.expect("a slot"));
    slow.enter(Phase::Receiving);
    age(&slow, Duration::from_secs(2));
    age(&idle, Duration::from_secs(1));
    // What `Paced` does with each further byte.
    if slow.phase() == Phase::Idle {
        slow.enter(Phase::Receiving);
    }
    slots.enter().expect("a slot");
    assert!(is_leaving(&slow) && !is_leaving(&idle));
}

#[tokio::test]
async fn what_is_being_decided_is_decided_and_then_gives_way() {
    let slots = long_open(slots(1, 0, Duration::ZERO));
    let slot = slots.enter().expect("a slot");
    slot.enter(Phase::Deciding);
    age(&slot, Duration::from_secs(9));
    assert!(slots.enter().is_none());
    // Chosen in the moment before.
    slots.taken().let_go(&slot.own);
    slot.enter(Phase::Deciding);
    let wanted = tokio::time::timeout(Duration::from_millis(1), slot.is_wanted());
    assert!(wanted.await.is_err());
    slot.answer(3);
    slot.is_wanted().await;
}

#[test]
fn nobody_gives_way_within_the_grace() {
    let slots = long_open(slots(1, 0, Duration::from_secs(5)));
    let slot = slots.enter().expect("a slot");
    age(&slot, Duration::from_secs(4));
    assert!(slots.enter().is_none());
    age(&slot, Duration::from_secs(2));
    assert!(slots.enter().is_some());
}

#[test]
fn bodies_that_do_not_come_in_give_way_to_others() {
    let slots = long_open(slots(9, 100, Duration::ZERO));
    let three: Vec<Slot> = (0..3).filter_map(|_| slots.enter()).collect();
    three.iter().for_each(|slot| slot.enter(Phase::Receiving));
    assert_eq!(three[0].hold(60), Ok(()));
    // Both are young: the one that comes later is refused, and told so.
    assert_eq!(three[1].hold(60), Err(NoRoom));
    three[1].hold(0).expect("less");
    age(&three[0], Duration::from_secs(2));
    assert_eq!(three[2].hold(60), Ok(()));
    assert_eq!(three.iter().map(is_leaving).collect::<Vec<_>>(), [true, false, false]);
    assert_eq!(slots.taken().bytes, 60);
    drop(three);
    assert_eq!(slots.taken().bytes, 0);
}

#[test]
fn clients_that_take_too_long_are_cut_off_but_not_while_they_wait_for_us() {
    let slots = long_open(slots(9, 1 << 30, Duration::ZERO));
    let four: Vec<Slot> = (0..4).filter_map(|_| slots.enter()).collect();
    four[1].enter(Phase::Receiving);
    four[2].enter(Phase::Deciding);
    // Sixteen more seconds for a mebibyte.
    four[3].answer(1 << 20);
    let later = |secs: u64| {
        for slot in &four {
            slot.own.due.fetch_sub(secs * 1_000, Ordering::Relaxed);
        }
        slots.end_overdue();
        four.iter().map(is_leaving).collect::<Vec<_>>()
    };
    assert_eq!(later(59), [false; 4]);
    assert_eq!(later(2), [true, true, false, false]);
    assert_eq!(later(16), [true, true, false, true]);
}

#[tokio::test]
async fn nobody_is_accepted_while_many_are_on_their_way_out() {
    let slots = long_open(slots(1, 0, Duration::ZERO));
    let mut held: Vec<Slot> = Vec::new();
    while held.len() <= LEAVING_MAX {
        slots.may_accept().await;
        held.push(slots.enter().expect("a slot"));
        age(held.last().expect("one"), Duration::from_secs(1));
    }
    let waited = tokio::time::timeout(Duration::from_millis(1), slots.may_accept());
    assert!(waited.await.is_err());
    held.remove(0);
    slots.may_accept().await;
}
