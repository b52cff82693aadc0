//! Progress of a load: counts that its threads publish now and then, and a line written from them once a
//! second.

use crate::tally::Tally;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts of one thread, including the warm-up. Each count is exact; together they may be of different
/// moments.
#[derive(Debug, Default)]
pub(crate) struct Live {
    due: AtomicU64,
    answered: AtomicU64,
    allowed: AtomicU64,
    denied: AtomicU64,
    shed: AtomicU64,
    p99_ns: AtomicU64,
}

impl Live {
    pub(crate) fn publish(&self, measured: &Tally, warmup: &Tally) {
        let both = |number: fn(&Tally) -> u64| number(measured) + number(warmup);
        self.due.store(both(|tally| tally.due - tally.not_sent), Ordering::Relaxed);
        self.answered.store(both(Tally::answered), Ordering::Relaxed);
        self.allowed.store(both(|tally| tally.allowed), Ordering::Relaxed);
        self.denied.store(both(|tally| tally.denied), Ordering::Relaxed);
        self.shed.store(both(|tally| tally.shed), Ordering::Relaxed);
        let p99_ns = measured.served_latency.from_due.value_at_quantile(0.99);
        self.p99_ns.store(p99_ns, Ordering::Relaxed);
    }
}

/// The sum over all threads at one moment.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Snapshot {
    sent: u64,
    answered: u64,
    allowed: u64,
    denied: u64,
    shed: u64,
    p99_ns: u64,
}

impl Snapshot {
    pub(crate) fn of(threads: &[Live]) -> Snapshot {
        let sum = |number: fn(&Live) -> &AtomicU64| {
            threads.iter().map(|live| number(live).load(Ordering::Relaxed)).sum()
        };
        let p99 = threads.iter().map(|live| live.p99_ns.load(Ordering::Relaxed)).max();
        Snapshot {
            sent: sum(|live| &live.due),
            answered: sum(|live| &live.answered),
            allowed: sum(|live| &live.allowed),
            denied: sum(|live| &live.denied),
            shed: sum(|live| &live.shed),
            p99_ns: p99.unwrap_or_default(),
        }
    }
}

/// Rewrites one line of a terminal.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    answered: u64,
}

/// The interval between lines.
pub(crate) const EVERY: Duration = Duration::from_secs(1);

impl Progress {
    /// None unless standard error is a terminal.
    pub(crate) fn to_terminal() -> Option<Progress> {
        std::io::stderr().is_terminal().then(Progress::default)
    }

    pub(crate) fn show(&mut self, elapsed: Duration, snapshot: &Snapshot) {
        let line = self.line(elapsed, snapshot);
        // A closed terminal does not end a measurement.
        let _ = write!(std::io::stderr(), "\r{line}\x1b[K");
    }

    /// Clears the line.
    pub(crate) fn clear(&self) {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }

    fn line(&mut self, elapsed: Duration, now: &Snapshot) -> String {
        let answered = now.answered.saturating_sub(self.answered);
        self.answered = now.answered;
        let per_second = answered as f64 / EVERY.as_secs_f64();
        format!(
            "{:>4.0} s  sent {}  answered {per_second:.0}/s  allowed {}  denied {}  shed {}  \
             p99 {:.3} ms",
            elapsed.as_secs_f64(),
            now.sent,
            now.allowed,
            now.denied,
            now.shed,
            now.p99_ns as f64 / 1e6
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_added_up_and_the_rate_is_that_since_the_last_line() {
        let thread = |numbers: [u64; 6]| {
            let [due, answered, allowed, denied, shed, p99_ns] = numbers.map(AtomicU64::new);
            Live { due, answered, allowed, denied, shed, p99_ns }
        };
        let threads = [thread([10, 9, 4, 3, 2, 5_000_000]), thread([20, 19, 10, 5, 4, 1_250_000])];
        let snapshot = Snapshot::of(&threads);
        let mut progress = Progress { answered: 20 };
        assert_eq!(
            progress.line(Duration::from_secs(3), &snapshot),
            "   3 s  sent 30  answered 8/s  allowed 14  denied 8  shed 6  p99 5.000 ms"
        );
        assert!(progress.line(Duration::from_secs(4), &snapshot).contains("answered 0/s"));
    }
}
