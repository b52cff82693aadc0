//! What waits to be told: as much as there is room for, in turns, and each report after those before it.

use super::*;

fn hits(allowed: u64) -> TalliedHits {
    TalliedHits { allowed, ..TalliedHits::default() }
}

fn tally(key: u128, bytes: usize, allowed: u64) -> KeyTally {
    let entries = vec![0; bytes].into();
    KeyTally { key: LeaseKey(key), entries, hits: hits(allowed), over: Vec::new() }
}

fn report(sequence: u64, number: u64, allowed: u64) -> SentReport {
    SentReport { sequence, number, tallies: vec![tally(number.into(), 0, allowed)] }
}

#[test]
fn hits_of_one_descriptor_and_the_same_limits_wait_as_one() {
    let mut tallies = Tallies::default();
    assert!(tallies.is_empty());
    let denied = |allowed| KeyTally { over: vec!["a".into()], ..tally(1, 9, allowed) };
    for more in [tally(1, 9, 2), denied(3), tally(1, 9, 4), denied(5)] {
        assert_eq!(tallies.add(more, Share::All), Ok(()));
    }
    assert!(!tallies.is_empty());
    assert_eq!(tallies.take_all().others, [tally(1, 9, 6), denied(8)]);
    assert!(tallies.is_empty());
}

#[test]
fn so_many_wait_and_those_that_clients_invent_take_half_of_the_room() {
    let mut tallies = Tallies::default();
    let fill = |tallies: &mut Tallies, keys: std::ops::Range<u128>, share| {
        keys.filter(|key| tallies.add(tally(*key, 0, 7), share) == Err(7)).count()
    };
    assert_eq!(fill(&mut tallies, 0..2_100, Share::Half), 52);
    assert_eq!(fill(&mut tallies, 10_000..12_100, Share::All), 52);
    // Those that wait already find their place.
    assert_eq!(tallies.add(tally(0, 0, 1), Share::Half), Ok(()));
    assert_eq!(tallies.add(tally(10_000, 0, 1), Share::All), Ok(()));
    assert!(tallies.take(|_| true).is_some());
    assert_eq!(fill(&mut tallies, 20_000..20_010, Share::Half), 10);
    assert_eq!(fill(&mut tallies, 20_000..20_010, Share::All), 9);
}

#[test]
fn their_bytes_are_bounded_too() {
    #[track_caller]
    fn check(share: Share, bytes_most: usize) {
        let mut tallies = Tallies::default();
        // Of each, 128 bytes beside its entries and names.
        let all = bytes_most - 128;
        assert_eq!(tallies.add(tally(1, all + 1, 7), share), Err(7));
        let named = KeyTally { over: vec!["name".into(), "x".into()], ..tally(1, all - 4, 7) };
        assert_eq!(tallies.add(named, share), Err(7));
        assert_eq!(tallies.add(tally(1, all / 2, 7), share), Ok(()));
        assert_eq!(tallies.add(tally(2, all - all / 2 - 127, 7), share), Err(7));
        assert_eq!(tallies.add(tally(2, all - all / 2 - 128, 7), share), Ok(()));
        assert_eq!(tallies.add(tally(3, 0, 7), share), Err(7));
        tallies.take_all();
        let named = KeyTally { over: vec!["name".into(), "x".into()], ..tally(1, all - 5, 7) };
        assert_eq!(tallies.add(named, share), Ok(()));
    }
    check(Share::All, 1 << 20);
    check(Share::Half, 1 << 19);
}

#[test]
fn a_report_looks_at_eight_and_the_next_one_goes_on_behind_them() {
    let mut tallies = Tallies::default();
    for key in 1..=20 {
        let bytes = if [8, 17].contains(&key) { 1 } else { 2 };
        tallies.add(tally(key, bytes, 1), Share::All).expect("room");
    }
    let mut take = || tallies.take(|entries| entries.len() == 1).map(|tally| tally.key.0);
    assert_eq!([take(), take(), take()], [Some(8), None, Some(17)]);
    assert_eq!([take(), take(), take()], [None; 3]);
    // It begins again at the first one, and looks at none twice in one turn.
    let mut looks = Vec::new();
    let mut tallies = Tallies::default();
    for key in 1..=3 {
        tallies.add(tally(key, key as usize, 1), Share::All).expect("room");
    }
    assert_eq!(tallies.any().map(<[u8]>::len), Some(1));
    let looked = std::cell::RefCell::new(&mut looks);
    tallies.take(|entries| {
        looked.borrow_mut().push(entries.len());
        false
    });
    assert_eq!(looks, [1, 2, 3]);
    assert_eq!(tallies.take(|_| true).map(|tally| tally.key.0), Some(1));
    assert_eq!(tallies.any().map(<[u8]>::len), Some(2));
}

#[test]
fn what_waited_when_a_round_began_and_the_tallies_of_a_report_are_worth_a_call() {
    let mut tallies = Tallies::default();
    tallies.begin_round();
    tallies.add(tally(1, 0, 1), Share::All).expect("room");
    assert!(!tallies.is_due());
    tallies.begin_round();
    assert!(tallies.is_due());
    tallies.take(|_| true);
    tallies.add(tally(2, 0, 1), Share::All).expect("room");
    assert!(tallies.is_due(), "the round goes on while some wait");
    tallies.take_all();
    assert!(!tallies.is_due());
    let most = u128::try_from(REPORT_MAX).expect("few");
    for key in 0..most {
        assert!(!tallies.is_due());
        tallies.add(tally(key, 0, 1), Share::All).expect("room");
    }
    assert!(tallies.is_due());
    // A report without an answer, at every fifth tick.
    let mut tallies = Tallies::default();
    tallies.failed(report(1, 1, 1));
    let due = (0..11).filter(|ticks| {
        tallies.ticks = *ticks;
        tallies.is_due()
    });
    assert_eq!(due.collect::<Vec<_>>(), [0, 5, 10]);
}

#[test]
fn a_report_without_an_answer_comes_before_all_others_of_its_sequence() {
    let mut tallies = Tallies { sequence: Some(1), is_under_way: true, ..Tallies::default() };
    assert!(!tallies.must_repeat());
    tallies.adopt(report(2, 5, 1)).expect("room");
    assert!(!tallies.must_repeat(), "it is of another worker");
    tallies.failed(report(1, 7, 1));
    assert!(tallies.must_repeat() && !tallies.is_under_way);
    assert_eq!(tallies.take_unanswered("other", "d"), None);
    let numbers = [(); 3].map(|()| tallies.take_unanswered("d", "d").map(|report| report.number));
    assert_eq!(numbers, [Some(7), Some(5), None]);
    assert!(tallies.is_empty() && !tallies.must_repeat());
}

#[test]
fn so_many_reports_of_workers_that_have_ended_are_taken_over() {
    let mut tallies = Tallies::default();
    for number in 0..16 {
        assert_eq!(tallies.adopt(report(9, number, 3)), Ok(()));
    }
    assert_eq!(tallies.adopt(report(9, 16, 3)), Err(3));
    assert_eq!(tallies.take_all().unanswered.len(), 16);
    assert_eq!(tallies.adopt(report(9, 16, 3)), Ok(()));
}
