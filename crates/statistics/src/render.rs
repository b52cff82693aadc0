//! Answers for a terminal and for other programs: a chart of text, and CSV.
//!
//! Values are those of clients. In a chart, characters that a terminal would obey are shown by their numbers.

use crate::query::{Answer, AnswerPoint, AnswerSeries};
use crate::retention::Calendar;
use std::fmt::Write;
use tidegate_limits::describe::grouped;

/// Rows of a chart, each of eight levels.
const ROWS: usize = 4;
const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A chart of requests over time for each series, at most `columns` wide.
#[must_use]
pub fn chart(answer: &Answer, calendar: &Calendar, columns: usize) -> String {
    let mut text = String::new();
    let (from, to) = (calendar.shown(answer.from), calendar.shown(answer.to));
    // Writing to a string does not fail.
    let _ = writeln!(text, "{}  {from} to {to}", answer.statistic);
    let steps = (answer.to - answer.from).max(1).cast_unsigned();
    let steps = steps.div_ceil(answer.step.seconds().cast_unsigned());
    let steps = usize::try_from(steps).unwrap_or(1);
    let columns = columns.clamp(1, 400).min(steps);
    for series in &answer.series {
        let _ = writeln!(text, "\n{}", name(answer, series));
        let _ = writeln!(text, "{}", sums(series));
        let values = spread(answer, &series.points, columns, |point| point.counts.requests());
        write_bars(&mut text, &values);
        let denied = spread(answer, &series.points, columns, |point| point.counts.denied);
        if denied.iter().any(|denied| *denied > 0) {
            let most = values.iter().copied().max().unwrap_or(0);
            let bar = |denied: &u64| LEVELS[level(*denied, most, 8)];
            let _ = writeln!(text, "{}  denied", denied.iter().map(bar).collect::<String>());
        }
    }
    if answer.series.is_empty() {
        text.push_str("nothing was counted\n");
    }
    if answer.has_more {
        text.push_str("\nand more series\n");
    }
    text
}

fn name(answer: &Answer, series: &AnswerSeries) -> String {
    match &series.values {
        None => "(other)".to_owned(),
        Some(values) if values.is_empty() => "all".to_owned(),
        Some(values) => {
            let pairs = answer.by.iter().zip(values);
            let pair =
                |(key, value): (&String, &String)| format!("{}={}", plain(key), plain(value));
            pairs.map(pair).collect::<Vec<_>>().join(" ")
        }
    }
}

fn sums(series: &AnswerSeries) -> String {
    let total = series.total;
    let [allowed, denied, hits] = [total.allowed, total.denied, total.hits].map(grouped);
    let mut text = format!("allowed {allowed}, denied {denied}, hits {hits}");
    if let Some(distinct) = series.distinct {
        let _ = write!(text, ", distinct {}", grouped(distinct));
    }
    text
}

/// The sum of each column.
fn spread(
    answer: &Answer,
    points: &[AnswerPoint],
    columns: usize,
    value: impl Fn(&AnswerPoint) -> u64,
) -> Vec<u64> {
    let mut sums = vec![0_u64; columns];
    let range = (answer.to - answer.from).max(1);
    for point in points {
        let column = i128::from(point.start - answer.from) * columns as i128 / i128::from(range);
        let column = usize::try_from(column).unwrap_or(0).min(columns - 1);
        if let Some(sum) = sums.get_mut(column) {
            *sum = sum.saturating_add(value(point));
        }
    }
    sums
}

fn write_bars(text: &mut String, values: &[u64]) {
    let most = values.iter().copied().max().unwrap_or(0);
    for row in (0..ROWS).rev() {
        let bar = |value: &u64| {
            let level = level(*value, most, ROWS * 8);
            LEVELS[level.saturating_sub(row * 8).min(8)]
        };
        let bars: String = values.iter().map(bar).collect();
        let label = if row == ROWS - 1 { format!("  {}", grouped(most)) } else { String::new() };
        let _ = writeln!(text, "{bars}{label}");
    }
}

/// From 0 to `levels`; a value that is not 0 has a level that is not either.
fn level(value: u64, most: u64, levels: usize) -> usize {
    if most == 0 {
        return 0;
    }
    let level = (u128::from(value) * levels as u128).div_ceil(u128::from(most));
    usize::try_from(level).unwrap_or(levels).min(levels)
}

/// Text without what a terminal would obey, or what would change the order of what follows.
#[must_use]
pub fn plain(text: &str) -> String {
    let is_hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    let mut shown = String::new();
    for c in text.chars() {
        if is_hidden(c) { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    shown
}

/// A line for each step of each series: its beginning, its values, its counts. The series of those without room has
/// `true` for `other`, and no values.
#[must_use]
pub fn csv(answer: &Answer, calendar: &Calendar) -> String {
    let mut text = String::from("start");
    for key in &answer.by {
        let _ = write!(text, ",{}", quoted(key));
    }
    text.push_str(",other,allowed,denied,hits");
    text.push_str(if answer.counts_distinct { ",distinct\n" } else { "\n" });
    for series in &answer.series {
        for point in &series.points {
            text.push_str(&calendar.timestamp(point.start));
            for index in 0..answer.by.len() {
                let value = series.values.as_ref().and_then(|values| values.get(index));
                let _ = write!(text, ",{}", value.map_or(String::new(), |value| quoted(value)));
            }
            let counts = point.counts;
            let is_other = series.values.is_none();
            let _ =
                write!(text, ",{is_other},{},{},{}", counts.allowed, counts.denied, counts.hits);
            if answer.counts_distinct {
                let _ =
                    write!(text, ",{}", point.distinct.map_or(String::new(), |of| of.to_string()));
            }
            text.push('\n');
        }
    }
    text
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::Step;
    use crate::series::Counts;

    fn answer() -> Answer {
        let counts = |allowed, denied| Counts { allowed, denied, hits: allowed };
        let point = |start, allowed, denied| AnswerPoint {
            start,
            counts: counts(allowed, denied),
            distinct: Some(allowed),
        };
        let series =
            |values, total, points| AnswerSeries { values, total, distinct: Some(9), points };
        let values = Some(vec!["a\"\u{1b}[2J\u{202e},".to_owned()]);
        let points = vec![point(0, 1, 0), point(60, 800, 0), point(240, 300, 100)];
        Answer {
            statistic: "calls".to_owned(),
            by: vec!["app".to_owned()],
            from: 0,
            to: 300,
            step: Step::Minute,
            counts_distinct: true,
            series: vec![
                series(values, counts(1_101, 100), points),
                series(None, counts(1, 0), vec![point(120, 1, 0)]),
            ],
            has_more: true,
        }
    }

    #[test]
    fn a_chart_has_a_column_for_each_step() {
        let expected = "\
calls  1970-01-01 01:00 to 1970-01-01 01:05

app=a\"\\u{1b}[2J\\u{202e},
allowed 1,101, denied 100, hits 1,101, distinct 9
 █     800
 █   
 █  █
▁█  █
    ▁  denied

(other)
allowed 1, denied 0, hits 1, distinct 9
  █    1
  █  
  █  
  █  

and more series
";
        let berlin = Calendar::parse("Europe/Berlin").unwrap();
        let found = chart(&answer(), &berlin, 80);
        assert_eq!(found, expected, "{found}");
        // Narrower, and never wider than asked for.
        let narrow = chart(&answer(), &berlin, 2);
        assert!(narrow.contains("\n█   801\n"), "{narrow}");
        let none = Answer { series: vec![], has_more: false, ..answer() };
        assert!(chart(&none, &berlin, 80).ends_with("\nnothing was counted\n"));
    }

    #[test]
    fn csv_has_values_as_they_are() {
        let expected = "\
start,app,other,allowed,denied,hits,distinct
1970-01-01T01:00:00+01:00,\"a\"\"\u{1b}[2J\u{202e},\",false,1,0,1,1
1970-01-01T01:01:00+01:00,\"a\"\"\u{1b}[2J\u{202e},\",false,800,0,800,800
1970-01-01T01:04:00+01:00,\"a\"\"\u{1b}[2J\u{202e},\",false,300,100,300,300
1970-01-01T01:02:00+01:00,,true,1,0,1,1
";
        assert_eq!(csv(&answer(), &Calendar::parse("Europe/Berlin").unwrap()), expected);
    }
}
