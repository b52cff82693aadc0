//! The table of leases that all workers of an Envoy process share: a fixed number of slots in its
//! shared data, changed by compare-and-swap.
//!
//! Shared data cannot be deleted, counted or listed, so the keys are a fixed set and contain no
//! descriptors. After repeated conflicts, or if a slot is full of leases, a change fails: the
//! caller calls the sidecar, or keeps its tokens.

use super::descriptor_state::DescriptorState;
use super::limit_info::FurtherLimits;
use super::slot::Slot;
use crate::host::Host;
use crate::host::stats::{Counter, Stats};
use crate::request::descriptors::LeaseKey;
use tidegate_core::Timestamp;

/// Attempts per change. Each conflict means that another worker succeeded.
const TRIES: u32 = 8;
const PREFIX: &[u8; 11] = b"tidegate/1/";
const KEY_BYTES: usize = PREFIX.len() + 8;

/// Whether to write a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Write {
    Store,
    Keep,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct SharedTable {
    /// The number of slots; with 0 it stores nothing.
    pub(crate) slots: u32,
}

impl SharedTable {
    /// Changes the state of `key` by `change`, which may run several times, starts from a default
    /// state if there is none, and takes effect only if its result is returned.
    pub(crate) fn change<R>(
        &self,
        host: &impl Host,
        stats: &mut Stats,
        key: LeaseKey,
        now: Timestamp,
        mut change: impl FnMut(&mut DescriptorState, &mut FurtherLimits) -> (R, Write),
    ) -> Option<R> {
        let mut text = [0; KEY_BYTES];
        let slot_key = self.slot_key(key, &mut text)?;
        for _ in 0..TRIES {
            let value = host.shared(slot_key);
            let mut slot = Slot::decode(value.bytes.as_deref().unwrap_or_default());
            let (mut state, mut further) = match slot.find(key) {
                Some((state, further)) => (*state, further.clone()),
                None => Default::default(),
            };
            let (result, write) = change(&mut state, &mut further);
            if write == Write::Keep {
                return Some(result);
            }
            if !slot.put(key, state, further, now) {
                return None;
            }
            match host.set_shared(slot_key, &slot.encode(), value.version) {
                Ok(()) => return Some(result),
                Err(_) => stats.count(Counter::Conflicts),
            }
        }
        None
    }

    /// The shared-data key of the slot of `key`, written into `text`.
    fn slot_key<'a>(&self, key: LeaseKey, text: &'a mut [u8; KEY_BYTES]) -> Option<&'a str> {
        // The upper half; the local table uses the lower half.
        let index = (key.0 >> 64).checked_rem(u128::from(self.slots))?;
        let digits = (0..8).rev().map(|digit: u32| (index >> digit.saturating_mul(4)) & 0xf);
        let digits = digits.filter_map(|digit| char::from_digit(u32::try_from(digit).ok()?, 16));
        let digits = digits.filter_map(|digit| u8::try_from(digit).ok());
        for (to, from) in text.iter_mut().zip(PREFIX.iter().copied().chain(digits)) {
            *to = from;
        }
        std::str::from_utf8(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slot_key_is_hex_and_an_empty_table_has_none() {
        let mut text = [0; KEY_BYTES];
        let key = LeaseKey(0x1_0000_beef << 64 | 7);
        let table = SharedTable { slots: 0x1_0000 };
        assert_eq!(table.slot_key(key, &mut text), Some("tidegate/1/0000beef"));
        assert_eq!(SharedTable { slots: 0 }.slot_key(key, &mut text), None);
    }
}
