//! Limits: each algorithm alone, and several as one.

use super::KEYS;
use super::subject::{Answers, Subject, Work};
use crate::counter::Counter;
use std::ops::Range;
use tidegate_core::{
    Charge, Decisions, DeniedHits, Enforcement, FirstHitWindow, FixedWindow, Hits, LimitCheck,
    Nanos, Quota, QuotaError, SlidingBuckets, SlidingExact, SlidingWindow, Timestamp, TokenBucket,
    Verdict, decide, decide_all,
};

/// Hits per hour that no run uses up, and few that are used up in advance.
pub(super) const AMPLE: u32 = 1_000_000;
pub(super) const FEW: u32 = 10;
pub(super) const HOUR: Nanos = Nanos::from_secs(3_600);
const MINUTE: Nanos = Nanos::from_secs(60);
const DAY: Nanos = Nanos::from_secs(86_400);
/// 2026-01-01 10:30:00 UTC: no window ends during a run.
pub(super) const START_SECS: u64 = 1_767_225_600 + 37_800;
/// The time between two decisions: 21 rounds of 100,000 take 42 seconds, less than a minute.
pub(super) const STEP: Nanos = Nanos::new(20_000);
/// Minutes of earlier use, including the current one: nearly all buckets of a ring have hits, and none
/// expires during a run.
const MINUTES_BEFORE: u64 = 60;

type MakeQuota = fn(u32) -> Result<Quota, QuotaError>;

const ALGORITHMS: [(&str, MakeQuota); 7] = [
    ("fixed_window", |hits| Ok(Quota::FixedWindow(FixedWindow::new(hits, HOUR)?))),
    ("fixed_window with borrow", |hits| {
        Ok(Quota::FixedWindow(FixedWindow::new(hits, HOUR)?.with_borrow(hits / 2)?))
    }),
    ("first_hit_window", |hits| Ok(Quota::FirstHitWindow(FirstHitWindow::new(hits, HOUR)?))),
    ("token_bucket", |hits| Ok(Quota::TokenBucket(TokenBucket::new(hits, HOUR, hits, hits)?))),
    ("sliding_window", |hits| Ok(Quota::SlidingWindow(SlidingWindow::new(hits, HOUR)?))),
    ("sliding_buckets", |hits| Ok(Quota::SlidingBuckets(SlidingBuckets::new(hits, HOUR)?))),
    ("sliding_buckets exact", |hits| Ok(Quota::SlidingExact(SlidingExact::new(hits, HOUR)?))),
];

/// The limits of a request. The last one has room or is exceeded.
fn three(first: Quota, last: u32) -> Result<[Quota; 3], QuotaError> {
    Ok([
        first,
        Quota::TokenBucket(TokenBucket::new(AMPLE, MINUTE, AMPLE, AMPLE)?),
        Quota::FixedWindow(FixedWindow::new(last, DAY)?),
    ])
}

pub(super) fn subjects() -> Result<Vec<Subject>, QuotaError> {
    let mut subjects = Vec::new();
    for (name, make) in ALGORITHMS {
        let runs = [("allow", AMPLE, Answers::Yes), ("deny", FEW, Answers::No)];
        for (outcome, hits, answers) in runs {
            let quota = make(hits)?;
            let alone = Subject::new(format!("{name}, {outcome}"), answers, move || {
                Ok(Box::new(Alone::new(quota.clone())))
            });
            subjects.push(alone.beside(format!("governor, {outcome}")));
        }
    }
    let bucket = TokenBucket::new(AMPLE, HOUR, AMPLE, AMPLE)?;
    let one = [Quota::TokenBucket(bucket)];
    let one = Subject::new("1 limit (token_bucket), allow", Answers::Yes, move || {
        Ok(Box::new(Together::new(one.clone())))
    });
    subjects.push(one.beside("governor, allow"));

    let window = || Ok(Quota::SlidingWindow(SlidingWindow::new(AMPLE, HOUR)?));
    let ring = || Ok(Quota::SlidingBuckets(SlidingBuckets::new(AMPLE, HOUR)?));
    let windows = "sliding_window, token_bucket, fixed_window";
    let rings = "sliding_buckets, token_bucket, fixed_window";
    for (names, quotas, outcome, answers) in [
        (windows, three(window()?, AMPLE)?, "allow", Answers::Yes),
        (windows, three(window()?, FEW)?, "deny", Answers::No),
        (rings, three(ring()?, AMPLE)?, "allow", Answers::Yes),
        (rings, three(ring()?, FEW)?, "deny", Answers::No),
    ] {
        let name = format!("3 limits ({names}), {outcome}");
        let three =
            Subject::new(name, answers, move || Ok(Box::new(Together::new(quotas.clone()))));
        subjects.push(three.beside(format!("governor x3, {outcome}")));
    }
    Ok(subjects)
}

/// The state of a counter after an hour of use. A small limit is used up.
fn used(quota: &Quota) -> Vec<u64> {
    let mut counter = Counter::default();
    for minute in (0..MINUTES_BEFORE).rev() {
        let at = Timestamp::from_secs(START_SECS - minute * 60);
        counter.decide(quota, Charge::ONE, at);
    }
    let start = Timestamp::from_secs(START_SECS);
    if quota.requests() == FEW {
        counter.decide(quota, Charge::Force(Hits::new(u64::MAX)), start);
    }
    counter.words(quota, start)
}

/// A single limit.
struct Alone {
    quota: Quota,
    states: Vec<u64>,
    words: usize,
    now: Timestamp,
}

impl Alone {
    fn new(quota: Quota) -> Alone {
        let one = used(&quota);
        let states = one.repeat(KEYS as usize);
        Alone { quota, states, words: one.len(), now: Timestamp::from_secs(START_SECS) }
    }
}

impl Work for Alone {
    fn decide_each(&mut self, picks: &[u32]) -> u64 {
        let mut allowed = 0;
        for &pick in picks {
            let from = pick as usize * self.words;
            let state = &mut self.states[from..from + self.words];
            let decision = decide(state, &self.quota, Charge::ONE, self.now);
            allowed += u64::from(decision.is_allow());
            self.now = self.now.saturating_add(STEP);
        }
        allowed
    }
}

/// Several limits as one, each of another descriptor.
struct Together<const N: usize> {
    quotas: [Quota; N],
    states: Vec<u64>,
    /// The range of each limit's state in the words of a key.
    ranges: [Range<usize>; N],
    words: usize,
    decisions: Decisions,
    now: Timestamp,
}

impl<const N: usize> Together<N> {
    fn new(quotas: [Quota; N]) -> Self {
        let mut one = Vec::new();
        let ranges = quotas.each_ref().map(|quota| {
            let from = one.len();
            one.extend(used(quota));
            from..one.len()
        });
        Together {
            quotas,
            states: one.repeat(KEYS as usize),
            ranges,
            words: one.len(),
            decisions: Decisions::default(),
            now: Timestamp::from_secs(START_SECS),
        }
    }
}

impl<const N: usize> Work for Together<N> {
    fn decide_each(&mut self, picks: &[u32]) -> u64 {
        let mut allowed = 0;
        for &pick in picks {
            let from = pick as usize * self.words;
            let states = &mut self.states[from..from + self.words];
            let asks: [LimitCheck<'_>; N] = std::array::from_fn(|place| LimitCheck {
                quota: &self.quotas[place],
                enforcement: Enforcement::Enforce,
                denied: DeniedHits::Ignore,
                charge: Charge::ONE,
                descriptor: place,
                state: self.ranges[place].clone(),
            });
            let verdict = decide_all(states, &asks, self.now, &mut self.decisions);
            allowed += u64::from(verdict == Verdict::Allow);
            self.now = self.now.saturating_add(STEP);
        }
        allowed
    }
}
