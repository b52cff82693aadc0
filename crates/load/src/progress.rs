//! Progress of a load: counts that its threads publish now and then, and a line written from them once a
//! second.

use crate::tally::Tally;
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The counts that a thread published last.
pub(crate) type Live = Mutex<Snapshot>;

/// Counts of one thread or of all, including the warm-up.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Snapshot {
    sent: u64,
    answered: u64,
    allowed: u64,
    denied: u64,
    shed: u64,
    /// The largest of all threads.
    p99_ns: u64,
}

impl Snapshot {
    pub(crate) fn new(measured: &Tally, warmup: &Tally) -> Snapshot {
        let both = |number: fn(&Tally) -> u64| number(measured) + number(warmup);
        Snapshot {
            sent: both(|tally| tally.due - tally.not_sent),
            answered: both(Tally::answered),
            allowed: both(|tally| tally.allowed),
            denied: both(|tally| tally.denied),
            shed: both(|tally| tally.shed),
            p99_ns: measured.served_latency.from_due.value_at_quantile(0.99),
        }
    }

    pub(crate) fn of(threads: &[Live]) -> Snapshot {
        let read = |live: &Live| *live.lock().unwrap_or_else(PoisonError::into_inner);
        threads.iter().map(read).fold(Snapshot::default(), |sum, one| Snapshot {
            sent: sum.sent + one.sent,
            answered: sum.answered + one.answered,
            allowed: sum.allowed + one.allowed,
            denied: sum.denied + one.denied,
            shed: sum.shed + one.shed,
            p99_ns: sum.p99_ns.max(one.p99_ns),
        })
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
            let [sent, answered, allowed, denied, shed, p99_ns] = numbers;
            Live::new(Snapshot { sent, answered, allowed, denied, shed, p99_ns })
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
