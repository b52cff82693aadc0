//! How debits wait: as one with others of the same descriptors, in their order, and not for ever.

use super::*;

fn at(secs: u64) -> Timestamp {
    Timestamp::from_secs(1_000 + secs)
}

/// Hits of these keys, from a stream that ended at a second.
fn group(direction: Direction, keys: &[u128], hits: u64, secs: u64) -> Group {
    let debit = |key: &u128| Debit { key: LeaseKey(*key), entries: Box::default(), hits };
    let debits = keys.iter().map(debit).collect();
    Group { direction, debits, taken_at: at(secs), since: at(secs) }
}

fn taken(key: u128, hits: u64) -> Group {
    group(Direction::Take, &[key], hits, 0)
}

fn refunded(key: u128, hits: u64) -> Group {
    group(Direction::Refund, &[key], hits, 0)
}

fn added(groups: &[Group]) -> Debits {
    let mut debits = Debits::default();
    for group in groups {
        assert_eq!(debits.add(group.clone()), Ok(()));
    }
    debits
}

#[test]
fn streams_of_the_same_descriptors_wait_as_one_and_refunds_by_themselves() {
    let both = |hits, secs| group(Direction::Take, &[1, 2], hits, secs);
    let mut debits = added(&[
        both(3, 5),
        refunded(1, 7),
        taken(1, 1),
        both(4, 2),
        group(Direction::Take, &[2, 1], 9, 0),
        group(Direction::Refund, &[1], 1, 8),
        both(u64::MAX, 9),
    ]);
    let waiting = [
        // The oldest of them counts.
        both(u64::MAX, 2),
        refunded(1, 8),
        taken(1, 1),
        group(Direction::Take, &[2, 1], 9, 0),
    ];
    assert_eq!(debits.waiting(), 4);
    assert_eq!(debits.take_groups(), waiting);
    assert!(debits.is_empty());
    // Later ones find those that wait by then.
    for hits in [1, 2] {
        debits.add(taken(1, hits)).expect("room");
    }
    assert_eq!(debits.take_groups(), [taken(1, 3)]);
}

#[test]
fn refunds_wait_for_a_tick_and_other_debits_do_not() {
    let mut debits = added(&[refunded(1, 1)]);
    assert!(!debits.is_due());
    debits.tick(at(1));
    assert!(debits.is_due());
    debits.take_groups();
    assert!(!debits.is_due(), "nothing waits");
    debits.add(refunded(1, 1)).expect("room");
    assert!(!debits.is_due());
    debits.add(taken(1, 1)).expect("room");
    assert!(debits.is_due());
    debits.take_groups();
    // A call without an answer comes before all others, once a tick.
    let call = || DebitCall { number: 1, groups: vec![taken(2, 1)], may_be_counted: true };
    debits.keep_unanswered(call());
    debits.tick(at(2));
    assert!(debits.is_due());
    assert_eq!(debits.take_unanswered().map(|call| call.groups), Some(vec![taken(2, 1)]));
    debits.keep_unanswered(call());
    debits.add(taken(1, 1)).expect("room");
    assert!(!debits.is_due());
    debits.tick(at(3));
    assert!(debits.is_due());
    debits.under_way = debits.take_unanswered();
    assert!(!debits.is_due(), "one is under way");
}

#[test]
fn what_waits_for_more_than_a_minute_is_lost_wherever_it_waits() {
    let of = |key, secs| group(Direction::Take, &[key], 5, secs);
    let mut debits = added(&[of(1, 0), refunded(2, 100), of(3, 1)]);
    debits.separate(vec![of(4, 0), of(5, 1)]);
    let groups = vec![of(6, 9), of(7, 0)];
    debits.keep_unanswered(DebitCall { number: 1, groups, may_be_counted: true });
    assert_eq!(debits.tick(at(60)), Lost { hits: 0 });
    assert_eq!(
        debits.tick(Timestamp::from_nanos(at(60).as_nanos() + 1)),
        Lost { hits: 5 + 5 + 10 }
    );
    assert_eq!(debits.waiting(), 2);
    assert!(debits.take_unanswered().is_none());
    assert_eq!(debits.tick(at(90)), Lost { hits: 5 + 5 });
    assert!(debits.is_empty());
}

/// A group that the sidecar refused with others may be refused again, so the others need not wait for it.
#[test]
fn groups_that_go_alone_take_turns_with_the_others() {
    let mut debits = added(&[]);
    let keys = |groups: Vec<Group>| groups.iter().map(|of| of.debits[0].key.0).collect::<Vec<_>>();
    debits.separate((1..=10).map(|key| taken(key, 1)).collect());
    assert!(!debits.is_due());
    debits.tick(at(1));
    assert!(debits.is_due());
    debits.add(taken(20, 1)).expect("room");
    debits.add(taken(21, 1)).expect("room");
    let calls: Vec<_> = (0..9).map(|_| keys(debits.take_groups())).collect();
    let alone = (2..=8).map(|key| vec![key]);
    let expected: Vec<_> = [vec![1], vec![20, 21]].into_iter().chain(alone).collect();
    assert_eq!(calls, expected);
    // Eight in a tick.
    assert!(!debits.is_due());
    debits.tick(at(2));
    assert!(debits.is_due());
    assert_eq!(keys(debits.take_groups()), [9]);
}

#[test]
fn a_call_has_as_many_descriptors_as_fit_but_at_least_one_stream() {
    let keys = |first: u128, count: u128| (first..first + count).collect::<Vec<_>>();
    let of = |first, count| group(Direction::Take, &keys(first, count), 1, 0);
    let mut debits = added(&[of(100, 40), of(200, 20), of(300, 12), of(400, 1), of(500, 32)]);
    let calls: Vec<_> = (0..4).map(|_| debits.take_groups().len()).collect();
    assert_eq!(calls, [1, 2, 1, 1]);
    assert_eq!(debits.take_groups(), []);
}

#[test]
fn no_group_is_added_that_has_no_room_and_its_hits_are_lost() {
    let mut debits = Debits::default();
    for key in 0..4_096 {
        assert!(!debits.is_full());
        assert_eq!(debits.add(taken(key, 1)), Ok(()));
    }
    assert!(debits.is_full());
    assert_eq!(debits.add(taken(5_000, 7)), Err(Lost { hits: 7 }));
    assert_eq!(debits.add(refunded(5_000, 7)), Err(Lost { hits: 0 }));
    assert_eq!(debits.add(taken(3, 7)), Ok(()), "it waits already");
    // Bytes count too, until they are sent.
    let large = |key| {
        let mut group = taken(key, 1);
        group.debits[0].entries = vec![0; 1 << 20].into();
        group
    };
    let mut debits = added(&[large(1), large(2), large(3)]);
    assert_eq!(debits.add(large(4)), Err(Lost { hits: 1 }));
    assert!(!debits.is_full());
    debits.take_groups();
    assert_eq!(debits.add(large(4)), Ok(()));
    debits.separate(vec![large(5), large(6), large(7), large(8)]);
    assert!(debits.is_full());
    debits.tick(at(1));
    while !debits.take_groups().is_empty() {}
    assert!(!debits.is_full() && debits.is_empty());
}

/// A second refund would open a limit.
#[test]
fn all_is_taken_out_but_refunds_that_may_have_been_counted() {
    let mut debits = added(&[taken(1, 1), refunded(2, 1)]);
    debits.separate(vec![refunded(3, 1)]);
    let call = |groups| DebitCall { number: 1, groups, may_be_counted: true };
    debits.under_way = Some(call(vec![taken(4, 1), refunded(5, 1)]));
    debits.keep_unanswered(call(vec![refunded(6, 1), taken(7, 1)]));
    let all = [taken(7, 1), taken(4, 1), taken(1, 1), refunded(2, 1), refunded(3, 1)];
    assert_eq!(debits.any().map(|debit| debit.key), Some(LeaseKey(6)));
    assert_eq!(debits.take_all(), all);
    assert!(debits.is_empty() && debits.any().is_none());
}
