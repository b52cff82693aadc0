//! One figure of all peers: a table on the screen, and rows of the first peer beside each other one.

use super::SUITE;
use super::peer::ALL;
use crate::report::{Row, print_table};
use std::fmt::Display;

/// One figure in several cases.
#[derive(Debug)]
pub(crate) struct Comparison {
    pub(crate) title: String,
    pub(crate) metric: &'static str,
    pub(crate) unit: &'static str,
    /// The unit of the table.
    pub(crate) shown_in: f64,
    cases: Vec<(String, Vec<f64>)>,
}

impl Comparison {
    /// Without cases, with the table in this unit.
    pub(crate) fn new(title: &str, metric: &'static str, unit: &'static str) -> Comparison {
        let title = title.to_owned();
        Comparison { title, metric, unit, shown_in: 1.0, cases: Vec::new() }
    }

    /// Adds a case with the figures of the peers in order.
    pub(crate) fn add(&mut self, case: impl Display, figures: Vec<f64>) {
        self.cases.push((case.to_string(), figures));
    }

    /// Prints the table.
    pub(crate) fn print(&self) {
        let names = ALL.iter().map(|kind| kind.name);
        let ratios: Vec<String> = names.clone().skip(1).map(|name| format!("/ {name}")).collect();
        let ratios_header = ratios.iter().map(String::as_str);
        let header: Vec<&str> = ["case"].into_iter().chain(names).chain(ratios_header).collect();
        let line = |(case, figures): &(String, Vec<f64>)| {
            let shown = figures.iter().map(|figure| format!("{:.2}", figure / self.shown_in));
            let first = figures.first().copied().unwrap_or(f64::NAN);
            let ratios = figures.iter().skip(1).map(|figure| format!("{:.2}", first / figure));
            [case.clone()].into_iter().chain(shown).chain(ratios).collect()
        };
        let lines: Vec<Vec<String>> = self.cases.iter().map(line).collect();
        print_table(&self.title, &header, &lines);
    }

    /// The rows of all cases.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (case, figures) in &self.cases {
            let mut named = ALL.iter().map(|kind| kind.name).zip(figures);
            let Some((_, &first)) = named.next() else { continue };
            rows.extend(named.map(|(peer, &figure)| {
                Row::new(SUITE, case, (self.metric, self.unit), first).beside((peer, figure))
            }));
        }
        rows
    }
}
