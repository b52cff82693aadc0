//! `tidegate load` as a process of its own, and what it reports.

use super::{Cores, server};
use anyhow::{Context, ensure};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;
use tidegate_tests::artifacts;
use tidegate_tests::command::{Ran, run};
use tokio::process::Command;

/// When calls are made.
#[derive(Debug, Clone, Copy)]
pub(super) enum Pace {
    /// As fast as they are answered, so many at a time on each of the connections.
    Closed { streams: u32 },
    /// So many a second, whatever is answered.
    Open { rate: u64 },
}

/// Connections of gRPC, as many as an Envoy of so many workers has.
const CONNECTIONS: u32 = 8;
/// Connections of HTTP/1.1, on each of which one request is under way.
const CONNECTIONS_FRS: u32 = 32;

/// Since when a latency counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    /// Since the call was due: what a caller waits.
    Due,
    /// Since it was written: what the server takes. The rest is the generator's, which has to wait for room on
    /// its connections when a server has no more to give.
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

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    Rls,
    /// Query, then Update.
    FrsPairs,
}

/// What became of a load.
#[derive(Debug)]
pub(super) struct Report(Value);

impl Report {
    /// How many requests ended so.
    pub(super) fn class(&self, name: &str) -> f64 {
        self.0["classes"][name].as_f64().unwrap_or(0.0)
    }

    /// How many were decided.
    pub(super) fn decided(&self) -> f64 {
        self.class("allowed") + self.class("denied")
    }

    /// How many pairs came to their end.
    pub(super) fn pairs(&self) -> f64 {
        self.0["pairs"].as_f64().unwrap_or(f64::NAN)
    }

    /// How many were due in all.
    pub(super) fn due(&self) -> f64 {
        self.0["due"].as_f64().unwrap_or(f64::NAN)
    }

    /// The latency of what was decided, in µs; `percentile` as `p99.9`.
    pub(super) fn served_micros(&self, from: From, percentile: &str) -> f64 {
        let millis = &self.0["latency"]["served"][from.name()][percentile];
        millis.as_f64().map_or(f64::NAN, |millis| millis * 1e3)
    }

    /// How long it went on, in seconds.
    pub(super) fn seconds(&self) -> f64 {
        self.0["seconds"].as_f64().unwrap_or(f64::NAN)
    }
}

/// Puts load on `target`.
pub(super) async fn load(
    target: SocketAddr,
    ask: Ask,
    pace: Pace,
    duration: Duration,
    cores: Cores,
) -> anyhow::Result<Report> {
    let mut command = match cores {
        Cores::Two => Command::new(artifacts::sidecar()?),
        Cores::One => {
            let mut command = Command::new("taskset");
            command.args(["-c", "1"]).arg(artifacts::sidecar()?);
            command
        }
    };
    let millis = |time: Duration| format!("{}ms", time.as_millis());
    command.args(["load", "--json", "-", "--no-progress", "--timeout", "30s"]);
    command.args(["--target", &target.to_string(), "--keys", &server::USERS.to_string()]);
    let connections = if ask == Ask::Rls { CONNECTIONS } else { CONNECTIONS_FRS };
    command.args(["--connections", &connections.to_string()]);
    // Whoever measures has warmed up by a load of its own, so that CPU time and counts go together.
    command.args(["--duration", &millis(duration), "--warmup", "0s"]);
    match ask {
        Ask::Rls => {
            command.args(["--domain", "bench", "--descriptor", server::DESCRIPTOR]);
        }
        Ask::FrsPairs => {
            command.args(["--protocol", "frs", "--command", "pair", "--business", "bench"]);
        }
    }
    match pace {
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
