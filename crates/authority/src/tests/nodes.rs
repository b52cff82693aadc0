//! Nodes of the FRS: what is used is what a decision counts, and what operations make of it.

use super::*;
use tidegate_core::OpenWindow;

const RULES: &str = "\
- key: business
  value: login
  descriptors:
  - key: key
    rate_limits:
    - {name: period, algorithm: first_hit_window, requests: 3, period: 1h}
    - {name: minute, algorithm: first_hit_window, requests: 2, unit: minute}
- key: business
  value: bucket
  descriptors: [{key: key, rate_limit: {algorithm: token_bucket, requests: 5, period: 1h}}]
- key: business
  value: exact
  descriptors:
  - {key: key, rate_limit: {algorithm: sliding_buckets, exact: true, requests: 5, period: 1h}}
- key: business
  value: updated
  descriptors:
  - key: key
    rate_limits:
    - {name: fixed, unit: day, requests: 5, reset: '03:00'}
    - {name: sliding, algorithm: sliding_window, unit: day, requests: 5, reset: '03:00'}
    - {name: ring, algorithm: sliding_buckets, unit: hour, requests: 5, reset: '03:00'}
    - {name: exact, algorithm: sliding_buckets, exact: true, unit: day, requests: 5, reset: '03:00'}
    - {name: first, algorithm: first_hit_window, unit: day, requests: 5, reset: '03:00'}
- key: business
  value: free
  descriptors: [{key: key, rate_limit: {unlimited: true}}]
";

fn node(business: &str, hits: u64) -> Request {
    let descriptors = vec![descriptor(&[("business", business), ("key", "k")])];
    Request { domain: "d".into(), descriptors, hits: Hits::new(hits) }
}

fn at(secs: u64) -> Timestamp {
    Timestamp::from_secs(START + secs)
}

/// Name, count, and the seconds from the start on at which a window began and was used last.
type SeenWindows = Vec<(String, u64, Option<(u64, u64)>)>;

fn windows_seen(windows: &NodeWindows<'_>) -> SeenWindows {
    let secs = |at: Timestamp| at.as_nanos() / 1_000_000_000 - START;
    let times = |open: OpenWindow| (secs(open.start), secs(open.last));
    let windows = windows.iter();
    windows.map(|window| (window.name.to_owned(), window.count(), window.open.map(times))).collect()
}

/// The same, as a table has it.
type Row<'a> = (&'a str, u64, Option<(u64, u64)>);

fn seen_of(rows: &[Row<'_>]) -> SeenWindows {
    rows.iter().map(|(name, count, times)| ((*name).to_owned(), *count, *times)).collect()
}

impl Fixture {
    fn use_at(&self, secs: u64, business: &str, how: Use, hits: u64) -> (Verdict, SeenWindows) {
        let seen = |verdict, windows: &NodeWindows<'_>| (verdict, windows_seen(windows));
        wait(self.engine.use_node(&node(business, hits), how, at(secs), seen)).expect("a decision")
    }

    fn find_at(&self, secs: u64, business: &str) -> Result<SeenWindows, NodeError> {
        wait(self.engine.find_node(&node(business, 1), at(secs), windows_seen))
    }
}

#[test]
fn a_use_counts_as_far_as_there_is_room_and_an_acquisition_all_or_nothing() {
    let fixture = engine(RULES);
    let (allow, deny) = (Verdict::Allow, Verdict::Deny);
    let rows = |period, minute| {
        seen_of(&[("period", period, Some((0, 0))), ("minute", minute, Some((0, 0)))])
    };
    let fresh = seen_of(&[("period", 0, None), ("minute", 0, None)]);
    assert_eq!(fixture.use_at(0, "login", Use::Look, 0), (allow, fresh));
    assert_eq!(fixture.use_at(0, "login", Use::Record, 1), (allow, rows(1, 1)));
    assert_eq!(fixture.use_at(0, "login", Use::Acquire, 2), (deny, rows(1, 1)));
    assert_eq!(fixture.use_at(0, "login", Use::Acquire, 1), (allow, rows(2, 2)));
    // The minute has no room, the period has: the use has happened.
    let after = seen_of(&[("period", 3, Some((0, 5))), ("minute", 2, Some((0, 5)))]);
    assert_eq!(fixture.use_at(5, "login", Use::Record, 1), (deny, after.clone()));
    assert_eq!(fixture.use_at(5, "login", Use::Look, 0), (deny, after));
    // The minute is over; the period is full.
    let later = seen_of(&[("period", 3, Some((0, 60))), ("minute", 1, Some((60, 60)))]);
    assert_eq!(fixture.use_at(60, "login", Use::Record, 1), (deny, later));
    let anew = seen_of(&[("period", 1, Some((3_600, 3_600))), ("minute", 1, Some((3_600, 3_600)))]);
    assert_eq!(fixture.use_at(3_600, "login", Use::Acquire, 1), (allow, anew));
}

/// Limits that count denied requests made an acquisition count in one window and not in the other.
#[test]
fn an_acquisition_is_all_or_nothing_of_limits_that_count_what_they_deny() {
    let counting = RULES.replace("requests: 3,", "requests: 3, count_denied: true,");
    let fixture = engine(&counting.replace("requests: 2,", "requests: 2, count_denied: true,"));
    let rows = |count| seen_of(&[("period", count, Some((0, 0))), ("minute", count, Some((0, 0)))]);
    assert_eq!(fixture.use_at(0, "login", Use::Acquire, 1), (Verdict::Allow, rows(1)));
    assert_eq!(fixture.use_at(0, "login", Use::Acquire, 2), (Verdict::Deny, rows(1)));
    assert_eq!(fixture.use_at(0, "login", Use::Look, 0), (Verdict::Allow, rows(1)));
}

/// A request for several nodes, each as (business, key, hits).
fn nodes(of: &[(&str, &str, u64)]) -> Request {
    let descriptors = of.iter().map(|(business, key, hits)| Descriptor {
        hits: Some(Hits::new(*hits)),
        ..descriptor(&[("business", business), ("key", key)])
    });
    Request { domain: "d".into(), descriptors: descriptors.collect(), hits: Hits::ONE }
}

#[test]
fn nodes_that_are_decided_as_one_count_all_or_none() {
    let fixture = engine(RULES);
    let use_as_one = |how, of: &[(&str, &str, u64)]| {
        let counts = |windows: &NodeWindows<'_>| {
            windows.iter().map(|window| window.count()).collect::<Vec<_>>()
        };
        let seen = |verdict, of_each: &[NodeWindows<'_>]| {
            (verdict, of_each.iter().map(counts).collect::<Vec<_>>())
        };
        wait(fixture.engine.use_nodes(&nodes(of), how, at(0), seen)).unwrap()
    };
    let (allow, deny) = (Verdict::Allow, Verdict::Deny);
    let two = [("login", "a", 1), ("bucket", "b", 5)];
    assert_eq!(use_as_one(JointUse::Look, &two), (allow, vec![vec![0, 0], vec![0]]));
    assert_eq!(use_as_one(JointUse::Acquire, &two), (allow, vec![vec![1, 1], vec![5]]));
    // The bucket is empty, and so the login does not count either.
    assert_eq!(use_as_one(JointUse::Look, &two), (deny, vec![vec![1, 1], vec![5]]));
    assert_eq!(use_as_one(JointUse::Acquire, &two), (deny, vec![vec![1, 1], vec![5]]));
    // One node twice needs room for both: the minute has one left.
    let twice = [("login", "a", 1), ("login", "a", 1)];
    assert_eq!(use_as_one(JointUse::Look, &twice), (deny, vec![vec![1, 1]; 2]));
    assert_eq!(use_as_one(JointUse::Acquire, &twice), (deny, vec![vec![1, 1]; 2]));
    let free = [("free", "a", 9), ("login", "a", 1)];
    assert_eq!(use_as_one(JointUse::Acquire, &free), (allow, vec![vec![], vec![2, 2]]));
    let unknown = nodes(&[("login", "c", 1), ("no", "a", 1), ("login", "c", 1), ("none", "a", 1)]);
    let error = wait(fixture.engine.use_nodes(&unknown, JointUse::Acquire, at(0), |_, _| ()));
    assert!(
        matches!(&error, Err(JointError::Unknown(places)) if places[..] == [1, 3]),
        "{error:?}"
    );
    let keys: Vec<String> = (0..129).map(|number| number.to_string()).collect();
    let many: Vec<(&str, &str, u64)> = keys.iter().map(|key| ("login", &**key, 1)).collect();
    let error = wait(fixture.engine.use_nodes(&nodes(&many), JointUse::Acquire, at(0), |_, _| ()));
    assert!(
        matches!(&error, Err(JointError::Undecided(error)) if error.is_too_large()),
        "{error:?}"
    );
    let (verdict, _) = use_as_one(JointUse::Acquire, &many[..128]);
    assert_eq!(verdict, allow);
    assert_eq!(use_as_one(JointUse::Look, &[("login", "0", 1)]).1, [[1, 1]]);
}

/// The last hit of each window, in seconds from the start on.
fn last_seen(windows: &NodeWindows<'_>) -> Vec<(String, u64, Option<u64>)> {
    let secs = |at: Timestamp| at.as_nanos() / 1_000_000_000 - START;
    let windows = windows.iter();
    windows.map(|window| (window.name.to_owned(), window.count(), window.last.map(secs))).collect()
}

#[test]
fn every_window_tells_its_last_hit_and_is_over_at_its_reset() {
    let fixture = engine(RULES);
    let names = ["fixed", "sliding", "ring", "exact", "first"];
    let of_all = |count, last| names.map(|name| (name.to_owned(), count, last)).to_vec();
    // Seconds after the start at which it is 02:59:50 in UTC.
    let early = 3 * 3_600 - 10 + 86_400 - START % 86_400;
    let found = |secs| wait(fixture.engine.find_node(&node("updated", 1), at(secs), last_seen));
    let use_it = |secs, how, hits| {
        let seen = |verdict, windows: &NodeWindows<'_>| (verdict, last_seen(windows));
        wait(fixture.engine.use_node(&node("updated", hits), how, at(secs), seen)).unwrap()
    };
    let (allow, deny) = (Verdict::Allow, Verdict::Deny);
    assert_eq!(use_it(early, Use::Look, 0), (allow, of_all(0, None)));
    assert_eq!(use_it(early, Use::Record, 4), (allow, of_all(4, Some(early))));
    assert_eq!(use_it(early + 1, Use::Record, 1), (allow, of_all(5, Some(early + 1))));
    assert_eq!(use_it(early + 2, Use::Acquire, 1), (deny, of_all(5, Some(early + 1))));
    // A use that happened, though nothing had room for it.
    let (verdict, seen) = use_it(early + 3, Use::Record, 1);
    assert_eq!((verdict, seen), (deny, of_all(5, Some(early + 3))));
    assert_eq!(found(early + 9).unwrap(), of_all(5, Some(early + 3)));
    assert!(matches!(found(early + 10), Err(NodeError::NotFound)));
    assert_eq!(use_it(early + 10, Use::Look, 0), (allow, of_all(0, None)));
    assert_eq!(use_it(early + 10, Use::Acquire, 2), (allow, of_all(2, Some(early + 10))));
}

#[test]
fn one_truth_whichever_door_is_asked() {
    let fixture = engine(RULES);
    assert_eq!(fixture.ask_at(0, 2, node("login", 1).descriptors).verdict, Verdict::Allow);
    let (verdict, seen) = fixture.use_at(1, "login", Use::Look, 0);
    assert_eq!(verdict, Verdict::Deny);
    assert_eq!(seen, seen_of(&[("period", 2, Some((0, 0))), ("minute", 2, Some((0, 0)))]));
}

#[test]
fn nodes_are_made_found_changed_and_forgotten() {
    let fixture = engine(RULES);
    let (engine, login) = (&fixture.engine, node("login", 1));
    assert!(matches!(fixture.find_at(0, "login"), Err(NodeError::NotFound)));
    let count = |name, count| Change { name, count: Some(count), start: None, last: None };
    let minute = [count("minute", 2)];
    let missing = wait(engine.change_node(&login, &minute, at(0), windows_seen));
    assert!(matches!(missing, Err(NodeError::NotFound)), "{missing:?}");
    let made = wait(engine.create_node(&login, &minute, at(0), windows_seen)).unwrap();
    let expected = seen_of(&[("period", 0, Some((0, 0))), ("minute", 2, Some((0, 0)))]);
    assert_eq!(made, expected);
    assert_eq!(fixture.find_at(59, "login").unwrap(), expected);
    assert_eq!(fixture.use_at(0, "login", Use::Look, 0).0, Verdict::Deny);
    let again = wait(engine.create_node(&login, &[], at(0), windows_seen));
    assert!(matches!(again, Err(NodeError::Exists)), "{again:?}");
    let started =
        Change { name: "period", count: Some(1), start: Some(at(10)), last: Some(at(20)) };
    let changed = wait(engine.change_node(&login, &[started], at(30), windows_seen)).unwrap();
    assert_eq!(changed, seen_of(&[("period", 1, Some((10, 20))), ("minute", 2, Some((0, 0)))]));
    // The period lasts by its new start.
    assert!(fixture.find_at(3_605, "login").is_ok());
    assert!(matches!(fixture.find_at(3_610, "login"), Err(NodeError::NotFound)));
    assert!(wait(engine.erase_node(&login, at(31))).unwrap());
    assert!(!wait(engine.erase_node(&login, at(31))).unwrap());
    let fresh = seen_of(&[("period", 0, None), ("minute", 0, None)]);
    assert_eq!(fixture.use_at(31, "login", Use::Look, 0), (Verdict::Allow, fresh));
}

#[test]
fn windows_may_begin_and_be_used_last_at_any_time_up_to_now() {
    let fixture = engine(RULES);
    let (engine, login) = (&fixture.engine, node("login", 1));
    wait(engine.create_node(&login, &[], at(0), windows_seen)).unwrap();
    let changed = |start: Option<u64>, last: Option<u64>| {
        let (start, last) = (start.map(at), last.map(at));
        let change = Change { name: "period", count: Some(2), start, last };
        let seen = wait(engine.change_node(&login, &[change], at(100), windows_seen)).unwrap();
        seen[0].clone()
    };
    let expected = |start, last| ("period".to_owned(), 2, Some((start, last)));
    assert_eq!(changed(None, Some(100)), expected(0, 100));
    assert_eq!(changed(Some(40), None), expected(40, 100), "the last use stays if it is in it");
    assert_eq!(changed(None, Some(40)), expected(40, 40));
    assert_eq!(changed(Some(60), None), expected(60, 60), "a last use before the start is none");
    assert_eq!(changed(Some(100), None), expected(100, 100));
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let fixture = engine(RULES);
    let (engine, login) = (&fixture.engine, node("login", 1));
    let before = wait(engine.create_node(&login, &[], at(0), windows_seen)).unwrap();
    let change = |name, count, start, last| Change { name, count, start, last };
    for (change, expected) in [
        (
            change("day", Some(1), None, None),
            "this business has no window \"day\"; it has period, minute",
        ),
        (change("minute", Some(3), None, None), "window minute: count 3 is more than its limit 2"),
        (change("minute", None, Some(at(101)), None), "window minute: start is in the future"),
        (
            change("minute", None, Some(at(40)), None),
            "window minute: a window of this start is over already",
        ),
        (
            change("period", None, Some(at(50)), Some(at(49))),
            "window period: end is not between start and now",
        ),
        (
            change("period", None, None, Some(at(101))),
            "window period: end is not between start and now",
        ),
    ] {
        let good = Change { name: "period", count: Some(2), start: None, last: None };
        let error =
            wait(engine.change_node(&login, &[good, change], at(100), windows_seen)).unwrap_err();
        assert_eq!(error.to_string(), expected);
        assert_eq!(fixture.find_at(59, "login").unwrap(), before);
    }
    let unknown = fixture.find_at(0, "nothing").unwrap_err();
    assert!(matches!(unknown, NodeError::UnknownBusiness), "{unknown}");
}

#[test]
fn other_algorithms_are_used_and_told_but_not_set() {
    let fixture = engine(RULES);
    for business in ["bucket", "exact"] {
        let of = node(business, 1);
        assert!(matches!(fixture.find_at(0, business), Err(NodeError::NotFound)));
        let used = seen_of(&[("limit", 2, None)]);
        assert_eq!(fixture.use_at(0, business, Use::Record, 2), (Verdict::Allow, used.clone()));
        assert_eq!(fixture.find_at(0, business).unwrap(), used);
        let error =
            wait(fixture.engine.create_node(&node(business, 1), &[], at(7_200), windows_seen));
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("window limit is of ") || error == "the node exists", "{error}");
        assert!(wait(fixture.engine.erase_node(&of, at(0))).unwrap());
        let fresh = seen_of(&[("limit", 0, None)]);
        assert_eq!(fixture.use_at(0, business, Use::Look, 0), (Verdict::Allow, fresh));
    }
    assert_eq!(fixture.use_at(0, "free", Use::Acquire, 9), (Verdict::Allow, Vec::new()));
}
