//! Times and sizes as text. Reads no clock.

use tidegate_limits::describe::{grouped, span};

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
