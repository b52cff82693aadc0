//! Overload: measures how long work waits, and refuses calls while it waits too long. A refusal costs a
//! fraction of a decision.
//!
//! The measurement is what a connection with input experiences: a task sleeps for [`SAMPLE_EVERY`], is woken as
//! sockets wake their tasks, and then waits in the same queue behind every connection that is ready. All work that
//! connections do between the end of its sleep and its turn was ahead of it. Above [`AHEAD_MAX`] for each thread,
//! the calls of all connections are refused until the task has had its turn; then it sleeps again, and calls are
//! decided meanwhile. Work is counted instead of time: after the machine had no processor to give for a while, the
//! process is late but has little to catch up with, and refusing calls would not help.
//!
//! The figures: of each round through the ready connections, 2 to 3 ms of sleep (the timer has a granularity
//! of 1 ms) and 4 ms of work go to decisions, some 1.4 µs a call including HTTP/2. The rest of the round is
//! refused at about half the cost. A connection has at most 128 calls under way, so 64 saturated ones make a
//! round of 12 ms if all are decided, and of 9 ms this way; with clients that read as fast, no call waits
//! much longer than such a round. An FRS connection has one request under way, some 10 µs including HTTP, so
//! that 512 of them make a round of 6 ms.
//!
//! Time that a turn waits for other processes in the store counts as work: everything behind it waits too.
//!
//! An idle process is not woken: the task sleeps only while connections have turns.

use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidegate_store::blocked_in_this_thread;
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// How long the task sleeps between its turns: some 500 wake-ups a second under load, each of a few
/// microseconds, are below a fifth of a percent of a processor.
const SAMPLE_EVERY: Duration = Duration::from_millis(2);

/// Work ahead, for each thread, beyond which calls are refused. A build with checks takes ten times as long for each call.
const AHEAD_MAX: Duration = Duration::from_millis(if cfg!(debug_assertions) { 40 } else { 4 });

/// A longer turn counts as the processor time of its thread plus the time it was blocked in the store: the
/// thread may have worked all that time, or have waited for a processor.
const TURN_MAX: Duration = Duration::from_millis(2);

/// The maximum age of the processor time read at the start of a turn; a long turn may count for that much too
/// much. Reading it takes a fraction of a microsecond.
const CPU_TIME_AGE_MAX: Duration = Duration::from_millis(1);

thread_local! {
    /// When this thread's processor time was last read, and its value.
    static CPU_TIME: Cell<Option<(Instant, Duration)>> = const { Cell::new(None) };
}

/// Shared by all endpoints of a process: their connections wait in one queue.
#[derive(Debug)]
pub struct Overload {
    epoch: Instant,
    lag: Lag,
    /// True if a connection had a turn since the task last checked.
    is_busy: AtomicBool,
    busy: Notify,
}

impl Overload {
    /// Starts sampling, for as long as the current runtime lasts. Must be called in a runtime.
    pub fn start() -> Arc<Overload> {
        let overload = Arc::new(Overload {
            epoch: Instant::now(),
            lag: Lag::new(Handle::current().metrics().num_workers(), AHEAD_MAX),
            is_busy: AtomicBool::new(false),
            busy: Notify::new(),
        });
        tokio::spawn(overload.clone().sample());
        overload
    }

    /// True if calls should be refused.
    pub fn is_late(&self) -> bool {
        self.lag.is_late()
    }

    /// Records a turn that ends now, and returns how long it took.
    pub fn record_turn(&self, turn: &Turn) -> Duration {
        let began = turn.began.saturating_duration_since(self.epoch);
        let ended = self.epoch.elapsed();
        let took = ended.saturating_sub(began);
        let worked = if took > TURN_MAX { turn.busy_time().min(took) } else { took };
        self.lag.record_turn(began, ended, worked);
        if !self.is_busy.load(Ordering::Relaxed) && !self.is_busy.swap(true, Ordering::Relaxed) {
            self.busy.notify_one();
        }
        took
    }

    /// Polls `connection` and records each of its turns.
    pub async fn watch<F: Future>(&self, connection: F) -> F::Output {
        let mut connection = pin!(connection);
        std::future::poll_fn(|context| {
            let turn = Turn::begin();
            let polled = connection.as_mut().poll(context);
            self.record_turn(&turn);
            polled
        })
        .await
    }

    async fn sample(self: Arc<Self>) {
        loop {
            self.busy.notified().await;
            while self.is_busy.swap(false, Ordering::Relaxed) {
                self.lag.schedule(self.epoch.elapsed() + SAMPLE_EVERY);
                tokio::time::sleep(SAMPLE_EVERY).await;
                self.lag.finish_sample();
            }
        }
    }
}

/// A turn of a connection: its work on one thread until it waits again.
#[derive(Debug)]
pub struct Turn {
    began: Instant,
    /// The processor time of this thread, read at most [`CPU_TIME_AGE_MAX`] before the turn began.
    cpu: Duration,
    /// The total time that this thread had been blocked in the store when the turn began.
    blocked: Duration,
}

impl Turn {
    pub fn begin() -> Turn {
        let began = Instant::now();
        let known =
            CPU_TIME.get().filter(|(then, _)| began.duration_since(*then) < CPU_TIME_AGE_MAX);
        let (_, cpu) = known.unwrap_or_else(|| {
            let now = (began, thread_time());
            CPU_TIME.set(Some(now));
            now
        });
        Turn { began, cpu, blocked: blocked_in_this_thread() }
    }

    pub fn began(&self) -> Instant {
        self.began
    }

    /// How long the turn has occupied its thread, with an error of up to [`CPU_TIME_AGE_MAX`].
    fn busy_time(&self) -> Duration {
        self.processor_time().saturating_add(blocked_in_this_thread().saturating_sub(self.blocked))
    }

    /// The processor time used so far, with an error of up to [`CPU_TIME_AGE_MAX`].
    fn processor_time(&self) -> Duration {
        thread_time().saturating_sub(self.cpu)
    }
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The estimate of queued work. Times count from any fixed moment.
#[derive(Debug)]
struct Lag {
    /// When the sample is due, in nanoseconds; [`NEVER`] if none is.
    due: AtomicU64,
    /// Nanoseconds of work since then.
    ahead: AtomicU64,
    ahead_max: u64,
}

const NEVER: u64 = u64::MAX;

// Relaxed everywhere: the numbers depend on no other memory, and a turn counted for the wrong sample is an
// error of one turn.
impl Lag {
    /// `ahead_max` is for each of the threads.
    fn new(threads: usize, ahead_max: Duration) -> Lag {
        let threads = u64::try_from(threads).unwrap_or(u64::MAX).max(1);
        Lag {
            due: AtomicU64::new(NEVER),
            ahead: AtomicU64::new(0),
            ahead_max: nanos(ahead_max).saturating_mul(threads),
        }
    }

    fn schedule(&self, due: Duration) {
        self.due.store(nanos(due), Ordering::Relaxed);
    }

    /// The sampling task had its turn.
    fn finish_sample(&self) {
        self.due.store(NEVER, Ordering::Relaxed);
        self.ahead.store(0, Ordering::Relaxed);
    }

    /// Records a turn of which `worked` was work.
    fn record_turn(&self, began: Duration, ended: Duration, worked: Duration) {
        let due = self.due.load(Ordering::Relaxed);
        let after_due = nanos(ended).saturating_sub(nanos(began).max(due));
        let ahead = after_due.min(nanos(worked));
        if ahead > 0 {
            self.ahead.fetch_add(ahead, Ordering::Relaxed);
        }
    }

    fn is_late(&self) -> bool {
        self.ahead.load(Ordering::Relaxed) > self.ahead_max
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(NEVER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use tidegate_store::{Cluster, EntryMut, Geometry, Options, UpdateError};

    const fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    /// The estimate with the bound of a released build.
    fn lag_of(threads: usize) -> Lag {
        Lag::new(threads, Duration::from_millis(4))
    }

    /// Records turns of a millisecond, one after the other; returns the first after which calls are refused.
    fn late_after(lag: &Lag, from: u64, turns: u64) -> Option<u64> {
        (0..turns).find(|turn| {
            let began = from + turn * 1_000;
            lag.record_turn(micros(began), micros(began + 1_000), micros(1_000));
            lag.is_late()
        })
    }

    #[test]
    fn only_work_after_a_sample_is_due_counts() {
        let lag = lag_of(1);
        assert_eq!(late_after(&lag, 0, 100), None);
        lag.schedule(micros(200_000));
        assert_eq!(late_after(&lag, 100_000, 100), None);
    }

    #[test]
    fn more_than_four_milliseconds_of_work_ahead_of_the_sample_are_late() {
        let lag = lag_of(1);
        // Half of the first turn is after the sample was due.
        lag.schedule(micros(500));
        assert_eq!(late_after(&lag, 0, 100), Some(4));
        // On time immediately, and late again after as much work as before.
        lag.finish_sample();
        assert!(!lag.is_late());
        lag.schedule(micros(100_000));
        assert_eq!(late_after(&lag, 100_000, 100), Some(4));
    }

    #[test]
    fn the_limit_grows_with_the_threads() {
        let lag = lag_of(4);
        lag.schedule(micros(0));
        assert_eq!(late_after(&lag, 0, 100), Some(16));
    }

    #[test]
    fn a_process_that_stood_still_is_late_only_for_its_backlog() {
        let lag = lag_of(1);
        lag.schedule(micros(0));
        lag.record_turn(micros(100), micros(5_000_100), micros(1_000));
        assert!(!lag.is_late(), "one turn, whatever time it took");
        assert_eq!(late_after(&lag, 5_000_100, 2), None);
    }

    /// Symptom: header blocks that took 38 ms each delayed every call by 100 ms and more, and none was
    /// refused. Cause: no turn counted for more than 2 ms, since it might just have stood still.
    #[test]
    fn a_long_turn_counts_as_its_work() {
        let lag = lag_of(1);
        lag.schedule(micros(0));
        lag.record_turn(micros(0), micros(38_000), micros(38_000));
        assert!(lag.is_late());

        let turn = Turn::begin();
        while turn.processor_time() < Duration::from_millis(5) {
            std::hint::spin_loop();
        }
        assert!(turn.began.elapsed() >= Duration::from_millis(4));
        // A turn whose thread was idle all the time.
        let idle = std::thread::spawn(|| {
            let turn = Turn::begin();
            let (_keep, never) = std::sync::mpsc::channel::<()>();
            let _ = never.recv_timeout(Duration::from_millis(50));
            (turn.began.elapsed(), turn.processor_time())
        });
        let (took, worked) = idle.join().unwrap();
        assert!(took >= Duration::from_millis(50) && worked < took / 2, "{worked:?} of {took:?}");
    }

    /// Symptom: a stopped process beside this one kept all clients of a thread waiting, and none was refused.
    /// Cause: waiting for a lock uses no processor time.
    #[test]
    fn time_blocked_in_the_store_counts_as_work() {
        let dir = tempfile::TempDir::new().unwrap();
        let options = Options::narrow(Geometry::by_count(1, 1, 8, 4).unwrap());
        let [store, other] = [(); 2].map(|()| Cluster::open(dir.path(), &options).unwrap());
        let (is_held, may_end) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let hold = |_: EntryMut<'_>| {
                    is_held.wait();
                    may_end.wait();
                };
                other.update("key", 1, hold).unwrap();
            });
            is_held.wait();
            let turn = Turn::begin();
            let refused = store.update("key", 1, |_| ());
            let (took, busy) = (turn.began.elapsed(), turn.busy_time());
            may_end.wait();
            assert!(matches!(refused, Err(UpdateError::Busy { .. })), "{refused:?}");
            assert!(busy >= Duration::from_millis(4), "{busy:?} of {took:?}");
        });
    }

    #[tokio::test]
    async fn samples_are_taken_without_help() {
        let overload = Overload::start();
        for _ in 0..2 {
            while !overload.is_late() {
                // Turns without a break, which delay the sampling task.
                let began = Instant::now();
                while began.elapsed() < Duration::from_millis(20) {
                    let began = Instant::now() - Duration::from_micros(100);
                    overload.record_turn(&Turn { began, ..Turn::begin() });
                }
                if !overload.is_late() {
                    tokio::task::yield_now().await;
                }
            }
            while overload.is_late() {
                tokio::task::yield_now().await;
            }
        }
    }
}
