//! The local counters of a sidecar whose limits other machines share: the real ones, with a seed that is the same in each
//! run, and with deliberate faults.

use crate::mutation::Mutation;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidegate_authority::{Answers, Counters, Update, Updating};
use tidegate_core::Timestamp;
use tidegate_store::{Cluster, Entries, Hashed};

pub(crate) struct Local {
    store: Arc<Cluster>,
    seed: u64,
    mutation: Option<Mutation>,
    /// Tokens are being given back.
    pub(crate) is_tending: AtomicBool,
}

impl Local {
    pub(crate) fn new(store: Arc<Cluster>, seed: u64, mutation: Option<Mutation>) -> Local {
        Local { store, seed, mutation, is_tending: AtomicBool::new(false) }
    }

    /// Makes a fault in the update of one holding, whose first word is its tokens.
    fn update_wrongly(
        &self,
        key: &[Hashed],
        now: Timestamp,
        update: &mut Update<'_>,
    ) -> Updating<'static> {
        // Relaxed: the simulator has one thread.
        let is_tending = self.is_tending.load(Ordering::Relaxed);
        let mut wrong = |entries: &mut Entries<'_>| {
            let before = entries.get(0).state.to_vec();
            let expiry = *entries.get(0).expires_at;
            update(entries);
            let entry = entries.get(0);
            match self.mutation {
                Some(Mutation::RefillsCountTwice) if entry.state[0] > before[0] => update(entries),
                Some(Mutation::GivenBackIsKept) if is_tending => {
                    entry.state.copy_from_slice(&before);
                    *entry.expires_at = expiry;
                }
                _ => {}
            }
        };
        let updated = self.store.update_many(key, now.as_nanos(), |entries| wrong(entries));
        Updating::Done(updated.map_err(Into::into))
    }
}

impl Counters for Local {
    fn seed(&self) -> u64 {
        self.seed
    }

    fn state_words(&self) -> usize {
        self.store.state_words()
    }

    fn capacity(&self) -> u64 {
        Counters::capacity(&*self.store)
    }

    fn answers(&self) -> Answers {
        Answers::AtOnce
    }

    fn update<'u>(
        &'u self,
        keys: &'u [Hashed],
        now: Timestamp,
        update: &'u mut Update<'u>,
    ) -> Updating<'u> {
        match (self.mutation, keys) {
            (Some(_), [_]) => self.update_wrongly(keys, now, update),
            _ => Counters::update(&*self.store, keys, now, update),
        }
    }
}
