//! The compared stores: one file for each, behind one trait.

mod governor;
mod hash_map;
pub(super) mod tidegate;

use super::keys::Keys;
use anyhow::Context;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_core::{Nanos, Quota, Timestamp, TokenBucket};

/// The counters of one peer.
pub(crate) trait Peer: Sync {
    /// Decides one hit on every picked key, and returns the number allowed. Reads the clock once, unless the
    /// peer reads its own.
    fn decide_each(&self, keys: &Keys, picks: &[u32]) -> u64;

    /// The size of its files, if it has any.
    fn file_bytes(&self) -> anyhow::Result<Option<u64>> {
        Ok(None)
    }
}

/// A peer that can be built.
#[derive(Debug)]
pub(crate) struct PeerKind {
    pub(crate) name: &'static str,
    /// Builds it with this capacity, and a directory for files.
    pub(crate) build: fn(capacity: u32, dir: &Path) -> anyhow::Result<Box<dyn Peer>>,
}

/// The measured store, then its peers.
pub(crate) const ALL: &[PeerKind] = &[tidegate::KIND, governor::KIND, hash_map::KIND];

/// The peer with this name.
///
/// # Errors
/// When there is none.
pub(crate) fn find(name: &str) -> anyhow::Result<&'static PeerKind> {
    ALL.iter().find(|kind| kind.name == name).with_context(|| format!("no peer is called {name}"))
}

/// More hits than a key gets in any run: at most 10^5 on each of 1,000 keys.
const BURST: u32 = 1_000_000;
/// The time to refill one token, longer than any run. The burst refills in 3.6 × 10^18 ns, which fits
/// governor's 64 bits.
const REFILL: Nanos = Nanos::from_secs(3_600);

/// The limit of all peers.
fn quota() -> anyhow::Result<Quota> {
    Ok(Quota::TokenBucket(TokenBucket::new(1, REFILL, BURST, BURST)?))
}

/// In the sidecar's form.
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
