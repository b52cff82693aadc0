//! Holdings: tokens that this sidecar has taken from counters that machines share, and decides with by itself.
//!
//! The states that count for all machines are in the *shared counters*. A *holding* is a state of the local counters
//! with tokens of one shared counter. A *refill* is one update of one shared counter that takes tokens into a holding.
//! Requests are decided over holdings in one local update, all or nothing, as without shared counters: so filter
//! leases, their records, returns and debits work over holdings unchanged.
//!
//! `site` says where a request is decided, `round` is one try to decide it over holdings, `rare` decides what needs no
//! holding, `flights` lets requests wait for the same refill, `refill` and `give_back` move tokens, `refunds` lets
//! refunds find the true state, `desk` is what this process knows of its holdings, `register` how many sidecars there are.
//! docs/internals/shared-authority.md has the bounds.
//!
//! Invariant: tokens are in one place at a time. They are taken out of the shared counter before they are put into the
//! holding, and out of the holding before they are given back. So a crash in between loses them, and never doubles
//! them.

mod apart;
mod desk;
mod flights;
mod give_back;
mod quotas;
mod rare;
mod refill;
mod refunds;
mod register;
mod round;
mod shown;
mod site;

pub(crate) use apart::{read as read_apart, reserve};
pub(crate) use quotas::HeldQuotas;
pub(crate) use round::{Round, Takes};
pub use shown::{HeldTokens, held_tokens};
pub(crate) use site::Site;

use crate::counters::{Counters, Undecided};
use crate::observer::Observer;
use arc_swap::ArcSwapOption;
use desk::Desk;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_core::{KeyHash, Quota, Timestamp};
use tidegate_store::Hashed;

/// Work that goes on after the request that began it.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Counters that machines share, and what belongs to them.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "functions have nothing to show")]
pub struct Shared {
    pub counters: Arc<dyn Counters>,
    /// The time of their server; never ahead of it. None before its first answer.
    pub clock: Arc<dyn Fn() -> Option<Timestamp> + Send + Sync>,
    /// Runs a task to its end.
    pub spawn: Arc<dyn Fn(Task) + Send + Sync>,
    /// A random number of this sidecar, the same for all its processes.
    pub sidecar: u64,
    pub failure: Failure,
}

/// What becomes of requests that only shared counters could decide while these cannot be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Failure {
    #[default]
    Deny,
    /// The limits in question let them pass, and count nothing.
    Allow,
    /// This sidecar admits its share of each limit, which is charged when the shared counters are back. Like `Deny` for
    /// limits that are not held, and as long as the number of sidecars is unknown.
    Local,
}

/// The holdings of this process.
pub(crate) struct Holdings {
    local: Arc<dyn Counters>,
    pub(crate) shared: Shared,
    observer: Arc<dyn Observer>,
    desk: Mutex<Desk>,
    recent: desk::Recent,
    /// Updates under way that decide requests on counters in rare use.
    rare: AtomicUsize,
    register: register::Register,
    sidecars: desk::Sidecars,
    /// Why the last refill failed, if it did.
    trouble: ArcSwapOption<String>,
}

/// A shared counter and its holding.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// The hash of the shared counter.
    hash: KeyHash,
    /// Of held tokens.
    quota: Quota,
}

/// A label that no part of a counter has, next to those of leases.
const HOLDING: u64 = 3 << 62 | 3;

/// The key of the holding of a shared counter.
pub(crate) fn holding_key(local_seed: u64, counter: KeyHash) -> Hashed {
    Hashed::narrow(counter.part(local_seed, HOLDING).0)
}

impl Holdings {
    pub(crate) fn new(
        local: Arc<dyn Counters>,
        shared: Shared,
        observer: Arc<dyn Observer>,
    ) -> Arc<Holdings> {
        Arc::new(Holdings {
            local,
            shared,
            observer,
            desk: Mutex::default(),
            recent: desk::Recent::default(),
            rare: AtomicUsize::new(0),
            register: register::Register::default(),
            sidecars: desk::Sidecars::default(),
            trouble: ArcSwapOption::empty(),
        })
    }

    pub(crate) fn now(&self) -> Option<Timestamp> {
        (self.shared.clock)()
    }

    /// Why the shared counters could not be reached lately.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.load().as_deref().cloned()
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn key(&self, target: &Target) -> Hashed {
        holding_key(self.local.seed(), target.hash)
    }

    /// Notes whether the shared counters were reached.
    fn note(&self, reached: Result<(), &Undecided>) {
        match reached {
            Ok(()) => {
                self.sidecars.reached();
                // Nearly always there is none, and each command comes here.
                if self.trouble.load().is_some() {
                    self.trouble.store(None);
                }
            }
            Err(error) => {
                if let Some(now) = self.now() {
                    self.sidecars.not_reached(now);
                }
                self.trouble.store(Some(Arc::new(error.to_string())));
                self.observer.shared_failed(error);
            }
        }
    }
}

/// The error for shared counters that never told the time.
fn never_reached() -> Undecided {
    Undecided::Unreachable { cause: "no answer yet".to_owned() }
}

#[cfg(test)]
mod tests;
