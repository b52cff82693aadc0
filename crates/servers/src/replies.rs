//! Rate limit headers for clients (`response_headers_to_add`). Decides nothing; the formats are shared with
//! the filter.

use tidegate_core::{Answer, Descriptor, HeaderForm, LimitView, Request, Status, Verdict};
use tidegate_wire::headers::{self, Policy};
use tidegate_wire::rls::HeaderValue;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Replies {
    /// None.
    #[default]
    Off,
    /// The limit with the fewest hits left in three headers, as envoyproxy/ratelimit writes them.
    Plain(HeaderNames),
    /// `x-ratelimit-*`, as Envoy's own filter writes them.
    Draft03,
    /// `RateLimit-Policy` and `RateLimit`, and `Retry-After` when denied.
    Ietf,
}

/// The names of the headers of [`Replies::Plain`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderNames {
    pub limit: String,
    pub remaining: String,
    pub reset: String,
}

/// The longest name given to a limit without a name of its own, as in the filter. A request that carries its
/// own limit also supplies its keys, of any length.
const KEYS_BYTES_MAX: usize = 64;

impl Replies {
    pub fn form(&self) -> HeaderForm {
        match self {
            Replies::Off => HeaderForm::Off,
            Replies::Plain(_) => HeaderForm::Plain,
            Replies::Draft03 => HeaderForm::Draft03,
            Replies::Ietf => HeaderForm::Ietf,
        }
    }

    /// The headers of `answer`. Allocates nothing if there are none.
    pub fn headers(&self, request: &Request, answer: &Answer) -> Vec<HeaderValue> {
        match self {
            Replies::Off => Vec::new(),
            Replies::Plain(names) => names.headers(answer),
            Replies::Draft03 => {
                values(headers::draft03(&policies(answer, |_, limit| limit.name.as_str())))
            }
            Replies::Ietf => {
                let keys: Vec<String> = request.descriptors.iter().map(keys_of).collect();
                let policies = policies(answer, |index, limit| match limit.name.as_str() {
                    "" => keys.get(index).map_or("", String::as_str),
                    name => name,
                });
                let mut reply = values(headers::ietf(&policies));
                if answer.verdict == Verdict::Deny {
                    reply.push(header("retry-after", retry_after(answer).to_string()));
                }
                reply
            }
        }
    }
}

impl HeaderNames {
    fn headers(&self, answer: &Answer) -> Vec<HeaderValue> {
        let Some((status, limit)) = reported_status(answer) else { return Vec::new() };
        vec![
            header(&self.limit, limit.requests.to_string()),
            header(&self.remaining, remaining(status).to_string()),
            header(&self.reset, status.reset.as_secs_ceil().to_string()),
        ]
    }
}

/// The status that envoyproxy/ratelimit reports: for a denied request the last that denies, otherwise the
/// first of those with the fewest hits left. A used-up quota (`quota_mode`) denies no request.
fn reported_status(answer: &Answer) -> Option<(&Status, &LimitView)> {
    let limited =
        || answer.statuses.iter().filter_map(|status| Some((status, status.limit.as_ref()?)));
    let least = || limited().min_by_key(|(status, _)| remaining(status));
    match answer.verdict {
        Verdict::Allow => least(),
        Verdict::Deny => {
            limited().rfind(|(status, _)| status.verdict == Verdict::Deny).or_else(least)
        }
    }
}

/// Hits left, from the client's view: none where a hit was denied.
fn remaining(status: &Status) -> u32 {
    match status.verdict {
        Verdict::Allow => status.remaining,
        Verdict::Deny => 0,
    }
}

/// The limits of an answer, each with a name. Descriptors without a limit are left out.
fn policies<'a>(
    answer: &'a Answer,
    name: impl Fn(usize, &'a LimitView) -> &'a str,
) -> Vec<Policy<'a>> {
    let reply = |(index, status): (usize, &'a Status)| {
        let limit = status.limit.as_ref()?;
        Some(Policy {
            name: name(index, limit),
            quota: limit.requests,
            window_secs: limit.unit.map(|unit| unit.period().as_secs_ceil()),
            remaining: remaining(status),
            reset_secs: status.reset.as_secs_ceil(),
            verdict: status.verdict,
        })
    };
    answer.statuses.iter().enumerate().filter_map(reply).collect()
}

fn keys_of(descriptor: &Descriptor) -> String {
    let keys: Vec<&str> = descriptor.entries.iter().map(|entry| entry.key.as_str()).collect();
    let mut keys = keys.join(".");
    keys.truncate(keys.floor_char_boundary(KEYS_BYTES_MAX));
    keys
}

/// The longest wait of all limits that deny: until then at least one still would.
fn retry_after(answer: &Answer) -> u64 {
    let denying = answer.statuses.iter().filter(|status| status.verdict == Verdict::Deny);
    denying.map(|status| status.reset.as_secs_ceil()).max().unwrap_or(0).max(1)
}

fn values(headers: Vec<headers::Header>) -> Vec<HeaderValue> {
    headers.into_iter().map(|(name, value)| header(name, value)).collect()
}

fn header(name: &str, value: String) -> HeaderValue {
    HeaderValue { key: name.to_owned(), value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{Direction, Entry, Hits, Nanos, Unit};

    fn request(keys: &[&str]) -> Request {
        let descriptor = |key: &&str| Descriptor {
            entries: vec![
                Entry { key: (*key).to_owned(), value: "secret".to_owned() },
                Entry { key: "b".to_owned(), value: String::new() },
            ],
            hits: None,
            direction: Direction::Take,
            limit: None,
        };
        let descriptors = keys.iter().map(descriptor).collect();
        Request { domain: "d".to_owned(), descriptors, hits: Hits::new(1) }
    }

    fn status(name: &str, unit: Option<Unit>, remaining: u32, reset: u64) -> Status {
        let limit = Some(LimitView { requests: 10, unit, name: name.to_owned() });
        let reset = Nanos::from_secs(reset);
        Status { verdict: Verdict::Allow, limit, remaining, reset, lease: None, details: None }
    }

    fn deny(status: Status) -> Status {
        Status { verdict: Verdict::Deny, ..status }
    }

    fn answer(verdict: Verdict, statuses: Vec<Status>) -> Answer {
        Answer { verdict, statuses, metadata: None }
    }

    #[track_caller]
    fn check(replies: &Replies, keys: &[&str], answer: &Answer, expected: &[(&str, &str)]) {
        let headers = replies.headers(&request(keys), answer);
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|header| (header.key.as_str(), header.value.as_str())).collect();
        assert_eq!(headers, expected);
    }

    fn plain() -> Replies {
        let [limit, remaining, reset] = ["L", "R", "T"].map(str::to_owned);
        Replies::Plain(HeaderNames { limit, remaining, reset })
    }

    #[test]
    fn every_format_reports_the_limits_that_apply() {
        let statuses = vec![
            status("hourly", Some(Unit::Hour), 9, 100),
            Status::NO_LIMIT,
            status("", None, 3, 7),
            Status::UNLIMITED,
        ];
        let keys = ["x", "y", "a", "z"];
        let allowed = answer(Verdict::Allow, statuses);
        check(&Replies::Off, &keys, &allowed, &[]);
        check(&plain(), &keys, &allowed, &[("L", "10"), ("R", "3"), ("T", "7")]);
        let draft03 = [
            ("x-ratelimit-limit", "10, 10;w=3600;name=\"hourly\", 10"),
            ("x-ratelimit-remaining", "3"),
            ("x-ratelimit-reset", "7"),
        ];
        check(&Replies::Draft03, &keys, &allowed, &draft03);
        // Keys only: values may be secrets.
        let ietf = [
            ("ratelimit-policy", "\"hourly\";q=10;w=3600, \"a.b\";q=10"),
            ("ratelimit", "\"hourly\";r=9;t=100, \"a.b\";r=3;t=7"),
        ];
        check(&Replies::Ietf, &keys, &allowed, &ietf);
    }

    /// A request for more than is left is denied and takes nothing; the client still has nothing to spend.
    #[test]
    fn a_denial_reports_nothing_left_and_when_to_retry() {
        let statuses = vec![
            deny(status("first", Some(Unit::Minute), 4, 50)),
            deny(status("last", Some(Unit::Second), 5, 1)),
            status("room", Some(Unit::Day), 0, 99),
        ];
        let keys = ["x", "y", "z"];
        let denied = answer(Verdict::Deny, statuses);
        check(&plain(), &keys, &denied, &[("L", "10"), ("R", "0"), ("T", "1")]);
        let ietf = replies_of(&Replies::Ietf, &keys, &denied);
        assert!(ietf.contains(&("retry-after".to_owned(), "50".to_owned())), "{ietf:?}");
        let no_limits = answer(Verdict::Deny, vec![]);
        check(&Replies::Ietf, &[], &no_limits, &[("retry-after", "1")]);
        check(&plain(), &[], &no_limits, &[]);
    }

    /// Symptom: of two used-up quotas the last was reported. Cause: a descriptor over its quota was taken for
    /// one that denies the request, which a quota does not.
    #[test]
    fn of_used_up_quotas_the_first_is_reported() {
        let statuses = vec![
            status("room", Some(Unit::Minute), 3, 9),
            deny(status("first", Some(Unit::Minute), 4, 50)),
            deny(status("last", Some(Unit::Day), 5, 1)),
        ];
        let passed = answer(Verdict::Allow, statuses);
        check(&plain(), &["x", "y", "z"], &passed, &[("L", "10"), ("R", "0"), ("T", "50")]);
    }

    fn replies_of(replies: &Replies, keys: &[&str], answer: &Answer) -> Vec<(String, String)> {
        let headers = replies.headers(&request(keys), answer);
        headers.into_iter().map(|header| (header.key, header.value)).collect()
    }

    #[test]
    fn keys_that_serve_as_a_name_are_truncated() {
        let long = "é".repeat(100);
        let met = answer(Verdict::Allow, vec![status("", None, 1, 1)]);
        let reply = replies_of(&Replies::Ietf, &[&long], &met);
        assert_eq!(reply[0].1, format!("\"{}\";q=10", "?".repeat(32)));
    }
}
