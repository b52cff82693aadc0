//! The keys of a rate_limit.

use super::*;
use crate::Defaults;
use tidegate_core::{
    DailyReset, DeniedHits, FirstHitWindow, SlidingBuckets, SlidingExact, SlidingWindow, Zone,
};

fn nanos(secs: u64) -> Nanos {
    Nanos::from_secs(secs)
}

#[track_caller]
fn check(rate_limit: &str, expected: &Quota) {
    assert_eq!(only_limit(&with_limit(rate_limit)).quota, *expected, "for {rate_limit}");
}

#[test]
fn periods_are_any_length() {
    let fixed = |requests, period| Quota::FixedWindow(FixedWindow::new(requests, period).unwrap());
    check("{period: 30s, requests: 7}", &fixed(7, nanos(30)));
    check("{period: 100ms, requests: 7}", &fixed(7, Nanos::new(100_000_000)));
    check("{period: 5m, requests_per_unit: 7}", &fixed(7, nanos(300)));
    check("{period: 2w, requests: 0}", &fixed(0, nanos(1_209_600)));
    check("{unit: minute, requests: 7}", &fixed(7, nanos(60)));
    let calendar = |months| FixedWindow::calendar(7, months).unwrap();
    check("{period: 1mo, requests: 7}", &Quota::FixedWindow(calendar(1)));
    check("{period: 3mo, requests: 7}", &Quota::FixedWindow(calendar(3)));
    check("{period: 1y, requests: 7}", &Quota::FixedWindow(calendar(12)));
}

/// Without a timezone they are 30 and 365 days, as in envoyproxy/ratelimit.
#[test]
fn a_month_with_a_timezone_is_one_of_the_calendar() {
    let zoned = |window: FixedWindow| Quota::FixedWindow(window.in_zone(&Zone::fixed(8 * 3_600)));
    let zone = "timezone: '+08:00', requests: 7";
    check(&format!("{{unit: month, {zone}}}"), &zoned(FixedWindow::calendar(7, 1).unwrap()));
    check(&format!("{{unit: YEAR, {zone}}}"), &zoned(FixedWindow::calendar(7, 12).unwrap()));
    check(&format!("{{unit: week, {zone}}}"), &zoned(window(7, 7 * 86_400)));
    check(&format!("{{period: 30d, {zone}}}"), &zoned(window(7, 30 * 86_400)));
    check("{unit: month, requests: 7}", &Quota::FixedWindow(window(7, 30 * 86_400)));
}

#[test]
fn each_algorithm_has_its_numbers() {
    let (minute, day) = (nanos(60), nanos(86_400));
    let limit = |keys: &str| format!("{{requests: 7, unit: minute, {keys}}}");
    let borrowed = window(7, 60).with_borrow(3).unwrap();
    check(&limit("algorithm: fixed_window"), &Quota::FixedWindow(window(7, 60)));
    check(&limit("borrow: 3"), &Quota::FixedWindow(borrowed));
    let first = FirstHitWindow::new(7, minute).unwrap();
    check(&limit("algorithm: first_hit_window"), &Quota::FirstHitWindow(first.clone()));
    let borrowed = Quota::FirstHitWindow(first.with_borrow(3).unwrap());
    check(&limit("algorithm: first_hit_window, borrow: 3"), &borrowed);
    check(&limit("algorithm: token_bucket"), &bucket(7, 60, 7, 7));
    check(&limit("algorithm: token_bucket, burst: 9"), &bucket(7, 60, 9, 9));
    check(&limit("algorithm: token_bucket, burst: 9, initial: 0"), &bucket(7, 60, 9, 0));
    // Seven a minute: a token each 8.6 s.
    check(&limit("algorithm: token_bucket, burst: 9, initial: 8s"), &bucket(7, 60, 9, 0));
    check(&limit("algorithm: token_bucket, burst: 9, initial: 20s"), &bucket(7, 60, 9, 2));
    check(&limit("algorithm: token_bucket, burst: 9, initial: 1m"), &bucket(7, 60, 9, 7));
    check(&limit("algorithm: token_bucket, initial: 0s"), &bucket(7, 60, 7, 0));
    let sliding = Quota::SlidingWindow(SlidingWindow::new(7, minute).unwrap());
    check(&limit("algorithm: sliding_window"), &sliding);
    let buckets = Quota::SlidingBuckets(SlidingBuckets::new(7, minute).unwrap());
    check(&limit("algorithm: sliding_buckets"), &buckets);
    check(&limit("algorithm: sliding_buckets, exact: false"), &buckets);
    let exact = Quota::SlidingExact(SlidingExact::new(7, day).unwrap());
    check("{requests: 7, period: 1d, algorithm: sliding_buckets, exact: true}", &exact);
}

#[test]
fn denied_hits_count_where_asked() {
    for (keys, denied) in [
        ("", DeniedHits::Ignore),
        ("count_denied: false", DeniedHits::Ignore),
        ("count_denied: true", DeniedHits::Count),
    ] {
        assert_eq!(only_limit(&with_limit(&format!("{{unit: hour, {keys}}}"))).denied, denied);
    }
}

/// A limit overrides its file, and a file overrides the command line flag.
#[test]
fn the_innermost_count_denied_wins() {
    let denied = |file: Option<bool>, limit: Option<bool>, flag: DeniedHits| {
        let said = |says: Option<bool>| {
            says.map(|says| format!("count_denied: {says}")).unwrap_or_default()
        };
        let text = format!(
            "domain: d\n{}\ndescriptors: [{{key: k, rate_limit: {{unit: hour, {}}}}}]",
            said(file),
            said(limit)
        );
        let dir = directory(&[("limits.yaml", &text)]);
        let defaults = Defaults { denied: flag, ..Defaults::default() };
        load(dir.path(), defaults).unwrap().rules.limits()[0].denied
    };
    let of = |says: bool| if says { DeniedHits::Count } else { DeniedHits::Ignore };
    for flag in [DeniedHits::Ignore, DeniedHits::Count] {
        assert_eq!(denied(None, None, flag), flag);
        for file in [true, false] {
            assert_eq!(denied(Some(file), None, flag), of(file));
            for limit in [true, false] {
                assert_eq!(denied(Some(file), Some(limit), flag), of(limit));
                assert_eq!(denied(None, Some(limit), flag), of(limit));
            }
        }
    }
}

#[test]
fn several_limits_are_identified_by_their_names() {
    let rule = only_rule(&with_limits(
        "{name: short, unit: second, requests: 2}, {unit: hour, requests: 20}, \
         {name: a/b, unit: hour, requests: 30}, {algorithm: sliding_window, unit: hour}",
    ));
    let limits: Vec<(&str, Option<&str>, &str)> = rule
        .limits()
        .iter()
        .map(|limit| (limit.path.as_str(), limit.name.as_deref(), limit.label.as_str()))
        .collect();
    let expected = [
        ("d/k#short", Some("short"), "short"),
        ("d/k#2", None, ""),
        ("d/k#a%2Fb", Some("a/b"), "a/b"),
        ("d/k#4", None, ""),
    ];
    assert_eq!(limits, expected);
    // So a rate_limit keeps its counts when it gets a name.
    let named = only_limit(&with_limit("{name: n, unit: hour}"));
    assert_eq!((named.path.as_str(), named.label.as_str()), ("d/k", ""));
    assert_eq!(only_limit(&with_limits("{unit: hour}")).path, "d/k#1");
    let most: Vec<String> = (0..16).map(|n| format!("{{name: n{n}, unit: hour}}")).collect();
    assert_eq!(only_rule(&with_limits(&most.join(","))).limits().len(), 16);
}

#[test]
fn timezones_are_offsets_or_names() {
    let zoned = |zone: &str| only_limit(&with_limit(&format!("{{unit: day, timezone: {zone}}}")));
    let fixed = |secs| Quota::FixedWindow(window(0, 86_400).in_zone(&Zone::fixed(secs)));
    assert_eq!(zoned("+08:00").quota, fixed(8 * 3_600));
    assert_eq!(zoned("'-03:30'").quota, fixed(-(3 * 3_600 + 1_800)));
    assert_eq!(zoned("-18:00").quota, fixed(-18 * 3_600));
    assert_eq!(zoned("UTC").quota, fixed(0));
    assert_eq!(zoned("Asia/Tokyo").quota, fixed(9 * 3_600));
    assert_eq!(zoned("europe/berlin").quota, zoned("Europe/Berlin").quota);
}

/// Every example of the documentation loads.
#[test]
fn the_examples_of_the_documentation_load() {
    let page = include_str!("../../../../docs/reference/limits.md");
    let mut blocks = page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    // The first is the schema.
    assert!(blocks.next().unwrap().starts_with("domain: <string>"));
    let pattern = blocks.next().unwrap();
    assert_eq!(rules(&format!("domain: d\ndescriptors:\n{pattern}")).limits().len(), 1);
    let shop = rules(blocks.next().unwrap());
    let paths: Vec<&str> = shop.limits().iter().map(|limit| limit.path.as_str()).collect();
    let expected = [
        "shop/ip",
        "shop/login",
        "shop/partner",
        "shop/plan",
        "shop/search",
        "shop/tenant/route=%2Fv1%2F*",
        "shop/user#day",
        "shop/user#hour",
        "shop/user#short",
    ];
    assert_eq!(paths, expected);
    let usage = rules(blocks.next().unwrap());
    assert_eq!(usage.limits()[0].denied, DeniedHits::Count);
    let counted = rules(blocks.next().unwrap());
    let names: Vec<&str> = counted.statistics().iter().map(|of| of.name.as_str()).collect();
    assert_eq!(names, ["app-calls", "app-interface", "app-users"]);
    assert_eq!(blocks.next(), None);
}

/// Every key is documented.
#[test]
fn every_key_is_documented() {
    let page = include_str!("../../../../docs/reference/limits.md");
    for key in crate::yaml::known_keys().concat() {
        let is_told = page.contains(&format!("`{key}")) || page.contains(&format!(" {key}: "));
        assert!(is_told, "{key} is not documented");
    }
}

#[test]
fn every_window_may_be_reset_each_day() {
    let reset = DailyReset::new(Nanos::from_secs(10_800), &Zone::fixed(28_800)).unwrap();
    let (day, reset) = (Nanos::from_secs(86_400), || reset.clone());
    let fixed = window(7, 86_400).in_zone(&Zone::fixed(28_800)).with_reset(reset());
    let sliding = SlidingWindow::new(7, day).unwrap().with_reset(reset());
    let buckets = SlidingBuckets::new(7, day).unwrap().with_reset(reset());
    let exact = SlidingExact::new(7, day).unwrap().with_reset(reset());
    for (algorithm, expected) in [
        ("fixed_window", Quota::FixedWindow(fixed)),
        ("sliding_window", Quota::SlidingWindow(sliding)),
        ("sliding_buckets", Quota::SlidingBuckets(buckets)),
        ("sliding_buckets, exact: true", Quota::SlidingExact(exact)),
    ] {
        let text = format!(
            "{{algorithm: {algorithm}, unit: day, requests: 7, reset: '03:00', timezone: '+08:00'}}"
        );
        assert_eq!(only_limit(&with_limit(&text)).quota, expected, "{algorithm}");
    }
}

#[test]
fn a_first_hit_window_may_be_reset_each_day() {
    let first = FirstHitWindow::new(7, Nanos::from_secs(3_600)).unwrap();
    for (reset, time, offset) in [
        ("reset: '03:00'", 10_800, 0),
        ("reset: 03:00", 10_800, 0),
        ("reset: 23:59, timezone: '+08:00'", 86_340, 28_800),
    ] {
        let text = format!("{{algorithm: first_hit_window, unit: hour, requests: 7, {reset}}}");
        let daily = DailyReset::new(Nanos::from_secs(time), &Zone::fixed(offset)).unwrap();
        let expected = Quota::FirstHitWindow(first.clone().with_reset(daily));
        assert_eq!(only_limit(&with_limit(&text)).quota, expected, "{reset}");
    }
}
