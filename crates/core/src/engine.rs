//! Deciding several limits as one: all have room and are taken from, or none is.
//!
//! The caller holds the states (and their locks) for the time of the call. Several asks may name
//! the same state, as when a request carries one descriptor twice; each then sees what the
//! earlier ones took.

use crate::algorithm::decide;
use crate::answer::Verdict;
use crate::quota::{Decision, Quota, State};
use crate::units::{Hits, Timestamp};

/// Whether a limit has a say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforcement {
    /// It denies.
    Enforce,
    /// It counts and reports, but never denies.
    Shadow,
}

/// One limit asked for one request.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// The limit's rate.
    pub quota: &'a Quota,
    /// Whether its denial counts.
    pub enforcement: Enforcement,
    /// What the request costs here.
    pub hits: Hits,
    /// Which of the states holds the counter.
    pub state: usize,
}

/// Decides `asks` in order. On allow the states have the hits taken; on deny nothing is
/// taken. `decisions` gets one decision per ask: for a denied request those of limits with room
/// show what is left there, untouched.
///
/// # Panics
/// When an ask names a state that is not there.
pub fn decide_all(
    states: &mut [State],
    asks: &[Ask<'_>],
    now: Timestamp,
    decisions: &mut Vec<Decision>,
) -> Verdict {
    decisions.clear();
    let before: Vec<State> = states.to_vec();
    for ask in asks {
        decisions.push(decide(&mut states[ask.state], ask.quota, ask.hits, now));
    }
    let denied = |(ask, decision): (&Ask<'_>, &Decision)| {
        ask.enforcement == Enforcement::Enforce && !decision.is_allow()
    };
    if !asks.iter().zip(decisions.iter()).any(denied) {
        return Verdict::Allow;
    }
    states.copy_from_slice(&before);
    for (ask, decision) in asks.iter().zip(decisions.iter_mut()) {
        // Also for those that deny: a new bucket's time starts with the first look at it.
        let untouched = decide(&mut states[ask.state], ask.quota, Hits::PEEK, now);
        if decision.is_allow() {
            *decision = untouched;
        }
    }
    Verdict::Deny
}
