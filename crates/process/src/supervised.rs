//! One worker of a supervisor: the process is started, handed its sockets, listened to, and started
//! again when it ends.

use crate::backoff::Backoff;
use crate::channel::{Channel, Incoming};
use crate::sockets::BoundAddress;
use crate::worker::{FromWorker, Given, MESSAGE_BYTES_MAX, ToWorker};
use crate::worker_metrics::WorkerMetrics;
use anyhow::{Context, bail};
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

/// This very program, also when another file has its name by now.
const PROGRAM: &str = "/proc/self/exe";
/// How long a worker that has gone silent may take to end.
const END_MAX: Duration = Duration::from_secs(5);
/// How long a worker may take to listen to what it should serve.
const BRIEFING_MAX: Duration = Duration::from_secs(5);
/// How often it is looked whether a worker that serves has said anything, which it does every second.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// So many looks in a row without a word, and it is taken to hang, unless the system says that it cannot go on.
/// They are counted, not timed: a system that stood still as a whole is no fault of the worker.
const SILENT_LOOKS_MAX: u32 = 10;

/// What all workers should be doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(crate) enum Phase {
    /// Getting ready. A worker that ends is an error.
    Starting,
    Serving,
    Draining,
    /// Ending at once.
    Killing,
}

/// The place of one worker, whichever process has it.
pub(crate) struct SupervisedWorker {
    index: u32,
    /// What it serves. Kept here too, so that connections wait for the next process.
    sockets: Vec<(Given, OwnedFd)>,
    /// Knows the limits in force.
    feed: Arc<dyn Feed>,
    metrics: Arc<WorkerMetrics>,
    /// How many workers have become ready.
    ready: watch::Sender<usize>,
}

impl SupervisedWorker {
    /// That of worker `index` of `count`, which serves its share of `places`.
    pub(crate) fn new(
        (index, count): (u32, u32),
        places: &[&BoundAddress],
        (feed, metrics): (Arc<dyn Feed>, Arc<WorkerMetrics>),
        ready: watch::Sender<usize>,
    ) -> anyhow::Result<SupervisedWorker> {
        let mut sockets = Vec::new();
        for place in places {
            for socket in place.of_worker(index as usize, count as usize) {
                let given = Given { door: place.door, address: place.address.to_string() };
                sockets.push((given, socket.try_clone().context("no file descriptor is left")?));
            }
        }
        Ok(SupervisedWorker { index, sockets, feed, metrics, ready })
    }

    /// Keeps a process at it until there is no more need of one.
    pub(crate) async fn keep(mut self, mut phase: watch::Receiver<Phase>) -> anyhow::Result<()> {
        let mut backoff = Backoff::default();
        loop {
            let start = Instant::now();
            let ended = self.live(&mut phase).await;
            let ended =
                ended.map_or_else(|error| format!("{error:#}"), |status| status.to_string());
            let worker = self.index;
            match *phase.borrow_and_update() {
                Phase::Starting => bail!("worker {worker} ended before it was ready: {ended}"),
                Phase::Serving => {}
                Phase::Draining | Phase::Killing => return Ok(()),
            }
            let wait = backoff.after(start.elapsed());
            tracing::error!(worker, ended, ?wait, "a worker ended; it is started again");
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                // It can only be told to end.
                _ = phase.changed() => return Ok(()),
            }
        }
    }

    /// One process, from its start to its end.
    async fn live(&mut self, phase: &mut watch::Receiver<Phase>) -> anyhow::Result<ExitStatus> {
        let reloads = self.metrics.reloads();
        let (mut process, channel) = self.start()?;
        if let Err(error) = self.brief(&channel) {
            tracing::debug!(worker = self.index, %error, "a worker did not listen");
            let _ = process.start_kill();
        }
        let (mut incoming, link) = channel.split()?;
        self.metrics.started(self.index, link);
        let listened = self.listen((&mut incoming, &mut process), phase, reloads).await;
        self.metrics.ended(self.index);
        if let Err(error) = listened {
            tracing::error!(worker = self.index, %error, "a worker is killed");
            process.start_kill()?;
        }
        match tokio::time::timeout(END_MAX, process.wait()).await {
            Ok(status) => Ok(status?),
            Err(_) => {
                process.start_kill()?;
                Ok(process.wait().await?)
            }
        }
    }

    fn start(&self) -> anyhow::Result<(Child, Channel)> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_write_timeout(Some(BRIEFING_MAX))?;
        let process = Command::new(PROGRAM)
            .arg0("tidegate")
            .args(std::env::args_os().skip(1))
            .arg("--as-worker")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            // A Ctrl-C in a terminal is for the supervisor, which lets workers drain.
            .process_group(0)
            .spawn()
            .context("a worker cannot be started")?;
        let id = process.id();
        tracing::debug!(worker = self.index, id, "started a worker");
        Ok((process, Channel::new(ours, MESSAGE_BYTES_MAX)))
    }

    fn brief(&self, channel: &Channel) -> anyhow::Result<()> {
        let limits = self.feed.copy().context("there are no limits to hand out")?;
        let start = ToWorker::Start { index: self.index, sockets: self.sockets.len() };
        channel.send_with(&start, limits.as_fd())?;
        for (given, socket) in &self.sockets {
            channel.send_with(given, socket.as_fd())?;
        }
        Ok(())
    }

    /// Hears what a worker says until it says no more, and tells it what to do.
    async fn listen(
        &mut self,
        (incoming, process): (&mut Incoming, &mut Child),
        phase: &mut watch::Receiver<Phase>,
        reloads: u64,
    ) -> anyhow::Result<()> {
        let mut is_ready = false;
        let mut serves = false;
        let mut silent_looks = 0;
        let mut waits = false;
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let mut spoke = false;
            tokio::select! {
                // First, so that what was said is heard before it is missed.
                biased;
                said = incoming.next() => match said.context("it is not understood")? {
                    Some(FromWorker::Alive) => (silent_looks, spoke) = (0, true),
                    Some(FromWorker::Ready) => {
                        is_ready = true;
                        self.ready.send_modify(|ready| *ready += 1);
                    }
                    Some(FromWorker::Metrics { round, snapshot }) => {
                        (silent_looks, spoke) = (0, true);
                        self.metrics.reported(self.index, round, snapshot);
                    }
                    None => return Ok(()),
                },
                changed = phase.changed() => if changed.is_err() {
                    process.start_kill()?;
                    return Ok(());
                },
                _ = looks.tick(), if serves => {
                    silent_looks += 1;
                    if silent_looks > SILENT_LOOKS_MAX {
                        let state = process.id().and_then(|pid| process_info::read(pid.into()));
                        match silence(state.map(|info| info.state)) {
                            Silence::Hangs => bail!("it hangs: no word for {silent_looks} s"),
                            Silence::Waits(state) if !waits => {
                                waits = true;
                                let (worker, state) = (self.index, state.name());
                                tracing::warn!(worker, state, "a worker waits; it is not killed");
                            }
                            Silence::Waits(_) => {}
                        }
                        silent_looks = 0;
                    }
                }
            }
            if waits && spoke {
                waits = false;
                tracing::info!(worker = self.index, "a worker that waited goes on");
            }
            match *phase.borrow_and_update() {
                Phase::Starting => {}
                Phase::Serving if is_ready && !serves => {
                    serves = true;
                    self.metrics.say(self.index, &ToWorker::Serve);
                    self.metrics.serves(self.index);
                    if self.metrics.reloads() != reloads {
                        self.metrics.say(self.index, &ToWorker::Reload);
                    }
                }
                Phase::Serving => {}
                Phase::Draining => {
                    // Nobody will come for what waits there.
                    self.sockets.clear();
                    self.metrics.say(self.index, &ToWorker::Drain);
                }
                Phase::Killing => process.start_kill()?,
            }
        }
    }
}

/// Why a worker says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Silence {
    /// It could, and does not: a new one is better.
    Hangs,
    /// Something outside holds it up, and may let it go on. What it has in its hands is not lost until then, and
    /// a new one would have to wait for the same.
    Waits(ProcessState),
}

/// By the state of its process, none if that cannot be told.
fn silence(state: Option<ProcessState>) -> Silence {
    match state {
        Some(ProcessState::Running) | None => Silence::Hangs,
        Some(state) => Silence::Waits(state),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_worker_that_runs_and_is_silent_hangs() {
        assert_eq!(silence(Some(ProcessState::Running)), Silence::Hangs);
        assert_eq!(silence(None), Silence::Hangs);
        for state in [
            ProcessState::Stopped,
            ProcessState::Traced,
            ProcessState::Frozen,
            ProcessState::DiskSleep,
        ] {
            assert_eq!(silence(Some(state)), Silence::Waits(state));
        }
    }
}
