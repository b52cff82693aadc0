//! The period of a limit: envoyproxy/ratelimit's `unit`, or `period`.

use super::context::Diagnostics;
use super::fields::Fields;
use crate::document::Node;
use crate::duration;
use crate::text::{listed, quoted, suggestion, whole_number};
use tidegate_core::{Period, Unit};

/// Reads `period` or `unit`. With a `timezone`, the units month and year are those of the calendar.
pub(super) fn read(fields: &Fields<'_>, diagnostics: &mut Diagnostics<'_>) -> Option<Period> {
    match (fields.value("unit"), fields.value("period")) {
        (Some(unit), None) => {
            let unit = read_unit(unit, fields, diagnostics)?;
            Some(match unit {
                Unit::Month if fields.has("timezone") => Period::Months(1),
                Unit::Year if fields.has("timezone") => Period::Months(12),
                unit => Period::Span(unit.period()),
            })
        }
        (None, Some(period)) => read_period(period, fields, diagnostics),
        (Some(unit), Some(period)) => {
            let _ =
                (read_unit(unit, fields, diagnostics), read_period(period, fields, diagnostics));
            diagnostics.error(period.position(), "`unit` and `period` exclude each other");
            None
        }
        (None, None) => {
            let message = "a rate_limit needs `unit` (second, minute, hour, …) or `period` \
                           (such as 30s)";
            diagnostics.error(fields.position, message);
            None
        }
    }
}

fn read_unit(node: &Node, fields: &Fields<'_>, diagnostics: &mut Diagnostics<'_>) -> Option<Unit> {
    let text = fields.text("unit", diagnostics)?;
    let unit = Unit::from_name(&text);
    if unit.is_none() {
        let names = Unit::ALL.map(Unit::name);
        let meant = suggestion(&text, &names);
        let names = names.join(", ");
        let message = format!("unknown unit {}{meant}; expected {names}", quoted(&text));
        diagnostics.error(node.position(), message);
    }
    unit
}

fn read_period(
    node: &Node,
    fields: &Fields<'_>,
    diagnostics: &mut Diagnostics<'_>,
) -> Option<Period> {
    let text = fields.text("period", diagnostics)?;
    let period = parse(&text);
    if period.is_none() {
        let units = listed("or", &["ms", "s", "m", "h", "d", "w", "mo", "y"]);
        let text = quoted(&text);
        let message = format!("{text} is not a period; expected a number and {units}, such as 30s");
        diagnostics.error(node.position(), message);
    }
    period
}

/// A duration, or calendar months and years such as `3mo` and `1y`.
fn parse(text: &str) -> Option<Period> {
    let months = |digits, each| whole_number::<u32>(digits)?.checked_mul(each);
    if let Some(digits) = text.strip_suffix("mo") {
        return months(digits, 1).map(Period::Months);
    }
    if let Some(digits) = text.strip_suffix('y') {
        return months(digits, 12).map(Period::Months);
    }
    duration::parse(text).map(Period::Span)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Nanos;

    #[track_caller]
    fn check(text: &str, expected: Option<Period>) {
        assert_eq!(parse(text), expected, "for {text:?}");
    }

    #[test]
    fn periods_are_durations_or_months_of_the_calendar() {
        check("30s", Some(Period::Span(Nanos::from_secs(30))));
        check("5m", Some(Period::Span(Nanos::from_secs(300))));
        check("1mo", Some(Period::Months(1)));
        check("3mo", Some(Period::Months(3)));
        check("2y", Some(Period::Months(24)));
        check("4294967295y", None);
        for wrong in ["mo", "y", "-1mo", "+1mo", "1.5mo", "1 mo", "1Mo", "m", ""] {
            check(wrong, None);
        }
    }
}
