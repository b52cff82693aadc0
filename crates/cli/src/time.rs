//! Times and sizes as text. Reads no clock.

use tidegate_limits::describe::{grouped, span};

/// The date and time of day of a moment in seconds since 1970.
pub(crate) fn utc(secs: u64) -> String {
    let (days, of_day) = (secs / 86_400, secs % 86_400);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// The date `days` days after 1970-01-01.
///
/// Years are counted from the first of March, so that a leap day comes last; from 0000-03-01 to the
/// first of 1970 there are 719,468 days. 400 years have 146,097 days.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months from March on have 31, 30, 31, 30, 31 days, and so on: 153 in each five.
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (400 * era + year_of_era + u64::from(month <= 2), month, day)
}

/// A moment relative to now: "in 12s" or "12s ago".
pub(crate) fn from_now(secs: u64, now_secs: u64) -> String {
    match secs.checked_sub(now_secs) {
        Some(ahead) => format!("in {}", span(ahead)),
        None => format!("{} ago", span(now_secs - secs)),
    }
}

/// A size in bytes, and in a suitable unit.
pub(crate) fn bytes(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let Some(power) = (1..=units.len()).rev().find(|power| bytes >> (10 * power) > 0) else {
        return format!("{bytes} bytes");
    };
    let size = bytes as f64 / (1_u64 << (10 * power)) as f64;
    format!("{} bytes ({size:.1} {})", grouped(bytes), units[power - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn times_are_relative_to_now() {
        assert_eq!((from_now(12, 0), from_now(0, 12)), ("in 12s".to_owned(), "12s ago".to_owned()));
    }

    #[test]
    fn sizes_have_a_unit() {
        assert_eq!(bytes(1_000), "1000 bytes");
        assert_eq!(bytes(76_697_600), "76,697,600 bytes (73.1 MiB)");
        assert_eq!(bytes(1 << 46), "70,368,744,177,664 bytes (64.0 TiB)");
    }
}
