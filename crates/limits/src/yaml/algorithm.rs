//! `algorithm` and its numbers: the keys that each algorithm allows, and the quota that they describe.

use super::context::{Context, Diagnostics};
use super::fields::Fields;
use super::period;
use crate::diagnostic::Position;
use crate::document::Content;
use crate::duration;
use crate::text::{listed, quoted, suggestion};
use crate::time_of_day;
use tidegate_core::{
    Alignment, DailyReset, FirstHitWindow, FixedWindow, Nanos, Period, Quota, QuotaError,
    SlidingBuckets, SlidingExact, SlidingWindow, TokenBucket,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    FixedWindow,
    FirstHitWindow,
    TokenBucket,
    SlidingWindow,
    SlidingBuckets,
}

use Algorithm as A;

impl Algorithm {
    const ALL: [(&str, Algorithm); 5] = [
        ("fixed_window", A::FixedWindow),
        ("first_hit_window", A::FirstHitWindow),
        ("token_bucket", A::TokenBucket),
        ("sliding_window", A::SlidingWindow),
        ("sliding_buckets", A::SlidingBuckets),
    ];

    fn name(self) -> &'static str {
        Algorithm::ALL.iter().find(|(_, known)| *known == self).map_or("", |(name, _)| name)
    }
}

/// All algorithms that count hits; a bucket has none to forget.
const WINDOWS: [Algorithm; 4] =
    [A::FixedWindow, A::FirstHitWindow, A::SlidingWindow, A::SlidingBuckets];

/// Keys that only some algorithms have.
const FOR: [(&str, &[Algorithm]); 6] = [
    ("burst", &[A::TokenBucket]),
    ("initial", &[A::TokenBucket]),
    ("timezone", &WINDOWS),
    ("reset", &WINDOWS),
    ("borrow", &[A::FixedWindow, A::FirstHitWindow]),
    ("exact", &[A::SlidingBuckets]),
];

/// The values of the keys, with defaults.
struct Numbers {
    requests: u32,
    period: Period,
    burst: u32,
    initial: u32,
    borrow: u32,
    alignment: Option<Alignment>,
    reset: Option<DailyReset>,
    is_exact: bool,
}

/// The quota of a limit; none after an error, which is reported.
pub(super) fn read_quota(fields: &Fields<'_>, context: &mut Context<'_, '_>) -> Option<Quota> {
    let before = context.diagnostics.errors.len();
    let algorithm = read_algorithm(fields, context);
    if let Some(algorithm) = algorithm {
        check_keys(fields, algorithm, context);
    }
    // Other windows begin at hits, so they need a clock only for a reset.
    if let Some(algorithm) = algorithm.filter(|of| *of != A::FixedWindow && WINDOWS.contains(of))
        && fields.has("timezone")
        && !fields.has("reset")
    {
        let message = format!("`timezone` of a {} has no effect without `reset`", algorithm.name());
        context.diagnostics.error(fields.position_of("timezone"), message);
    }
    let numbers = read_numbers(fields, context);
    if context.diagnostics.errors.len() > before {
        return None;
    }
    let (algorithm, numbers) = (algorithm?, numbers?);
    if matches!(numbers.period, Period::Months(_)) && algorithm != A::FixedWindow {
        let message = "calendar months and years are for fixed_window only; use days, such as 30d";
        context.diagnostics.error(fields.position_of("period"), message);
        return None;
    }
    let quota = quota(algorithm, &numbers);
    let report = |error: QuotaError| {
        context.diagnostics.error(fault_position(fields, &error), error.to_string());
    };
    quota.map_err(report).ok()
}

fn quota(algorithm: Algorithm, of: &Numbers) -> Result<Quota, QuotaError> {
    let span = of.period.nominal();
    macro_rules! reset_daily {
        ($window:expr) => {
            match &of.reset {
                Some(reset) => $window.with_reset(reset.clone()),
                None => $window,
            }
        };
    }
    Ok(match algorithm {
        A::FixedWindow => Quota::FixedWindow(reset_daily!(fixed_window(of, span)?)),
        A::FirstHitWindow => {
            let window = FirstHitWindow::new(of.requests, span)?.with_borrow(of.borrow)?;
            Quota::FirstHitWindow(reset_daily!(window))
        }
        A::TokenBucket => {
            Quota::TokenBucket(TokenBucket::new(of.requests, span, of.burst, of.initial)?)
        }
        A::SlidingWindow => {
            Quota::SlidingWindow(reset_daily!(SlidingWindow::new(of.requests, span)?))
        }
        A::SlidingBuckets if of.is_exact => {
            Quota::SlidingExact(reset_daily!(SlidingExact::new(of.requests, span)?))
        }
        A::SlidingBuckets => {
            Quota::SlidingBuckets(reset_daily!(SlidingBuckets::new(of.requests, span)?))
        }
    })
}

/// A window without its daily reset.
fn fixed_window(of: &Numbers, span: Nanos) -> Result<FixedWindow, QuotaError> {
    let window = match of.period {
        Period::Months(months) => FixedWindow::calendar(of.requests, months)?,
        Period::Span(_) => FixedWindow::new(of.requests, span)?,
    };
    let window = window.with_borrow(of.borrow)?;
    Ok(match &of.alignment {
        Some(alignment) => window.aligned(alignment),
        None => window,
    })
}

fn fault_position(fields: &Fields<'_>, error: &QuotaError) -> Position {
    let period = if fields.has("period") { "period" } else { "unit" };
    fields.position_of(match error {
        QuotaError::RefillZero if fields.has("requests") => "requests",
        QuotaError::RefillZero => "requests_per_unit",
        QuotaError::BurstZero => "burst",
        QuotaError::InitialAboveBurst { .. } => "initial",
        QuotaError::BorrowWithoutRequests(_) | QuotaError::BorrowTooLarge { .. } => "borrow",
        _ => period,
    })
}

fn read_algorithm(fields: &Fields<'_>, context: &mut Context<'_, '_>) -> Option<Algorithm> {
    if !fields.has("algorithm") {
        return Some(A::FixedWindow);
    }
    let name = fields.text("algorithm", context.diagnostics)?;
    let found = Algorithm::ALL.iter().find(|(known, _)| *known == name);
    if found.is_none() {
        let names = Algorithm::ALL.map(|(known, _)| known);
        let (meant, names) = (suggestion(&name, &names), listed("or", &names));
        let message = format!("unknown algorithm {}{meant}; expected {names}", quoted(&name));
        context.diagnostics.error(fields.position_of("algorithm"), message);
    }
    found.map(|(_, algorithm)| *algorithm)
}

fn check_keys(fields: &Fields<'_>, algorithm: Algorithm, context: &mut Context<'_, '_>) {
    for (key, algorithms) in FOR {
        if fields.has(key) && !algorithms.contains(&algorithm) {
            let names: Vec<&str> = algorithms.iter().map(|of| of.name()).collect();
            let message = format!("`{key}` is for {} only", listed("and", &names));
            context.diagnostics.error(fields.position_of(key), message);
        }
    }
}

fn read_numbers(fields: &Fields<'_>, context: &mut Context<'_, '_>) -> Option<Numbers> {
    let diagnostics = &mut *context.diagnostics;
    let period = period::read(fields, diagnostics);
    let requests = read_requests(fields, context);
    let diagnostics = &mut *context.diagnostics;
    let burst = fields.number("burst", diagnostics);
    let initial = read_initial(fields, diagnostics);
    let borrow = fields.number("borrow", diagnostics).unwrap_or(0);
    let is_exact = fields.flag("exact", diagnostics);
    let alignment = read_timezone(fields, period, context);
    let reset = read_reset(fields, context);
    let (period, requests) = (period?, requests?);
    let burst = burst.unwrap_or(requests);
    let initial = match initial {
        None => burst,
        Some(Initial::Tokens(tokens)) => tokens,
        Some(Initial::Time(time)) => tokens_of(time, requests, period, burst, fields, context)?,
    };
    Some(Numbers { requests, period, burst, initial, borrow, alignment, reset, is_exact })
}

/// The initial tokens of a bucket.
enum Initial {
    Tokens(u32),
    /// The tokens that drip in during this time.
    Time(Nanos),
}

fn read_initial(fields: &Fields<'_>, diagnostics: &mut Diagnostics<'_>) -> Option<Initial> {
    let node = fields.value("initial")?;
    let initial = match &node.content {
        Content::Int(number) => u32::try_from(*number).ok().map(Initial::Tokens),
        Content::Text(text) => duration::parse(text).map(Initial::Time),
        _ => None,
    };
    if initial.is_none() {
        diagnostics.wrong_type(
            node,
            "initial",
            "a whole number from 0 to 4294967295, or a time such as 10s",
        );
    }
    initial
}

/// The whole tokens that drip in during `time`. None, with an error, if they exceed the burst.
fn tokens_of(
    time: Nanos,
    requests: u32,
    period: Period,
    burst: u32,
    fields: &Fields<'_>,
    context: &mut Context<'_, '_>,
) -> Option<u32> {
    // A period of zero is reported as an error of its own.
    let period = u128::from(period.nominal().as_nanos()).max(1);
    let tokens = u128::from(time.as_nanos()) * u128::from(requests) / period;
    let fitting = u32::try_from(tokens).ok().filter(|tokens| *tokens <= burst);
    if fitting.is_none() {
        let message = format!("initial {time} is {tokens} tokens, more than burst {burst}");
        context.diagnostics.error(fields.position_of("initial"), message);
    }
    fitting
}

/// `requests`, or envoyproxy/ratelimit's `requests_per_unit`, which defaults to 0 as it does there.
fn read_requests(fields: &Fields<'_>, context: &mut Context<'_, '_>) -> Option<u32> {
    let diagnostics = &mut *context.diagnostics;
    match (fields.has("requests"), fields.has("requests_per_unit")) {
        (true, false) => fields.number("requests", diagnostics),
        (false, true) => fields.number("requests_per_unit", diagnostics),
        (false, false) if fields.has("period") => {
            diagnostics.error(fields.position, "a rate_limit with `period` needs `requests`");
            None
        }
        (false, false) => Some(0),
        (true, true) => {
            let message = "`requests` and `requests_per_unit` mean the same; keep one";
            diagnostics.error(fields.position_of("requests"), message);
            None
        }
    }
}

fn read_timezone(
    fields: &Fields<'_>,
    period: Option<Period>,
    context: &mut Context<'_, '_>,
) -> Option<Alignment> {
    let text = fields.text("timezone", context.diagnostics)?;
    match context.cross_file.zones.zone(&text) {
        Ok(zone) => context.cross_file.zones.alignment(&text, &zone, period?),
        Err(message) => {
            context.diagnostics.error(fields.position_of("timezone"), message);
            None
        }
    }
}

/// The daily reset, by the clock of `timezone` or UTC.
fn read_reset(fields: &Fields<'_>, context: &mut Context<'_, '_>) -> Option<DailyReset> {
    let text = fields.text("reset", context.diagnostics)?;
    let Some(time) = time_of_day::parse(&text) else {
        let message =
            format!("`reset`: expected a time of day such as \"03:00\", found {}", quoted(&text));
        context.diagnostics.error(fields.position_of("reset"), message);
        return None;
    };
    let zone = fields.text("timezone", context.diagnostics).unwrap_or_else(|| "UTC".to_owned());
    // The error of an unknown zone is reported for `timezone`.
    context.cross_file.zones.daily(&zone, time).ok()
}
