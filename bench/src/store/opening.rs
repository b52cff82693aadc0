//! The time to open a store, including its checks: one full of keys, as after a restart, and an empty one
//! that is created first. The files are in the page cache.

use super::keys::Keys;
use super::measure::Work;
use super::peer::tidegate::{LOAD, Tidegate, options};
use super::{Plan, SUITE, short};
use crate::figures::median;
use crate::progress;
use crate::report::{Row, print_table};
use std::path::Path;
use std::time::Instant;
use tidegate_store::{Cluster, Eviction, Geometry, Options};

const ROUNDS: usize = 3;

pub(super) fn measure(plan: &Plan, keys: &Keys, dir: &Path) -> anyhow::Result<Vec<Row>> {
    let mut figures = Vec::new();
    let case = format!("open {} keys", short(plan.keys));
    progress::show(&case);
    let options = options(plan.keys, Eviction::Refuse)?;
    let store = Tidegate::create(plan.keys, Eviction::Refuse, dir)?;
    let picks: Vec<u32> = (0..plan.keys).collect();
    Work { peer: &store, keys, parts: &[&picks] }.run_allowed(16)?;
    let files = store.close();
    figures.push((case, rounds(|| open(files.path(), &options))?));
    drop(files);

    let options = empty_options(plan.empty_bytes)?;
    let case = format!("create and open {} MiB", plan.empty_bytes >> 20);
    progress::show(&case);
    let create = || {
        let files = tempfile::tempdir_in(dir)?;
        open(files.path(), &options)
    };
    figures.push((case, rounds(create)?));

    progress::clear();
    let lines: Vec<Vec<String>> =
        figures.iter().map(|(case, millis)| vec![case.clone(), format!("{millis:.2}")]).collect();
    print_table("Opening, ms", &["case", "ms"], &lines);
    let row = |(case, millis)| Row::new(SUITE, case, ("opening", "ms"), millis);
    Ok(figures.into_iter().map(row).collect())
}

fn rounds(mut once: impl FnMut() -> anyhow::Result<f64>) -> anyhow::Result<f64> {
    let rounds: Vec<f64> = (0..ROUNDS).map(|_| once()).collect::<anyhow::Result<_>>()?;
    Ok(median(&rounds))
}

/// Opens and closes a store. Returns the ms to open it.
fn open(dir: &Path, options: &Options) -> anyhow::Result<f64> {
    let start = Instant::now();
    let cluster = Cluster::open(dir, options)?;
    let took = start.elapsed();
    drop(cluster);
    Ok(took.as_secs_f64() * 1e3)
}

/// A store of about this size.
fn empty_options(bytes: u64) -> anyhow::Result<Options> {
    // The bytes per key, from a store of some size, headers included.
    let sample = Geometry::by_capacity(1 << 20, LOAD)?;
    let capacity = (bytes << 20) / sample.total_bytes();
    let narrow = Geometry::by_capacity(capacity, LOAD)?;
    Ok(Options { narrow, wide: None, eviction: Eviction::Refuse, ..Options::default() })
}
