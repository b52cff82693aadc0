//! The account of a load: every request in one class, and the latency of answers. Callers must count each
//! request once; the tally cannot detect a second time.

use crate::ending::{Breakage, Ending, Refusal};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;

/// Latencies from 0.1 µs to 1,000 s, with three digits: about 190 kB a histogram.
const SHORTEST_NS: u64 = 100;
const LONGEST_NS: u64 = 1_000_000_000_000;

/// An empty histogram of nanoseconds.
pub(crate) fn histogram() -> anyhow::Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(SHORTEST_NS, LONGEST_NS, 3)?)
}

/// Latencies of one kind of answer, in nanoseconds.
#[derive(Debug, Clone)]
pub struct Latencies {
    /// From when the request was due: the wait of a caller.
    pub from_due: Histogram<u64>,
    /// From when it was written: the time that the service takes.
    pub from_written: Histogram<u64>,
}

impl Latencies {
    pub(crate) fn new() -> anyhow::Result<Latencies> {
        Ok(Latencies { from_due: histogram()?, from_written: histogram()? })
    }

    fn record(&mut self, times: &Times) {
        self.from_due.saturating_record(times.answered_ns.saturating_sub(times.due_ns));
        self.from_written.saturating_record(times.answered_ns.saturating_sub(times.written_ns));
    }

    pub(crate) fn add(&mut self, other: &Latencies) -> anyhow::Result<()> {
        self.from_due.add(&other.from_due)?;
        self.from_written.add(&other.from_written)?;
        Ok(())
    }
}

/// Times of an answered request, from the start of the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) due_ns: u64,
    pub(crate) written_ns: u64,
    pub(crate) answered_ns: u64,
}

/// Counts of requests by class.
#[derive(Debug, Clone)]
pub(crate) struct Tally {
    pub(crate) due: u64,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) shed: u64,
    pub(crate) refused: BTreeMap<Refusal, u64>,
    pub(crate) broken: BTreeMap<Breakage, u64>,
    pub(crate) timed_out: u64,
    pub(crate) not_sent: u64,
    /// Of those that timed out, requests that were answered later.
    pub(crate) late: u64,
    /// Second halves of pairs that were answered with a decision.
    pub(crate) pairs: u64,
    /// Allowed and denied.
    pub(crate) served_latency: Latencies,
    pub(crate) shed_latency: Latencies,
    pub(crate) refused_latency: Latencies,
    /// How late the generator itself was.
    pub(crate) lag: Histogram<u64>,
}

impl Tally {
    pub(crate) fn new() -> anyhow::Result<Tally> {
        Ok(Tally {
            due: 0,
            allowed: 0,
            denied: 0,
            shed: 0,
            refused: BTreeMap::new(),
            broken: BTreeMap::new(),
            timed_out: 0,
            not_sent: 0,
            late: 0,
            pairs: 0,
            served_latency: Latencies::new()?,
            shed_latency: Latencies::new()?,
            refused_latency: Latencies::new()?,
            lag: histogram()?,
        })
    }

    /// Counts a request that ended in time.
    pub(crate) fn count(&mut self, ending: Ending, times: &Times) {
        match ending {
            Ending::Allowed => {
                self.allowed += 1;
                self.served_latency.record(times);
            }
            Ending::Denied => {
                self.denied += 1;
                self.served_latency.record(times);
            }
            Ending::Shed => {
                self.shed += 1;
                self.shed_latency.record(times);
            }
            Ending::Refused(refusal) => {
                *self.refused.entry(refusal).or_default() += 1;
                self.refused_latency.record(times);
            }
            Ending::Broken(breakage) => *self.broken.entry(breakage).or_default() += 1,
        }
    }

    /// All answers in time.
    pub(crate) fn answered(&self) -> u64 {
        self.allowed + self.denied + self.shed + self.refused.values().sum::<u64>()
    }

    /// Adds the counts of another thread.
    pub(crate) fn add(&mut self, other: &Tally) -> anyhow::Result<()> {
        self.due += other.due;
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.shed += other.shed;
        for (refusal, count) in &other.refused {
            *self.refused.entry(*refusal).or_default() += count;
        }
        for (breakage, count) in &other.broken {
            *self.broken.entry(*breakage).or_default() += count;
        }
        self.timed_out += other.timed_out;
        self.not_sent += other.not_sent;
        self.late += other.late;
        self.pairs += other.pairs;
        self.served_latency.add(&other.served_latency)?;
        self.shed_latency.add(&other.shed_latency)?;
        self.refused_latency.add(&other.refused_latency)?;
        self.lag.add(&other.lag)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_counts_once_and_what_was_answered_has_a_latency() {
        let times = Times { due_ns: 1_000, written_ns: 3_000, answered_ns: 10_000 };
        let mut tally = Tally::new().unwrap();
        let endings = [
            Ending::Allowed,
            Ending::Denied,
            Ending::Shed,
            Ending::Refused(Refusal::Grpc(14)),
            Ending::Refused(Refusal::Http(500)),
            Ending::Broken(Breakage::Reset(2)),
            Ending::Broken(Breakage::Closed),
        ];
        for ending in endings {
            tally.count(ending, &times);
        }
        assert_eq!(tally.answered(), 5);
        assert_eq!(tally.broken, [(Breakage::Reset(2), 1), (Breakage::Closed, 1)].into());
        assert_eq!(tally.served_latency.from_due.len(), 2);
        assert_eq!(tally.served_latency.from_due.max() / 100, 90);
        assert_eq!(tally.served_latency.from_written.max() / 100, 70);
        assert_eq!(tally.shed_latency.from_due.len(), 1);
        assert_eq!(tally.refused_latency.from_due.len(), 2);

        let mut both = tally.clone();
        both.add(&tally).unwrap();
        assert_eq!((both.allowed, both.denied, both.shed, both.answered()), (2, 2, 2, 10));
        assert_eq!(both.broken[&Breakage::Closed], 2);
        assert_eq!(both.refused[&Refusal::Grpc(14)], 2);
        assert_eq!(both.served_latency.from_due.len(), 4);
    }
}
