//! Leases in the store: a record of each lease, the users of each counter, and the last debit or report of each
//! sequence.
//!
//! All are narrow nodes of four words, which expire like counters. No rule leads to their keys: the key of a
//! record is the hash of the lease's id or of the sequence, and the users of a counter are a further part of it.
//!
//! | words of a lease | words of a counter's users | words of a sequence |
//! | --- | --- | --- |
//! | tokens still held, and a bit for each return | the number of the period, plus 1 | the number of its last call |
//! | its end, in ns since the Unix epoch | the proxies of this period, a bit each | 1 if all of it is counted, else 2 |
//! | the digest of its counters and windows | the proxies of the period before | the descriptors counted, a bit each |
//! | the time of the charge as the counters see it, in ns | the end of their last lease, in ns | those from the 65th |
//!
//! Invariant: tokens held by a record were charged to the counters of its digest and not returned. The users of a
//! counter change the size of leases and the length of denials only; they may be lost.

use tidegate_core::{KeyHash, Nanos, Timestamp};
use tidegate_store::{EntryMut, Hashed, Room};
use tidegate_wire::DESCRIPTORS_MAX;

/// Labels that no part of a counter has: the labels of the exact sliding window have other top bits.
const USERS: u64 = 3 << 62;
const RECORD: u64 = USERS | 1;
const DEBITS: u64 = USERS | 2;
const REPORTS: u64 = USERS | 3;

/// The key of the record of lease `id`.
pub(crate) fn record_key(seed: u64, id: u64) -> Hashed {
    Hashed::narrow(KeyHash(id.into()).part(seed, RECORD).0)
}

/// The key of the users of a counter.
pub(crate) fn users_key(seed: u64, counter: KeyHash) -> Hashed {
    Hashed::narrow(counter.part(seed, USERS).0)
}

/// The key of the record of a sequence of debits.
pub(crate) fn debits_key(seed: u64, sequence: u64) -> Hashed {
    Hashed::narrow(KeyHash(sequence.into()).part(seed, DEBITS).0)
}

/// The key of the record of a sequence of reports, which has the form of one of debits.
pub(crate) fn reports_key(seed: u64, sequence: u64) -> Hashed {
    Hashed::narrow(KeyHash(sequence.into()).part(seed, REPORTS).0)
}

/// A permutation of all numbers without visible order (the finalizer of splitmix64).
fn scattered(number: u64) -> u64 {
    let mut mixed = number;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The counters that a lease was charged to, each with its window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Digest(u128);

impl Digest {
    pub(crate) fn with(self, seed: u64, counter: KeyHash, window_end: Timestamp) -> Digest {
        Digest(KeyHash(self.0 ^ counter.0).part(seed, window_end.as_nanos()).0)
    }

    fn word(self) -> u64 {
        (self.0 >> 64) as u64
    }
}

/// One of 32 bits that identifies a return of a lease, so that a repeated return counts once. Calls of a client
/// are numbered in order. Returns may collide across workers or every 32 calls; a collision leaves tokens charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReturnStamp(u32);

impl ReturnStamp {
    /// The stamp of the return with number `call`.
    pub(crate) fn new(call: u64) -> ReturnStamp {
        ReturnStamp(1 << ((call / DESCRIPTORS_MAX as u64) % 32))
    }
}

/// A lease of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) held: u32,
    /// The stamps of returns that were accepted.
    returns: u32,
    pub(crate) ends_at: Timestamp,
    digest: u64,
    /// The time of the charge as the counters see it.
    pub(crate) charged_at: Timestamp,
}

impl Record {
    pub(crate) fn new(
        held: u32,
        ends_at: Timestamp,
        digest: Digest,
        charged_at: Timestamp,
    ) -> Record {
        Record { held, returns: 0, ends_at, digest: digest.word(), charged_at }
    }

    /// The record in an entry, if there is one.
    pub(crate) fn read(entry: &EntryMut<'_>) -> Option<Record> {
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

    /// Writes the record, or erases it when no token is held.
    pub(crate) fn write(&self, entry: &mut EntryMut<'_>, slack: Nanos) {
        let (ends_at, charged_at) = (self.ends_at.as_nanos(), self.charged_at.as_nanos());
        let held = u64::from(self.held) | u64::from(self.returns) << 32;
        let words = [held, ends_at, self.digest, charged_at];
        match self.held {
            0 => entry.state.fill(0),
            _ => entry.state[..4].copy_from_slice(&words),
        }
        *entry.expires_at = self.ends_at.saturating_add(slack).as_nanos();
    }

    /// Notes a return, and says whether its stamp is new.
    pub(crate) fn note(&mut self, stamp: ReturnStamp) -> bool {
        let is_first = self.returns & stamp.0 == 0;
        self.returns |= stamp.0;
        is_first
    }

    pub(crate) fn is_of(&self, digest: Digest) -> bool {
        self.digest == digest.word()
    }
}

/// Descriptors of a call, a bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DescriptorSet(u128);

const _: () = assert!(DESCRIPTORS_MAX <= u128::BITS as usize);

impl DescriptorSet {
    pub(crate) const NONE: DescriptorSet = DescriptorSet(0);
    pub(crate) const ALL: DescriptorSet = DescriptorSet(u128::MAX);

    pub(crate) fn of(index: usize) -> DescriptorSet {
        let bit = u32::try_from(index).ok().and_then(|index| 1_u128.checked_shl(index));
        DescriptorSet(bit.unwrap_or(0))
    }

    pub(crate) fn with(self, other: DescriptorSet) -> DescriptorSet {
        DescriptorSet(self.0 | other.0)
    }

    pub(crate) fn contains(self, other: DescriptorSet) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The last debit of a sequence, or the last report, which is always counted whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastDebit {
    pub(crate) call: u64,
    pub(crate) counted: DescriptorSet,
}

impl LastDebit {
    const WHOLE: u64 = 1;
    const IN_PARTS: u64 = 2;

    /// The last debit in an entry, if there is one.
    pub(crate) fn read(entry: &EntryMut<'_>) -> Option<LastDebit> {
        let [call, form, low, high] = *entry.state.first_chunk::<4>()?;
        let counted = match form {
            LastDebit::WHOLE => DescriptorSet::ALL,
            LastDebit::IN_PARTS => DescriptorSet(u128::from(low) | u128::from(high) << 64),
            _ => return None,
        };
        Some(LastDebit { call, counted })
    }

    /// Writes it if there is room, and says whether it did.
    pub(crate) fn write(&self, entry: &mut EntryMut<'_>, expires_at: Timestamp) -> bool {
        let has_room = entry.room() == Room::Available;
        if has_room {
            let DescriptorSet(counted) = self.counted;
            let (low, high) = (counted as u64, (counted >> 64) as u64);
            let words = match self.counted {
                DescriptorSet::ALL => [self.call, LastDebit::WHOLE, 0, 0],
                _ => [self.call, LastDebit::IN_PARTS, low, high],
            };
            entry.state[..4].copy_from_slice(&words);
            *entry.expires_at = expires_at.as_nanos();
        }
        has_room
    }
}

/// A proxy, or a sidecar, as one of 64 bits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Proxy {
    bit: u64,
}

impl Proxy {
    pub(crate) fn new(id: u64) -> Proxy {
        Proxy { bit: 1 << (scattered(id) >> 58) }
    }

    /// One of those that are numbered: the first 64 have different bits.
    pub(crate) fn numbered(number: u32) -> Proxy {
        Proxy { bit: 1 << (number % u64::BITS) }
    }
}

/// The proxies that used a counter lately, and the end of their leases.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CounterUsers {
    words: [u64; 4],
    /// Users without a bit.
    further: u32,
}

impl CounterUsers {
    /// The users in an entry, and `proxy`, which may have no bit. Proxies are kept by periods of length `ttl`; proxies of
    /// this period and the one before are active.
    pub(crate) fn read(
        entry: &EntryMut<'_>,
        proxy: impl Into<Option<Proxy>>,
        ttl: Nanos,
        now: Timestamp,
    ) -> CounterUsers {
        let [number, current, before, held] =
            entry.state.first_chunk().copied().unwrap_or_default();
        let present = now.as_nanos() / ttl.as_nanos().max(1) + 1;
        let (current, before) = match present.checked_sub(number) {
            Some(0) => (current, before),
            Some(1) => (0, current),
            _ => (0, 0),
        };
        let (own, further) = proxy.into().map_or((0, 1), |proxy| (proxy.bit, 0));
        CounterUsers { words: [present, current | own, before, held], further }
    }

    pub(crate) fn active(&self) -> u32 {
        (self.words[1] | self.words[2]).count_ones() + self.further
    }

    /// Notes a lease. A clock that is far ahead for a moment has no lasting effect.
    pub(crate) fn note_lease(&mut self, until: Timestamp, now: Timestamp, ttl: Nanos) {
        let until = until.max(self.held_until()).min(now.saturating_add(ttl));
        self.words[3] = until.as_nanos();
    }

    /// Writes the users if there is room, and says whether it did. The node is created with the first lease:
    /// otherwise clients with made-up values would fill the store though a limit denies them all.
    pub(crate) fn write(
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

    /// The time until which tokens may be returned.
    pub(crate) fn held_until(&self) -> Timestamp {
        Timestamp::from_nanos(self.words[3])
    }
}
