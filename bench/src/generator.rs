//! Runs `tidegate load` as a process of its own, and reads its report.

use crate::server::Cores;
use anyhow::{Context, ensure};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;
use tidegate_tests::artifacts;
use tidegate_tests::command::{Ran, run};
use tokio::process::Command;

/// When calls are made.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    /// Closed loop: this many concurrent calls on each connection.
    Closed { streams: u32 },
    /// One call after the other.
    Alone,
    /// Open loop, in calls per second.
    Open { rate: u64 },
}

/// gRPC connections: one for each worker of an Envoy with as many workers.
const CONNECTIONS: u32 = 8;
/// HTTP/1.1 connections, with one concurrent request each.
const CONNECTIONS_FRS: u32 = 32;

/// The start of a latency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    /// When the call was due: the wait of a caller.
    Due,
    /// When it was written: the time that the server takes. The rest is the generator's wait for a free
    /// stream, when the server is at its limit.
    Written,
}

impl From {
    fn name(self) -> &'static str {
        match self {
            From::Due => "from_due",
            From::Written => "from_written",
        }
    }
}

/// The kind of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask<'a> {
    /// Calls in the domain `bench` with one descriptor, in which `{key}` is the number of a key.
    Rls { descriptor: &'a str },
    /// Query, then Update.
    FrsPairs,
}

/// The order of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Random,
    /// Each in turn.
    InTurn,
    /// This share of the calls on the first keys, at random, and the others on each other key in turn.
    Hot {
        percent: u32,
        keys: u64,
    },
}

/// The report of a load.
#[derive(Debug)]
pub(crate) struct Report(Value);

impl Report {
    /// Requests in this class.
    pub(crate) fn class(&self, name: &str) -> f64 {
        self.0["classes"][name].as_f64().unwrap_or(0.0)
    }

    /// Requests with a decision.
    pub(crate) fn decided(&self) -> f64 {
        self.class("allowed") + self.class("denied")
    }

    /// Complete pairs.
    pub(crate) fn pairs(&self) -> f64 {
        self.0["pairs"].as_f64().unwrap_or(f64::NAN)
    }

    /// Requests that were due.
    pub(crate) fn due(&self) -> f64 {
        self.0["due"].as_f64().unwrap_or(f64::NAN)
    }

    /// The latency of decisions in µs. `percentile` is a name such as `p99.9`.
    pub(crate) fn served_micros(&self, from: From, percentile: &str) -> f64 {
        let millis = &self.0["latency"]["served"][from.name()][percentile];
        millis.as_f64().map_or(f64::NAN, |millis| millis * 1e3)
    }

    /// The length of the measurement in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.0["seconds"].as_f64().unwrap_or(f64::NAN)
    }
}

/// A load on a server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load<'a> {
    pub(crate) target: SocketAddr,
    pub(crate) ask: Ask<'a>,
    /// The number of keys.
    pub(crate) keys: u64,
    pub(crate) order: Order,
    pub(crate) pace: Pace,
    pub(crate) duration: Duration,
    pub(crate) cores: Cores,
}

impl Load<'_> {
    /// Runs it.
    pub(crate) async fn run(&self) -> anyhow::Result<Report> {
        let mut command = match self.cores {
            Cores::Two => Command::new(artifacts::sidecar()?),
            Cores::One => {
                let mut command = Command::new("taskset");
                command.args(["-c", "1"]).arg(artifacts::sidecar()?);
                command
            }
        };
        command.args(["load", "--json", "-", "--no-progress", "--timeout", "30s"]);
        command.args(["--target", &self.target.to_string(), "--keys", &self.keys.to_string()]);
        // Callers warm up by a load of its own, so that CPU time and counts match.
        let duration = format!("{}ms", self.duration.as_millis());
        command.args(["--duration", &duration, "--warmup", "0s"]);
        let distribution = match self.order {
            Order::Random => "uniform".to_owned(),
            Order::InTurn => "sequential".to_owned(),
            Order::Hot { percent, keys } => format!("hot:{}:{keys}", f64::from(percent) / 100.0),
        };
        command.args(["--distribution", &distribution]);
        let connections = match self.ask {
            Ask::Rls { descriptor } => {
                command.args(["--domain", "bench", "--descriptor", descriptor]);
                CONNECTIONS
            }
            Ask::FrsPairs => {
                command.args(["--protocol", "frs", "--command", "pair", "--business", "bench"]);
                CONNECTIONS_FRS
            }
        };
        let connections = if let Pace::Alone = self.pace { 1 } else { connections };
        command.args(["--connections", &connections.to_string()]);
        match self.pace {
            Pace::Alone => {
                command.args(["--closed", "--streams", "1"]);
            }
            Pace::Closed { streams } => {
                command.args(["--closed", "--streams", &streams.to_string()]);
            }
            Pace::Open { rate } => {
                command.args(["--rate", &rate.to_string()]);
            }
        }
        let ran: Ran = run(command).await?;
        ensure!(ran.code == Some(0), "the generator failed: {}\n{}", ran.out, ran.err);
        Ok(Report(ran.json().context("the generator's report")?))
    }
}
