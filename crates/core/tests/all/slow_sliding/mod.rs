//! The slow, obvious twins of the sliding windows: each keeps a log of all hits and recounts it.

use crate::slow_contract::Model;
use std::collections::{BTreeMap, HashMap};
use tidegate_core::{Charge, Decision, Quota, Timestamp, decide};

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400 * SECOND;

/// Two counters, weighted.
#[derive(Clone)]
pub(crate) struct WindowModel {
    limit: u64,
    period: u64,
    /// The newest window with takes or refunds.
    newest: u64,
    /// Hits by the number of their window.
    log: BTreeMap<u64, u64>,
}

impl WindowModel {
    pub(crate) fn new(limit: u32, period: u64) -> Self {
        WindowModel { limit: limit.into(), period, newest: 0, log: BTreeMap::new() }
    }

    fn hits(&self, window: u64) -> u64 {
        self.log.get(&window).copied().unwrap_or(0)
    }

    fn before(&self, window: u64) -> u64 {
        window.checked_sub(1).map_or(0, |before| self.hits(before))
    }

    /// Forgets all windows but the newest and the one before it.
    fn forget(&mut self) {
        let newest = self.newest;
        self.log.retain(|window, _| *window == newest || *window + 1 == newest);
    }

    fn window(&self, at: u64) -> u64 {
        let holds_hits = self.hits(self.newest) + self.before(self.newest) > 0;
        if holds_hits { self.newest.max(at / self.period) } else { at / self.period }
    }
}

impl Model for WindowModel {
    fn limit(&self) -> u64 {
        self.limit
    }

    fn period(&self) -> u64 {
        self.period
    }

    fn left(&self, at: u64) -> u64 {
        let window = self.window(at);
        let still = (window + 1) * self.period - at.max(window * self.period);
        let weighted = u128::from(self.before(window)) * u128::from(still);
        let weighted = weighted.div_ceil(u128::from(self.period)) as u64;
        self.limit.saturating_sub(self.hits(window) + weighted)
    }

    fn take(&mut self, at: u64, hits: u64) {
        if hits > 0 {
            self.newest = self.window(at);
            self.forget();
            *self.log.entry(self.newest).or_default() += hits;
        }
    }

    fn give_back(&mut self, at: u64, hits: u64) {
        let window = self.window(at);
        if hits == 0 || self.hits(window) + self.before(window) == 0 {
            return;
        }
        self.newest = window;
        self.forget();
        let mut rest = hits;
        for window in [Some(window), window.checked_sub(1)].into_iter().flatten() {
            let held = self.log.entry(window).or_default();
            let given = rest.min(*held);
            *held -= given;
            rest -= given;
        }
    }

    fn horizon(&self, at: u64) -> u64 {
        at.max(self.newest * self.period) + 3 * self.period
    }
}

/// A list of buckets.
#[derive(Clone)]
pub(crate) struct RingModel {
    limit: u64,
    period: u64,
    buckets: u64,
    newest: u64,
    log: BTreeMap<u64, u64>,
}

impl RingModel {
    pub(crate) fn new(limit: u32, period: u64) -> Self {
        let buckets = if period >= 86_400 * SECOND { 24 } else { 60 };
        RingModel { limit: limit.into(), period, buckets, newest: 0, log: BTreeMap::new() }
    }

    pub(crate) fn width(&self) -> u64 {
        self.period.div_ceil(self.buckets)
    }

    fn bucket(&self, at: u64) -> u64 {
        let bucket = at / self.width();
        if self.live(bucket.max(self.newest)).any(|(_, hits)| *hits > 0) {
            bucket.max(self.newest)
        } else {
            bucket
        }
    }

    /// The buckets that count while `bucket` is filling: itself, and those of a whole period before.
    fn live(&self, bucket: u64) -> impl Iterator<Item = (&u64, &u64)> {
        self.log.iter().filter(move |(number, _)| *number + self.buckets >= bucket)
    }
}

impl Model for RingModel {
    fn limit(&self) -> u64 {
        self.limit
    }

    fn period(&self) -> u64 {
        self.period
    }

    fn left(&self, at: u64) -> u64 {
        self.limit.saturating_sub(self.live(self.bucket(at)).map(|(_, hits)| hits).sum())
    }

    fn take(&mut self, at: u64, hits: u64) {
        if hits > 0 {
            self.newest = self.bucket(at);
            let (newest, buckets) = (self.newest, self.buckets);
            self.log.retain(|number, _| *number <= newest && *number + buckets >= newest);
            *self.log.entry(newest).or_default() += hits;
        }
    }

    fn give_back(&mut self, at: u64, hits: u64) {
        if hits == 0 || self.left(at) == self.limit {
            return;
        }
        self.newest = self.bucket(at);
        let oldest = self.newest.saturating_sub(self.buckets);
        let mut rest = hits;
        for (_, held) in self.log.range_mut(oldest..).rev() {
            let given = rest.min(*held);
            *held -= given;
            rest -= given;
        }
        self.log.retain(|number, _| *number >= oldest);
    }

    fn horizon(&self, at: u64) -> u64 {
        at.max(self.newest * self.width()) + 2 * self.period + 2 * self.width()
    }
}

/// The last time up to `at` that is `time` after the start of a day.
fn last_reset(time: u64, at: u64, day: u64) -> u64 {
    let today = at / day * day + time;
    if today <= at { today } else { today - day }
}

/// A model that starts anew with the first charge after a reset, and records the last hit.
#[derive(Clone)]
pub(crate) struct Daily<M> {
    new: M,
    model: M,
    /// In nanoseconds after midnight UTC; none for never.
    reset: Option<u64>,
    pub(crate) last: Option<u64>,
}

impl<M: Model> Daily<M> {
    pub(crate) fn new(model: M, reset: Option<u64>) -> Self {
        Daily { new: model.clone(), model, reset, last: None }
    }

    pub(crate) fn is_over(&self, at: u64) -> bool {
        let reset = self.reset.map_or(0, |time| last_reset(time, at, DAY));
        self.last.is_some_and(|last| last < reset)
    }

    fn begin_anew_after_reset(&mut self, at: u64) {
        if self.is_over(at) {
            (self.model, self.last) = (self.new.clone(), None);
        }
    }

    fn note(&mut self, at: u64) {
        self.last = self.last.max(Some(at));
    }
}

impl<M: Model> Model for Daily<M> {
    fn limit(&self) -> u64 {
        self.model.limit()
    }

    fn period(&self) -> u64 {
        self.model.period()
    }

    fn left(&self, at: u64) -> u64 {
        if self.is_over(at) { self.limit() } else { self.model.left(at) }
    }

    fn take(&mut self, at: u64, hits: u64) {
        if hits > 0 {
            self.begin_anew_after_reset(at);
            if self.model.left(at) == self.limit() {
                self.last = None;
            }
            self.model.take(at, hits);
            self.note(at);
        }
    }

    fn forced_without_room(&mut self, at: u64) {
        if self.left(at) < self.limit() {
            self.note(at);
        }
    }

    fn give_back(&mut self, at: u64, hits: u64) {
        if !self.is_over(at) {
            self.model.give_back(at, hits);
        }
    }

    fn horizon(&self, at: u64) -> u64 {
        self.model.horizon(at)
    }
}

/// A list of seconds.
#[derive(Clone)]
pub(crate) struct LogModel {
    limit: u64,
    secs: u64,
    /// In seconds after midnight UTC; none for never.
    reset: Option<u64>,
    pub(crate) log: BTreeMap<u64, u64>,
}

impl LogModel {
    pub(crate) fn new(limit: u32, secs: u64) -> Self {
        LogModel { limit: limit.into(), secs, reset: None, log: BTreeMap::new() }
    }

    pub(crate) fn with_reset(self, secs: u64) -> Self {
        LogModel { reset: Some(secs), ..self }
    }

    /// The first second whose hits count at `second`.
    fn oldest(&self, second: u64) -> u64 {
        let reset = self.reset.map_or(0, |time| last_reset(time, second, DAY / SECOND));
        second.saturating_sub(self.secs).max(reset)
    }

    /// Whether a charge at `at` is about times that are not fully known any more: it needs to count hits
    /// that are 26 hours or more older than the newest ones, or is itself that old.
    pub(crate) fn may_be_out_of_reach(&self, at: u64) -> bool {
        let hour = |second: u64| second / 3_600;
        let Some(newest) = self.log.keys().next_back().copied() else { return false };
        let second = at / SECOND;
        let oldest = hour(self.oldest(second));
        let counts_hours_dropped =
            self.log.keys().any(|hit| hour(*hit) > oldest && hour(*hit) + 26 <= hour(newest));
        hour(second) + 26 <= hour(newest) || counts_hours_dropped
    }
}

impl Model for LogModel {
    fn limit(&self) -> u64 {
        self.limit
    }

    fn period(&self) -> u64 {
        self.secs * SECOND
    }

    /// Hits of seconds later than `at` count too.
    fn left(&self, at: u64) -> u64 {
        let oldest = self.oldest(at / SECOND);
        self.limit.saturating_sub(self.log.range(oldest..).map(|(_, hits)| hits).sum())
    }

    fn take(&mut self, at: u64, hits: u64) {
        if hits > 0 {
            *self.log.entry(at / SECOND).or_default() += hits;
        }
    }

    /// From the minute of `at` backwards, then from the oldest minute.
    fn give_back(&mut self, at: u64, hits: u64) {
        let now = at / SECOND;
        let oldest = self.oldest(now);
        let minute = |second: u64| second / 60 * 60..second / 60 * 60 + 60;
        let mut rest = hits;
        for minute in [minute(now), minute(oldest)] {
            let counting = minute.start.max(oldest)..minute.end;
            for (_, held) in self.log.range_mut(counting).rev() {
                let given = rest.min(*held);
                *held -= given;
                rest -= given;
            }
        }
        self.log.retain(|_, hits| *hits > 0);
    }

    fn horizon(&self, at: u64) -> u64 {
        let newest = self.log.keys().next_back().copied().unwrap_or(0);
        at.max(newest * SECOND) + self.period() + 2 * SECOND
    }
}

/// The fate of expired parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// Dropped as soon as they expire by the clock.
    Drop,
    /// Kept for ever.
    Keep,
}

/// A store of the parts of one counter.
#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) parts: HashMap<u64, [u64; 33]>,
    keep_until: HashMap<u64, Timestamp>,
    expiry: Expiry,
}

impl Store {
    pub(crate) fn new(expiry: Expiry) -> Store {
        Store { parts: HashMap::new(), keep_until: HashMap::new(), expiry }
    }

    pub(crate) fn decide(&mut self, quota: &Quota, charge: Charge, now: Timestamp) -> Decision {
        if self.expiry == Expiry::Drop {
            self.parts.retain(|label, _| self.keep_until[label] > now);
        }
        let parts = quota.parts(now);
        let part = |label| self.parts.get(label).copied().unwrap_or([0; 33]);
        let before: Vec<u64> = parts.labels().iter().flat_map(part).collect();
        let mut after = before.clone();
        let decision = decide(&mut after, quota, charge, now);
        for (index, label) in parts.labels().iter().enumerate() {
            let words = index * 33..index * 33 + 33;
            if before[words.clone()] != after[words.clone()] {
                self.parts.insert(*label, after[words].try_into().unwrap());
                self.keep_until.insert(*label, decision.keep_until);
            }
        }
        decision
    }
}
