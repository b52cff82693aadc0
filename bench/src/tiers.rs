//! The cost of counters that move to a database while they are idle, beside the same sidecar with all of them in memory.
//!
//! Counters are made by calls, and move by themselves, as in operation: nothing writes rows but the sidecar. What is
//! compared with a sidecar without tiers (`pairs`) takes turns, without and with, then with and without. Costs are CPU time
//! of the sidecar, in which SQLite runs, too, while PostgreSQL is a process of its own.

mod aims;
mod database;
mod fetching;
mod figures;
mod moving;
mod pairs;
mod plain;
mod shares;
mod sidecar;

use crate::neighbours::Neighbours;
use crate::report::Row;
use crate::{Extent, progress};
use aims::Aim;
use database::{Database, Kind};
use moving::Moved;
use sidecar::{Sidecar, Tiers};
use std::path::Path;
use std::time::Duration;
use tidegate_tests::shared_servers::PostgresPrograms;

const SUITE: &str = "tiers";

/// The size of the measurement.
#[derive(Debug)]
struct Plan {
    /// Pairs of measurements without and with tiers.
    pairs: usize,
    /// The length of each measurement of a pair on hot keys, and on new ones.
    hot: Duration,
    new: Duration,
    /// Measurements of each share of hot hits.
    rounds: usize,
    /// The length of each. In this time a sidecar has to fetch less than a group of counters.
    mixed: Duration,
    /// The length of the measurement of single fetches.
    alone: Duration,
    /// Fetches whose queries are counted.
    counted: Duration,
    /// Counters of a group, which one measurement fetches.
    group: u64,
    /// Those of a group that are hot again before it.
    hot_of_group: u64,
    /// Counters in the store of each sidecar: those that move, and new ones, about three million, with their records.
    capacity: u32,
}

const FULL: Plan = Plan {
    pairs: 10,
    hot: Duration::from_secs(2),
    new: Duration::from_millis(400),
    rounds: 3,
    mixed: Duration::from_secs(1),
    alone: Duration::from_secs(3),
    counted: Duration::from_millis(200),
    group: 91_000,
    hot_of_group: 1_000,
    capacity: 8_000_000,
};
const QUICK: Plan = Plan {
    pairs: 2,
    hot: Duration::from_millis(200),
    new: Duration::from_millis(100),
    rounds: 1,
    mixed: Duration::from_millis(50),
    alone: Duration::from_millis(200),
    counted: Duration::from_millis(100),
    group: 4_000,
    hot_of_group: 200,
    capacity: 1_000_000,
};

/// Percent of the calls that are hot hits.
const SHARES: [u32; 4] = [100, 99, 90, 50];

impl Plan {
    /// Groups of counters: one for each measurement that fetches, and one for each of the two of single fetches.
    fn groups(&self) -> usize {
        (SHARES.len() - 1) * self.rounds + 2
    }

    fn counters(&self) -> u64 {
        self.groups() as u64 * self.group
    }
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(extent: Extent, dir: &Path) -> anyhow::Result<Vec<Row>> {
    let plan = extent.of(&FULL, &QUICK);
    let neighbours = Neighbours::watch()?;
    let (mut rows, mut aims) = (Vec::new(), Vec::new());
    let postgres = PostgresPrograms::find()?;
    for kind in [Some(Kind::Sqlite), postgres.map(Kind::Postgres)].into_iter().flatten() {
        let own = dir.join(kind.name());
        std::fs::create_dir(&own)?;
        let database = Database::start(&kind, &own).await?;
        measure(plan, &database, &own, &mut rows, &mut aims).await?;
    }
    progress::clear();
    aims.iter().for_each(Aim::print);
    println!();
    rows.push(Row::new(SUITE, "the whole suite", ("cpu_of_others", "share"), neighbours.report()?));
    Ok(rows)
}

/// Everything with one database. What does not depend on the database is measured with SQLite alone.
async fn measure(
    plan: &Plan,
    database: &Database,
    dir: &Path,
    rows: &mut Vec<Row>,
    aims: &mut Vec<Aim>,
) -> anyhow::Result<()> {
    let moved = Moved::measure(plan, database, dir).await?;
    rows.extend(moved.print(plan, database, aims));
    // From now on nothing moves.
    let cold = Tiers::In { url: database.url(), counters: plan.counters(), moves_at_once: false };
    let mut with = Sidecar::start(plan, dir, &cold, "measured").await?;
    with.wait_for_filter().await?;
    if let Kind::Sqlite = database.kind() {
        let other = dir.join("without");
        std::fs::create_dir(&other)?;
        let without = Sidecar::start(plan, &other, &Tiers::Off, "without").await?;
        rows.extend(pairs::measure(plan, [&without, &with], aims).await?);
    }
    rows.extend(shares::measure(plan, database, &with).await?);
    rows.extend(fetching::measure(plan, database, &with).await?);
    with.stop().await
}
