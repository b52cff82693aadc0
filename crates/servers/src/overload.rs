//! Whether the process is later than it may be: then calls are refused, which costs a fraction of a
//! decision, until it is on time again.
//!
//! What is measured is what a connection with something to read goes through: a task sleeps for
//! [`SAMPLE_EVERY`], is woken as sockets wake their tasks, and then stands in the same queue behind
//! every connection that is ready. All work that connections do between the end of its sleep and its
//! turn is work that was ahead of it. Once that is more than [`AHEAD_MAX`] for each thread, the calls
//! of all connections are refused until the task had its turn; then it sleeps again, and calls are
//! decided meanwhile. Work is counted rather than time: when the machine had no processor to give for a
//! while, the process is late but has little to catch up with, and refusing calls would help nobody.
//!
//! The sums: of each round through the ready connections, 2 to 3 ms of sleep (the timer has a
//! granularity of 1 ms) and 4 ms of work go to decisions, some 1.4 µs a call with all that HTTP/2 wants.
//! What is left of the round is refused at about half the cost. A connection has at most 128 calls under
//! way, so 64 saturated ones make a round of 12 ms when all are decided, and of 9 ms like this; with
//! clients that read as fast, no call waits much longer than such a round. An FRS connection has one
//! request under way, some 10 µs with HTTP and all, so that 512 of them make a round of 6 ms.
//!
//! Time that a turn waited for other processes in the store counts as work: everything behind it waited too.
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

/// Work ahead, for each thread, beyond which calls are refused.
const AHEAD_MAX: Duration = Duration::from_millis(4);

/// A longer turn counts by the processor time of its thread, and the time that it was blocked in the store: the
/// thread may have worked all that time, or have waited for a processor.
const TURN_MAX: Duration = Duration::from_millis(2);

/// How long ago it may be that a thread was asked for its processor time when a turn begins: by so much a
/// long turn may count for too much. To ask takes a fraction of a microsecond.
const CPU_KNOWN_MAX: Duration = Duration::from_millis(1);

thread_local! {
    /// When this thread was last asked for its processor time, and what it was.
    static CPU: Cell<Option<(Instant, Duration)>> = const { Cell::new(None) };
}

/// Shared by all doors of a process: their connections wait in one queue.
#[derive(Debug)]
pub struct Overload {
    epoch: Instant,
    lag: Lag,
    /// Whether a connection had a turn since the task last looked.
    is_busy: AtomicBool,
    busy: Notify,
}

impl Overload {
    /// Takes samples for as long as the runtime lasts, in which it must be called.
    pub fn start() -> Arc<Overload> {
        let overload = Arc::new(Overload {
            epoch: Instant::now(),
            lag: Lag::new(Handle::current().metrics().num_workers()),
            is_busy: AtomicBool::new(false),
            busy: Notify::new(),
        });
        tokio::spawn(overload.clone().sample());
        overload
    }

    /// Whether calls should be refused.
    pub fn is_late(&self) -> bool {
        self.lag.is_late()
    }

    /// A connection had a turn, which ends now.
    pub fn turned(&self, turn: &Turn) {
        let began = turn.began.saturating_duration_since(self.epoch);
        let ended = self.epoch.elapsed();
        let took = ended.saturating_sub(began);
        let worked = if took > TURN_MAX { turn.busy_time().min(took) } else { took };
        self.lag.turned(began, ended, worked);
        if !self.is_busy.load(Ordering::Relaxed) && !self.is_busy.swap(true, Ordering::Relaxed) {
            self.busy.notify_one();
        }
    }

    /// The same of each turn that `connection` has.
    pub async fn watch<F: Future>(&self, connection: F) -> F::Output {
        let mut connection = pin!(connection);
        std::future::poll_fn(|context| {
            let turn = Turn::begin();
            let polled = connection.as_mut().poll(context);
            self.turned(&turn);
            polled
        })
        .await
    }

    async fn sample(self: Arc<Self>) {
        loop {
            self.busy.notified().await;
            while self.is_busy.swap(false, Ordering::Relaxed) {
                self.lag.arm(self.epoch.elapsed() + SAMPLE_EVERY);
                tokio::time::sleep(SAMPLE_EVERY).await;
                self.lag.sampled();
            }
        }
    }
}

/// A turn of a connection: what it does on one thread until it waits again.
#[derive(Debug)]
pub struct Turn {
    began: Instant,
    /// The processor time of this thread, at [`CPU_KNOWN_MAX`] before it began.
    cpu: Duration,
    /// How long this thread had been blocked in the store when it began.
    blocked: Duration,
}

impl Turn {
    /// It begins now.
    pub fn begin() -> Turn {
        let began = Instant::now();
        let known = CPU.get().filter(|(then, _)| began.duration_since(*then) < CPU_KNOWN_MAX);
        let (_, cpu) = known.unwrap_or_else(|| {
            let now = (began, thread_time());
            CPU.set(Some(now));
            now
        });
        Turn { began, cpu, blocked: blocked_in_this_thread() }
    }

    /// When it began.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// For how long it kept its thread from others, give or take [`CPU_KNOWN_MAX`].
    fn busy_time(&self) -> Duration {
        self.processor_time().saturating_add(blocked_in_this_thread().saturating_sub(self.blocked))
    }

    /// What it used of a processor so far, give or take [`CPU_KNOWN_MAX`].
    fn processor_time(&self) -> Duration {
        thread_time().saturating_sub(self.cpu)
    }
}

/// The processor time of this thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The estimate. Times are since any fixed moment.
#[derive(Debug)]
struct Lag {
    /// When the sample is due, in nanoseconds; [`NEVER`] when none is.
    due: AtomicU64,
    /// Nanoseconds of work since it was.
    ahead: AtomicU64,
    ahead_max: u64,
}

const NEVER: u64 = u64::MAX;

// Relaxed everywhere: the numbers stand for themselves, and a turn that is counted for the wrong sample
// makes a difference of one turn.
impl Lag {
    fn new(threads: usize) -> Lag {
        let threads = u64::try_from(threads).unwrap_or(u64::MAX).max(1);
        Lag {
            due: AtomicU64::new(NEVER),
            ahead: AtomicU64::new(0),
            ahead_max: nanos(AHEAD_MAX).saturating_mul(threads),
        }
    }

    /// The next sample is due then.
    fn arm(&self, due: Duration) {
        self.due.store(nanos(due), Ordering::Relaxed);
    }

    /// The sample had its turn.
    fn sampled(&self) {
        self.due.store(NEVER, Ordering::Relaxed);
        self.ahead.store(0, Ordering::Relaxed);
    }

    /// A turn was from then to then, and worked for so much of it.
    fn turned(&self, began: Duration, ended: Duration, worked: Duration) {
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

    /// Turns of a millisecond, one after the other, from then on; the first after which it is late.
    fn late_after(lag: &Lag, from: u64, turns: u64) -> Option<u64> {
        (0..turns).find(|turn| {
            let began = from + turn * 1_000;
            lag.turned(micros(began), micros(began + 1_000), micros(1_000));
            lag.is_late()
        })
    }

    #[test]
    fn work_before_the_sample_is_due_or_while_none_is_does_not_count() {
        let lag = Lag::new(1);
        assert_eq!(late_after(&lag, 0, 100), None);
        lag.arm(micros(200_000));
        assert_eq!(late_after(&lag, 100_000, 100), None);
    }

    #[test]
    fn more_than_four_milliseconds_of_work_ahead_of_the_sample_are_late() {
        let lag = Lag::new(1);
        // The first turn counts for its half after the sample was due.
        lag.arm(micros(500));
        assert_eq!(late_after(&lag, 0, 100), Some(4));
        // At once on time, and late again as late as before.
        lag.sampled();
        assert!(!lag.is_late());
        lag.arm(micros(100_000));
        assert_eq!(late_after(&lag, 100_000, 100), Some(4));
    }

    #[test]
    fn threads_work_beside_each_other() {
        let lag = Lag::new(4);
        lag.arm(micros(0));
        assert_eq!(late_after(&lag, 0, 100), Some(16));
    }

    #[test]
    fn a_process_that_stood_still_is_late_only_for_what_it_has_to_catch_up_with() {
        let lag = Lag::new(1);
        lag.arm(micros(0));
        lag.turned(micros(100), micros(5_000_100), micros(1_000));
        assert!(!lag.is_late(), "one turn, whatever time it took");
        assert_eq!(late_after(&lag, 5_000_100, 2), None);
    }

    /// Symptom: header blocks that took 38 ms each kept every call waiting for 100 ms and more, and none was
    /// refused. Cause: no turn counted for more than 2 ms, since it may just have stood still.
    #[test]
    fn a_long_turn_counts_for_what_it_works() {
        let lag = Lag::new(1);
        lag.arm(micros(0));
        lag.turned(micros(0), micros(38_000), micros(38_000));
        assert!(lag.is_late());

        let turn = Turn::begin();
        while turn.processor_time() < Duration::from_millis(5) {
            std::hint::spin_loop();
        }
        assert!(turn.began.elapsed() >= Duration::from_millis(4));
        // One that was idle since it began, as far as its thread goes.
        let idle = std::thread::spawn(|| {
            let turn = Turn::begin();
            let (_keep, never) = std::sync::mpsc::channel::<()>();
            let _ = never.recv_timeout(Duration::from_millis(50));
            (turn.began.elapsed(), turn.processor_time())
        });
        let (took, worked) = idle.join().unwrap();
        assert!(took >= Duration::from_millis(50) && worked < took / 2, "{worked:?} of {took:?}");
    }

    /// Symptom: a stopped process beside this one kept all clients of a thread waiting, and none was refused. Cause:
    /// who waits for a lock uses no processor.
    #[test]
    fn time_that_a_turn_is_blocked_in_the_store_counts_as_work() {
        let dir = tempfile::TempDir::new().unwrap();
        let options = Options::narrow(Geometry::by_count(1, 1, 8, 4).unwrap());
        let store = Cluster::open(dir.path(), &options).unwrap();
        let (is_held, may_end) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let hold = |_: EntryMut<'_>| {
                    is_held.wait();
                    may_end.wait();
                };
                store.update("key", 1, hold).unwrap();
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
    async fn the_sample_comes_by_itself() {
        let overload = Overload::start();
        for _ in 0..2 {
            while !overload.is_late() {
                // Turns without a break, that the task has to wait for.
                let began = Instant::now();
                while began.elapsed() < Duration::from_millis(20) {
                    let began = Instant::now() - Duration::from_micros(100);
                    overload.turned(&Turn { began, ..Turn::begin() });
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
