//! The bytes of a slot in Envoy's shared data.
//!
//! A version byte, then up to [`Slot::ENTRIES`] entries, all numbers little-endian:
//!
//! | bytes | what |
//! | --- | --- |
//! | 16 | key |
//! | 1 | number of leases, each: 8 id, 4 left, 4 granted, 8 ends |
//! | 40 | denied until, denied hits, free until, stale from, refreshing until |
//! | 24 | demand: 8 since, 8 last, 4 tokens, 4 rate |
//! | 1 | length of the limit's name, 255 for no limit; else 4 quota, 4 window, 4 remaining, 8 resets at, and the name |
//!
//! Others may write to the same data, and a newer version of this filter reads what an older one
//! wrote: whatever is not exactly this is an empty slot.

use super::demand::Demand;
use super::descriptor_state::Entry;
use super::limit_info::Told;
use super::token_pool::{Held, Purse};
use crate::request::descriptors::LeaseKey;
use tidegate_core::Timestamp;

const VERSION: u8 = 1;
const NO_LIMIT: u8 = 255;
const LEASE_BYTES: usize = 8 + 4 + 4 + 8;
const ENTRY_BYTES_MAX: usize =
    16 + 1 + Purse::LEASES * LEASE_BYTES + 40 + 24 + 1 + 20 + Told::NAME_BYTES_MAX;
const _: () = assert!(Slot::BYTES_MAX == 857);

/// What one slot holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Slot {
    entries: Vec<(LeaseKey, Entry)>,
}

impl Slot {
    /// Four, so that chance seldom fills a slot: with as many keys as slots, one in 270.
    pub(crate) const ENTRIES: usize = 4;
    /// 857: with 8,192 slots at most 7 MB of Envoy's memory, when every limit has a long name.
    pub(crate) const BYTES_MAX: usize = 1 + Slot::ENTRIES * ENTRY_BYTES_MAX;

    /// Reads a slot; an empty one from what is none.
    pub(crate) fn decode(bytes: &[u8]) -> Slot {
        match bytes.split_first() {
            Some((&VERSION, rest)) if bytes.len() <= Slot::BYTES_MAX => {
                entries(Reader(rest)).map(|entries| Slot { entries }).unwrap_or_default()
            }
            _ => Slot::default(),
        }
    }

    /// Writes it, in at most [`Slot::BYTES_MAX`] bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Slot::BYTES_MAX);
        bytes.push(VERSION);
        for (key, entry) in &self.entries {
            write_entry(&mut bytes, *key, entry);
        }
        bytes
    }

    /// The entry of `key`.
    pub(crate) fn find(&self, key: LeaseKey) -> Option<&Entry> {
        self.entries.iter().find(|(other, _)| *other == key).map(|(_, entry)| entry)
    }

    /// Puts the entry of `key`, in place of what says nothing any more, or holds no tokens. False when
    /// all others hold tokens: a lease is never dropped.
    pub(crate) fn put(&mut self, key: LeaseKey, entry: Entry, now: Timestamp) -> bool {
        let own = self.entries.iter().position(|(other, _)| *other == key);
        if own.is_none() && self.entries.len() < Slot::ENTRIES {
            self.entries.push((key, entry));
            return true;
        }
        let Some(place) = own.or_else(|| self.least_needed(now)) else {
            return false;
        };
        if let Some(place) = self.entries.get_mut(place) {
            *place = (key, entry);
        }
        true
    }

    fn least_needed(&self, now: Timestamp) -> Option<usize> {
        let places = self.entries.iter().enumerate();
        let without_tokens = places.filter(|(_, (_, entry))| entry.purse.left(now) == 0);
        without_tokens
            .min_by_key(|(_, (_, entry))| (entry.says_something(now), entry.demand.last))
            .map(|(place, _)| place)
    }
}

fn write_entry(bytes: &mut Vec<u8>, key: LeaseKey, entry: &Entry) {
    bytes.extend_from_slice(&key.0.to_le_bytes());
    bytes.push(u8::try_from(entry.purse.each().count()).unwrap_or(0));
    for held in entry.purse.each() {
        bytes.extend_from_slice(&held.id.to_le_bytes());
        bytes.extend_from_slice(&held.left.to_le_bytes());
        bytes.extend_from_slice(&held.granted.to_le_bytes());
        bytes.extend_from_slice(&held.ends.as_nanos().to_le_bytes());
    }
    let times = [
        entry.denied_until.as_nanos(),
        entry.denied_hits,
        entry.free_until.as_nanos(),
        entry.stale_from.as_nanos(),
        entry.refreshing_until.as_nanos(),
        entry.demand.since.as_nanos(),
        entry.demand.last.as_nanos(),
    ];
    for time in times {
        bytes.extend_from_slice(&time.to_le_bytes());
    }
    bytes.extend_from_slice(&entry.demand.tokens.to_le_bytes());
    bytes.extend_from_slice(&entry.demand.rate.to_le_bytes());
    if !entry.told.is_known() {
        bytes.push(NO_LIMIT);
        return;
    }
    let name = entry.told.name();
    bytes.push(u8::try_from(name.len()).unwrap_or(0));
    for number in [entry.told.quota, entry.told.window_secs, entry.told.remaining] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(&entry.told.resets_at.as_nanos().to_le_bytes());
    bytes.extend_from_slice(name.as_bytes());
}

fn entries(mut reader: Reader<'_>) -> Option<Vec<(LeaseKey, Entry)>> {
    let mut entries = Vec::with_capacity(Slot::ENTRIES);
    while !reader.0.is_empty() {
        if entries.len() == Slot::ENTRIES {
            return None;
        }
        entries.push((LeaseKey(u128::from_le_bytes(reader.array()?)), read_entry(&mut reader)?));
    }
    Some(entries)
}

fn read_entry(reader: &mut Reader<'_>) -> Option<Entry> {
    let leases = usize::from(reader.u8()?);
    if leases > Purse::LEASES {
        return None;
    }
    let mut held = [Held::default(); Purse::LEASES];
    for held in held.iter_mut().take(leases) {
        *held = Held {
            id: reader.u64()?,
            left: reader.u32()?,
            granted: reader.u32()?,
            ends: reader.time()?,
        };
    }
    Some(Entry {
        purse: Purse::of(held),
        denied_until: reader.time()?,
        denied_hits: reader.u64()?,
        free_until: reader.time()?,
        stale_from: reader.time()?,
        refreshing_until: reader.time()?,
        demand: Demand {
            since: reader.time()?,
            last: reader.time()?,
            tokens: reader.u32()?,
            rate: reader.u32()?,
        },
        told: read_told(reader)?,
    })
}

fn read_told(reader: &mut Reader<'_>) -> Option<Told> {
    let length = reader.u8()?;
    if length == NO_LIMIT {
        return Some(Told::default());
    }
    let (quota, window_secs, remaining) = (reader.u32()?, reader.u32()?, reader.u32()?);
    let resets_at = reader.time()?;
    let name =
        reader.bytes(usize::from(length)).filter(|name| name.len() <= Told::NAME_BYTES_MAX)?;
    let mut told = Told::new(std::str::from_utf8(name).ok()?);
    told.quota = quota;
    told.window_secs = window_secs;
    told.remaining = remaining;
    told.resets_at = resets_at;
    Some(told)
}

/// What is left to be read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn time(&mut self) -> Option<Timestamp> {
        self.u64().map(Timestamp::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(nanos: u64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    fn any_entry() -> impl Strategy<Value = Entry> {
        let lease = (any::<u64>(), 1..u32::MAX, any::<u32>(), any::<u64>());
        let leases = prop::collection::vec(lease, 0..=Purse::LEASES);
        let told = prop::option::of(("\\PC{0,64}", any::<[u32; 3]>(), any::<u64>()));
        (leases, any::<[u64; 7]>(), any::<[u32; 2]>(), told).prop_map(
            |(leases, times, counts, told)| {
                let mut held = [Held::default(); Purse::LEASES];
                for (held, (id, left, granted, ends)) in held.iter_mut().zip(leases) {
                    *held = Held { id, left, granted, ends: at(ends) };
                }
                let told = told.map_or_else(Told::default, |(name, numbers, resets_at)| {
                    let mut told = Told::new(&name);
                    [told.quota, told.window_secs, told.remaining] = numbers;
                    told.resets_at = at(resets_at);
                    told
                });
                Entry {
                    purse: Purse::of(held),
                    denied_until: at(times[0]),
                    denied_hits: times[1],
                    free_until: at(times[2]),
                    stale_from: at(times[3]),
                    refreshing_until: at(times[4]),
                    demand: Demand {
                        since: at(times[5]),
                        last: at(times[6]),
                        tokens: counts[0],
                        rate: counts[1],
                    },
                    told,
                }
            },
        )
    }

    fn any_slot() -> impl Strategy<Value = Slot> {
        let entry = (any::<u128>().prop_map(LeaseKey), any_entry());
        prop::collection::vec(entry, 0..=Slot::ENTRIES).prop_map(|entries| Slot { entries })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_and_bounded(slot in any_slot()) {
            let bytes = slot.encode();
            prop_assert!(bytes.len() <= Slot::BYTES_MAX);
            prop_assert_eq!(Slot::decode(&bytes), slot);
        }

        /// Other bytes are either exactly a slot, or an empty one.
        #[test]
        fn no_bytes_make_it_panic(
            slot in any_slot(),
            at in any::<prop::sample::Index>(),
            xor in any::<u8>(),
            cut in any::<prop::sample::Index>(),
            bytes in prop::collection::vec(any::<u8>(), 0..900),
        ) {
            let mut changed = slot.encode();
            let index = at.index(changed.len());
            changed[index] ^= xor;
            changed.truncate(cut.index(changed.len()) + 1);
            for bytes in [changed, bytes] {
                let decoded = Slot::decode(&bytes);
                prop_assert!(decoded.entries.len() <= Slot::ENTRIES);
                prop_assert!(decoded.encode().len() <= Slot::BYTES_MAX);
            }
        }
    }

    #[test]
    fn foreign_bytes_are_an_empty_slot() {
        let mut slot = Slot::default();
        assert!(slot.put(LeaseKey(1), Entry::default(), at(0)));
        let bytes = slot.encode();
        assert_eq!(Slot::decode(&bytes), slot);
        let newer = [&[VERSION + 1], &bytes[1..]].concat();
        let longer = [&bytes[..], &[0]].concat();
        let five = [&bytes[..], &bytes[1..], &bytes[1..], &bytes[1..], &bytes[1..]].concat();
        for foreign in [&b""[..], b"x", &newer, &longer, &bytes[..bytes.len() - 1], &five] {
            assert_eq!(Slot::decode(foreign), Slot::default(), "for {foreign:?}");
        }
    }

    #[test]
    fn a_full_slot_gives_up_what_says_nothing_then_denials_but_never_tokens() {
        let lease = |ends| {
            let mut entry = Entry::default();
            let held = Held { id: 1, left: 1, granted: 1, ends: at(ends) };
            entry.grant(held, at(0)).unwrap();
            entry
        };
        let denial = Entry { denied_until: at(900), denied_hits: 1, ..Entry::default() };
        let mut slot = Slot::default();
        for (key, entry) in [(1, lease(500)), (2, denial), (3, lease(100)), (4, lease(500))] {
            assert!(slot.put(LeaseKey(key), entry, at(0)));
        }
        let holds = |slot: &Slot| -> Vec<u128> {
            let mut keys: Vec<u128> = slot.entries.iter().map(|(key, _)| key.0).collect();
            keys.sort_unstable();
            keys
        };
        assert!(slot.put(LeaseKey(5), lease(500), at(100)));
        assert_eq!(holds(&slot), [1, 2, 4, 5]);
        assert!(slot.put(LeaseKey(6), lease(500), at(100)));
        assert_eq!(holds(&slot), [1, 4, 5, 6]);
        assert!(!slot.put(LeaseKey(7), lease(500), at(100)));
        assert_eq!(holds(&slot), [1, 4, 5, 6]);
        assert!(slot.put(LeaseKey(6), Entry::default(), at(100)));
    }
}
