//! The slow, obvious twins of the algorithms: each remembers every take and recounts from
//! scratch. Nothing here is shared with the code under test.

use tidegate_core::{Hits, Nanos, Timestamp};

/// What a twin says: allowed or not, and what is left.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) allowed: bool,
    pub(crate) remaining: u64,
}

/// Counts takes whose window is the current one, over a list of all takes.
pub(crate) struct FixedWindowTwin {
    pub(crate) requests: u64,
    pub(crate) period: u64,
    takes: Vec<(u64, u64)>,
}

impl FixedWindowTwin {
    pub(crate) fn new(requests: u32, period: Nanos) -> Self {
        FixedWindowTwin { requests: requests.into(), period: period.as_nanos(), takes: Vec::new() }
    }

    pub(crate) fn decide(&mut self, hits: Hits, now: Timestamp) -> Said {
        let window = now.as_nanos() / self.period;
        // A clock that stepped back stays in the newest window that was taken from.
        let newest = self.takes.iter().map(|(window, _)| *window).max().unwrap_or(0);
        let window = window.max(newest);
        let used: u64 = self.takes.iter().filter(|(w, _)| *w == window).map(|(_, hits)| hits).sum();
        let left = self.requests - used;
        let allowed = left >= hits.get().max(1);
        if allowed && hits.get() > 0 {
            self.takes.push((window, hits.get()));
        }
        Said { allowed, remaining: if allowed { left - hits.get() } else { left } }
    }
}

/// Replays every take since the beginning, refilling in between, with exact fractions.
pub(crate) struct TokenBucketTwin {
    pub(crate) requests: u128,
    pub(crate) period: u128,
    pub(crate) burst: u128,
    pub(crate) initial: u128,
    /// When it was first looked at, for one that starts below its burst and refills from then on;
    /// a full one has no time before its first take.
    born: Option<u64>,
    takes: Vec<(u64, u64)>,
}

impl TokenBucketTwin {
    pub(crate) fn new(requests: u32, period: Nanos, burst: u32, initial: u32) -> Self {
        TokenBucketTwin {
            requests: requests.into(),
            period: period.as_nanos().into(),
            burst: burst.into(),
            initial: initial.into(),
            born: None,
            takes: Vec::new(),
        }
    }

    pub(crate) fn decide(&mut self, hits: Hits, now: Timestamp) -> Said {
        // Levels as fractions with denominator `period`: tokens × period.
        let mut level = self.initial * self.period;
        if self.initial < self.burst {
            self.born.get_or_insert(now.as_nanos());
        }
        let first_take = self.takes.first().map(|(at, _)| *at);
        let mut clock = self.born.or(first_take).unwrap_or(now.as_nanos());
        let mut replay = self.takes.clone();
        replay.push((now.as_nanos(), 0));
        for (at, taken) in replay {
            let since = u128::from(at.saturating_sub(clock));
            level = (level + since * self.requests).min(self.burst * self.period);
            level -= u128::from(taken) * self.period;
            clock = clock.max(at);
        }
        let allowed = level >= u128::from(hits.get().max(1)) * self.period;
        if allowed && hits.get() > 0 {
            self.takes.push((now.as_nanos(), hits.get()));
            level -= u128::from(hits.get()) * self.period;
        }
        Said { allowed, remaining: (level / self.period) as u64 }
    }
}
