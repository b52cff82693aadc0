//! Durations in configuration: a whole number and a unit, such as `30s`, `5m` or `1d`.

use tidegate_core::Nanos;

const UNITS: [(&str, u64); 6] = [
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("h", 3_600 * 1_000_000_000),
    ("d", 86_400 * 1_000_000_000),
    ("w", 7 * 86_400 * 1_000_000_000),
];

/// Parses a duration; none if the text is not one, or exceeds 64 bits of nanoseconds.
pub fn parse(text: &str) -> Option<Nanos> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let (_, nanos) = UNITS.iter().find(|(name, _)| *name == unit)?;
    Some(Nanos::new(number.parse::<u64>().ok()?.checked_mul(*nanos)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_a_number_and_a_unit() {
        let table = [
            ("1500ms", Some(1_500_000_000)),
            ("30s", Some(30_000_000_000)),
            ("5m", Some(300_000_000_000)),
            ("1h", Some(3_600_000_000_000)),
            ("1d", Some(86_400_000_000_000)),
            ("2w", Some(1_209_600_000_000_000)),
            ("0s", Some(0)),
            ("99999999999w", None),
            ("30", None),
            ("s", None),
            ("-1s", None),
            ("1.5s", None),
            ("1 s", None),
            ("1S", None),
            ("1é", None),
            ("", None),
        ];
        for (text, nanos) in table {
            assert_eq!(parse(text), nanos.map(Nanos::new), "for {text:?}");
        }
    }
}
