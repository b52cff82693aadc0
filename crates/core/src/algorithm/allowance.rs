//! The hits that a window admits, and the repayment of borrowed hits. Shared by fixed windows and first-hit
//! windows. Knows no clock.
//!
//! A window's `count` is the hits taken in it plus the debt of earlier windows. It may reach `requests +
//! borrow`; each new window subtracts `requests`. So k windows in a row admit at most k × requests +
//! borrow. Without debt a window starts at zero, which is the same rule with nothing borrowed.
//!
//! Forced hits beyond that are an overdraft: the window is over, and its end forgets them. They are counted
//! so that a refund in the same window can return them.

use crate::decision::{Decision, Outcome};
use crate::rate::{Period, QuotaError, Rate};
use crate::units::{Charge, Hits, Timestamp};

/// The requests of a window, and the hits that it may borrow from later windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Allowance {
    requests: u32,
    borrow: u32,
    overdraft: Overdraft,
}

/// Whether forced hits may exceed the capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overdraft {
    /// Forced hits count up to the capacity.
    Refuse,
    /// All forced hits count.
    Count,
}

/// The effect of a charge on a count.
#[derive(Debug, Clone, Copy)]
pub(super) struct Charged {
    charge: Charge,
    fits: bool,
    /// The count after the charge.
    pub(super) count: u64,
}

impl Charged {
    /// Whether hits happened. Those of a take happen only if they fit.
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

    pub(super) fn rate(self, period: Period) -> Rate {
        Rate { requests: self.requests, period, capacity: self.capacity() }
    }

    /// The most that one window admits. Cannot overflow, as [`Self::with_borrow`] has checked.
    fn capacity(self) -> u32 {
        self.requests + self.borrow
    }

    /// The debt that a later window inherits of `count`. `windows` is called only if there is debt, and
    /// returns how many windows later it is. The debt is at most `borrow`: a higher count was taken under a
    /// larger limit, and its excess is not collected.
    pub(super) fn inherited(self, count: u64, windows: impl FnOnce() -> u64) -> u64 {
        let requests = u64::from(self.requests);
        if self.borrow == 0 || count <= requests {
            return 0;
        }
        let paid = windows().saturating_mul(requests);
        count.min(self.capacity().into()).saturating_sub(paid)
    }

    /// Charges a window that holds `count`.
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

    /// Whether a window that can be overdrawn is not. A window that admits nothing is never open.
    fn is_open_at(self, count: u64) -> bool {
        self.capacity() > 0 && count <= self.capacity().into()
    }

    /// The decision. `opens(n)` is when the n-th window after the charged one opens.
    pub(super) fn decision(
        self,
        charged: Charged,
        now: Timestamp,
        opens: impl Fn(u64) -> Timestamp,
    ) -> Decision {
        let Charged { charge, fits, count } = charged;
        let outcome =
            Outcome::new(fits, now, || opens(self.windows_until_fit(count, charge.hits())));
        let count = count.min(self.capacity().into());
        Decision {
            outcome,
            remaining: u64::from(self.capacity()) - count,
            reset_at: opens(1),
            keep_until: opens(self.windows_to_pay(count)),
        }
    }

    /// The number of windows until hits fit that do not fit now. For hits that can never fit, until the
    /// whole capacity is free.
    fn windows_until_fit(self, count: u64, hits: Hits) -> u64 {
        let capacity = u64::from(self.capacity());
        let left = capacity.saturating_sub(count);
        self.windows_to_pay(hits.needed().min(capacity) - left)
    }

    /// The number of windows that pay back `owed`, at least one. If `requests` is zero, nothing is owed.
    fn windows_to_pay(self, owed: u64) -> u64 {
        let requests = u64::from(self.requests);
        if owed <= requests { 1 } else { owed.div_ceil(requests) }
    }
}
