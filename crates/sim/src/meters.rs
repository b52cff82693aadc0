//! Accounts for costs that are known when a stream ends: each counts once, whatever becomes of its calls.
//!
//! Their limits have far more room than a run uses, so that every hit is visible in what is left. Those of
//! [`LEASED`] may be paid from tokens of leases, which no call shows; the limit as a whole must cover them.

use std::collections::{BTreeMap, BTreeSet};

/// Limits of costs, each with one counter.
pub(crate) const METERS: usize = 3;
/// Debited at the end, and never leased.
pub(crate) const DEBITED: usize = 0;
/// Peeked at the beginning, debited at the end.
pub(crate) const LEASED: usize = 1;
/// Estimated at the beginning, settled at the end; never leased.
pub(crate) const ESTIMATED: usize = 2;
/// The hits that are taken for a cost to be known.
pub(crate) const ESTIMATE: u64 = 20;
/// The hits of each limit in a year.
pub(crate) const ROOM: u64 = 4_000_000_000;

/// A process in one of its lives.
pub(crate) type Process = (usize, u32);

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Costs {
    pub(crate) taken: u64,
    pub(crate) refunded: u64,
}

impl Costs {
    fn add(&mut self, more: Costs) {
        self.taken += more.taken;
        self.refunded += more.refunded;
    }
}

/// The part of a call that is about one limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change {
    pub(crate) meter: usize,
    pub(crate) asked: Costs,
    /// By how many hits the counter rose.
    pub(crate) rose: i64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Account {
    /// By streams that have ended.
    owed: Costs,
    /// By calls.
    counted: Costs,
}

#[derive(Debug, Default)]
pub(crate) struct Meters {
    accounts: BTreeMap<(Process, usize), Account>,
    /// The sequence and number of each call that was counted.
    calls: BTreeSet<(u64, u64)>,
}

impl Meters {
    /// A stream has ended that cost this much.
    pub(crate) fn owe(&mut self, process: Process, meter: usize, cost: u64) {
        let ahead = if meter == ESTIMATED { ESTIMATE } else { 0 };
        let owed = &mut self.accounts.entry((process, meter)).or_default().owed;
        let (taken, refunded) = (cost.saturating_sub(ahead), ahead.saturating_sub(cost));
        owed.add(Costs { taken, refunded });
    }

    /// A call of debits has arrived and changed counters.
    ///
    /// # Errors
    /// If it did not change them as it must, or if more is counted than is owed.
    pub(crate) fn count(
        &mut self,
        process: Process,
        call: (u64, u64),
        changes: &[Change],
    ) -> Result<(), String> {
        let is_new = self.calls.insert(call);
        for Change { meter, asked, rose } in changes.iter().copied() {
            if !is_new {
                if rose != 0 {
                    return Err(format!("meter {meter}: a repeated debit counted {rose} hits"));
                }
                continue;
            }
            let (taken, refunded) = (asked.taken as i64, asked.refunded as i64);
            // Where its window has ended, a refund has no effect.
            if rose != taken - refunded && rose != taken {
                return Err(format!("meter {meter}: a debit of {asked:?} counted {rose} hits"));
            }
            let account = self.accounts.entry((process, meter)).or_default();
            account.counted.add(asked);
            let Account { owed, counted } = *account;
            if counted.taken > owed.taken || counted.refunded > owed.refunded {
                return Err(format!("meter {meter}: {counted:?} debited of {owed:?} owed"));
            }
        }
        Ok(())
    }

    /// What living processes owe and no call has counted. Tokens may have paid it where they are leased.
    pub(crate) fn uncounted(&self, lives: &[u32]) -> Vec<(usize, Costs)> {
        let living = self.accounts.iter().filter(|(((proxy, life), _), _)| lives[*proxy] == *life);
        let left = living.map(|((_, meter), Account { owed, counted })| {
            let taken = owed.taken - counted.taken;
            (*meter, Costs { taken, refunded: owed.refunded - counted.refunded })
        });
        left.filter(|(_, left)| *left != Costs::default()).collect()
    }

    /// The least that the counter of the leased limit must have: all that is owed, but what crashed processes may have
    /// lost.
    pub(crate) fn leased_at_least(&self, lives: &[u32]) -> u64 {
        let of_it = self.accounts.iter().filter(|((_, meter), _)| *meter == LEASED);
        let least = of_it.map(|(((proxy, life), _), account)| match lives[*proxy] == *life {
            true => account.owed.taken,
            false => account.counted.taken,
        });
        least.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROCESS: Process = (0, 0);

    fn change(meter: usize, taken: u64, refunded: u64, rose: i64) -> [Change; 1] {
        [Change { meter, asked: Costs { taken, refunded }, rose }]
    }

    #[test]
    fn a_call_counts_once_and_no_more_than_is_owed() {
        let mut meters = Meters::default();
        meters.owe(PROCESS, DEBITED, 7);
        assert_eq!(meters.uncounted(&[0]), [(DEBITED, Costs { taken: 7, refunded: 0 })]);
        assert!(meters.count(PROCESS, (1, 1), &change(DEBITED, 7, 0, 0)).is_err(), "forgotten");
        let mut meters = Meters::default();
        meters.owe(PROCESS, DEBITED, 7);
        assert!(meters.count(PROCESS, (1, 1), &change(DEBITED, 7, 0, 7)).is_ok());
        assert!(meters.count(PROCESS, (1, 1), &change(DEBITED, 7, 0, 0)).is_ok());
        assert!(meters.uncounted(&[0]).is_empty());
        assert!(meters.count(PROCESS, (1, 1), &change(DEBITED, 7, 0, 7)).is_err(), "twice");
        assert!(meters.count(PROCESS, (1, 2), &change(DEBITED, 1, 0, 1)).is_err(), "not owed");
    }

    #[test]
    fn estimates_are_owed_either_way_and_crashed_processes_owe_nothing() {
        let mut meters = Meters::default();
        meters.owe(PROCESS, ESTIMATED, ESTIMATE + 5);
        meters.owe(PROCESS, ESTIMATED, ESTIMATE - 5);
        assert!(meters.count(PROCESS, (1, 1), &change(ESTIMATED, 5, 5, 0)).is_ok());
        meters.owe(PROCESS, LEASED, 3);
        assert_eq!((meters.leased_at_least(&[0]), meters.uncounted(&[0]).len()), (3, 1));
        assert_eq!((meters.leased_at_least(&[1]), meters.uncounted(&[1]).len()), (0, 0));
    }
}
