//! What a process has done with cold counters since its start.

use std::sync::atomic::{AtomicU64, Ordering};

/// Defines the counts, in memory that threads share and as numbers, and their order in words.
macro_rules! counts {
    ($($(#[$meaning:meta])+ $name:ident,)+) => {
        /// Counts of what was done.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$meaning])+ pub $name: u64,)+
        }

        #[derive(Debug, Default)]
        pub(crate) struct Tally {
            $(pub(crate) $name: AtomicU64,)+
        }

        impl Counts {
            pub(crate) const WORDS: usize = [$(stringify!($name)),+].len();

            /// Each with its name.
            #[must_use]
            pub fn named(&self) -> [(&'static str, u64); Counts::WORDS] {
                [$((stringify!($name), self.$name)),+]
            }

            pub(crate) fn words(&self) -> [u64; Counts::WORDS] {
                [$(self.$name),+]
            }

            pub(crate) fn of([$($name),+]: [u64; Counts::WORDS]) -> Counts {
                Counts { $($name),+ }
            }
        }

        impl Tally {
            pub(crate) fn counts(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed)),+ }
            }
        }
    };
}

counts! {
    /// Counters that moved to a database.
    moved,
    /// Rows that went on to a colder database.
    moved_on,
    /// Counters that came back.
    fetched,
    /// Look-ups that found no row.
    fetched_in_vain,
    /// New counters that needed no look-up.
    spared,
    /// Operations of a database that failed.
    failed,
    /// Counters that were decided without their rows.
    without_state,
    /// Stale rows that were removed.
    removed,
    /// Times that a counter stayed in memory, since the databases have as many as they may.
    kept,
}

impl Counts {
    /// What was done after `before`.
    pub(crate) fn since(&self, before: &Counts) -> Counts {
        let (now, before) = (self.words(), before.words());
        Counts::of(std::array::from_fn(|index| now[index].saturating_sub(before[index])))
    }
}

pub(crate) fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}
