//! What the store keeps of leases: a record of each, and who uses a counter.
//!
//! Both are narrow nodes of four words, which expire as counters do. No rule leads to their keys: that of
//! a record is the hash of the lease's id, that of a counter's users a further part of the counter.
//!
//! | words of a record | of a counter's users |
//! | --- | --- |
//! | tokens that are still held, and a bit for each return | the number of the period, plus 1 |
//! | when it ends, in ns since the Unix epoch | the proxies of this period, a bit each |
//! | the digest of its counters and windows | those of the period before |
//! | when the counters reckon it was charged, in ns | when the last of their leases ends, in ns |
//!
//! Invariant: what a record says is held was charged to the counters of its digest and not given back.
//! Who uses a counter only makes leases larger or smaller and denials longer or shorter; it may be lost.

use tidegate_core::{KeyHash, Nanos, Timestamp};
use tidegate_store::{EntryMut, Hashed, Room};
use tidegate_wire::DESCRIPTORS_MAX;

/// Labels that no part of a counter has: those of the exact sliding window have other top bits.
const USERS: u64 = 3 << 62;
const RECORD: u64 = USERS | 1;

/// The key of the record of lease `id`.
pub(super) fn record_key(seed: u64, id: u64) -> Hashed {
    Hashed::narrow(KeyHash(id.into()).part(seed, RECORD).0)
}

/// The key of those who use a counter.
pub(super) fn users_key(seed: u64, counter: KeyHash) -> Hashed {
    Hashed::narrow(counter.part(seed, USERS).0)
}

/// Another number for each number, with no order to be seen (the finalizer of splitmix64).
fn scattered(number: u64) -> u64 {
    let mut mixed = number;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The counters that a lease was charged to, and the window of each that it was counted in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Digest(u128);

impl Digest {
    pub(super) fn with(self, seed: u64, counter: KeyHash, window_end: Timestamp) -> Digest {
        Digest(KeyHash(self.0 ^ counter.0).part(seed, window_end.as_nanos()).0)
    }

    fn word(self) -> u64 {
        (self.0 >> 64) as u64
    }
}

/// What tells a return of a lease from another, so that one that comes twice is taken once: a bit of
/// 32. The calls of a client are numbered in order, so that each return of a lease has its own, but
/// for a chance between several workers; then tokens stay charged that need not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReturnStamp(u32);

impl ReturnStamp {
    /// That of a return with number `call`.
    pub(super) fn new(call: u64) -> ReturnStamp {
        ReturnStamp(1 << ((call / DESCRIPTORS_MAX as u64) % 32))
    }
}

/// A lease of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) held: u32,
    /// A bit, of 32, for each return that was taken.
    returns: u32,
    pub(super) ends_at: Timestamp,
    digest: u64,
    /// When the counters reckon that it was charged.
    pub(super) charged_at: Timestamp,
}

impl Record {
    pub(super) fn new(
        held: u32,
        ends_at: Timestamp,
        digest: Digest,
        charged_at: Timestamp,
    ) -> Record {
        Record { held, returns: 0, ends_at, digest: digest.word(), charged_at }
    }

    /// The record in an entry, if it has one.
    pub(super) fn read(entry: &EntryMut<'_>) -> Option<Record> {
        let [word, ends_at, digest, charged_at] = *entry.state.first_chunk()?;
        let (held, returns) = (word as u32, (word >> 32) as u32);
        (held > 0).then_some(Record {
            held,
            returns,
            ends_at: Timestamp::from_nanos(ends_at),
            digest,
            charged_at: Timestamp::from_nanos(charged_at),
        })
    }

    /// Erases the entry when nothing is held any more.
    pub(super) fn write(&self, entry: &mut EntryMut<'_>, slack: Nanos) {
        let (ends_at, charged_at) = (self.ends_at.as_nanos(), self.charged_at.as_nanos());
        let held = u64::from(self.held) | u64::from(self.returns) << 32;
        let words = [held, ends_at, self.digest, charged_at];
        match self.held {
            0 => entry.state.fill(0),
            _ => entry.state[..4].copy_from_slice(&words),
        }
        *entry.expires_at = self.ends_at.saturating_add(slack).as_nanos();
    }

    /// Notes a return. Says whether it is the first like it.
    pub(super) fn note(&mut self, stamp: ReturnStamp) -> bool {
        let is_first = self.returns & stamp.0 == 0;
        self.returns |= stamp.0;
        is_first
    }

    pub(super) fn is_of(&self, digest: Digest) -> bool {
        self.digest == digest.word()
    }
}

/// A proxy, as the users of a counter tell it from others: one of 64 bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Proxy {
    bit: u64,
}

impl Proxy {
    pub(super) fn new(id: u64) -> Proxy {
        Proxy { bit: 1 << (scattered(id) >> 58) }
    }
}

/// The proxies that asked for a counter lately, and their leases on it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Users {
    words: [u64; 4],
}

impl Users {
    /// Those of an entry, with `proxy` among them. Proxies are told by periods of length `ttl`; those of this
    /// one and the one before are active.
    pub(super) fn read(entry: &EntryMut<'_>, proxy: Proxy, ttl: Nanos, now: Timestamp) -> Users {
        let [number, current, before, held] =
            entry.state.first_chunk().copied().unwrap_or_default();
        let present = now.as_nanos() / ttl.as_nanos().max(1) + 1;
        let (current, before) = match present.checked_sub(number) {
            Some(0) => (current, before),
            Some(1) => (0, current),
            _ => (0, 0),
        };
        Users { words: [present, current | proxy.bit, before, held] }
    }

    pub(super) fn active(&self) -> u32 {
        (self.words[1] | self.words[2]).count_ones()
    }

    /// Notes a lease. A clock that was far ahead for a moment leaves nothing that lasts.
    pub(super) fn lend(&mut self, until: Timestamp, now: Timestamp, ttl: Nanos) {
        let until = until.max(self.held_until()).min(now.saturating_add(ttl));
        self.words[3] = until.as_nanos();
    }

    /// Writes them, where there is room. They get a node with the first lease, not before: or clients who
    /// make up values would fill the store where a limit denies them all. Says whether they were written.
    pub(super) fn write(
        &self,
        entry: &mut EntryMut<'_>,
        ttl: Nanos,
        slack: Nanos,
        now: Timestamp,
    ) -> bool {
        if entry.room() != Room::Available || entry.is_new() && self.words[3] == 0 {
            return false;
        }
        entry.state[..4].copy_from_slice(&self.words);
        let seen = now.saturating_add(ttl).saturating_add(ttl);
        *entry.expires_at = seen.max(self.held_until()).saturating_add(slack).as_nanos();
        true
    }

    /// Until when somebody may give tokens back.
    pub(super) fn held_until(&self) -> Timestamp {
        Timestamp::from_nanos(self.words[3])
    }
}
