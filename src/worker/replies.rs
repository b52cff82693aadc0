//! Local replies and the headers about limits. `bodies` has the formats of a body besides text.
//!
//! The header formats are those of `tidegate_wire::headers`, which the sidecar uses too, and
//! `Retry-After` of RFC 9110.

mod accept;
mod bodies;
#[cfg(test)]
mod tests;

use super::additions::Additions;
use crate::config::LIMIT_NAME_BYTES_MAX;
use crate::config::{
    AddedHeader, AppendAction, Config, Formats, Fraction, HeaderStyle, ReplyContent,
    XRateLimitOption,
};
use crate::host::{Header, Host, Reply, StreamId};
use crate::leases::limit_info::LimitInfo;
use bodies::{Bodies, CONTENT_TYPE, Document, ProblemType, QUOTA_EXCEEDED, REDUCED_CAPACITY};
use std::borrow::Cow;
use tidegate_core::{Timestamp, Verdict};
use tidegate_wire::headers::{self, Policy};

// A longer name in the configuration would match no limit.
const _: () = assert!(LIMIT_NAME_BYTES_MAX == LimitInfo::NAME_BYTES_MAX);

/// gRPC's status RESOURCE_EXHAUSTED.
const RESOURCE_EXHAUSTED: u32 = 8;

const MARK: &str = "x-envoy-ratelimited";

/// A local reply, and the other bodies among which its request chooses.
#[derive(Debug)]
pub(crate) struct Denial {
    reply: Reply,
    bodies: Option<Box<Bodies>>,
}

impl Denial {
    /// Sends it to a paused request, or to the one whose headers callback runs.
    pub(super) fn send(&mut self, host: &impl Host, stream: StreamId) {
        if let Some(bodies) = &self.bodies {
            bodies::choose(host, stream, &mut self.reply, bodies);
        }
        host.reply(stream, &self.reply);
    }

    /// Adds what the service answers with. Its body takes the place of all configured ones.
    pub(super) fn add(&mut self, additions: Additions, configured: &[AddedHeader]) {
        if additions.body.is_some() {
            self.bodies = None;
        }
        additions.add_to(&mut self.reply, configured);
    }
}

/// One limit, as a client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LimitStatus {
    pub(crate) limit: LimitInfo,
    /// Tokens at hand, in addition to the sidecar's remaining hits.
    pub(crate) at_hand: u64,
    pub(crate) verdict: Verdict,
    /// The number of the options of its descriptor's entry, if there are any.
    pub(crate) entry: Option<u8>,
}

/// The headers of a response to an allowed request.
#[must_use]
pub(super) fn headers(config: &Config, limits: &[LimitStatus], now: Timestamp) -> Vec<Header> {
    limit_headers(config, limits, &policies(limits, now), now)
}

/// The known limits; descriptors without a limit have no header.
fn policies(limits: &[LimitStatus], now: Timestamp) -> Vec<Policy<'_>> {
    let mut policies = Vec::with_capacity(limits.len());
    for status in limits {
        let LimitStatus { limit, verdict, .. } = status;
        if limit.is_known() {
            policies.push(Policy {
                name: limit.name(),
                quota: limit.quota,
                window_secs: (limit.window_secs > 0).then(|| limit.window_secs.into()),
                remaining: remaining(status),
                reset_secs: limit.resets_at.saturating_since(now).as_secs_ceil(),
                verdict: *verdict,
            });
        }
    }
    policies
}

fn remaining(LimitStatus { limit, at_hand, verdict, .. }: &LimitStatus) -> u32 {
    let left = u64::from(limit.remaining).saturating_add(*at_hand);
    match verdict {
        Verdict::Allow => u32::try_from(left).unwrap_or(u32::MAX),
        Verdict::Deny => 0,
    }
}

/// The headers about limits, for any response.
fn limit_headers(
    config: &Config,
    limits: &[LimitStatus],
    policies: &[Policy<'_>],
    now: Timestamp,
) -> Vec<Header> {
    match config.headers {
        HeaderStyle::Off => Vec::new(),
        HeaderStyle::Ietf => headers::ietf(policies),
        HeaderStyle::Draft03 => headers::draft03(policies),
        HeaderStyle::ByEntry => headers_by_entry(config, limits, now),
    }
}

/// By the `x_ratelimit_option` of each entry. As in Envoy, there are `x-ratelimit-*` only if the
/// limit with the least left shows them.
#[cold]
fn headers_by_entry(config: &Config, limits: &[LimitStatus], now: Timestamp) -> Vec<Header> {
    let style = config.headers_by_default;
    let mut headers = Vec::new();
    if style == HeaderStyle::Ietf {
        let shown = limits.iter().filter(|status| !is_hidden(config, status));
        headers = headers::ietf(&policies(&shown.copied().collect::<Vec<_>>(), now));
    }
    let has_draft03 = |status: &&LimitStatus| match option(config, status) {
        XRateLimitOption::Unspecified => style == HeaderStyle::Draft03,
        XRateLimitOption::Off => false,
        XRateLimitOption::DraftVersion03 => true,
    };
    let known = limits.iter().filter(|status| status.limit.is_known());
    if known.min_by_key(|status| remaining(status)).is_some_and(|least| has_draft03(&least)) {
        let shown = limits.iter().filter(has_draft03);
        headers.extend(headers::draft03(&policies(&shown.copied().collect::<Vec<_>>(), now)));
    }
    headers
}

fn option(config: &Config, status: &LimitStatus) -> XRateLimitOption {
    let options = status.entry.and_then(|entry| config.entry_options.get(usize::from(entry)));
    options.map_or(XRateLimitOption::Unspecified, |options| options.x_ratelimit_option)
}

/// Whether clients must not see a limit.
fn is_hidden(config: &Config, status: &LimitStatus) -> bool {
    option(config, status) == XRateLimitOption::Off
}

/// The reply to a request that is over a limit.
#[must_use]
#[inline(never)]
pub(super) fn denial(
    config: &Config,
    limits: &[LimitStatus],
    now: Timestamp,
    random: &dyn Fn() -> u64,
) -> Denial {
    let policies = policies(limits, now);
    let denying = policies.iter().rev().filter(|policy| policy.verdict == Verdict::Deny);
    // The longest wait of all denying limits: before it, at least one of them still denies.
    let longest = denying.max_by_key(|policy| policy.reset_secs);
    let wait = longest.map_or(0, |policy| policy.reset_secs).max(1);
    let retry_after = match config.denied.retry_after_jitter {
        None => wait,
        Some(share) => later(wait, share, random()),
    };
    let content = match config.denied.has_rules {
        false => &config.denied.content,
        true => content_by_rule(config, limits, now),
    };
    let mut headers = vec![
        ("retry-after", retry_after.to_string()),
        // Keeps Envoy and the client from retrying this as an upstream failure.
        (MARK, "true".to_owned()),
        (CONTENT_TYPE, "text/plain".to_owned()),
    ];
    if !config.denied.is_marked {
        headers.retain(|(name, _)| *name != MARK);
    }
    headers.extend(limit_headers(config, limits, &policies, now));
    let added = match config.denied.added.as_slice() {
        [] => Vec::new(),
        configured => add_headers(configured, &mut headers),
    };
    let reply = Reply {
        status: content.status,
        headers,
        added,
        body: content.text.clone(),
        grpc_status: config.denied.is_resource_exhausted.then_some(RESOURCE_EXHAUSTED),
        details: denial_details(longest),
    };
    let formats = content.formats.as_deref();
    let bodies =
        formats.map(|formats| Bodies::new(formats, &quota_exceeded(config, content, limits)));
    Denial { reply, bodies }
}

/// The wait, and up to a share of it in addition.
#[cold]
fn later(wait: u64, Fraction { numerator, denominator }: Fraction, random: u64) -> u64 {
    let more = wait.saturating_mul(numerator.into()).checked_div(denominator.into()).unwrap_or(0);
    wait.saturating_add(random.checked_rem(more.saturating_add(1)).unwrap_or(0))
}

/// The content for the denying limit with the longest wait: by its name, or else by its entry.
#[cold]
fn content_by_rule<'c>(
    config: &'c Config,
    limits: &[LimitStatus],
    now: Timestamp,
) -> &'c ReplyContent {
    let denying = limits.iter().rev().filter(|status| status.verdict == Verdict::Deny);
    let longest = denying.max_by_key(|LimitStatus { limit, .. }| {
        // One without a known limit has no time.
        (limit.is_known(), limit.resets_at.saturating_since(now).as_secs_ceil())
    });
    let Some(LimitStatus { limit, entry, .. }) = longest else { return &config.denied.content };
    let name = limit.is_known().then(|| limit.name().as_bytes());
    let matches = |name| config.denied.by_limit.iter().find(|(matcher, _)| matcher.matches(name));
    if let Some((_, content)) = name.and_then(matches) {
        return content;
    }
    let entry = entry.and_then(|entry| config.entry_options.get(usize::from(entry)));
    entry.and_then(|entry| entry.denied.as_deref()).unwrap_or(&config.denied.content)
}

/// The document about a denial. Names the limits that headers may show.
fn quota_exceeded<'d>(
    config: &Config,
    content: &'d ReplyContent,
    limits: &'d [LimitStatus],
) -> Document<'d> {
    let mut violated_policies = Vec::new();
    for status in limits {
        let LimitStatus { limit, verdict, .. } = status;
        let names = *verdict == Verdict::Deny && limit.is_known() && !is_hidden(config, status);
        if names && !violated_policies.contains(&limit.name()) {
            violated_policies.push(limit.name());
        }
    }
    let (problem_type, detail) = (Some(QUOTA_EXCEEDED), content.text.as_str());
    Document { problem_type, status: content.status, detail, violated_policies }
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
pub(super) fn unavailable(config: &Config) -> Denial {
    let reply = Reply {
        status: config.status_on_error,
        headers: vec![(CONTENT_TYPE, "text/plain".to_owned())],
        added: Vec::new(),
        body: "rate limiter unavailable".to_owned(),
        grpc_status: None,
        details: "tidegate_error".into(),
    };
    undecided(config, reply, None)
}

/// The reply to a request that was not decided because of overload, if `overload_mode` is deny.
pub(super) fn overloaded(config: &Config) -> Denial {
    let reply = Reply {
        status: 503,
        headers: vec![
            ("retry-after", "1".to_owned()),
            // Keeps an Envoy in front of this one from retrying.
            ("x-envoy-overloaded", "true".to_owned()),
            (CONTENT_TYPE, "text/plain".to_owned()),
        ],
        added: Vec::new(),
        body: "rate limiter overloaded".to_owned(),
        grpc_status: None,
        details: "tidegate_overload".into(),
    };
    undecided(config, reply, Some(REDUCED_CAPACITY))
}

/// Adds the bodies that the filter writes, in the formats of denials.
fn undecided(config: &Config, reply: Reply, problem_type: Option<ProblemType>) -> Denial {
    let formats = config.denied.content.formats.as_deref();
    let bodies = formats.map(|formats| {
        let written = Formats { choice: formats.choice, json: None, problem: None };
        let (status, detail) = (reply.status, reply.body.as_str());
        let document = Document { problem_type, status, detail, violated_policies: Vec::new() };
        Bodies::new(&written, &document)
    });
    Denial { reply, bodies }
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
    let is_plain = |char: char| char.is_ascii_graphic() && !matches!(char, '"' | '\\' | '{' | '}');
    // The usual case; char by char takes several times as long.
    if policy.name.bytes().map(char::from).all(is_plain) {
        details.push_str(policy.name);
    } else {
        let shown = |char| if is_plain(char) { char } else { '_' };
        details.extend(policy.name.chars().map(shown));
    }
    details.push('}');
    details.into()
}
