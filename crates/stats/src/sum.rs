//! Pages of metrics of several processes, added up to one of the service.
//!
//! Understands of OpenMetrics what this program writes itself: families, and samples without times and
//! exemplars. Lines that it does not understand are left out.

use std::collections::HashMap;
use std::fmt::{self, Write};

/// A page.
#[derive(Debug, Clone, Default)]
pub struct Page {
    families: Vec<Family>,
    by_name: HashMap<String, usize>,
}

#[derive(Debug, Clone)]
struct Family {
    kind: Kind,
    /// What introduces it.
    head: String,
    samples: Vec<(String, Number)>,
    by_series: HashMap<String, usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It only goes up: counters, histograms.
    Count,
    /// How many there are now: connections.
    Level,
    /// How a process stands to the limits on disk: the worst of them tells.
    Standing,
    /// All processes read the same limits, so one of them tells how often.
    Once,
}

impl Kind {
    fn of(name: &str, kind: &str) -> Kind {
        match (name.starts_with("tidegate_config_"), kind) {
            (true, "gauge") => Kind::Standing,
            (true, _) => Kind::Once,
            (false, "gauge") => Kind::Level,
            (false, _) => Kind::Count,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
enum Number {
    Whole(i64),
    Real(f64),
}

impl Number {
    fn parse(text: &str) -> Option<Number> {
        let whole = text.parse().map(Number::Whole);
        whole.or_else(|_| text.parse().map(Number::Real)).ok()
    }

    fn real(self) -> f64 {
        match self {
            Number::Whole(number) => number as f64,
            Number::Real(number) => number,
        }
    }

    fn plus(self, other: Number) -> Number {
        match (self, other) {
            (Number::Whole(one), Number::Whole(two)) => Number::Whole(one.saturating_add(two)),
            (one, two) => Number::Real(one.real() + two.real()),
        }
    }

    fn least(self, other: Number) -> Number {
        if other.real() < self.real() { other } else { self }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Whole(number) => write!(f, "{number}"),
            // With a fraction, so that it is read as it was written.
            Number::Real(number) => write!(f, "{number:?}"),
        }
    }
}

impl Page {
    /// Reads one.
    pub fn parse(text: &str) -> Page {
        let mut page = Page::default();
        // What introduces a family comes before its type.
        let mut head = String::new();
        let mut current = None;
        for line in text.lines() {
            if let Some(typed) = line.strip_prefix("# TYPE ") {
                let (name, kind) = typed.split_once(' ').unwrap_or((typed, ""));
                head.push_str(line);
                head.push('\n');
                current = Some(page.family(name, Kind::of(name, kind), std::mem::take(&mut head)));
            } else if line.starts_with("# HELP ") {
                head = format!("{line}\n");
            } else if line.starts_with("# UNIT ") {
                // Comes behind the type.
                if let Some(family) = current {
                    let head = &mut page.families[family].head;
                    head.push_str(line);
                    head.push('\n');
                }
            } else if let (Some(family), Some((series, number))) = (current, sample(line)) {
                page.families[family].add(series, number);
            }
        }
        page
    }

    fn family(&mut self, name: &str, kind: Kind, head: String) -> usize {
        if let Some(&index) = self.by_name.get(name) {
            return index;
        }
        let index = self.families.len();
        let (samples, by_series) = (Vec::new(), HashMap::new());
        self.families.push(Family { kind, head, samples, by_series });
        self.by_name.insert(name.to_owned(), index);
        index
    }

    /// Adds the page of another process.
    pub fn add(&mut self, other: &Page) {
        self.add_where(other, |_| true);
    }

    /// Adds the page of a process that is no more, but for its levels.
    pub fn add_past(&mut self, other: &Page) {
        self.add_where(other, |kind| kind == Kind::Count);
    }

    fn add_where(&mut self, other: &Page, wanted: impl Fn(Kind) -> bool) {
        for (name, &index) in &other.by_name {
            let theirs = &other.families[index];
            if wanted(theirs.kind) {
                let ours = self.family(name, theirs.kind, theirs.head.clone());
                for (series, number) in &theirs.samples {
                    self.families[ours].add(series, *number);
                }
            }
        }
    }

    /// Writes it.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for family in &self.families {
            text.push_str(&family.head);
            for (series, number) in &family.samples {
                // Writing to a string does not fail.
                let _ = writeln!(text, "{series} {number}");
            }
        }
        text.push_str("# EOF\n");
        text
    }
}

impl Family {
    fn add(&mut self, series: &str, number: Number) {
        match self.by_series.get(series) {
            Some(&index) => {
                let ours = &mut self.samples[index].1;
                *ours = match self.kind {
                    Kind::Count | Kind::Level => ours.plus(number),
                    Kind::Standing => ours.least(number),
                    Kind::Once => *ours,
                };
            }
            None => {
                self.by_series.insert(series.to_owned(), self.samples.len());
                self.samples.push((series.to_owned(), number));
            }
        }
    }
}

/// Name and labels of a sample, and its value. Values of labels may hold anything, so it is looked for
/// from the end.
fn sample(line: &str) -> Option<(&str, Number)> {
    let (series, value) = line.rsplit_once(' ')?;
    if series.is_empty() || series.starts_with('#') {
        return None;
    }
    Some((series, Number::parse(value)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUPERVISOR: &str = "\
# HELP tidegate_answers Calls answered.
# TYPE tidegate_answers counter
# HELP tidegate_config_load_success Times.
# TYPE tidegate_config_load_success counter
tidegate_config_load_success_total 1
# HELP tidegate_config_current Current.
# TYPE tidegate_config_current gauge
tidegate_config_current 1
# HELP tidegate_store_nodes Nodes.
# TYPE tidegate_store_nodes gauge
tidegate_store_nodes{class=\"narrow\"} 100
# EOF
";

    fn worker(ok: u64, odd: u64, current: u64, open: u64) -> Page {
        Page::parse(&format!(
            "\
# HELP tidegate_answers Calls answered.
# TYPE tidegate_answers counter
tidegate_answers_total{{code=\"ok\"}} {ok}
tidegate_answers_total{{code=\"}} 7 \\\"x\\\" 9\"}} {odd}
# HELP tidegate_config_load_success Times.
# TYPE tidegate_config_load_success counter
tidegate_config_load_success_total 4
# HELP tidegate_config_current Current.
# TYPE tidegate_config_current gauge
tidegate_config_current {current}
# HELP tidegate_seconds Time.
# TYPE tidegate_seconds histogram
# UNIT tidegate_seconds seconds
tidegate_seconds_sum 0.5
tidegate_seconds_count {ok}
tidegate_seconds_bucket{{le=\"+Inf\"}} {ok}
# HELP tidegate_connections Open.
# TYPE tidegate_connections gauge
tidegate_connections {open}
garbage
# EOF
"
        ))
    }

    #[test]
    fn counts_are_added_and_the_worst_standing_tells() {
        let mut sum = Page::parse(SUPERVISOR);
        sum.add(&worker(3, 1, 1, 2));
        sum.add(&worker(4, 0, 0, 5));
        sum.add_past(&worker(100, 10, 0, 9));
        let text = sum.text();
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let mut sorted = samples.clone();
        sorted.sort_unstable();
        assert_eq!(
            sorted,
            [
                "tidegate_answers_total{code=\"ok\"} 107",
                "tidegate_answers_total{code=\"} 7 \\\"x\\\" 9\"} 11",
                "tidegate_config_current 0",
                "tidegate_config_load_success_total 1",
                "tidegate_connections 7",
                "tidegate_seconds_bucket{le=\"+Inf\"} 107",
                "tidegate_seconds_count 107",
                "tidegate_seconds_sum 1.5",
                "tidegate_store_nodes{class=\"narrow\"} 100",
            ]
        );
        let head = "# HELP tidegate_seconds Time.\n# TYPE tidegate_seconds histogram\n# UNIT";
        assert!(text.contains(head) && text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn what_was_read_is_written_the_same() {
        assert_eq!(Page::parse(SUPERVISOR).text(), SUPERVISOR);
        assert_eq!(Page::parse("").text(), "# EOF\n");
        assert_eq!(Page::parse("tidegate_x 1\n# garbage\n# TYPE\n").text(), "# EOF\n");
    }
}
