//! Sliding window counted to the second, from three levels of buckets: hours, the minutes of an hour, the
//! seconds of a minute. For a period of S whole seconds, a charge at second s counts the hits of all
//! seconds from a = s − S on, so S + 1 seconds up to now. No closed window of length S, at whatever
//! nanosecond it begins, admits more than the limit. A hit counts for at most one second longer than S.
//!
//! A counter has several parts, each stored under its own key:
//! - the root (label 0): totals of the last 26 hours;
//! - the minutes of an hour: 60 totals; the seconds of a minute: 60 totals.
//!
//! The count is the hours after that of a, plus the minutes after that of a in its hour, plus the seconds
//! from a on in its minute. Totals include the current hours and minutes, so this equals the sum over
//! seconds, minutes, hours, minutes and seconds of the published design (142 buckets for a day that ends at
//! 23:30:33), read from fewer parts.
//!
//! Clock steps: each hit counts at its own time stamp, and hits later than now are counted too. So steps
//! back need no care: for any time stamps in any order, no window of S seconds of time stamps has more than
//! the limit. The exception is hours that the root no longer holds: it records the newest dropped hour
//! with hits. A charge that needs that hour, or whose own hour is older than the ring, is denied until
//! the count is known again. So a clock that was far ahead when it counted a hit causes denials until it
//! gets within reach of that hit.
//!
//! Only the parts of a decision are known. `retry_after` and `reset_at` are exact to the second if the hits
//! that must leave are in the oldest or the current minute. Otherwise they are the earliest time possible:
//! the start of the minute or hour in which these hits leave. A retry at that time gets a better answer; at
//! most three such retries lead to the exact second.
//!
//! A refund returns hits from the seconds of the current minute backwards, then from those of the oldest
//! minute: a decision has the parts of these minutes on all levels.
//!
//! State of each part: its owner (number of the hour or minute, plus 1; for the root its newest hour); in
//! the root, the newest hour dropped, plus 1; then the totals, u32 in pairs; in the last word of the root,
//! the time of the last hit that was taken or forced (ns since the epoch; zero if not recorded), which
//! affects no decision. A part of another owner counts as empty.
//!
//! With a daily reset, seconds before the last reset do not count: a is the later of `s − S` and the reset,
//! in whole seconds. So this too holds for any time stamps.

mod ahead;
mod refund;
mod reset;

use super::sliding_buckets::{count, put};
use super::{DailyReset, is_forced_hit, taken};
use crate::decision::{Decision, Outcome};
use crate::rate::{Period, QuotaError, Rate, checked_period};
use crate::state::{Parts, WIDE_WORDS};
use crate::units::{Charge, Nanos, Timestamp};
use reset::last_reset;

const SECOND: u64 = 1_000_000_000;
const HOUR_SECS: u64 = 3_600;
/// 24 hours, and the two partial hours at their ends: a day reaches into 25 hours, and one is spare for
/// clocks that step back.
const HOURS: u64 = 26;
/// How far the clock may step back, in seconds, while parts that have just expired are still there.
const SLACK_SECS: u64 = 60;
/// The level of a part, in the top bits of its label.
const MINUTES: u64 = 1 << 62;
const SECONDS: u64 = 2 << 62;

/// The numbers of an exact sliding window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlidingExact {
    requests: u32,
    period: Nanos,
    pub(crate) reset: Option<DailyReset>,
}

/// A second with its minute and hour.
#[derive(Clone, Copy)]
struct Moment {
    second: u64,
    minute: u64,
    hour: u64,
}

/// The index of a part in a state.
#[derive(Clone, Copy)]
struct Part(usize);

/// The parts of a decision, and the times that they cover.
struct Levels<'a> {
    state: &'a mut [u64],
    now: Moment,
    /// The oldest second that counts.
    oldest: Moment,
    /// The period in seconds.
    secs: u64,
    reset: Option<&'a DailyReset>,
}

impl SlidingExact {
    /// `requests` hits in the last `period` (whole seconds, 1 s to 1 day), counted to the second.
    ///
    /// # Errors
    /// If the period is not valid.
    pub fn new(requests: u32, period: Nanos) -> Result<Self, QuotaError> {
        let period = checked_period(period)?;
        let nanos = period.as_nanos();
        if !nanos.is_multiple_of(SECOND) || nanos > 24 * HOUR_SECS * SECOND {
            return Err(QuotaError::PeriodNotExact(period));
        }
        Ok(SlidingExact { requests, period, reset: None })
    }

    pub(crate) fn parts(&self, now: Timestamp) -> Parts {
        let (now, oldest) = self.span(now);
        let mut parts = Parts::ONE;
        parts.insert(MINUTES | now.hour);
        parts.insert(MINUTES | oldest.hour);
        parts.insert(SECONDS | now.minute);
        parts.insert(SECONDS | oldest.minute);
        parts
    }

    /// The labels of all parts that may hold hits that count at `now`.
    pub(crate) fn part_labels(&self, now: Timestamp) -> impl Iterator<Item = u64> {
        let (now, _) = self.span(now);
        let hours = now.hour.saturating_sub(HOURS)..=now.hour;
        let minutes = now.minute.saturating_sub(HOURS * 60)..=now.minute;
        let parts = hours.map(|hour| MINUTES | hour).chain(minutes.map(|minute| SECONDS | minute));
        std::iter::once(0).chain(parts)
    }

    /// Forgets all hits at `reset` each day.
    #[must_use]
    pub fn with_reset(mut self, reset: DailyReset) -> Self {
        self.reset = Some(reset);
        self
    }

    pub(crate) fn rate(&self) -> Rate {
        let requests = self.requests;
        Rate { requests, period: Period::Span(self.period), capacity: requests }
    }

    fn secs(&self) -> u64 {
        self.period.as_nanos() / SECOND
    }

    /// The second of `now`, and the oldest second that counts then.
    fn span(&self, now: Timestamp) -> (Moment, Moment) {
        let second = now.as_nanos() / SECOND;
        let oldest = second.saturating_sub(self.secs());
        let oldest = match &self.reset {
            None => oldest,
            Some(reset) => oldest.max(last_reset(reset, second)),
        };
        (Moment::of(second), Moment::of(oldest))
    }

    pub(crate) fn decide(&self, state: &mut [u64], charge: Charge, now: Timestamp) -> Decision {
        let (moment, oldest) = self.span(now);
        let reset = self.reset.as_ref();
        let mut levels = Levels { state, now: moment, oldest, secs: self.secs(), reset };
        if let Some(second) = levels.unknown_until() {
            return self.unknown(&levels, charge, second, now);
        }
        let limit = u64::from(self.requests);
        let mut used = levels.used();
        let allowed = match charge {
            Charge::Take(hits) | Charge::Force(hits) => {
                let left = limit.saturating_sub(used);
                let allowed = hits.needed() <= left;
                // Less than what would saturate a total.
                let room = u64::from(SATURATED - 1).saturating_sub(used);
                let taken = taken(charge, left, limit).min(if allowed { left } else { room });
                if taken > 0 || is_forced_hit(charge) && used > 0 {
                    levels.record(now, used);
                }
                if taken > 0 {
                    levels.take(taken);
                    used += taken;
                }
                allowed
            }
            Charge::Refund(hits) => {
                levels.refund(hits.get());
                used = levels.used();
                true
            }
        };
        let left = limit.saturating_sub(used);
        let fits_at = |hits: u64| match limit.checked_sub(hits) {
            Some(others) => Timestamp::from_secs(
                levels.expires(levels.second_to_pass(used.saturating_sub(others))),
            ),
            None => self.full_at(&levels, used, now),
        };
        Decision {
            outcome: Outcome::new(allowed, now, || fits_at(charge.hits().needed())),
            remaining: left,
            reset_at: fits_at(left + 1),
            keep_until: levels.keep_until(now),
        }
    }

    /// The decision while the count is unknown: denies until it is known, and refunds nothing.
    fn unknown(&self, levels: &Levels<'_>, charge: Charge, until: u64, now: Timestamp) -> Decision {
        let reset_at = Timestamp::from_secs(until);
        let retry_at = if charge.hits().needed() > u64::from(self.requests) {
            self.full_at(levels, 1, now).max(reset_at)
        } else {
            reset_at
        };
        Decision {
            outcome: Outcome::new(matches!(charge, Charge::Refund(_)), now, || retry_at),
            remaining: 0,
            reset_at,
            keep_until: levels.keep_until(now),
        }
    }

    /// When no hits count any more. A limit of zero is never full; the answer is a period.
    fn full_at(&self, levels: &Levels<'_>, used: u64, now: Timestamp) -> Timestamp {
        match levels.newest_filled() {
            _ if self.requests == 0 => now.saturating_add(self.period),
            Some(newest) if used > 0 => Timestamp::from_secs(levels.expires(newest)).max(now),
            _ => now,
        }
    }
}

impl Moment {
    fn of(second: u64) -> Moment {
        Moment { second, minute: second / 60, hour: second / HOUR_SECS }
    }
}

impl Levels<'_> {
    const ROOT: Part = Part(0);
    const MINUTES_NOW: Part = Part(1);

    // Parts come in the order of `parts()`, which omits duplicates.

    fn minutes_oldest(&self) -> Part {
        Part(1 + usize::from(self.oldest.hour != self.now.hour))
    }

    fn seconds_now(&self) -> Part {
        Part(self.minutes_oldest().0 + 1)
    }

    fn seconds_oldest(&self) -> Part {
        Part(self.seconds_now().0 + usize::from(self.oldest.minute != self.now.minute))
    }

    fn words(&self, part: Part) -> &[u64; WIDE_WORDS] {
        let words = self.state[part.0 * WIDE_WORDS..].first_chunk();
        words.expect("the state has a wide one for each part")
    }

    fn words_mut(&mut self, part: Part) -> &mut [u64; WIDE_WORDS] {
        let words = self.state[part.0 * WIDE_WORDS..].first_chunk_mut();
        words.expect("the state has a wide one for each part")
    }

    /// The 60 totals of the hour or minute `number`; none if the part belongs to another.
    fn owned(&self, part: Part, number: u64) -> Option<&[u64; WIDE_WORDS]> {
        let words = self.words(part);
        (words[0] == number + 1).then_some(words)
    }

    /// The total at `place` of 60; zero if the part belongs to another hour or minute.
    fn total(&self, part: Part, number: u64, place: usize) -> u64 {
        self.owned(part, number).map_or(0, |words| count(words, place).into())
    }

    /// The hits from place `from` of 60 on.
    fn sum(&self, part: Part, number: u64, from: usize) -> u64 {
        let Some(words) = self.owned(part, number) else { return 0 };
        (from..60).map(|place| u64::from(count(words, place))).sum()
    }

    /// The newest hour of the ring, if there is one.
    fn ring_end(&self) -> Option<u64> {
        self.words(Self::ROOT)[0].checked_sub(1)
    }

    /// The hours in the ring and their totals, oldest first.
    fn hours(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> {
        let words = self.words(Self::ROOT);
        let hours = self.ring_end().map(|end| end.saturating_sub(HOURS - 1)..=end);
        let hours = hours.into_iter().flatten();
        hours.map(|hour| (hour, u64::from(count(words, (hour % HOURS) as usize))))
    }

    /// The second until which the count is unknown, if it is.
    fn unknown_until(&self) -> Option<u64> {
        // A ring without hits can start anywhere.
        let newest = self.hours().rev().find(|(_, total)| *total > 0);
        let oldest_held =
            newest.and(self.ring_end()).map_or(0, |end| end.saturating_sub(HOURS - 1));
        let dropped = self.words(Self::ROOT)[1].saturating_sub(1);
        if oldest_held <= self.now.hour && dropped <= self.oldest.hour {
            return None;
        }
        // The minutes and seconds of the oldest hour have their own parts.
        let dropped_until = dropped.saturating_mul(HOUR_SECS);
        let known = self.unless_reset(dropped_until, dropped_until.saturating_add(self.secs));
        Some(known.max(oldest_held.saturating_mul(HOUR_SECS)))
    }

    /// The hits that count.
    fn used(&self) -> u64 {
        let Moment { second, minute, hour } = self.oldest;
        let later_hours = self.hours().filter(|(number, _)| *number > hour);
        let hours: u64 = later_hours.map(|(_, total)| total).sum();
        hours
            + self.sum(self.minutes_oldest(), hour, (minute % 60) as usize + 1)
            + self.sum(self.seconds_oldest(), minute, (second % 60) as usize)
    }

    /// The first second at which a hit of `second` no longer counts.
    fn expires(&self, second: u64) -> u64 {
        let next = second.saturating_add(1);
        self.unless_reset(next, next.saturating_add(self.secs))
    }

    /// The second that must pass for `excess` hits to be gone, or the earliest one possible.
    fn second_to_pass(&self, excess: u64) -> u64 {
        let Moment { second, minute, hour } = self.oldest;
        let mut excess = excess.max(1);
        if let Some(found) = self.in_seconds(self.seconds_oldest(), minute, second, &mut excess) {
            return found;
        }
        let minutes = self.minutes_oldest();
        if let Some(found) = self.in_minutes(minutes, hour, minute + 1, &mut excess) {
            return found;
        }
        for (number, total) in self.hours().filter(|(number, _)| *number > hour) {
            if total < excess {
                excess -= total;
                continue;
            }
            let first_minute = number.saturating_mul(60);
            let known = if number == self.now.hour {
                self.in_minutes(Self::MINUTES_NOW, number, first_minute, &mut excess)
            } else {
                None
            };
            return known.unwrap_or(number.saturating_mul(HOUR_SECS));
        }
        // The levels contradict each other: retry in a second.
        second
    }

    /// [`second_to_pass`](Self::second_to_pass) within the minutes of `hour` from `first` on. If they hold
    /// too few hits, subtracts these from `excess`.
    fn in_minutes(&self, part: Part, hour: u64, first: u64, excess: &mut u64) -> Option<u64> {
        for minute in first..(hour + 1) * 60 {
            let total = self.total(part, hour, (minute % 60) as usize);
            if total < *excess {
                *excess -= total;
                continue;
            }
            let known = if minute == self.now.minute {
                self.in_seconds(self.seconds_now(), minute, minute * 60, &mut excess.clone())
            } else {
                None
            };
            return Some(known.unwrap_or(minute * 60));
        }
        None
    }

    fn in_seconds(&self, part: Part, minute: u64, first: u64, excess: &mut u64) -> Option<u64> {
        for second in first..(minute + 1) * 60 {
            let total = self.total(part, minute, (second % 60) as usize);
            if total >= *excess {
                return Some(second);
            }
            *excess -= total;
        }
        None
    }

    /// The newest second with hits, or the latest one possible.
    fn newest_filled(&self) -> Option<u64> {
        let filled = self.hours().rev().find(|(_, total)| *total > 0).map(|(number, _)| number);
        let Moment { minute, hour, .. } = self.now;
        let newest_hour = filled.or_else(|| self.words(Self::ROOT)[1].checked_sub(1))?;
        let last_in_hour = newest_hour.saturating_mul(HOUR_SECS).saturating_add(HOUR_SECS - 1);
        if newest_hour != hour {
            return Some(last_in_hour);
        }
        let filled = |part, number, place: &u64| self.total(part, number, *place as usize) > 0;
        let mut places = (0..60).rev();
        match places.find(|place| filled(Self::MINUTES_NOW, hour, place)) {
            None => Some(last_in_hour),
            Some(place) if place != minute % 60 => Some((hour * 60 + place) * 60 + 59),
            Some(_) => {
                let mut places = (0..60).rev();
                let place = places.find(|place| filled(self.seconds_now(), minute, place));
                Some(minute * 60 + place.unwrap_or(59))
            }
        }
    }

    /// How long the parts must be kept. The same for all: a part that was written with a clock ahead of
    /// `now` must not expire before its own hits.
    fn keep_until(&self, now: Timestamp) -> Timestamp {
        self.newest_filled().map_or(now, |newest| {
            Timestamp::from_secs(self.expires(newest).saturating_add(SLACK_SECS)).max(now)
        })
    }

    fn take(&mut self, hits: u64) {
        let Moment { second, minute, hour } = self.now;
        self.advance(hour);
        add(self.words_mut(Self::ROOT), (hour % HOURS) as usize, hits);
        for (part, number, place) in
            [(Self::MINUTES_NOW, hour, minute % 60), (self.seconds_now(), minute, second % 60)]
        {
            let words = self.words_mut(part);
            if words[0] != number + 1 {
                words.fill(0);
                words[0] = number + 1;
            }
            add(words, place as usize, hits);
        }
    }

    /// Adds `hour` to the ring, and records the newest hour with hits that is dropped for it.
    fn advance(&mut self, hour: u64) {
        let end = self.ring_end();
        if end.is_some_and(|end| (hour..hour + HOURS).contains(&end)) {
            return;
        }
        let held = hour.saturating_sub(HOURS - 1);
        let dropped = self.hours().rev().find(|(number, total)| *number < held && *total > 0);
        let dropped = dropped.map_or(0, |(number, _)| number + 1);
        let root = self.words_mut(Self::ROOT);
        // All hours if the ring starts anew: it was empty, or everything that it held is dropped.
        let first = end.filter(|end| *end < hour).map_or(held, |end| held.max(end + 1));
        for number in first..=hour {
            put(root, (number % HOURS) as usize, 0);
        }
        root[0] = hour + 1;
        root[1] = root[1].max(dropped);
    }
}

/// A total that cannot count any further. Its true value is unknown, so it is never lowered, and it denies
/// everything. Only limits of a million hits a second or more reach it.
const SATURATED: u32 = u32::MAX;

fn add(words: &mut [u64; WIDE_WORDS], place: usize, hits: u64) {
    let total = u64::from(count(words, place)).saturating_add(hits);
    put(words, place, u32::try_from(total).unwrap_or(SATURATED));
}
