//! One case per error in rate_limit and rate_limits, each with message and position.

use super::*;

#[test]
fn of_a_rate_limit() {
    let table = [
        ("5", "3:24: expected a rate_limit, found the number 5"),
        (
            "{unit: hour, colour: red}",
            "3:37: unknown key `colour` in a rate_limit; expected unit, requests_per_unit, \
             unlimited, name, replaces, algorithm, requests, period, burst, initial, timezone, \
             borrow, exact, reset, count_denied",
        ),
        (
            "{unit: hour, request_per_unit: 1}",
            "3:37: unknown key `request_per_unit` in a rate_limit (did you mean \
             `requests_per_unit`?); expected unit, requests_per_unit, unlimited, name, replaces, \
             algorithm, requests, period, burst, initial, timezone, borrow, exact, reset, \
             count_denied",
        ),
        (
            "{unit: hour, match: x}",
            "3:37: unknown key `match` in a rate_limit; it belongs in a descriptor",
        ),
        (
            "{unit: hour, requests: 1, requests_per_unit: 1}",
            "3:47: `requests` and `requests_per_unit` mean the same; keep one",
        ),
        (
            "{unit: hour, requests: -1}",
            "3:47: `requests`: expected a whole number from 0 to 4294967295, found the number -1",
        ),
        (
            "{unit: hour, requests_per_unit: 4294967296}",
            "3:56: `requests_per_unit`: expected a whole number from 0 to 4294967295, found the \
             number 4294967296",
        ),
        (
            "{unit: hour, requests: 99999999999999999999}",
            "3:47: `requests`: expected a whole number from 0 to 4294967295, found the number \
             99999999999999999999",
        ),
        (
            "{unit: hour, requests: 1.5}",
            "3:47: `requests`: expected a whole number from 0 to 4294967295, found the number 1.5",
        ),
        (
            "{unit: hour, requests: '5'}",
            "3:47: `requests`: expected a whole number from 0 to 4294967295, found \"5\"",
        ),
        (
            "{unit: hour, count_denied: 1}",
            "3:51: `count_denied`: expected true or false, found the number 1",
        ),
        ("{unit: hour, replaces: {name: a}}", "3:47: `replaces`: expected a list, found a map"),
        ("{unit: hour, replaces: [a]}", "3:48: expected an entry of replaces, found \"a\""),
        ("{unit: hour, replaces: [~]}", "3:48: an entry of replaces needs a `name`"),
        ("{unit: hour, replaces: [{}]}", "3:48: `name` is required and must not be empty"),
        ("{unit: hour, replaces: [{name: ''}]}", "3:55: `name` is required and must not be empty"),
        (
            "{unit: hour, name: a, replaces: [{name: a}]}",
            "3:64: `replaces` must not name a limit of the same descriptor",
        ),
        ("{unlimited: true, unit: hour}", "3:48: `unit` contradicts `unlimited: true`; remove one"),
        (
            "{unlimited: true, borrow: 5}",
            "3:50: `borrow` contradicts `unlimited: true`; remove one",
        ),
        (
            "{unlimited: true, name: a, replaces: [{name: a}]}",
            "3:69: `replaces` must not name a limit of the same descriptor",
        ),
    ];
    check_each_error(with_limit, &table);
}

#[test]
fn of_a_period() {
    let table = [
        (
            "{unit: fortnight, requests: 1}",
            "3:31: unknown unit \"fortnight\"; expected second, minute, hour, day, week, month, \
             year",
        ),
        (
            "{unit: Minutes, requests: 1}",
            "3:31: unknown unit \"Minutes\" (did you mean `minute`?); expected second, minute, \
             hour, day, week, month, year",
        ),
        ("{unit: [hour]}", "3:31: `unit`: expected a string, found a list"),
        (
            "{period: 1 hour, requests: 1}",
            "3:33: \"1 hour\" is not a period; expected a number and ms, s, m, h, d, w, mo or y, \
             such as 30s",
        ),
        (
            "{period: 30, requests: 1}",
            "3:33: \"30\" is not a period; expected a number and ms, s, m, h, d, w, mo or y, such \
             as 30s",
        ),
        (
            "{requests: 1}",
            "3:25: a rate_limit needs `unit` (second, minute, hour, …) or `period` (such as 30s)",
        ),
        (
            "{unit: '', requests: 1}",
            "3:31: unknown unit \"\"; expected second, minute, hour, day, week, month, year",
        ),
        ("{unit: hour, period: 1h, requests: 1}", "3:45: `unit` and `period` exclude each other"),
        ("{period: 1h}", "3:25: a rate_limit with `period` needs `requests`"),
        ("{period: 0s, requests: 1}", "3:33: period 0 is not allowed (minimum 1ms)"),
        ("{period: 0s, requests: 1, timezone: UTC}", "3:33: period 0 is not allowed (minimum 1ms)"),
        (
            "{period: 1500ms, requests: 1, algorithm: sliding_buckets, exact: true}",
            "3:33: period 1.5s is not allowed with exact (whole seconds, 1s to 1d)",
        ),
        (
            "{period: 2d, requests: 1, algorithm: sliding_buckets, exact: true}",
            "3:33: period 172800s is not allowed with exact (whole seconds, 1s to 1d)",
        ),
        ("{period: 4000d, requests: 1}", "3:33: period 345600000s is too long (maximum 3660d)"),
        ("{period: 0mo, requests: 1}", "3:33: 0 months are not allowed (1 to 120)"),
        ("{period: 11y, requests: 1}", "3:33: 132 months are not allowed (1 to 120)"),
        (
            "{period: 1mo, requests: 1, algorithm: sliding_window}",
            "3:33: calendar months and years are for fixed_window only; use days, such as 30d",
        ),
    ];
    check_each_error(with_limit, &table);
}

#[test]
fn of_a_timezone() {
    let expected = "expected UTC, an offset such as +08:00, or a name such as Europe/Berlin";
    for (zone, message) in [
        ("Europe/Berln", format!("\"Europe/Berln\" (did you mean `Europe/Berlin`?); {expected}")),
        ("Berlin", format!("\"Berlin\" (did you mean `Europe/Berlin`?); {expected}")),
        ("utcc", format!("\"utcc\" (did you mean `UTC`?); {expected}")),
        ("Mars/Olympus_Mons", format!("\"Mars/Olympus_Mons\"; {expected}")),
        ("''", format!("\"\"; {expected}")),
    ] {
        let message = format!("3:46: unknown timezone {message}");
        check_error(&with_limit(&format!("{{unit: day, timezone: {zone}}}")), &message);
    }
    for zone in ["+8:00", "+19:00", "-08:60", "+0800"] {
        let message = format!(
            "3:46: {zone:?} is not an offset; expected hours and minutes such as +08:00, up to \
             18:00 either way"
        );
        check_error(&with_limit(&format!("{{unit: day, timezone: '{zone}'}}")), &message);
    }
}

#[test]
fn of_an_algorithm() {
    let table = [
        (
            "algorithm: leaky",
            "3:61: unknown algorithm \"leaky\"; expected fixed_window, first_hit_window, \
             token_bucket, sliding_window or sliding_buckets",
        ),
        (
            "algorithm: sliding_windows",
            "3:61: unknown algorithm \"sliding_windows\" (did you mean `sliding_window`?); \
             expected fixed_window, first_hit_window, token_bucket, sliding_window or \
             sliding_buckets",
        ),
        ("algorithm: [a]", "3:61: `algorithm`: expected a string, found a list"),
        ("burst: 2", "3:57: `burst` is for token_bucket only"),
        ("initial: 2", "3:59: `initial` is for token_bucket only"),
        ("exact: true", "3:57: `exact` is for sliding_buckets only"),
        (
            "algorithm: token_bucket, borrow: 1",
            "3:83: `borrow` is for fixed_window and first_hit_window only",
        ),
        (
            "algorithm: sliding_window, timezone: UTC",
            "3:87: `timezone` of a sliding_window has no effect without `reset`",
        ),
        (
            "borrow: 4294967295",
            "3:58: requests 1 and borrow 4294967295 are together more than 4294967295",
        ),
        ("algorithm: token_bucket, burst: 0", "3:82: burst 0 is not allowed (minimum 1)"),
        ("algorithm: token_bucket, initial: 2", "3:84: initial 2 is more than burst 1"),
        (
            "algorithm: token_bucket, initial: 2h",
            "3:84: initial 7200s is 2 tokens, more than burst 1",
        ),
        (
            "algorithm: token_bucket, initial: soon",
            "3:84: `initial`: expected a whole number from 0 to 4294967295, or a time such as 10s, \
             found \"soon\"",
        ),
    ];
    check_each_error(|keys| with_limit(&format!("{{unit: hour, requests: 1, {keys}}}")), &table);
    check_error(
        &with_limit("{unit: hour, borrow: 5}"),
        "3:45: borrow 5 needs requests of at least 1 to pay it back",
    );
    let refill = "requests 0 is not allowed for token_bucket (minimum 1); it would never refill";
    for (limit, column) in [
        ("{unit: hour, algorithm: token_bucket}", 25),
        ("{unit: hour, algorithm: token_bucket, requests: 0}", 72),
        ("{unit: hour, algorithm: token_bucket, requests_per_unit: 0}", 81),
    ] {
        check_error(&with_limit(limit), &format!("3:{column}: {refill}"));
    }
}

#[test]
fn of_rate_limits() {
    let many = vec!["{unit: hour}"; 17].join(",");
    let errors = load_text(&with_limits(&many)).unwrap_err();
    assert_eq!(errors[0], "limits.yaml:3:25: `rate_limits`: expected 1 to 16, found 17");
    let table = [
        ("", "3:25: `rate_limits`: expected 1 to 16, found 0"),
        ("5", "3:26: expected a rate_limit, found the number 5"),
        (
            "{unit: hour}, {unit: day, requests: 5, shadow: true}",
            "3:65: unknown key `shadow` in a rate_limit; expected unit, requests_per_unit, \
             unlimited, name, replaces, algorithm, requests, period, burst, initial, timezone, \
             borrow, exact, reset, count_denied",
        ),
        (
            "{unlimited: true}",
            "3:27: `unlimited` is for `rate_limit`, not for one of several limits",
        ),
        (
            "{name: a, unit: hour}, {name: a, unit: day}",
            "3:56: the limit at 3:33 already has this name",
        ),
        (
            "{name: '2', unit: hour}, {unit: day}",
            "3:52: \"2\" is the name of one limit and the number of another; give all of them \
             names",
        ),
        (
            "{unit: hour}, {period: 60m, requests: 5}",
            "3:41: this has the algorithm and period of the limit at 3:27, so both would share \
             counters; give them names",
        ),
        (
            "{name: a, unit: hour}, {name: b, unit: day, replaces: [{name: a}]}",
            "3:88: `replaces` must not name a limit of the same descriptor",
        ),
    ];
    check_each_error(with_limits, &table);
    check_error(
        &with_descriptor("{key: k, rate_limits: {unit: hour}}"),
        "3:25: `rate_limits`: expected a list, found a map",
    );
}

#[test]
fn of_a_reset() {
    let table = [
        (
            "unit: day, requests: 1, algorithm: token_bucket, reset: '03:00'",
            "3:81: `reset` is for fixed_window, first_hit_window, sliding_window and \
             sliding_buckets \
             only",
        ),
        (
            "unit: day, algorithm: first_hit_window, timezone: UTC",
            "3:75: `timezone` of a first_hit_window has no effect without `reset`",
        ),
        (
            "unit: day, algorithm: first_hit_window, reset: '24:00'",
            "3:72: `reset`: expected a time of day such as \"03:00\", found \"24:00\"",
        ),
        (
            "unit: day, algorithm: token_bucket, requests: 1, timezone: UTC",
            "3:84: `timezone` is for fixed_window, first_hit_window, sliding_window and \
             sliding_buckets only",
        ),
        (
            "unit: day, algorithm: sliding_buckets, timezone: UTC",
            "3:74: `timezone` of a sliding_buckets has no effect without `reset`",
        ),
        (
            "unit: day, reset: 3",
            "3:43: `reset`: expected a time of day such as \"03:00\", found \"3\"",
        ),
    ];
    check_each_error(|keys| with_limit(&format!("{{{keys}}}")), &table);
}
