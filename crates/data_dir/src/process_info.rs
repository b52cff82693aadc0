//! The command and the state of another process, from `/proc`.
//!
//! A process of another container is read wrongly or not at all: its id may belong to another process here.

use std::fs;
use std::path::Path;

/// Whether a process can continue by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessState {
    /// Runs, or waits for something to do.
    Running,
    /// Stopped by SIGSTOP or from a terminal.
    Stopped,
    /// Stopped by a debugger.
    Traced,
    /// Its cgroup is frozen.
    Frozen,
    /// Waits for a disk, uninterruptibly.
    DiskSleep,
}

impl ProcessState {
    pub fn name(self) -> &'static str {
        match self {
            ProcessState::Running => "running",
            ProcessState::Stopped => "stopped",
            ProcessState::Traced => "traced",
            ProcessState::Frozen => "frozen",
            ProcessState::DiskSleep => "disk sleep",
        }
    }

    /// The state of one thread, from `/proc/PID/stat`; none if it has ended.
    fn of_stat(stat: &str) -> Option<ProcessState> {
        // The state follows the command, which is in parentheses and may contain more of them.
        let (_, rest) = stat.rsplit_once(") ")?;
        Some(match rest.chars().next()? {
            'T' => ProcessState::Stopped,
            't' => ProcessState::Traced,
            'D' => ProcessState::DiskSleep,
            'Z' | 'X' => return None,
            _ => ProcessState::Running,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessInfo {
    pub command: String,
    pub state: ProcessState,
}

/// Reads a process; none if no process has this id, or it has ended.
pub fn read(pid: u64) -> Option<ProcessInfo> {
    read_in(Path::new("/proc"), Path::new("/sys/fs/cgroup"), pid)
}

fn read_in(proc: &Path, cgroups: &Path, pid: u64) -> Option<ProcessInfo> {
    let dir = proc.join(pid.to_string());
    let own = ProcessState::of_stat(&fs::read_to_string(dir.join("stat")).ok()?)?;
    let command = fs::read_to_string(dir.join("comm")).unwrap_or_default();
    let threads = fs::read_dir(dir.join("task")).into_iter().flatten().flatten();
    let states: Vec<ProcessState> = threads
        .filter_map(|thread| {
            ProcessState::of_stat(&fs::read_to_string(thread.path().join("stat")).ok()?)
        })
        .chain([own])
        .collect();
    // Any of its threads may hold the lock.
    let found = |state: &ProcessState| states.contains(state);
    let state = [ProcessState::Traced, ProcessState::Stopped].into_iter().find(found);
    let frozen = || is_frozen(&dir, cgroups).then_some(ProcessState::Frozen);
    let asleep = || Some(ProcessState::DiskSleep).filter(found);
    let state = state.or_else(frozen).or_else(asleep).unwrap_or(ProcessState::Running);
    Some(ProcessInfo { command: command.trim_end().to_owned(), state })
}

/// Whether the cgroup (version 2) of a process is frozen. `/proc` shows its threads as sleeping.
fn is_frozen(dir: &Path, cgroups: &Path) -> bool {
    let memberships = fs::read_to_string(dir.join("cgroup")).unwrap_or_default();
    let Some(cgroup) = memberships.lines().find_map(|line| line.strip_prefix("0::/")) else {
        return false;
    };
    let events = fs::read_to_string(cgroups.join(cgroup).join("cgroup.events"));
    events.is_ok_and(|events| events.lines().any(|line| line == "frozen 1"))
}

/// A process for messages.
pub fn describe(pid: u64, info: Option<&ProcessInfo>) -> String {
    match info {
        Some(ProcessInfo { command, state }) => {
            format!("process {pid} ({command}, {})", state.name())
        }
        None => format!("process {pid} (not visible from here)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(threads: &[&str], events: &str, expected: Option<ProcessState>) {
        let dir = tempfile::TempDir::new().unwrap();
        let (proc, cgroups) = (dir.path().join("proc"), dir.path().join("cgroup"));
        let process = proc.join("7");
        fs::create_dir_all(process.join("task")).unwrap();
        fs::create_dir_all(cgroups.join("a/b")).unwrap();
        fs::write(cgroups.join("a/b/cgroup.events"), events).unwrap();
        fs::write(process.join("cgroup"), "1:name=systemd:/x\n0::/a/b\n").unwrap();
        fs::write(process.join("comm"), "a ) T (b\n").unwrap();
        for (index, state) in threads.iter().enumerate() {
            let stat = format!("7 (a ) T (b) {state} 1 7 7 0");
            if index == 0 {
                fs::write(process.join("stat"), &stat).unwrap();
            }
            fs::create_dir_all(process.join(format!("task/{index}"))).unwrap();
            fs::write(process.join(format!("task/{index}/stat")), &stat).unwrap();
        }
        let expected = expected.map(|state| ProcessInfo { command: "a ) T (b".to_owned(), state });
        assert_eq!(read_in(&proc, &cgroups, 7), expected, "{threads:?} {events:?}");
    }

    #[test]
    fn the_state_of_a_process_is_that_of_the_thread_that_cannot_go_on() {
        check(&["S"], "populated 1\nfrozen 0\n", Some(ProcessState::Running));
        check(&["R", "S"], "", Some(ProcessState::Running));
        check(&["T", "T"], "", Some(ProcessState::Stopped));
        check(&["S", "t"], "", Some(ProcessState::Traced));
        check(&["S", "D"], "", Some(ProcessState::DiskSleep));
        check(&["S", "S"], "populated 1\nfrozen 1\n", Some(ProcessState::Frozen));
        check(&["D"], "frozen 1\n", Some(ProcessState::Frozen));
        check(&["Z"], "", None);
    }

    #[test]
    fn a_process_is_described_by_id_command_and_state() {
        // The state depends on the moment: any thread of this process may wait for a disk.
        let own = read(std::process::id().into()).unwrap();
        let known = ProcessInfo { state: ProcessState::Running, ..own };
        assert_eq!(describe(7, Some(&known)), format!("process 7 ({}, running)", known.command));
        assert_eq!(read(u64::MAX), None);
        assert_eq!(describe(8, None), "process 8 (not visible from here)");
    }
}
