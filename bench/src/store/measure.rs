//! Runs decisions on threads, and times a whole run or each decision.

use super::keys::Keys;
use super::peer::Peer;
use crate::figures::Latencies;
use anyhow::{Context, ensure};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Iterations between two checks whether all threads have started: well below a microsecond. With few cores,
/// the others need this one in between.
const SPINS: u32 = 8;

/// From the first thread's start to the last one's end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    pub(crate) took: Duration,
    pub(crate) allowed: u64,
}

/// Keys to decide, in a part for each thread.
pub(crate) struct Work<'a> {
    pub(crate) peer: &'a dyn Peer,
    pub(crate) keys: &'a Keys,
    pub(crate) parts: &'a [&'a [u32]],
}

impl Work<'_> {
    /// Decides all parts in batches. Single decisions are not timed.
    pub(crate) fn run(&self, batch: usize) -> anyhow::Result<Run> {
        let done = on_threads(self.parts, |part| {
            let start = Instant::now();
            let batches = part.chunks(batch);
            let allowed = batches.map(|picks| self.peer.decide_each(self.keys, picks)).sum::<u64>();
            (start, Instant::now(), allowed)
        })?;
        let start = done.iter().map(|(start, ..)| *start).min().context("nothing to run")?;
        let end = done.iter().map(|(_, end, _)| *end).max().context("nothing to run")?;
        Ok(Run { took: end - start, allowed: done.iter().map(|(.., allowed)| allowed).sum() })
    }

    /// Like [`Work::run`], but requires that everything is allowed, as denials are faster.
    pub(crate) fn run_allowed(&self, batch: usize) -> anyhow::Result<Duration> {
        let asked: usize = self.parts.iter().map(|part| part.len()).sum();
        let Run { took, allowed } = self.run(batch)?;
        ensure!(allowed == asked as u64, "only {allowed} of {asked} decisions were to allow");
        Ok(took)
    }

    /// Times every decision, including the cost of the clock.
    pub(crate) fn latencies(&self) -> anyhow::Result<Latencies> {
        let done = on_threads(self.parts, |part| {
            let mut latencies = Latencies::new()?;
            for pick in part {
                let start = Instant::now();
                let allowed = self.peer.decide_each(self.keys, std::slice::from_ref(pick));
                latencies.record(start.elapsed());
                ensure!(allowed == 1, "a decision was not to allow");
            }
            Ok(latencies)
        })?;
        let mut all = Latencies::new()?;
        for one in done {
            all.add(&one?)?;
        }
        Ok(all)
    }
}

/// Runs all parts at the same time, the first one on this thread: a thread that only waits can make the
/// kernel put two others on one core.
fn on_threads<T: Send>(
    parts: &[&[u32]],
    work: impl Fn(&[u32]) -> T + Sync,
) -> anyhow::Result<Vec<T>> {
    let (first, others) = parts.split_first().context("nothing to run")?;
    // Threads spin at the start: a short run is over before a sleeping thread wakes up.
    let missing = AtomicUsize::new(parts.len());
    let together = |part: &[u32]| {
        missing.fetch_sub(1, Ordering::Relaxed);
        while missing.load(Ordering::Relaxed) > 0 {
            (0..SPINS).for_each(|_| std::hint::spin_loop());
            std::thread::yield_now();
        }
        work(part)
    };
    std::thread::scope(|scope| {
        let together = &together;
        let threads: Vec<_> =
            others.iter().map(|part| scope.spawn(move || together(part))).collect();
        let mut results = vec![together(first)];
        for thread in threads {
            results.push(thread.join().ok().context("a thread panicked")?);
        }
        Ok(results)
    })
}
