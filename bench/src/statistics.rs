//! Statistics at the size of an open platform: a day of traffic written at speed, a year that was thinned, and the time of
//! each question of the console.
//!
//! Apps and interfaces are used by Zipf's law, users evenly. The day is written in the slots of a sidecar, 15 seconds each.
//! History is written by the hour and by the day, with fewer requests, and thinned by the sidecar's own code.

mod questions;
mod traffic;

use crate::Extent;
use crate::progress;
use crate::report::{Row, print_table};
use anyhow::{Context, ensure};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};
use tidegate_statistics::database::{Database, Settings, Thinned, Thinner};
use tidegate_statistics::retention::{Calendar, Width};
use tidegate_statistics::writer::{BACKLOG_BYTES_MAX, Writer};
use tidegate_statistics::{Aggregator, Bounds, Declared, SLOT_SECONDS};
use traffic::Traffic;

const SUITE: &str = "statistics";
/// Steps of thinning that may fail.
const FAILED_MAX: usize = 20;
const DAY: u64 = 86_400;
const LIMITS: &str = "
domain: shop
statistics:
  - { name: app-calls, by: [app] }
  - { name: app-interface, by: [app, interface] }
  - { name: app-users, by: [app], distinct: user }
";

/// The sizes of a run.
#[derive(Debug)]
struct Plan {
    apps: u64,
    interfaces: u64,
    users: u64,
    /// Of the day that is written slot by slot.
    requests_per_second: u64,
    slots: u64,
    /// Hours before the day, and requests in each.
    hours: (u64, u64),
    /// Days before these.
    days: (u64, u64),
}

impl Plan {
    fn of(extent: Extent) -> Plan {
        Plan {
            apps: extent.of(10_000, 100),
            interfaces: extent.of(50, 10),
            users: extent.of(100_000, 1_000),
            requests_per_second: extent.of(50, 20),
            slots: extent.of(DAY / SLOT_SECONDS, 40),
            hours: (extent.of(31 * 24, 48), extent.of(1_500, 200)),
            days: (extent.of(365, 60), extent.of(5_000, 500)),
        }
    }
}

pub(crate) fn run(extent: Extent, dir: &Path) -> anyhow::Result<Vec<Row>> {
    let plan = Plan::of(extent);
    println!(
        "Statistics: {} apps, {} interfaces each, {} users, {} requests/s",
        plan.apps, plan.interfaces, plan.users, plan.requests_per_second
    );
    let result = tokio::runtime::Runtime::new()?.block_on(measure(&plan, dir));
    progress::clear();
    result
}

async fn measure(plan: &Plan, dir: &Path) -> anyhow::Result<Vec<Row>> {
    let limits = dir.join("shop.yaml");
    std::fs::write(&limits, LIMITS)?;
    let loaded = tidegate_limits::load(&limits, tidegate_limits::SameDomain::Refuse)?;
    let declared = Declared::of(&loaded.rules);
    let file = dir.join("statistics.sqlite");
    let settings = Settings::sqlite(&file);
    // Tomorrow, so that whatever the writer thins by its own clock, all minutes of the day are still there.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs() + DAY;
    let midnight = Calendar::default().floor(Width::Day, now.cast_signed()).cast_unsigned();
    let mut simulation = Simulation {
        traffic: Traffic::new(plan)?,
        declared,
        aggregator: Aggregator::new(Bounds::default()),
        writer: Writer::start(settings.clone(), BACKLOG_BYTES_MAX)?,
        waiting_max: 0,
    };
    let mut rows = Vec::new();
    rows.extend(simulation.history(plan, midnight).await?);
    let database = Database::open(settings).await?;
    rows.extend(thin(&database, "the year", midnight).await?);
    rows.extend(simulation.day(plan, midnight).await?);
    simulation.writer.finish(Duration::from_secs(60)).await;
    let bytes = std::fs::metadata(&file)?.len();
    rows.push(Row::new(SUITE, "a day, and a year", ("size", "MB"), bytes as f64 / 1e6));
    // Before midnight, so that minutes are still kept; those of the last hour are not rolled up yet.
    let end = midnight + plan.slots * SLOT_SECONDS - 60;
    rows.extend(thin(&database, "the day", end).await?);
    rows.extend(questions::measure(&database, &simulation.declared, end).await?);
    rows.extend(thin(&database, "the day before", midnight + 2 * DAY).await?);
    let lines = |row: &Row| {
        vec![row.case.clone(), row.metric.to_owned(), format!("{:.1} {}", row.value, row.unit)]
    };
    let lines: Vec<_> = rows.iter().map(lines).collect();
    print_table("Statistics in SQLite", &["case", "metric", "figure"], &lines);
    database.close().await;
    Ok(rows)
}

struct Simulation {
    traffic: Traffic,
    declared: Declared,
    aggregator: Aggregator,
    writer: Writer,
    /// The most bytes that waited for the database.
    waiting_max: usize,
}

impl Simulation {
    /// Requests of one time, as one batch; returns how long its writing took.
    async fn write(&mut self, requests: u64, at: u64) -> anyhow::Result<Duration> {
        for _ in 0..requests {
            self.traffic.request(&self.declared, &self.aggregator);
        }
        let batch = self.aggregator.take(at);
        let begun = Instant::now();
        self.writer.add(batch);
        loop {
            let counts = self.writer.counts();
            self.waiting_max = self.waiting_max.max(counts.backlog_bytes);
            if counts.backlog_bytes == 0 {
                return Ok(begun.elapsed());
            }
            ensure!(begun.elapsed() < Duration::from_secs(300), "the database takes no statistics");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// The hours and the days before a time.
    async fn history(&mut self, plan: &Plan, midnight: u64) -> anyhow::Result<Vec<Row>> {
        let ((hours, by_hour), (days, by_day)) = (plan.hours, plan.days);
        let hourly = midnight - hours * 3_600;
        for day in (1..=days).rev() {
            progress::show(&format!("Writing a year: {day} days left"));
            self.write(by_day, hourly - day * DAY).await?;
        }
        for hour in (1..=hours).rev() {
            progress::show(&format!("Writing a month: {hour} hours left"));
            self.write(by_hour, midnight - hour * 3_600).await?;
        }
        Ok(Vec::new())
    }

    async fn day(&mut self, plan: &Plan, midnight: u64) -> anyhow::Result<Vec<Row>> {
        let requests = plan.requests_per_second * SLOT_SECONDS;
        let mut took = Vec::new();
        let (begun, before) = (Instant::now(), written()?);
        for slot in 0..plan.slots {
            if slot % 20 == 0 {
                progress::show(&format!("Writing a day: slot {slot} of {}", plan.slots));
            }
            took.push(
                self.write(requests, midnight + slot * SLOT_SECONDS).await?.as_secs_f64() * 1e3,
            );
        }
        let (seconds, bytes) = (begun.elapsed().as_secs_f64(), written()? - before);
        took.sort_by(f64::total_cmp);
        let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize];
        let case = "a slot of 15 s";
        Ok(vec![
            Row::new(SUITE, case, ("writing_p50", "ms"), at(0.5)),
            Row::new(SUITE, case, ("writing_p99", "ms"), at(0.99)),
            Row::new(SUITE, case, ("written", "MB"), bytes as f64 / 1e6 / plan.slots as f64),
            Row::new(SUITE, case, ("memory", "MB"), self.waiting_max as f64 / 1e6),
            Row::new(SUITE, "a day", ("time", "s"), seconds),
            Row::new(SUITE, "a day", ("requests", "1"), (requests * plan.slots) as f64),
        ])
    }
}

/// The bytes that this process has written to files so far (Linux only).
fn written() -> anyhow::Result<u64> {
    let io = std::fs::read_to_string("/proc/self/io").context("/proc/self/io")?;
    let bytes = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    Ok(bytes.context("no wchar in /proc/self/io")?.trim().parse()?)
}

/// Thins everything as at a time.
async fn thin(database: &Database, case: &str, now: u64) -> anyhow::Result<Vec<Row>> {
    let mut thinner = Thinner::new(u64::MAX / 3);
    // The lease of the writer, which thins by its own clock, has ended by this one.
    let now = now.cast_signed();
    let (mut moved, mut longest, begun) = (0, Duration::ZERO, Instant::now());
    let mut failed = 0;
    loop {
        let step = Instant::now();
        match thinner.step(database, now).await {
            Ok(Thinned::Some(rows)) => moved += rows,
            Ok(Thinned::All) => break,
            Ok(Thinned::Elsewhere) => anyhow::bail!("another one thins"),
            // The writer may hold the lock for longer than SQLite waits, as on a slow disk. The same step is next.
            Err(_) if failed < FAILED_MAX => failed += 1,
            Err(error) => return Err(error).context("thinning"),
        }
        longest = longest.max(step.elapsed());
        progress::show(&format!("Thinning {case}: {moved} rows"));
    }
    let (seconds, longest) = (begun.elapsed().as_secs_f64(), longest.as_secs_f64() * 1e3);
    Ok(vec![
        Row::new(SUITE, format!("thinning {case}"), ("time", "s"), seconds),
        Row::new(SUITE, format!("thinning {case}"), ("rows", "1"), moved as f64),
        Row::new(SUITE, format!("thinning {case}"), ("longest_step", "ms"), longest),
    ])
}
