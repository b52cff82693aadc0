//! How large a new cluster is made, and whether it fits.
//!
//! Its pages are memory that is never given back, so what is too large must be an error at the start and
//! not the end of the process later. A size that nobody asked for is made to fit; one that was asked for is
//! taken or refused, and never changed.

use crate::Settings;
use crate::memory_limit::{self, FileSystem, Limit};
use anyhow::{Context, bail};
use std::fmt;
use std::path::Path;
use tidegate_store::{Geometry, Options, STATE_WORDS_WIDE};

/// Counters that there is room for unless told otherwise, where that fits: 73 MiB.
const CAPACITY_DEFAULT: u64 = 1 << 20;
/// The default never shrinks below this, 0.3 MiB: then it is an error that says what is missing.
const CAPACITY_DEFAULT_MIN: u64 = 1 << 12;
/// What a process that serves takes besides, some 2 MiB without clients, and what clients bring.
const KEPT_FOR_PROCESS: u64 = 32 << 20;
/// The same for each worker process.
const KEPT_FOR_WORKER: u64 = 4 << 20;
/// What is in use differs a little from start to start, so what is said to fit is less than what is left
/// by one part in so many.
const ADVICE_SLACK: u64 = 50;

/// The memory that there is for a new cluster.
#[derive(Debug)]
pub(super) struct Room {
    /// The one with least left first.
    limits: Vec<Limit>,
    files: Option<FileSystem>,
    /// Bytes of the limits that are for other things than counters.
    kept: u64,
}

/// How many counters a new cluster is made for when nobody said it, and why.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DefaultSize {
    pub(super) capacity: u64,
    pub(super) reason: String,
}

impl Room {
    /// What there is for counters in `dir`, a directory of memory, in a process that starts so many others.
    pub(super) fn look(dir: &Path, workers: u32) -> Room {
        // A file system that says nothing still refuses what it has no room for.
        let files = memory_limit::file_system(dir).ok();
        Room::of(memory_limit::of_process(), files, workers)
    }

    fn of(limits: Vec<Limit>, files: Option<FileSystem>, workers: u32) -> Room {
        let kept = KEPT_FOR_PROCESS + KEPT_FOR_WORKER * u64::from(workers);
        Room { limits, files, kept }
    }

    /// Fails if files of so many bytes do not fit.
    pub(super) fn check(&self, bytes: u64, options: &Settings) -> anyhow::Result<()> {
        if let Some(limit) = self.limits.first()
            && bytes > limit.left().saturating_sub(self.kept)
        {
            let left = limit.left().saturating_sub(self.kept);
            bail!(
                "the counters would take {}, and {} are left for them: the memory limit {} is {}, of which \
                 {} are in use and {} are kept for the processes; {}, or raise the limit to {}",
                mib(bytes),
                mib(left),
                limit.file.display(),
                mib(limit.bytes),
                mib(limit.used),
                mib(self.kept),
                advice(options, left),
                mib_up(limit.used + self.kept + bytes + bytes / ADVICE_SLACK)
            );
        }
        if let Some(files) = &self.files
            && bytes > files.free
        {
            bail!(
                "the counters would take {}, and {} are free in the file system of {}; {}, or make room \
                 there",
                mib(bytes),
                mib(files.free),
                files.directory.display(),
                advice(options, files.free)
            );
        }
        Ok(())
    }

    /// The default size: smaller where memory is scarce, so that all that is in the same container has
    /// some, too.
    pub(super) fn default(&self, options: &Settings) -> DefaultSize {
        let mut bounds = Vec::new();
        for limit in &self.limits {
            bounds.push((
                limit.bytes / 3,
                format!("a third of the memory limit, {}", mib(limit.bytes)),
            ));
            let left = limit.left().saturating_sub(self.kept);
            bounds.push((left, format!("what is left of the memory limit, {}", mib(limit.bytes))));
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

/// The narrow nodes that are asked for; `capacity` where no number is.
pub(super) fn narrow(options: &Settings, capacity: u64) -> anyhow::Result<Geometry> {
    match options.geometry {
        Some(count) => count.geometry().context("--geometry, or files, key-nodes and chain"),
        None => Geometry::by_capacity(options.capacity.unwrap_or(capacity), options.load)
            .context("--capacity and --load"),
    }
}

/// The wide nodes that are asked for.
pub(super) fn wide(options: &Settings) -> anyhow::Result<Option<Geometry>> {
    match options.wide_capacity {
        0 => Ok(None),
        capacity => Geometry::wide_by_capacity(capacity, options.load, STATE_WORDS_WIDE)
            .context("--wide-capacity and --load")
            .map(Some),
    }
}

/// The largest capacity whose files, with the wide nodes that are asked for, take so many bytes at most.
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
    // A node has 40 bytes at least, and rounding is up: `beyond` never fits.
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

/// What to set instead.
fn advice(options: &Settings, bytes: u64) -> String {
    // Three digits are enough for a number to be set by hand.
    let rounded = |capacity: u64| {
        let unit = 10_u64.pow(capacity.checked_ilog10().unwrap_or(0).saturating_sub(2));
        capacity / unit * unit
    };
    let instead = if options.geometry.is_some() { " instead of --geometry" } else { "" };
    match fitting(options, bytes - bytes / ADVICE_SLACK) {
        Some(capacity) => format!("set --capacity {} or less{instead}", rounded(capacity)),
        None => {
            "no --capacity fits beside --wide-capacity and 8 MiB for updates under way".to_owned()
        }
    }
}

/// A size for people.
pub(super) struct Mib(u64);

pub(super) fn mib(bytes: u64) -> Mib {
    // A tenth of a MiB, rounded down: what is left is never said to be more.
    Mib(bytes * 10 / (1 << 20))
}

fn mib_up(bytes: u64) -> Mib {
    Mib(bytes.div_ceil(1 << 20) * 10)
}

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{} MiB", self.0 / 10, self.0 % 10)
    }
}

#[cfg(test)]
mod tests;
