//! Advice in the log on limits that are peeked at first and debited after the fact, without `count_denied`.
//!
//! A debit larger than what remains takes nothing from such a limit, so it limits nothing. The sidecar cannot
//! know which requests are debits, so this is advice and changes no decision. It is logged once for each limit
//! while its rules are in force, and at most once a second.

use crate::log_rate::OncePerSecond;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use tidegate_core::{Charge, Decision, DeniedHits};
use tidegate_limits::{Limit, Rules};

/// The states of a limit: a peek was seen; a refused debit was logged.
const PEEKED: u8 = 1;
const LOGGED: u8 = 2;

/// The limits in force that do not count denied hits.
#[derive(Debug, Default)]
pub(crate) struct Debits {
    /// By address, which is stable while the limits are in force.
    limits: HashMap<usize, AtomicU8>,
    said: Mutex<OncePerSecond>,
}

impl Debits {
    pub(crate) fn of(rules: &Rules) -> Debits {
        let spares = |limit: &&Limit| limit.denied == DeniedHits::Ignore;
        let limits = rules.limits().into_iter().filter(spares);
        let limits = limits.map(|limit| (address(limit), AtomicU8::new(0))).collect();
        Debits { limits, said: Mutex::default() }
    }

    /// Notes a peek or a denied request.
    pub(crate) fn note(&self, limit: &Limit, charge: Charge, decision: &Decision) {
        // Where nothing remains, the next peek is denied as well.
        let is_refused = decision.remaining > 0 && !decision.is_allow();
        match charge {
            Charge::PEEK => self.peeked(limit),
            Charge::Take(hits) if is_refused && self.is_due(limit) => {
                tracing::warn!(
                    limit = limit.path,
                    hits = hits.get(),
                    left = decision.remaining,
                    "this limit is peeked at, and an ask for more than was left took nothing; if such asks \
                     are debits after the fact, set count_denied: true, or it limits nothing"
                );
            }
            _ => {}
        }
    }

    /// The number of limits with a logged debit.
    #[cfg(test)]
    pub(crate) fn logged(&self) -> usize {
        let states = self.limits.values().map(|state| state.load(Ordering::Relaxed));
        states.filter(|state| state & LOGGED != 0).count()
    }

    fn peeked(&self, limit: &Limit) {
        // Load first: a write takes the cache line from the other cores.
        if let Some(state) = self.limits.get(&address(limit))
            && state.load(Ordering::Relaxed) & PEEKED == 0
        {
            state.fetch_or(PEEKED, Ordering::Relaxed);
        }
    }

    /// Whether a refusal is to be logged now.
    fn is_due(&self, limit: &Limit) -> bool {
        let Some(state) = self.limits.get(&address(limit)) else { return false };
        if state.load(Ordering::Relaxed) != PEEKED {
            return false;
        }
        let may_be_said = self.said.lock().unwrap_or_else(PoisonError::into_inner).is_due();
        may_be_said && state.fetch_or(LOGGED, Ordering::Relaxed) & LOGGED == 0
    }
}

/// The address of a limit identifies it while it is in force. It is compared and never followed.
fn address(limit: &Limit) -> usize {
    std::ptr::from_ref(limit).addr()
}
