//! A `HashMap` of Tidegate's own states behind one lock, with sufficient capacity. A batch takes the lock
//! once.

use super::{Peer, PeerKind, now, quota};
use crate::store::keys::Keys;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use tidegate_core::{Charge, Quota, decide};

pub(super) const KIND: PeerKind = PeerKind {
    name: "HashMap",
    build: |capacity, _| {
        let states = Mutex::new(HashMap::with_capacity(capacity as usize));
        Ok(Box::new(Locked { states, quota: quota()? }))
    },
};

struct Locked {
    states: Mutex<HashMap<String, [u64; 4]>>,
    quota: Quota,
}

impl Peer for Locked {
    fn decide_each(&self, keys: &Keys, picks: &[u32]) -> u64 {
        let now = now();
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let mut allowed = 0;
        for &pick in picks {
            let key = keys.key(pick);
            let decision = match states.get_mut(key) {
                Some(state) => decide(state, &self.quota, Charge::ONE, now),
                None => {
                    let state = states.entry(key.to_owned()).or_default();
                    decide(state, &self.quota, Charge::ONE, now)
                }
            };
            allowed += u64::from(decision.is_allow());
        }
        allowed
    }
}
