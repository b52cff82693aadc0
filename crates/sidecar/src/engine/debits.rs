//! Limits that are peeked at and debited after the fact, but do not count what they deny: a debit larger
//! than what is left takes nothing there, so that they limit nothing. Owns what the log says of them, once
//! for each limit while its rules are in force, and at most once a second.
//!
//! A limit cannot know whether an ask comes after the fact. So this is advice, not a decision.

use crate::accept::Sparingly;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use tidegate_core::{Charge, Decision, DeniedHits};
use tidegate_limits::{Limit, Rules};

/// How far a limit has come: a peek was seen, and it was logged that a debit was refused.
const PEEKED: u8 = 1;
const LOGGED: u8 = 2;

/// The limits in force that do not count denied hits.
#[derive(Debug, Default)]
pub(super) struct Debits {
    /// By address: limits stay where they are for as long as they are in force.
    limits: HashMap<usize, AtomicU8>,
    said: Mutex<Sparingly>,
}

impl Debits {
    pub(super) fn of(rules: &Rules) -> Debits {
        let spares = |limit: &&Limit| limit.denied == DeniedHits::Ignore;
        let limits = rules.limits().into_iter().filter(spares);
        let limits = limits.map(|limit| (address(limit), AtomicU8::new(0))).collect();
        Debits { limits, said: Mutex::default() }
    }

    /// Notes a peek, or an ask that was denied.
    pub(super) fn note(&self, limit: &Limit, charge: Charge, decision: &Decision) {
        // Where nothing is left, the next peek is denied as well.
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

    /// Of how many limits a refused debit was logged.
    #[cfg(test)]
    pub(super) fn logged(&self) -> usize {
        let states = self.limits.values().map(|state| state.load(Ordering::Relaxed));
        states.filter(|state| state & LOGGED != 0).count()
    }

    fn peeked(&self, limit: &Limit) {
        // A load first, since a line that is written is lost to the other cores.
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
        let may_be_said = self.said.lock().unwrap_or_else(PoisonError::into_inner).may_be_said();
        may_be_said && state.fetch_or(LOGGED, Ordering::Relaxed) & LOGGED == 0
    }
}

/// Where a limit is: its identity while it is in force. Compared, never followed.
fn address(limit: &Limit) -> usize {
    std::ptr::from_ref(limit).addr()
}
