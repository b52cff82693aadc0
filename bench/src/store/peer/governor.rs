//! The governor crate with a state for each key in a `DashMap` of sufficient capacity.

use super::{BURST, Peer, PeerKind, REFILL};
use crate::store::keys::Keys;
use anyhow::Context;
use governor::clock::DefaultClock;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter};
use std::cell::RefCell;
use std::num::NonZeroU32;
use std::time::Duration;

pub(super) const KIND: PeerKind = PeerKind {
    name: "governor",
    build: |capacity, _| {
        let refill = Duration::from_nanos(REFILL.as_nanos());
        let burst = NonZeroU32::new(BURST).context("burst 0")?;
        let quota = Quota::with_period(refill).context("refill in no time")?.allow_burst(burst);
        let states = DashMapStateStore::with_capacity(capacity as usize);
        Ok(Box::new(Governor(RateLimiter::new(quota, states, DefaultClock::default()))))
    },
};

struct Governor(RateLimiter<String, DashMapStateStore<String>, DefaultClock>);

thread_local! {
    /// The limiter takes a `String`, but stores a clone, so one buffer serves all keys.
    static BUFFER: RefCell<String> = const { RefCell::new(String::new()) };
}

impl Peer for Governor {
    fn decide_each(&self, keys: &Keys, picks: &[u32]) -> u64 {
        BUFFER.with_borrow_mut(|key| {
            let mut allowed = 0;
            for &pick in picks {
                key.clear();
                key.push_str(keys.key(pick));
                allowed += u64::from(self.0.check_key(key).is_ok());
            }
            allowed
        })
    }
}
