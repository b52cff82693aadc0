//! The figures of a process that every client library of Prometheus has, under their usual names, and the program's
//! version. Reads /proc, and leaves out what is not there.

use crate::snapshot::{Family, Kind, Number, Samples, labels};
use rustix::process::{Resource, getrlimit};
use std::fs;

/// The version, and the commit if the build named one.
pub(crate) fn build_info() -> Family {
    let commit = option_env!("TIDEGATE_COMMIT").unwrap_or_default();
    let labels = labels([("version", env!("CARGO_PKG_VERSION")), ("commit", commit)]);
    let samples = Samples::from([(labels, Number::Whole(1))]);
    Family::new("build_info", "The version of the program", Kind::LowestGauge, samples)
}

/// Of this process. Over several, they add up, except for the start and the limit of open files.
pub(crate) fn families() -> Vec<Family> {
    let mut families = Vec::new();
    if let Some(stat) = Stat::read() {
        families.extend(stat.families());
    }
    let mut gauge = |name, help, kind, value| {
        families.push(Family::single(name, help, kind, Number::Whole(value)));
    };
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        // Less the one that reads the directory.
        let open = (open.count() as u64).saturating_sub(1);
        gauge("process_open_fds", "Open file descriptors", Kind::Gauge, open);
    }
    if let Some(most) = getrlimit(Resource::Nofile).current {
        let help = "The most file descriptors that may be open";
        gauge("process_max_fds", help, Kind::LowestGauge, most);
    }
    families
}

/// Fields of /proc/self/stat, by their numbers in proc(5).
struct Stat(Vec<u64>);

impl Stat {
    fn read() -> Option<Stat> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // The second field is a name in parentheses, which may have blanks.
        let (_, fields) = stat.rsplit_once(") ")?;
        Some(Stat(fields.split(' ').map(|field| field.parse().unwrap_or(0)).collect()))
    }

    fn field(&self, number: usize) -> u64 {
        self.0.get(number - 3).copied().unwrap_or(0)
    }

    fn families(&self) -> Vec<Family> {
        let page = rustix::param::page_size() as u64;
        let ticks = rustix::param::clock_ticks_per_second().max(1) as f64;
        let cpu = Number::Real((self.field(14) + self.field(15)) as f64 / ticks);
        let (resident, all) = (Number::Whole(self.field(24) * page), Number::Whole(self.field(23)));
        let cpu_help = "Time of processors, of the user and of the system";
        let resident_help = "Memory in use, with the counters as far as the process has used them";
        let mut families = vec![
            Family::single("process_cpu_seconds", cpu_help, Kind::Counter, cpu),
            Family::single("process_resident_memory_bytes", resident_help, Kind::Gauge, resident),
            Family::single("process_virtual_memory_bytes", "Address space", Kind::Gauge, all),
        ];
        if let Some(booted) = booted_secs() {
            let start = Number::Real(booted as f64 + self.field(22) as f64 / ticks);
            let help = "When the process started, in seconds since 1970";
            let kind = Kind::LowestGauge;
            families.push(Family::single("process_start_time_seconds", help, kind, start));
        }
        families
    }
}

/// When the machine booted, in seconds since 1970.
fn booted_secs() -> Option<u64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Snapshot;
    use std::time::{SystemTime, UNIX_EPOCH};

    #[test]
    fn the_figures_are_those_of_this_process() {
        let held: Vec<fs::File> =
            (0..50).map(|_| fs::File::open("/proc/self/stat").unwrap()).collect();
        let text = Snapshot { families: families() }.text();
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
            line.unwrap_or_else(|| panic!("{name} is missing:\n{text}")).parse().unwrap()
        };
        assert!(value("process_open_fds") >= held.len() as f64);
        assert!(value("process_max_fds") >= value("process_open_fds"));
        assert!(value("process_virtual_memory_bytes") > value("process_resident_memory_bytes"));
        assert!(value("process_resident_memory_bytes") > 100_000.0);
        assert!(value("process_cpu_seconds_total") >= 0.0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let start = value("process_start_time_seconds");
        assert!(start <= now + 2.0 && start > 1_700_000_000.0, "{start}");
    }
}
