//! Reports of filters: passed to the observer under the limits that they met, and counted once.

use super::events::{Events, RULES, fixture};
use super::refusing::Refusing;
use super::*;
use tidegate_core::{Report, TalliedHits, Tally};
use tidegate_wire::{append_report, encode_request};

fn tally(key: &str, [allowed, denied, denied_elsewhere]: [u64; 3], over: &[&str]) -> Tally {
    Tally {
        entries: vec![Entry::new(key, "v")],
        limit: None,
        hits: TalliedHits { allowed, denied, denied_elsewhere },
        over: over.iter().map(|name| (*name).to_owned()).collect(),
    }
}

#[test]
fn what_the_filter_decided_is_reported_under_the_limits_that_it_met() {
    let (fixture, events) = fixture(RULES, Modes::default());
    let brought = Some(LimitOverride { requests: 7, unit: Unit::Hour });
    let tallies = vec![
        tally("k", [5, 2, 1], &["bucket"]),
        tally("k", [0, 3, 0], &["of before"]),
        tally("free", [4, 0, 0], &[]),
        tally("none", [0, 0, 6], &[]),
        Tally { limit: brought, ..tally("k", [0, 0, 1], &[]) },
    ];
    let report = Report { sequence: 1, number: 1, tallies };
    wait(fixture.engine.count_report("d", &report, Timestamp::from_secs(START)));
    let expected = [
        "5 of k=v passes in Envoy: d/k",
        "d/k#day allows 5 of k=v: ?/100",
        "d/k#bucket allows 5 of k=v: ?/50",
        "2 of k=v is denied in Envoy: d/k",
        "d/k#day has room for 2 of k=v: ?/100",
        "d/k#bucket denies 2 of k=v: ?/50",
        "1 of k=v is denied elsewhere in Envoy: d/k",
        "d/k#day has room for 1 of k=v: ?/100",
        "d/k#bucket has room for 1 of k=v: ?/50",
        "3 of k=v is denied in Envoy: d/k",
        "d/k#day denies 3 of k=v: ?/100",
        "d/k#bucket denies 3 of k=v: ?/50",
        "4 of free=v passes in Envoy: d/free",
        "6 of none=v is denied elsewhere in Envoy: no rule",
        "1 of k=v is denied elsewhere in Envoy: its own limit",
    ];
    assert_eq!(events.take(), expected);
    assert_eq!(fixture.left(&[("k", "v")]), 50, "no counter has changed");
}

/// A report without an answer comes again under its number, perhaps after a restart.
#[test]
fn a_report_that_comes_again_counts_once() {
    let (fixture, events) = fixture(RULES, Modes::default());
    let count = |sequence, number, secs| {
        let report = Report { sequence, number, tallies: vec![tally("free", [1, 0, 0], &[])] };
        wait(fixture.engine.count_report("d", &report, Timestamp::from_secs(START + secs)));
        events.take().len()
    };
    let table = [
        ("the first", 7, 100, 0, 1),
        ("again", 7, 100, 1, 0),
        ("the next", 7, 101, 2, 1),
        ("an older one, which was counted", 7, 100, 3, 0),
        ("another worker", 8, 100, 3, 1),
        ("again, a minute later", 7, 101, 60, 0),
        ("the next, after numbers went past their end", 7, 50 + (1 << 63), 61, 1),
    ];
    for (name, sequence, number, secs, counted) in table {
        assert_eq!(count(sequence, number, secs), counted, "{name}");
    }
    fixture.engine.replace_limits(rules_of(fixture.dir.path(), RULES)).expect("good rules");
    events.take();
    assert_eq!(count(7, 50 + (1 << 63), 62), 0, "under new limits");
}

/// Anybody may invent sequences: their records take a share of the store, and reports without one still count.
#[test]
fn records_of_reports_are_bounded_and_without_one_a_report_counts() {
    let (fixture, events) = fixture(RULES, Modes::default());
    let now = Timestamp::from_secs(START);
    let count = |sequence| {
        let report = Report { sequence, number: 1, tallies: vec![tally("free", [1, 0, 0], &[])] };
        wait(fixture.engine.count_report("d", &report, now));
        events.take().len()
    };
    assert!((0..5_000).all(|sequence| count(sequence) == 1));
    let counted_again = (0..5_000).filter(|sequence| count(*sequence) == 1).count();
    let recorded = 5_000 - counted_again as u64;
    assert!(0 < recorded && recorded < fixture.counters.capacity() / 64, "{recorded}");
}

/// Losing a report would be worse than counting it twice, which takes a lost answer besides.
#[test]
fn a_report_counts_though_the_store_refuses_its_record() {
    let dir = tempfile::TempDir::new().expect("a directory");
    let error = UpdateError::DataLoss;
    let refusing = Refusing::new(counters(dir.path()), move |_| Some(error.clone().into()));
    let events = Events::default();
    let observer = Arc::new(events.clone());
    let fixture = Fixture::new(refusing, dir, RULES, Modes::default(), observer);
    events.take();
    let report = Report { sequence: 1, number: 1, tallies: vec![tally("free", [1, 0, 0], &[])] };
    wait(fixture.engine.count_report("d", &report, Timestamp::from_secs(START)));
    assert_eq!(events.take(), ["1 of free=v passes in Envoy: d/free"]);
}

#[test]
fn the_report_of_a_call_is_counted_whatever_becomes_of_the_call() {
    let (fixture, events) = fixture(RULES, Modes::default());
    let now = Timestamp::from_secs(START);
    let report = Report { sequence: 3, number: 9, tallies: vec![tally("free", [2, 0, 0], &[])] };
    let message = |key| {
        let descriptors = vec![descriptor(&[(key, "v")])];
        let request = Request { domain: "d".into(), descriptors, hits: Hits::new(90) };
        let mut bytes = encode_request(&request);
        append_report(&report, &mut bytes);
        bytes
    };
    answer(&fixture.engine, &message("k"), |_| None, now).expect("an answer");
    let reported = "2 of free=v passes in Envoy: d/free";
    let first = events.take();
    assert_eq!(first.iter().filter(|event| *event == reported).count(), 1, "{first:?}");
    assert_eq!(first[0], reported);
    answer(&fixture.engine, &message("free"), |_| None, now).expect("an answer");
    assert!(!events.take().contains(&reported.to_owned()));
    // Bad metadata is refused before anything is counted, so the client sends the report again.
    let invalid = |name| (name == "tidegate-lease").then_some(&b"x"[..]);
    answer(&fixture.engine, &message("k"), invalid, now).expect_err("refused");
    assert_eq!(events.take(), [""; 0]);
}

/// A report that came before the limits of its domain would be counted under none of them.
#[test]
fn a_report_about_a_domain_whose_limits_are_awaited_is_not_counted_yet() {
    let (fixture, events) = fixture(RULES, Modes::default());
    let mut rules = Rules::default();
    rules.set_awaited(true);
    fixture.engine.replace_limits(rules).expect("good rules");
    events.take();
    let count = || {
        let report =
            Report { sequence: 1, number: 1, tallies: vec![tally("free", [1, 0, 0], &[])] };
        wait(fixture.engine.count_report("d", &report, Timestamp::from_secs(START)));
        events.take()
    };
    assert_eq!(count(), [""; 0]);
    fixture.engine.replace_limits(rules_of(fixture.dir.path(), RULES)).expect("good rules");
    events.take();
    assert_eq!(count(), ["1 of free=v passes in Envoy: d/free"]);
}
