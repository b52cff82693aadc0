//! The decisions of Tidegate: descriptors, quotas, leases and the limit algorithms.
//!
//! Time is an argument. The crate has no clock, I/O, lock, transport or unsafe code, so the same code
//! decides in the sidecar, in the Envoy filter (wasm32) and in tests. Callers provide the states of
//! counters and store the updated ones.
//!
//! ```
//! use tidegate_core::{Charge, FixedWindow, Nanos, Outcome, Quota, Timestamp, decide};
//!
//! let quota = Quota::FixedWindow(FixedWindow::new(1, Nanos::from_secs(60))?);
//! let mut state = [0; 4];
//! let now = Timestamp::from_secs(1_000_000);
//! assert!(decide(&mut state, &quota, Charge::ONE, now).is_allow());
//! let second = decide(&mut state, &quota, Charge::ONE, now);
//! assert_eq!(second.outcome, Outcome::Deny { retry_after: Nanos::from_secs(20) });
//! # Ok::<(), tidegate_core::QuotaError>(())
//! ```

mod algorithm;
mod answer;
mod decide;
mod decision;
mod descriptor;
mod key;
mod lease;
mod metadata;
mod quota;
mod rate;
mod report;
mod state;
mod units;

pub use algorithm::{
    Alignment, DailyReset, FirstHitWindow, FixedWindow, GivenBack, Held, Lack, OpenWindow, Refill,
    SlidingBuckets, SlidingExact, SlidingWindow, TokenBucket, Zone,
};
pub use answer::{Answer, FurtherLimit, LimitView, Status, StatusDetails, Verdict};
pub use decide::{
    Decisions, DeniedHits, Enforcement, LimitCheck, charge_each, decide, decide_all, verdict,
};
pub use decision::{Decision, Outcome};
pub use descriptor::{Descriptor, Direction, Entry, LimitOverride, Request};
pub use key::{CounterKey, Identity, KeyHash, fingerprint};
pub use lease::{DebitRequest, Demand, HeaderForm, Lease, LeaseRequest, LeaseReturn, lease_tokens};
pub use metadata::Value;
pub use quota::Quota;
pub use rate::{Period, QuotaError};
pub use report::{Report, TalliedHits, Tally};
pub use state::{Parts, StateSize};
pub use units::{Charge, Hits, Nanos, Timestamp, Unit};
