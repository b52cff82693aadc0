//! The figures of a case: medians, a table, and rows of Tidegate beside each peer.

use super::SUITE;
use super::case::Case;
use super::server::Software;
use crate::figures::median;
use crate::report::{Row, print_table};

/// The figures of a service, in one round or as medians of several.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Figures {
    /// Decisions a second.
    pub(super) rate: f64,
    /// The part of the calls that was decided.
    pub(super) decided: f64,
    /// µs of CPU of the service for each decision.
    pub(super) service_micros: f64,
    /// µs of CPU of Redis for each decision.
    pub(super) redis_micros: f64,
    /// Commands of Redis for each decision, also those that scripts call.
    pub(super) commands: f64,
    /// Calls of scripts for each decision.
    pub(super) scripts: f64,
    /// Latency in µs.
    pub(super) p50: f64,
    pub(super) p99: f64,
}

/// A figure, its metric and its unit, and whether it is one of Redis.
type Metric = ((&'static str, &'static str), fn(&Figures) -> f64, Of);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Service,
    Redis,
}

const METRICS: [Metric; 8] = [
    (("decisions", "1/s"), |of| of.rate, Of::Service),
    (("decided", "share"), |of| of.decided, Of::Service),
    (("service_cpu", "us/decision"), |of| of.service_micros, Of::Service),
    (("redis_cpu", "us/decision"), |of| of.redis_micros, Of::Redis),
    (("commands", "commands/decision"), |of| of.commands, Of::Redis),
    (("scripts", "scripts/decision"), |of| of.scripts, Of::Redis),
    (("latency_p50", "us"), |of| of.p50, Of::Service),
    (("latency_p99", "us"), |of| of.p99, Of::Service),
];

impl Figures {
    /// The median of each figure.
    pub(super) fn medians(rounds: &[Figures]) -> Figures {
        let of =
            |figure: fn(&Figures) -> f64| median(&rounds.iter().map(figure).collect::<Vec<_>>());
        Figures {
            rate: of(|of| of.rate),
            decided: of(|of| of.decided),
            service_micros: of(|of| of.service_micros),
            redis_micros: of(|of| of.redis_micros),
            commands: of(|of| of.commands),
            scripts: of(|of| of.scripts),
            p50: of(|of| of.p50),
            p99: of(|of| of.p99),
        }
    }
}

/// The medians of every service in a case.
#[derive(Debug)]
pub(super) struct CaseFigures {
    pub(super) case: Case,
    pub(super) figures: Vec<(Software, Figures)>,
}

impl CaseFigures {
    /// The figures of a service, if it was run.
    pub(super) fn of(&self, software: Software) -> Option<&Figures> {
        self.figures.iter().find_map(|(of, figures)| (*of == software).then_some(figures))
    }

    /// Prints the table.
    pub(super) fn print(&self) {
        let title = format!(
            "{}, 2 cores shared by generator, service and Redis: medians of {} rounds; CPU in µs a decision; commands a \
             decision with those of scripts; latency in µs",
            self.case.name, self.case.rounds
        );
        let header = [
            "service",
            "decisions a second",
            "decided, %",
            "its CPU",
            "CPU of Redis",
            "commands",
            "scripts",
            "p50",
            "p99",
        ];
        let lines: Vec<_> = self.figures.iter().map(|(who, of)| line(*who, of)).collect();
        print_table(&title, &header, &lines);
    }

    /// A row of each figure of Tidegate beside each peer. The store alone has no figures of Redis.
    pub(super) fn rows(&self) -> Vec<Row> {
        let Some(ours) = self.of(Software::Shared) else { return Vec::new() };
        let mut rows = Vec::new();
        for (peer, theirs) in self.figures.iter().filter(|(who, _)| *who != Software::Shared) {
            for (metric, figure, of) in METRICS {
                if of == Of::Service || peer.has_redis() {
                    let row = Row::new(SUITE, &self.case.name, metric, figure(ours));
                    rows.push(row.beside((peer.name(), figure(theirs))));
                }
            }
        }
        rows
    }
}

fn line(who: Software, of: &Figures) -> Vec<String> {
    let redis = |figure: f64, digits| match who.has_redis() {
        true => format!("{figure:.digits$}"),
        false => "-".to_owned(),
    };
    vec![
        who.name().to_owned(),
        format!("{:.0}", of.rate),
        format!("{:.1}", of.decided * 100.0),
        format!("{:.2}", of.service_micros),
        redis(of.redis_micros, 3),
        redis(of.commands, 4),
        redis(of.scripts, 4),
        format!("{:.0}", of.p50),
        format!("{:.0}", of.p99),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::{QUICK, case};

    fn figures(rate: f64, commands: f64) -> Figures {
        Figures {
            rate,
            decided: 1.0,
            service_micros: 3.0,
            redis_micros: 0.5,
            commands,
            scripts: 0.25,
            p50: 100.0,
            p99: 200.0,
        }
    }

    #[test]
    fn a_median_is_of_each_figure_alone() {
        let rounds = [figures(1.0, 9.0), figures(3.0, 7.0), figures(2.0, 8.0)];
        assert_eq!(Figures::medians(&rounds), figures(2.0, 8.0));
    }

    #[test]
    fn rows_are_beside_each_peer_and_without_figures_that_it_has_not() {
        let case = case::all(&QUICK).remove(0);
        let name = case.name.clone();
        let figures = vec![
            (Software::Shared, figures(4.0, 0.5)),
            (Software::Counting, figures(2.0, 2.0)),
            (Software::Local, figures(8.0, 0.0)),
        ];
        let rows = CaseFigures { case, figures }.rows();
        assert!(rows.iter().all(|row| row.case == name && row.suite == "redis"));
        let of = |peer: Software, metric: &str| {
            let mut found = rows.iter().filter(|row| row.peer.as_deref() == Some(peer.name()));
            found.find(|row| row.metric == metric).map(|row| (row.value, row.ratio))
        };
        assert_eq!(of(Software::Counting, "decisions"), Some((4.0, Some(2.0))));
        assert_eq!(of(Software::Counting, "commands"), Some((0.5, Some(0.25))));
        assert_eq!(of(Software::Local, "decisions"), Some((4.0, Some(0.5))));
        assert_eq!(of(Software::Local, "commands"), None);
    }
}
