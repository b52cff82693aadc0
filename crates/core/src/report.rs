//! What a client tells of its own decisions: hits that it allowed by leased tokens, or denied by a denial that it
//! had cached. They change no counter, as tokens are charged when they are leased.

use crate::descriptor::{Entry, LimitOverride};

/// The decisions of one client since its last report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// A random number of the client's sequence of reports, which come one after the other.
    pub sequence: u64,
    /// The number of this report: unchanged when it is sent again, otherwise higher than all before it in its
    /// sequence (as wrapping numbers). So a report that is not newer than the last one has been counted.
    pub number: u64,
    /// One for each descriptor.
    pub tallies: Vec<Tally>,
}

/// The hits of one descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tally {
    /// The descriptor.
    pub entries: Vec<Entry>,
    /// The limit that the descriptor has with it.
    pub limit: Option<LimitOverride>,
    /// What became of its hits.
    pub hits: TalliedHits,
    /// The names of its limits that denied, if it has several.
    pub over: Vec<String>,
}

/// Counts of hits, one for each outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TalliedHits {
    /// They were let through.
    pub allowed: u64,
    /// A limit of the descriptor had no room for them.
    pub denied: u64,
    /// Another descriptor of their requests was over its limit.
    pub denied_elsewhere: u64,
}

impl Report {
    /// Whether this report comes after the one with number `last`.
    #[must_use]
    pub fn is_newer(&self, last: u64) -> bool {
        is_newer(self.number, last)
    }
}

/// Whether a number comes after another one, up to half of all numbers behind it: they go on from the largest with 0.
pub(crate) fn is_newer(number: u64, last: u64) -> bool {
    let ahead = number.wrapping_sub(last);
    ahead > 0 && ahead < 1 << 63
}

impl TalliedHits {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all() == 0
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.allowed.saturating_add(self.denied).saturating_add(self.denied_elsewhere)
    }

    /// Adds others.
    pub fn add(&mut self, other: TalliedHits) {
        self.allowed = self.allowed.saturating_add(other.allowed);
        self.denied = self.denied.saturating_add(other.denied);
        self.denied_elsewhere = self.denied_elsewhere.saturating_add(other.denied_elsewhere);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DebitRequest;

    #[test]
    fn reports_and_debits_are_newer_than_those_before_them_also_across_the_end_of_numbers() {
        let report = |number| Report { sequence: 1, number, tallies: Vec::new() };
        let debit =
            |call| DebitRequest { call, sequence: 1, streams: Vec::new(), ages: Vec::new() };
        for (number, last, is_newer) in [
            (2, 1, true),
            (5, 4, true),
            (1, 1, false),
            (5, 5, false),
            (1, 2, false),
            (4, 5, false),
            (0, u64::MAX, true),
            (u64::MAX, 0, false),
            ((1 << 63) - 1, 0, true),
            (1 << 63, 0, false),
        ] {
            assert_eq!(report(number).is_newer(last), is_newer, "{number} after {last}");
            assert_eq!(debit(number).is_newer(last), is_newer, "{number} after {last}");
        }
    }

    #[test]
    fn tallied_hits_add_up_and_stop_at_the_largest_number() {
        let mut hits = TalliedHits::default();
        assert!(hits.is_empty());
        hits.add(TalliedHits { allowed: 1, denied: 2, denied_elsewhere: 3 });
        hits.add(TalliedHits { allowed: 10, denied: 20, denied_elsewhere: u64::MAX });
        assert_eq!(hits, TalliedHits { allowed: 11, denied: 22, denied_elsewhere: u64::MAX });
        assert_eq!((hits.all(), hits.is_empty()), (u64::MAX, false));
    }
}
