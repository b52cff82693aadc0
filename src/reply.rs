//! What clients are told: the reply to a denied request, and the headers about limits.
//!
//! Header forms: `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers
//! (structured fields, RFC 9651); `x-ratelimit-*` as Envoy's own filter writes them; and
//! `Retry-After` of RFC 9110.

use crate::config::{Config, HeaderStyle};
use std::fmt::Write;
use tidegate_core::{Answer, Descriptor, Request, Verdict};

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
}

/// A limit that a request met, in the words of the header forms.
#[derive(Debug, PartialEq, Eq)]
pub struct Policy {
    /// The limit's name, or the descriptor's keys where it has none.
    name: String,
    quota: u32,
    window_secs: Option<u64>,
    remaining: u32,
    reset_secs: u64,
    verdict: Verdict,
}

/// The limits that `asked` met. Descriptors without a limit have nothing to tell.
#[must_use]
pub fn policies(asked: &Request, answer: &Answer) -> Vec<Policy> {
    let met = asked.descriptors.iter().zip(&answer.statuses);
    met.filter_map(|(descriptor, status)| {
        let limit = status.limit.as_ref()?;
        Some(Policy {
            name: if limit.name.is_empty() { keys_of(descriptor) } else { limit.name.clone() },
            quota: limit.requests,
            window_secs: limit.unit.map(|unit| unit.period().as_secs_ceil()),
            remaining: status.remaining,
            reset_secs: status.reset.as_secs_ceil(),
            verdict: status.verdict,
        })
    })
    .collect()
}

/// Keys only: values may be secrets, and the client sees this name.
fn keys_of(descriptor: &Descriptor) -> String {
    let keys: Vec<&str> = descriptor.entries.iter().map(|entry| entry.key.as_str()).collect();
    keys.join(".")
}

/// The headers about limits, for any response.
#[must_use]
pub fn limit_headers(style: HeaderStyle, policies: &[Policy]) -> Vec<Header> {
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
pub fn denied(config: &Config, policies: &[Policy]) -> Reply {
    let denying = policies.iter().filter(|policy| policy.verdict == Verdict::Deny);
    // The longest wait of all that deny: before it, at least one of them still would.
    let retry_after = denying.map(|policy| policy.reset_secs).max().unwrap_or(0).max(1);
    let mut headers = vec![
        ("retry-after", retry_after.to_string()),
        // Tells Envoy (and the client) not to retry this as an upstream failure.
        ("x-envoy-ratelimited", "true".to_owned()),
        ("content-type", "text/plain".to_owned()),
    ];
    headers.extend(limit_headers(config.headers, policies));
    Reply { status: config.denied.status, headers, body: config.denied.body.clone() }
}

/// The reply to a request that nobody could decide, when `failure_mode` is deny.
#[must_use]
pub fn undecided() -> Reply {
    Reply {
        status: 500,
        headers: vec![("content-type", "text/plain".to_owned())],
        body: "rate limiter unavailable\n".to_owned(),
    }
}

fn ietf(policies: &[Policy]) -> Vec<Header> {
    let list =
        |item: &dyn Fn(&Policy) -> String| policies.iter().map(item).collect::<Vec<_>>().join(", ");
    let policy =
        list(&|policy| format!("{};q={}{}", sf_string(&policy.name), policy.quota, window(policy)));
    let state = list(&|policy| {
        format!("{};r={};t={}", sf_string(&policy.name), policy.remaining, policy.reset_secs)
    });
    vec![("ratelimit-policy", policy), ("ratelimit", state)]
}

fn draft03(policies: &[Policy]) -> Vec<Header> {
    let Some(tightest) = policies.iter().min_by_key(|policy| policy.remaining) else {
        return Vec::new();
    };
    let mut limit = tightest.quota.to_string();
    for policy in policies {
        let (window, name) = (window(policy), sf_string(&policy.name));
        let _ = write!(limit, ", {}{window};name={name}", policy.quota);
    }
    vec![
        ("x-ratelimit-limit", limit),
        ("x-ratelimit-remaining", tightest.remaining.to_string()),
        ("x-ratelimit-reset", tightest.reset_secs.to_string()),
    ]
}

/// The window as a parameter, where the limit has one to tell.
fn window(policy: &Policy) -> String {
    policy.window_secs.map(|secs| format!(";w={secs}")).unwrap_or_default()
}

/// A structured-field string: quoted printable ASCII, with quote and backslash escaped. Other
/// characters become `?`, since a name from a file must never end or split a header.
fn sf_string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            ' '..='~' => quoted.push(char),
            _ => quoted.push('?'),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DeniedReply;
    use tidegate_core::{Entry, Hits, LimitView, Nanos, Status, Unit};

    fn status(verdict: Verdict, name: &str, unit: Option<Unit>, remaining: u32) -> Status {
        let limit = LimitView { requests: 10, unit, name: name.to_owned() };
        Status { verdict, limit: Some(limit), remaining, reset: Nanos::from_secs(7) }
    }

    /// The headers about limits for a request of one descriptor (`a.b`) per status.
    fn check(style: HeaderStyle, statuses: Vec<Status>, expected: &[(&str, &str)]) {
        let descriptor = Descriptor::new(vec![Entry::new("a", "1"), Entry::new("b", "2")]);
        let asked = Request {
            domain: "d".into(),
            descriptors: vec![descriptor; statuses.len()],
            hits: Hits::ONE,
        };
        let answer = Answer { verdict: Verdict::Allow, statuses, metadata: None };
        let headers = limit_headers(style, &policies(&asked, &answer));
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(headers, expected);
    }

    #[test]
    fn each_style_tells_every_limit_in_its_own_form() {
        let statuses = || {
            vec![
                status(Verdict::Allow, "hourly", Some(Unit::Hour), 9),
                Status::NO_LIMIT,
                status(Verdict::Allow, "", None, 3),
            ]
        };
        let ietf = [
            ("ratelimit-policy", "\"hourly\";q=10;w=3600, \"a.b\";q=10"),
            ("ratelimit", "\"hourly\";r=9;t=7, \"a.b\";r=3;t=7"),
        ];
        check(HeaderStyle::Ietf, statuses(), &ietf);
        let draft03 = [
            ("x-ratelimit-limit", "10, 10;w=3600;name=\"hourly\", 10;name=\"a.b\""),
            ("x-ratelimit-remaining", "3"),
            ("x-ratelimit-reset", "7"),
        ];
        check(HeaderStyle::Draft03, statuses(), &draft03);
        check(HeaderStyle::Off, statuses(), &[]);
        check(HeaderStyle::Ietf, vec![Status::NO_LIMIT], &[]);
    }

    #[test]
    fn a_name_can_neither_end_its_string_nor_the_header() {
        let table =
            [("plain", "\"plain\""), ("a\"b\\c", "\"a\\\"b\\\\c\""), ("x\r\né\u{7f}", "\"x????\"")];
        for (name, expected) in table {
            assert_eq!(sf_string(name), expected);
        }
    }

    #[test]
    fn a_denial_without_statuses_still_says_when_to_come_back() {
        let config = Config {
            domain: "d".into(),
            cluster: "c".into(),
            call_target: String::new(),
            timeout: std::time::Duration::from_millis(20),
            failure_mode: crate::config::FailureMode::Allow,
            rate_limits: Vec::new(),
            headers: HeaderStyle::Ietf,
            denied: DeniedReply { status: 429, body: String::new() },
        };
        let reply = denied(&config, &[]);
        assert!(reply.headers.contains(&("retry-after", "1".to_owned())));
    }
}
