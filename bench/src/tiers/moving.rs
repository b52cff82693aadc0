//! Moves: counters are made by calls, are idle in a sidecar that is started again, and move to the database.

use super::aims::Aim;
use super::database::{Database, Kind};
use super::plain::Plain;
use super::sidecar::{STREAMS, Sidecar, Tiers};
use super::{Plan, SUITE};
use crate::generator::{Order, Pace};
use crate::progress;
use crate::report::{Row, print_table};
use anyhow::ensure;
use std::path::Path;
use std::time::{Duration, Instant};

/// The first try of a load that uses each key of a group twice.
const LOAD: Duration = Duration::from_millis(100);
/// Without a move for so long, no more will come.
const STILL: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The figures of the moves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moved {
    /// Counters a second.
    rate: f64,
    /// µs of CPU of the sidecar for each, also of its looks at all counters.
    micros: f64,
    /// Bytes of a counter.
    bytes: f64,
    /// The same of a row of a plain table.
    plain: f64,
    /// And of one without row ids, which only SQLite has.
    compact: Option<f64>,
}

impl Moved {
    /// Leaves all groups of counters in the database, and in no memory.
    pub(super) async fn measure(
        plan: &Plan,
        database: &Database,
        dir: &Path,
    ) -> anyhow::Result<Moved> {
        make(plan, database, dir).await?;
        let (rate, micros) = move_all(plan, database, dir).await?;
        progress::show(&format!("{}: filling a plain table", database.name()));
        let each = plan.counters() as f64;
        let bytes = database.bytes().await? as f64 / each;
        let plain = database.plain_bytes(plan.counters(), Plain::Usual).await? as f64 / each;
        let compact = match database.kind() {
            Kind::Sqlite => {
                let bytes = database.plain_bytes(plan.counters(), Plain::WithoutRowid).await?;
                Some(bytes as f64 / each)
            }
            Kind::Postgres(_) => None,
        };
        Ok(Moved { rate, micros, bytes, plain, compact })
    }

    pub(super) fn print(&self, plan: &Plan, database: &Database, aims: &mut Vec<Aim>) -> Vec<Row> {
        let (name, counters) = (database.name(), plan.counters());
        progress::clear();
        let title = format!(
            "{name}: {counters} counters move from a sidecar on 1 core, once; CPU of the sidecar alone; bytes of a counter in the \
             database, beside those of a plain table with a row for each"
        );
        let header = [
            "database",
            "counters a second",
            "µs of CPU a counter",
            "bytes a counter",
            "plain table",
            "plain, WITHOUT ROWID",
        ];
        let line = vec![
            name.to_owned(),
            format!("{:.0}", self.rate),
            format!("{:.2}", self.micros),
            format!("{:.1}", self.bytes),
            format!("{:.1}", self.plain),
            self.compact.map_or_else(|| "-".to_owned(), |bytes| format!("{bytes:.1}")),
        ];
        print_table(&title, &header, &[line]);
        let what = format!("{name}: bytes of a counter, of those in a plain table");
        aims.push(Aim { what, figure: self.bytes / self.plain, at_most: 0.5 });
        let case = format!("{name}, moves");
        let bytes = Row::new(SUITE, &case, ("size", "bytes/counter"), self.bytes);
        let mut rows = vec![
            Row::new(SUITE, &case, ("moved", "1/s"), self.rate),
            Row::new(SUITE, &case, ("cpu", "us/counter"), self.micros),
            bytes.clone().beside(("plain table", self.plain)),
        ];
        let compact = self.compact.map(|compact| ("plain table without row ids", compact));
        rows.extend(compact.map(|compact| bytes.beside(compact)));
        rows
    }
}

/// Makes all groups of counters, each used at least twice: those with a single use stay in memory.
async fn make(plan: &Plan, database: &Database, dir: &Path) -> anyhow::Result<()> {
    let name = database.name();
    let later = Tiers::In { url: database.url(), counters: plan.counters(), moves_at_once: false };
    let mut sidecar = Sidecar::start(plan, dir, &later, "made").await?;
    // New counters are looked up as long as nothing is known of the database.
    sidecar.wait_for_filter().await?;
    let mut duration = LOAD;
    for group in 0..plan.groups() {
        progress::show(&format!("{name}: making group {group} of {}", plan.groups()));
        let group = group_name(group);
        loop {
            let pace = Pace::Closed { streams: STREAMS };
            let report = sidecar.calls(&group, plan.group, Order::InTurn, pace, duration).await?;
            // A counter moves if it was used twice. Calls of several connections do not end in turn, and some may fail.
            if report.decided() >= 3.1 * plan.group as f64 {
                break;
            }
            duration *= 2;
        }
    }
    sidecar.stop().await
}

/// The name of a group of counters.
pub(super) fn group_name(group: usize) -> String {
    format!("group{group}")
}

/// Lets them all move. Returns how many did so in a second, and µs of CPU for each.
async fn move_all(plan: &Plan, database: &Database, dir: &Path) -> anyhow::Result<(f64, f64)> {
    let at_once = Tiers::In { url: database.url(), counters: plan.counters(), moves_at_once: true };
    let mut sidecar = Sidecar::start(plan, dir, &at_once, "moved").await?;
    let all = plan.counters() as f64;
    let moved = async || sidecar.metric("cold_moved_total").await;
    while moved().await? == 0.0 {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let (first, begun, before) = (moved().await?, Instant::now(), sidecar.server.cpu_micros()?);
    let (mut last, mut since) = (first, begun);
    while last < all {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = moved().await?;
        if now > last {
            (last, since) = (now, Instant::now());
        }
        progress::show(&format!("{}: {last} of {all} counters have moved", database.name()));
        ensure!(
            since.elapsed() < STILL,
            "{last} of {all} counters have moved, and no more; the log:\n{}",
            sidecar.server.process.log()
        );
    }
    let count = last - first;
    let figures = (
        count / since.duration_since(begun).as_secs_f64(),
        (sidecar.server.cpu_micros()? - before) / count,
    );
    sidecar.stop().await?;
    Ok(figures)
}
