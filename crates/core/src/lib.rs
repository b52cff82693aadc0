//! The deciding half of Tidegate: descriptors, rules, quotas, and the limit algorithms.
//!
//! Pure on purpose. It owns no clock (time is an argument), does no I/O, holds no lock, knows no
//! transport and has no unsafe code, so the same code decides in the sidecar, in the Envoy filter
//! (wasm32) and in tests. Callers bring the counters' states and store what comes back.
//!
//! ```
//! use tidegate_core::{FixedWindow, Hits, Nanos, Outcome, Quota, State, Timestamp, decide};
//!
//! let quota = Quota::FixedWindow(FixedWindow::new(1, Nanos::from_secs(60))?);
//! let mut state = State::default();
//! let now = Timestamp::from_secs(1_000_000);
//! assert!(decide(&mut state, &quota, Hits::ONE, now).is_allow());
//! let second = decide(&mut state, &quota, Hits::ONE, now);
//! assert_eq!(second.outcome, Outcome::Deny { retry_after: Nanos::from_secs(20) });
//! # Ok::<(), tidegate_core::QuotaError>(())
//! ```

mod algorithm;
mod answer;
mod descriptor;
mod engine;
mod key;
mod quota;
mod rules;
mod units;

pub use algorithm::{FixedWindow, TokenBucket, decide};
pub use answer::{Answer, LimitView, Status, Verdict};
pub use descriptor::{Descriptor, Entry, Request};
pub use engine::{Ask, Enforcement, decide_all};
pub use key::{CounterKey, KeyHash, fingerprint};
pub use quota::{Decision, Outcome, Quota, QuotaError, State};
pub use rules::{DomainRules, Found, Limit, Rule, RuleNode, Rules};
pub use units::{Hits, Nanos, Timestamp, Unit};
