//! Ten times more keys than the store's capacity: decisions per second once it is full, beside those with
//! room, and the growth of its files.

use super::keys::Keys;
use super::measure::{Run, Work};
use super::peer::Peer;
use super::peer::tidegate::Tidegate;
use super::speed::Speeds;
use super::stage::{Ask, Case};
use super::{OVERLOAD, Plan, SUITE, short};
use crate::figures::median;
use crate::progress;
use crate::report::{Row, print_table};
use anyhow::Context;
use std::path::Path;
use tidegate_store::Eviction;

const BATCHES: [usize; 2] = [1, 16];
/// Multiples of the capacity that are offered before the measurement.
const UNTIL_FULL: u32 = 2;

pub(super) fn measure(
    plan: &Plan,
    keys: &Keys,
    speeds: &Speeds,
    dir: &Path,
) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    for (policy, eviction) in
        [("refuse", Eviction::Refuse), ("evict soonest expiry", Eviction::EvictSoonestExpiry)]
    {
        let title = format!("{OVERLOAD} × {} keys, {policy}", short(plan.capacity));
        progress::show(&format!("overload: {title}"));
        let store = Tidegate::create(plan.capacity, eviction, dir)?;
        let done = offer(plan, keys, &store)?;
        for (batch, full) in BATCHES.into_iter().zip(&done.full) {
            let case = format!("{title}, 1 thread, batch {batch}");
            let mut line = vec![case.clone(), format!("{:.2}", full.rate / 1e6)];
            for (name, ask) in [("hit", Ask::Hit), ("miss", Ask::Miss)] {
                let normal = Case { keys: plan.capacity, ask, threads: 1, batch };
                let normal = speeds.rate(&normal).context("the capacity is not a measured size")?;
                let row = Row::new(SUITE, &case, ("decisions", "1/s"), full.rate);
                rows.push(row.beside((&*format!("{name} with room"), normal)));
                line.push(format!("{:.2}", full.rate / normal));
            }
            rows.push(Row::new(SUITE, &case, ("allowed", "share"), full.allowed));
            line.push(format!("{:.3}", full.allowed));
            line.push(format!("{:.1}", done.bytes.0 as f64 / 1e6));
            line.push(format!("{:.1}", done.bytes.1 as f64 / 1e6));
            lines.push(line);
        }
        let row = Row::new(SUITE, title, ("files", "B"), done.bytes.1 as f64);
        rows.push(row.beside(("before", done.bytes.0 as f64)));
    }
    progress::clear();
    let header =
        ["case", "M/s", "/ hit", "/ miss", "allowed", "files before, MB", "files after, MB"];
    print_table("Overload: decisions per second when full", &header, &lines);
    Ok(rows)
}

/// The results of an offer.
struct Offered {
    /// For each batch.
    full: Vec<Full>,
    /// Bytes of the files before and after.
    bytes: (u64, u64),
}

/// The figures of a full store.
struct Full {
    /// Decisions per second.
    rate: f64,
    /// The share of allowed decisions.
    allowed: f64,
}

/// Offers every key once, in portions with alternating batch sizes.
fn offer(plan: &Plan, keys: &Keys, store: &Tidegate) -> anyhow::Result<Offered> {
    let before = bytes(store)?;
    let picks: Vec<u32> = (0..plan.capacity * OVERLOAD).collect();
    let (first, rest) = picks.split_at((plan.capacity * UNTIL_FULL) as usize);
    let run = |part, batch| Work { peer: store, keys, parts: &[part] }.run(batch);
    run(first, BATCHES[1])?;
    let mut rates = [Vec::new(), Vec::new()];
    let mut allowed = [0, 0];
    for portions in rest.chunks((plan.capacity * 2) as usize) {
        for (turn, portion) in portions.chunks(plan.capacity as usize).enumerate() {
            let Run { took, allowed: some } = run(portion, BATCHES[turn])?;
            rates[turn].push(portion.len() as f64 / took.as_secs_f64());
            allowed[turn] += some;
        }
    }
    let offered = rest.len() as f64 / BATCHES.len() as f64;
    let full = rates
        .iter()
        .zip(allowed)
        .map(|(rates, allowed)| Full { rate: median(rates), allowed: allowed as f64 / offered });
    Ok(Offered { full: full.collect(), bytes: (before, bytes(store)?) })
}

fn bytes(store: &Tidegate) -> anyhow::Result<u64> {
    store.file_bytes()?.context("a store without files")
}
