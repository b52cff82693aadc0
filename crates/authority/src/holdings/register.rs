//! The register of sidecars: how many share these counters, and which bit of [`CounterUsers`] is whose.
//!
//! It is in the shared counters: a few wide entries with a word for each sidecar, with its number in the upper half and
//! the second until which it counts in the lower one. Each sidecar renews its word. So one that has ended is forgotten,
//! and one without traffic is not.
//!
//! Nothing waits for it. While it cannot be reached, or all words are taken, a sidecar goes on without a bit of its own.
//!
//! [`CounterUsers`]: crate::leases::CounterUsers

use super::Holdings;
use crate::leases::Proxy;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tidegate_core::{KeyHash, Nanos, Timestamp};
use tidegate_store::{Entries, Hashed};

/// A label that no part of a counter has, next to that of holdings.
const REGISTER: u64 = 3 << 62 | 4;
/// For 256 sidecars. Further ones are not counted.
const ENTRIES: usize = 8;
/// The words of an entry that are used.
const WORDS: usize = 32;
/// How long a word counts after it was renewed.
const COUNTS: Nanos = Nanos::from_secs(60);
const RENEWED_EVERY: Nanos = Nanos::from_secs(20);
/// After a failure.
const AGAIN: Nanos = Nanos::from_secs(1);

/// What this process knows of the register.
#[derive(Debug, Default)]
pub(super) struct Register {
    /// The word of this sidecar, counted from 1; 0 while it has none.
    word: AtomicU32,
    /// When it is to be renewed, in nanoseconds since the Unix epoch.
    due: AtomicU64,
}

impl Register {
    /// This sidecar among the users of a counter.
    pub(super) fn sidecar(&self) -> Option<Proxy> {
        // Relaxed, here and below: nothing depends on the order of both words.
        self.word.load(Ordering::Relaxed).checked_sub(1).map(Proxy::numbered)
    }

    /// Whether it is to be renewed now, by the caller.
    fn is_due(&self, now: Timestamp) -> bool {
        let due = self.due.load(Ordering::Relaxed);
        let next = now.saturating_add(AGAIN).as_nanos();
        due <= now.as_nanos()
            && self.due.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn renewed(&self, word: Option<usize>, now: Timestamp) {
        let word = word.and_then(|word| u32::try_from(word + 1).ok()).unwrap_or(0);
        self.word.store(word, Ordering::Relaxed);
        self.due.store(now.saturating_add(RENEWED_EVERY).as_nanos(), Ordering::Relaxed);
    }
}

impl Holdings {
    /// Registers this sidecar, if that is due.
    pub(super) fn register(self: &Arc<Self>, now: Timestamp) {
        if self.register.is_due(now) {
            let holdings = self.clone();
            (self.shared.spawn)(Box::pin(async move { holdings.renew(now).await }));
        }
    }

    async fn renew(&self, now: Timestamp) {
        let counters = &self.shared.counters;
        let keys = keys(counters.seed());
        let (own, mut found) = (number(self.shared.sidecar), (None, 0));
        let mut update = |entries: &mut Entries<'_>| found = renew(entries, own, now);
        match counters.update(&keys, now, &mut update).await {
            Ok(()) => {
                let (word, sidecars) = found;
                self.register.renewed(word, now);
                self.sidecars.note(sidecars, now);
                self.sidecars.reached();
            }
            Err(_) => self.sidecars.not_reached(now),
        }
    }
}

fn keys(seed: u64) -> [Hashed; ENTRIES] {
    std::array::from_fn(|index| Hashed::wide(KeyHash(0).part(seed, REGISTER + index as u64).0))
}

/// The number of a sidecar in the register, never 0.
fn number(sidecar: u64) -> u32 {
    ((sidecar ^ sidecar >> 32) as u32).max(1)
}

/// Renews the word of `own`, or takes the first one that does not count. Returns it, and how many sidecars there are.
fn renew(entries: &mut Entries<'_>, own: u32, now: Timestamp) -> (Option<usize>, u32) {
    let until = |time: Timestamp| time.as_nanos() / 1_000_000_000;
    let present = until(now);
    let (mut of_own, mut free, mut others) = (None, None, 0);
    for word in 0..ENTRIES * WORDS {
        let Some(value) = entries.get(word / WORDS).state.get(word % WORDS).copied() else {
            continue;
        };
        if value >> 32 == u64::from(own) {
            of_own = of_own.or(Some(word));
        } else if value & u64::from(u32::MAX) > present {
            others += 1;
        } else {
            free = free.or(Some(word));
        }
    }
    let word = of_own.or(free);
    if let Some(word) = word {
        let ends_at = now.saturating_add(COUNTS);
        let entry = entries.get(word / WORDS);
        if let Some(value) = entry.state.get_mut(word % WORDS) {
            *value = u64::from(own) << 32 | until(ends_at);
        }
        *entry.expires_at = (*entry.expires_at).max(ends_at.as_nanos());
    }
    (word, others + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_store::{Cluster, Geometry, Options};

    fn cluster() -> Cluster {
        let wide = Geometry::wide_by_capacity(64, 0.8, 33).expect("a geometry");
        let narrow = Geometry::by_capacity(64, 0.8).expect("a geometry");
        let options = Options { wide: Some(wide), ..Options::narrow(narrow) };
        Cluster::in_memory(&options).expect("a cluster")
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(1_000_000 + seconds)
    }

    fn renewed(cluster: &Cluster, own: u32, now: Timestamp) -> (Option<usize>, u32) {
        let mut found = (None, 0);
        cluster
            .update_many(&keys(7), now.as_nanos(), |entries| found = renew(entries, own, now))
            .expect("an update");
        found
    }

    #[test]
    fn a_sidecar_keeps_its_word_and_is_forgotten_without_it() {
        let cluster = cluster();
        assert_eq!(renewed(&cluster, 11, at(0)), (Some(0), 1));
        assert_eq!(renewed(&cluster, 12, at(5)), (Some(1), 2));
        assert_eq!(renewed(&cluster, 11, at(20)), (Some(0), 2));
        assert_eq!(renewed(&cluster, 11, at(64)), (Some(0), 2));
        assert_eq!(renewed(&cluster, 11, at(65)), (Some(0), 1));
        // Another one has taken its word meanwhile.
        assert_eq!(renewed(&cluster, 13, at(70)), (Some(1), 2));
        assert_eq!(renewed(&cluster, 12, at(71)), (Some(2), 3));
        assert_eq!(renewed(&cluster, 14, at(200)), (Some(0), 1));
    }

    #[test]
    fn a_sidecar_that_finds_no_word_counts_itself() {
        let cluster = cluster();
        for own in 1..=256 {
            assert_eq!(renewed(&cluster, own, at(0)), (Some(own as usize - 1), own));
        }
        assert_eq!(renewed(&cluster, 257, at(0)), (None, 257));
        assert_eq!(renewed(&cluster, 256, at(1)), (Some(255), 256));
    }

    #[test]
    fn every_number_is_one_that_a_word_can_have() {
        for (sidecar, expected) in [(0, 1), (1, 1), (1 << 32, 1), (u64::MAX, 1), (5 << 32, 5)] {
            assert_eq!(number(sidecar), expected);
        }
    }
}
