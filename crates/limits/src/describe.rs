//! Descriptions of limits, for commands and logs.

use crate::compiled::Limit;
use jiff::Timestamp;
use tidegate_core::{Charge, Entry, Nanos, Period, Quota, decide};

const SECOND: u64 = 1_000_000_000;

/// A period as it follows "per": `minute`, `30s`, `calendar month`.
pub fn period(period: Period) -> String {
    match period {
        Period::Months(1) => "calendar month".to_owned(),
        Period::Months(12) => "calendar year".to_owned(),
        Period::Months(months) => format!("{months} calendar months"),
        Period::Span(length) => {
            let long = period.unit().map(|unit| (unit.name(), unit.period().as_nanos()));
            match long {
                // With its length, to tell it from a calendar month or year.
                Some((name @ ("month" | "year"), nanos)) => {
                    format!("{name} of {} days", nanos / SECOND / 86_400)
                }
                Some((name, _)) => name.to_owned(),
                None => time(length),
            }
        }
    }
}

/// A duration; exact for all lengths that people configure.
pub fn time(length: Nanos) -> String {
    let fits_two_units = |secs: u64| match secs {
        0..3_600 => true,
        3_600..86_400 => secs.is_multiple_of(60),
        _ => secs.is_multiple_of(3_600),
    };
    let secs = length.as_nanos() / SECOND;
    if length.as_nanos().is_multiple_of(SECOND) && fits_two_units(secs) {
        span(secs)
    } else {
        length.to_string()
    }
}

/// The rate of a limit: `1,000 per minute`.
pub fn rate(quota: &Quota) -> String {
    format!("{} per {}", grouped(quota.requests().into()), period(quota.period()))
}

/// The algorithm, as in configuration.
pub fn algorithm(quota: &Quota) -> &'static str {
    match quota {
        Quota::SlidingExact(_) => "sliding_buckets, exact",
        _ => quota.algorithm(),
    }
}

/// How many hits beyond its requests a window may borrow from later windows. None for algorithms without
/// borrowing.
pub fn borrow(quota: &Quota) -> Option<u32> {
    match quota {
        Quota::FixedWindow(_) | Quota::FirstHitWindow(_) => {
            Some(quota.capacity().saturating_sub(quota.requests()))
        }
        _ => None,
    }
}

/// The time of day of the daily reset by its clock, such as `03:00`, if there is one.
pub fn reset(quota: &Quota) -> Option<String> {
    let minutes = quota.reset()?.time_of_day().as_nanos() / (60 * SECOND);
    Some(format!("{:02}:{:02}", minutes / 60, minutes % 60))
}

/// The tokens that a bucket can hold; none for other algorithms.
pub fn burst(quota: &Quota) -> Option<u32> {
    match quota {
        Quota::TokenBucket(_) => Some(quota.capacity()),
        _ => None,
    }
}

/// The tokens that a new bucket holds; none for other algorithms.
pub fn initial(quota: &Quota) -> Option<u64> {
    burst(quota)?;
    let mut unused = vec![0; quota.state_size().words()];
    Some(decide(&mut unused, quota, Charge::PEEK, tidegate_core::Timestamp::from_secs(1)).remaining)
}

/// The rate, and the numbers that differ from their defaults: `1,000 per minute, burst 200, initial 100`.
pub fn numbers(quota: &Quota) -> String {
    let mut text = rate(quota);
    if let (Some(burst), Some(initial)) = (burst(quota), initial(quota)) {
        if burst != quota.requests() {
            text += &format!(", burst {}", grouped(burst.into()));
        }
        if initial != u64::from(burst) {
            text += &format!(", initial {}", grouped(initial));
        }
    }
    if let Some(borrow) = borrow(quota).filter(|borrow| *borrow > 0) {
        text += &format!(", borrow {}", grouped(borrow.into()));
    }
    if let Some(reset) = reset(quota) {
        text += &format!(", reset daily at {reset}");
    }
    text
}

/// The numbers of a limit, and its time zone.
pub fn limit(limit: &Limit) -> String {
    let numbers = numbers(&limit.quota);
    match &limit.timezone {
        Some(zone) => format!("{numbers}, in {zone}"),
        None => numbers,
    }
}

/// A number with its noun: `1 limit`, `2,000 limits`.
pub fn count(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", grouped(count))
}

/// At most `most` names: `a, b and 3 more`.
pub fn some_of<'a>(names: impl ExactSizeIterator<Item = &'a str>, most: usize) -> String {
    let rest = names.len().saturating_sub(most);
    let mut text = names.take(most).collect::<Vec<_>>().join(", ");
    if rest > 0 {
        text += &format!(" and {} more", grouped(rest as u64));
    }
    text
}

/// Entries in the form of command line arguments.
pub fn key_values(entries: &[Entry]) -> String {
    let arguments = entries.iter().map(|entry| format!("{}={}", entry.key, entry.value));
    arguments.collect::<Vec<_>>().join(" ")
}

/// The date and time of day of a moment in seconds since 1970: `2024-02-29 12:00:00 UTC`.
pub fn utc(secs: u64) -> String {
    let moment = i64::try_from(secs).ok().and_then(|secs| Timestamp::from_second(secs).ok());
    moment.unwrap_or(Timestamp::MAX).strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// A duration in its two largest units.
pub fn span(secs: u64) -> String {
    let units = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let first = units.iter().position(|(length, _)| secs >= *length).unwrap_or(units.len() - 1);
    let (length, name) = units[first];
    match units.get(first + 1) {
        Some((smaller, smaller_name)) if secs % length >= *smaller => {
            format!("{}{name} {}{smaller_name}", secs / length, secs % length / smaller)
        }
        _ => format!("{}{name}", secs / length),
    }
}

/// A number with its digits in groups of three.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{
        DailyReset, FirstHitWindow, FixedWindow, SlidingWindow, TokenBucket, Zone,
    };

    #[test]
    fn periods_follow_per() {
        for (of, text) in [
            (Period::Span(Nanos::from_secs(60)), "minute"),
            (Period::Span(Nanos::from_secs(30 * 86_400)), "month of 30 days"),
            (Period::Span(Nanos::from_secs(365 * 86_400)), "year of 365 days"),
            (Period::Span(Nanos::from_secs(90)), "1m 30s"),
            (Period::Span(Nanos::from_secs(3_601)), "3601s"),
            (Period::Span(Nanos::from_secs(2 * 86_400)), "2d"),
            (Period::Span(Nanos::new(1_500_000_000)), "1.5s"),
            (Period::Months(1), "calendar month"),
            (Period::Months(12), "calendar year"),
            (Period::Months(3), "3 calendar months"),
        ] {
            assert_eq!(period(of), text, "for {of:?}");
        }
    }

    #[test]
    fn only_numbers_that_differ_from_their_defaults_are_shown() {
        let hour = Nanos::from_secs(3_600);
        let window = FixedWindow::new(1_000, hour).unwrap();
        let bucket = |initial| Quota::TokenBucket(TokenBucket::new(5, hour, 9, initial).unwrap());
        let reset = DailyReset::new(Nanos::from_secs(3 * 3_600 + 300), &Zone::utc()).unwrap();
        let first = FirstHitWindow::new(9, hour).unwrap();
        let sliding = SlidingWindow::new(9, hour).unwrap();
        for (quota, text) in [
            (Quota::FirstHitWindow(first.clone()), "9 per hour"),
            (
                Quota::FirstHitWindow(first.with_reset(reset.clone())),
                "9 per hour, reset daily at 03:05",
            ),
            (Quota::SlidingWindow(sliding.with_reset(reset)), "9 per hour, reset daily at 03:05"),
            (Quota::FixedWindow(window.clone()), "1,000 per hour"),
            (Quota::FixedWindow(window.with_borrow(300).unwrap()), "1,000 per hour, borrow 300"),
            (bucket(9), "5 per hour, burst 9"),
            (bucket(2), "5 per hour, burst 9, initial 2"),
            (Quota::TokenBucket(TokenBucket::new(5, hour, 5, 5).unwrap()), "5 per hour"),
        ] {
            assert_eq!(numbers(&quota), text);
        }
    }

    #[test]
    fn lists_are_cut_short() {
        let names = ["a", "b", "c"];
        assert_eq!(some_of(names.into_iter(), 3), "a, b, c");
        assert_eq!(some_of(names.into_iter(), 1), "a and 2 more");
        assert_eq!(
            (count(1, "limit"), count(2_000, "limit")),
            ("1 limit".into(), "2,000 limits".into())
        );
    }

    #[test]
    fn moments_are_dates() {
        for (secs, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (951_868_800, "2000-03-01 00:00:00 UTC"),
            (1_709_208_000, "2024-02-29 12:00:00 UTC"),
            (1_767_225_599, "2025-12-31 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (4_294_967_295, "2106-02-07 06:28:15 UTC"),
        ] {
            assert_eq!(utc(secs), text);
        }
    }

    #[test]
    fn spans_have_two_units_at_most() {
        for (secs, text) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (61, "1m 1s"),
            (3_600, "1h"),
            (3_659, "1h"),
            (3_720, "1h 2m"),
            (90_000, "1d 1h"),
            (86_400 * 400, "400d"),
        ] {
            assert_eq!(span(secs), text);
        }
    }

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }
}
