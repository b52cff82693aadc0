//! The slow, obvious twin of the token bucket: it remembers every take and refund and replays them from the
//! start, with exact refills in between.

use crate::slow_contract::Model;

#[derive(Clone)]
pub(crate) struct BucketModel {
    pub(crate) requests: u64,
    pub(crate) period: u64,
    pub(crate) burst: u64,
    pub(crate) initial: u64,
    /// The first use of a bucket that starts below its burst and refills from then on. A full bucket has no
    /// time before its first take.
    born: Option<u64>,
    /// Times, with tokens taken (positive) or returned (negative).
    changes: Vec<(u64, i128)>,
}

impl BucketModel {
    pub(crate) fn new(requests: u32, period: u64, burst: u32, initial: u32) -> Self {
        BucketModel {
            requests: requests.into(),
            period,
            burst: burst.into(),
            initial: initial.into(),
            born: None,
            changes: Vec::new(),
        }
    }

    /// The level at `at` in tokens × period.
    fn level(&self, at: u64) -> i128 {
        self.replayed(at).0
    }

    /// The level at `at`, and the effective time: later than `at` while a debt is paid back.
    fn replayed(&self, at: u64) -> (i128, u64) {
        let token = i128::from(self.period);
        let capacity = i128::from(self.burst) * token;
        let mut level = i128::from(self.initial) * token;
        let mut clock = self.born.unwrap_or(at);
        for (time, taken) in self.changes.iter().copied().chain([(at, 0)]) {
            level += i128::from(time.saturating_sub(clock)) * i128::from(self.requests);
            level = (level.min(capacity) - taken * token).min(capacity);
            clock = clock.max(time);
            while level < 0 {
                // Paid back nanosecond by nanosecond; the excess of the last one is lost.
                let nanos = (-level / i128::from(self.requests)).max(1);
                level += nanos * i128::from(self.requests);
                clock += nanos as u64;
                if level > 0 {
                    level = 0;
                }
            }
        }
        (level, clock)
    }
}

impl Model for BucketModel {
    fn limit(&self) -> u64 {
        self.burst
    }

    fn period(&self) -> u64 {
        self.period
    }

    fn look(&mut self, at: u64) {
        if self.initial < self.burst {
            self.born.get_or_insert(at);
        }
    }

    fn left(&self, at: u64) -> u64 {
        (self.level(at) / i128::from(self.period)) as u64
    }

    fn take(&mut self, at: u64, hits: u64) {
        if hits > 0 {
            self.born.get_or_insert(at);
            self.changes.push((at, hits.into()));
        }
    }

    fn give_back(&mut self, at: u64, hits: u64) {
        let full = self.level(at) == i128::from(self.burst) * i128::from(self.period);
        if self.born.is_some() && hits > 0 && !full {
            self.changes.push((at, -i128::from(hits)));
        }
    }

    fn horizon(&self, at: u64) -> u64 {
        self.settled().max(at) + 2 * self.burst * self.period / self.requests + self.period
    }

    fn settled(&self) -> u64 {
        let newest = self.changes.iter().map(|(time, _)| *time).max().unwrap_or(0);
        newest.max(self.born.unwrap_or(0)).max(self.replayed(0).1)
    }

    fn grace(&self) -> u64 {
        if self.initial == self.burst { 0 } else { self.period }
    }
}
