//! What is kept of a request between its events: nothing, for most.

use crate::host::StreamId;
use crate::request::descriptors::{LeaseKey, RequestDescriptors};
use crate::worker::replies::LimitStatus;
use std::hash::{BuildHasherDefault, Hasher};

/// What is kept of a request.
#[derive(Debug)]
pub(crate) enum StreamState {
    /// It is paused, and among those who ask or wait.
    Paused,
    /// It passed by what is known of these; the response tells of them as they stand then.
    DecidedLocally(LeaseKeys),
    /// It passed by an answer that told this.
    DecidedBySidecar(Vec<LimitStatus>),
}

/// The requests of a worker. Envoy's numbers need no secret hash, and a run must be repeatable.
pub(crate) type Streams = hashbrown::HashMap<StreamId, StreamState, BuildHasherDefault<IdHasher>>;

/// LeaseKeys of a request: without memory of their own when there are few.
#[derive(Debug, Default)]
pub(crate) struct LeaseKeys {
    few: [Option<LeaseKey>; LeaseKeys::FEW],
    more: Vec<LeaseKey>,
}

impl LeaseKeys {
    const FEW: usize = 4;

    /// The keys of all descriptors.
    pub(crate) fn of(descriptors: &RequestDescriptors) -> LeaseKeys {
        let mut keys = LeaseKeys::default();
        let mut all = descriptors.iter().map(|descriptor| descriptor.key);
        for few in &mut keys.few {
            *few = all.next();
        }
        keys.more.extend(all);
        keys
    }

    /// Each of them, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = LeaseKey> {
        self.few.iter().flatten().chain(&self.more).copied()
    }
}

/// Spreads small numbers over all bits.
#[derive(Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        // 2^64 over the golden ratio; the table goes by the upper bits and by the lower ones.
        let spread = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        spread ^ (spread >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 << 8) ^ (self.0 >> 56) ^ u64::from(*byte);
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = u64::from(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_number_and_order() {
        for count in 0..7_u64 {
            let mut descriptors = RequestDescriptors::default();
            for number in 0..count {
                descriptors.entry("k", &number.to_string());
                descriptors.finish(7, 1);
            }
            let expected: Vec<LeaseKey> =
                descriptors.iter().map(|descriptor| descriptor.key).collect();
            assert_eq!(LeaseKeys::of(&descriptors).iter().collect::<Vec<_>>(), expected);
        }
    }
}
