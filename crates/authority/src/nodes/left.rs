//! What is left under one limit of a descriptor, set by an operator.
//!
//! Hits are taken or given back as requests would, so windows keep their times. Where an algorithm cannot do that, as with
//! hits of earlier hours in an exact window, the counter starts anew.

use super::{Authority, Node, NodeError, limits};
use crate::plan::Words;
use tidegate_core::{Charge, Hits, Quota, Request, Timestamp, decide};
use tidegate_store::Hashed;

/// Why it was not set.
#[derive(Debug, thiserror::Error)]
pub enum LeftError {
    #[error("the descriptor has no limit {limit:?}; it has {known}")]
    UnknownLimit { limit: String, known: String },
    #[error("{limit} cannot have {left} hits left now; {most} at most")]
    CannotHave { limit: String, left: u64, most: u64 },
    #[error(transparent)]
    Node(#[from] NodeError),
}

impl Authority {
    /// Sets how many hits are left under the limit with this path, of the only descriptor of `request`. Returns how many
    /// were.
    pub async fn set_left(
        &self,
        request: &Request,
        limit: &str,
        left: u64,
        now: Timestamp,
    ) -> Result<u64, LeftError> {
        let site = self.true_site();
        let (now, seed) = (site.now(now), site.counters.seed());
        // An update may run several times; the last run counts.
        let (mut done, mut others) = (Ok(0), Vec::new());
        let change = |node: &Node<'_, '_, '_>, words: &mut Words| {
            others = Vec::new();
            done = set((node, words), (limit, left), seed, &mut others);
            Ok(())
        };
        self.with_node(request, now, change, |_| ()).await?;
        let before = done?;
        self.erase_parts(&others, now).await?;
        Ok(before)
    }
}

/// Changes the state of one limit. Adds the keys of parts of its counter that have to go.
fn set(
    (node, words): (&Node<'_, '_, '_>, &mut Words),
    (path, left): (&str, u64),
    seed: u64,
    others: &mut Vec<Hashed>,
) -> Result<u64, LeftError> {
    let named = limits(node.applied).position(|limit| limit.path == path);
    let Some((index, ask)) = named.and_then(|index| Some((index, node.plan.asks.get(index)?)))
    else {
        let known: Vec<&str> = limits(node.applied).map(|limit| limit.path.as_str()).collect();
        return Err(LeftError::UnknownLimit { limit: path.to_owned(), known: known.join(", ") });
    };
    let (quota, now) = (ask.quota, node.now);
    let state = &mut words[ask.state.clone()];
    let before = remaining(state, quota, now);
    let mut changed = moved(state, quota, left, now);
    if remaining(&changed, quota, now) != left {
        let unused = vec![0; changed.len()];
        changed = moved(&unused, quota, left, now);
        if remaining(&changed, quota, now) != left {
            let most = remaining(&unused, quota, now).max(before);
            return Err(LeftError::CannotHave { limit: path.to_owned(), left, most });
        }
        node.other_parts_of(index, seed, others);
    }
    state.copy_from_slice(&changed);
    Ok(before)
}

/// The state after as many hits were taken or given back as lack to `left`, if the algorithm can do that.
fn moved(state: &[u64], quota: &Quota, left: u64, now: Timestamp) -> Vec<u64> {
    let mut state = state.to_vec();
    let before = remaining(&state, quota, now);
    let charge = match before.checked_sub(left) {
        Some(0) => return state,
        Some(taken) => Charge::Take(Hits::new(taken)),
        None => Charge::Refund(Hits::new(left.saturating_sub(before))),
    };
    decide(&mut state, quota, charge, now);
    state
}

fn remaining(state: &[u64], quota: &Quota, now: Timestamp) -> u64 {
    decide(&mut state.to_vec(), quota, Charge::PEEK, now).remaining
}
