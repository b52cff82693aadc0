//! The slow, obvious twins of the windows: each remembers all takes and refunds, and replays them from the
//! start, window by window. Nothing is shared with the code under test; calendars are walked month by
//! month, and local clocks are read tick by tick.

use tidegate_core::{Charge, Decision, Nanos, Outcome, Timestamp};

pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) const DAY: i64 = 86_400;

/// Seconds since the Unix epoch of a `YYYY-MM-DD hh:mm` or `YYYY-MM-DD hh:mm:ss` in UTC.
pub(crate) fn utc(text: &str) -> i64 {
    let numbers = text.split(['-', ' ', ':']).map(|number| number.parse::<i64>().unwrap());
    let numbers: Vec<i64> = numbers.collect();
    let months = (numbers[0] - 1970) * 12 + numbers[1] - 1;
    let first = month_starts().nth(usize::try_from(months).unwrap()).unwrap();
    let seconds = numbers.get(5).unwrap_or(&0);
    first + (numbers[2] - 1) * DAY + numbers[3] * 3_600 + numbers[4] * 60 + seconds
}

/// The start of each month from January 1970, in seconds since then.
pub(crate) fn month_starts() -> impl Iterator<Item = i64> {
    let lengths = (1970..).flat_map(|year| (1..=12).map(move |month| days_of(year, month)));
    lengths.scan(0, |start, days| {
        let this = *start;
        *start += days * DAY;
        Some(this)
    })
}

fn days_of(year: i64, month: i64) -> i64 {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// A local clock.
#[derive(Debug, Clone)]
pub(crate) struct SlowZone {
    pub(crate) offset: i32,
    /// Sorted, at distinct times.
    pub(crate) changes: Vec<(i64, i32)>,
}

impl SlowZone {
    fn reads(&self, at: i64) -> i64 {
        let last = self.changes.iter().rfind(|(time, _)| *time <= at);
        at + i64::from(last.map_or(self.offset, |(_, offset)| *offset))
    }

    /// The first instants at which the clock reads each of `readings` or later. Everything happens at a
    /// multiple of `tick`, and offsets are below a hundred ticks.
    pub(crate) fn instants(&self, readings: impl Iterator<Item = i64>, tick: i64) -> Vec<i64> {
        let (mut at, mut instants) = (i64::MIN, Vec::new());
        for reading in readings {
            // No clock reads it more than a hundred ticks before; nor is it read before an earlier one.
            at = at.max(reading.div_euclid(tick) * tick - 100 * tick);
            while self.reads(at) < reading {
                at += tick;
            }
            instants.push(at);
        }
        // A window that is skipped would begin where the next one does, and does not exist.
        instants.dedup();
        instants
    }
}

/// The boundaries of windows.
#[derive(Debug, Clone)]
pub(crate) enum SlowWindows {
    /// Multiples of this many nanoseconds since the epoch.
    Each(u64),
    /// These times in nanoseconds, and no others.
    At(Vec<u64>),
}

impl SlowWindows {
    pub(crate) fn at_seconds(seconds: impl Iterator<Item = i64>) -> Self {
        let nanos = seconds.map(|seconds| u64::try_from(seconds).unwrap().checked_mul(SECOND));
        SlowWindows::At(nanos.map_while(|nanos| nanos).collect())
    }

    pub(crate) fn ordinal(&self, now: u64) -> u64 {
        match self {
            SlowWindows::Each(period) => now / period,
            SlowWindows::At(starts) => {
                u64::try_from(starts.iter().rposition(|start| *start <= now).unwrap()).unwrap()
            }
        }
    }

    pub(crate) fn start(&self, ordinal: u64) -> u64 {
        match self {
            SlowWindows::Each(period) => period.saturating_mul(ordinal),
            SlowWindows::At(starts) => {
                *starts.get(usize::try_from(ordinal).unwrap()).unwrap_or(&u64::MAX)
            }
        }
    }
}

/// Whether a window counts forced hits beyond its capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beyond {
    Drop,
    Count,
}

/// The result of a charge against a window that has admitted `level` hits: whether it is allowed, and how
/// many hits it takes (negative for returned ones).
fn charged(level: u64, capacity: u64, charge: Charge, beyond: Beyond) -> (bool, i128) {
    let left = capacity.saturating_sub(level);
    let hits = charge.hits().get();
    let fits = hits.max(1) <= left;
    match charge {
        Charge::Take(_) => (fits, if fits { hits.into() } else { 0 }),
        // A window is over once its count exceeds its capacity.
        Charge::Force(_) if beyond == Beyond::Count && hits == 0 => {
            (capacity > 0 && level <= capacity, 0)
        }
        Charge::Force(_) if beyond == Beyond::Count => {
            (fits, level.saturating_add(hits).abs_diff(level).into())
        }
        Charge::Force(_) => (fits, hits.min(left).into()),
        Charge::Refund(_) => (true, -i128::from(hits.min(level))),
    }
}

/// The whole decision, with windows examined one by one.
fn answer(
    (requests, borrow): (u64, u64),
    (fits, level): (bool, u64),
    charge: Charge,
    now: u64,
    opening: impl Fn(u64) -> u64,
) -> Decision {
    let capacity = requests + borrow;
    let level = level.min(capacity);
    let needed = charge.hits().get().max(1);
    let owed_after = |windows: u64| level.saturating_sub(windows * requests);
    let is_whole = |windows: &u64| owed_after(*windows) == 0;
    let has_room = |windows: &u64| owed_after(*windows) + needed <= capacity;
    let retry_after = || {
        let windows = if needed <= capacity {
            (1..).find(has_room).unwrap()
        } else {
            (1..).find(is_whole).unwrap()
        };
        Nanos::new(opening(windows).saturating_sub(now))
    };
    Decision {
        outcome: if fits { Outcome::Allow } else { Outcome::Deny { retry_after: retry_after() } },
        remaining: capacity.saturating_sub(level),
        reset_at: Timestamp::from_nanos(opening(1)),
        keep_until: Timestamp::from_nanos(opening((1..).find(is_whole).unwrap())),
    }
}

/// All takes and refunds, by window.
pub(crate) struct FixedWindowTwin {
    pub(crate) requests: u64,
    pub(crate) borrow: u64,
    pub(crate) windows: SlowWindows,
    takes: Vec<(u64, i128)>,
}

impl FixedWindowTwin {
    pub(crate) fn new(requests: u32, borrow: u32, windows: SlowWindows) -> Self {
        let (requests, borrow) = (requests.into(), borrow.into());
        FixedWindowTwin { requests, borrow, windows, takes: Vec::new() }
    }

    pub(crate) fn decide(&mut self, charge: Charge, now: Timestamp) -> Decision {
        let now = now.as_nanos();
        // A clock that stepped back stays in the newest window with takes.
        let newest = self.takes.iter().map(|(window, _)| *window).max().unwrap_or(0);
        let window = self.windows.ordinal(now).max(newest);
        let level = self.level(window);
        let (fits, taken) = charged(level, self.requests + self.borrow, charge, Beyond::Count);
        if taken != 0 {
            self.takes.push((window, taken));
        }
        let level = self.level(window);
        answer((self.requests, self.borrow), (fits, level), charge, now, |later| {
            self.windows.start(window + later)
        })
    }

    fn level(&self, window: u64) -> u64 {
        let (mut level, mut passing) = (0_i128, 0);
        for (taken_in, taken) in self.takes.iter().copied().chain([(window, 0)]) {
            while passing < taken_in && level > 0 {
                // The end of a window forgets what was counted beyond its capacity.
                let capacity = i128::from(self.requests + self.borrow);
                level = (level.min(capacity) - i128::from(self.requests)).max(0);
                passing += 1;
            }
            passing = taken_in;
            level += taken;
        }
        u64::try_from(level).unwrap()
    }
}

/// A fixed window that is as good as new for the first hit after a reset.
pub(crate) struct ResetWindowTwin {
    twin: FixedWindowTwin,
    /// In nanoseconds after midnight UTC.
    time: u64,
    /// When the last hit was counted.
    pub(crate) last: Option<u64>,
}

impl ResetWindowTwin {
    pub(crate) fn new(twin: FixedWindowTwin, secs: u64) -> Self {
        ResetWindowTwin { twin, time: secs * SECOND, last: None }
    }

    /// The first reset after `at`.
    fn reset_after(&self, at: u64) -> u64 {
        let day = DAY.unsigned_abs() * SECOND;
        let today = (at / day * day).saturating_add(self.time);
        if today > at { today } else { today.saturating_add(day) }
    }

    pub(crate) fn decide(&mut self, charge: Charge, now: Timestamp) -> Decision {
        let at = now.as_nanos();
        if self.last.is_some_and(|last| self.reset_after(last) <= at) {
            let FixedWindowTwin { requests, borrow, windows, .. } = &self.twin;
            let (requests, borrow, windows) = (*requests, *borrow, windows.clone());
            let new = FixedWindowTwin { requests, borrow, windows, takes: Vec::new() };
            let mut new = ResetWindowTwin { twin: new, time: self.time, last: None };
            let decision = new.decide(charge, now);
            // A peek leaves everything unchanged, for a clock that steps back.
            if new.last.is_some() {
                *self = new;
            }
            return decision;
        }
        let before = self.twin.takes.len();
        let decision = self.twin.decide(charge, now);
        if self.twin.takes[before..].iter().any(|(_, taken)| *taken > 0) {
            self.last = self.last.max(Some(at));
        }
        let end = Timestamp::from_nanos(self.reset_after(at.max(self.last.unwrap_or(0))));
        let outcome = match decision.outcome {
            Outcome::Deny { retry_after } => {
                let wait = Nanos::new(end.as_nanos().saturating_sub(at));
                Outcome::Deny { retry_after: retry_after.min(wait) }
            }
            Outcome::Allow => Outcome::Allow,
        };
        let (reset_at, keep_until) = (decision.reset_at.min(end), decision.keep_until.min(end));
        Decision { outcome, reset_at, keep_until, ..decision }
    }
}

/// All takes and refunds, by time.
pub(crate) struct FirstHitWindowTwin {
    pub(crate) requests: u64,
    pub(crate) borrow: u64,
    pub(crate) period: u64,
    /// Instants at which everything is forgotten, sorted.
    pub(crate) resets: Vec<u64>,
    takes: Vec<(u64, i128)>,
    /// Times of hits, whether taken or forced.
    hits: Vec<u64>,
}

impl FirstHitWindowTwin {
    pub(crate) fn new(requests: u32, borrow: u32, period: Nanos) -> Self {
        let (requests, borrow) = (requests.into(), borrow.into());
        FirstHitWindowTwin {
            requests,
            borrow,
            period: period.as_nanos(),
            resets: Vec::new(),
            takes: Vec::new(),
            hits: Vec::new(),
        }
    }

    pub(crate) fn with_resets(self, resets: Vec<u64>) -> Self {
        FirstHitWindowTwin { resets, ..self }
    }

    /// The start, the count and the last hit of the open window.
    pub(crate) fn open(&self, now: Timestamp) -> Option<(u64, u64, u64)> {
        let (start, level) = self.walk(now.as_nanos().max(1))?;
        let latest = self.hits.iter().copied().filter(|at| self.reset_after(*at) > now.as_nanos());
        Some((start, level, latest.max().unwrap_or(start).max(start)))
    }

    fn reset_after(&self, at: u64) -> u64 {
        self.resets.iter().copied().find(|reset| *reset > at).unwrap_or(u64::MAX)
    }

    pub(crate) fn decide(&mut self, charge: Charge, now: Timestamp) -> Decision {
        // Time 0 is treated as 1: a counter that opened at 0 would look unused.
        let at = now.as_nanos().max(1);
        let (_, level) = self.standing(at);
        let (fits, taken) = charged(level, self.requests + self.borrow, charge, Beyond::Drop);
        if taken != 0 {
            self.takes.push((at, taken));
        }
        if taken > 0 || matches!(charge, Charge::Force(hits) if hits.get() > 0) {
            self.hits.push(at);
        }
        let (start, level) = self.standing(at);
        answer((self.requests, self.borrow), (fits, level), charge, now.as_nanos(), |later| {
            start.saturating_add(later.saturating_mul(self.period)).min(self.reset_after(start))
        })
    }

    /// When the current window opened, or would open now, and the hits that it has admitted.
    fn standing(&self, now: u64) -> (u64, u64) {
        self.walk(now).unwrap_or((now, 0))
    }

    fn walk(&self, now: u64) -> Option<(u64, u64)> {
        let mut open: Option<(u64, i128)> = None;
        for (at, taken) in self.takes.iter().copied().chain([(now, 0)]) {
            let resets = || self.resets.iter().copied();
            if open.is_some_and(|(start, _)| resets().any(|reset| start < reset && reset <= at)) {
                open = None;
            }
            while let Some((start, level)) = open
                && at.saturating_sub(start) >= self.period
            {
                let debt = level - i128::from(self.requests);
                open = (debt > 0).then_some((start + self.period, debt));
            }
            if taken != 0 {
                let (_, level) = open.get_or_insert((at, 0));
                *level += taken;
            }
        }
        open.map(|(start, level)| (start, u64::try_from(level).unwrap()))
    }
}
