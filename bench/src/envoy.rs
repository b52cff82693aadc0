//! The cost of Tidegate in a real Envoy, in one run with Envoy without a filter, with a filter that does
//! nothing, and with Envoy's own filters.
//!
//! Measures CPU time, as wall time on a shared machine depends on other processes. The cases take turns,
//! round after round, and the figure is the median of the rounds.

mod case;
mod frozen;
mod keys;
mod long;
mod report;

use crate::report::Row;
use crate::{Extent, progress};
use case::{Case, Setup};

const SUITE: &str = "envoy";

/// The size of the measurement.
struct Plan {
    rounds: usize,
    /// CPU time is counted in steps of 10 ms: of 40,000 requests, 0.25 µs each.
    requests: u64,
    /// The warm-up: connections, caches, V8's optimising compiler, and growing leases.
    warm_up: u64,
    /// Clients with one request each.
    keys: u64,
    /// Requests while the sidecar is stopped and the breaker is open.
    frozen: u64,
    /// Requests of a round, and of its warm-up, with the longest values.
    long: u64,
}

const FULL: Plan = Plan {
    rounds: 7,
    requests: 40_000,
    warm_up: 10_000,
    keys: 1_000_000,
    frozen: 20_000,
    long: 500,
};
const QUICK: Plan =
    Plan { rounds: 1, requests: 500, warm_up: 200, keys: 2_000, frozen: 500, long: 100 };

// One thread for clients and upstream leaves a core to Envoy, which makes figures steadier.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(extent: Extent) -> anyhow::Result<Vec<Row>> {
    let plan = extent.of(FULL, QUICK);
    let cases = measured(&plan).await?;
    progress::clear();
    let mut rows = report::report(&plan, &cases);
    // The idle Envoys of the cases would only disturb.
    drop(cases);
    rows.extend(long::measure(&plan).await?);
    rows.extend(frozen::measure(&plan).await?);
    rows.extend(keys::measure(&plan).await?);
    Ok(rows)
}

async fn measured(plan: &Plan) -> anyhow::Result<Vec<Case>> {
    let mut cases = Vec::new();
    for (kind, name) in Setup::ALL {
        progress::show(&format!("warming up: {name}"));
        cases.push(Case::start(kind, plan.warm_up).await?);
    }
    for round in 1..=plan.rounds {
        for case in &mut cases {
            progress::show(&format!("round {round} of {}: {}", plan.rounds, case.kind.name()));
            case.measure(plan.requests).await?;
        }
    }
    Ok(cases)
}
