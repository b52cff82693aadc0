//! Replies and headers of given limits.

use super::*;
use crate::config::Action;
use tidegate_core::Nanos;

/// A configuration of three entries, each with these fields, and fields of the filter.
fn config_of(fields: &str, entries: [&str; 3]) -> Config {
    let actions = r#""actions": [{"remote_address": {}}]"#;
    let entries = entries.map(|entry| format!("{{{entry}{actions}}}")).join(",");
    let json = format!(
        r#"{{"domain": "d", "sidecar": {{"cluster": "c"}},{fields} "rate_limits": [{entries}]}}"#
    );
    Config::from_envoy(json.as_bytes()).unwrap()
}

fn config() -> Config {
    config_of("", [""; 3])
}

const NOW: Timestamp = Timestamp::from_nanos(1_000_000_000);

/// A limit of 10 that an entry met, full again in 7 s.
fn status(name: &str, window_secs: u32, remaining: u32, entry: u8) -> LimitStatus {
    let mut limit = LimitInfo::new(name);
    (limit.quota, limit.window_secs, limit.remaining) = (10, window_secs, remaining);
    limit.resets_at = NOW.saturating_add(Nanos::from_secs(7));
    LimitStatus { limit, at_hand: 0, verdict: Verdict::Allow, entry: Some(entry) }
}

/// A limit that denies for this time.
fn deny(name: &str, secs: u64, entry: u8) -> LimitStatus {
    let mut status = status(name, 60, 0, entry);
    status.verdict = Verdict::Deny;
    status.limit.resets_at = NOW.saturating_add(Nanos::from_secs(secs));
    status
}

fn denial_of(config: &Config, limits: &[LimitStatus]) -> Denial {
    denial(config, limits, NOW, &|| panic!("nothing is random"))
}

fn check(style: HeaderStyle, limits: &[LimitStatus], expected: &[(&str, &str)]) {
    let config = Config { headers: style, ..config() };
    let headers = headers(&config, limits, NOW);
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    assert_eq!(headers, expected);
}

#[test]
fn each_style_formats_every_limit() {
    let limits = [status("hourly", 3_600, 9, 0), status("a.b", 0, 3, 0)];
    let ietf = [
        ("ratelimit-policy", "\"hourly\";q=10;w=3600, \"a.b\";q=10"),
        ("ratelimit", "\"hourly\";r=9;t=7, \"a.b\";r=3;t=7"),
    ];
    check(HeaderStyle::Ietf, &limits, &ietf);
    let draft03 = [
        ("x-ratelimit-limit", "10, 10;w=3600;name=\"hourly\", 10;name=\"a.b\""),
        ("x-ratelimit-remaining", "3"),
        ("x-ratelimit-reset", "7"),
    ];
    check(HeaderStyle::Draft03, &limits, &draft03);
    check(HeaderStyle::Off, &limits, &[]);
    check(HeaderStyle::Ietf, &[], &[]);
}

#[test]
fn a_limit_shows_the_tokens_at_hand_unless_it_denies() {
    let unknown = LimitStatus { limit: LimitInfo::default(), ..status("", 0, 0, 0) };
    for (verdict, left) in [(Verdict::Allow, 7), (Verdict::Deny, 0)] {
        let known = LimitStatus { at_hand: 4, verdict, ..status("n", 0, 3, 0) };
        let ietf =
            [("ratelimit-policy", "\"n\";q=10"), ("ratelimit", &format!("\"n\";r={left};t=7"))];
        check(HeaderStyle::Ietf, &[unknown, known], &ietf);
    }
}

/// A status with the number of its entry's options in place of the entry.
fn numbered(config: &Config, status: &LimitStatus) -> LimitStatus {
    let actions = &config.rate_limits[usize::from(status.entry.unwrap())].actions;
    let number = match actions[0] {
        Action::Origin(number) => Some(number),
        _ => None,
    };
    LimitStatus { entry: number, ..*status }
}

/// The limits of three entries, of which the first has the least left: in `ratelimit`, and the
/// number left and the limits in `x-ratelimit-*`. As in Envoy, there are none of the latter if the
/// least one does not show them.
#[test]
fn entries_show_their_limits_as_configured() {
    let limits = [status("a", 60, 2, 0), status("b", 60, 5, 1), status("c", 60, 5, 2)];
    let (unsaid, off, draft) = ("", "OFF", "DRAFT_VERSION_03");
    let table = [
        ("ietf", [unsaid, off, unsaid], vec!["a", "c"], None),
        ("ietf", [off, off, off], vec![], None),
        ("ietf", [draft, unsaid, off], vec!["a", "b"], Some(vec!["a"])),
        ("ietf", [unsaid, draft, off], vec!["a", "b"], None),
        ("draft03", [unsaid, off, unsaid], vec![], Some(vec!["a", "c"])),
        ("draft03", [off, unsaid, unsaid], vec![], None),
        ("draft03", [draft, unsaid, off], vec![], Some(vec!["a", "b"])),
        ("off", [draft, unsaid, off], vec![], Some(vec!["a"])),
        ("off", [unsaid, draft, draft], vec![], None),
        ("off", [draft, draft, draft], vec![], Some(vec!["a", "b", "c"])),
        ("off", [off, off, off], vec![], None),
    ];
    for (style, options, ietf, draft03) in table {
        let options = options.map(|option| match option {
            "" => String::new(),
            option => format!(r#""x_ratelimit_option": "{option}","#),
        });
        let fields = format!(r#""headers": "{style}","#);
        let config = config_of(&fields, [&options[0], &options[1], &options[2]]);
        let join = |names: Vec<&str>, item: fn(&str) -> String| {
            names.into_iter().map(item).collect::<Vec<_>>().join(", ")
        };
        let mut expected = Vec::new();
        if !ietf.is_empty() {
            let policies = join(ietf.clone(), |name| format!("\"{name}\";q=10;w=60"));
            expected.push(("ratelimit-policy", policies));
            let left = |name: &str| format!("\"{name}\";r={};t=7", if name == "a" { 2 } else { 5 });
            expected.push(("ratelimit", join(ietf, left)));
        }
        if let Some(names) = draft03 {
            let names = join(names, |name| format!("10;w=60;name=\"{name}\""));
            expected.push(("x-ratelimit-limit", format!("10, {names}")));
            expected.push(("x-ratelimit-remaining", "2".to_owned()));
            expected.push(("x-ratelimit-reset", "7".to_owned()));
        }
        let limits = limits.each_ref().map(|status| numbered(&config, status));
        assert_eq!(headers(&config, &limits, NOW), expected, "{style} {options:?}");
    }
}

/// Envoy's access log names the denying limit, whatever its name.
#[test]
fn the_details_name_the_limit_that_denies_longest() {
    let allow = LimitStatus { verdict: Verdict::Allow, ..deny("allows", 99, 0) };
    let table = [
        (vec![], "tidegate_rate_limited", 1),
        (vec![allow], "tidegate_rate_limited", 1),
        (
            vec![allow, deny("a", 3, 0), deny("b", 5, 0), deny("c", 5, 0)],
            "tidegate_rate_limited{b}",
            5,
        ),
        (vec![deny("a b\"\\{}\né", 3, 0)], "tidegate_rate_limited{a_b______}", 3),
    ];
    for (limits, expected, wait) in table {
        let Denial { reply, bodies } = denial_of(&config(), &limits);
        assert_eq!((reply.details.as_ref(), bodies), (expected, None));
        assert_eq!(reply.headers[0], ("retry-after", wait.to_string()));
    }
    assert_eq!(unavailable(&config()).reply.details, "tidegate_error");
    assert_eq!(overloaded(&config()).reply.details, "tidegate_overload");
}

#[test]
fn retry_after_is_never_earlier_than_the_wait_nor_later_than_its_share() {
    let jitter = r#""denied": {"retry_after_jitter": {"numerator": 20}},"#;
    let config = config_of(jitter, [""; 3]);
    for (wait, latest) in [(1, 1), (4, 4), (5, 6), (100, 120), (86_400, 103_680)] {
        let limits = [deny("n", wait, 0)];
        let of = |random| {
            let headers = denial(&config, &limits, NOW, &|| random).reply.headers;
            // The limit itself is shown as it is.
            assert!(headers.contains(&("ratelimit", format!("\"n\";r=0;t={wait}"))), "{headers:?}");
            headers[0].1.parse::<u64>().unwrap()
        };
        let found: Vec<u64> = (0..=latest - wait).map(of).collect();
        assert_eq!(found, (wait..=latest).collect::<Vec<_>>());
        assert_eq!(of(latest - wait + 1), wait);
        assert!((wait..=latest).contains(&of(u64::MAX)));
    }
}

/// One that denies by a rule: the status and the text.
#[test]
fn the_limit_that_denies_longest_has_the_reply_of_its_name_or_its_entry() {
    let fields = r#""denied": {"status": 430, "body": "all", "limits": [
        {"name": {"exact": "day"}, "status": 431, "body": "day"},
        {"name": {"prefix": "d"}, "status": 432},
        {"name": {"safe_regex": {"regex": "w.*k"}}, "body": "weekly"}
    ]},"#;
    let own = r#""denied": {"status": 434, "body": "own"},"#;
    let config = config_of(fields, [own, r#""denied": {"body": "text"},"#, ""]);
    let unknown = LimitStatus { limit: LimitInfo::default(), ..deny("", 9, 0) };
    let table = [
        (vec![deny("day", 5, 0)], (431, "day")),
        (vec![deny("days", 5, 0)], (432, "all")),
        (vec![deny("week", 5, 2)], (430, "weekly")),
        (vec![deny("hour", 5, 0)], (434, "own")),
        (vec![deny("hour", 5, 1)], (430, "text")),
        (vec![deny("hour", 5, 2)], (430, "all")),
        (vec![deny("hour", 5, 0), deny("day", 4, 2)], (434, "own")),
        (vec![deny("hour", 4, 0), deny("day", 5, 2)], (431, "day")),
        (vec![status("day", 60, 9, 0), deny("hour", 5, 2)], (430, "all")),
        // A limit that is not known, alone and beside one that is.
        (vec![unknown], (434, "own")),
        (vec![unknown, deny("hour", 1, 1)], (430, "text")),
        (vec![], (430, "all")),
    ];
    for (limits, expected) in table {
        let reply = denial_of(&config, &limits).reply;
        let names: Vec<&str> = limits.iter().map(|status| status.limit.name()).collect();
        assert_eq!((reply.status, reply.body.as_str()), expected, "{names:?}");
    }
}

/// The limits that a problem names: those that deny, each once, unless its entry hides it.
#[test]
fn a_problem_names_the_limits_that_deny() {
    let config = config_of("", ["", r#""x_ratelimit_option": "OFF","#, ""]);
    let limits = [
        deny("a", 5, 0),
        deny("hidden", 9, 1),
        status("allows", 60, 3, 0),
        deny("a", 5, 2),
        deny("b\"", 5, 2),
        LimitStatus { limit: LimitInfo::default(), ..deny("", 9, 0) },
    ];
    let document = quota_exceeded(&config, &config.denied.content, &limits);
    assert_eq!(document.violated_policies, ["a", "b\""]);
}

#[test]
fn configured_headers_join_or_replace_those_of_a_denial() {
    use AppendAction::{AddIfAbsent, AppendOrAdd, OverwriteIfExists, OverwriteOrAdd};
    // The action, the header, and all that a denial has of that name.
    let table: [(AppendAction, &str, &[&str]); 12] = [
        (AppendOrAdd, "retry-after", &["1", "new"]),
        (AppendOrAdd, "x-other", &["new"]),
        (AddIfAbsent, "retry-after", &["1"]),
        (AddIfAbsent, "x-other", &["new"]),
        (OverwriteOrAdd, "content-type", &["new"]),
        (OverwriteOrAdd, "x-other", &["new"]),
        (OverwriteIfExists, "content-type", &["text/plain"]),
        (AppendOrAdd, "content-type", &["new"]),
        (AddIfAbsent, "content-type", &["new"]),
        (OverwriteIfExists, "x-other", &[]),
        // What is configured before it does not count, as in Envoy.
        (AddIfAbsent, "x-first", &["first", "new"]),
        (OverwriteOrAdd, "x-first", &["new", "first"]),
    ];
    for (action, name, expected) in table {
        let mut config = config();
        let first = AddedHeader {
            name: "x-first".to_owned(),
            value: "first".to_owned(),
            action: AppendOrAdd,
        };
        let header = AddedHeader { name: name.to_owned(), value: "new".to_owned(), action };
        config.denied.added = vec![first, header];
        let reply = denial_of(&config, &[]).reply;
        let own = reply.headers.iter().map(|(name, value)| (*name, value.as_str()));
        let added = reply.added.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let values: Vec<&str> =
            own.chain(added).filter(|(known, _)| *known == name).map(|(_, value)| value).collect();
        assert_eq!(values, expected, "{action:?} of {name}");
    }
}

#[test]
fn a_denial_is_marked_and_has_a_grpc_status_as_configured() {
    let mut config = config();
    let of = |config: &Config| {
        let reply = denial_of(config, &[]).reply;
        let marked = reply.headers.iter().any(|(name, _)| *name == "x-envoy-ratelimited");
        (marked, reply.grpc_status)
    };
    assert_eq!(of(&config), (true, None));
    (config.denied.is_marked, config.denied.is_resource_exhausted) = (false, true);
    assert_eq!(of(&config), (false, Some(8)));
    config.status_on_error = 504;
    assert_eq!([unavailable(&config), overloaded(&config)].map(|d| d.reply.status), [504, 503]);
}
