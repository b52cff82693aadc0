use super::*;
use crate::rls::{
    Code, DescriptorEntry, DescriptorStatus, RateLimit, RateLimitOverride, RateLimitRequest,
    RateLimitResponse,
};
use prost_types::value::Kind;
use prost_types::{Duration, ListValue, Struct, Value};
use std::path::Path;
use tidegate_core::Nanos;

#[test]
fn asks_are_read_as_written() {
    let entry = |key: &str, value: &str| DescriptorEntry { key: key.into(), value: value.into() };
    let mut expected = RateLimitRequest { domain: "shop".into(), ..Default::default() };
    expected.hits_addend = 3;
    expected.descriptors = vec![Default::default(), Default::default()];
    expected.descriptors[0].entries = vec![entry("a", "x"), entry("c", "y=z")];
    expected.descriptors[0].hits_addend = Some(0);
    expected.descriptors[1].entries = vec![entry("b", "")];
    expected.descriptors[1].is_negative_hits = true;
    expected.descriptors[1].limit = Some(RateLimitOverride { requests_per_unit: 9, unit: 7 });
    assert_eq!(parse("@shop 3x a=x,c=y=z +0 & b= - 9/week").as_ref(), Ok(&expected));
    let refund = parse("a=x -7").expect("an ask");
    assert_eq!((refund.domain.as_str(), refund.hits_addend), ("test", 0));
    assert_eq!(refund.descriptors[0].hits_addend, Some(7));
    assert!(refund.descriptors[0].is_negative_hits);
    for (wrong, message) in [
        ("a", r#""a": no = in "a""#),
        ("a=x b=y", r#""a=x b=y": "b=y" has no meaning"#),
        ("a=x 9/eon", r#""a=x 9/eon": no unit in "9/eon""#),
        ("a=x +y", r#""a=x +y": "y" is not a number of this size"#),
        ("a=x -y", r#""a=x -y": "y" is not a number of this size"#),
        (
            "a=x 4294967296/day",
            r#""a=x 4294967296/day": "4294967296" is not a number of this size"#,
        ),
    ] {
        assert_eq!(parse(wrong).unwrap_err().to_string(), message);
    }
}

#[test]
fn only_a_denial_or_fewer_hits_left_say_that_more_was_counted() {
    for (expected, got, counts_more) in [
        ("OVER: OVER 4/10 per day", "OVER: OVER 3/10 per day", true),
        ("OK: OK 4/10 per day", "OVER: OVER 3/10 per day", true),
        ("OK: OK 0/10 per day", "OVER: OVER 3/10 per day", true),
        ("OK: OK 4/10 per day, OK 7/9 per hour", "OK: OK 4/10 per day, OK 6/9 per hour", true),
        ("OK: OK 4/10 per day, OK 7/9 per hour", "OK: OK 5/10 per day, OK 6/9 per hour", false),
        ("OVER: OVER 4/10 per day", "OVER: OVER 5/10 per day", false),
        ("OVER: OVER 0/10 per day", "OK: OK 0/10 per day", false),
        ("OK: OK 4/10 per day", "OK: OK", false),
        ("OK: OK 4/10 per day", "OK: OK 4/10 per day", false),
    ] {
        assert_eq!(cases::counts_more(expected, got), counts_more, "{expected}, {got}");
    }
}

#[test]
fn spans_are_read_as_written() {
    for (written, nanos) in
        [("0s", 0), ("1d12h", 129_600_000_000_000), ("2m1s", 121_000_000_000), ("5ms", 5_000_000)]
    {
        assert_eq!(span(written), Ok(Nanos::new(nanos)), "{written}");
    }
    for wrong in ["", "1", "s", "1y", "1s2", "1.5s", "99999999999d", "213503d24h", "-1s"] {
        assert!(span(wrong).is_err(), "{wrong}");
    }
}

fn status(code: Code, left: u32, limit: Option<(u32, i32, &str)>) -> DescriptorStatus {
    let limit = limit.map(|(requests_per_unit, unit, name)| RateLimit {
        requests_per_unit,
        unit,
        name: name.to_owned(),
    });
    DescriptorStatus {
        code: code.into(),
        duration_until_reset: limit.is_some().then_some(Duration { seconds: 93_600, nanos: 0 }),
        current_limit: limit,
        limit_remaining: left,
        quota: None,
        ..DescriptorStatus::default()
    }
}

fn answer() -> RateLimitResponse {
    RateLimitResponse {
        overall_code: Code::OverLimit.into(),
        statuses: vec![
            status(Code::Ok, 3, Some((5, 4, "burst"))),
            status(Code::OverLimit, 0, Some((9, 0, ""))),
            status(Code::Ok, u32::MAX, None),
            status(Code::Ok, 0, None),
            status(Code::Unknown, 7, None),
        ],
        ..Default::default()
    }
}

#[test]
fn answers_are_written_with_and_without_times() {
    assert_eq!(
        summary(&answer()),
        "OVER: OK 3/5 per day (burst), OVER 0/9, OK unlimited, OK no limit, UNKNOWN 7 of no limit"
    );
    let with_times = "OVER: OK 3/5 per day (burst) in 1d2h, OVER 0/9 in 1d2h, OK unlimited, \
                      OK no limit, UNKNOWN 7 of no limit";
    assert_eq!(summary_with_times(&answer()), with_times);
    for (seconds, nanos, written) in [
        (0, 0, "0s"),
        (61, 0, "1m1s"),
        (90_061, 0, "1d1h1m1s"),
        (1, 5, "1 s and 5 ns"),
        (-1, 0, "-1 s and 0 ns"),
    ] {
        let mut one = answer();
        one.statuses.truncate(1);
        one.statuses[0].duration_until_reset = Some(Duration { seconds, nanos });
        let expected = format!("OVER: OK 3/5 per day (burst) in {written}");
        assert_eq!(summary_with_times(&one), expected);
    }
}

/// The only ask of a case with this answer.
fn ask(answer: &str) -> Ask {
    let text = format!("## A\nlimits\n    - {{key: k}}\nk=a -> {answer}\n");
    let cases = read_cases("x.txt", &text).expect("a case");
    let Step::Ask(ask) = &cases[0].steps[0] else { panic!("{cases:?}") };
    ask.clone()
}

#[test]
fn another_answer_is_a_failure_with_its_place() {
    let mut one = answer();
    one.statuses.truncate(1);
    let same = ["OVER: OK 3/5 per day (burst)", "OVER: OK 3/5 per day (burst) in 1d2h"];
    for same in same {
        assert_eq!(ask(same).check(&one, Times::Compared), Ok(()));
    }
    let later = ask("OVER: OK 3/5 per day (burst) in 1d3h");
    assert_eq!(later.check(&one, Times::Ignored), Ok(()));
    assert_eq!(
        later.check(&one, Times::Compared).unwrap_err(),
        "x.txt:4\n     ask k=a\n\
         expected OVER: OK 3/5 per day (burst) in 1d3h\n     got OVER: OK 3/5 per day (burst) in 1d2h"
    );
    assert_eq!(
        ask("OK: OK 3/5 per day (burst) in 1d2h").check(&one, Times::Ignored).unwrap_err(),
        "x.txt:4\n     ask k=a\nexpected OK: OK 3/5 per day (burst)\n     got OVER: OK 3/5 per day (burst)"
    );
}

#[test]
fn a_time_stands_with_each_limit_and_with_nothing_else() {
    for (status_index, time, is_good) in [
        (0, Some((5, 0)), true),
        (0, None, false),
        (0, Some((5, 1)), false),
        (0, Some((-1, 0)), false),
        (3, Some((5, 0)), false),
    ] {
        let mut one = answer();
        one.statuses = vec![one.statuses[status_index].clone()];
        one.statuses[0].duration_until_reset =
            time.map(|(seconds, nanos)| Duration { seconds, nanos });
        let expected = summary(&one);
        let checked = ask(&expected).check(&one, Times::Ignored);
        assert_eq!(checked.is_ok(), is_good, "{checked:?}");
    }
}

#[test]
fn metadata_are_compared_in_full() {
    let value = |kind| Value { kind: Some(kind) };
    let list = ListValue {
        values: vec![value(Kind::BoolValue(true)), value(Kind::NullValue(0)), Value { kind: None }],
    };
    let inner = Struct { fields: [("n".to_owned(), value(Kind::NumberValue(0.5)))].into() };
    let fields = [
        ("b".to_owned(), value(Kind::ListValue(list))),
        ("a".to_owned(), value(Kind::StringValue("x".to_owned()))),
        ("c".to_owned(), value(Kind::StructValue(inner))),
    ];
    let mut one = answer();
    one.dynamic_metadata = Some(Struct { fields: fields.into() });
    let written = summary(&one);
    let missing = ask(&written).check(&one, Times::Ignored).unwrap_err();
    assert!(missing.contains("expected no metadata\n     got {\"a\": \"x\""), "{missing}");
    let text = format!(
        "## A\nlimits\n    - {{key: k}}\nk=a -> {written}\nmetadata\n    {{\"a\": \"x\",\n      \
         \"b\": [true, null, null], \"c\": {{\"n\": 0.5}}}}\n"
    );
    let cases = read_cases("x.txt", &text).expect("a case");
    let Step::Ask(with) = &cases[0].steps[0] else { panic!("{cases:?}") };
    assert_eq!(with.check(&one, Times::Ignored), Ok(()));
    one.dynamic_metadata = None;
    assert!(with.check(&one, Times::Ignored).is_err());
}

#[test]
fn a_case_has_flags_limits_and_steps() {
    let text = "\
# A comment.

## First
flags --a --b
limits
    - {key: k}

    - {key: l}
k=a\\tb -> OK: OK no limit
after 2s
limits
    - {key: m}
## Second
each KEY: k l
KEY=a -> OK: OK no limit
after 1s
";
    let cases = read_cases("x.txt", text).expect("cases");
    let [first, second] = &cases[..] else { panic!("{cases:?}") };
    assert_eq!((first.at.as_str(), first.title.as_str()), ("x.txt:3", "First"));
    assert_eq!(first.flags, ["--a", "--b"]);
    assert_eq!(first.limits, "- {key: k}\n- {key: l}\n");
    let [Step::Ask(ask), Step::After(span), Step::Limits(limits)] = &first.steps[..] else {
        panic!("{first:?}")
    };
    assert_eq!(ask.request.descriptors[0].entries[0].value, "a\tb");
    assert_eq!((*span, limits.as_str()), (Nanos::from_secs(2), "- {key: m}\n"));
    assert!(second.flags.is_empty());
    assert_eq!(second.limits, first.limits);
    let keys = second.steps.iter().filter_map(|step| match step {
        Step::Ask(ask) => Some(ask.request.descriptors[0].entries[0].key.as_str()),
        _ => None,
    });
    assert_eq!((keys.collect::<Vec<_>>(), second.steps.len()), (vec!["k", "l"], 4));
}

#[test]
fn limits_are_descriptors_or_files() {
    assert_eq!(limits_files("- {key: k}\n", "-1"), ["domain: test-1\ndescriptors:\n- {key: k}\n"]);
    let two = "domain: a\ndescriptors: []\ndomain: b\ncount_denied: true\n";
    let files = ["domain: a-1\ndescriptors: []\n", "domain: b-1\ncount_denied: true\n"];
    assert_eq!(limits_files(two, "-1"), files);
}

#[test]
fn a_mistake_has_its_place() {
    let case = "## A\nlimits\n    - {key: k}\nk=a -> OK: OK no limit\n";
    for (text, message) in [
        ("k=a -> OK: OK no limit\n".to_owned(), "x.txt:1: a line before the first title"),
        ("## A\n".to_owned(), "x.txt: the case at x.txt:1 does not begin with an ask"),
        ("## A\nk=a -> OK: OK no limit\n".to_owned(), "x.txt: the case at x.txt:1 has no limits"),
        (
            "## A\nlimits\n    - {key: k}\nafter 1s\nk=a -> OK: OK no limit\n".to_owned(),
            "x.txt: the case at x.txt:1 does not begin with an ask",
        ),
        (format!("{case}{case}"), "x.txt:5: another case has this title"),
        (format!("{case}k=a\n"), "x.txt:5: \"k=a\" has no meaning"),
        (format!("{case}k -> OK: OK no limit\n"), "x.txt:5: \"k\": no = in \"k\""),
        (
            format!("{case}k=a -> OK: OK 1/2 in a day\n"),
            "x.txt:5: \"a day\" is not a time such as 1d12h or 500ms",
        ),
        (
            format!("{case}after a while\n"),
            "x.txt:5: \"a while\" is not a time such as 1d12h or 500ms",
        ),
        (
            format!("{case}    - {{key: l}}\n"),
            "x.txt:5: an indented line below neither `limits` nor `metadata`",
        ),
        (format!("{case}after 1s\nmetadata\n"), "x.txt:6: `metadata` without an ask"),
        (format!("{case}each K\n"), "x.txt:5: no `: ` after the name"),
        (
            format!("{case}each K: a b\nk=a -> OK: OK no limit\n"),
            "x.txt: x.txt:6: no K in this ask",
        ),
    ] {
        assert_eq!(read_cases("x.txt", &text).unwrap_err().to_string(), message, "{text}");
    }
}

#[test]
fn a_directory_without_cases_is_a_mistake() {
    let error = cases_in(Path::new("/nowhere/at/all")).unwrap_err().to_string();
    assert!(error.starts_with("/nowhere/at/all: "), "{error}");
}
