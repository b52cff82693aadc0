//! The report of a load: public figures and their JSON.

use crate::connection::ConnectionCounts;
use crate::generator;
use crate::options::{FrsCommand, LoadOptions, Protocol};
use crate::tally::{Latencies, Tally};
use anyhow::bail;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;

/// The results of a load.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The options.
    pub config: Config,
    /// Ctrl-C ended it early.
    pub interrupted: bool,
    /// From the end of the warm-up to the end of the last request, without those that timed out.
    pub seconds: f64,
    /// Each request in one class.
    #[serde(flatten)]
    pub account: Account,
    /// Requests that became due per second.
    pub due_rate: f64,
    /// Requests answered in time per second.
    pub achieved_rate: f64,
    /// For pairs: second halves that were answered with a decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pairs: Option<u64>,
    /// CPU time of the generator's threads, including the warm-up.
    pub cpu_seconds: f64,
    /// CPU time per request that was due.
    pub cpu_microseconds_per_request: f64,
    /// Counts of connections, including the warm-up.
    pub connections: ConnectionCounts,
    /// The account of the warm-up, which no other figure includes.
    pub warmup: Account,
    /// Latencies of answers.
    pub latency: LatencyReport,
    /// How late the generator itself was, in ms: from when a request was due until it was written, or was
    /// seen to need a stream. A large lag makes `from_due` large.
    pub schedule_lag: Quantiles,
    /// Allowed and denied, every value.
    #[serde(skip)]
    pub served: Latencies,
    /// Shed, every value.
    #[serde(skip)]
    pub shed: Latencies,
}

/// Each due request in one class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Account {
    /// Due requests.
    pub due: u64,
    /// The requests by class.
    pub classes: Classes,
    /// `refused` by code.
    pub refused_by: BTreeMap<String, u64>,
    /// `broken` by reason.
    pub broken_by: BTreeMap<String, u64>,
    /// Of `timed_out`, requests that were answered later.
    pub late: u64,
}

/// Every request is in exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Classes {
    /// OK, or verdict allow.
    pub allowed: u64,
    /// OVER_LIMIT, or verdict deny.
    pub denied: u64,
    /// RESOURCE_EXHAUSTED, or 503.
    pub shed: u64,
    /// Any other answer.
    pub refused: u64,
    /// Its stream was reset, or its connection lost.
    pub broken: u64,
    /// Sent, and not answered in time.
    pub timed_out: u64,
    /// Not sent, for lack of a free stream in time.
    pub not_sent: u64,
}

impl Classes {
    /// The sum of all classes.
    #[must_use]
    pub fn sum(&self) -> u64 {
        let answered = self.allowed + self.denied + self.shed + self.refused;
        answered + self.broken + self.timed_out + self.not_sent
    }
}

/// Latencies in ms.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LatencyReport {
    /// The unit of the numbers below.
    pub unit: &'static str,
    /// All answers in time: decisions, shed and refused.
    pub answered: Latency,
    /// Allowed and denied.
    pub served: Latency,
    /// Shed.
    pub shed: Latency,
}

/// The latency of one kind of answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Latency {
    /// From when the request was due: the wait of a caller.
    pub from_due: Quantiles,
    /// From when it was written: the time that the service takes.
    pub from_written: Quantiles,
}

/// In ms. All are 0 if there are no answers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantiles {
    /// The number of answers.
    pub count: u64,
    /// Half of all are below.
    pub p50: f64,
    /// 90 %.
    pub p90: f64,
    /// 99 %.
    pub p99: f64,
    /// 99.9 %.
    #[serde(rename = "p99.9")]
    pub p99_9: f64,
    /// 99.99 %.
    #[serde(rename = "p99.99")]
    pub p99_99: f64,
    /// The longest.
    pub max: f64,
    /// The arithmetic mean.
    pub mean: f64,
}

/// The options that affect the measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the fields of LoadOptions, in JSON's types")]
pub struct Config {
    pub target: String,
    pub protocol: Protocol,
    /// None in a closed loop.
    pub rate: Option<f64>,
    /// fixed, poisson or closed.
    pub arrivals: &'static str,
    pub duration_seconds: f64,
    pub warmup_seconds: f64,
    pub connections: u32,
    pub streams: u32,
    pub queue: u32,
    pub timeout_seconds: f64,
    pub threads: u32,
    pub slice_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub descriptors: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hits: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub business: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<FrsCommand>,
    pub keys: u64,
    pub distribution: String,
    pub seed: u64,
}

/// The input of a report.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) account: generator::Account,
    pub(crate) cpu_seconds: f64,
    pub(crate) was_stopped: bool,
}

impl Report {
    pub(crate) fn new(options: &LoadOptions, measured: Measured) -> anyhow::Result<Report> {
        let generator::Account { measured: tally, warmup, connections, ended_ns } =
            measured.account;
        let warmup_ns = options.warmup.as_nanos() as u64;
        // A load that was stopped in its warm-up measured nothing, in no time.
        let seconds = ended_ns.saturating_sub(warmup_ns) as f64 / 1e9;
        let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let mut answered = tally.served_latency.clone();
        answered.add(&tally.shed_latency)?;
        answered.add(&tally.refused_latency)?;
        let is_pair = options.protocol == Protocol::Frs && options.command == FrsCommand::Pair;
        let due = tally.due + warmup.due;
        Ok(Report {
            config: Config::of(options),
            interrupted: measured.was_stopped,
            seconds,
            account: Account::of(&tally),
            due_rate: per_second(tally.due),
            achieved_rate: per_second(tally.answered()),
            pairs: is_pair.then_some(tally.pairs),
            cpu_seconds: measured.cpu_seconds,
            cpu_microseconds_per_request: measured.cpu_seconds * 1e6 / due.max(1) as f64,
            connections,
            warmup: Account::of(&warmup),
            latency: LatencyReport {
                unit: "ms",
                answered: Latency::of(&answered),
                served: Latency::of(&tally.served_latency),
                shed: Latency::of(&tally.shed_latency),
            },
            schedule_lag: Quantiles::of(&tally.lag),
            served: tally.served_latency,
            shed: tally.shed_latency,
        })
    }

    /// The report as a JSON document.
    ///
    /// # Errors
    /// Never in practice: every field has a JSON form.
    pub fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)?)
    }

    /// # Errors
    /// When a request is in no class or in two, which is a fault of this program.
    pub fn check(&self) -> anyhow::Result<()> {
        for (name, account) in [("due", &self.account), ("due in the warm-up", &self.warmup)] {
            let (due, sum) = (account.due, account.classes.sum());
            if due != sum {
                bail!("{due} requests were {name}, and {sum} are accounted for");
            }
        }
        Ok(())
    }
}

impl Account {
    fn of(tally: &Tally) -> Account {
        Account {
            due: tally.due,
            classes: Classes {
                allowed: tally.allowed,
                denied: tally.denied,
                shed: tally.shed,
                refused: tally.refused.values().sum(),
                broken: tally.broken.values().sum(),
                timed_out: tally.timed_out,
                not_sent: tally.not_sent,
            },
            refused_by: named(&tally.refused),
            broken_by: named(&tally.broken),
            late: tally.late,
        }
    }
}

fn named(counts: &BTreeMap<impl ToString, u64>) -> BTreeMap<String, u64> {
    counts.iter().map(|(name, count)| (name.to_string(), *count)).collect()
}

impl Latency {
    fn of(latencies: &Latencies) -> Latency {
        Latency {
            from_due: Quantiles::of(&latencies.from_due),
            from_written: Quantiles::of(&latencies.from_written),
        }
    }
}

impl Quantiles {
    fn of(histogram: &Histogram<u64>) -> Quantiles {
        let at = |quantile| millis(histogram.value_at_quantile(quantile));
        Quantiles {
            count: histogram.len(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            max: millis(histogram.max()),
            mean: if histogram.is_empty() { 0.0 } else { round(histogram.mean() / 1e6) },
        }
    }
}

fn millis(nanos: u64) -> f64 {
    round(nanos as f64 / 1e6)
}

/// Rounded to 0.1 µs, the resolution of the histograms.
fn round(millis: f64) -> f64 {
    (millis * 1e4).round() / 1e4
}

impl Config {
    fn of(options: &LoadOptions) -> Config {
        let is_rls = options.protocol == Protocol::Rls;
        let descriptors = options.descriptors.iter().map(ToString::to_string);
        Config {
            target: options.target.to_string(),
            protocol: options.protocol,
            rate: (!options.closed).then_some(options.rate),
            arrivals: match (options.closed, options.poisson) {
                (true, _) => "closed",
                (false, true) => "poisson",
                (false, false) => "fixed",
            },
            duration_seconds: options.duration.as_secs_f64(),
            warmup_seconds: options.warmup.as_secs_f64(),
            connections: options.connections,
            streams: options.streams_per_connection(),
            queue: options.queue,
            timeout_seconds: options.timeout.as_secs_f64(),
            threads: options.threads,
            slice_seconds: options.slice.as_secs_f64(),
            domain: is_rls.then(|| options.domain.clone()),
            descriptors: if is_rls { descriptors.collect() } else { Vec::new() },
            hits: options.hits.filter(|_| is_rls),
            business: (!is_rls).then(|| options.business.clone()),
            command: (!is_rls).then_some(options.command),
            keys: options.keys,
            distribution: options.distribution.to_string(),
            seed: options.seed,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::ending::{Ending, Refusal};
    use crate::tally::Times;

    /// Of 100 requests, a second after a warm-up of a second: latencies of 1 to 100 ms.
    pub(crate) fn sample() -> Report {
        let mut account = generator::Account::new().unwrap();
        account.measured.due = 103;
        account.measured.not_sent = 2;
        account.measured.timed_out = 1;
        account.ended_ns = 2_000_000_000;
        for number in 1..=100_u64 {
            let ending = match number {
                1..=60 => Ending::Allowed,
                61..=90 => Ending::Denied,
                91..=98 => Ending::Shed,
                _ => Ending::Refused(Refusal::Grpc(14)),
            };
            let times = Times { due_ns: 0, written_ns: 500_000, answered_ns: number * 1_000_000 };
            account.measured.count(ending, &times);
        }
        let options =
            LoadOptions { warmup: std::time::Duration::from_secs(1), ..LoadOptions::default() };
        Report::new(&options, Measured { account, cpu_seconds: 0.103, was_stopped: false }).unwrap()
    }

    #[test]
    fn figures_are_those_of_the_account() {
        let report = sample();
        report.check().unwrap();
        assert!((report.seconds - 1.0).abs() < 1e-9);
        assert!((report.achieved_rate - 100.0).abs() < 1e-9);
        assert!((report.cpu_microseconds_per_request - 1_000.0).abs() < 1e-9);
        let served = report.latency.served.from_due;
        assert_eq!(served.count, 90);
        assert!((served.p50 - 45.0).abs() < 0.05, "{served:?}");
        assert!((served.max - 90.0).abs() < 0.1, "{served:?}");
        assert_eq!(report.latency.answered.from_written.count, 100);
        assert_eq!(report.latency.shed.from_due.count, 8);
        assert_eq!(report.account.refused_by, [("grpc 14 UNAVAILABLE".to_owned(), 2)].into());
    }

    #[test]
    fn a_request_that_is_in_no_class_is_an_error() {
        let mut report = sample();
        report.account.due += 1;
        let error = report.check().unwrap_err().to_string();
        assert_eq!(error, "104 requests were due, and 103 are accounted for");
    }

    #[test]
    fn json_has_the_names_that_are_promised() {
        let value: serde_json::Value = serde_json::from_str(&sample().json().unwrap()).unwrap();
        assert_eq!(value["due"], 103);
        assert_eq!(value["classes"]["allowed"], 60);
        assert_eq!(value["classes"]["not_sent"], 2);
        assert_eq!(value["config"]["domain"], "load");
        for name in ["p50", "p90", "p99", "p99.9", "p99.99", "max", "mean"] {
            assert!(value["latency"]["served"]["from_due"][name].is_number(), "{name}");
            assert!(value["schedule_lag"][name].is_number(), "{name}");
        }
    }
}
