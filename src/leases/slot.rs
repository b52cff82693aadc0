//! The bytes of a slot in Envoy's shared data.
//!
//! A version byte, then up to [`Slot::STATES_MAX`] descriptor states, all numbers little-endian:
//!
//! | bytes | content |
//! | --- | --- |
//! | 16 | key |
//! | 1 | number of leases, each: 8 id, 4 left, 4 granted, 8 expiry |
//! | 40 | denied until, denied hits, unlimited until, stale from, refreshing until |
//! | 24 | demand: 8 since, 8 last, 4 tokens, 4 rate |
//! | 1 | length of the limit's name, 255 for no limit; else 4 quota, 4 window, 4 remaining, 8 resets at, and the name |
//!
//! The length plus 128 means that further limits follow: a byte with their number, then each as
//! above, where the length plus 128 means that it was over.
//!
//! Other filters may write to the same data, and a newer version of this filter may read an older
//! one's: anything else is decoded as an empty slot.

use super::demand::Demand;
use super::descriptor_state::DescriptorState;
use super::limit_info::{FurtherLimits, LimitInfo};
use super::token_pool::{LeaseTokens, TokenPool};
use crate::request::descriptors::LeaseKey;
use tidegate_core::{Timestamp, Verdict};

const VERSION: u8 = 1;
const NO_LIMIT: u8 = 255;
/// Added to the length of a name: further limits follow, or this further limit was over.
const MARK: u8 = 128;
const LEASE_BYTES: usize = 8 + 4 + 4 + 8;
const LIMIT_BYTES_MAX: usize = 1 + 20 + LimitInfo::NAME_BYTES_MAX;
const STATE_BYTES_MAX: usize =
    16 + 1 + TokenPool::LEASES_MAX * LEASE_BYTES + 40 + 24 + LIMIT_BYTES_MAX;
const FURTHER_BYTES_MAX: usize = 1 + FurtherLimits::MAX * LIMIT_BYTES_MAX;
const _: () = assert!(Slot::USUAL_BYTES_MAX == 857 && Slot::BYTES_MAX == 1_881);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Slot {
    states: Vec<SlotState>,
}

/// One descriptor of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SlotState {
    key: LeaseKey,
    state: DescriptorState,
    further: FurtherLimits,
}

impl Slot {
    /// Four, so that few slots are full by chance: with as many keys as slots, one in 270.
    pub(crate) const STATES_MAX: usize = 4;
    /// 857 if no descriptor meets several limits: with 8,192 slots at most 7 MB of Envoy's memory,
    /// if every limit has a long name.
    pub(crate) const USUAL_BYTES_MAX: usize = 1 + Slot::STATES_MAX * STATE_BYTES_MAX;
    /// 1,881 if each descriptor meets four limits with long names; 16 MB.
    pub(crate) const BYTES_MAX: usize =
        Slot::USUAL_BYTES_MAX + Slot::STATES_MAX * FURTHER_BYTES_MAX;

    /// Decodes a slot; anything malformed is an empty one.
    pub(crate) fn decode(bytes: &[u8]) -> Slot {
        match bytes.split_first() {
            Some((&VERSION, rest)) => {
                read_states(Reader(rest)).map(|states| Slot { states }).unwrap_or_default()
            }
            _ => Slot::default(),
        }
    }

    /// Encodes it in at most [`Slot::BYTES_MAX`] bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Slot::USUAL_BYTES_MAX);
        bytes.push(VERSION);
        for SlotState { key, state, further } in &self.states {
            write_state(&mut bytes, *key, state);
            write_limits(&mut bytes, &state.limit, further);
        }
        bytes
    }

    pub(crate) fn find(&self, key: LeaseKey) -> Option<(&DescriptorState, &FurtherLimits)> {
        let found = self.states.iter().find(|state| state.key == key)?;
        Some((&found.state, &found.further))
    }

    /// Stores the state of `key`, replacing one without tokens, first one that decides nothing.
    /// False if all others hold tokens: a lease is never dropped.
    pub(crate) fn put(
        &mut self,
        key: LeaseKey,
        state: DescriptorState,
        further: FurtherLimits,
        now: Timestamp,
    ) -> bool {
        let own = self.states.iter().position(|other| other.key == key);
        if own.is_none() && self.states.len() < Slot::STATES_MAX {
            self.states.push(SlotState { key, state, further });
            return true;
        }
        let Some(index) = own.or_else(|| self.least_needed(now)) else { return false };
        if let Some(state_at) = self.states.get_mut(index) {
            *state_at = SlotState { key, state, further };
        }
        true
    }

    fn least_needed(&self, now: Timestamp) -> Option<usize> {
        let indexes = self.states.iter().enumerate();
        let without_tokens = indexes.filter(|(_, other)| other.state.pool.left(now) == 0);
        without_tokens
            .min_by_key(|(_, other)| (other.state.is_informative(now), other.state.demand.last))
            .map(|(index, _)| index)
    }
}

fn write_state(bytes: &mut Vec<u8>, key: LeaseKey, state: &DescriptorState) {
    bytes.extend_from_slice(&key.0.to_le_bytes());
    bytes.push(u8::try_from(state.pool.each().count()).unwrap_or(0));
    for lease in state.pool.each() {
        bytes.extend_from_slice(&lease.id.to_le_bytes());
        bytes.extend_from_slice(&lease.left.to_le_bytes());
        bytes.extend_from_slice(&lease.granted.to_le_bytes());
        bytes.extend_from_slice(&lease.expires_at.as_nanos().to_le_bytes());
    }
    let times = [
        state.denied_until.as_nanos(),
        state.denied_hits,
        state.unlimited_until.as_nanos(),
        state.stale_from.as_nanos(),
        state.refreshing_until.as_nanos(),
        state.demand.since.as_nanos(),
        state.demand.last.as_nanos(),
    ];
    for time in times {
        bytes.extend_from_slice(&time.to_le_bytes());
    }
    bytes.extend_from_slice(&state.demand.tokens.to_le_bytes());
    bytes.extend_from_slice(&state.demand.rate.to_le_bytes());
}

fn write_limits(bytes: &mut Vec<u8>, limit: &LimitInfo, further: &FurtherLimits) {
    if !limit.is_known() {
        return bytes.push(NO_LIMIT);
    }
    if further.is_empty() {
        return write_limit(bytes, limit, 0);
    }
    write_limit(bytes, limit, MARK);
    bytes.push(u8::try_from(further.iter().count()).unwrap_or(0));
    for limit in further.iter() {
        write_limit(bytes, limit, if limit.verdict() == Verdict::Deny { MARK } else { 0 });
    }
}

fn write_limit(bytes: &mut Vec<u8>, limit: &LimitInfo, mark: u8) {
    let name = limit.name();
    bytes.push(u8::try_from(name.len()).unwrap_or(0) | mark);
    for number in [limit.quota, limit.window_secs, limit.remaining] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(&limit.resets_at.as_nanos().to_le_bytes());
    bytes.extend_from_slice(name.as_bytes());
}

fn read_states(mut reader: Reader<'_>) -> Option<Vec<SlotState>> {
    let mut states = Vec::with_capacity(Slot::STATES_MAX);
    while !reader.0.is_empty() {
        if states.len() == Slot::STATES_MAX {
            return None;
        }
        let key = LeaseKey(u128::from_le_bytes(reader.array()?));
        let mut state = read_state(&mut reader)?;
        let further = read_limits(&mut reader, &mut state.limit)?;
        states.push(SlotState { key, state, further });
    }
    Some(states)
}

fn read_state(reader: &mut Reader<'_>) -> Option<DescriptorState> {
    let leases = usize::from(reader.u8()?);
    if leases > TokenPool::LEASES_MAX {
        return None;
    }
    let mut leases_read = [LeaseTokens::default(); TokenPool::LEASES_MAX];
    for lease in leases_read.iter_mut().take(leases) {
        *lease = LeaseTokens {
            id: reader.u64()?,
            left: reader.u32()?,
            granted: reader.u32()?,
            expires_at: reader.time()?,
        };
    }
    Some(DescriptorState {
        pool: TokenPool { leases: leases_read },
        denied_until: reader.time()?,
        denied_hits: reader.u64()?,
        unlimited_until: reader.time()?,
        stale_from: reader.time()?,
        refreshing_until: reader.time()?,
        demand: Demand {
            since: reader.time()?,
            last: reader.time()?,
            tokens: reader.u32()?,
            rate: reader.u32()?,
        },
        limit: LimitInfo::default(),
    })
}

fn read_limits(reader: &mut Reader<'_>, limit: &mut LimitInfo) -> Option<FurtherLimits> {
    match reader.u8()? {
        NO_LIMIT => Some(FurtherLimits::default()),
        length if length < MARK => {
            *limit = read_limit(reader, length)?;
            Some(FurtherLimits::default())
        }
        length => {
            *limit = read_limit(reader, length & !MARK)?;
            read_further(reader)
        }
    }
}

#[cold]
fn read_further(reader: &mut Reader<'_>) -> Option<FurtherLimits> {
    let count = usize::from(reader.u8()?);
    if count == 0 || count > FurtherLimits::MAX {
        return None;
    }
    let read = |_| {
        let length = reader.u8()?;
        let verdict = if length < MARK { Verdict::Allow } else { Verdict::Deny };
        Some(read_limit(reader, length & !MARK)?.with_verdict(verdict))
    };
    (0..count).map(read).collect()
}

fn read_limit(reader: &mut Reader<'_>, length: u8) -> Option<LimitInfo> {
    let (quota, window_secs, remaining) = (reader.u32()?, reader.u32()?, reader.u32()?);
    let resets_at = reader.time()?;
    let name =
        reader.bytes(usize::from(length)).filter(|name| name.len() <= LimitInfo::NAME_BYTES_MAX)?;
    let mut limit = LimitInfo::new(std::str::from_utf8(name).ok()?);
    limit.quota = quota;
    limit.window_secs = window_secs;
    limit.remaining = remaining;
    limit.resets_at = resets_at;
    Some(limit)
}

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

    fn any_limit() -> impl Strategy<Value = LimitInfo> {
        let parts = ("\\PC{0,64}", any::<[u32; 3]>(), any::<u64>());
        parts.prop_map(|(name, numbers, resets_at)| {
            let mut limit = LimitInfo::new(&name);
            [limit.quota, limit.window_secs, limit.remaining] = numbers;
            limit.resets_at = at(resets_at);
            limit
        })
    }

    /// Only where there is a limit at all.
    fn any_further() -> impl Strategy<Value = FurtherLimits> {
        let verdict = prop::sample::select(vec![Verdict::Allow, Verdict::Deny]);
        let limit = (any_limit(), verdict).prop_map(|(limit, verdict)| limit.with_verdict(verdict));
        prop::collection::vec(limit, 0..=FurtherLimits::MAX)
            .prop_map(|limits| limits.into_iter().collect())
    }

    fn any_state() -> impl Strategy<Value = DescriptorState> {
        let lease = (any::<u64>(), 1..u32::MAX, any::<u32>(), any::<u64>());
        let leases = prop::collection::vec(lease, 0..=TokenPool::LEASES_MAX);
        let limit = prop::option::of(any_limit());
        (leases, any::<[u64; 7]>(), any::<[u32; 2]>(), limit).prop_map(
            |(leases, times, counts, limit)| {
                let mut leases_read = [LeaseTokens::default(); TokenPool::LEASES_MAX];
                for (lease, (id, left, granted, ends)) in leases_read.iter_mut().zip(leases) {
                    *lease = LeaseTokens { id, left, granted, expires_at: at(ends) };
                }
                let limit = limit.unwrap_or_default();
                DescriptorState {
                    pool: TokenPool { leases: leases_read },
                    denied_until: at(times[0]),
                    denied_hits: times[1],
                    unlimited_until: at(times[2]),
                    stale_from: at(times[3]),
                    refreshing_until: at(times[4]),
                    demand: Demand {
                        since: at(times[5]),
                        last: at(times[6]),
                        tokens: counts[0],
                        rate: counts[1],
                    },
                    limit,
                }
            },
        )
    }

    fn any_slot() -> impl Strategy<Value = Slot> {
        let state = (any::<u128>().prop_map(LeaseKey), any_state(), any_further());
        let state = state.prop_map(|(key, state, further)| {
            let further = if state.limit.is_known() { further } else { FurtherLimits::default() };
            SlotState { key, state, further }
        });
        prop::collection::vec(state, 0..=Slot::STATES_MAX).prop_map(|states| Slot { states })
    }

    proptest! {
        #[test]
        fn a_slot_survives_its_encoding_which_is_bounded(slot in any_slot()) {
            let bytes = slot.encode();
            let several = slot.states.iter().any(|state| !state.further.is_empty());
            let most = if several { Slot::BYTES_MAX } else { Slot::USUAL_BYTES_MAX };
            prop_assert!(bytes.len() <= most);
            prop_assert_eq!(Slot::decode(&bytes), slot);
        }

        /// Other bytes decode to exactly their slot, or to an empty one.
        #[test]
        fn no_bytes_make_it_panic(
            slot in any_slot(),
            at in any::<prop::sample::Index>(),
            xor in any::<u8>(),
            cut in any::<prop::sample::Index>(),
            bytes in prop::collection::vec(any::<u8>(), 0..2_000),
        ) {
            let mut changed = slot.encode();
            let index = at.index(changed.len());
            changed[index] ^= xor;
            changed.truncate(cut.index(changed.len()) + 1);
            for bytes in [changed, bytes] {
                let decoded = Slot::decode(&bytes);
                prop_assert!(decoded.states.len() <= Slot::STATES_MAX);
                prop_assert!(decoded.encode().len() <= Slot::BYTES_MAX);
            }
        }
    }

    fn put(slot: &mut Slot, key: u128, state: DescriptorState, now: Timestamp) -> bool {
        slot.put(LeaseKey(key), state, FurtherLimits::default(), now)
    }

    #[test]
    fn foreign_bytes_are_an_empty_slot() {
        let mut slot = Slot::default();
        assert!(put(&mut slot, 1, DescriptorState::default(), at(0)));
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
    fn a_full_slot_replaces_empty_states_then_denials_but_never_tokens() {
        let lease = |ends| {
            let mut state = DescriptorState::default();
            let lease = LeaseTokens { id: 1, left: 1, granted: 1, expires_at: at(ends) };
            state.grant(lease, at(0)).unwrap();
            state
        };
        let denial =
            DescriptorState { denied_until: at(900), denied_hits: 1, ..DescriptorState::default() };
        let mut slot = Slot::default();
        for (key, state) in [(1, lease(500)), (2, denial), (3, lease(100)), (4, lease(500))] {
            assert!(put(&mut slot, key, state, at(0)));
        }
        let holds = |slot: &Slot| -> Vec<u128> {
            let mut keys: Vec<u128> = slot.states.iter().map(|state| state.key.0).collect();
            keys.sort_unstable();
            keys
        };
        assert!(put(&mut slot, 5, lease(500), at(100)));
        assert_eq!(holds(&slot), [1, 2, 4, 5]);
        assert!(put(&mut slot, 6, lease(500), at(100)));
        assert_eq!(holds(&slot), [1, 4, 5, 6]);
        assert!(!put(&mut slot, 7, lease(500), at(100)));
        assert_eq!(holds(&slot), [1, 4, 5, 6]);
        assert!(put(&mut slot, 6, DescriptorState::default(), at(100)));
    }
}
