//! A short way to write what a client asks and what it is answered.
//!
//! An ask is written as its descriptors, joined by ` & `, each as `key=value,key=value`:
//!
//! | written | means |
//! | --- | --- |
//! | `@shop user=a` | in domain `shop`; without it `test` |
//! | `3x user=a & tenant=t` | `hits_addend` 3 for the request; without it 0 |
//! | `user=a +5`, `user=a +0` | a descriptor with `hits_addend` 5; a peek |
//! | `user=a -5`, `user=a -` | a refund of 5; of the hits of the request |
//! | `user=a 9/hour` | a descriptor with a limit of its own |
//!
//! An answer is written as the overall code and one status per descriptor:
//! `OVER: OK 3/5 per day (burst), OVER 0/9, OK unlimited, OK no limit`. With times, a status ends with the time
//! until its reset: `OVER 0/9 per day in 1h30m`.

use crate::rls::{
    Code, DescriptorEntry, DescriptorStatus, RateLimitDescriptor, RateLimitOverride,
    RateLimitRequest, RateLimitResponse, RateLimitUnit,
};
use tidegate_core::Nanos;

/// Text outside the notation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotationError(pub(super) String);

const UNITS: [(&str, RateLimitUnit); 7] = [
    ("second", RateLimitUnit::Second),
    ("minute", RateLimitUnit::Minute),
    ("hour", RateLimitUnit::Hour),
    ("day", RateLimitUnit::Day),
    ("week", RateLimitUnit::Week),
    ("month", RateLimitUnit::Month),
    ("year", RateLimitUnit::Year),
];

/// Units of a span of time, with their nanoseconds; the largest first.
const SPANS: [(&str, u64); 5] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
];

/// Reads an ask.
///
/// # Errors
/// When it is not in the notation.
pub fn parse(ask: &str) -> Result<RateLimitRequest, NotationError> {
    let mut request = RateLimitRequest { domain: "test".to_owned(), ..Default::default() };
    let mut rest = ask;
    while let Some((word, after)) = rest.split_once(' ') {
        if let Some(domain) = word.strip_prefix('@') {
            request.domain = domain.to_owned();
        } else if let Some(hits) = word.strip_suffix('x').and_then(|hits| hits.parse().ok()) {
            request.hits_addend = hits;
        } else {
            break;
        }
        rest = after;
    }
    let descriptors = rest.split(" & ").map(parse_descriptor).collect::<Result<_, _>>();
    request.descriptors =
        descriptors.map_err(|NotationError(error)| NotationError(format!("{ask:?}: {error}")))?;
    Ok(request)
}

fn parse_descriptor(written: &str) -> Result<RateLimitDescriptor, NotationError> {
    let mut words = written.split(' ');
    let mut descriptor = RateLimitDescriptor::default();
    for pair in words.next().unwrap_or_default().split(',') {
        let (key, value) =
            pair.split_once('=').ok_or_else(|| NotationError(format!("no = in {pair:?}")))?;
        let (key, value) = (key.to_owned(), value.to_owned());
        descriptor.entries.push(DescriptorEntry { key, value });
    }
    for word in words {
        if let Some(hits) = word.strip_prefix('+') {
            descriptor.hits_addend = Some(number(hits)?);
        } else if let Some(hits) = word.strip_prefix('-') {
            descriptor.is_negative_hits = true;
            descriptor.hits_addend = if hits.is_empty() { None } else { Some(number(hits)?) };
        } else if let Some((requests, unit)) = word.split_once('/') {
            let found = UNITS.iter().find(|(name, _)| *name == unit);
            let (_, unit) = found.ok_or_else(|| NotationError(format!("no unit in {word:?}")))?;
            let requests_per_unit = number(requests)?;
            descriptor.limit = Some(RateLimitOverride { requests_per_unit, unit: (*unit).into() });
        } else {
            return Err(NotationError(format!("{word:?} has no meaning")));
        }
    }
    Ok(descriptor)
}

fn number<T: std::str::FromStr>(digits: &str) -> Result<T, NotationError> {
    digits.parse().map_err(|_| NotationError(format!("{digits:?} is not a number of this size")))
}

/// Reads a span of time, such as `1d12h` or `500ms`.
///
/// # Errors
/// When it is not in the notation.
pub fn span(written: &str) -> Result<Nanos, NotationError> {
    let unreadable = || NotationError(format!("{written:?} is not a time such as 1d12h or 500ms"));
    let (mut rest, mut total) = (written, 0_u64);
    while !rest.is_empty() {
        let digits = rest.find(|of: char| !of.is_ascii_digit()).ok_or_else(unreadable)?;
        let (count, after) = rest.split_at(digits);
        let letters = after.find(|of: char| of.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let (_, nanos) = SPANS.iter().find(|(name, _)| *name == unit).ok_or_else(unreadable)?;
        let part = number::<u64>(count)?.checked_mul(*nanos).ok_or_else(unreadable)?;
        total = total.checked_add(part).ok_or_else(unreadable)?;
        rest = after;
    }
    if written.is_empty() { Err(unreadable()) } else { Ok(Nanos::new(total)) }
}

/// Writes an answer without times.
#[must_use]
pub fn summary(answer: &RateLimitResponse) -> String {
    let statuses: Vec<String> = answer.statuses.iter().map(status).collect();
    format!("{}: {}", code(answer.overall_code()), statuses.join(", "))
}

/// Writes an answer with times.
#[must_use]
pub fn summary_with_times(answer: &RateLimitResponse) -> String {
    let with_time = |of: &DescriptorStatus| match &of.duration_until_reset {
        Some(reset) => format!("{} in {}", status(of), time(reset)),
        None => status(of),
    };
    let statuses: Vec<String> = answer.statuses.iter().map(with_time).collect();
    format!("{}: {}", code(answer.overall_code()), statuses.join(", "))
}

fn code(code: Code) -> &'static str {
    match code {
        Code::Unknown => "UNKNOWN",
        Code::Ok => "OK",
        Code::OverLimit => "OVER",
    }
}

fn status(status: &DescriptorStatus) -> String {
    let (code, left) = (code(status.code()), status.limit_remaining);
    let Some(limit) = &status.current_limit else {
        return match left {
            0 => format!("{code} no limit"),
            u32::MAX => format!("{code} unlimited"),
            left => format!("{code} {left} of no limit"),
        };
    };
    let unit = UNITS.iter().find(|(_, unit)| *unit == limit.unit());
    let unit = unit.map(|(name, _)| format!(" per {name}")).unwrap_or_default();
    let name = if limit.name.is_empty() { String::new() } else { format!(" ({})", limit.name) };
    format!("{code} {left}/{}{unit}{name}", limit.requests_per_unit)
}

/// Writes a time as [`span`] reads it. What that cannot read stands out.
fn time(time: &prost_types::Duration) -> String {
    let (Ok(mut rest), 0) = (u64::try_from(time.seconds), time.nanos) else {
        return format!("{} s and {} ns", time.seconds, time.nanos);
    };
    let mut written = String::new();
    for (unit, nanos) in &SPANS[..4] {
        let secs = nanos / 1_000_000_000;
        if rest >= secs {
            written.push_str(&format!("{}{unit}", rest / secs));
            rest %= secs;
        }
    }
    if written.is_empty() { "0s".to_owned() } else { written }
}

/// The same answer without its times.
pub(super) fn without_times(summary: &str) -> String {
    let statuses = summary.split(", ");
    let without = statuses.map(|status| status.rsplit_once(" in ").map_or(status, |(of, _)| of));
    without.collect::<Vec<_>>().join(", ")
}
