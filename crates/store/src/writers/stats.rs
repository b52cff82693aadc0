//! What a cluster has done since it was made, by all processes together.
//!
//! The counts are kept in the seats, so that they cost no shared write and outlive a process. A process
//! that is killed may leave out the last update that it made.

use crate::memory::region::Region;
use crate::writers::slot::{Count, WriterSlot};

/// What a cluster has done since it was made, by all processes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Nodes written.
    pub updates: u64,
    /// Nodes given to a key that had none.
    pub created: u64,
    /// Nodes taken back because their entry had expired.
    pub evicted_expired: u64,
    /// Live nodes taken from their key for a new one ([`Eviction::EvictSoonestExpiry`](crate::Eviction)).
    pub evicted_live: u64,
    /// Nodes erased because the caller left nothing to remember, or said so.
    pub erased: u64,
    /// Updates refused because there was no place for a new key
    /// ([`Eviction::Refuse`](crate::Eviction)).
    pub refused: u64,
    /// Nodes dropped on open because their check did not match: torn by a loss of power, or damaged.
    pub dropped_torn: u64,
    /// Nodes dropped on open because their key does not belong where they are.
    pub dropped_foreign: u64,
    /// Nodes dropped on open because their key had another one.
    pub dropped_duplicate: u64,
    /// Seats of killed processes that were cleaned up.
    pub recovered: u64,
    /// Updates of killed processes that were completed from their journal.
    pub completed: u64,
}

impl Stats {
    /// How many counts there are.
    pub(crate) const COUNTS: usize = Count::Completed as usize + 1;

    pub(crate) fn of(control: &Region) -> Self {
        let mut counts = [0_u64; Self::COUNTS];
        for writer in WriterSlot::all(control) {
            for (index, count) in counts.iter_mut().enumerate() {
                *count = count.wrapping_add(writer.counted(index));
            }
        }
        let of = |count: Count| counts[count as usize];
        Self {
            updates: of(Count::Updates),
            created: of(Count::Created),
            evicted_expired: of(Count::EvictedExpired),
            evicted_live: of(Count::EvictedLive),
            erased: of(Count::Erased),
            refused: of(Count::Refused),
            dropped_torn: of(Count::DroppedTorn),
            dropped_foreign: of(Count::DroppedForeign),
            dropped_duplicate: of(Count::DroppedDuplicate),
            recovered: of(Count::Recovered),
            completed: of(Count::Completed),
        }
    }

    /// Every count with its name, in the order of the fields.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); Self::COUNTS] {
        [
            ("updates", self.updates),
            ("created", self.created),
            ("evicted_expired", self.evicted_expired),
            ("evicted_live", self.evicted_live),
            ("erased", self.erased),
            ("refused", self.refused),
            ("dropped_torn", self.dropped_torn),
            ("dropped_foreign", self.dropped_foreign),
            ("dropped_duplicate", self.dropped_duplicate),
            ("recovered", self.recovered),
            ("completed", self.completed),
        ]
    }
}
