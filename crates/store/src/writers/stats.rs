//! Statistics of a cluster since its creation, over all processes.
//!
//! The counts are kept in the writer slots, so they cost no shared write and outlive a process. A kill may
//! lose the counts of the last update.

use crate::memory::Region;
use crate::writers::{Count, WriterSlot};

/// Counts since the cluster was created, over all processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Nodes written.
    pub updates: u64,
    /// Nodes allocated to a key that had none.
    pub created: u64,
    /// Nodes freed because their entry had expired.
    pub evicted_expired: u64,
    /// Live nodes evicted for a new key ([`Eviction::EvictSoonestExpiry`](crate::Eviction)).
    pub evicted_live: u64,
    /// Nodes erased on request, or because an update left nothing to remember.
    pub erased: u64,
    /// Updates refused for lack of room for a new key ([`Eviction::Refuse`](crate::Eviction)).
    pub refused: u64,
    /// Nodes dropped on open because of their check: torn by power loss, or damaged.
    pub dropped_torn: u64,
    /// Nodes dropped on open because their key belongs elsewhere.
    pub dropped_foreign: u64,
    /// Nodes dropped on open because another node had the same key.
    pub dropped_duplicate: u64,
    /// Writer slots of killed processes that were recovered.
    pub recovered: u64,
    /// Updates of killed processes that were completed from the journal.
    pub completed: u64,
}

impl Stats {
    pub(crate) fn of(control: &Region) -> Self {
        let of = |count: Count| {
            WriterSlot::all(control)
                .fold(0_u64, |sum, writer| sum.wrapping_add(writer.counted(count)))
        };
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

    /// Each count with its name, in the order of the fields.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); Count::KINDS] {
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
