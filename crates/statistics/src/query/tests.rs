//! Parameters, steps and JSON.

use super::*;

const NOW: i64 = 1_800_000_000;

fn parse(parameters: &str) -> Result<Query, String> {
    let statistic = Statistic {
        name: "calls".to_owned(),
        domain: "shop".into(),
        by: vec!["app".to_owned(), "path".to_owned(), "top".to_owned()],
        distinct: Some("user".to_owned()),
    };
    let pairs = parameters.split('&').filter_map(|pair| pair.split_once('='));
    Query::parse(&statistic, pairs, NOW).map_err(|error| error.to_string())
}

#[test]
fn parameters_are_a_question() {
    let query = parse("app=web&key.top=5&last=7d&step=auto").unwrap();
    assert_eq!(query.filters, [(0, "web".to_owned()), (2, "5".to_owned())]);
    assert_eq!((query.from, query.to), (NOW - 7 * 86_400, NOW));
    assert_eq!((query.step, &*query.by, query.top), (None, &[][..], 1));
    assert!(query.distinct);
    let query = parse("app=web&top=7&order=denied").unwrap();
    assert_eq!((query.by, query.top, query.order), (vec![1, 2], 7, Order::Denied));
    let query = parse("by=path&from=2026-11-25T10:00:00Z&to=1800000000&step=6h").unwrap();
    assert_eq!((query.from, query.to), (1_795_600_800, 1_800_000_000));
    assert_eq!((query.by, query.top, query.step), (vec![1], 10, Some(Step::SixHours)));
}

/// A key that is both named and grouped by counts once.
#[test]
fn a_group_is_one_series_if_each_key_is_named_or_grouped_by() {
    for (parameters, is_by_series) in [
        ("by=app,path,top", true),
        ("by=app&path=/a&key.top=5", true),
        ("app=web&path=/a&key.top=5", true),
        ("by=app&app=web&path=/a", false),
        ("by=app,path&path=/a", false),
        ("app=web&key.app=web&path=/a", false),
        ("last=1d", false),
    ] {
        assert_eq!(parse(parameters).unwrap().is_by_series(), is_by_series, "{parameters}");
    }
}

#[test]
fn mistakes_are_named() {
    for (parameters, message) in [
        ("ap=web", "`ap` is neither a parameter nor a key of this statistic (app, path, top)"),
        ("last=7", "`last`: expected a duration such as 30m, 24h, 7d or 4w, found \"7\""),
        ("last=99999w", "`last`: expected a duration such as 30m, 24h, 7d or 4w, found \"99999w\""),
        ("last=1d&to=5", "`last` and `from` or `to` exclude each other"),
        ("last=1d&last=2d", "`last` is there twice"),
        (
            "from=x",
            "`from`: expected a time such as 2026-11-25T10:00:00Z, or seconds since 1970, found \"x\"",
        ),
        (
            "from=9223372036854775807",
            "`from`: expected a time such as 2026-11-25T10:00:00Z, or seconds since 1970, found \"9223372036854775807\"",
        ),
        ("from=5&to=5", "expected a range of more than nothing and at most 20 years"),
        ("from=-5&to=1800000000", "expected a range of more than nothing and at most 20 years"),
        ("step=2m", "`step`: expected auto or one of 1m, 5m, 15m, 1h, 6h, 1d, 1w, found \"2m\""),
        ("top=101", "`top`: expected a number from 1 to 100, found \"101\""),
        ("top=0", "`top`: expected a number from 1 to 100, found \"0\""),
        (
            "order=distinct",
            "`order`: expected requests, allowed, denied or hits, found \"distinct\"",
        ),
        ("by=app,app", "`by`: expected different keys, found \"app,app\""),
    ] {
        assert_eq!(parse(parameters).unwrap_err(), message, "{parameters}");
    }
}

#[test]
fn steps_fit_the_range_and_the_points() {
    let step = |parameters: &str, widest: i64| parse(parameters).unwrap().chosen_step(widest);
    assert_eq!(step("last=1h", 60), Ok(Step::Minute));
    assert_eq!(step("last=1d", 60), Ok(Step::FiveMinutes));
    assert_eq!(step("last=7d", 3_600), Ok(Step::Hour));
    assert_eq!(step("last=30d", 3_600), Ok(Step::SixHours));
    assert_eq!(step("last=52w", 86_400), Ok(Step::Day));
    assert_eq!(step("last=1000w", 604_800), Ok(Step::Week));
    // A step is never finer than the points.
    assert_eq!(step("last=1h&step=1m", 3_600), Ok(Step::Hour));
    assert_eq!(step("last=1d&step=1m", 60), Ok(Step::Minute));
    assert_eq!(
        step("last=30d&step=1m", 60).unwrap_err().to_string(),
        "a step of 1m is too short for 720 h"
    );
}

#[test]
fn an_answer_is_json() {
    let counts = Counts { allowed: 2, denied: 1, hits: 4 };
    let point = AnswerPoint { start: 60, counts, distinct: Some(2) };
    let series =
        |values, distinct, points| AnswerSeries { values, total: counts, distinct, points };
    let hostile = "<b>\u{1b}\"".to_owned();
    let answer = Answer {
        statistic: "calls".to_owned(),
        counts_distinct: true,
        by: vec!["app".to_owned()],
        from: 0,
        to: 90,
        step: Step::Minute,
        series: vec![series(Some(vec![hostile]), Some(2), vec![point]), series(None, None, vec![])],
        has_more: true,
    };
    let expected = r#"{
        "statistic": "calls", "from": 0, "to": 90, "step": "1m", "by": ["app"], "more": true,
        "series": [
            {"values": {"app": "<b>\u001b\""}, "total": {"allowed": 2, "denied": 1, "hits": 4, "distinct": 2},
             "points": [{"start": 60, "allowed": 2, "denied": 1, "hits": 4, "distinct": 2}]},
            {"other": true, "total": {"allowed": 2, "denied": 1, "hits": 4, "distinct": null}, "points": []}
        ]
    }"#;
    let expected: serde_json::Value = serde_json::from_str(expected).unwrap();
    assert_eq!(answer.json(), expected);
}

#[test]
fn distinct_values_are_absent_unless_asked_for() {
    let total = Counts { allowed: 2, denied: 1, hits: 4 };
    let series = AnswerSeries { values: Some(vec![]), total, distinct: None, points: vec![] };
    let answer = Answer {
        statistic: "calls".to_owned(),
        counts_distinct: false,
        by: vec![],
        from: 0,
        to: 90,
        step: Step::Minute,
        series: vec![series],
        has_more: false,
    };
    let json = answer.json();
    assert_eq!(json["series"][0]["total"].get("distinct"), None);
    assert_eq!(json["series"][0]["values"], serde_json::json!({}));
}
