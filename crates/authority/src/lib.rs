//! One request in, one answer out: limits, algorithms and counters together.
//!
//! Owns the limits in force, the plan of a request over its counters, leases, and the nodes of the FRS. All limits
//! of a request are decided in one update of all their counters: every one is charged, or none is. Refuses to
//! know transports, files of limits and processes; reports what happens to an [`Observer`].

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

mod answer;
mod applied;
mod authority;
mod call;
pub mod clock;
mod counters;
mod debits;
mod holdings;
mod in_force;
mod leases;
mod log_rate;
mod look;
mod modes;
mod nodes;
mod observer;
mod observers;
mod outcome;
mod plan;
mod preview;
mod reports;
mod standalone;
#[cfg(any(test, feature = "testing"))]
#[path = "tests/later_counters.rs"]
pub mod testing;
pub mod wakes;

pub use authority::{Authority, NoWideNodes};
pub use call::{Ask, CallError, Called, LaterCall};
pub use counters::{Answers, Counters, Reach, Undecided, Update, Updating, wait};
pub use holdings::{Failure, HeldTokens, Shared, Task, held_tokens};
pub use log_rate::OncePerSecond;
pub use look::Looked;
pub use modes::{DynamicMetadata, GlobalQuota, GlobalShadow, Modes};
pub use nodes::{Change, JointError, JointUse, LeftError, NodeError, NodeWindow, NodeWindows, Use};
pub use observer::{LimitObserver, Observer};
pub use observers::Observers;
pub use outcome::{DecidedIn, Fate, LimitOutcome, Met, Outcome, Shadow};
pub use plan::{Hashing, counter_keys};
pub use preview::{Previewed, preview};
pub use standalone::{open_standalone, open_store};

/// The cases over counters in shared memory.
#[cfg(test)]
mod tests;
/// The same cases over counters that answer later.
#[cfg(test)]
#[path = "tests.rs"]
#[expect(clippy::duplicate_mod, reason = "every case runs over both engines")]
mod tests_later;
