//! Sliding window counted to the second, from three levels of buckets: hours, the minutes of an
//! hour, the seconds of a minute. For a period of S whole seconds, an ask at second s counts the
//! hits of all seconds from a = s − S on, so S + 1 seconds up to now: no closed window of length S,
//! at whatever nanosecond it begins, admits more than the limit. A hit counts for at most one
//! second longer than S.
//!
//! A counter is in several parts, each kept under a key of its own:
//! - the root (label 0): totals of the last 26 hours;
//! - the minutes of an hour: 60 totals; the seconds of a minute: 60 totals.
//!
//! The count is the hours later than that of a, plus the minutes later than that of a in its hour,
//! plus the seconds from a on in its minute. Totals include the hours and minutes that are running,
//! so this is the sum over seconds, minutes, hours, minutes and seconds of the published design (142
//! buckets for a day that ends at 23:30:33), read from fewer parts.
//!
//! Clock steps. Each hit counts at its own time stamp, and hits later than now are counted too. So
//! a clock that steps back needs no care: for any time stamps in any order, no window of S seconds
//! of time stamps has more than the limit. Except where the root cannot tell any more: it
//! remembers the newest hour with hits that it had to drop. An ask that would need that hour, or
//! whose own hour is older than the ring, is denied until it can be reckoned again. A clock that was
//! far ahead when it counted a hit hence denies until it gets within reach of that hit.
//!
//! What is known of the future is what the parts at hand hold. `retry_after` and `reset_at` are
//! exact to the second when the hits that must leave are in the oldest or the current minute;
//! else they are the earliest time possible: the beginning of the minute or hour in which they
//! leave. Whoever comes back then is told better: at most three such asks lead to the exact second.
//!
//! A refund gives from the seconds of the current minute backwards, then from those of the oldest
//! minute, which is what the parts at hand can take from on all levels at once.
//!
//! State of each part: whose it is (number of the hour or minute, plus 1; for the root its newest
//! hour), in the root the newest hour dropped, plus 1; then the totals, u32 in pairs; in the last word of the
//! root the time of the last hit that was taken, or drained in vain (ns since the epoch; zero where nobody noted
//! it), which decides nothing. A part that is someone else's is empty.
//!
//! With a daily reset, seconds before the last one do not count: a is the later of `s − S` and the reset, taken
//! in whole seconds. So it holds for any time stamps, too.

mod ahead;
mod refund;
mod reset;

use super::sliding_buckets::{count, put};
use super::{DailyReset, is_forced_hit, taken};
use crate::quota::{Decision, Outcome, Parts, Period, QuotaError, WIDE_WORDS, checked_period};
use crate::units::{Charge, Nanos, Timestamp};
use reset::last_reset;

const SECOND: u64 = 1_000_000_000;
const HOUR_SECS: u64 = 3_600;
/// 24 hours and the seconds of two begun ones: a day reaches into 25 hours, and one is to spare for
/// clocks that step back.
const HOURS: u64 = 26;
/// How far the clock may step back, in seconds, without missing a part that has just expired.
const SLACK_SECS: u64 = 60;
/// The level of a part, in the top bits of its label.
const MINUTES: u64 = 1 << 62;
const SECONDS: u64 = 2 << 62;

/// The numbers of an exact sliding window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlidingExact {
    requests: u32,
    period: Nanos,
    reset: Option<DailyReset>,
}

/// A second, and the minute and hour that it is in.
#[derive(Clone, Copy)]
struct Moment {
    second: u64,
    minute: u64,
    hour: u64,
}

/// A part in a state: which of them it is.
#[derive(Clone, Copy)]
struct Part(usize);

/// The parts at hand, and the times that they are for.
struct Levels<'a> {
    state: &'a mut [u64],
    now: Moment,
    /// The oldest second that counts.
    oldest: Moment,
    /// Seconds of the period.
    secs: u64,
    reset: Option<&'a DailyReset>,
}

impl SlidingExact {
    /// `requests` hits in the last `period` (whole seconds, 1 s to 1 day), counted to the second.
    ///
    /// # Errors
    /// When the period is not such.
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

    /// The labels of all parts that may hold hits which count at `now`.
    pub(crate) fn part_labels(&self, now: Timestamp) -> impl Iterator<Item = u64> {
        let (now, _) = self.span(now);
        let hours = now.hour.saturating_sub(HOURS)..=now.hour;
        let minutes = now.minute.saturating_sub(HOURS * 60)..=now.minute;
        let parts = hours.map(|hour| MINUTES | hour).chain(minutes.map(|minute| SECONDS | minute));
        std::iter::once(0).chain(parts)
    }

    /// Forgets all hits at `reset`, each day.
    #[must_use]
    pub fn with_reset(mut self, reset: DailyReset) -> Self {
        self.reset = Some(reset);
        self
    }

    /// When all hits are forgotten each day.
    #[must_use]
    pub fn reset(&self) -> Option<&DailyReset> {
        self.reset.as_ref()
    }

    /// Hits per period.
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.requests
    }

    /// The period.
    #[must_use]
    pub fn period(&self) -> Period {
        Period::Span(self.period)
    }

    /// The most that can be left.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.requests
    }

    fn secs(&self) -> u64 {
        self.period.as_nanos() / SECOND
    }

    /// The second of `now`, and the oldest that counts then.
    fn span(&self, now: Timestamp) -> (Moment, Moment) {
        let second = now.as_nanos() / SECOND;
        let oldest = second.saturating_sub(self.secs());
        let oldest = match &self.reset {
            None => oldest,
            Some(reset) => oldest.max(last_reset(reset, second)),
        };
        (Moment::of(second), Moment::of(oldest))
    }

    pub(super) fn decide(&self, state: &mut [u64], charge: Charge, now: Timestamp) -> Decision {
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
                // Short of what would saturate a total by itself.
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
            outcome: if allowed {
                Outcome::Allow
            } else {
                let retry_after = fits_at(charge.hits().needed()).saturating_since(now);
                Outcome::Deny { retry_after }
            },
            remaining: left,
            reset_at: if left < limit { fits_at(left + 1) } else { self.full_at(&levels, 0, now) },
            keep_until: levels.keep_until(now),
        }
    }

    /// The answer when the hits that count are not known: deny until they are, give back nothing.
    fn unknown(&self, levels: &Levels<'_>, charge: Charge, until: u64, now: Timestamp) -> Decision {
        let reset_at = Timestamp::from_secs(until);
        let retry_at = if charge.hits().needed() > u64::from(self.requests) {
            self.full_at(levels, 1, now).max(reset_at)
        } else {
            reset_at
        };
        Decision {
            outcome: match charge {
                Charge::Refund(_) => Outcome::Allow,
                _ => Outcome::Deny { retry_after: retry_at.saturating_since(now) },
            },
            remaining: 0,
            reset_at,
            keep_until: levels.keep_until(now),
        }
    }

    /// When nothing counts any more. A limit of nothing is never whole: it looks again in a period.
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

    // Parts come in the order of `parts()`, which leaves out those that are there already.

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

    /// The 60 totals of hour or minute `number`, none when the part is not its own.
    fn owned(&self, part: Part, number: u64) -> Option<&[u64; WIDE_WORDS]> {
        let words = self.words(part);
        (words[0] == number + 1).then_some(words)
    }

    /// The total at `place` of 60, zero when the part is not that of `number`.
    fn total(&self, part: Part, number: u64, place: usize) -> u64 {
        self.owned(part, number).map_or(0, |words| count(words, place).into())
    }

    /// Hits at `from` and later places of 60.
    fn sum(&self, part: Part, number: u64, from: usize) -> u64 {
        let Some(words) = self.owned(part, number) else { return 0 };
        (from..60).map(|place| u64::from(count(words, place))).sum()
    }

    /// The newest hour of the ring, if it has one.
    fn ring_end(&self) -> Option<u64> {
        self.words(Self::ROOT)[0].checked_sub(1)
    }

    /// The hours that the ring holds, oldest first, and their totals.
    fn hours(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> {
        let words = self.words(Self::ROOT);
        let hours = self.ring_end().map(|end| end.saturating_sub(HOURS - 1)..=end);
        let hours = hours.into_iter().flatten();
        hours.map(|hour| (hour, u64::from(count(words, (hour % HOURS) as usize))))
    }

    /// Until what second the hits that count are not known, if they are not.
    fn unknown_until(&self) -> Option<u64> {
        // A ring without hits can begin anew anywhere.
        let newest = self.hours().rev().find(|(_, total)| *total > 0);
        let oldest_held =
            newest.and(self.ring_end()).map_or(0, |end| end.saturating_sub(HOURS - 1));
        let dropped = self.words(Self::ROOT)[1].saturating_sub(1);
        if oldest_held <= self.now.hour && dropped <= self.oldest.hour {
            return None;
        }
        // The minutes and seconds of the oldest hour have parts of their own.
        let dropped_until = dropped.saturating_mul(HOUR_SECS);
        let known = self.unless_reset(dropped_until, dropped_until.saturating_add(self.secs));
        Some(known.max(oldest_held.saturating_mul(HOUR_SECS)))
    }

    /// Hits that count.
    fn used(&self) -> u64 {
        let Moment { second, minute, hour } = self.oldest;
        let later_hours = self.hours().filter(|(number, _)| *number > hour);
        let hours: u64 = later_hours.map(|(_, total)| total).sum();
        hours
            + self.sum(self.minutes_oldest(), hour, (minute % 60) as usize + 1)
            + self.sum(self.seconds_oldest(), minute, (second % 60) as usize)
    }

    /// The first second at which a hit of `second` counts no more.
    fn expires(&self, second: u64) -> u64 {
        let next = second.saturating_add(1);
        self.unless_reset(next, next.saturating_add(self.secs))
    }

    /// The second that must leave so that `excess` hits are gone, or the first one that it can be.
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
        // The levels do not agree: ask again in a second.
        second
    }

    /// As [`second_to_pass`](Self::second_to_pass), in the minutes of `hour` from `first` on; takes off
    /// `excess` what they hold when that is not enough.
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

    /// The newest second with hits, or the last that it can be.
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

    /// Until when any of the parts matters. It is the same for all: a part that was written with a
    /// later clock than now must not be kept for less than its own hits.
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

    /// Makes `hour` one of the ring, and remembers what is dropped for it.
    fn advance(&mut self, hour: u64) {
        let end = self.ring_end();
        if end.is_some_and(|end| (hour..hour + HOURS).contains(&end)) {
            return;
        }
        let held = hour.saturating_sub(HOURS - 1);
        let dropped = self.hours().rev().find(|(number, total)| *number < held && *total > 0);
        let dropped = dropped.map_or(0, |(number, _)| number + 1);
        let root = self.words_mut(Self::ROOT);
        // All of them when the ring begins anew: it was empty, or all that it held is dropped.
        let first = end.filter(|end| *end < hour).map_or(held, |end| held.max(end + 1));
        for number in first..=hour {
            put(root, (number % HOURS) as usize, 0);
        }
        root[0] = hour + 1;
        root[1] = root[1].max(dropped);
    }
}

/// What a total says that could not count any further. No longer known, it is never lowered, and
/// denies all that it counts for. Only limits of a million hits a second and more get there.
const SATURATED: u32 = u32::MAX;

fn add(words: &mut [u64; WIDE_WORDS], place: usize, hits: u64) {
    let total = u64::from(count(words, place)).saturating_add(hits);
    put(words, place, u32::try_from(total).unwrap_or(SATURATED));
}
