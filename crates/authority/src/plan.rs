//! The plan of one request: its asks, their counters, and the keys of the counters in the store.
//!
//! Owns the copying of states between store entries and algorithms. Leaves all decisions to `tidegate_core`.

mod places;

pub(crate) use places::Part;

use crate::applied::Applied;
use crate::counters::Counters;
use crate::holdings::{HeldQuotas, holding_key};
use crate::modes::Modes;
use smallvec::SmallVec;
use std::cell::Cell;
use std::ops::Range;
use tidegate_core::{
    CounterKey, Decision, Decisions, Identity, KeyHash, LimitCheck, Nanos, Parts, Period, Quota,
    Request, StateSize, Timestamp, Verdict, decide_all,
};
use tidegate_store::{Entries, Hashed, UPDATE_KEYS_MAX};

/// How long a counter is kept beyond its end: another thread or process may decide by an earlier reading of the
/// clock.
pub(crate) const EXPIRY_SLACK: Nanos = Nanos::from_secs(1);

thread_local! {
    /// Buffers that this thread reuses from request to request. While they are taken, empty ones stand in.
    static KEY: Cell<CounterKey> = const { Cell::new(CounterKey::new()) };
    pub(crate) static DECISIONS: Cell<Decisions> = const { Cell::new(Decisions::new()) };
}

/// The asks of a request and their counters. Nearly all requests have up to four of each.
#[derive(Default)]
pub(crate) struct Plan<'a> {
    pub(crate) asks: SmallVec<[LimitCheck<'a>; 4]>,
    /// The counter of each ask.
    pub(crate) counter_of_ask: SmallVec<[usize; 4]>,
    pub(crate) counters: SmallVec<[Counter; 4]>,
    /// The keys in the store, counter by counter.
    pub(crate) keys: SmallVec<[Hashed; 4]>,
    pub(crate) words: usize,
}

/// The states of a request's counters, in words.
pub(crate) type Words = SmallVec<[u64; 16]>;
/// An expiry for each counter, in nanoseconds since the Unix epoch.
pub(crate) type Ends = SmallVec<[u64; 4]>;

/// One counter of a request.
pub(crate) struct Counter {
    pub(crate) hash: KeyHash,
    /// Its range in the keys of the plan.
    pub(crate) keys: Range<usize>,
    /// Its range in the words of all states.
    state: Range<usize>,
}

/// How the keys of counters are made.
#[derive(Debug, Clone, Copy)]
pub struct Hashing {
    seed: u64,
    /// Whether descriptors that have limits per second alone are at places of their own.
    divides_seconds: bool,
}

impl Hashing {
    /// For counters that are all in one place.
    #[must_use]
    pub const fn undivided(seed: u64) -> Hashing {
        Hashing { seed, divides_seconds: false }
    }

    /// For the keys of these counters.
    #[must_use]
    pub fn of(counters: &dyn Counters) -> Hashing {
        Hashing { seed: counters.seed(), divides_seconds: counters.divides_seconds() }
    }

    #[must_use]
    pub const fn seed(self) -> u64 {
        self.seed
    }

    /// The key of a counter whose descriptor has these limits.
    #[must_use]
    pub fn hash<'q>(
        self,
        of: &Identity<'_>,
        limits: impl IntoIterator<Item = &'q Quota>,
    ) -> KeyHash {
        let hash = CounterKey::new().hash(self.seed, of);
        if self.is_per_second(limits) { hash.per_second() } else { hash }
    }

    /// Whether the counters of a descriptor with these limits are at a place of limits per second.
    fn is_per_second<'q>(self, limits: impl IntoIterator<Item = &'q Quota>) -> bool {
        const SECOND: Period = Period::Span(Nanos::from_secs(1));
        self.divides_seconds && limits.into_iter().all(|limit| limit.period() == SECOND)
    }
}

/// What a plan over holdings takes in place of counters.
#[derive(Clone, Copy)]
pub(crate) struct HeldPlan<'a> {
    pub(crate) quotas: &'a HeldQuotas,
    pub(crate) local_seed: u64,
}

impl<'a> Plan<'a> {
    /// The plan for a request and the limits that apply to it.
    pub(crate) fn of(
        applied: &'a [Applied<'_>],
        request: &'a Request,
        modes: Modes,
        hashing: Hashing,
        now: Timestamp,
    ) -> Plan<'a> {
        Plan::over(applied, request, modes, hashing, None, now)
    }

    /// The same over counters or holdings.
    pub(crate) fn over(
        applied: &'a [Applied<'_>],
        request: &'a Request,
        modes: Modes,
        hashing: Hashing,
        held: Option<HeldPlan<'a>>,
        now: Timestamp,
    ) -> Plan<'a> {
        let mut plan = Plan::default();
        let (mut key, seed) = (KEY.take(), hashing.seed());
        'all: for (index, (applied, descriptor)) in
            applied.iter().zip(&request.descriptors).enumerate()
        {
            let is_per_second = hashing.is_per_second(applied.limits().map(|limit| limit.quota));
            for limit in applied.limits() {
                if plan.keys.len() > UPDATE_KEYS_MAX {
                    // The store refuses so many keys, however many more follow.
                    break 'all;
                }
                let identity = Identity {
                    domain: &request.domain,
                    entries: &descriptor.entries,
                    shared: applied.shared(),
                    quota: limit.quota,
                    label: limit.label,
                };
                let hash = key.hash(seed, &identity);
                let hash = if is_per_second { hash.per_second() } else { hash };
                let holding = held.and_then(|held| Some((held, held.quotas.get(limit.limit?)?)));
                let (state, counter) = match holding {
                    None => plan.counter(hash, limit.quota, seed, now),
                    Some((held, _)) => plan.holding(hash, held.local_seed),
                };
                plan.counter_of_ask.push(counter);
                plan.asks.push(LimitCheck {
                    quota: holding.map_or(limit.quota, |(_, quota)| quota),
                    enforcement: modes.enforcement(limit.enforcement),
                    denied: limit.denied.unwrap_or(modes.denied),
                    charge: request.charge_of(descriptor),
                    descriptor: index,
                    state,
                });
            }
        }
        KEY.set(key);
        plan
    }

    /// Sets the enforcement of each ask to that of its rule under `modes`.
    pub(crate) fn enforce(&mut self, applied: &[Applied<'_>], modes: Modes) {
        let limits = applied.iter().flat_map(Applied::limits);
        for (ask, limit) in self.asks.iter_mut().zip(limits) {
            ask.enforcement = modes.enforcement(limit.enforcement);
        }
    }

    /// The words and the index of a counter, which is added if it is new: a descriptor may come twice.
    fn counter(
        &mut self,
        hash: KeyHash,
        quota: &Quota,
        seed: u64,
        now: Timestamp,
    ) -> (Range<usize>, usize) {
        if let Some(index) = self.counters.iter().position(|counter| counter.hash == hash) {
            return (self.counters[index].state.clone(), index);
        }
        let (first_key, first_word) = (self.keys.len(), self.words);
        match quota.state_size() {
            // One part, under the key of the counter itself.
            StateSize::Narrow => self.keys.push(Hashed::narrow(hash.0)),
            StateSize::Wide => self.keys.extend(counter_keys(hash, quota, seed, now)),
        }
        let keys = first_key..self.keys.len();
        self.words += keys.len() * quota.state_size().words();
        let state = first_word..self.words;
        self.counters.push(Counter { hash, keys, state: state.clone() });
        (state, self.counters.len() - 1)
    }

    /// The same of the holding of a shared counter.
    fn holding(&mut self, hash: KeyHash, local_seed: u64) -> (Range<usize>, usize) {
        if let Some(index) = self.counters.iter().position(|counter| counter.hash == hash) {
            return (self.counters[index].state.clone(), index);
        }
        let (key, first_word) = (self.keys.len(), self.words);
        self.keys.push(holding_key(local_seed, hash));
        self.words += StateSize::Narrow.words();
        let state = first_word..self.words;
        self.counters.push(Counter { hash, keys: key..key + 1, state: state.clone() });
        (state, self.counters.len() - 1)
    }

    /// The plan for one counter without asks.
    pub(crate) fn of_counter(hash: KeyHash, quota: &Quota, seed: u64, now: Timestamp) -> Plan<'a> {
        let mut plan = Plan::default();
        plan.counter(hash, quota, seed, now);
        plan
    }

    /// Decides in an update. Returns also the words of all counters afterwards.
    pub(crate) fn decide(
        &self,
        entries: &mut Entries<'_>,
        now: Timestamp,
        decisions: &mut Decisions,
    ) -> (Verdict, Words) {
        let mut words = self.read(entries);
        let verdict = decide_all(&mut words, &self.asks, now, decisions);
        let keep_until = self.keep_until(decisions.all());
        self.write(entries, &mut words, &keep_until);
        (verdict, words)
    }

    /// Copies the states of all counters from the store.
    pub(crate) fn read(&self, entries: &mut Entries<'_>) -> Words {
        let mut words = Words::from_elem(0, self.words);
        for counter in &self.counters {
            for (key, part) in counter.parts(&mut words) {
                part.copy_from_slice(&entries.get(key).state[..part.len()]);
            }
        }
        words
    }

    /// The expiry of each counter, by the decisions on its asks.
    pub(crate) fn keep_until(&self, decisions: &[Decision]) -> Ends {
        let mut keep_until = Ends::from_elem(0, self.counters.len());
        for (counter, decision) in self.counter_of_ask.iter().zip(decisions) {
            // A descriptor that comes twice has two decisions on one state: the later expiry counts.
            keep_until[*counter] = decision.keep_until.as_nanos().max(keep_until[*counter]);
        }
        keep_until
    }

    /// Copies changed states back to the store.
    pub(crate) fn write(&self, entries: &mut Entries<'_>, words: &mut Words, keep_until: &Ends) {
        for (counter, keep_until) in self.counters.iter().zip(keep_until) {
            let expires_at = keep_until.saturating_add(EXPIRY_SLACK.as_nanos());
            let is_whole = counter.keys.len() == 1;
            for (key, part) in counter.parts(words) {
                let entry = entries.get(key);
                if entry.state[..part.len()] != *part {
                    entry.state[..part.len()].copy_from_slice(part);
                    *entry.expires_at = expires_at;
                } else if is_whole && part.iter().any(|word| *word != 0) {
                    // Under a changed limit the same state may be needed for longer. Parts of a counter in
                    // several parts have an expiry each, and are left alone.
                    *entry.expires_at = expires_at.max(*entry.expires_at);
                }
            }
        }
    }
}

impl Counter {
    /// Pairs of key index and words.
    pub(crate) fn parts<'w>(
        &self,
        words: &'w mut [u64],
    ) -> impl Iterator<Item = (usize, &'w mut [u64])> {
        let part_words = self.state.len() / self.keys.len();
        self.keys.clone().zip(words[self.state.clone()].chunks_exact_mut(part_words))
    }
}

/// The store keys of the parts of a counter that a decision at `now` needs.
pub fn counter_keys(
    hash: KeyHash,
    quota: &Quota,
    seed: u64,
    now: Timestamp,
) -> SmallVec<[Hashed; Parts::MAX]> {
    let parts = quota.parts(now);
    let hashes = parts.labels().iter().map(|label| hash.part(seed, *label).0);
    match quota.state_size() {
        StateSize::Narrow => hashes.map(Hashed::narrow).collect(),
        StateSize::Wide => hashes.map(Hashed::wide).collect(),
    }
}
