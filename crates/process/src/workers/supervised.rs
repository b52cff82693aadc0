//! One worker as the supervisor sees it: starts its process, passes its sockets, checks that it responds, and
//! starts it again when it ends.

use super::backoff::Backoff;
use super::messages::{AssignedSocket, FromWorker, MESSAGE_BYTES_MAX, ToWorker};
use super::table::WorkerTable;
use crate::channel::{Channel, Incoming};
use crate::sockets::BoundAddress;
use anyhow::{Context, bail};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_data_dir::process_info::{self, ProcessState};
use tidegate_feeds::Feed;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

/// This program, even if its file was replaced.
const PROGRAM: &str = "/proc/self/exe";
/// The time for a worker to exit after its channel has closed.
const EXIT_MAX: Duration = Duration::from_secs(5);
/// The time for a worker to read its assignment.
const ASSIGNMENT_MAX: Duration = Duration::from_secs(5);
/// How often a serving worker is checked for messages, which it sends every second.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// A worker hangs after this many checks in a row without a message, unless the kernel says that it cannot
/// run. Checks are counted instead of time: if the whole machine stood still, the worker is not at fault.
const SILENT_CHECKS_MAX: u32 = 10;

/// The phase that all workers should be in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(crate) enum Phase {
    /// Workers get ready. One that ends is an error.
    Starting,
    Serving,
    Draining,
    Killing,
}

/// One worker, through all its processes.
pub(crate) struct SupervisedWorker {
    index: u32,
    /// Its sockets, kept here too, so that connections wait for the next process.
    sockets: Vec<(AssignedSocket, OwnedFd)>,
    /// Provides the limits in force.
    feed: Arc<dyn Feed>,
    table: Arc<WorkerTable>,
    /// The number of workers that have become ready.
    ready: watch::Sender<usize>,
}

impl SupervisedWorker {
    /// Worker `index` of `count`, which serves its share of `addresses`.
    pub(crate) fn new(
        (index, count): (u32, u32),
        addresses: &[&BoundAddress],
        (feed, table): (Arc<dyn Feed>, Arc<WorkerTable>),
        ready: watch::Sender<usize>,
    ) -> anyhow::Result<SupervisedWorker> {
        let mut sockets = Vec::new();
        for bound in addresses {
            for socket in bound.sockets_of_worker(index as usize, count as usize) {
                let assigned =
                    AssignedSocket { endpoint: bound.endpoint, address: bound.address.to_string() };
                sockets.push((assigned, socket.try_clone().context("no file descriptor is left")?));
            }
        }
        Ok(SupervisedWorker { index, sockets, feed, table, ready })
    }

    /// Keeps a process running until none is needed.
    pub(crate) async fn keep_running(
        mut self,
        mut phase: watch::Receiver<Phase>,
    ) -> anyhow::Result<()> {
        let mut backoff = Backoff::default();
        loop {
            let start = Instant::now();
            let ended = self.run_process(&mut phase).await;
            let ended =
                ended.map_or_else(|error| format!("{error:#}"), |status| status.to_string());
            let worker = self.index;
            match *phase.borrow_and_update() {
                Phase::Starting => bail!("worker {worker} ended before it was ready: {ended}"),
                Phase::Serving => {}
                Phase::Draining | Phase::Killing => return Ok(()),
            }
            let wait = backoff.wait_after(start.elapsed());
            tracing::error!(worker, ended, ?wait, "a worker ended; it is started again");
            self.table.count_restart();
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                // The only next phases are those that end it.
                _ = phase.changed() => return Ok(()),
            }
        }
    }

    async fn run_process(
        &mut self,
        phase: &mut watch::Receiver<Phase>,
    ) -> anyhow::Result<ExitStatus> {
        let reloads = self.table.reload_count();
        let mut copies = self.feed.copies();
        let (mut process, channel) = self.spawn()?;
        let limits = copies.borrow_and_update().clone();
        if let Err(error) = self.send_assignment(&channel, limits.as_deref()) {
            tracing::debug!(worker = self.index, %error, "a worker did not read its assignment");
            let _ = process.start_kill();
        }
        let (mut incoming, link) = channel.split()?;
        self.table.mark_started(self.index, link);
        let started = (reloads, copies);
        let result = self.exchange_messages((&mut incoming, &mut process), phase, started).await;
        self.table.mark_ended(self.index);
        if let Err(error) = result {
            tracing::error!(worker = self.index, %error, "a worker is killed");
            process.start_kill()?;
        }
        match tokio::time::timeout(EXIT_MAX, process.wait()).await {
            Ok(status) => Ok(status?),
            Err(_) => {
                process.start_kill()?;
                Ok(process.wait().await?)
            }
        }
    }

    fn spawn(&self) -> anyhow::Result<(Child, Channel)> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_write_timeout(Some(ASSIGNMENT_MAX))?;
        let process = Command::new(PROGRAM)
            .arg0("tidegate")
            .args(std::env::args_os().skip(1))
            .arg("--as-worker")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            // A Ctrl-C in a terminal must reach only the supervisor, which lets workers drain.
            .process_group(0)
            .spawn()
            .context("a worker cannot be started")?;
        let id = process.id();
        tracing::debug!(worker = self.index, id, "started a worker");
        Ok((process, Channel::new(ours, MESSAGE_BYTES_MAX)))
    }

    fn send_assignment(&self, channel: &Channel, limits: Option<&File>) -> anyhow::Result<()> {
        let limits = limits.context("there are no limits to pass to a worker")?;
        let start = ToWorker::Start { index: self.index, sockets: self.sockets.len() };
        channel.send_with(&start, limits.as_fd())?;
        for (assigned, socket) in &self.sockets {
            channel.send_with(assigned, socket.as_fd())?;
        }
        Ok(())
    }

    /// Handles the messages of a worker until it closes the channel, and sends it commands. The worker has the limits
    /// of `started`, and those of each new copy unless it follows the sources itself.
    async fn exchange_messages(
        &mut self,
        (incoming, process): (&mut Incoming, &mut Child),
        phase: &mut watch::Receiver<Phase>,
        started: (u64, watch::Receiver<Option<Arc<File>>>),
    ) -> anyhow::Result<()> {
        let (reloads, mut copies) = started;
        let (needs_copies, mut is_copy_due) = (!self.feed.is_followed_by_each(), false);
        let mut is_ready = false;
        let mut is_serving = false;
        let mut silent_checks = 0;
        let mut is_blocked = false;
        let mut checks = tokio::time::interval(CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let mut was_heard = false;
            tokio::select! {
                // First, so that a message that has arrived counts before a check does.
                biased;
                message = incoming.receive() => match message.context("its message is not valid")? {
                    Some(FromWorker::Alive) => (silent_checks, was_heard) = (0, true),
                    Some(FromWorker::Ready) => {
                        is_ready = true;
                        self.ready.send_modify(|ready| *ready += 1);
                    }
                    Some(FromWorker::Metrics { round, snapshot }) => {
                        (silent_checks, was_heard) = (0, true);
                        self.table.store_report(self.index, round, snapshot);
                    }
                    Some(FromWorker::Brief { round, snapshot }) => {
                        (silent_checks, was_heard) = (0, true);
                        self.table.store_brief(self.index, round, snapshot);
                    }
                    Some(FromWorker::Rules { round, used }) => {
                        (silent_checks, was_heard) = (0, true);
                        self.table.store_rules(self.index, round, used);
                    }
                    Some(FromWorker::Top { round, summary }) => {
                        (silent_checks, was_heard) = (0, true);
                        self.table.store_top(self.index, round, summary);
                    }
                    Some(FromWorker::Decisions { round, decisions }) => {
                        (silent_checks, was_heard) = (0, true);
                        self.table.store_decisions(self.index, round, decisions);
                    }
                    None => return Ok(()),
                },
                changed = phase.changed() => if changed.is_err() {
                    process.start_kill()?;
                    return Ok(());
                },
                changed = copies.changed(), if needs_copies && is_serving && !is_copy_due => {
                    // The feed outlives its workers.
                    is_copy_due = changed.is_ok();
                }
                _ = checks.tick(), if is_serving => {
                    silent_checks += 1;
                    if silent_checks > SILENT_CHECKS_MAX {
                        self.judge_silence(process, silent_checks, &mut is_blocked)?;
                        silent_checks = 0;
                    }
                }
            }
            if is_copy_due {
                let copy = copies.borrow_and_update().clone();
                is_copy_due = copy.is_some_and(|copy| !self.table.send_limits(self.index, &copy));
            }
            if is_blocked && was_heard {
                is_blocked = false;
                tracing::info!(worker = self.index, "a blocked worker runs again");
            }
            match *phase.borrow_and_update() {
                Phase::Starting => {}
                Phase::Serving if is_ready && !is_serving => {
                    is_serving = true;
                    self.table.send(self.index, &ToWorker::Serve);
                    self.table.mark_serving(self.index);
                    if self.table.reload_count() != reloads {
                        self.table.send(self.index, &ToWorker::Reload);
                    }
                }
                Phase::Serving => {}
                Phase::Draining => {
                    // No next process will accept connections that wait here.
                    self.sockets.clear();
                    self.table.send(self.index, &ToWorker::Drain);
                }
                Phase::Killing => process.start_kill()?,
            }
        }
    }

    /// Fails if a worker that has been silent for so long hangs; logs once if it is blocked.
    fn judge_silence(
        &self,
        process: &Child,
        checks: u32,
        is_blocked: &mut bool,
    ) -> anyhow::Result<()> {
        let state = process.id().and_then(|pid| process_info::read(pid.into()));
        match cause_of_silence(state.map(|info| info.state)) {
            Silence::Hung => bail!("it hangs: no message for {checks} s"),
            Silence::Blocked(state) => {
                if !std::mem::replace(is_blocked, true) {
                    let (worker, state) = (self.index, state.name());
                    tracing::warn!(worker, state, "a worker is blocked; it is not killed");
                }
                Ok(())
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Silence {
    /// It could run and does not respond: a new one is better.
    Hung,
    /// Something outside blocks it, and may let it continue. Its work is not lost until then, and a new
    /// process would block on the same.
    Blocked(ProcessState),
}

/// Judges by the state of the process, none if it is unknown.
fn cause_of_silence(state: Option<ProcessState>) -> Silence {
    match state {
        Some(ProcessState::Running) | None => Silence::Hung,
        Some(state) => Silence::Blocked(state),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_silent_worker_that_can_run_is_hung() {
        assert_eq!(cause_of_silence(Some(ProcessState::Running)), Silence::Hung);
        assert_eq!(cause_of_silence(None), Silence::Hung);
        for state in [
            ProcessState::Stopped,
            ProcessState::Traced,
            ProcessState::Frozen,
            ProcessState::DiskSleep,
        ] {
            assert_eq!(cause_of_silence(Some(state)), Silence::Blocked(state));
        }
    }
}
