//! A bound on the nodes that leases take, so that counters find room.
//!
//! Leases may take a sixteenth of the narrow nodes. At the default load all counters that the store was sized for
//! still find room then: the store is filled to 0.86. (Of 150 stores of 3,750 nodes, none refused a key at 0.875,
//! and two at 0.9.)
//!
//! Owns an account of the nodes that this process created for leases, by their expiry. It is never far too low:
//! each node is entered when it is created, and leaves when it expires or is erased. Nodes of other processes and
//! of earlier runs are not in it, so the processes of one service share the room.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_core::{Nanos, Timestamp};

/// One of this many narrow nodes.
const SHARE: u64 = 16;
/// One of this many nodes of leases, beside them: a worker of a proxy has one sequence of debits. But at least
/// these few.
const DEBITS_SHARE: u64 = 8;
const DEBITS_MIN: u64 = 4;
const BUCKETS: usize = 16;
const SECOND: u64 = 1_000_000_000;
/// The bits of a bucket that count nodes; the bits above are the number of its period.
const NODES: u64 = (1 << 32) - 1;

/// The account.
#[derive(Debug)]
pub(crate) struct LeaseRoom {
    most: u64,
    /// The length of a period, in seconds.
    period: u64,
    /// The nodes that expire in a period, at its number modulo the number of buckets.
    buckets: [AtomicU64; BUCKETS],
}

/// What an update did to a node of a lease, with the node's expiry.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RoomChange {
    Enter(u64),
    Remove(u64),
}

impl LeaseRoom {
    /// The room for leases of up to `ttl` among `nodes` narrow nodes, for one of `lessors` processes.
    ///
    /// A process may erase a node that another created, and enters that in its own account. Then one account is
    /// too high and the other too low, and their sum is right.
    pub(crate) fn new(nodes: u64, ttl: Nanos, lessors: NonZeroU32) -> LeaseRoom {
        LeaseRoom::of(share(nodes, lessors), ttl)
    }

    /// The room for the last debits of sequences, which are kept for `time`.
    pub(crate) fn of_debits(nodes: u64, time: Nanos, lessors: NonZeroU32) -> LeaseRoom {
        let most = share(nodes, lessors) / DEBITS_SHARE;
        LeaseRoom::of(most.max(DEBITS_MIN), Nanos::new(time.as_nanos().div_ceil(2)))
    }

    fn of(most: u64, ttl: Nanos) -> LeaseRoom {
        // The users of a counter are kept for two periods of `ttl`, with slack, rounded up.
        let longest = ttl.as_nanos().saturating_mul(2).div_ceil(SECOND).saturating_add(2);
        let period = longest.div_ceil(BUCKETS as u64 - 2).max(1);
        LeaseRoom { most, period, buckets: [const { AtomicU64::new(0) }; BUCKETS] }
    }

    /// The number of nodes that may still be created.
    pub(crate) fn left(&self, now: Timestamp) -> u64 {
        let present = self.period_of(now.as_nanos());
        let buckets = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        let taken: u64 =
            buckets.filter(|word| word >> 32 >= present).map(|word| word & NODES).sum();
        self.most.saturating_sub(taken)
    }

    /// Accounts for changes that were committed.
    pub(crate) fn apply(&self, changes: &[RoomChange]) {
        for change in changes {
            match *change {
                RoomChange::Enter(expires_at) => self.enter(expires_at),
                RoomChange::Remove(expires_at) => self.remove(expires_at),
            }
        }
    }

    /// Enters a node with this expiry.
    fn enter(&self, expires_at: u64) {
        let period = self.period_of(expires_at);
        self.change(period, |word| match word >> 32 {
            of if of < period => Some(period << 32 | 1),
            of if of == period && word & NODES < NODES => Some(word + 1),
            _ => None,
        });
    }

    /// Removes a node with this expiry, which is gone or expires later.
    fn remove(&self, expires_at: u64) {
        let period = self.period_of(expires_at);
        self.change(period, |word| (word >> 32 == period && word & NODES > 0).then(|| word - 1));
    }

    fn change(&self, period: u64, to: impl FnMut(u64) -> Option<u64>) {
        let bucket = &self.buckets[(period % BUCKETS as u64) as usize];
        // Relaxed: nothing else is ordered by this number.
        let _ = bucket.fetch_update(Ordering::Relaxed, Ordering::Relaxed, to);
    }

    /// The store keeps whole seconds, rounded up, until the year 2106.
    fn period_of(&self, nanos: u64) -> u64 {
        nanos.div_ceil(SECOND).min(NODES) / self.period
    }
}

/// The number of narrow nodes for the leases of one process.
fn share(nodes: u64, lessors: NonZeroU32) -> u64 {
    nodes / SHARE / u64::from(lessors.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn nodes_take_room_until_they_expire_or_are_gone() {
        let room = LeaseRoom::of(10, Nanos::from_secs(2));
        for millis in [5_500, 5_900, 7_000] {
            room.enter(at(millis).as_nanos());
        }
        assert_eq!(room.left(at(0)), 7);
        room.remove(at(5_999).as_nanos());
        assert_eq!(room.left(at(0)), 8);
        assert_eq!(room.left(at(6_000)), 8);
        assert_eq!(room.left(at(6_001)), 9);
        assert_eq!(room.left(at(7_001)), 10);
        // Nodes that are not in the account.
        for millis in [5_999, 5_999, 99_000] {
            room.remove(at(millis).as_nanos());
        }
        assert_eq!(room.left(at(0)), 9);
    }

    #[test]
    fn all_processes_together_have_no_more_than_one_alone() {
        for nodes in [0, 15, 16, 17, 1_000, 1_310_720] {
            let alone = share(nodes, NonZeroU32::MIN);
            assert_eq!(alone, nodes / 16);
            for lessors in 1..=30 {
                let each = share(nodes, NonZeroU32::new(lessors).unwrap());
                let all = each * u64::from(lessors);
                assert!((alone.saturating_sub(29)..=alone).contains(&all), "{all} of {alone}");
            }
        }
    }

    #[test]
    fn no_more_is_left_than_nothing_and_periods_of_any_length_fit() {
        for secs in [1, 2, 7, 60] {
            let room = LeaseRoom::of(1_000, Nanos::from_secs(secs));
            let longest = 2 * secs + 2;
            for now in 0..1_000 {
                room.enter(at((now + longest) * 1_000).as_nanos());
                let taken = 1_000 - room.left(at(now * 1_000));
                let expected = (now + 1).min(longest + 1);
                assert!((expected..=expected + room.period).contains(&taken), "{taken} of {secs}");
            }
        }
        let room = LeaseRoom::of(1, Nanos::from_secs(2));
        room.enter(at(1_000).as_nanos());
        room.enter(at(1_000).as_nanos());
        assert_eq!(room.left(at(0)), 0);
        room.enter(u64::MAX);
        assert_eq!(room.left(Timestamp::from_nanos(u64::MAX)), 0);
    }

    /// A node of an earlier period has expired, or expires long before those that are counted in its place.
    #[test]
    fn nodes_of_an_earlier_period_take_no_room_of_a_later_one() {
        let room = LeaseRoom::of(10, Nanos::from_secs(2));
        room.enter(at(20_000).as_nanos());
        room.enter(at(4_000).as_nanos());
        room.remove(at(4_000).as_nanos());
        assert_eq!(room.left(at(0)), 9);
        room.enter(at(36_000).as_nanos());
        assert_eq!(room.left(at(0)), 9);
        // As many as can be counted.
        let full = 5 << 32 | NODES;
        room.buckets[5].store(full, Ordering::Relaxed);
        room.enter(at(5_000).as_nanos());
        assert_eq!(room.buckets[5].load(Ordering::Relaxed), full);
    }
}
