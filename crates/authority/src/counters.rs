//! Counters, wherever they are: a few words of state for each key, updated all or none.
//!
//! Owns what an engine of counters must do, and the engine over shared memory. An update is a pure function of the
//! states of its keys, so an engine may run it again on fresh states, for example after it lost a compare-and-set.
//! Whatever follows from a decision (reports, metrics, accounts) happens after the update was committed. Knows no
//! limit and no algorithm.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use tidegate_core::{KeyHash, Timestamp};
use tidegate_store::{Class, Cluster, Entries, Hashed, UpdateError};

/// Changes the states of the keys of one update, in their order. Depends on nothing but these states, and what it
/// leaves behind is from its last run.
pub type Update<'u> = dyn FnMut(&mut Entries<'_>) + Send + 'u;

/// Why the states of an update were not replaced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Undecided {
    /// The store refuses the update. Other engines refuse in the same way what does not fit.
    #[error(transparent)]
    Store(#[from] UpdateError),
    /// The engine is elsewhere and does not answer.
    #[error("the counters cannot be reached: {cause}")]
    Unreachable { cause: String },
    /// Only counters that answer later can decide, and the caller does not wait. Nothing has happened.
    #[error("the counters that machines share must be asked")]
    WouldWait {
        /// Whether one update of them decides the request, as nothing of them is held.
        is_rare: bool,
    },
    /// The domain is unknown, and limits are still to come.
    #[error("no limits of this domain have arrived yet")]
    LimitsAwaited,
}

/// Whether the caller of an operation waits for counters that answer later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    Waits,
    /// The operation ends when it is first polled, with [`Undecided::WouldWait`] if need be.
    AtOnce,
    /// The counters that machines share were asked, and could not be reached.
    Failed,
}

impl Undecided {
    /// Whether an update of fewer keys may be decided.
    pub fn is_too_large(&self) -> bool {
        matches!(self, Undecided::Store(UpdateError::TooLarge { .. }))
    }

    /// Whether the update may have been committed nevertheless.
    pub fn may_be_committed(&self) -> bool {
        match self {
            Undecided::Store(error) => matches!(error, UpdateError::DataLoss),
            Undecided::Unreachable { .. } => true,
            Undecided::WouldWait { .. } | Undecided::LimitsAwaited => false,
        }
    }
}

/// An engine of counters.
pub trait Counters: Send + Sync {
    /// The seed for hashing keys. Never changes.
    fn seed(&self) -> u64;

    /// The words of the largest state that the engine keeps.
    fn state_words(&self) -> usize;

    /// How many narrow states the engine has room for, at least. Leases take a share of them.
    fn capacity(&self) -> u64;

    /// When updates end.
    fn answers(&self) -> Answers;

    /// The keys that one update may have.
    fn reach(&self) -> Reach {
        Reach::All
    }

    /// Whether limits per second have places of their own ([`tidegate_core::KeyHash::per_second`]).
    fn divides_seconds(&self) -> bool {
        false
    }

    /// Passes the states of `keys` to `update` and commits the changed ones: all or none. States that have expired
    /// at `now` are new. A state that is left all zero, or whose expiry is not in the future, is forgotten.
    ///
    /// On success, the last run of `update` was on the states that its changes replaced. After an error nothing was
    /// committed, except possibly after a loss of data or of the connection.
    ///
    /// An update that was begun may be committed although its future is dropped. An engine that answers later must
    /// answer within a bounded time.
    fn update<'u>(
        &'u self,
        keys: &'u [Hashed],
        now: Timestamp,
        update: &'u mut Update<'u>,
    ) -> Updating<'u>;
}

/// When an engine answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// Within the call: every update is [`Updating::Done`].
    AtOnce,
    /// Within the call, unless a counter has to be brought from elsewhere first. An update whose future pends has not run,
    /// and does not run unless it is polled again.
    MostlyAtOnce,
    /// The answer may come from another thread.
    Later,
}

impl Answers {
    /// Whether a caller may have to wait for an answer.
    #[must_use]
    pub fn may_come_later(self) -> bool {
        self != Answers::AtOnce
    }
}

/// The keys that one update may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    All,
    /// Those of limits per second, or those of others.
    Kind,
    /// Those of one place ([`tidegate_core::KeyHash::place`]).
    Place,
}

impl Reach {
    /// The keys of one update have the same number.
    #[must_use]
    pub fn number(self, hash: KeyHash) -> u64 {
        match self {
            Reach::All => 0,
            Reach::Kind => hash.is_per_second().into(),
            Reach::Place => hash.place(),
        }
    }
}

/// An update under way.
#[expect(missing_debug_implementations, reason = "a future has nothing to show")]
pub enum Updating<'u> {
    Done(Result<(), Undecided>),
    Later(Pin<Box<dyn Future<Output = Result<(), Undecided>> + Send + 'u>>),
}

impl Future for Updating<'_> {
    type Output = Result<(), Undecided>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Updating::Done(result) => Poll::Ready(std::mem::replace(result, Ok(()))),
            Updating::Later(updating) => updating.as_mut().poll(context),
        }
    }
}

/// Counters in memory that processes share.
impl Counters for Cluster {
    fn seed(&self) -> u64 {
        Cluster::seed(self)
    }

    fn state_words(&self) -> usize {
        let words = |class| Some(self.geometry(class)?.state_words() as usize);
        words(Class::Narrow).max(words(Class::Wide)).unwrap_or(0)
    }

    fn capacity(&self) -> u64 {
        self.geometry(Class::Narrow).map_or(0, |geometry| geometry.nodes())
    }

    fn answers(&self) -> Answers {
        Answers::AtOnce
    }

    fn update<'u>(
        &'u self,
        keys: &'u [Hashed],
        now: Timestamp,
        update: &'u mut Update<'u>,
    ) -> Updating<'u> {
        let updated = self.update_many(keys, now.as_nanos(), |entries| update(entries));
        Updating::Done(updated.map_err(Undecided::Store))
    }
}

/// The output of `operation` if it ends when it is polled once. Otherwise the operation is dropped.
pub(crate) fn at_once<F: Future>(operation: F) -> Option<F::Output> {
    match pin!(operation).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// The output of `operation`. Blocks the thread while an engine answers later, and never if it answers at once.
pub fn wait<F: Future>(operation: F) -> F::Output {
    let mut operation = pin!(operation);
    match operation.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => wait_parked(operation),
    }
}

#[cold]
fn wait_parked<F: Future>(mut operation: Pin<&mut F>) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match operation.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
