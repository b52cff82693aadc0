//! Accounts for tokens: every hit that a filter admits must come from a lease that it holds, or
//! from a call that was charged for it; and all hits together from the charges in the store.
//!
//! The ledger is kept at both ends: by the sidecar's answers (before the network changes them), and
//! by the hits and returns of the filter.

use std::collections::{BTreeMap, VecDeque};
use tidegate_core::Lease;

/// A counter of the scenario: a value of a rule's key.
pub(crate) type Key = u32;

/// Expired leases are kept for this long: a returned lease may have expired while another lease,
/// which the filter really spent, had not.
const KEPT: u64 = 10_000_000_000;

/// Hits that are accounted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) hits: u64,
    /// The sidecar's time at which they count; none for the current time.
    pub(crate) decided_at: Option<u64>,
    /// How far the sidecar's time was behind that of the counters.
    pub(crate) lag: u64,
}

/// Hits that a call was charged for its requests. They can be spent only while its response is
/// handled, and in the wakes that go on with it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) key: Key,
    pub(crate) hits: u64,
    /// The sidecar's time of the decision.
    pub(crate) decided_at: u64,
    /// How far it was behind that of the counters.
    pub(crate) lag: u64,
    /// Whether a limit applied.
    pub(crate) limited: bool,
}

#[derive(Debug)]
struct HeldLease {
    id: u64,
    left: u64,
    from: u64,
    until: u64,
    /// Of the sidecar's time at the grant.
    lag: u64,
}

/// The tokens of a counter that a process holds, by its own clock.
#[derive(Debug, Default)]
struct Holding {
    leases: VecDeque<HeldLease>,
    unlimited_until: u64,
}

/// The totals of a counter.
#[derive(Debug, Default, Clone, Copy)]
struct Account {
    charged: u64,
    given_back: u64,
    admitted: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    holdings: Vec<BTreeMap<Key, Holding>>,
    accounts: Vec<Account>,
}

impl Ledger {
    /// Accounts for this many processes and counters.
    #[must_use]
    pub(crate) fn new(proxies: usize, keys: usize) -> Ledger {
        let holdings = (0..proxies).map(|_| BTreeMap::new()).collect();
        Ledger { holdings, accounts: vec![Account::default(); keys] }
    }

    /// A process has crashed and lost its tokens.
    pub(crate) fn forget(&mut self, proxy: usize) {
        self.holdings[proxy].clear();
    }

    /// The store charged hits.
    pub(crate) fn charge(&mut self, key: Key, hits: u64) {
        self.accounts[key as usize].charged += hits;
    }

    /// The store returned hits.
    pub(crate) fn give_back(&mut self, key: Key, hits: u64) {
        self.accounts[key as usize].given_back += hits;
    }

    /// A process received a lease.
    pub(crate) fn receive(
        &mut self,
        proxy: usize,
        key: Key,
        (lease, lag): (&Lease, u64),
        clock: u64,
    ) {
        let holding = self.holdings[proxy].entry(key).or_default();
        let until = lease.valid_until.as_nanos();
        if lease.tokens == Lease::UNLIMITED {
            holding.unlimited_until = holding.unlimited_until.max(until);
            return;
        }
        while let Some(oldest) = holding.leases.front()
            && oldest.until.saturating_add(KEPT) < clock
        {
            holding.leases.pop_front();
        }
        let held = HeldLease { id: lease.id, left: lease.tokens.into(), from: clock, until, lag };
        let place = holding.leases.partition_point(|other| other.until <= until);
        holding.leases.insert(place, held);
    }

    /// A process recalls a lease that it did not receive.
    ///
    /// # Errors
    /// If it did receive it.
    pub(crate) fn recall(&mut self, proxy: usize, key: Key, id: u64) -> Result<(), String> {
        let holding = self.holdings[proxy].entry(key).or_default();
        match holding.leases.iter().any(|held| held.id == id) {
            false => Ok(()),
            true => Err(format!("lease {id:x} is asked back, and was received")),
        }
    }

    /// A process has returned tokens of a lease, and may not spend them any more.
    ///
    /// # Errors
    /// If it does not have them.
    pub(crate) fn send_back(
        &mut self,
        proxy: usize,
        key: Key,
        id: u64,
        hits: u64,
    ) -> Result<(), String> {
        let holding = self.holdings[proxy].entry(key).or_default();
        let Some(index) = holding.leases.iter().position(|held| held.id == id) else {
            return Err(format!("{hits} tokens of lease {id:x} given back, which is not held"));
        };
        let (from, until) = (holding.leases[index].from, holding.leases[index].until);
        let mut missing = take(&mut holding.leases[index], hits);
        // The lease of a hit is not visible, so hits were attributed to the lease that expired
        // first. They may really have come from another lease that was live at the same time.
        for held in &mut holding.leases {
            if held.until > from && held.from < until {
                missing = take(held, missing);
            }
        }
        match missing {
            0 => Ok(()),
            _ => Err(format!("{hits} tokens of lease {id:x} given back, {missing} of them spent")),
        }
    }

    /// A process admits `hits`: by the response being handled, by a time without a limit, or by its
    /// leases.
    ///
    /// # Errors
    /// If it does not have the tokens, or nothing was charged for them.
    pub(crate) fn admit(
        &mut self,
        proxy: usize,
        key: Key,
        hits: u64,
        asked: &mut [Asked],
        clock: u64,
    ) -> Result<Vec<Spent>, String> {
        let mut spent = Vec::new();
        let mut missing = hits;
        for asked in asked.iter_mut().filter(|asked| asked.key == key && asked.hits > 0) {
            let hits = missing.min(asked.hits);
            asked.hits -= hits;
            missing -= hits;
            if asked.limited && hits > 0 {
                spent.push(Spent { hits, decided_at: Some(asked.decided_at), lag: asked.lag });
            }
        }
        let holding = self.holdings[proxy].entry(key).or_default();
        if missing > 0 && holding.unlimited_until <= clock {
            let (leased, mut lag) = (missing, 0);
            // The lease that expires first is spent first: if any assignment covers all hits, this
            // one does.
            for held in holding.leases.iter_mut().filter(|held| held.until > clock) {
                missing = take(held, missing);
                // It is not visible which of them was spent.
                lag = lag.max(held.lag);
            }
            if missing > 0 {
                let ended = holding.leases.iter().rev().find(|held| held.until <= clock);
                let ended = ended.map_or_else(String::new, |held| {
                    format!("; the last lease ended {} ns before", clock - held.until)
                });
                return Err(format!(
                    "counter {key}: {missing} of {hits} hits without a token{ended}"
                ));
            }
            spent.push(Spent { hits: leased, decided_at: None, lag });
        }
        let account = &mut self.accounts[key as usize];
        account.admitted += spent.iter().map(|spent| spent.hits).sum::<u64>();
        let (charged, given_back) = (account.charged, account.given_back);
        if account.admitted + given_back > charged {
            let admitted = account.admitted;
            return Err(format!(
                "counter {key}: {admitted} hits admitted, but {charged} charged and {given_back} given back"
            ));
        }
        Ok(spent)
    }
}

/// Takes up to `hits` tokens; returns the number of missing ones.
fn take(held: &mut HeldLease, hits: u64) -> u64 {
    let taken = held.left.min(hits);
    held.left -= taken;
    hits - taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Timestamp;

    fn lease(id: u64, tokens: u32, until: u64) -> Lease {
        Lease { id, tokens, valid_until: Timestamp::from_nanos(until) }
    }

    #[test]
    fn a_token_is_spent_once_before_its_expiry_and_its_return() {
        let mut ledger = Ledger::new(1, 1);
        ledger.charge(0, 100);
        ledger.receive(0, 0, (&lease(1, 3, 100), 0), 0);
        ledger.receive(0, 0, (&lease(2, 2, 50), 0), 0);
        assert!(ledger.admit(0, 0, 2, &mut [], 40).is_ok());
        assert!(ledger.send_back(0, 0, 1, 2).is_ok());
        assert!(ledger.admit(0, 0, 1, &mut [], 99).is_ok());
        assert_eq!(
            ledger.admit(0, 0, 1, &mut [], 99).unwrap_err(),
            "counter 0: 1 of 1 hits without a token; the last lease ended 49 ns before"
        );
        ledger.receive(0, 0, (&lease(3, 3, 200), 0), 100);
        let error = "2 tokens of lease 1 given back, 2 of them spent";
        assert_eq!(ledger.send_back(0, 0, 1, 2).unwrap_err().as_str(), error);
    }

    #[test]
    fn unlimited_hits_and_charged_calls_need_no_token() {
        let mut ledger = Ledger::new(1, 1);
        ledger.charge(0, 2);
        let mut asked = [Asked { key: 0, hits: 2, decided_at: 7, lag: 0, limited: true }];
        let spent = ledger.admit(0, 0, 2, &mut asked, 10).unwrap();
        assert_eq!(spent, [Spent { hits: 2, decided_at: Some(7), lag: 0 }]);
        assert!(ledger.admit(0, 0, 1, &mut asked, 10).is_err());
        ledger.receive(0, 0, (&lease(1, Lease::UNLIMITED, 20), 0), 10);
        assert_eq!(ledger.admit(0, 0, 9, &mut [], 19), Ok(Vec::new()));
        assert!(ledger.admit(0, 0, 9, &mut [], 20).is_err());
    }

    #[test]
    fn no_more_is_admitted_than_the_store_charged() {
        let mut ledger = Ledger::new(1, 1);
        ledger.charge(0, 5);
        ledger.receive(0, 0, (&lease(1, 5, 100), 0), 0);
        ledger.give_back(0, 3);
        assert_eq!(
            ledger.admit(0, 0, 3, &mut [], 1).unwrap_err(),
            "counter 0: 3 hits admitted, but 5 charged and 3 given back"
        );
    }
}
