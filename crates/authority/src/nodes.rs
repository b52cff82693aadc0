//! The nodes of the FRS: the counters of one business and key, which can be used, read and changed.
//!
//! A node has the counters of all limits of its business, under the same keys that rate limit calls use, so every
//! endpoint sees the same counts. All windows of a node are read and changed in one step.
//!
//! Start and end can be set for first-hit windows only. Other windows show their count and their last hit, token
//! buckets their count alone.

mod left;

pub use left::LeftError;

use crate::answer::Decided;
use crate::applied::{Applied, match_limits};
use crate::authority::Authority;
use crate::counters::Undecided;
use crate::holdings::{read_apart, reserve};
use crate::modes::Modes;
use crate::outcome::Passing;
use crate::plan::{EXPIRY_SLACK, Plan, Words};
use smallvec::SmallVec;
use tidegate_core::{
    Charge, Decision, Decisions, DeniedHits, FirstHitWindow, OpenWindow, Quota, Request, Timestamp,
    Verdict, decide, decide_all,
};
use tidegate_limits::Limit;
use tidegate_store::{Entries, Hashed};

/// Keys erased in one update. More would hold more locks at a time; fewer take more round trips of an engine that is
/// elsewhere: an exact window has some 1,460 parts.
const ERASED_KEYS: usize = 64;

/// How the hits of a request are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Nothing is counted: would one hit fit?
    Look,
    /// The hits have happened: each window counts as many as fit, or as its algorithm can.
    Record,
    /// All windows count the hits, or none does.
    Acquire,
}

/// How the hits of several nodes are used as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JointUse {
    /// Nothing is counted: would the hits fit?
    Look,
    /// All windows of all nodes count the hits, or none does.
    Acquire,
}

/// A window of a node.
#[derive(Debug)]
pub struct NodeWindow<'a> {
    pub name: &'a str,
    pub capacity: u32,
    /// The decision of its use, or of a peek.
    pub decision: Decision,
    /// The open window, for first-hit windows.
    pub open: Option<OpenWindow>,
    /// The time of the last hit, where the algorithm keeps it.
    pub last: Option<Timestamp>,
}

impl NodeWindow<'_> {
    /// The number of hits counted now.
    pub fn count(&self) -> u64 {
        match self.open {
            Some(open) => open.count,
            None => u64::from(self.capacity).saturating_sub(self.decision.remaining),
        }
    }
}

/// The windows of a node. An unlimited business has none.
pub type NodeWindows<'a> = SmallVec<[NodeWindow<'a>; 3]>;

/// New values of a window. A missing value stays, or is that of a new node.
#[derive(Debug, Clone, Copy)]
pub struct Change<'a> {
    pub name: &'a str,
    pub count: Option<u32>,
    pub start: Option<Timestamp>,
    pub last: Option<Timestamp>,
}

/// Why an operation on a node failed.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("no limit is configured for this business")]
    UnknownBusiness,
    #[error("the node exists")]
    Exists,
    #[error("there is no node for this key")]
    NotFound,
    #[error("this business has no window {name}; it has {known}")]
    UnknownWindow { name: String, known: String },
    #[error("window {name} is of {algorithm}, which cannot be set")]
    NotApplicable { name: String, algorithm: &'static str },
    #[error("window {name}: count {count} is more than its limit {most}")]
    CountAboveLimit { name: String, count: u32, most: u32 },
    #[error("window {name}: {what}")]
    Time { name: String, what: &'static str },
    #[error(transparent)]
    Undecided(#[from] Undecided),
}

/// Why nodes could not be used as one.
#[derive(Debug)]
pub enum JointError {
    /// No limit is configured for the businesses of the descriptors at these indexes.
    Unknown(SmallVec<[usize; 4]>),
    Undecided(Undecided),
}

impl From<Undecided> for JointError {
    fn from(error: Undecided) -> JointError {
        JointError::Undecided(error)
    }
}

impl Authority {
    /// Uses the nodes of `request`, one for each descriptor, as one: all hits fit, or none is counted. Calls
    /// `then` with the windows of each.
    pub async fn use_nodes<T>(
        &self,
        request: &Request,
        how: JointUse,
        now: Timestamp,
        then: impl FnOnce(Verdict, &[NodeWindows<'_>]) -> T,
    ) -> Result<T, JointError> {
        let limits = self.limits.load();
        let matched = self.matched(&limits, request)?;
        let applied = &matched.each[..];
        let unknown = applied.iter().enumerate();
        let unknown = unknown.filter(|(_, applied)| applied.is_nothing());
        let unknown: SmallVec<[usize; 4]> = unknown.map(|(index, _)| index).collect();
        if !unknown.is_empty() {
            return Err(JointError::Unknown(unknown));
        }
        let site = self.true_site();
        let now = site.now(now);
        let mut plan = Plan::of(applied, request, self.modes, site.hashing(), now);
        plan.asks.iter_mut().for_each(|ask| ask.denied = DeniedHits::Ignore);
        let (mut verdict, mut decisions) = (Verdict::Deny, Decisions::default());
        let mut words = Words::new();
        // The hits of a node that comes twice must fit together, so a look decides on a copy.
        let look = |words: &Words, decisions: &mut Decisions| {
            decide_all(&mut words.clone(), &plan.asks, now, decisions)
        };
        if site.is_apart(&plan) {
            match how {
                JointUse::Look => {
                    words = read_apart(site.counters, &plan, now).await?;
                    verdict = look(&words, &mut decisions);
                }
                JointUse::Acquire => {
                    let made = reserve(&site, &plan, now, &mut decisions).await?;
                    (verdict, words) = (made.verdict, made.words);
                }
            }
        } else {
            let mut update = |entries: &mut Entries<'_>| match how {
                JointUse::Look => {
                    words = plan.read(entries);
                    verdict = look(&words, &mut decisions);
                }
                JointUse::Acquire => {
                    (verdict, words) = plan.decide(entries, now, &mut decisions);
                }
            };
            site.counters.update(&plan.keys, now, &mut update).await?;
        }
        let all = match how {
            JointUse::Look => peeked_windows(&plan, applied, &words, now),
            JointUse::Acquire => {
                Decided::new(&limits, request, &matched, decisions.all(), now)
                    .report(Passing::Together(verdict), |_, _, _| {});
                windows(&plan, applied, &words, decisions.all(), now)
            }
        };
        self.observer.answered(verdict);
        let mut all = all.into_iter();
        let of_each: Vec<NodeWindows<'_>> = applied
            .iter()
            .map(|applied| all.by_ref().take(applied.limits().count()).collect())
            .collect();
        Ok(then(verdict, &of_each))
    }

    /// Uses the node of `request`, which has one descriptor. Calls `then` with its windows.
    pub async fn use_node<T>(
        &self,
        request: &Request,
        how: Use,
        now: Timestamp,
        then: impl FnOnce(Verdict, &NodeWindows<'_>) -> T,
    ) -> Result<T, NodeError> {
        let limits = self.limits.load();
        let matched = self.matched(&limits, request)?;
        let applied = &matched.each[..];
        check_known(applied)?;
        let site = self.true_site();
        let now = site.now(now);
        let mut plan = Plan::of(applied, request, self.modes, site.hashing(), now);
        // These commands define what denied hits do, whatever the limits say.
        let denied = if how == Use::Record { DeniedHits::Count } else { DeniedHits::Ignore };
        for ask in &mut plan.asks {
            ask.denied = denied;
            if how == Use::Look {
                ask.charge = Charge::PEEK;
            }
        }
        let (mut verdict, mut decisions) = (Verdict::Deny, Decisions::default());
        let mut words = Words::new();
        let mut update = |entries: &mut Entries<'_>| {
            (verdict, words) = plan.decide(entries, now, &mut decisions);
        };
        site.counters.update(&plan.keys, now, &mut update).await?;
        if how != Use::Look {
            Decided::new(&limits, request, &matched, decisions.all(), now)
                .report(Passing::Together(verdict), |_, _, _| {});
        }
        self.observer.answered(verdict);
        Ok(then(verdict, &windows(&plan, applied, &words, decisions.all(), now)))
    }

    /// Finds the node of `request`. It is an error if no window is open.
    pub async fn find_node<T>(
        &self,
        request: &Request,
        now: Timestamp,
        then: impl FnOnce(&NodeWindows<'_>) -> T,
    ) -> Result<T, NodeError> {
        let find = |node: &Node<'_, '_, '_>, words: &mut Words| node.check_exists(words);
        self.with_node(request, now, find, then).await
    }

    /// Creates the node of `request`: every window is open, with the counts and times of `changes`.
    pub async fn create_node<T>(
        &self,
        request: &Request,
        changes: &[Change<'_>],
        now: Timestamp,
        then: impl FnOnce(&NodeWindows<'_>) -> T,
    ) -> Result<T, NodeError> {
        let create = |node: &Node<'_, '_, '_>, words: &mut Words| {
            if node.exists(words) {
                return Err(NodeError::Exists);
            }
            for limit in limits(node.applied) {
                let blank = Change { name: name(limit), count: None, start: None, last: None };
                let change = changes.iter().find(|change| change.name == blank.name);
                node.set(words, change.unwrap_or(&blank))?;
            }
            check_windows(node.applied, changes)
        };
        self.with_node(request, now, create, then).await
    }

    /// Sets counts and times of windows of an existing node.
    pub async fn change_node<T>(
        &self,
        request: &Request,
        changes: &[Change<'_>],
        now: Timestamp,
        then: impl FnOnce(&NodeWindows<'_>) -> T,
    ) -> Result<T, NodeError> {
        let change = |node: &Node<'_, '_, '_>, words: &mut Words| {
            check_windows(node.applied, changes)?;
            node.check_exists(words)?;
            changes.iter().try_for_each(|change| node.set(words, change))
        };
        self.with_node(request, now, change, then).await
    }

    /// Runs `change` on the states of a node in one update, and calls `then` with its windows. If `change` fails,
    /// nothing is written.
    async fn with_node<T>(
        &self,
        request: &Request,
        now: Timestamp,
        mut change: impl FnMut(&Node<'_, '_, '_>, &mut Words) -> Result<(), NodeError> + Send,
        then: impl FnOnce(&NodeWindows<'_>) -> T,
    ) -> Result<T, NodeError> {
        let limits = self.limits.load();
        let matched = match_limits(&limits.rules, request);
        let applied = &matched.each[..];
        check_known(applied)?;
        let site = self.true_site();
        let now = site.now(now);
        let plan = Plan::of(applied, request, Modes::default(), site.hashing(), now);
        let node = Node { plan: &plan, applied, now };
        let (mut words, mut changed) = (Words::new(), Ok(()));
        let mut update = |entries: &mut Entries<'_>| {
            words = plan.read(entries);
            let before = words.clone();
            changed = change(&node, &mut words);
            if changed.is_ok() && words != before {
                node.put(entries, &mut words);
            }
        };
        site.counters.update(&plan.keys, now, &mut update).await?;
        changed?;
        Ok(then(&peeked_windows(&plan, applied, &words, now)))
    }

    /// Erases the node of `request`: all its counters are as if never used. Returns whether it existed.
    pub async fn erase_node(&self, request: &Request, now: Timestamp) -> Result<bool, NodeError> {
        let site = self.true_site();
        let now = site.now(now);
        let (mut existed, mut others) = (false, Vec::new());
        let erase = |node: &Node<'_, '_, '_>, words: &mut Words| {
            existed = node.exists(words);
            others = node.other_parts(site.counters.seed());
            words.fill(0);
            Ok(())
        };
        self.with_node(request, now, erase, |_| ()).await?;
        Ok(existed | self.erase_parts(&others, now).await?)
    }

    /// Erases parts of counters. Returns whether any existed.
    async fn erase_parts(&self, parts: &[Hashed], now: Timestamp) -> Result<bool, NodeError> {
        let site = self.true_site();
        let (mut existed, mut left, mut keys) = (false, parts, ERASED_KEYS);
        while !left.is_empty() {
            let (parts, rest) = left.split_at(keys.min(left.len()));
            let mut had_part = false;
            let mut update = |entries: &mut Entries<'_>| {
                had_part = false;
                for index in 0..entries.len() {
                    let entry = entries.get(index);
                    had_part |= !entry.is_new();
                    entry.state.fill(0);
                }
            };
            match site.counters.update(parts, now, &mut update).await {
                Ok(()) => (left, existed) = (rest, existed | had_part),
                // Large states may take the room of many.
                Err(error) if error.is_too_large() && keys > 1 => keys /= 2,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(existed)
    }
}

/// A node of the FRS during an update.
struct Node<'n, 'p, 'm> {
    plan: &'n Plan<'p>,
    applied: &'n [Applied<'m>],
    now: Timestamp,
}

impl Node<'_, '_, '_> {
    /// Whether the node has an open window, or a counter of another kind that is not empty.
    fn exists(&self, words: &Words) -> bool {
        self.plan.asks.iter().any(|ask| {
            let state = &words[ask.state.clone()];
            match ask.quota {
                Quota::FirstHitWindow(window) => open_window(window, state, self.now).is_some(),
                quota if quota.reset().is_some() => quota.last_hit(state, self.now).is_some(),
                _ => state.iter().any(|word| *word != 0),
            }
        })
    }

    fn check_exists(&self, words: &Words) -> Result<(), NodeError> {
        if self.exists(words) { Ok(()) } else { Err(NodeError::NotFound) }
    }

    /// Writes states that were set, and their expiry.
    fn put(&self, entries: &mut Entries<'_>, words: &mut Words) {
        let Node { plan, now, .. } = *self;
        for (ask, counter) in plan.asks.iter().zip(&plan.counter_of_ask) {
            let mut untouched: Words = words[ask.state.clone()].into();
            let kept = decide(&mut untouched, ask.quota, Charge::PEEK, now).keep_until;
            let expires_at = kept.saturating_add(EXPIRY_SLACK).as_nanos();
            for (key, part) in plan.counters[*counter].parts(words) {
                let entry = entries.get(key);
                entry.state[..part.len()].copy_from_slice(part);
                *entry.expires_at = expires_at;
            }
        }
    }

    /// The keys of counters' parts that a later decision may need, but not a decision now.
    fn other_parts(&self, seed: u64) -> Vec<Hashed> {
        let mut others = Vec::new();
        (0..self.plan.asks.len()).for_each(|ask| self.other_parts_of(ask, seed, &mut others));
        debug_assert_eq!(self.plan.asks.len(), limits(self.applied).count());
        others
    }

    /// The same of one limit, added to `others`.
    fn other_parts_of(&self, ask: usize, seed: u64, others: &mut Vec<Hashed>) {
        let (plan, now) = (self.plan, self.now);
        let (ask, counter) = (&plan.asks[ask], &plan.counters[plan.counter_of_ask[ask]]);
        let class = plan.keys[counter.keys.start].class;
        for label in ask.quota.part_labels(now) {
            let hash = counter.hash.part(seed, label).0;
            if plan.keys[counter.keys.clone()].iter().all(|key| key.hash != hash) {
                others.push(Hashed { hash, class });
            }
        }
    }

    /// Sets one window, if the values are consistent.
    fn set(&self, words: &mut Words, change: &Change<'_>) -> Result<(), NodeError> {
        let Node { plan, applied, now } = *self;
        let named = limits(applied).zip(&plan.asks).find(|(limit, _)| name(limit) == change.name);
        let Some((_, ask)) = named else { return check_windows(applied, &[*change]) };
        let of = || change.name.to_owned();
        let Quota::FirstHitWindow(window) = ask.quota else {
            return Err(NodeError::NotApplicable { name: of(), algorithm: ask.quota.algorithm() });
        };
        let state = &mut words[ask.state.clone()];
        let open = open_window(window, state, now);
        let count = match change.count {
            Some(count) if count > ask.quota.capacity() => {
                let most = ask.quota.capacity();
                return Err(NodeError::CountAboveLimit { name: of(), count, most });
            }
            Some(count) => count.into(),
            None => open.map_or(0, |open| open.count),
        };
        let start = change.start.or(open.map(|open| open.start)).unwrap_or(now);
        let known = open.map(|open| open.last).filter(|last| *last >= start);
        let last = change.last.or(known).unwrap_or(start);
        let wrong = |what| Err(NodeError::Time { name: of(), what });
        if change.start.is_some_and(|start| start > now) {
            return wrong("start is in the future");
        }
        if change.last.is_some_and(|last| last < start || last > now.max(start)) {
            return wrong("end is not between start and now");
        }
        let made = FirstHitWindow::state(start, count, last);
        if window.open_window(&made, now).is_none() {
            return wrong("a window of this start is over already");
        }
        state[..made.len()].copy_from_slice(&made);
        Ok(())
    }
}

/// The applied limits, in the order of the asks.
fn limits<'m>(applied: &'m [Applied<'_>]) -> impl Iterator<Item = &'m Limit> {
    applied.iter().flat_map(|applied| applied.limits()).filter_map(|limit| limit.limit)
}

/// The name of a window: the name of its limit, or its position among the limits of its rule.
fn name(limit: &Limit) -> &str {
    match &limit.name {
        Some(name) => name,
        None => limit.path.rsplit_once('#').map_or("limit", |(_, place)| place),
    }
}

fn check_known(applied: &[Applied<'_>]) -> Result<(), NodeError> {
    match applied {
        [one] if one.is_nothing() => Err(NodeError::UnknownBusiness),
        [] => Err(NodeError::UnknownBusiness),
        _ => Ok(()),
    }
}

/// Checks that every change is for an existing window.
fn check_windows(applied: &[Applied<'_>], changes: &[Change<'_>]) -> Result<(), NodeError> {
    let is_known = |change: &&Change<'_>| limits(applied).any(|limit| name(limit) == change.name);
    match changes.iter().find(|change| !is_known(change)) {
        None => Ok(()),
        Some(change) => {
            let known: Vec<&str> = limits(applied).map(name).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            Err(NodeError::UnknownWindow { name: format!("{:?}", change.name), known })
        }
    }
}

fn open_window(window: &FirstHitWindow, state: &[u64], now: Timestamp) -> Option<OpenWindow> {
    window.open_window(state.first_chunk()?, now)
}

/// The windows with the decisions of a peek.
fn peeked_windows<'m>(
    plan: &Plan<'_>,
    applied: &'m [Applied<'_>],
    words: &Words,
    now: Timestamp,
) -> NodeWindows<'m> {
    let peek = |ask: &tidegate_core::LimitCheck<'_>| {
        let mut untouched: Words = words[ask.state.clone()].into();
        decide(&mut untouched, ask.quota, Charge::PEEK, now)
    };
    let decisions: SmallVec<[Decision; 4]> = plan.asks.iter().map(peek).collect();
    windows(plan, applied, words, &decisions, now)
}

fn windows<'m>(
    plan: &Plan<'_>,
    applied: &'m [Applied<'_>],
    words: &Words,
    decisions: &[Decision],
    now: Timestamp,
) -> NodeWindows<'m> {
    let window =
        |((limit, ask), decision): ((&'m Limit, &tidegate_core::LimitCheck<'_>), &Decision)| {
            let state = &words[ask.state.clone()];
            let open = match ask.quota {
                Quota::FirstHitWindow(window) => open_window(window, state, now),
                _ => None,
            };
            let capacity = ask.quota.capacity();
            let is_used = open.is_some() || decision.remaining < capacity.into();
            let last = ask.quota.last_hit(state, now).filter(|_| is_used);
            NodeWindow { name: name(limit), capacity, decision: *decision, open, last }
        };
    limits(applied).zip(&plan.asks).zip(decisions).map(window).collect()
}
