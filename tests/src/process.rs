//! A child process that logs to a file and ends with its handle.

use crate::{memory, wait};
use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::process::{Child, Command};

/// For how long each thread of a process and of its children was ready until some moment, and had no processor.
#[derive(Debug)]
pub struct Waits(BTreeMap<u32, Duration>);

impl Waits {
    /// The longest of these times of one thread, since `before`.
    #[must_use]
    pub fn longest_since(&self, before: &Waits) -> Duration {
        self.since(before).max().unwrap_or_default()
    }

    /// The sum of these times of all threads, since `before`.
    #[must_use]
    pub fn sum_since(&self, before: &Waits) -> Duration {
        self.since(before).sum()
    }

    fn since(&self, before: &Waits) -> impl Iterator<Item = Duration> {
        self.0.iter().map(|(thread, waited)| {
            waited.saturating_sub(before.0.get(thread).copied().unwrap_or_default())
        })
    }
}

/// A running child process.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

/// What a thread has had of the processors so far.
struct Scheduled {
    ran: Duration,
    waited: Duration,
}

impl Process {
    /// Starts `command` with both outputs in `<dir>/<name>.log`.
    ///
    /// # Errors
    /// When the log cannot be made or the program not started.
    pub fn start(mut command: Command, name: &str, dir: &Path) -> anyhow::Result<Process> {
        Process::spawn(command.stdin(Stdio::null()), name, dir)
    }

    fn spawn(command: &mut Command, name: &str, dir: &Path) -> anyhow::Result<Process> {
        let log = dir.join(format!("{name}.log"));
        let file = std::fs::File::create(&log)
            .with_context(|| format!("cannot make {}", log.display()))?;
        let child = command
            .env("TIDEGATE_MEMORY_DIR", memory::dir())
            .stdout(file.try_clone()?)
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Process { name: name.to_owned(), child, log })
    }

    /// As [`Process::start`], for one whose handle is in a static variable, which is never dropped: it ends with this
    /// program, and `dir` goes with it. A shell waits for that, and the handle is that of the shell.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn start_for_program(
        command: Command,
        name: &str,
        dir: &Path,
    ) -> anyhow::Result<Process> {
        // The end of this program closes the pipe.
        const UNTIL_CLOSED: &str = "\"$@\" < /dev/null & read -r _; kill -KILL $!; rm -rf \"$0\"";
        let command = command.into_std();
        let mut shell = Command::new("sh");
        shell.args(["-c", UNTIL_CLOSED]).arg(dir).arg(command.get_program());
        shell.args(command.get_args());
        Process::spawn(shell.stdin(Stdio::piped()), name, dir)
    }

    /// The process id.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn pid(&self) -> anyhow::Result<u32> {
        self.child.id().with_context(|| format!("{} has ended", self.name))
    }

    /// Everything that it has written so far.
    #[must_use]
    pub fn log(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Its exit status, none while it runs.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Fails with its log when it has ended.
    ///
    /// # Errors
    /// When it has ended.
    pub fn check_running(&mut self) -> anyhow::Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => {
                anyhow::bail!("{} ended ({status}); its log:\n{}", self.name, self.log())
            }
        }
    }

    /// Waits for its end, which takes at most as long as a drain.
    ///
    /// # Errors
    /// When it does not end; the error has its log.
    pub async fn wait(&mut self) -> anyhow::Result<ExitStatus> {
        let what = format!("{} to end", self.name);
        let ended = wait::within(&what, wait::DRAIN, self.child.wait()).await;
        Ok(ended.with_context(|| format!("its log:\n{}", self.log()))??)
    }

    /// Ends it at once (SIGKILL), and waits until it is gone.
    ///
    /// # Errors
    /// When it cannot be signalled.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        Ok(wait::within(&format!("{} to be gone", self.name), wait::SOON, self.child.kill())
            .await??)
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// When it has ended or cannot be signalled.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.pid()?).ok().and_then(Pid::from_raw);
        kill_process(pid.context("no such process id")?, signal)?;
        Ok(())
    }

    /// For how long its threads and those of its children had no processor so far.
    ///
    /// # Errors
    /// When it has ended.
    pub fn waits(&self) -> anyhow::Result<Waits> {
        let mut waits = BTreeMap::new();
        for pid in std::iter::once(self.pid()?).chain(self.children()?) {
            // A child may end meanwhile.
            let threads = scheduled(pid).unwrap_or_default().into_iter();
            waits.extend(threads.map(|(thread, scheduled)| (thread, scheduled.waited)));
        }
        Ok(Waits(waits))
    }

    /// How much CPU time the threads that it has now have used so far, by a clock that is finer than that of
    /// [`Process::cpu_time`].
    ///
    /// # Errors
    /// When it has ended.
    pub fn cpu_time_of_threads(&self) -> anyhow::Result<Duration> {
        Ok(scheduled(self.pid()?)?.into_values().map(|thread| thread.ran).sum())
    }

    /// Freezes it (SIGSTOP), and waits until each of its threads stands still; thaw it with
    /// SIGCONT.
    ///
    /// # Errors
    /// When it has ended or cannot be signalled.
    pub async fn freeze(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)?;
        let tasks = format!("/proc/{}/task", self.pid()?);
        wait::until("every thread to stand still", wait::SOON, async || {
            let stopped = |task: std::fs::DirEntry| {
                let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                // The state follows the name, which is in parentheses.
                stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
            };
            std::fs::read_dir(&tasks).ok()?.flatten().all(stopped).then_some(())
        })
        .await
    }

    /// Lets it go on after [`Process::freeze`] (SIGCONT).
    ///
    /// # Errors
    /// When it has ended or cannot be signalled.
    pub fn thaw(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    /// How much memory it has in RAM, in bytes (Linux only).
    ///
    /// # Errors
    /// When it has ended or the system does not say.
    pub fn resident_bytes(&self) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()?))?;
        let kilobytes = status.lines().find_map(|line| {
            line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok()
        });
        Ok(kilobytes.context("no VmRSS in /proc/*/status")? * 1024)
    }

    /// How much CPU time, of user and system, it has used so far (Linux only).
    ///
    /// # Errors
    /// When it has ended or the system does not say.
    pub fn cpu_time(&self) -> anyhow::Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()?))?;
        // The fields follow the name, which is in parentheses: utime and stime are the 12th and 13th.
        let (_, fields) = stat.rsplit_once(") ").context("no name in /proc/*/stat")?;
        let ticks: u64 =
            fields.split(' ').skip(11).take(2).map(str::parse::<u64>).sum::<Result<_, _>>()?;
        let per_second = rustix::param::clock_ticks_per_second();
        Ok(Duration::from_secs_f64(ticks as f64 / per_second as f64))
    }

    /// The processes that it has started and that live (Linux only), lowest first.
    ///
    /// # Errors
    /// When it has ended or the system does not say.
    pub fn children(&self) -> anyhow::Result<Vec<u32>> {
        let parent = self.pid()?;
        let mut children = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            if fields(pid).is_some_and(|(state, of)| state != 'Z' && of == parent) {
                children.push(pid);
            }
        }
        children.sort_unstable();
        Ok(children)
    }

    /// Asks it to stop (SIGTERM), and waits until it has.
    ///
    /// # Errors
    /// When it cannot be signalled.
    pub async fn stop(&mut self) -> anyhow::Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.wait().await
    }
}

/// Whether the process of this id lives (Linux only). One that nobody has waited for yet does not.
#[must_use]
pub fn lives(pid: u32) -> bool {
    fields(pid).is_some_and(|(state, _)| state != 'Z')
}

/// Sends a signal to a process that some other one has started.
///
/// # Errors
/// When it has ended or cannot be signalled.
pub fn signal(pid: u32, signal: Signal) -> anyhow::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("no such process id")?;
    Ok(kill_process(pid, signal)?)
}

/// The threads of a process by their ids.
fn scheduled(pid: u32) -> anyhow::Result<BTreeMap<u32, Scheduled>> {
    let mut threads = BTreeMap::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread = thread?;
        // Threads may end meanwhile.
        let Ok(text) = std::fs::read_to_string(thread.path().join("schedstat")) else { continue };
        // Nanoseconds on a processor, nanoseconds of waiting for one, and the number of its turns.
        let mut fields = text.split_whitespace();
        let mut time = || {
            let nanos = fields.next().context("no schedstat")?.parse()?;
            anyhow::Ok(Duration::from_nanos(nanos))
        };
        let id = thread.file_name().to_str().and_then(|id| id.parse().ok());
        let scheduled = Scheduled { ran: time()?, waited: time()? };
        threads.insert(id.context("a thread without an id")?, scheduled);
    }
    Ok(threads)
}

/// The state of a process, and the one that it is a child of.
fn fields(pid: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // They follow the name, which is in parentheses.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}
