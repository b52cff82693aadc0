//! A look at one request and its counters, for operators: the decision on it without effect.
//!
//! Reads counters one by one, so the state of a busy one may be a moment older than the next. Decides on copies.

use crate::authority::Authority;
use crate::counters::{Undecided, wait};
use crate::holdings::{HeldTokens, held_tokens};
use crate::preview::{Previewed, preview};
use std::collections::HashMap;
use std::convert::Infallible;
use tidegate_core::{Request, Timestamp, Verdict};
use tidegate_store::{Entries, Hashed};

/// The decision on a request, had it come.
#[derive(Debug)]
pub struct Looked {
    pub verdict: Verdict,
    /// Every limit that takes part, in the order of the descriptors.
    pub limits: Vec<Previewed>,
    /// The time of the counters.
    pub now: Timestamp,
    /// What this sidecar holds of the counter of each limit, if machines share them.
    held: Vec<HeldTokens>,
}

impl Looked {
    /// What this sidecar holds of the counter of one of the limits.
    #[must_use]
    pub fn held_of(&self, limit: &Previewed) -> Option<&HeldTokens> {
        let index = self.limits.iter().position(|other| std::ptr::eq(other, limit))?;
        self.held.get(index)
    }
}

impl Authority {
    /// Looks at `request`. Counts nothing and reports nothing.
    pub async fn look(&self, request: &Request, now: Timestamp) -> Result<Looked, Undecided> {
        let limits = self.limits.load_full();
        let site = self.true_site();
        let now = site.now(now);
        let mut wanted: Vec<(Hashed, usize)> = Vec::new();
        let note = |key: &Hashed, words: &mut [u64]| {
            wanted.push((*key, words.len()));
            Ok::<_, Infallible>(())
        };
        let Ok(_) = preview(&limits.rules, request, site.hashing(), now, note);
        let mut states: HashMap<Hashed, Vec<u64>> = HashMap::new();
        for (key, words) in wanted {
            let mut state = vec![0; words];
            let mut read = |entries: &mut Entries<'_>| copy(entries, &mut state);
            site.counters.update(&[key], now, &mut read).await?;
            states.insert(key, state);
        }
        let fill = |key: &Hashed, words: &mut [u64]| {
            if let Some(state) = states.get(key) {
                words.copy_from_slice(state);
            }
            Ok::<_, Infallible>(())
        };
        let Ok((verdict, limits)) = preview(&limits.rules, request, site.hashing(), now, fill);
        let mut held = Vec::new();
        if self.holdings.is_some() {
            for limit in &limits {
                let counter = (limit.counter, &limit.limit.quota);
                // Holdings are in local counters, which answer at once.
                held.push(held_tokens(counter, self.counters.seed(), now, |key, words| {
                    let mut read = |entries: &mut Entries<'_>| copy(entries, words);
                    wait(self.counters.update(&[*key], now, &mut read))
                })?);
            }
        }
        Ok(Looked { verdict, limits, now, held })
    }
}

/// Copies the state of the only entry.
fn copy(entries: &mut Entries<'_>, state: &mut [u64]) {
    let entry = entries.get(0);
    for (word, stored) in state.iter_mut().zip(&*entry.state) {
        *word = *stored;
    }
}
