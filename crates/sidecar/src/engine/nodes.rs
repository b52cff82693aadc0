//! The nodes of the FRS: the counters of one business and key, used, looked at and changed.
//!
//! A node is the counters of all limits of its business, under the keys that a decision goes by, so
//! there is one truth whichever door is asked. All windows of a node are seen and changed as one step.
//!
//! Only a first-hit window has a start and an end that can be set. Other windows are used like any, and told
//! by their count and their last hit; token buckets by their count alone.

use super::{EXPIRY_SLACK, Engine, Met, Modes, Plan, Words, meet};
use smallvec::SmallVec;
use tidegate_core::{
    Charge, Decision, Decisions, DeniedHits, FirstHitWindow, OpenWindow, Quota, Request, Timestamp,
    Verdict, decide, decide_all,
};
use tidegate_limits::Limit;
use tidegate_store::{Entries, Hashed, UpdateError};

/// What is done with the hits of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Nothing: would one hit have room?
    Look,
    /// They have happened: each window counts them as far as it has room, or as its algorithm can.
    Record,
    /// All windows count them, or none does.
    Acquire,
}

/// What is done with the hits of nodes that are decided as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JointUse {
    /// Nothing: would they have room?
    Look,
    /// All windows of all nodes count them, or none does.
    Acquire,
}

/// A window of a node.
#[derive(Debug)]
pub(crate) struct NodeWindow<'a> {
    pub(crate) name: &'a str,
    pub(crate) capacity: u32,
    /// What a look at it, or the use of it, says.
    pub(crate) decision: Decision,
    /// Its count, where it is one of hits in a window that is open.
    pub(crate) open: Option<OpenWindow>,
    /// When the last hit came, where hits are counted.
    pub(crate) last: Option<Timestamp>,
}

impl NodeWindow<'_> {
    /// The hits that are counted now.
    pub(crate) fn count(&self) -> u64 {
        match self.open {
            Some(open) => open.count,
            None => u64::from(self.capacity).saturating_sub(self.decision.remaining),
        }
    }
}

/// The windows of a node; a node whose business is unlimited has none.
pub(crate) type NodeWindows<'a> = SmallVec<[NodeWindow<'a>; 3]>;

/// What a window is to be; what is left out stays, or is as in a new node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change<'a> {
    pub(crate) name: &'a str,
    pub(crate) count: Option<u32>,
    pub(crate) start: Option<Timestamp>,
    pub(crate) last: Option<Timestamp>,
}

/// Why an operation on a node was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeError {
    #[error("no limit is configured for this business")]
    UnknownBusiness,
    #[error("the node exists")]
    Exists,
    #[error("there is no node for this key")]
    NotFound,
    #[error("this business has no window {name}; it has {known}")]
    UnknownWindow { name: String, known: String },
    #[error("window {name} is of {algorithm}, of which nothing can be set")]
    NotApplicable { name: String, algorithm: &'static str },
    #[error("window {name}: count {count} is more than its limit {most}")]
    CountAboveLimit { name: String, count: u32, most: u32 },
    #[error("window {name}: {what}")]
    Time { name: String, what: &'static str },
    #[error(transparent)]
    Undecided(#[from] UpdateError),
}

/// Why nodes were not used as one.
#[derive(Debug)]
pub(crate) enum JointError {
    /// No limit is configured for the businesses of these, by their places in the request.
    Unknown(SmallVec<[usize; 4]>),
    Undecided(UpdateError),
}

impl From<UpdateError> for JointError {
    fn from(error: UpdateError) -> JointError {
        JointError::Undecided(error)
    }
}

impl Engine {
    /// Uses the nodes of `request`, one for each of its descriptors, as one, and hands the windows of each on:
    /// all that the request costs has room, or nothing is counted.
    pub(crate) fn use_nodes<T>(
        &self,
        request: &Request,
        how: JointUse,
        now: Timestamp,
        told: impl FnOnce(Verdict, &[NodeWindows<'_>]) -> T,
    ) -> Result<T, JointError> {
        let in_force = self.rules.load();
        let met = self.meet(&in_force.rules, request).each;
        let unknown = met.iter().enumerate().filter(|(_, met)| matches!(met, Met::Nothing));
        let unknown: SmallVec<[usize; 4]> = unknown.map(|(place, _)| place).collect();
        if !unknown.is_empty() {
            return Err(JointError::Unknown(unknown));
        }
        let mut plan = Plan::of(&met, request, self.modes, self.store.seed(), now);
        plan.asks.iter_mut().for_each(|ask| ask.denied = DeniedHits::Ignore);
        let mut decisions = Decisions::default();
        let (verdict, words) =
            self.store.update_many(&plan.keys, now.as_nanos(), |entries| match how {
                JointUse::Look => {
                    let words = plan.read(entries);
                    // Nodes that come twice must have room for both, so it is tried on a copy.
                    let mut tried = words.clone();
                    (decide_all(&mut tried, &plan.asks, now, &mut decisions), words)
                }
                JointUse::Acquire => {
                    let verdict = plan.decide(entries, now, &mut decisions);
                    (verdict, plan.read(entries))
                }
            })?;
        let all = match how {
            JointUse::Look => looked_at(&plan, &met, &words, now),
            JointUse::Acquire => {
                let decided =
                    super::Decided { request, met: &met, decisions: decisions.all(), now };
                decided.count(&in_force.counters);
                windows(&plan, &met, &words, decisions.all(), now)
            }
        };
        self.metrics.answered(verdict);
        let mut all = all.into_iter();
        let of_each: Vec<NodeWindows<'_>> =
            met.iter().map(|met| all.by_ref().take(met.limits().count()).collect()).collect();
        Ok(told(verdict, &of_each))
    }

    /// Uses the node of `request`, which has one descriptor, and hands its windows on.
    pub(crate) fn use_node<T>(
        &self,
        request: &Request,
        how: Use,
        now: Timestamp,
        told: impl FnOnce(Verdict, &NodeWindows<'_>) -> T,
    ) -> Result<T, NodeError> {
        let in_force = self.rules.load();
        let met = self.meet(&in_force.rules, request).each;
        be_known(&met)?;
        let mut plan = Plan::of(&met, request, self.modes, self.store.seed(), now);
        // Whatever the limits say of denied requests: these words have a meaning of their own.
        let denied = if how == Use::Record { DeniedHits::Count } else { DeniedHits::Ignore };
        plan.asks.iter_mut().for_each(|ask| ask.denied = denied);
        let mut decisions = Decisions::default();
        let (verdict, words) = self.store.update_many(&plan.keys, now.as_nanos(), |entries| {
            let verdict = plan.decide(entries, now, &mut decisions);
            (verdict, plan.read(entries))
        })?;
        if how != Use::Look {
            let decided = super::Decided { request, met: &met, decisions: decisions.all(), now };
            decided.count(&in_force.counters);
        }
        self.metrics.answered(verdict);
        Ok(told(verdict, &windows(&plan, &met, &words, decisions.all(), now)))
    }

    /// Looks the node of `request` up; an error where it has no window that is open.
    pub(crate) fn find_node<T>(
        &self,
        request: &Request,
        now: Timestamp,
        told: impl FnOnce(&NodeWindows<'_>) -> T,
    ) -> Result<T, NodeError> {
        self.with_node(request, now, |plan, met, entries| {
            let words = plan.read(entries);
            if !exists(plan, &words, now) {
                return Err(NodeError::NotFound);
            }
            Ok(told(&looked_at(plan, met, &words, now)))
        })
    }

    /// Makes the node of `request`: every window open, with the counts and times of `changes`.
    pub(crate) fn create_node<T>(
        &self,
        request: &Request,
        changes: &[Change<'_>],
        now: Timestamp,
        told: impl FnOnce(&NodeWindows<'_>) -> T,
    ) -> Result<T, NodeError> {
        self.with_node(request, now, |plan, met, entries| {
            let mut words = plan.read(entries);
            if exists(plan, &words, now) {
                return Err(NodeError::Exists);
            }
            for limit in limits(met) {
                let blank = Change { name: name(limit), count: None, start: None, last: None };
                let change = changes.iter().find(|change| change.name == blank.name);
                set(plan, met, &mut words, change.unwrap_or(&blank), now)?;
            }
            be_windows(met, changes)?;
            self.put(plan, entries, &mut words, now);
            Ok(told(&looked_at(plan, met, &words, now)))
        })
    }

    /// Sets counts and times of windows of a node that there is.
    pub(crate) fn change_node<T>(
        &self,
        request: &Request,
        changes: &[Change<'_>],
        now: Timestamp,
        told: impl FnOnce(&NodeWindows<'_>) -> T,
    ) -> Result<T, NodeError> {
        self.with_node(request, now, |plan, met, entries| {
            let mut words = plan.read(entries);
            be_windows(met, changes)?;
            if !exists(plan, &words, now) {
                return Err(NodeError::NotFound);
            }
            for change in changes {
                set(plan, met, &mut words, change, now)?;
            }
            self.put(plan, entries, &mut words, now);
            Ok(told(&looked_at(plan, met, &words, now)))
        })
    }

    /// Forgets the node of `request`: all its counters are as if never used. Says whether there was
    /// anything to forget.
    pub(crate) fn erase_node(&self, request: &Request, now: Timestamp) -> Result<bool, NodeError> {
        let (mut had_one, parts) = self.with_node(request, now, |plan, met, entries| {
            let words = plan.read(entries);
            for key in 0..plan.keys.len() {
                entries.get(key).state.fill(0);
            }
            Ok((exists(plan, &words, now), self.other_parts(plan, met, now)))
        })?;
        for part in parts {
            had_one |= self.store.erase(&part, now.as_nanos())?;
        }
        Ok(had_one)
    }

    /// Does something with the counters of a request, in one step: if it fails, nothing is written.
    fn with_node<T>(
        &self,
        request: &Request,
        now: Timestamp,
        change: impl FnOnce(&Plan<'_>, &[Met<'_>], &mut Entries<'_>) -> Result<T, NodeError>,
    ) -> Result<T, NodeError> {
        let in_force = self.rules.load();
        let met = meet(&in_force.rules, request).each;
        be_known(&met)?;
        let plan = Plan::of(&met, request, Modes::default(), self.store.seed(), now);
        self.store
            .update_many(&plan.keys, now.as_nanos(), |entries| change(&plan, &met, entries))?
    }

    /// Writes states that were set, and until when they matter.
    fn put(&self, plan: &Plan<'_>, entries: &mut Entries<'_>, words: &mut Words, now: Timestamp) {
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

    /// The keys of parts of the counters that a decision now does not need, but a later one may.
    fn other_parts(&self, plan: &Plan<'_>, met: &[Met<'_>], now: Timestamp) -> Vec<Hashed> {
        let mut others = Vec::new();
        for (ask, counter) in plan.asks.iter().zip(&plan.counter_of_ask) {
            let counter = &plan.counters[*counter];
            let class = plan.keys[counter.keys.start].class;
            for label in ask.quota.part_labels(now) {
                let hash = counter.hash.part(self.store.seed(), label).0;
                if plan.keys[counter.keys.clone()].iter().all(|key| key.hash != hash) {
                    others.push(Hashed { hash, class });
                }
            }
        }
        debug_assert_eq!(plan.asks.len(), limits(met).count());
        others
    }
}

/// The limits that were met, in the order of the asks.
fn limits<'m>(met: &'m [Met<'_>]) -> impl Iterator<Item = &'m Limit> {
    met.iter().flat_map(|met| met.limits()).filter_map(|limit| limit.limit)
}

/// What a window is called: as its limit, or by its place among those of its rule.
fn name(limit: &Limit) -> &str {
    match &limit.name {
        Some(name) => name,
        None => limit.path.rsplit_once('#').map_or("limit", |(_, place)| place),
    }
}

fn be_known(met: &[Met<'_>]) -> Result<(), NodeError> {
    match met {
        [Met::Nothing] | [] => Err(NodeError::UnknownBusiness),
        _ => Ok(()),
    }
}

/// Whether every change is of a window that there is.
fn be_windows(met: &[Met<'_>], changes: &[Change<'_>]) -> Result<(), NodeError> {
    let is_known = |change: &&Change<'_>| limits(met).any(|limit| name(limit) == change.name);
    match changes.iter().find(|change| !is_known(change)) {
        None => Ok(()),
        Some(change) => {
            let known: Vec<&str> = limits(met).map(name).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            Err(NodeError::UnknownWindow { name: format!("{:?}", change.name), known })
        }
    }
}

/// Whether a node has a window that is open, or a counter of another kind that holds something.
fn exists(plan: &Plan<'_>, words: &Words, now: Timestamp) -> bool {
    plan.asks.iter().any(|ask| {
        let state = &words[ask.state.clone()];
        match ask.quota {
            Quota::FirstHitWindow(window) => open_window(window, state, now).is_some(),
            quota if quota.reset().is_some() => quota.last_hit(state, now).is_some(),
            _ => state.iter().any(|word| *word != 0),
        }
    })
}

fn open_window(window: &FirstHitWindow, state: &[u64], now: Timestamp) -> Option<OpenWindow> {
    window.open_window(state.first_chunk()?, now)
}

/// The windows as a look at them says.
fn looked_at<'m>(
    plan: &Plan<'_>,
    met: &'m [Met<'_>],
    words: &Words,
    now: Timestamp,
) -> NodeWindows<'m> {
    let peek = |ask: &tidegate_core::LimitCheck<'_>| {
        let mut untouched: Words = words[ask.state.clone()].into();
        decide(&mut untouched, ask.quota, Charge::PEEK, now)
    };
    let decisions: SmallVec<[Decision; 4]> = plan.asks.iter().map(peek).collect();
    windows(plan, met, words, &decisions, now)
}

fn windows<'m>(
    plan: &Plan<'_>,
    met: &'m [Met<'_>],
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
    limits(met).zip(&plan.asks).zip(decisions).map(window).collect()
}

/// Sets one window, if what is asked makes sense.
fn set(
    plan: &Plan<'_>,
    met: &[Met<'_>],
    words: &mut Words,
    change: &Change<'_>,
    now: Timestamp,
) -> Result<(), NodeError> {
    let named = limits(met).zip(&plan.asks).find(|(limit, _)| name(limit) == change.name);
    let Some((_, ask)) = named else { return be_windows(met, &[*change]) };
    let of = || change.name.to_owned();
    let Quota::FirstHitWindow(window) = ask.quota else {
        return Err(NodeError::NotApplicable { name: of(), algorithm: ask.quota.algorithm() });
    };
    let state = &mut words[ask.state.clone()];
    let open = open_window(window, state, now);
    let count = match change.count {
        Some(count) if count > window.capacity() => {
            let most = window.capacity();
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
