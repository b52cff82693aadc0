//! Times as values of flags.

use std::ops::RangeInclusive;
use std::time::Duration;
use tidegate_limits::duration;

/// A time; `None` is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OrOff(pub(crate) Option<Duration>);

type Parsed<T> = Result<T, &'static str>;

/// Ten years. More is as good as off, and would overflow clocks.
const AGE_MAX: Duration = Duration::from_secs(10 * 365 * 86_400);

/// A time within `range`, or the error `expected`.
fn within(text: &str, range: RangeInclusive<Duration>, expected: &'static str) -> Parsed<Duration> {
    let time = duration::parse(text).map(|time| Duration::from_nanos(time.as_nanos()));
    time.filter(|time| range.contains(time)).ok_or(expected)
}

fn or_off(text: &str, range: RangeInclusive<Duration>, expected: &'static str) -> Parsed<OrOff> {
    let time = if text == "off" { None } else { Some(within(text, range, expected)?) };
    Ok(OrOff(time))
}

/// Any time.
pub(super) fn period(text: &str) -> Parsed<Duration> {
    let any = Duration::ZERO..=Duration::MAX;
    within(text, any, "expected a time such as 500ms, 60s, 5m or 1d")
}

/// How often a view is refreshed.
pub(super) fn refresh(text: &str) -> Parsed<Duration> {
    let range = Duration::from_millis(200)..=Duration::from_secs(3_600);
    within(text, range, "expected a time from 200ms to 1h, such as 1s or 5s")
}

/// An interval of snapshots.
pub(super) fn sync_interval(text: &str) -> Parsed<OrOff> {
    let range = Duration::from_millis(10)..=Duration::MAX;
    or_off(text, range, "expected a time of at least 10ms, such as 500ms, 5s, or off")
}

/// The longest lease. A shorter one would expire before the answer arrives; a longer one would lose more tokens to
/// a dead proxy until their window ends.
pub(super) fn lease_ttl(text: &str) -> Parsed<OrOff> {
    let range = Duration::from_millis(10)..=Duration::from_secs(60);
    or_off(text, range, "expected a time from 10ms to 60s, such as 500ms or 2s, or off")
}

/// The age limit of a connection.
pub(super) fn connection_age(text: &str) -> Parsed<OrOff> {
    let range = Duration::from_secs(1)..=AGE_MAX;
    or_off(text, range, "expected a time of at least 1s, such as 30m or 24h, or off")
}

pub(super) fn connection_age_grace(text: &str) -> Parsed<Duration> {
    let range = Duration::from_secs(1)..=AGE_MAX;
    within(text, range, "expected a time of at least 1s, such as 30m or 24h")
}

/// How long a counter is idle before it moves to a database.
pub(super) fn idle(text: &str) -> Parsed<Duration> {
    let range = Duration::from_secs(1)..=AGE_MAX;
    within(text, range, "expected a time from 1s to ten years, such as 10m or 1d")
}

pub(super) fn timeout(text: &str) -> Parsed<Duration> {
    let range = Duration::from_millis(10)..=Duration::from_secs(86_400);
    within(text, range, "expected a time from 10ms to 1d, such as 10s")
}

/// How long a server of shared counters may take. A client waits meanwhile.
pub(super) fn answer(text: &str) -> Parsed<Duration> {
    let range = Duration::from_millis(1)..=Duration::from_secs(60);
    within(text, range, "expected a time from 1ms to 60s, such as 100ms")
}

/// By how much keys of shared counters expire later.
pub(super) fn jitter(text: &str) -> Parsed<Duration> {
    let range = Duration::ZERO..=Duration::from_secs(86_400);
    within(text, range, "expected a time from 0s to 1d, such as 10s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(parse: fn(&str) -> Parsed<OrOff>, taken: &[(&str, u64)], refused: &[&str]) {
        assert_eq!(parse("off"), Ok(OrOff(None)));
        for (text, millis) in taken {
            let time = OrOff(Some(Duration::from_millis(*millis)));
            assert_eq!(parse(text), Ok(time), "for {text:?}");
        }
        let error = parse("0").unwrap_err();
        assert!(error.starts_with("expected a time ") && error.ends_with(", or off"), "{error}");
        for text in refused {
            assert_eq!(parse(text), Err(error), "for {text:?}");
        }
    }

    #[test]
    fn a_lease_lasts_from_ten_milliseconds_to_a_minute() {
        let taken = [("2s", 2_000), ("10ms", 10), ("1m", 60_000)];
        check(lease_ttl, &taken, &["9ms", "61s", "0", "", "2"]);
    }

    #[test]
    fn an_age_is_a_second_at_least_or_off() {
        let taken = [("24h", 86_400_000), ("1s", 1_000)];
        check(connection_age, &taken, &["999ms", "20000w", "1", ""]);
    }
}
