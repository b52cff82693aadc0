//! Spans between the threads that serve and the one that exports.

use crate::span::Finished;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// A span takes some 300 bytes. With 16 denied rules and texts of the greatest length it takes 4 KiB: 176 bytes, 512 of
/// state, 2 times 128, and 16 times 128 and the allocation. So all are 1.2 MiB, and 16 at most.
pub(crate) const SPANS_MAX: usize = 4096;
/// Spans that are sent together; as many wake the exporter.
pub(crate) const BATCH_MAX: usize = 512;

/// What became of spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpanCounts {
    /// The collector has taken them.
    pub exported: u64,
    pub dropped: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    /// A batch is complete, or no more will come.
    pub(crate) due: Notify,
    exported: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    spans: VecDeque<Finished>,
    is_closed: bool,
}

impl Queue {
    /// Takes a span, unless there is no room for it.
    pub(crate) fn push(&self, span: Finished) {
        let mut waiting = self.waiting();
        if waiting.is_closed || waiting.spans.len() >= SPANS_MAX {
            drop(waiting);
            self.count_dropped(1);
            return;
        }
        waiting.spans.push_back(span);
        let is_due = waiting.spans.len() == BATCH_MAX;
        drop(waiting);
        if is_due {
            self.due.notify_one();
        }
    }

    /// The oldest spans, [`BATCH_MAX`] at most.
    pub(crate) fn take(&self) -> Vec<Finished> {
        let mut waiting = self.waiting();
        let count = waiting.spans.len().min(BATCH_MAX);
        waiting.spans.drain(..count).collect()
    }

    /// Takes no more spans.
    pub(crate) fn close(&self) {
        self.waiting().is_closed = true;
        self.due.notify_one();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.waiting().is_closed
    }

    pub(crate) fn count_exported(&self, spans: u64) {
        self.exported.fetch_add(spans, Ordering::Relaxed);
    }

    pub(crate) fn count_dropped(&self, spans: u64) {
        self.dropped.fetch_add(spans, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> SpanCounts {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SpanCounts { exported: count(&self.exported), dropped: count(&self.dropped) }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_or_closed_queue_drops_and_counts() {
        let queue = Queue::default();
        for _ in 0..SPANS_MAX + 3 {
            queue.push(Finished::default());
        }
        assert_eq!(queue.counts(), SpanCounts { exported: 0, dropped: 3 });
        assert_eq!(queue.take().len(), BATCH_MAX);
        queue.push(Finished::default());
        assert_eq!(queue.counts().dropped, 3);
        queue.close();
        queue.push(Finished::default());
        assert_eq!(queue.counts().dropped, 4);
        let mut left = 0;
        loop {
            match queue.take().len() {
                0 => break,
                count => left += count,
            }
        }
        assert_eq!(left, SPANS_MAX - BATCH_MAX + 1);
    }
}
