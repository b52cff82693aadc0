//! The cost of counters that machines share in Redis, beside other ways to count there, in one run.
//!
//! The peers are a service that asks Redis about every call (`counting`), Limitador with its two storages for Redis
//! (`LIMITADOR` is the path of its server), and Tidegate's own store as the floor. Each has a Redis of its own, and they
//! take turns, round after round, under load by `tidegate load`. Costs are CPU time of the service and of Redis, and
//! commands that Redis has processed.

mod aims;
mod case;
mod counters;
pub(crate) mod counting;
mod figures;
mod over;
mod server;

use crate::neighbours::Neighbours;
use crate::report::Row;
use crate::server::limitador;
use crate::{Extent, progress};
use anyhow::Context;
use std::time::Duration;
use tidegate_tests::shared_servers::RedisPrograms;

const SUITE: &str = "redis";

/// The size of the measurement.
#[derive(Debug)]
struct Plan {
    rounds: usize,
    /// The length of each load.
    duration: Duration,
    /// The load on hot keys before it.
    warmup: Duration,
    /// The number of hot keys, each of them as busy in both extents.
    hot_keys: u64,
    /// Decisions a second on hot keys.
    rate: u64,
    /// Decisions a second where latency is compared: every service can answer as many.
    steady_rate: u64,
    /// Keys in Tidegate's stores: all that are used once.
    capacity: u32,
    /// The limit that is reached.
    reached: u32,
}

const FULL: Plan = Plan {
    rounds: 5,
    duration: Duration::from_secs(2),
    warmup: Duration::from_secs(3),
    hot_keys: 1_000,
    rate: 100_000,
    steady_rate: 5_000,
    // At up to a million a second, in all rounds on cold keys.
    capacity: 4_000_000,
    reached: 10_000,
};
const QUICK: Plan = Plan {
    rounds: 1,
    duration: Duration::from_millis(500),
    warmup: Duration::from_millis(200),
    hot_keys: 20,
    rate: 2_000,
    steady_rate: 500,
    capacity: 1_000_000,
    reached: 200,
};

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(extent: Extent) -> anyhow::Result<Vec<Row>> {
    let plan = extent.of(&FULL, &QUICK);
    let programs = RedisPrograms::find()?;
    let programs = programs.context("redis-server is needed (apt-get install redis-server)")?;
    if limitador().is_none() {
        println!("Without Limitador: LIMITADOR=/path/to/limitador-server has it run beside.\n");
    }
    let neighbours = Neighbours::watch()?;
    let mut rows = Vec::new();
    let mut measured = Vec::new();
    for case in case::all(plan) {
        let figures = case.measure(plan, &programs).await?;
        progress::clear();
        figures.print();
        rows.extend(figures.rows());
        measured.push(figures);
    }
    rows.extend(over::measure(plan, &programs).await?);
    aims::print(plan, &measured);
    let others = neighbours.report()?;
    rows.push(Row::new(SUITE, "the whole suite", ("cpu_of_others", "share"), others));
    Ok(rows)
}
