//! Limits in words, for commands and logs that explain them.

use crate::store_commands::time::{grouped, span};
use tidegate_core::{Charge, Nanos, Period, Quota, Timestamp, decide};

const SECOND: u64 = 1_000_000_000;

/// A period as what follows "per": `minute`, `30s`, `calendar month`.
pub(crate) fn period(period: Period) -> String {
    match period {
        Period::Months(1) => "calendar month".to_owned(),
        Period::Months(12) => "calendar year".to_owned(),
        Period::Months(months) => format!("{months} calendar months"),
        Period::Span(length) => {
            let long = period.unit().map(|unit| (unit.name(), unit.period().as_nanos()));
            match long {
                // As the length is what it counts over, and no calendar.
                Some((name @ ("month" | "year"), nanos)) => {
                    format!("{name} of {} days", nanos / SECOND / 86_400)
                }
                Some((name, _)) => name.to_owned(),
                None => time(length),
            }
        }
    }
}

/// A span of time; exact for all that people write.
pub(crate) fn time(length: Nanos) -> String {
    let is_told_by_two_units = |secs: u64| match secs {
        0..3_600 => true,
        3_600..86_400 => secs.is_multiple_of(60),
        _ => secs.is_multiple_of(3_600),
    };
    let secs = length.as_nanos() / SECOND;
    if length.as_nanos().is_multiple_of(SECOND) && is_told_by_two_units(secs) {
        span(secs)
    } else {
        length.to_string()
    }
}

/// What a limit allows: `1,000 per minute`.
pub(crate) fn rate(quota: &Quota) -> String {
    format!("{} per {}", grouped(quota.requests().into()), period(quota.period()))
}

/// The algorithm as it is configured.
pub(crate) fn algorithm(quota: &Quota) -> &'static str {
    match quota {
        Quota::SlidingExact(_) => "sliding_buckets, exact",
        _ => quota.algorithm(),
    }
}

/// How many more hits than its requests a window may borrow from those after it; none for
/// algorithms that do not borrow.
pub(crate) fn borrow(quota: &Quota) -> Option<u32> {
    match quota {
        Quota::FixedWindow(_) | Quota::FirstHitWindow(_) => {
            Some(quota.capacity().saturating_sub(quota.requests()))
        }
        _ => None,
    }
}

/// When all hits of a limit are forgotten each day, such as `03:00` by its clock; none where they do not.
pub(crate) fn reset(quota: &Quota) -> Option<String> {
    let minutes = quota.reset()?.time_of_day().as_nanos() / (60 * SECOND);
    Some(format!("{:02}:{:02}", minutes / 60, minutes % 60))
}

/// The tokens that a bucket holds; none for what is no bucket.
pub(crate) fn burst(quota: &Quota) -> Option<u32> {
    match quota {
        Quota::TokenBucket(bucket) => Some(bucket.burst()),
        _ => None,
    }
}

/// The tokens that a bucket starts with; none for what is no bucket.
pub(crate) fn initial(quota: &Quota) -> Option<u64> {
    burst(quota)?;
    let mut unused = vec![0; quota.state_size().words()];
    Some(decide(&mut unused, quota, Charge::PEEK, Timestamp::from_secs(1)).remaining)
}

/// The numbers of a limit that are not as they would be by default:
/// `1,000 per minute, burst 200, initial 100`.
pub(crate) fn numbers(quota: &Quota) -> String {
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

/// A count and what is counted: `1 limit`, `2,000 limits`.
pub(crate) fn count(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", grouped(count as u64))
}

/// Names, at most `most` of them: `a, b and 3 more`.
pub(crate) fn some_of<'a>(names: impl ExactSizeIterator<Item = &'a str>, most: usize) -> String {
    let rest = names.len().saturating_sub(most);
    let mut text = names.take(most).collect::<Vec<_>>().join(", ");
    if rest > 0 {
        text += &format!(" and {} more", grouped(rest as u64));
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
    fn numbers_are_told_where_they_say_something() {
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
}
