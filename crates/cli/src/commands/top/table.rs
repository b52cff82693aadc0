//! An answer of `/v1/top` as a table. Pure. Whatever clients chose is shown as text: nothing of it moves the cursor or
//! changes the direction of the rest.

use serde_json::Value;
use std::fmt::Write;
use tidegate_limits::describe::grouped;
use tidegate_statistics::render::plain;

/// Lines are cut at `width`, if there is one. `of` is the rule or the domain that was asked for.
pub(super) fn text(answer: &Value, of: Option<&str>, width: Option<usize>) -> String {
    let rows = answer["descriptors"].as_array().map_or(&[][..], Vec::as_slice);
    let order = match answer["order"].as_str() {
        Some("denied") => "most denied",
        _ => "hottest",
    };
    let of = of.map_or(String::new(), |of| format!(" of {}", plain(of)));
    let more = match answer["more"].as_u64() {
        Some(more) if more > 0 => format!(", {} more", grouped(more)),
        _ => String::new(),
    };
    let mut lines = vec![format!("{order} descriptors{of}: {}{more}", rows.len())];
    if !rows.is_empty() {
        lines.push(format!(
            "{:>10} {:>10} {:>6} {:>8} {:>15}  {:24} DESCRIPTOR",
            "DENIED/s", "ALLOWED/s", "ENVOY", "RETRY", "LEFT", "RULE"
        ));
    }
    lines.extend(rows.iter().map(line));
    let mut text = String::new();
    for line in lines {
        let line: String = match width {
            Some(width) => line.chars().take(width).collect(),
            None => line,
        };
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

fn line(row: &Value) -> String {
    let rate = |name: &str| row["rate"][name].as_f64().unwrap_or(0.0);
    // What one cannot be sure of is marked, if it is a tenth or more.
    let sum = rate("allowed") + rate("denied") + rate("denied_elsewhere");
    let mark = if rate("error") > sum / 10.0 { "+" } else { "" };
    let left = match (row["remaining"].as_u64(), row["capacity"].as_u64()) {
        (Some(left), Some(capacity)) => format!("{left}/{capacity}"),
        _ => String::new(),
    };
    let rule = rule(row);
    format!(
        "{:>10} {:>10} {:>5.0}% {:>8} {left:>15}  {rule:24} {}",
        format!("{:.1}{mark}", rate("denied")),
        format!("{:.1}{mark}", rate("allowed")),
        row["in_envoy"].as_f64().unwrap_or(0.0) * 100.0,
        row["retry_ms"].as_u64().map_or(String::new(), wait),
        descriptor(row),
    )
}

/// The rule, or what there was instead.
pub(in crate::commands) fn rule(row: &Value) -> String {
    match row["rule"].as_str() {
        Some(rule) => plain(rule),
        None => format!("({})", plain(row["met"].as_str().unwrap_or("?")).replace('_', " ")),
    }
}

/// The domain and the entries.
pub(in crate::commands) fn descriptor(row: &Value) -> String {
    let text = |value: &Value| plain(value.as_str().unwrap_or("?"));
    let mut name = text(&row["domain"]);
    for entry in row["entries"].as_array().map_or(&[][..], Vec::as_slice) {
        let _ = write!(name, " {}={}", text(&entry["key"]), text(&entry["value"]));
    }
    if row["cut"] == true {
        name.push_str(" (cut)");
    }
    name
}

pub(in crate::commands) fn wait(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{:.1}s", ms as f64 / 1_000.0),
        10_000..600_000 => format!("{}s", ms.div_ceil(1_000)),
        _ => format!("{}m", ms.div_ceil(60_000)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(value: &str, rule: Option<&str>) -> Value {
        json!({
            "domain": "shop", "entries": [{"key": "user", "value": value}], "cut": false,
            "met": if rule.is_some() { "rule" } else { "no_rule" }, "rule": rule,
            "rate": {"allowed": 1.04, "denied": 20.5, "denied_elsewhere": 0.0, "error": 0.1},
            "in_envoy": 0.87, "retry_ms": 1500, "remaining": 0, "capacity": 10,
        })
    }

    #[test]
    fn a_table_has_a_line_for_each_descriptor() {
        let unsure = json!({
            "domain": "shop", "entries": [], "cut": true, "met": "no_rule", "rule": null,
            "rate": {"allowed": 1.0, "denied": 0.0, "denied_elsewhere": 0.0, "error": 3.0},
            "in_envoy": 0.0, "retry_ms": null, "remaining": null, "capacity": null,
        });
        let rows = [row("eve", Some("shop/user")), unsure];
        let answer = json!({"order": "denied", "more": 1200, "descriptors": rows});
        let expected = "\
most denied descriptors of shop: 2, 1,200 more
  DENIED/s  ALLOWED/s  ENVOY    RETRY            LEFT  RULE                     DESCRIPTOR
      20.5        1.0    87%     1.5s            0/10  shop/user                shop user=eve
      0.0+       1.0+     0%                           (no rule)                shop (cut)
";
        assert_eq!(text(&answer, Some("shop"), None), expected);
        let narrow = text(&answer, Some("shop"), Some(40));
        assert!(narrow.lines().all(|line| line.chars().count() <= 40), "{narrow}");
        let none = text(&json!({"order": "hits", "more": 0, "descriptors": []}), None, None);
        assert_eq!(none, "hottest descriptors: 0\n");
    }

    #[test]
    fn values_of_clients_are_text_alone() {
        let hostile = "\x1b[2J\u{9b}31m\r\n\t\u{202e}evil\u{2066}\0";
        let rows = [row(hostile, Some(hostile))];
        let answer = json!({"order": "hits", "more": 0, "descriptors": rows});
        let text = text(&answer, Some(hostile), None);
        assert_eq!(text.lines().count(), 3);
        let is_text = |c: char| c == '\n' || c == ' ' || c.is_ascii_graphic();
        assert!(text.chars().all(is_text), "{text:?}");
    }

    #[test]
    fn waits_are_short() {
        for (ms, expected) in [(1, "0.0s"), (9_940, "9.9s"), (59_001, "60s"), (3_600_000, "60m")] {
            assert_eq!(wait(ms), expected);
        }
    }
}
