//! Local replies and the headers about limits.
//!
//! The header formats are those of `tidegate_wire::headers`, which the sidecar uses too, and
//! `Retry-After` of RFC 9110.

use crate::config::{AddedHeader, AppendAction, Config, HeaderStyle};
use crate::host::{Header, Reply};
use crate::leases::limit_info::LimitInfo;
use std::borrow::Cow;
use tidegate_core::{Timestamp, Verdict};
use tidegate_wire::headers::{self, Policy};

/// gRPC's status RESOURCE_EXHAUSTED.
const RESOURCE_EXHAUSTED: u32 = 8;

const CONTENT_TYPE: &str = "content-type";
const MARK: &str = "x-envoy-ratelimited";

/// One limit, as a client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LimitStatus {
    pub(crate) limit: LimitInfo,
    /// Tokens at hand, in addition to the sidecar's remaining hits.
    pub(crate) at_hand: u64,
    pub(crate) verdict: Verdict,
}

/// The headers of a response to an allowed request.
#[must_use]
pub(crate) fn headers(config: &Config, limits: &[LimitStatus], now: Timestamp) -> Vec<Header> {
    limit_headers(config.headers, &policies(limits, now))
}

#[must_use]
pub(crate) fn denial(config: &Config, limits: &[LimitStatus], now: Timestamp) -> Reply {
    denied(config, &policies(limits, now))
}

/// The known limits; descriptors without a limit have no header.
fn policies(limits: &[LimitStatus], now: Timestamp) -> Vec<Policy<'_>> {
    let known = limits.iter().filter(|status| status.limit.is_known());
    known
        .map(|LimitStatus { limit, at_hand, verdict }| {
            let left = u64::from(limit.remaining).saturating_add(*at_hand);
            Policy {
                name: limit.name(),
                quota: limit.quota,
                window_secs: (limit.window_secs > 0).then(|| limit.window_secs.into()),
                remaining: match verdict {
                    Verdict::Allow => u32::try_from(left).unwrap_or(u32::MAX),
                    Verdict::Deny => 0,
                },
                reset_secs: limit.resets_at.saturating_since(now).as_secs_ceil(),
                verdict: *verdict,
            }
        })
        .collect()
}

/// The headers about limits, for any response.
pub(super) fn limit_headers(style: HeaderStyle, policies: &[Policy<'_>]) -> Vec<Header> {
    match style {
        HeaderStyle::Off => Vec::new(),
        HeaderStyle::Ietf => headers::ietf(policies),
        HeaderStyle::Draft03 => headers::draft03(policies),
    }
}

/// The reply to a request that is over a limit.
pub(super) fn denied(config: &Config, policies: &[Policy<'_>]) -> Reply {
    let denying = policies.iter().rev().filter(|policy| policy.verdict == Verdict::Deny);
    // The longest wait of all denying limits: before it, at least one of them still denies.
    let longest = denying.max_by_key(|policy| policy.reset_secs);
    let retry_after = longest.map_or(0, |policy| policy.reset_secs).max(1);
    let mut headers = vec![
        ("retry-after", retry_after.to_string()),
        // Keeps Envoy and the client from retrying this as an upstream failure.
        (MARK, "true".to_owned()),
        (CONTENT_TYPE, "text/plain".to_owned()),
    ];
    if !config.denied.is_marked {
        headers.retain(|(name, _)| *name != MARK);
    }
    headers.extend(limit_headers(config.headers, policies));
    let added = match config.denied.added.as_slice() {
        [] => Vec::new(),
        configured => add_headers(configured, &mut headers),
    };
    Reply {
        status: config.denied.status,
        headers,
        added,
        body: config.denied.body.clone(),
        grpc_status: config.denied.is_resource_exhausted.then_some(RESOURCE_EXHAUSTED),
        details: denial_details(longest),
    }
}

/// The configured headers that are added to a denial, in Envoy's order: first those that overwrite,
/// whose predecessors are removed from `own`. As in Envoy, only the filter's own headers count as
/// existing, and its content type does not: a configured one takes its place.
fn add_headers(configured: &[AddedHeader], own: &mut Vec<Header>) -> Vec<(String, String)> {
    let (mut overwriting, mut appended) = (Vec::<(String, String)>::new(), Vec::new());
    for AddedHeader { name, value, action } in configured {
        let exists = name != CONTENT_TYPE && own.iter().any(|(known, _)| known == name);
        let header = (name.clone(), value.clone());
        match action {
            AppendAction::AppendOrAdd => appended.push(header),
            AppendAction::AddIfAbsent if !exists => appended.push(header),
            AppendAction::OverwriteIfExists if !exists => {}
            AppendAction::AddIfAbsent => {}
            AppendAction::OverwriteOrAdd | AppendAction::OverwriteIfExists => {
                overwriting.retain(|(known, _)| known != name);
                overwriting.push(header);
            }
        }
    }
    own.retain(|(known, _)| overwriting.iter().all(|(name, _)| known != name));
    overwriting.extend(appended);
    // Envoy would join both with a comma.
    if overwriting.iter().any(|(name, _)| name == CONTENT_TYPE) {
        own.retain(|(known, _)| *known != CONTENT_TYPE);
    }
    overwriting
}

/// The reply to a request that the sidecar did not decide, if `failure_mode` is deny.
pub(super) fn unavailable(status: u32) -> Reply {
    Reply {
        status,
        headers: vec![("content-type", "text/plain".to_owned())],
        added: Vec::new(),
        body: "rate limiter unavailable".to_owned(),
        grpc_status: None,
        details: "tidegate_error".into(),
    }
}

/// The reply to a request that was not decided because of overload, if `overload_mode` is deny.
pub(super) fn overloaded() -> Reply {
    Reply {
        status: 503,
        headers: vec![
            ("retry-after", "1".to_owned()),
            // Keeps an Envoy in front of this one from retrying.
            ("x-envoy-overloaded", "true".to_owned()),
            ("content-type", "text/plain".to_owned()),
        ],
        added: Vec::new(),
        body: "rate limiter overloaded".to_owned(),
        grpc_status: None,
        details: "tidegate_overload".into(),
    }
}

/// The denying limit with the longest wait. Characters that could split a log line, a field or a
/// quoted text become `_`.
fn denial_details(policy: Option<&Policy<'_>>) -> Cow<'static, str> {
    const DENIED: &str = "tidegate_rate_limited";
    let Some(policy) = policy else { return DENIED.into() };
    let room = DENIED.len().saturating_add(policy.name.len()).saturating_add(2);
    let mut details = String::with_capacity(room);
    details.push_str(DENIED);
    details.push('{');
    details.extend(policy.name.chars().map(|char| match char {
        '"' | '\\' | '{' | '}' => '_',
        '!'..='~' => char,
        _ => '_',
    }));
    details.push('}');
    details.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        let json = r#"{"domain":"d","sidecar":{"cluster":"c"},
            "rate_limits":[{"actions":[{"remote_address":{}}]}]}"#;
        Config::from_envoy(json.as_bytes()).unwrap()
    }

    fn policy(name: &str, window_secs: Option<u64>, remaining: u32) -> Policy<'_> {
        Policy { name, quota: 10, window_secs, remaining, reset_secs: 7, verdict: Verdict::Allow }
    }

    fn check(style: HeaderStyle, policies: &[Policy<'_>], expected: &[(&str, &str)]) {
        let headers = limit_headers(style, policies);
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(headers, expected);
    }

    #[test]
    fn each_style_formats_every_limit() {
        let policies = [policy("hourly", Some(3_600), 9), policy("a.b", None, 3)];
        let ietf = [
            ("ratelimit-policy", "\"hourly\";q=10;w=3600, \"a.b\";q=10"),
            ("ratelimit", "\"hourly\";r=9;t=7, \"a.b\";r=3;t=7"),
        ];
        check(HeaderStyle::Ietf, &policies, &ietf);
        let draft03 = [
            ("x-ratelimit-limit", "10, 10;w=3600;name=\"hourly\", 10;name=\"a.b\""),
            ("x-ratelimit-remaining", "3"),
            ("x-ratelimit-reset", "7"),
        ];
        check(HeaderStyle::Draft03, &policies, &draft03);
        check(HeaderStyle::Off, &policies, &[]);
        check(HeaderStyle::Ietf, &[], &[]);
    }

    #[test]
    fn a_limit_shows_its_window_if_it_has_one_and_the_tokens_at_hand() {
        let mut limit = LimitInfo::new("n");
        (limit.quota, limit.remaining) = (10, 3);
        limit.resets_at = Timestamp::from_nanos(6_000_000_001);
        let status = |limit, verdict| LimitStatus { limit, at_hand: 4, verdict };
        let now = Timestamp::from_nanos(1_000_000_000);
        for (window_secs, shown) in [(0, None), (60, Some(60))] {
            limit.window_secs = window_secs;
            for (verdict, remaining) in [(Verdict::Allow, 7), (Verdict::Deny, 0)] {
                let statuses = [status(LimitInfo::default(), verdict), status(limit, verdict)];
                let expected = Policy { reset_secs: 6, verdict, ..policy("n", shown, remaining) };
                let shown = policies(&statuses, now);
                assert_eq!(format!("{shown:?}"), format!("{:?}", [expected]));
            }
        }
    }

    /// Envoy's access log names the denying limit, whatever its name.
    #[test]
    fn the_details_name_the_limit_that_denies_longest() {
        let deny = |name, reset_secs| Policy {
            reset_secs,
            verdict: Verdict::Deny,
            ..policy(name, None, 0)
        };
        let allow = Policy { verdict: Verdict::Allow, ..deny("allows", 99) };
        let table = [
            (vec![], "tidegate_rate_limited"),
            (vec![allow], "tidegate_rate_limited"),
            (vec![allow, deny("a", 3), deny("b", 5), deny("c", 5)], "tidegate_rate_limited{b}"),
            (vec![deny("a b\"\\{}\né", 3)], "tidegate_rate_limited{a_b______}"),
        ];
        for (policies, expected) in table {
            let reply = denied(&config(), &policies);
            assert_eq!(reply.details, expected);
            let wait = policies.iter().filter(|policy| policy.verdict == Verdict::Deny);
            let wait = wait.map(|policy| policy.reset_secs).max().unwrap_or(1);
            assert_eq!(reply.headers[0], ("retry-after", wait.to_string()));
        }
        assert_eq!(unavailable(500).details, "tidegate_error");
        assert_eq!(overloaded().details, "tidegate_overload");
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
            let reply = denied(&config, &[]);
            let own = reply.headers.iter().map(|(name, value)| (*name, value.as_str()));
            let added = reply.added.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            let values: Vec<&str> = own
                .chain(added)
                .filter(|(known, _)| *known == name)
                .map(|(_, value)| value)
                .collect();
            assert_eq!(values, expected, "{action:?} of {name}");
        }
    }

    #[test]
    fn a_denial_is_marked_and_has_a_grpc_status_as_configured() {
        let mut config = config();
        let of = |config: &Config| {
            let reply = denied(config, &[]);
            let marked = reply.headers.iter().any(|(name, _)| *name == "x-envoy-ratelimited");
            (marked, reply.grpc_status)
        };
        assert_eq!(of(&config), (true, None));
        (config.denied.is_marked, config.denied.is_resource_exhausted) = (false, true);
        assert_eq!(of(&config), (false, Some(8)));
        assert_eq!([unavailable(503).status, overloaded().status], [503, 503]);
    }

    #[test]
    fn a_denial_without_statuses_has_retry_after() {
        let reply = denied(&config(), &[]);
        assert!(reply.headers.contains(&("retry-after", "1".to_owned())));
    }
}
