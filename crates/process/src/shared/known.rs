//! What a sidecar knows of its shared counters, in its data directory: a process that starts while no server answers
//! goes on with it.
//!
//! Owns the file [`FILE`], and [`FILE_OF_SECONDS`] beside it: the seed of the keys, how far the time of the servers is
//! ahead of the machine's monotonic clock, and how many sidecars share the counters. The clock is comparable as long as
//! the machine is not restarted; after that the time is unknown. Refuses a file of other servers or of another prefix.
//! Never fails: without a readable file a process starts as one that never reached a server.

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tidegate_core::Timestamp;
use tidegate_remote::{Known, Settings};

const FILE: &str = "shared-counters.json";
/// The same of the servers for limits per second.
const FILE_OF_SECONDS: &str = "shared-counters-per-second.json";
/// Two clocks of one machine and a server differ by at most one part in so many.
const DRIFT: u64 = 1_000;
/// For how long a number of sidecars is true while the servers answer, in nanoseconds: twenty minutes.
const LATELY: u64 = 1_200_000_000_000;

/// The file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Copy {
    servers: String,
    /// In hexadecimal digits, as in the servers.
    seed: String,
    /// The start of the machine in which `monotonic` counts.
    boot: String,
    /// In nanoseconds, at one moment.
    monotonic: u64,
    server: u64,
    /// The number of sidecars, and when that was, by the servers.
    sidecars: Option<(u32, u64)>,
}

/// What the file says to a process that starts now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Remembered {
    pub(super) known: Known,
    /// The number of sidecars when the servers were last heard of, and when that was.
    pub(super) sidecars: Option<(u32, Timestamp)>,
}

/// Where the file of some servers is.
#[derive(Debug, Clone)]
pub(super) struct Place {
    path: PathBuf,
    servers: String,
}

impl Place {
    pub(super) fn new(dir: &Path, settings: &Settings) -> Place {
        Place::named(dir, FILE, settings)
    }

    /// Of the servers for limits per second.
    pub(super) fn of_seconds(dir: &Path, settings: &Settings) -> Place {
        Place::named(dir, FILE_OF_SECONDS, settings)
    }

    fn named(dir: &Path, file: &str, settings: &Settings) -> Place {
        // Without credentials: Debug masks them, and they may change.
        let servers = match &settings.servers {
            tidegate_remote::Servers::Sentinel { sentinels, primary, .. } => {
                format!("{sentinels:?} {primary}")
            }
            servers => format!("{servers:?}"),
        };
        let servers = format!("{servers} {} {}", settings.database, settings.prefix);
        Place { path: dir.join(file), servers }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn read(&self) -> Option<Remembered> {
        self.copy()?.remembered(&boot(), monotonic())
    }

    /// Replaces the file. The number of sidecars stays if it is not known here.
    pub(super) fn write(&self, known: Known, sidecars: Option<u32>) -> io::Result<()> {
        let Some(now) = known.now else { return Ok(()) };
        let server = now.as_nanos();
        let before = || self.copy().and_then(|copy| copy.sidecars);
        let copy = Copy {
            servers: self.servers.clone(),
            seed: format!("{:016x}", known.seed),
            boot: boot(),
            monotonic: monotonic(),
            server,
            sidecars: sidecars.map(|sidecars| (sidecars, server)).or_else(before),
        };
        // Processes of one sidecar write it at the same time.
        let new = self.path.with_extension(format!("json.{}", std::process::id()));
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            // A reader of the seed can aim keys at each other.
            .mode(0o600)
            .open(&new)?;
        file.write_all(serde_json::to_string(&copy)?.as_bytes())?;
        fs::rename(&new, &self.path)
    }

    fn copy(&self) -> Option<Copy> {
        let text = fs::read_to_string(&self.path).ok()?;
        let copy: Copy = serde_json::from_str(&text).ok()?;
        (copy.servers == self.servers).then_some(copy)
    }
}

impl Copy {
    fn remembered(&self, boot: &str, monotonic: u64) -> Option<Remembered> {
        let seed = u64::from_str_radix(&self.seed, 16).ok()?;
        let is_comparable = !boot.is_empty() && boot == self.boot;
        let now = monotonic.checked_sub(self.monotonic).filter(|_| is_comparable).map(|passed| {
            Timestamp::from_nanos(self.server.saturating_add(passed - passed / DRIFT))
        });
        // As of the last answer: since then nothing newer could be learned.
        let lately = self.sidecars.filter(|(_, at)| self.server.saturating_sub(*at) <= LATELY);
        let sidecars = lately.map(|(sidecars, _)| (sidecars, Timestamp::from_nanos(self.server)));
        Some(Remembered { known: Known { seed, now }, sidecars })
    }
}

/// The start of this machine, and the namespace of its clocks. Empty if it is unknown.
fn boot() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = fs::read_link("/proc/self/ns/time").unwrap_or_default();
    match boot.trim() {
        "" => String::new(),
        boot => format!("{boot} {}", namespace.display()),
    }
}

/// The monotonic clock, which all processes of a machine share.
fn monotonic() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let part = |part: i64| u64::try_from(part).unwrap_or(0);
    part(time.tv_sec).saturating_mul(1_000_000_000).saturating_add(part(time.tv_nsec))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn place(dir: &Path, address: &str) -> Place {
        Place::new(dir, &Settings::at(address).unwrap())
    }

    #[test]
    fn a_copy_is_of_its_servers_and_has_a_time_that_they_have_reached() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path(), "redis:1");
        assert!(place.read().is_none());
        let now = Timestamp::from_secs(1_000);
        place.write(Known { seed: 7, now: Some(now) }, Some(3)).unwrap();
        // A write without a number of sidecars keeps the last one.
        place.write(Known { seed: 7, now: Some(now) }, None).unwrap();
        let read = place.read().unwrap();
        assert_eq!((read.known.seed, read.sidecars), (7, Some((3, now))));
        let time = read.known.now.unwrap();
        assert!(time >= now && time < Timestamp::from_secs(1_060), "{time:?}");

        assert!(self::place(dir.path(), "redis:2").read().is_none());
        fs::write(place.path(), "{").unwrap();
        assert!(place.read().is_none());
    }

    #[test]
    fn the_time_of_another_start_of_the_machine_is_unknown() {
        let copy = Copy {
            servers: String::new(),
            seed: "00000000000000ff".to_owned(),
            boot: "a".to_owned(),
            monotonic: 5 * SECOND,
            server: 1_000 * SECOND,
            sidecars: None,
        };
        for (boot, monotonic, expected) in [
            ("a", 5, Some(1_000 * SECOND)),
            ("a", 15, Some(1_010 * SECOND - SECOND / 100)),
            ("a", 4, None),
            ("b", 15, None),
            ("", 15, None),
        ] {
            let remembered = copy.remembered(boot, monotonic * SECOND).unwrap();
            let now = remembered.known.now.map(Timestamp::as_nanos);
            assert_eq!((remembered.known.seed, now), (255, expected), "{boot:?} at {monotonic}");
        }
        assert!(Copy { seed: "x".to_owned(), ..copy }.remembered("a", 0).is_none());
    }

    /// An outage may be long: what counts is when the servers were last heard of.
    #[test]
    fn a_number_of_sidecars_is_as_old_as_it_was_when_the_servers_went_away() {
        let copy = |at: u64| Copy {
            servers: String::new(),
            seed: "1".to_owned(),
            boot: "a".to_owned(),
            monotonic: 0,
            server: 10_000 * SECOND,
            sidecars: Some((4, at * SECOND)),
        };
        for (at, expected) in [(10_000, Some(4)), (8_800, Some(4)), (8_799, None)] {
            let remembered = copy(at).remembered("a", 7_200 * SECOND).unwrap();
            let expected = expected.map(|sidecars| (sidecars, Timestamp::from_secs(10_000)));
            assert_eq!(remembered.sidecars, expected, "{at}");
        }
    }
}
