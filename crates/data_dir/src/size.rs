//! The size of a new cluster, and whether it fits into memory.
//!
//! The pages of a cluster are never given back, so a size that does not fit must be an error at the start and not
//! the end of the process later. The default size shrinks to fit; a configured size is accepted or refused.

use crate::Settings;
use crate::memory_limits::{self, FileSystem, Limit};
use anyhow::{Context, bail};
use std::path::Path;
use tidegate_store::{Geometry, Options, STATE_WORDS_WIDE};

/// The default number of counters where it fits: 73 MiB.
const CAPACITY_DEFAULT: u64 = 1 << 20;
/// The default does not shrink below this, 0.3 MiB: less memory is an error.
const CAPACITY_DEFAULT_MIN: u64 = 1 << 12;
/// Memory reserved for the process itself: some 2 MiB without clients, and what clients need.
const RESERVED_FOR_PROCESS: u64 = 32 << 20;
/// The same for each worker process.
const RESERVED_FOR_WORKER: u64 = 4 << 20;
/// Memory in use differs a little from start to start, so an advised size leaves this fraction (1/50) free.
const ADVICE_SLACK: u64 = 50;

/// The memory available to a new cluster.
#[derive(Debug)]
pub(super) struct MemoryBudget {
    /// The one with the least memory left first.
    limits: Vec<Limit>,
    files: Option<FileSystem>,
    /// Bytes of each limit that counters may not use.
    reserved: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct DefaultSize {
    pub(super) capacity: u64,
    pub(super) reason: String,
}

impl MemoryBudget {
    /// The budget for counters in `dir`, a directory of shared memory, next to `workers` more processes.
    pub(super) fn read(dir: &Path, workers: u32) -> MemoryBudget {
        // A file system of unknown size still refuses what does not fit.
        let files = memory_limits::file_system(dir).ok();
        MemoryBudget::of(memory_limits::of_process(), files, workers)
    }

    /// The budget for counters in the memory of this process.
    pub(super) fn of_process() -> MemoryBudget {
        MemoryBudget::of(memory_limits::of_process(), None, 0)
    }

    fn of(limits: Vec<Limit>, files: Option<FileSystem>, workers: u32) -> MemoryBudget {
        let reserved = RESERVED_FOR_PROCESS + RESERVED_FOR_WORKER * u64::from(workers);
        MemoryBudget { limits, files, reserved }
    }

    /// Bytes that counters may still use of a limit.
    fn left(&self, limit: &Limit) -> u64 {
        limit.left().saturating_sub(self.reserved)
    }

    /// Fails if files of this many bytes do not fit.
    pub(super) fn check(&self, bytes: u64, options: &Settings) -> anyhow::Result<()> {
        if let Some(limit) = self.limits.first()
            && let left = self.left(limit)
            && bytes > left
        {
            bail!(
                "the counters need {}, and {} are left for them: the memory limit {} is {}, of which \
                 {} are in use and {} are reserved for the processes; {}, or raise the limit to {}",
                mib(bytes),
                mib(left),
                limit.file.display(),
                mib(limit.bytes),
                mib(limit.used),
                mib(self.reserved),
                advice(options, left),
                mib_up(limit.used + self.reserved + bytes + bytes / ADVICE_SLACK)
            );
        }
        if let Some(files) = &self.files
            && bytes > files.free
        {
            bail!(
                "the counters need {}, and {} are free in the file system of {}; {}, or free some space there",
                mib(bytes),
                mib(files.free),
                files.directory.display(),
                advice(options, files.free)
            );
        }
        Ok(())
    }

    /// The default size: smaller where memory is scarce, so that other processes of the container have some,
    /// too.
    pub(super) fn default_size(&self, options: &Settings) -> DefaultSize {
        let mut bounds = Vec::new();
        for limit in &self.limits {
            bounds.push((
                limit.bytes / 3,
                format!("a third of the memory limit, {}", mib(limit.bytes)),
            ));
            bounds.push((
                self.left(limit),
                format!("what is left of the memory limit, {}", mib(limit.bytes)),
            ));
        }
        if let Some(FileSystem { directory, free }) = &self.files {
            let directory = directory.display();
            bounds.push((
                free / 2,
                format!("half of the {} that are free in {directory}", mib(*free)),
            ));
        }
        let fits = |(bytes, reason): (u64, String)| {
            let capacity = fitting(options, bytes).unwrap_or(0);
            DefaultSize { capacity: capacity.max(CAPACITY_DEFAULT_MIN), reason }
        };
        let least = bounds.into_iter().map(fits).min_by_key(|default| default.capacity);
        match least {
            Some(least) if least.capacity < CAPACITY_DEFAULT => least,
            _ => DefaultSize { capacity: CAPACITY_DEFAULT, reason: "the default fits".to_owned() },
        }
    }
}

/// The geometry of the narrow nodes; for `capacity` counters unless the settings have a number.
pub(super) fn narrow(options: &Settings, capacity: u64) -> anyhow::Result<Geometry> {
    match options.geometry {
        Some(count) => count.geometry().context("--geometry, or files, key-nodes and chain"),
        None => Geometry::by_capacity(options.capacity.unwrap_or(capacity), options.load)
            .context("--capacity and --load"),
    }
}

/// The geometry of the wide nodes, if there are any.
pub(super) fn wide(options: &Settings) -> anyhow::Result<Option<Geometry>> {
    match options.wide_capacity {
        0 => Ok(None),
        capacity => Geometry::wide_by_capacity(capacity, options.load, STATE_WORDS_WIDE)
            .context("--wide-capacity and --load")
            .map(Some),
    }
}

/// The largest capacity whose files, with those of the wide nodes, need at most this many bytes.
fn fitting(options: &Settings, bytes: u64) -> Option<u64> {
    let wide = wide(options).ok()?;
    let fits = |capacity| {
        let narrow = Geometry::by_capacity(capacity, options.load);
        narrow
            .is_ok_and(|narrow| Options { wide, ..Options::narrow(narrow) }.total_bytes() <= bytes)
    };
    if !fits(1) {
        return None;
    }
    // A node has at least 40 bytes, and sizes are rounded up: `beyond` never fits.
    let (mut within, mut beyond) = (1, bytes / 40 + 2);
    while beyond - within > 1 {
        let middle = within + (beyond - within) / 2;
        if fits(middle) {
            within = middle;
        } else {
            beyond = middle;
        }
    }
    Some(within)
}

/// The flag to set instead.
fn advice(options: &Settings, bytes: u64) -> String {
    // Three digits are enough for a number set by hand.
    let rounded = |capacity: u64| {
        let unit = 10_u64.pow(capacity.checked_ilog10().unwrap_or(0).saturating_sub(2));
        capacity / unit * unit
    };
    let instead = if options.geometry.is_some() { " instead of --geometry" } else { "" };
    match fitting(options, bytes - bytes / ADVICE_SLACK) {
        Some(capacity) => format!("set --capacity {} or less{instead}", rounded(capacity)),
        None => "no --capacity fits next to --wide-capacity and 8 MiB for updates in progress"
            .to_owned(),
    }
}

/// A size in messages, rounded down: never report more than is left.
pub(super) fn mib(bytes: u64) -> String {
    tenths_of_mib(bytes * 10 / (1 << 20))
}

fn mib_up(bytes: u64) -> String {
    tenths_of_mib(bytes.div_ceil(1 << 20) * 10)
}

fn tenths_of_mib(tenths: u64) -> String {
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests;
