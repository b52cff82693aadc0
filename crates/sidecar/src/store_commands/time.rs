//! Times and numbers as people read them. Reads no clock.

/// A moment in seconds since 1970, as a date and a time of day.
pub(crate) fn utc(secs: u64) -> String {
    let (days, of_day) = (secs / 86_400, secs % 86_400);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// The date that is so many days after 1970-01-01.
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

/// A span of time, by its two largest units.
pub(crate) fn span(secs: u64) -> String {
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

/// When that is, seen from now: "in 12s" or "12s ago".
pub(crate) fn from_now(secs: u64, now_secs: u64) -> String {
    match secs.checked_sub(now_secs) {
        Some(ahead) => format!("in {}", span(ahead)),
        None => format!("{} ago", span(now_secs - secs)),
    }
}

/// A number, its digits in groups of three.
pub(crate) fn grouped(number: u64) -> String {
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

/// A size, also in the unit in which it is a small number.
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
        assert_eq!((from_now(12, 0), from_now(0, 12)), ("in 12s".to_owned(), "12s ago".to_owned()));
    }

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
        assert_eq!(bytes(1_000), "1000 bytes");
        assert_eq!(bytes(76_697_600), "76,697,600 bytes (73.1 MiB)");
        assert_eq!(bytes(1 << 46), "70,368,744,177,664 bytes (64.0 TiB)");
    }
}
