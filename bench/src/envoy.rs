//! CPU time of Envoy and of the sidecar per proxied request, with and without Tidegate and with
//! Envoy's own filter, in one run.
//!
//! CPU time, since machines are shared and wall time tells of the neighbours. All cases run in
//! turn, round after round, and the median of the rounds counts.

use crate::figures::median;
use crate::report::{Row, print_table};
use crate::{Extent, progress};
use anyhow::{Context, ensure};
use tidegate_tests::client::drive;
use tidegate_tests::envoy::Filter;
use tidegate_tests::process::Process;
use tidegate_tests::stack::Stack;

const SUITE: &str = "envoy";
const CONNECTIONS: u32 = 16;

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

/// How much is measured.
struct Plan {
    rounds: usize,
    requests: u32,
    /// Not counted: connections, caches, and V8's optimising compiler.
    warm_up: u32,
}

const FULL: Plan = Plan { rounds: 7, requests: 10_000, warm_up: 4_000 };
const QUICK: Plan = Plan { rounds: 1, requests: 500, warm_up: 100 };

/// A way to run Envoy, and what it cost in each round: µs of CPU per request.
struct Case {
    name: &'static str,
    stack: Stack,
    envoy: Vec<f64>,
    sidecar: Vec<f64>,
}

// One thread for clients and upstream leaves a core to Envoy, which steadies the figures.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(extent: Extent) -> anyhow::Result<Vec<Row>> {
    let plan = match extent {
        Extent::Full => FULL,
        Extent::Quick => QUICK,
    };
    let mut cases = Vec::new();
    for (name, filter) in [
        ("no filter", Filter::None),
        ("tidegate, asking every time", Filter::Tidegate(PLUGIN)),
        ("envoy's own filter, asking tidegate", NATIVE),
    ] {
        progress::show(&format!("warming up: {name}"));
        let stack = Stack::start(LIMITS, filter, 1).await?;
        send(&stack, plan.warm_up).await?;
        cases.push(Case { name, stack, envoy: Vec::new(), sidecar: Vec::new() });
    }
    for round in 1..=plan.rounds {
        for case in &mut cases {
            progress::show(&format!("round {round} of {}: {}", plan.rounds, case.name));
            case.measure(plan.requests).await?;
        }
    }
    progress::clear();
    Ok(report(&plan, &cases))
}

async fn send(stack: &Stack, requests: u32) -> anyhow::Result<()> {
    let sent = drive(stack.envoy.address, ("x-client", "a"), requests, CONNECTIONS).await?;
    ensure!(sent.allowed == requests, "not every request passed: {sent:?}");
    Ok(())
}

impl Case {
    async fn measure(&mut self, requests: u32) -> anyhow::Result<()> {
        let cpu = |stack: &Stack| {
            anyhow::Ok((cpu_micros(&stack.envoy.process)?, cpu_micros(&stack.sidecar.process)?))
        };
        let before = cpu(&self.stack)?;
        send(&self.stack, requests).await?;
        let after = cpu(&self.stack)?;
        self.envoy.push((after.0 - before.0) / f64::from(requests));
        self.sidecar.push((after.1 - before.1) / f64::from(requests));
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

fn report(plan: &Plan, cases: &[Case]) -> Vec<Row> {
    let baseline = cases.first().map_or(f64::NAN, |case| median(&case.envoy));
    let mut lines = Vec::new();
    let mut rows = Vec::new();
    for case in cases {
        let (envoy, sidecar) = (median(&case.envoy), median(&case.sidecar));
        let both = envoy + sidecar;
        let figures = [envoy, sidecar, both, both - baseline].map(|micros| format!("{micros:.1}"));
        lines.push(std::iter::once(case.name.to_owned()).chain(figures).collect());
        for (metric, value) in [("cpu_envoy", envoy), ("cpu_envoy_and_sidecar", both)] {
            let row = Row::new(SUITE, case.name, (metric, "us/request"), value);
            rows.push(row.beside("no filter", baseline));
        }
    }
    let title = format!(
        "CPU µs per proxied request, median of {} rounds of {}, one worker",
        plan.rounds, plan.requests
    );
    print_table(&title, &["case", "Envoy", "sidecar", "both", "above no filter"], &lines);
    rows
}
