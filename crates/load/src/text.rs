//! The report as a table for terminals.

use crate::connection::ConnectionCounts;
use crate::report::{Quantiles, Report};
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// The whole table.
pub(crate) fn table(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_all(&mut text, report);
    text
}

fn write_all(text: &mut String, report: &Report) -> fmt::Result {
    heading(text, report)?;
    classes(text, report)?;
    latencies(text, report)?;
    generator(text, report)
}

fn heading(text: &mut String, report: &Report) -> fmt::Result {
    let config = &report.config;
    let protocol = format!("{:?}", config.protocol).to_uppercase();
    let pace = match config.rate {
        Some(rate) => format!("{rate} a second ({})", config.arrivals),
        None => "closed loop".to_owned(),
    };
    writeln!(
        text,
        "{protocol} at {}: {pace}, {} connections of {} streams, {} keys ({})",
        config.target, config.connections, config.streams, config.keys, config.distribution
    )?;
    let early = if report.interrupted { ", ended early" } else { "" };
    writeln!(text, "{:.2} s measured{early}\n", report.seconds)
}

fn classes(text: &mut String, report: &Report) -> fmt::Result {
    let account = &report.account;
    let classes = &account.classes;
    let share = |count: u64| 100.0 * count as f64 / account.due.max(1) as f64;
    writeln!(text, "{:<22}{:>12}{:>9}", "", "requests", "%")?;
    for (name, count) in [
        ("due", account.due),
        ("  allowed", classes.allowed),
        ("  denied", classes.denied),
        ("  shed", classes.shed),
        ("  refused", classes.refused),
        ("  broken", classes.broken),
        ("  timed out", classes.timed_out),
        ("  not sent", classes.not_sent),
    ] {
        writeln!(text, "{name:<22}{count:>12}{:>9.3}", share(count))?;
    }
    for (class, reasons) in [("refused", &account.refused_by), ("broken", &account.broken_by)] {
        if !reasons.is_empty() {
            writeln!(text, "{class}: {}", listed(reasons))?;
        }
    }
    if account.late > 0 {
        writeln!(text, "{} of the timed-out requests were answered later", account.late)?;
    }
    let pairs = report.pairs.map(|pairs| format!(", {pairs} whole pairs")).unwrap_or_default();
    writeln!(text, "answered {:.1} a second{pairs}\n", report.achieved_rate)
}

fn listed(reasons: &BTreeMap<String, u64>) -> String {
    let mut reasons: Vec<_> = reasons.iter().collect();
    reasons.sort_by_key(|&(_, count)| std::cmp::Reverse(*count));
    reasons.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
}

fn latencies(text: &mut String, report: &Report) -> fmt::Result {
    write!(text, "{:<22}", "latency, ms")?;
    for name in ["p50", "p90", "p99", "p99.9", "p99.99", "max", "mean"] {
        write!(text, "{name:>9}")?;
    }
    writeln!(text)?;
    let latency = &report.latency;
    for (name, kind) in [("served", &latency.served), ("shed", &latency.shed)] {
        row(text, &format!("{name}, from due"), &kind.from_due)?;
        row(text, &format!("{name}, from written"), &kind.from_written)?;
    }
    row(text, "generator's own lag", &report.schedule_lag)
}

fn row(text: &mut String, name: &str, figures: &Quantiles) -> fmt::Result {
    if figures.count == 0 {
        return Ok(());
    }
    let Quantiles { p50, p90, p99, p99_9, p99_99, max, mean, .. } = figures;
    write!(text, "{name:<22}{p50:>9.3}{p90:>9.3}{p99:>9.3}")?;
    writeln!(text, "{p99_9:>9.3}{p99_99:>9.3}{max:>9.3}{mean:>9.3}")
}

fn generator(text: &mut String, report: &Report) -> fmt::Result {
    let ConnectionCounts { opened, lost, failed } = report.connections;
    let connections = format!("connections: {opened} opened, {lost} lost, {failed} failed");
    let (seconds, micros) = (report.cpu_seconds, report.cpu_microseconds_per_request);
    writeln!(text, "\ngenerator: {seconds:.2} s of CPU, {micros:.2} µs a request; {connections}")
}

#[cfg(test)]
mod tests {
    use crate::report::tests::sample;

    #[test]
    fn the_table_has_every_class_and_each_latency_that_there_is() {
        let mut report = sample();
        let table = super::table(&report);
        for expected in [
            "RLS at 127.0.0.1:8081: 1000 a second (fixed), 2 connections of 100 streams, \
             1000 keys (uniform)",
            "due                            103  100.000",
            "  allowed                       60   58.252",
            "  timed out                      1    0.971",
            "  not sent                       2    1.942",
            "refused: 2 grpc 14 UNAVAILABLE",
            "answered 100.0 a second",
            "served, from due         45.0",
            "shed, from written",
            "0.10 s of CPU, 1000.00 µs a request",
        ] {
            assert!(table.contains(expected), "{expected} in\n{table}");
        }
        assert!(!table.contains("ended early"));
        report.interrupted = true;
        report.latency.shed.from_due.count = 0;
        let table = super::table(&report);
        assert!(table.contains("1.00 s measured, ended early"), "{table}");
        assert!(!table.contains("shed, from due"), "{table}");
    }
}
