//! Operations of an authority whose counters may answer later.
//!
//! An operation that was begun is brought to its end, even if its client leaves: its charges may have been committed,
//! and accounts and metrics must follow. It does not hold the connection meanwhile, but a part of a budget, so that
//! slow counters leave slots for requests that need none, and clients that leave and return begin no more operations
//! than the budget allows.
//!
//! An operation reports its own outcome, once, whether or not a client still waits for it.

use crate::shared::Shared;
use std::sync::Arc;
use std::time::Duration;
use tidegate_authority::{Answers, Undecided};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long a client waits for an answer.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(20);

/// The memory of all operations of an endpoint: a quarter of what its connections may hold over gRPC.
const BYTES_MAX: usize = 64 << 20;
/// The memory that a body takes while it is decided, at most, as a multiple of its bytes: the shortest item is some
/// 25 bytes, and takes some 700 with its answer.
const BYTES_PER_BODY_BYTE: usize = 32;

/// Why an operation has no answer for its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unfinished {
    /// It was not begun, since too many others are under way.
    Overloaded,
    /// The counters did not answer in time. It goes on, unless it has panicked.
    NoAnswer,
}

/// Bounds the operations of an endpoint that are under way, by their memory and their number; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct LaterBudget {
    bytes: Arc<Semaphore>,
    operation_bytes_min: usize,
}

/// The part of one operation; dropping it gives it back.
pub(crate) type LaterPermit = OwnedSemaphorePermit;

impl LaterBudget {
    pub(crate) fn new(operations_max: usize) -> LaterBudget {
        let operation_bytes_min = BYTES_MAX / operations_max.clamp(1, BYTES_MAX);
        LaterBudget { bytes: Arc::new(Semaphore::new(BYTES_MAX)), operation_bytes_min }
    }

    /// For an endpoint of HTTP/1.1, where an operation under way keeps its connection from being evicted: half of the
    /// slots stay for other requests.
    pub(crate) fn for_slots(slots: usize) -> LaterBudget {
        LaterBudget::new(slots / 2)
    }

    /// The permit for an operation of this many bytes, if there is room.
    pub(crate) fn take(&self, bytes: usize) -> Option<LaterPermit> {
        let bytes = bytes.clamp(self.operation_bytes_min, BYTES_MAX);
        self.bytes.clone().try_acquire_many_owned(u32::try_from(bytes).ok()?).ok()
    }
}

/// Why a client gets no answer although its operation may still be decided.
pub(crate) fn no_answer() -> Undecided {
    Undecided::Unreachable { cause: "no answer in time".to_owned() }
}

/// The output of `operation` on a body of `body_bytes`. The operation goes on if it takes too long or the caller is
/// dropped. Its turns count as those of a connection.
pub(crate) async fn complete<T: Send + 'static>(
    shared: &Shared,
    budget: &LaterBudget,
    body_bytes: usize,
    operation: impl Future<Output = T> + Send + 'static,
) -> Result<T, Unfinished> {
    match shared.authority.answers() {
        Answers::AtOnce => Ok(operation.await),
        Answers::MostlyAtOnce | Answers::Later => {
            let bytes = body_bytes.saturating_mul(BYTES_PER_BODY_BYTE);
            let permit = budget.take(bytes).ok_or(Unfinished::Overloaded)?;
            let overload = shared.overload.clone();
            let task = tokio::spawn(async move {
                let output = overload.watch(operation).await;
                drop(permit);
                output
            });
            match tokio::time::timeout(ANSWER_MAX, task).await {
                Ok(Ok(output)) => return Ok(output),
                // It has panicked, and reported nothing.
                Ok(Err(_)) => shared.observer.refused(),
                Err(_) => shared.observer.undecided(&no_answer()),
            }
            Err(Unfinished::NoAnswer)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_bounds_number_and_memory() {
        let budget = LaterBudget::for_slots(8);
        let small: Vec<_> = (0..5).map(|_| budget.take(1)).collect();
        assert_eq!(small.iter().flatten().count(), 4);
        assert!(budget.take(BYTES_MAX / 2).is_none());
        drop(small);
        let large = budget.take(BYTES_MAX / 2);
        assert!(large.is_some() && budget.take(BYTES_MAX / 2 + 1).is_none());
        drop(large);
        // One alone may be larger than the budget.
        assert!(budget.take(usize::MAX).is_some());
    }
}
