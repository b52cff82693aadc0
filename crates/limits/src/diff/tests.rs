//! Old and new rules, and the reported changes. The rules are built here instead of read from files, to
//! cover every kind of change.

mod paths;

use super::*;
use crate::tests::{exact, rules_at};
use crate::{Limit, Matcher};
use tidegate_core::{
    DailyReset, DeniedHits, FirstHitWindow, FixedWindow, Nanos, Quota, TokenBucket, Zone,
};

const MINUTE: Nanos = Nanos::from_secs(60);
const HOUR: Nanos = Nanos::from_secs(3_600);

fn window(requests: u32, period: Nanos) -> FixedWindow {
    FixedWindow::new(requests, period).unwrap()
}

fn limit(quota: Quota) -> Limit {
    Limit {
        name: None,
        path: "d/k".to_owned(),
        label: String::new(),
        quota,
        timezone: None,
        denied: DeniedHits::Ignore,
        replaces: Vec::new(),
    }
}

fn rule(kind: RuleKind) -> Rule {
    Rule {
        path: "d/k".to_owned(),
        kind,
        enforcement: Enforcement::Enforce,
        metric_values: Vec::new(),
        metadata: None,
    }
}

fn with(quota: Quota) -> Rule {
    rule(RuleKind::Limits(vec![limit(quota)]))
}

/// The same by the clock of a zone.
fn in_zone(zone: &str, quota: Quota) -> Rule {
    rule(RuleKind::Limits(vec![Limit { timezone: Some(zone.to_owned()), ..limit(quota) }]))
}

fn ten_a_minute() -> Rule {
    with(Quota::FixedWindow(window(10, MINUTE)))
}

/// A domain `d` with this rule for the key `k`.
fn snapshot(rule: Rule) -> Snapshot {
    let mut rules = Rules::default();
    let node = rules.root_mut("d").insert("k", &Matcher::Any, None).unwrap();
    node.set_rule(rule);
    Snapshot::of(&rules)
}

fn lines(changes: &Changes) -> Vec<String> {
    let line = |c: &Change| format!("{:?} {}: {} ({})", c.kind, c.path, c.what, c.means);
    changes.0.iter().map(line).collect()
}

#[track_caller]
fn check(old: Rule, new: Rule, expected: &[&str]) {
    assert_eq!(lines(&compare(&snapshot(old), &snapshot(new))), expected);
}

#[test]
fn nothing_changes_where_the_rules_are_the_same() {
    check(ten_a_minute(), ten_a_minute(), &[]);
    assert_eq!(Changes::default().to_string(), "nothing that affects callers");
}

#[test]
fn other_numbers_keep_the_counts() {
    check(
        ten_a_minute(),
        with(Quota::FixedWindow(window(20, MINUTE))),
        &["Changed d/k: 10 per minute -> 20 per minute (callers matching d/k get 20 per minute \
           instead of 10 now; live counts are kept)"],
    );
    check(
        ten_a_minute(),
        with(Quota::FixedWindow(window(10, MINUTE).with_borrow(5).unwrap())),
        &["Changed d/k: 10 per minute -> 10 per minute, borrow 5 (callers matching d/k get 5 to \
           borrow from later windows instead of 0 now; live counts are kept)"],
    );
    let bucket = |burst, initial| {
        with(Quota::TokenBucket(TokenBucket::new(10, MINUTE, burst, initial).unwrap()))
    };
    check(
        bucket(10, 10),
        bucket(30, 10),
        &["Changed d/k: 10 per minute -> 10 per minute, burst 30, initial 10 (callers matching \
             d/k \
           get 30 at once instead of 10 now; live counts are kept)"],
    );
    check(
        bucket(30, 10),
        bucket(30, 5),
        &["Changed d/k: 10 per minute, burst 30, initial 10 -> 10 per minute, burst 30, initial \
             5 \
           (new callers start with 5 instead of 10; live counts are kept)"],
    );
    check(
        ten_a_minute(),
        in_zone("+01:00", Quota::FixedWindow(window(10, MINUTE).in_zone(&Zone::fixed(3_600)))),
        &[
            "Changed d/k: time zone UTC -> +01:00 (windows begin at other times; a count is kept if \
             it began within the current new window)",
        ],
    );
    check(
        in_zone("+01:00", Quota::FixedWindow(window(10, MINUTE).in_zone(&Zone::fixed(3_600)))),
        in_zone("+02:00", Quota::FixedWindow(window(20, MINUTE).in_zone(&Zone::fixed(7_200)))),
        &["Changed d/k: 10 per minute, in +01:00 -> 20 per minute, in +02:00 (callers matching \
             d/k get 20 per minute instead of 10 now; live counts are kept)"],
    );
}

#[test]
fn a_daily_reset_is_reported_and_keeps_counts() {
    let first = || FirstHitWindow::new(10, MINUTE).unwrap();
    let plain = || with(Quota::FirstHitWindow(first()));
    let reset = |zone: &Zone| {
        let daily = DailyReset::new(Nanos::from_secs(3 * 3_600), zone).unwrap();
        Quota::FirstHitWindow(first().with_reset(daily))
    };
    let in_utc = || with(reset(&Zone::utc()));
    check(
        plain(),
        in_utc(),
        &["Changed d/k: 10 per minute -> 10 per minute, reset daily at 03:00 (windows end at \
             03:00 \
           each day at the latest; live counts are kept)"],
    );
    check(
        in_utc(),
        plain(),
        &["Changed d/k: 10 per minute, reset daily at 03:00 -> 10 per minute (windows no longer \
             end \
           at 03:00 each day; live counts are kept)"],
    );
    check(
        in_zone("Europe/Paris", reset(&Zone::fixed(3_600))),
        in_utc(),
        &["Changed d/k: time zone Europe/Paris -> UTC (windows end at another time each day; a \
             count is kept if its window began after the last reset)"],
    );
}

#[test]
fn another_identity_starts_anew() {
    check(
        ten_a_minute(),
        with(Quota::FixedWindow(window(10, HOUR))),
        &["Changed d/k: 10 per minute -> 10 per hour (callers matching d/k get 10 per hour now; \
           counts start anew, because the period changed)"],
    );
    check(
        ten_a_minute(),
        with(Quota::FirstHitWindow(FirstHitWindow::new(10, MINUTE).unwrap())),
        &["Changed d/k: 10 per minute by fixed_window -> 10 per minute by first_hit_window \
             (callers \
           matching d/k get 10 per minute now; counts start anew, because the algorithm changed)"],
    );
    check(
        ten_a_minute(),
        with(Quota::FixedWindow(FixedWindow::calendar(10, 1).unwrap())),
        &["Changed d/k: 10 per minute -> 10 per calendar month (callers matching d/k get 10 per \
           calendar month now; counts start anew, because the period changed)"],
    );
    let mut labelled = limit(Quota::FixedWindow(window(10, MINUTE)));
    labelled.label = "a".to_owned();
    check(
        ten_a_minute(),
        rule(RuleKind::Limits(vec![labelled])),
        &["Changed d/k: 10 per minute -> 10 per minute (callers matching d/k get 10 per minute \
             now; \
           counts start anew, because the label of the limit among those of its rule changed)"],
    );
}

#[test]
fn modes_and_metadata_are_reported() {
    let in_shadow = Rule { enforcement: Enforcement::Shadow, ..ten_a_minute() };
    check(
        in_shadow.clone(),
        ten_a_minute(),
        &["Changed d/k: in shadow -> enforced (callers matching d/k are denied over the limit \
             now)"],
    );
    check(
        ten_a_minute(),
        in_shadow,
        &["Changed d/k: enforced -> in shadow (callers matching d/k are counted, and no longer \
           denied)"],
    );
    let unlimited = || rule(RuleKind::Unlimited { name: None, replaces: Vec::new() });
    check(
        ten_a_minute(),
        unlimited(),
        &["Changed d/k: 10 per minute -> unlimited (callers matching d/k are no longer limited)"],
    );
    check(
        unlimited(),
        ten_a_minute(),
        &["Changed d/k: unlimited -> 10 per minute (callers matching d/k are limited now)"],
    );
    let mut other = limit(Quota::FixedWindow(window(10, MINUTE)));
    other.name = Some("mine".to_owned());
    other.replaces = vec!["a".to_owned()];
    other.denied = DeniedHits::Count;
    let named = rule(RuleKind::Limits(vec![other.clone()]));
    check(
        ten_a_minute(),
        named.clone(),
        &[
            "Changed d/k: count_denied on (requests that are denied use up the limit too)",
            "Changed d/k: name none -> mine (answers carry the new name, and `replaces` elsewhere \
             must use it)",
            "Changed d/k: replaces a now (requests that meet d/k are no longer held to a)",
        ],
    );
    other.replaces.clear();
    check(
        named,
        rule(RuleKind::Limits(vec![other])),
        &["Changed d/k: no longer replaces a (requests that meet d/k are held to a as well)"],
    );
}

#[test]
fn limits_of_one_rule_are_added_and_removed() {
    let several = |names: &[&str]| {
        let limit = |name: &&str| Limit {
            path: format!("d/k#{name}"),
            label: (*name).to_owned(),
            ..limit(Quota::FixedWindow(window(10, MINUTE)))
        };
        rule(RuleKind::Limits(names.iter().map(limit).collect()))
    };
    check(
        several(&["a", "b"]),
        several(&["b", "c"]),
        &[
            "Removed d/k#a: 10 per minute (callers matching d/k are no longer held to this limit)",
            "Added d/k#c: 10 per minute (callers matching d/k are held to this limit too, from a \
             new count)",
        ],
    );
}

/// Rules with the same limit at each path.
fn rules(paths: &[&[(&str, Matcher)]]) -> Rules {
    rules_at(paths, |path| {
        let RuleKind::Limits(mut limits) = ten_a_minute().kind else { unreachable!() };
        limits[0].path.clone_from(&path);
        Rule { path, kind: RuleKind::Limits(limits), ..ten_a_minute() }
    })
}

fn like(pattern: &str) -> Matcher {
    Matcher::Wildcard(pattern.to_owned())
}

#[test]
fn callers_of_an_added_or_removed_rule_meet_another() {
    let any = rules(&[&[("user", Matcher::Any)]]);
    let both = rules(&[&[("user", Matcher::Any)], &[("user", exact("a/b=c"))]]);
    assert_eq!(
        lines(&compare_rules(&any, &both)),
        ["Added d/user=a%2Fb%3Dc: 10 per minute (callers matching d/user=a%2Fb%3Dc are limited \
             now; \
          they met d/user (10 per minute) before; live counts are kept)"]
    );
    assert_eq!(
        lines(&compare_rules(&both, &any)),
        ["Removed d/user=a%2Fb%3Dc: 10 per minute (callers that matched d/user=a%2Fb%3Dc meet \
             d/user \
          (10 per minute) now; live counts are kept)"]
    );
    assert_eq!(
        lines(&compare_rules(&any, &Rules::default())),
        [
            "Removed d: domain removed (requests of this domain meet no limit any more)",
            "Removed d/user: 10 per minute (callers matching d/user are no longer limited)",
        ]
    );
}

#[test]
fn the_order_of_patterns_is_reported_if_it_matters() {
    let path =
        |first: &str, second: &str| rules(&[&[("path", like(first))], &[("path", like(second))]]);
    let (old, new) = (path("/a*", "*.js"), path("*.js", "/a*"));
    assert_eq!(
        lines(&compare_rules(&old, &new)),
        ["Changed d/path=*.js: another rule matches first (callers such as path=/a.js meet \
          d/path=*.js now instead of d/path=%2Fa*; live counts are kept)"]
    );
    // No value has both prefixes.
    let (old, new) = (path("/a*", "/b*"), path("/b*", "/a*"));
    assert!(compare_rules(&old, &new).is_empty());
}

/// A new branch for one value takes this value from the key alone, at every depth.
#[test]
fn a_branch_that_takes_callers_from_another_rule_is_reported() {
    let old = rules(&[&[("user", Matcher::Any)]]);
    let new =
        rules(&[&[("user", Matcher::Any)], &[("user", exact("vip")), ("path", Matcher::Any)]]);
    assert_eq!(
        lines(&compare_rules(&old, &new)),
        [
            "Changed d/user: takes fewer callers (callers such as user=vip met d/user, and meet \
             nothing now: a branch without a rule matches first)",
            "Added d/user=vip/path: 10 per minute (callers matching d/user=vip/path are limited \
             now)",
        ]
    );
}

#[test]
fn a_log_line_names_the_first_few() {
    let keys = ["a", "b", "c", "e", "f", "g", "h"];
    let paths: Vec<[(&str, Matcher); 1]> = keys.map(|key| [(key, Matcher::Any)]).to_vec();
    let paths: Vec<&[(&str, Matcher)]> = paths.iter().map(|levels| &levels[..]).collect();
    let (old, new) = (Snapshot::of(&rules(&paths[..1])), Snapshot::of(&rules(&paths[1..])));
    assert_eq!(
        compare(&old, &new).to_string(),
        "added d/b, d/c, d/e, d/f, d/g and 1 more; removed d/a"
    );
    let changes =
        compare(&snapshot(ten_a_minute()), &snapshot(with(Quota::FixedWindow(window(20, MINUTE)))));
    assert_eq!(changes.to_string(), "changed d/k (10 per minute -> 20 per minute)");
    assert_eq!((changes.count(ChangeKind::Changed), changes.count(ChangeKind::Added)), (1, 0));
}

#[test]
fn changes_of_statistics_are_named() {
    let rules = |statistics: &str| {
        let text = format!("domain: d\nstatistics: {statistics}\ndescriptors: []\n");
        crate::tests::rules(&text)
    };
    let old = rules("[{name: a, by: [app]}, {name: b, by: [app]}, {name: c, by: [app]}]");
    let new = rules(
        "[{name: a, by: [app]}, {name: b, by: [app, path], distinct: user}, {name: d, by: [app]}]",
    );
    assert_eq!(
        lines(&compare_rules(&old, &new)),
        [
            "Changed statistic b: by app -> by app, path, distinct user (it begins anew; what it \
             has stays in the database until its retention ends)",
            "Removed statistic c: by app (nothing is added to it any more; what it has stays until \
             its retention ends)",
            "Added statistic d: by app (descriptors with these keys are counted from now on)",
        ]
    );
    assert!(compare_rules(&new, &new).is_empty());
}
