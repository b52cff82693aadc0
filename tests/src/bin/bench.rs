//! `make bench-envoy`: CPU time of Envoy and of the sidecar per proxied request, with and without
//! Tidegate and with Envoy's own filter, in one run.
//!
//! CPU time, since machines are shared and wall time tells of the neighbours. All cases run in
//! turn, round after round, and the median of the rounds counts.

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::io::Write;
use tidegate_tests::artifacts;
use tidegate_tests::client::drive;
use tidegate_tests::envoy::Filter;
use tidegate_tests::process::Process;
use tidegate_tests::stack::Stack;

const ROUNDS: usize = 7;
const REQUESTS: u32 = 10_000;
const CONNECTIONS: u32 = 16;
/// Not counted: connections, caches, and V8's optimising compiler.
const WARM_UP: u32 = 4_000;

const LIMITS: &str = "\
domain: bench
descriptors:
  - key: client
    rate_limit: { unit: hour, requests_per_unit: 4000000000 }
";
const PLUGIN: &str = r#"{
    "domain": "bench",
    "sidecar": {"cluster": "tidegate", "timeout_ms": 5000},
    "failure_mode": "deny",
    "rate_limits": [{"actions": [
        {"request_headers": {"header_name": "x-client", "descriptor_key": "client"}}
    ]}],
    "headers": "off"
}"#;
const NATIVE: Filter<'static> =
    Filter::Native { domain: "bench", header: "x-client", key: "client" };

/// A way to run Envoy, and what it cost in each round: µs of CPU per request.
struct Case {
    name: &'static str,
    stack: Stack,
    envoy: Vec<f64>,
    sidecar: Vec<f64>,
}

// One thread for clients and upstream leaves a core to Envoy, which steadies the figures.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut cases = Vec::new();
    for (name, filter) in [
        ("no filter", Filter::None),
        ("tidegate, asking every time", Filter::Tidegate(PLUGIN)),
        ("envoy's own filter, asking tidegate", NATIVE),
    ] {
        let stack = Stack::start(LIMITS, filter, 1).await?;
        send(&stack, WARM_UP).await?;
        cases.push(Case { name, stack, envoy: Vec::new(), sidecar: Vec::new() });
    }
    for round in 1..=ROUNDS {
        for case in &mut cases {
            print!("\rround {round} of {ROUNDS}: {:<40}", case.name);
            std::io::stdout().flush()?;
            case.measure().await?;
        }
    }
    println!("\r{:<60}", "");
    report(&cases)
}

async fn send(stack: &Stack, requests: u32) -> anyhow::Result<()> {
    let sent = drive(stack.envoy.address, ("x-client", "a"), requests, CONNECTIONS).await?;
    ensure!(sent.allowed == requests, "not every request passed: {sent:?}");
    Ok(())
}

impl Case {
    async fn measure(&mut self) -> anyhow::Result<()> {
        let cpu = |stack: &Stack| {
            anyhow::Ok((cpu_micros(&stack.envoy.process)?, cpu_micros(&stack.sidecar.process)?))
        };
        let before = cpu(&self.stack)?;
        send(&self.stack, REQUESTS).await?;
        let after = cpu(&self.stack)?;
        self.envoy.push((after.0 - before.0) / f64::from(REQUESTS));
        self.sidecar.push((after.1 - before.1) / f64::from(REQUESTS));
        Ok(())
    }
}

/// User and system time that a process has used so far.
fn cpu_micros(process: &Process) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid()?))?;
    // The fields follow the name, which is in parentheses: utime and stime are the 12th and 13th.
    let (_, fields) = stat.rsplit_once(") ").context("no name in /proc/*/stat")?;
    let ticks: u64 =
        fields.split(' ').skip(11).take(2).map(str::parse::<u64>).sum::<Result<_, _>>()?;
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(ticks as f64 * 1e6 / per_second as f64)
}

fn median(rounds: &[f64]) -> f64 {
    let mut sorted = rounds.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn report(cases: &[Case]) -> anyhow::Result<()> {
    let baseline = cases.first().map_or(f64::NAN, |case| median(&case.envoy));
    println!(
        "CPU µs per proxied request, median of {ROUNDS} rounds of {REQUESTS}, one worker\n\n\
         {:<38}{:>8}{:>9}{:>8}{:>17}",
        "case", "Envoy", "sidecar", "both", "above no filter"
    );
    let mut rows: Vec<Value> = Vec::new();
    for case in cases {
        let (envoy, sidecar) = (median(&case.envoy), median(&case.sidecar));
        let both = envoy + sidecar;
        println!("{:<38}{envoy:>8.1}{sidecar:>9.1}{both:>8.1}{:>17.1}", case.name, both - baseline);
        for (metric, value) in [("cpu_envoy", envoy), ("cpu_envoy_and_sidecar", both)] {
            rows.push(json!({
                "suite": "envoy", "case": case.name, "metric": metric, "unit": "us/request",
                "value": value, "peer": "no filter", "peer_value": baseline,
                "ratio": value / baseline,
            }));
        }
    }
    let dir = artifacts::root().join("target/bench");
    std::fs::create_dir_all(&dir)?;
    std::fs::write(dir.join("results.json"), serde_json::to_string_pretty(&rows)?)?;
    println!("\nFigures: target/bench/results.json");
    Ok(())
}
