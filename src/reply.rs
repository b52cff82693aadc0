//! What clients are told: the reply to a denied request, and the headers about limits.
//!
//! Header forms: `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers
//! (structured fields, RFC 9651); `x-ratelimit-*` as Envoy's own filter writes them; and
//! `Retry-After` of RFC 9110.

use crate::config::{Config, HeaderStyle};
use std::borrow::Cow;
use std::fmt::Write;
use tidegate_core::Verdict;

/// A response header.
pub type Header = (&'static str, String);

/// A response made by the filter itself.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status.
    pub status: u32,
    /// Headers besides those that Envoy adds.
    pub headers: Vec<Header>,
    /// The body.
    pub body: String,
    /// Why, for Envoy's access log, which has it as `%RESPONSE_CODE_DETAILS%`. Clients never see it.
    pub details: Cow<'static, str>,
}

/// A limit that a request met, in the words of the header forms.
#[derive(Debug, Clone, Copy)]
pub struct Policy<'a> {
    /// Its name, or the keys of the descriptor that met it. Keys only: values may be secrets, and
    /// clients see this name.
    pub name: &'a str,
    /// Hits per window.
    pub quota: u32,
    /// The window's length, where it is one of the named units.
    pub window_secs: Option<u64>,
    /// Hits left.
    pub remaining: u32,
    /// Seconds until there are more, rounded up.
    pub reset_secs: u64,
    /// Whether the descriptor had room.
    pub verdict: Verdict,
}

/// The headers about limits, for any response.
#[must_use]
pub fn limit_headers(style: HeaderStyle, policies: &[Policy<'_>]) -> Vec<Header> {
    if policies.is_empty() {
        return Vec::new();
    }
    match style {
        HeaderStyle::Off => Vec::new(),
        HeaderStyle::Ietf => ietf(policies),
        HeaderStyle::Draft03 => draft03(policies),
    }
}

/// The reply to a request that is over a limit.
#[must_use]
pub fn denied(config: &Config, policies: &[Policy<'_>]) -> Reply {
    let denying = policies.iter().filter(|policy| policy.verdict == Verdict::Deny);
    // The longest wait of all that deny: before it, at least one of them still would.
    let longest =
        denying.reduce(
            |longest, policy| {
                if policy.reset_secs > longest.reset_secs { policy } else { longest }
            },
        );
    let retry_after = longest.map_or(0, |policy| policy.reset_secs).max(1);
    let mut headers = vec![
        ("retry-after", retry_after.to_string()),
        // Tells Envoy (and the client) not to retry this as an upstream failure.
        ("x-envoy-ratelimited", "true".to_owned()),
        ("content-type", "text/plain".to_owned()),
    ];
    headers.extend(limit_headers(config.headers, policies));
    Reply {
        status: config.denied.status,
        headers,
        body: config.denied.body.clone(),
        details: denial_details(longest),
    }
}

/// The reply to a request that nobody could decide, when `failure_mode` is deny.
#[must_use]
pub fn undecided() -> Reply {
    Reply {
        status: 500,
        headers: vec![("content-type", "text/plain".to_owned())],
        body: "rate limiter unavailable\n".to_owned(),
        details: "tidegate_error".into(),
    }
}

/// Which limit denied: the one with the longest wait. What could split a log line, a field of it or a
/// quoted text becomes `_`.
fn denial_details(policy: Option<&Policy<'_>>) -> Cow<'static, str> {
    const DENIED: &str = "tidegate_rate_limited";
    let Some(policy) = policy else {
        return DENIED.into();
    };
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

/// Bytes that one policy takes in a header, so that most lists are written without growing.
const POLICY_BYTES: usize = 48;

fn ietf(policies: &[Policy<'_>]) -> Vec<Header> {
    let room = POLICY_BYTES.saturating_mul(policies.len());
    let (mut limits, mut states) = (String::with_capacity(room), String::with_capacity(room));
    for (index, policy) in policies.iter().enumerate() {
        if index > 0 {
            limits.push_str(", ");
            states.push_str(", ");
        }
        // Writing to a text cannot fail.
        sf_string(&mut limits, policy.name);
        let _ = write!(limits, ";q={}", policy.quota);
        window(&mut limits, policy);
        sf_string(&mut states, policy.name);
        let _ = write!(states, ";r={};t={}", policy.remaining, policy.reset_secs);
    }
    vec![("ratelimit-policy", limits), ("ratelimit", states)]
}

fn draft03(policies: &[Policy<'_>]) -> Vec<Header> {
    let Some(tightest) = policies.iter().min_by_key(|policy| policy.remaining) else {
        return Vec::new();
    };
    let mut limit = String::with_capacity(POLICY_BYTES.saturating_mul(policies.len()));
    let _ = write!(limit, "{}", tightest.quota);
    for policy in policies {
        let _ = write!(limit, ", {}", policy.quota);
        window(&mut limit, policy);
        limit.push_str(";name=");
        sf_string(&mut limit, policy.name);
    }
    vec![
        ("x-ratelimit-limit", limit),
        ("x-ratelimit-remaining", tightest.remaining.to_string()),
        ("x-ratelimit-reset", tightest.reset_secs.to_string()),
    ]
}

/// Adds the window as a parameter, where the limit has one to tell.
fn window(to: &mut String, policy: &Policy<'_>) {
    if let Some(secs) = policy.window_secs {
        let _ = write!(to, ";w={secs}");
    }
}

/// Adds a structured-field string: quoted printable ASCII, with quote and backslash escaped. Other
/// characters become `?`, since a name from a file must never end or split a header.
fn sf_string(to: &mut String, name: &str) {
    to.push('"');
    for char in name.chars() {
        match char {
            '"' | '\\' => to.extend(['\\', char]),
            ' '..='~' => to.push(char),
            _ => to.push('?'),
        }
    }
    to.push('"');
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
    fn each_style_tells_every_limit_in_its_own_form() {
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
    fn a_name_can_neither_end_its_string_nor_the_header() {
        let table =
            [("plain", "\"plain\""), ("a\"b\\c", "\"a\\\"b\\\\c\""), ("x\r\né\u{7f}", "\"x????\"")];
        for (name, expected) in table {
            let mut quoted = String::new();
            sf_string(&mut quoted, name);
            assert_eq!(quoted, expected);
        }
    }

    /// Envoy's access log tells which limit denied, whatever its name.
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
        assert_eq!(undecided().details, "tidegate_error");
    }

    #[test]
    fn a_denial_without_statuses_still_says_when_to_come_back() {
        let reply = denied(&config(), &[]);
        assert!(reply.headers.contains(&("retry-after", "1".to_owned())));
    }
}
