//! What a window admits, and how debt is paid back: common to the windows that open on a boundary
//! and those that open at a hit.
//!
//! A window's `count` is the hits taken in it, and what earlier windows left unpaid. It may reach
//! `requests + borrow`; each window that begins takes `requests` off it. So k windows in a row
//! admit at most k × requests + borrow. A window without debt starts at zero, which is the same
//! rule with nothing to borrow. Knows no clock.
//!
//! What a drain takes beyond that is an overdraft: the window is over, and its end forgets it. It is
//! counted so that a refund in the same window finds it.

use crate::quota::{Decision, Outcome, QuotaError};
use crate::units::{Charge, Hits, Timestamp};

/// Hits of one window, and hits that it may borrow from the next ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Allowance {
    requests: u32,
    borrow: u32,
    overdraft: Overdraft,
}

/// Whether a count may pass the capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overdraft {
    /// A drain takes what is left.
    Refuse,
    /// A drain takes all its hits.
    Count,
}

/// What a charge makes of a count.
#[derive(Debug, Clone, Copy)]
pub(super) struct Charged {
    charge: Charge,
    fits: bool,
    /// The count afterwards.
    pub(super) count: u64,
}

impl Charged {
    /// Whether hits came, of which some or none had room. Those of a take that has none for all of them
    /// did not happen.
    pub(super) fn is_hit(&self) -> bool {
        match self.charge {
            Charge::Take(hits) => self.fits && hits != Hits::PEEK,
            Charge::Force(hits) => hits != Hits::PEEK,
            Charge::Refund(_) => false,
        }
    }
}

impl Allowance {
    pub(super) fn new(requests: u32, overdraft: Overdraft) -> Self {
        Allowance { requests, borrow: 0, overdraft }
    }

    pub(super) fn with_borrow(self, borrow: u32) -> Result<Self, QuotaError> {
        let requests = self.requests;
        if borrow > 0 && requests == 0 {
            return Err(QuotaError::BorrowWithoutRequests(borrow));
        }
        if requests.checked_add(borrow).is_none() {
            return Err(QuotaError::BorrowTooLarge { requests, borrow });
        }
        Ok(Allowance { borrow, ..self })
    }

    pub(super) fn requests(self) -> u32 {
        self.requests
    }

    /// The most that one window can admit. Cannot overflow: [`Self::with_borrow`] checked it.
    pub(super) fn capacity(self) -> u32 {
        self.requests + self.borrow
    }

    /// What a later window inherits of `count`; `windows` tells how many later it is, and is only
    /// asked when there is debt. No more is inherited than may be borrowed: a count above that
    /// was taken under a larger limit, whose excess this one does not collect.
    pub(super) fn inherited(self, count: u64, windows: impl FnOnce() -> u64) -> u64 {
        let requests = u64::from(self.requests);
        if self.borrow == 0 || count <= requests {
            return 0;
        }
        let paid = windows().saturating_mul(requests);
        count.min(self.capacity().into()).saturating_sub(paid)
    }

    /// Takes from a window that holds `count`, or gives back to it.
    pub(super) fn charge(self, count: u64, charge: Charge) -> Charged {
        let left = u64::from(self.capacity()).saturating_sub(count);
        let fits = charge.hits().needed() <= left;
        let (fits, count) = match charge {
            Charge::Take(hits) if fits => (true, count + hits.get()),
            Charge::Take(_) => (false, count),
            Charge::Force(Hits::PEEK) if self.overdraft == Overdraft::Count => {
                (self.is_open_at(count), count)
            }
            Charge::Force(hits) if self.overdraft == Overdraft::Count => {
                (fits, count.saturating_add(hits.get()))
            }
            Charge::Force(hits) => (fits, count + hits.get().min(left)),
            Charge::Refund(hits) => (true, count.saturating_sub(hits.get())),
        };
        Charged { charge, fits, count }
    }

    /// Whether a window whose count may pass the capacity has not. One that admits nothing is never open.
    fn is_open_at(self, count: u64) -> bool {
        self.capacity() > 0 && count <= self.capacity().into()
    }

    /// The answer. `opens(n)` is when the n-th window from the one charged opens.
    pub(super) fn decision(
        self,
        charged: Charged,
        now: Timestamp,
        opens: impl Fn(u64) -> Timestamp,
    ) -> Decision {
        let Charged { charge, fits, count } = charged;
        let outcome = if fits {
            Outcome::Allow
        } else {
            let fitting = opens(self.windows_until_fit(count, charge.hits()));
            Outcome::Deny { retry_after: fitting.saturating_since(now) }
        };
        let count = count.min(self.capacity().into());
        Decision {
            outcome,
            remaining: u64::from(self.capacity()) - count,
            reset_at: opens(1),
            keep_until: opens(self.windows_to_pay(count)),
        }
    }

    /// In how many windows the hits fit that do not fit now. Hits that never do are sent away until
    /// the whole capacity is free.
    fn windows_until_fit(self, count: u64, hits: Hits) -> u64 {
        let capacity = u64::from(self.capacity());
        let left = capacity.saturating_sub(count);
        self.windows_to_pay(hits.needed().min(capacity) - left)
    }

    /// How many windows it takes to pay `owed` back; at least the next one. Nothing is owed where
    /// `requests` is zero.
    fn windows_to_pay(self, owed: u64) -> u64 {
        let requests = u64::from(self.requests);
        if owed <= requests { 1 } else { owed.div_ceil(requests) }
    }
}
