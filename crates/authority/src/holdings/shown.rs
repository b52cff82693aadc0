//! What a sidecar holds of a shared counter, for operators. Changes nothing.

use super::holding_key;
use std::sync::Arc;
use tidegate_core::{KeyHash, Quota, StateSize, Timestamp};
use tidegate_store::Hashed;

/// Tokens of a shared counter in the local counters of a sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldTokens {
    pub tokens: u64,
    /// Hits that the next refill charges to the shared counter.
    pub owed: u64,
    /// When the tokens end.
    pub until: Timestamp,
}

/// What local counters with this seed hold of `counter`, which has this quota. `read` fills in the words stored under a
/// key; they are zero before.
pub fn held_tokens<E>(
    (counter, quota): (KeyHash, &Quota),
    local_seed: u64,
    now: Timestamp,
    read: impl FnOnce(&Hashed, &mut [u64]) -> Result<(), E>,
) -> Result<HeldTokens, E> {
    let mut state = [0; StateSize::Narrow.words()];
    read(&holding_key(local_seed, counter), &mut state)?;
    let Quota::Held(held, _) = &Quota::held(Arc::new(quota.clone())) else {
        return Ok(HeldTokens { tokens: 0, owed: 0, until: now });
    };
    let until = Timestamp::from_nanos(state[1]);
    Ok(HeldTokens { tokens: held.tokens(&state, now), owed: held.owed(&state, now), until })
}
