//! Sliding window counted in a ring of buckets: `n` of them make up the period P (24 if P is a day or
//! longer, else 60), each `width = ceil(P / n)` ns wide, and one more is filling.
//!
//! A hit at t counts until its bucket leaves the ring, `n + 1` buckets after the start of the bucket. So it
//! counts for more than `n × width ≥ P`, and at most `(n + 1) × width < P + width + n` ns:
//! - no closed window of length P admits more than the limit, wherever it begins;
//! - the error is on the safe side only: a hit counts up to one bucket, 1/60 or 1/24 of P, longer than in
//!   an exact window.
//!
//! State words: the number (time / width) of the newest bucket with hits, plus 1; the total of the buckets;
//! then `n + 1` buckets of u32 in pairs, the lower half first; in the last word the time of the last hit
//! (see `last`). The bucket with number b is at index `b mod (n + 1)`. Only a take or a refund advances the
//! ring. The total saves counting. It is recounted whenever the ring wraps around, and when it seems to be
//! zero or less than what leaves it, so a corrupt total is found within a period.
//!
//! A refund returns hits from the newest bucket backwards. A clock that steps back counts in the newest
//! bucket, so such hits count longer, until the clock has caught up. The same holds after a clock was far
//! ahead.
//!
//! Hits that are charged ahead may be spent until the end of the newest bucket, which has counted them. So
//! every hit is in the bucket of its own time, and the bounds above hold.

mod last;

use super::daily_reset::{DailyReset, Resettable};
use super::{is_forced_hit, taken};
use crate::decision::{Decision, Outcome};
use crate::rate::{Period, QuotaError, Rate, checked_period};
use crate::state::WIDE_WORDS;
use crate::units::{Charge, Nanos, Timestamp};
use last::{record, record_in_newest};
use std::ops::Range;

/// From this period on, there are 24 buckets.
const DAY: Nanos = Nanos::from_secs(86_400);
/// Words before the buckets.
const HEAD: usize = 2;

/// The numbers of a sliding window in buckets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlidingBuckets {
    requests: u32,
    period: Nanos,
    /// The width of a bucket in ns.
    width: u64,
    pub(crate) reset: Option<DailyReset>,
}

/// The ring at the time of a charge.
struct Ring {
    /// The bucket that is filling.
    number: u64,
    /// The newest bucket with hits, at most `number`.
    newest: u64,
    /// Hits in the buckets that count while `number` is filling.
    used: u64,
}

impl SlidingBuckets {
    /// `requests` hits in the last `period`, counted in a ring of 60 buckets (24 from a day up).
    ///
    /// # Errors
    /// If a number is out of range.
    pub fn new(requests: u32, period: Nanos) -> Result<Self, QuotaError> {
        let period = checked_period(period)?;
        let buckets = if period < DAY { 60 } else { 24 };
        let width = period.as_nanos().div_ceil(buckets);
        Ok(SlidingBuckets { requests, period, width, reset: None })
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

    // Apart from the other algorithms, whose calls would pay for its registers.
    #[inline(never)]
    pub(crate) fn decide(&self, state: &mut [u64], charge: Charge, now: Timestamp) -> Decision {
        let state = state.first_chunk_mut().expect("a ring has its whole state");
        // A constant number of places makes the remainders cheap.
        if self.period < DAY {
            self.decide_in::<61>(state, charge, now)
        } else {
            self.decide_in::<25>(state, charge, now)
        }
    }

    /// The common case in few instructions: the hits fit, and the bucket that is filling is the newest or
    /// follows soon after it, before the ring wraps around. Decides like [`decide_any`](Self::decide_any);
    /// none in all other cases.
    #[inline]
    fn take<const PLACES: u64>(
        &self,
        state: &mut [u64; WIDE_WORDS],
        hits: u64,
        number: u64,
        now: u64,
    ) -> Option<Decision> {
        let passed = number.checked_sub(state[0].checked_sub(1)?)?;
        let filling = place::<PLACES>(number);
        if hits == 0 || passed > 8 || passed > filling as u64 {
            return None;
        }
        let new = filling + 1 - passed as usize..=filling;
        let leaving = || new.clone().map(|place| u64::from(count(state, place))).sum();
        let before = state[1].checked_sub(if passed == 0 { 0 } else { leaving() })?;
        if before == 0 {
            return None;
        }
        let used = before.checked_add(hits)?;
        let left = u64::from(self.requests).checked_sub(used)?;
        let held = if passed == 0 { count(state, filling) } else { 0 };
        let filled = u32::try_from(u64::from(held) + hits).ok()?;
        if passed > 0 {
            new.for_each(|place| put(state, place, 0));
            state[0] = number + 1;
        }
        put(state, filling, filled);
        record::<PLACES>(state, now);
        state[1] = used;
        // With steady traffic, the bucket at the next place is the first to leave.
        let oldest = if filling + 1 == PLACES as usize { 0 } else { filling + 1 };
        let distance = match count(state, oldest) {
            0 => distance_to_leave::<PLACES>(state, number, PLACES, 1),
            _ => 0,
        };
        Some(Decision {
            outcome: Outcome::Allow,
            remaining: left,
            reset_at: self.begins(number + 1 + distance),
            keep_until: self.begins(number.saturating_add(PLACES)),
        })
    }

    fn decide_in<const PLACES: u64>(
        &self,
        state: &mut [u64; WIDE_WORDS],
        charge: Charge,
        now: Timestamp,
    ) -> Decision {
        let number = now.as_nanos() / self.width;
        if let Some(hits) = charge.taken()
            && let Some(decision) = self.take::<PLACES>(state, hits, number, now.as_nanos())
        {
            return decision;
        }
        self.decide_any::<PLACES>(state, charge, number, now)
    }

    #[inline(never)]
    fn decide_any<const PLACES: u64>(
        &self,
        state: &mut [u64; WIDE_WORDS],
        charge: Charge,
        number: u64,
        now: Timestamp,
    ) -> Decision {
        let mut ring = Ring::seen::<PLACES>(state, number);
        let limit = u64::from(self.requests);
        let left = limit.saturating_sub(ring.used);
        let hits = charge.hits().get();
        let allowed = match charge {
            Charge::Take(_) | Charge::Force(_) => {
                // A bucket is a u32, and holds at most the total.
                let room = u64::from(u32::MAX).saturating_sub(ring.used);
                let taken = taken(charge, left, limit).min(room);
                if taken > 0 {
                    ring.take::<PLACES>(state, taken);
                }
                if taken > 0 || is_forced_hit(charge) && ring.used > 0 {
                    let newest = self.begins(ring.newest).as_nanos();
                    record_in_newest::<PLACES>(state, now.as_nanos(), newest);
                }
                charge.hits().needed() <= left
            }
            Charge::Refund(_) => {
                if hits > 0 && ring.used > 0 {
                    ring.refund::<PLACES>(state, hits);
                }
                true
            }
        };
        let left = limit.saturating_sub(ring.used);
        let fits_at = |hits| self.fits_at::<PLACES>(&ring, state, hits, now);
        let reset_at = fits_at(left + 1);
        let needed = charge.hits().needed();
        Decision {
            outcome: Outcome::new(allowed, now, || {
                if needed == left + 1 { reset_at } else { fits_at(needed) }
            }),
            remaining: left,
            reset_at,
            keep_until: ring
                .newest_filled::<PLACES>(state)
                .map_or(now, |number| self.expires::<PLACES>(number)),
        }
    }

    /// When `hits` fit that do not fit now, because enough of the oldest buckets have left.
    #[inline]
    fn fits_at<const PLACES: u64>(
        &self,
        ring: &Ring,
        state: &[u64; WIDE_WORDS],
        hits: u64,
        now: Timestamp,
    ) -> Timestamp {
        let Some(others) = u64::from(self.requests).checked_sub(hits) else {
            let newest = ring.newest_filled::<PLACES>(state);
            return self.full_at(newest.map(|number| self.expires::<PLACES>(number)), now);
        };
        let excess = ring.used.saturating_sub(others);
        let live = PLACES.saturating_sub(ring.number - ring.newest);
        let distance = distance_to_leave::<PLACES>(state, ring.number, live, excess);
        // The oldest bucket leaves when the filling one ends.
        self.begins(ring.number.saturating_add(1).saturating_add(distance))
    }

    /// When no hits count any more: when the newest hits have left, if there are any. A limit of zero is
    /// never full; the answer is a period.
    fn full_at(&self, left_at: Option<Timestamp>, now: Timestamp) -> Timestamp {
        if self.requests == 0 {
            return now.saturating_add(self.period);
        }
        left_at.unwrap_or(now)
    }

    #[inline]
    fn expires<const PLACES: u64>(&self, number: u64) -> Timestamp {
        self.begins(number.saturating_add(PLACES))
    }

    #[inline]
    fn begins(&self, number: u64) -> Timestamp {
        Timestamp::from_nanos(number.saturating_mul(self.width))
    }
}

impl Resettable for SlidingBuckets {
    fn decide(&self, state: &mut [u64], charge: Charge, now: Timestamp) -> Decision {
        let state = state.first_chunk_mut().expect("a ring has its whole state");
        let number = now.as_nanos() / self.width;
        // Without the shortcut for the common case.
        match self.period < DAY {
            true => self.decide_any::<61>(state, charge, number, now),
            false => self.decide_any::<25>(state, charge, number, now),
        }
    }

    fn last_hit(&self, state: &[u64]) -> Option<u64> {
        self.last_hit(state.first_chunk().expect("a ring has its whole state"))
    }

    fn spendable_until(&self, state: &[u64], now: Timestamp) -> Timestamp {
        let number = now.as_nanos() / self.width;
        // A clock that steps back counts in the newest bucket.
        let newest = if state[1] > 0 { state[0].saturating_sub(1) } else { 0 };
        self.begins(number.max(newest).saturating_add(1))
    }
}

impl Ring {
    /// The ring at the bucket `number`, or at a newer bucket with hits.
    #[inline]
    fn seen<const PLACES: u64>(state: &[u64; WIDE_WORDS], number: u64) -> Ring {
        let Some(newest) = state[0].checked_sub(1) else {
            return Ring { number, newest: number, used: 0 };
        };
        if number <= newest && state[1] != 0 {
            return Ring { number: newest, newest, used: state[1] };
        }
        let used = counted::<PLACES>(state, newest, number.max(newest));
        if used == 0 {
            // As good as new, even if the newest bucket lies ahead.
            return Ring { number, newest: number, used: 0 };
        }
        Ring { number: number.max(newest), newest, used }
    }

    /// Clears the buckets that have left, which makes room for the filling one.
    #[inline]
    fn advance<const PLACES: u64>(&mut self, state: &mut [u64; WIDE_WORDS]) {
        if self.used == 0 {
            state.fill(0);
        } else {
            for places in places::<PLACES>(self.newest, self.number - self.newest) {
                clear(state, places);
            }
        }
        self.newest = self.number;
        state[0] = self.number.saturating_add(1);
    }

    #[inline]
    fn take<const PLACES: u64>(&mut self, state: &mut [u64; WIDE_WORDS], hits: u64) {
        self.advance::<PLACES>(state);
        let place = place::<PLACES>(self.number);
        let count = u64::from(count(state, place)).saturating_add(hits);
        // Exceeds u32 only if the total is corrupt: no bucket exceeds a correct total, and `hits` fit into
        // it.
        put(state, place, u32::try_from(count).unwrap_or(u32::MAX));
        self.used += hits;
        state[1] = self.used;
    }

    fn refund<const PLACES: u64>(&mut self, state: &mut [u64; WIDE_WORDS], hits: u64) {
        self.advance::<PLACES>(state);
        let mut rest = u32::try_from(hits).unwrap_or(u32::MAX);
        for age in 0..PLACES.min(self.number.saturating_add(1)) {
            let place = place::<PLACES>(self.number - age);
            let count = count(state, place);
            let given = count.min(rest);
            put(state, place, count - given);
            rest -= given;
            self.used = self.used.saturating_sub(given.into());
            if rest == 0 {
                break;
            }
        }
        state[1] = self.used;
    }

    /// The newest bucket that holds hits.
    #[inline]
    fn newest_filled<const PLACES: u64>(&self, state: &[u64; WIDE_WORDS]) -> Option<u64> {
        if self.used == 0 {
            return None;
        }
        let oldest = self.number.saturating_sub(PLACES - 1);
        if count(state, place::<PLACES>(self.newest)) > 0 {
            return Some(self.newest);
        }
        let mut numbers = (oldest..=self.newest).rev();
        let filled = numbers.find(|number| count(state, place::<PLACES>(*number)) > 0);
        // None only if the total is corrupt.
        Some(filled.unwrap_or(self.newest))
    }
}

/// The hits in the buckets that still count while the bucket `number` is filling.
#[inline]
fn counted<const PLACES: u64>(state: &[u64; WIDE_WORDS], newest: u64, number: u64) -> u64 {
    if number - newest >= PLACES {
        return 0;
    }
    let passed = number - newest;
    let of = |[first, second]: [Range<usize>; 2]| sum(state, first) + sum(state, second);
    if newest / PLACES == number / PLACES {
        // New buckets take the places of those that leave.
        let believed = state[1].saturating_sub(of(places::<PLACES>(newest, passed)));
        if believed > 0 {
            return believed;
        }
    }
    of(places::<PLACES>(number, PLACES - passed))
}

/// The places of the oldest `live` buckets while the bucket `number` is filling, oldest first: two ranges;
/// the second starts over at place 0.
#[inline]
fn places<const PLACES: u64>(number: u64, live: u64) -> [Range<usize>; 2] {
    // The next bucket will overwrite the oldest.
    let oldest = place::<PLACES>(number.wrapping_add(1));
    let end = oldest + live as usize;
    [oldest..end.min(PLACES as usize), 0..end.saturating_sub(PLACES as usize)]
}

/// The hits at `places`.
#[inline]
fn sum(state: &[u64; WIDE_WORDS], places: Range<usize>) -> u64 {
    let (pairs, ends) = pairs(places);
    let ends: u64 = ends.into_iter().flatten().map(|end| u64::from(count(state, end))).sum();
    let pairs = state[pairs].iter().map(|pair| (pair & u64::from(u32::MAX)) + (pair >> 32));
    ends + pairs.sum::<u64>()
}

#[inline]
fn clear(state: &mut [u64; WIDE_WORDS], places: Range<usize>) {
    let (pairs, ends) = pairs(places);
    for end in ends.into_iter().flatten() {
        put(state, end, 0);
    }
    state[pairs].fill(0);
}

/// The words that lie wholly within `places`, and the places at either end that share a word with others.
#[inline]
fn pairs(places: Range<usize>) -> (Range<usize>, [Option<usize>; 2]) {
    let Range { start, end } = places;
    if start >= end {
        return (0..0, [None; 2]);
    }
    let first = (start % 2 == 1).then_some(start);
    // Differs from `first`, which is odd.
    let last = (end % 2 == 1).then(|| end - 1);
    let whole = HEAD + start.div_ceil(2)..HEAD + end / 2;
    (whole.start.min(whole.end)..whole.end, [first, last])
}

/// Finds the bucket that must leave for `excess` hits to be gone. Returns how far it is from the oldest of
/// the `live` buckets. The newest if there are fewer hits, because the total is corrupt.
fn distance_to_leave<const PLACES: u64>(
    state: &[u64; WIDE_WORDS],
    number: u64,
    live: u64,
    mut excess: u64,
) -> u64 {
    let [first, second] = places::<PLACES>(number, live);
    let start = first.start;
    if let Some(place) = place_of(state, first, &mut excess) {
        return (place - start) as u64;
    }
    match place_of(state, second, &mut excess) {
        Some(place) => PLACES - start as u64 + place as u64,
        None => PLACES - 1,
    }
}

fn place_of(state: &[u64; WIDE_WORDS], places: Range<usize>, excess: &mut u64) -> Option<usize> {
    let mut place = places.start;
    while place < places.end {
        let pair = state[HEAD + place / 2];
        if pair == 0 {
            // Skips the pair: sparse rings are mostly empty.
            place = (place | 1) + 1;
            continue;
        }
        let count = u64::from(half(pair, place));
        if count >= *excess {
            return Some(place);
        }
        *excess -= count;
        place += 1;
    }
    None
}

#[inline]
fn place<const PLACES: u64>(number: u64) -> usize {
    (number % PLACES) as usize
}

#[inline]
fn half(pair: u64, place: usize) -> u32 {
    (pair >> (place % 2 * 32)) as u32
}

/// The count at `place`, after the head of a wide state.
#[inline]
pub(super) fn count(state: &[u64; WIDE_WORDS], place: usize) -> u32 {
    half(state[HEAD + place / 2], place)
}

/// Sets the count at `place`.
#[inline]
pub(super) fn put(state: &mut [u64; WIDE_WORDS], place: usize, count: u32) {
    let shift = place % 2 * 32;
    let pair = &mut state[HEAD + place / 2];
    *pair = *pair & !(u64::from(u32::MAX) << shift) | u64::from(count) << shift;
}
