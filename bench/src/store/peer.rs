//! What is compared: one file for each, behind one trait, so that another peer is another file.

mod governor;
mod hash_map;
pub(super) mod tidegate;

use super::keys::Keys;
use anyhow::Context;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_core::{Nanos, Quota, Timestamp, TokenBucket};

/// Counters in the making of one peer.
pub(crate) trait Peer: Sync {
    /// Decides one hit on every picked key, and says how many were allowed. The clock is read
    /// once, unless the peer reads its own.
    fn decide_each(&self, keys: &Keys, picks: &[u32]) -> u64;

    /// The size of its files, if it keeps its counters in files.
    fn file_bytes(&self) -> anyhow::Result<Option<u64>> {
        Ok(None)
    }
}

/// A peer that can be built.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// With room for so many keys, and a directory for files, if it has any.
    pub(crate) build: fn(capacity: u32, dir: &Path) -> anyhow::Result<Box<dyn Peer>>,
}

/// The one that is measured, then those it is measured against.
pub(crate) const ALL: &[Kind] = &[tidegate::KIND, governor::KIND, hash_map::KIND];

/// The kind of this name.
///
/// # Errors
/// When there is none.
pub(crate) fn find(name: &str) -> anyhow::Result<&'static Kind> {
    ALL.iter().find(|kind| kind.name == name).with_context(|| format!("no peer is called {name}"))
}

/// More hits than a key gets in any run: at most 10^5 on each of 1,000 keys.
const BURST: u32 = 1_000_000;
/// A hit is remembered for as long as one token takes to refill, which no run does. The burst
/// refills in 3.6 × 10^18 ns, which fits the 64 bits that governor has for it.
const REFILL: Nanos = Nanos::from_secs(3_600);

/// The limit that everybody decides by.
fn quota() -> anyhow::Result<Quota> {
    Ok(Quota::TokenBucket(TokenBucket::new(1, REFILL, BURST, BURST)?))
}

/// As the sidecar reads it.
fn now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_nanos(u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_allows_what_is_below_the_limit() {
        let keys = Keys::new(0..100);
        let picks: Vec<u32> = (0..100).chain(0..100).collect();
        for kind in ALL {
            let dir = tempfile::tempdir().unwrap();
            let peer = (kind.build)(100, dir.path()).unwrap();
            assert_eq!(peer.decide_each(&keys, &picks), 200, "{}", kind.name);
            assert_eq!(peer.decide_each(&keys, &[7]), 1, "{}", kind.name);
        }
    }
}
