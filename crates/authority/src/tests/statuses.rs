//! Which limit a status reports, and how; and the modes that override rules.

use super::*;
use tidegate_core::Enforcement;
use tidegate_core::Value;

/// The name, requests and unit of the limit that the first status reports.
fn reported(answer: &Answer) -> (String, u32, Option<Unit>) {
    let limit = answer.statuses[0].limit.clone().expect("a limit");
    (limit.name, limit.requests, limit.unit)
}

#[test]
fn a_limit_is_reported_with_its_capacity_and_with_a_unit_only_where_that_fits() {
    for (limit, expected) in [
        ("{name: n, unit: hour, requests: 5}", ("n", 5, Some(Unit::Hour))),
        ("{unit: day, requests: 5, borrow: 3}", ("", 8, None)),
        ("{period: 90s, requests: 5}", ("", 5, None)),
        ("{algorithm: token_bucket, unit: day, requests: 5}", ("", 5, Some(Unit::Day))),
        ("{algorithm: token_bucket, unit: day, requests: 5, burst: 7}", ("", 7, None)),
    ] {
        let engine = engine(&format!("- {{key: k, rate_limit: {limit}}}"));
        let (name, requests, unit) = reported(&engine.ask(vec![descriptor(&[("k", "v")])]));
        assert_eq!((&*name, requests, unit), expected, "{limit}");
    }
}

/// The limits of one rule, in both orders, after some hits: the reported one, its rest, and its seconds.
#[track_caller]
fn check(limits: [&str; 2], used: u64, hits: u64, expected: (&str, u32, u64)) {
    for [first, second] in [limits, [limits[1], limits[0]]] {
        let engine = engine(&format!("- {{key: k, rate_limits: [{first}, {second}]}}"));
        engine.ask_at(0, used, vec![descriptor(&[("k", "v")])]);
        let answer = engine.ask_at(0, hits, vec![descriptor(&[("k", "v")])]);
        let (name, ..) = reported(&answer);
        let status = &answer.statuses[0];
        let secs = status.reset.as_nanos().div_ceil(1_000_000_000);
        assert_eq!((&*name, status.remaining, secs), expected, "{first} before {second}");
    }
}

#[test]
fn the_limit_that_denies_for_longest_is_reported_wherever_it_stands() {
    let slow = "{name: slow, algorithm: token_bucket, requests: 1, period: 30s, burst: 4}";
    let quick = "{name: quick, algorithm: token_bucket, requests: 1, period: 10s, burst: 4}";
    check([slow, quick], 4, 1, ("slow", 0, 30));
    // A limit that denies comes before one with room, whatever that has left.
    let wide = "{name: wide, algorithm: token_bucket, requests: 1, period: 60s, burst: 9}";
    check([quick, wide], 4, 1, ("quick", 0, 10));
    // Of several that deny, what each has left does not matter.
    check([wide, quick], 3, 7, ("wide", 6, 60));
    // Of several with room, the one with the least; and of equals, the one that takes longer to refill.
    check([quick, wide], 1, 1, ("quick", 2, 10));
    check([slow, quick], 1, 1, ("slow", 2, 30));
}

#[test]
fn a_status_in_shadow_allows_and_one_in_quota_mode_does_not() {
    let rules = "
- {key: dark, shadow_mode: true, rate_limit: {unit: day, requests: 0}}
- {key: soft, quota_mode: true, rate_limit: {unit: day, requests: 0}}
- {key: room, quota_mode: true, rate_limit: {unit: day, requests: 9}}
";
    let engine = engine(rules);
    let answer = engine.ask(["dark", "soft", "room"].map(|key| descriptor(&[(key, "v")])).into());
    let (allow, deny) = (Verdict::Allow, Verdict::Deny);
    assert_eq!(summary(&answer), (allow, vec![(allow, 0), (deny, 0), (allow, 8)]));
}

#[test]
fn global_modes_override_the_enforcement_of_every_rule() {
    use Enforcement::{Enforce, Quota, Shadow};
    for (shadow, quota, expected) in [
        (GlobalShadow::Off, GlobalQuota::Off, [Enforce, Shadow, Quota]),
        (GlobalShadow::Off, GlobalQuota::On, [Quota, Shadow, Quota]),
        (GlobalShadow::On, GlobalQuota::Off, [Shadow; 3]),
        (GlobalShadow::On, GlobalQuota::On, [Shadow; 3]),
    ] {
        let modes = Modes { shadow, quota, ..Modes::default() };
        assert_eq!([Enforce, Shadow, Quota].map(|own| modes.enforcement(own)), expected);
    }
}

/// Names may be those of other limits of the same rule, of other rules, or of rules without a limit.
#[test]
fn every_limit_of_a_replaced_name_is_gone_and_no_other() {
    let rules = "
- key: k
  rate_limits:
  - {name: a, unit: hour, requests: 1}
  - {name: b, unit: day, requests: 5}
- {key: free, rate_limit: {unlimited: true, name: c}}
- {key: more, rate_limit: {unlimited: true, replaces: [{name: a}]}}
- {key: all, rate_limit: {unit: day, requests: 9, replaces: [{name: a}, {name: b}, {name: c}]}}
";
    let engine = engine(rules);
    let names = |keys: &[&str]| {
        let answer =
            engine.ask_at(0, 0, keys.iter().map(|key| descriptor(&[(key, "v")])).collect());
        let name = |status: &Status| match &status.limit {
            Some(limit) => limit.name.clone(),
            None if *status == Status::UNLIMITED => "unlimited".to_owned(),
            None => "none".to_owned(),
        };
        answer.statuses.iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(names(&["k", "free"]), ["a", "unlimited"]);
    assert_eq!(names(&["k", "free", "more"]), ["b", "unlimited", "unlimited"]);
    assert_eq!(names(&["k", "free", "all"]), ["none", "none", ""]);
    assert_eq!(names(&["all", "more", "k"]), ["", "unlimited", "none"]);
}

/// The request as it was understood, and the metadata of rules that let it pass.
#[test]
fn dynamic_metadata_tell_the_whole_request() {
    let rules = "
- {key: a, rate_limit: {unit: hour, requests: 9}, metadata: {plan: gold}}
- {key: b, rate_limit: {unit: hour, requests: 0}, metadata: {team: red}}
";
    let engine = engine_with(rules, Modes { metadata: DynamicMetadata::On, ..Modes::default() });
    let limit = Some(LimitOverride { requests: 7, unit: Unit::Hour });
    let answer = engine.ask_at(
        0,
        2,
        vec![
            Descriptor { hits: Some(Hits::new(3)), ..descriptor(&[("a", "x"), ("no", "y")]) },
            Descriptor { limit, ..descriptor(&[("b", "z")]) },
        ],
    );
    let text = |text: &str| Value::Text(text.to_owned());
    let map = |fields: Vec<(&str, Value)>| {
        Value::Map(fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    };
    let limit = map(vec![("requestsPerUnit", Value::Number(7.0)), ("unit", text("HOUR"))]);
    let first = map(vec![
        ("entries", Value::List(vec![text("a=x"), text("no=y")])),
        ("hitsAddend", Value::Number(3.0)),
    ]);
    let second = map(vec![("entries", Value::List(vec![text("b=z")])), ("limit", limit)]);
    let expected = map(vec![
        ("domain", text("d")),
        ("descriptors", Value::List(vec![first, second])),
        ("hitsAddend", Value::Number(2.0)),
    ]);
    assert_eq!(answer.metadata, Some(expected));
    // Only rules that let their descriptor pass tell theirs.
    let answer = engine.ask(["a", "b"].map(|key| descriptor(&[(key, "x")])).into());
    let Some(Value::Map(fields)) = answer.metadata else { panic!("no metadata") };
    let merged = fields.into_iter().find(|(key, _)| key == "metadata").map(|(_, value)| value);
    assert_eq!(merged, Some(map(vec![("plan", text("gold"))])));
    assert_eq!(super::engine(rules).ask(vec![descriptor(&[("a", "x")])]).metadata, None);
}

#[test]
fn values_of_a_shared_threshold_are_counted_together() {
    let engine = engine(
        "- {key: k, value: v*, share_threshold: true, rate_limit: {unit: day, requests: 5}}",
    );
    let left = |value: &str| engine.ask(vec![descriptor(&[("k", value)])]).statuses[0].remaining;
    assert_eq!([left("v1"), left("v2"), left("v1")], [4, 3, 2]);
}
