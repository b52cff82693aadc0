//! The store suite: decisions on string keys by Tidegate's store, beside other counters that a service could
//! keep in its own memory.
//!
//! A decision is the whole of it: hash the key, find the counter, run the token bucket, write the state back.
//! The limit is large, so that nothing is denied, and refills slowly, so that no counter expires during a
//! measurement.

mod comparison;
pub(crate) mod instructions;
mod keys;
mod measure;
pub(crate) mod memory;
mod opening;
mod overload;
mod peer;
mod speed;
mod stage;

use crate::neighbours::Neighbours;
use crate::report::Row;
use crate::{Extent, progress};
use keys::Keys;
pub(crate) use keys::random_picks;
use std::path::Path;

const SUITE: &str = "store";

/// The size of the measurement.
#[derive(Debug)]
struct Plan {
    /// Numbers of live keys, from those that fit a core's own cache to those that fit no cache.
    sizes: &'static [u32],
    rounds: u32,
    /// Decisions per thread of a run on existing keys.
    hits: u32,
    /// Live keys for memory and opening, which are measured once.
    keys: u32,
    /// The capacity in keys of the store under overload.
    capacity: u32,
    /// Bytes of the empty store that is created and opened.
    empty_bytes: u64,
    /// Decisions whose instructions are counted. A second run has twice as many.
    counted: u32,
}

const FULL: Plan = Plan {
    sizes: &[1_000, 1_000_000, 8_000_000],
    rounds: 5,
    hits: 400_000,
    keys: 8_000_000,
    capacity: 1_000_000,
    empty_bytes: 1 << 30,
    counted: 50_000,
};
const QUICK: Plan = Plan {
    sizes: &[1_000, 20_000],
    rounds: 2,
    hits: 20_000,
    keys: 20_000,
    capacity: 20_000,
    empty_bytes: 1 << 24,
    counted: 1_000,
};

/// Keys offered under overload per key of capacity.
const OVERLOAD: u32 = 10;

/// Runs the suite. `dir` takes the store's files.
pub(crate) fn run(extent: Extent, dir: &Path) -> anyhow::Result<Vec<Row>> {
    let plan = extent.of(&FULL, &QUICK);
    let neighbours = Neighbours::watch()?;
    progress::show("making keys");
    let largest = plan.sizes.iter().copied().max().unwrap_or_default();
    let keys = Keys::new(0..largest.max(plan.capacity * OVERLOAD));
    let speeds = speed::measure(plan, &keys, dir)?;
    let mut rows = speeds.report();
    rows.extend(overload::measure(plan, &keys, &speeds, dir)?);
    rows.extend(opening::measure(plan, &keys, dir)?);
    // Children with millions of keys of their own follow.
    drop(keys);
    rows.extend(memory::measure(plan, dir)?);
    rows.extend(instructions::measure(plan, dir)?);
    let others = neighbours.report()?;
    rows.push(Row::new(SUITE, "the whole suite", ("cpu_of_others", "share"), others));
    Ok(rows)
}

/// Formats a count: `8M`, `20K`.
fn short(count: u32) -> String {
    match count {
        0..1_000 => count.to_string(),
        1_000..1_000_000 => format!("{}K", count / 1_000),
        _ => format!("{}M", count / 1_000_000),
    }
}
