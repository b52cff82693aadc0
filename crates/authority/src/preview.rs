//! A decision without effect: the same plan and the same algorithms, on copies of the counters' states.
//!
//! Reads counters one by one through a function of the caller, so the state of a busy counter may be a moment
//! older than the next. Writes nothing.

use crate::applied::match_limits;
use crate::modes::Modes;
use crate::plan::{Hashing, Plan};
use smallvec::SmallVec;
use tidegate_core::{
    Charge, Decision, Decisions, Enforcement, KeyHash, Parts, Request, Timestamp, Verdict, decide,
    decide_all,
};
use tidegate_limits::{Limit, Rules};
use tidegate_store::Hashed;

/// One limit that would decide a request.
#[derive(Debug)]
pub struct Previewed {
    /// The index of its descriptor.
    pub descriptor: usize,
    pub limit: Limit,
    pub enforcement: Enforcement,
    /// The hash of its counter.
    pub counter: KeyHash,
    /// The store keys of its counter's parts.
    pub keys: SmallVec<[Hashed; Parts::MAX]>,
    /// The decision of a peek at the counter as it is.
    pub now: Decision,
    /// The decision on the request.
    pub then: Decision,
}

/// The verdict on `request` at `now`, and every limit that takes part, in the order of the descriptors. `read`
/// fills in the words stored under a key; they are zero before.
pub fn preview<E>(
    rules: &Rules,
    request: &Request,
    hashing: Hashing,
    now: Timestamp,
    mut read: impl FnMut(&Hashed, &mut [u64]) -> Result<(), E>,
) -> Result<(Verdict, Vec<Previewed>), E> {
    let applied = match_limits(rules, request).each;
    let plan = Plan::of(&applied, request, Modes::default(), hashing, now);
    let mut words = vec![0; plan.words];
    for counter in &plan.counters {
        for (key, part) in counter.parts(&mut words) {
            read(&plan.keys[key], part)?;
        }
    }
    let before = words.clone();
    let mut decisions = Decisions::default();
    let verdict = decide_all(&mut words, &plan.asks, now, &mut decisions);
    // The asks come from the same limits in the same order.
    let limits = applied.iter().flat_map(|applied| applied.limits());
    let previewed = limits
        .zip(&plan.asks)
        .zip(plan.counter_of_ask.iter().zip(decisions.all()))
        .filter_map(|((limit, ask), (counter, then))| {
            let hash = plan.counters[*counter].hash;
            let keys = plan.counters[*counter].keys.clone();
            let mut untouched = before[ask.state.clone()].to_vec();
            Some(Previewed {
                descriptor: ask.descriptor,
                limit: limit.limit?.clone(),
                enforcement: ask.enforcement,
                counter: hash,
                keys: plan.keys[keys].into(),
                now: decide(&mut untouched, ask.quota, Charge::PEEK, now),
                then: *then,
            })
        });
    Ok((verdict, previewed.collect()))
}
