//! What this process knows of its holdings: refills under way, how fast tokens are spent, and when to look whether
//! they are still used.
//!
//! Only a memory: the tokens themselves are in the local counters. A process that starts knows nothing and learns with
//! its first refills. Counters that are refilled once a second or less are not known at all.

use super::Target;
use super::flights::Cohort;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_core::{KeyHash, Nanos, Timestamp};
use tidegate_store::Hashed;

/// Holdings with tokens ahead of requests: some 300 bytes each.
pub(super) const KNOWN_MAX: usize = 65_536;
/// The time that tokens ahead of requests should last, in nanoseconds, if tokens are scarce.
const AHEAD: u64 = 1_000_000_000;
/// How many times longer they last where a limit has plenty.
pub(super) const LONGER: u64 = 4;
/// A holding that runs low this long after its refill has tokens for another 200 ms: a quarter of them is left, or an
/// eighth, as the mark is a power of two.
const STEADY_FOR: Nanos = Nanos::new(1_400_000_000);
/// A rate is not measured over less: two requests in a moment are no rate.
const MEASURED_MIN: u64 = 100_000_000;
/// Tokens ahead grow by this factor from one refill to the next.
const GROWTH: u64 = 8;
/// A holding that was not used for so long is given back.
pub(super) const UNUSED_FOR: Nanos = Nanos::from_secs(1);
/// Tokens that a window would end with are given back so long before.
pub(super) const BEFORE_END: Nanos = Nanos::new(100_000_000);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Desk {
    pub(super) counters: HashMap<Hashed, OnDesk>,
    /// When to look at holdings. An entry that is not the counter's `due` is out of date.
    pub(super) due: BinaryHeap<Reverse<(Timestamp, u128)>>,
    /// Requests that wait.
    pub(super) waiting: usize,
    /// Refills under way.
    pub(super) flights: usize,
    /// Counters that are known.
    pub(super) known: usize,
    /// Holdings that run low and have tokens for a while. They are refilled together.
    pub(super) low: Vec<Target>,
}

/// One counter.
#[derive(Debug, Default)]
pub(super) struct OnDesk {
    /// The requests that the refill under way serves.
    pub(super) flight: Option<Arc<Cohort>>,
    /// Those that came since.
    pub(super) forming: Option<Arc<Cohort>>,
    pub(super) known: Option<Known>,
}

/// The use of a holding.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) target: Target,
    /// The last refill, and the tokens after it.
    pub(super) refilled_at: Timestamp,
    pub(super) tokens: u64,
    /// The last look, the tokens then, and those of refills since.
    pub(super) seen_at: Timestamp,
    pub(super) seen: u64,
    pub(super) added: u64,
    pub(super) due: Timestamp,
    /// Whether the last refill took tokens for longer than a second, as there were plenty.
    pub(super) has_plenty: bool,
}

impl Known {
    pub(super) fn new(target: Target, now: Timestamp) -> Known {
        Known {
            target,
            refilled_at: now,
            tokens: 0,
            seen_at: now,
            seen: 0,
            added: 0,
            due: Timestamp::from_nanos(u64::MAX),
            has_plenty: false,
        }
    }

    /// How many seconds the tokens should last.
    pub(super) fn seconds(&self) -> u64 {
        if self.has_plenty { LONGER } else { 1 }
    }

    /// Whether the holding, which runs low, has tokens for a while.
    pub(super) fn is_steady(&self, now: Timestamp) -> bool {
        now.saturating_since(self.refilled_at) >= STEADY_FOR
    }

    /// The tokens for the next second, at the rate since the last refill. The holding still has `held`, and requests
    /// wait for `needed`.
    pub(super) fn ahead(&self, held: u64, needed: u64, now: Timestamp) -> u64 {
        let spent = self.tokens.saturating_sub(held).saturating_add(needed);
        let rate = per_second(spent, now.saturating_since(self.refilled_at));
        rate.min(self.tokens.max(needed).max(1).saturating_mul(GROWTH))
    }
}

/// A number per second, of what came in `time`.
pub(super) fn per_second(number: u64, time: Nanos) -> u64 {
    let time = time.as_nanos().max(MEASURED_MIN);
    let scaled = u128::from(number) * u128::from(AHEAD) / u128::from(time);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

impl Desk {
    pub(super) fn forget_unused(&mut self, key: Hashed) {
        let is_unused =
            |of: &OnDesk| of.flight.is_none() && of.forming.is_none() && of.known.is_none();
        if self.counters.get(&key).is_some_and(is_unused) {
            self.counters.remove(&key);
        }
    }

    /// What is known of a counter, with a new entry if there is room.
    pub(super) fn known(
        &mut self,
        key: Hashed,
        target: &Target,
        now: Timestamp,
    ) -> Option<&mut Known> {
        let has_room = self.known < KNOWN_MAX;
        let of = self.counters.entry(key).or_default();
        if of.known.is_none() {
            if !has_room {
                self.forget_unused(key);
                return None;
            }
            of.known = Some(Known::new(target.clone(), now));
            self.known += 1;
        }
        self.counters.get_mut(&key)?.known.as_mut()
    }

    pub(super) fn forget(&mut self, key: Hashed) {
        if let Some(of) = self.counters.get_mut(&key)
            && of.known.take().is_some()
        {
            self.known -= 1;
        }
        self.forget_unused(key);
    }

    /// Looks at a holding at `due`, unless that happens earlier.
    pub(super) fn look_at(&mut self, key: Hashed, due: Timestamp) {
        let known = self.counters.get_mut(&key).and_then(|of| of.known.as_mut());
        if let Some(known) = known
            && due < known.due
        {
            known.due = due;
            self.due.push(Reverse((due, key.hash)));
        }
    }

    /// The holdings to look at by `now`, at most `most`.
    pub(super) fn take_due(&mut self, now: Timestamp, most: usize) -> Vec<(Hashed, Known)> {
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some(Reverse((due, hash))) = self.due.peek().copied()
            && due <= now
        {
            self.due.pop();
            let key = Hashed::narrow(hash);
            let known = self.counters.get_mut(&key).and_then(|of| of.known.as_mut());
            if let Some(known) = known.filter(|known| known.due == due) {
                known.due = Timestamp::from_nanos(u64::MAX);
                taken.push((key, known.clone()));
            }
        }
        taken
    }
}

/// When counters that are not known were refilled last: a table of fixed size, in which a counter may displace one that
/// was refilled earlier. So clients with made-up values cannot make it grow. A counter among 100,000 others a second is
/// noticed if it is refilled three times a second.
#[derive(Debug)]
pub(super) struct Recent {
    /// The upper half is of the counter's hash, the lower half is the time in milliseconds.
    slots: Box<[AtomicU64]>,
}

const SLOTS: usize = 32_768;
/// The slots that a counter may take: one alone would be taken in turns by two busy counters.
const WAYS: usize = 4;

impl Default for Recent {
    fn default() -> Recent {
        Recent { slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Recent {
    /// Whether a refill was noted within the last second.
    pub(super) fn has(&self, counter: KeyHash, now: Timestamp) -> bool {
        let (millis, tag, first) = Recent::place(counter, now);
        let ways = self.slots.get(first..first + WAYS).unwrap_or_default();
        ways.iter()
            .map(|slot| slot.load(Ordering::Relaxed))
            .any(|word| (word >> 32) as u32 == tag && millis.wrapping_sub(word as u32) <= 1_000)
    }

    /// Notes a refill, and returns the time since the one before if that is at most a second.
    pub(super) fn note(&self, counter: KeyHash, now: Timestamp) -> Option<Nanos> {
        let (millis, tag, first) = Recent::place(counter, now);
        let ways = self.slots.get(first..first + WAYS)?;
        let age = |word: u64| millis.wrapping_sub(word as u32);
        // Relaxed: a word is all there is to a slot, and two that take one at once lose a measurement.
        let words = ways.iter().map(|slot| (slot, slot.load(Ordering::Relaxed)));
        let is_own = |word: u64| (word >> 32) as u32 == tag;
        let (slot, before) = words.max_by_key(|(_, word)| (is_own(*word), age(*word)))?;
        slot.store(u64::from(tag) << 32 | u64::from(millis), Ordering::Relaxed);
        (is_own(before) && age(before) <= 1_000)
            .then(|| Nanos::new(u64::from(age(before)) * 1_000_000))
    }

    /// The time in milliseconds, the tag of a counter, and the first of its slots.
    fn place(counter: KeyHash, now: Timestamp) -> (u32, u32, usize) {
        let millis = (now.as_nanos() / 1_000_000) as u32;
        let tag = (counter.0 >> 96) as u32;
        // The lowest bits are the same for all limits of a descriptor.
        let first = (counter.0 >> 64) as usize % (SLOTS / WAYS) * WAYS;
        (millis, tag, first)
    }
}

/// How many sidecars were registered at a time, or refilled one counter, at most, in this period of ten minutes or the one
/// before. While the shared counters are away, nothing newer can be learned, so the number stays what it was.
#[derive(Debug, Default)]
pub(super) struct Sidecars {
    /// The number of the period (upper half), the most in it and the most in the one before (16 bits each).
    word: AtomicU64,
    /// Since when the shared counters are away, in nanoseconds; 0 if they are not.
    away_since: AtomicU64,
}

const SIDECARS_PERIOD: u64 = 600_000_000_000;

impl Sidecars {
    pub(super) fn note(&self, sidecars: u32, now: Timestamp) {
        let before = self.word.load(Ordering::Relaxed);
        let (current, last) = Sidecars::at(before, now);
        let period = (now.as_nanos() / SIDECARS_PERIOD) & 0xffff_ffff;
        let current = current.max(u64::from(sidecars.min(0xffff)));
        let word = period << 32 | current << 16 | last;
        if word != before {
            // Relaxed: a lost race loses one measurement.
            self.word.store(word, Ordering::Relaxed);
        }
    }

    /// The number at `now` was remembered by an earlier process, which reached the shared counters then.
    pub(super) fn remember(&self, sidecars: u32, now: Timestamp) {
        self.note(sidecars, now);
        self.not_reached(now);
    }

    /// The shared counters can be reached.
    pub(super) fn reached(&self) {
        // Relaxed, here and below: nothing depends on the order of words.
        if self.away_since.load(Ordering::Relaxed) != 0 {
            self.away_since.store(0, Ordering::Relaxed);
        }
    }

    /// They cannot.
    pub(super) fn not_reached(&self, now: Timestamp) {
        let now = now.as_nanos();
        let _ = self.away_since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// None if nothing told it lately, or before the shared counters went away.
    pub(super) fn most(&self, now: Timestamp) -> Option<u32> {
        let now = match self.away_since.load(Ordering::Relaxed) {
            0 => now,
            since => Timestamp::from_nanos(since).min(now),
        };
        let (current, last) = Sidecars::at(self.word.load(Ordering::Relaxed), now);
        u32::try_from(current.max(last)).ok().filter(|most| *most > 0)
    }

    /// The most in the period of `now`, and in the one before.
    fn at(word: u64, now: Timestamp) -> (u64, u64) {
        let (period, current, last) = (word >> 32, word >> 16 & 0xffff, word & 0xffff);
        match ((now.as_nanos() / SIDECARS_PERIOD) & 0xffff_ffff).checked_sub(period) {
            Some(0) => (current, last),
            Some(1) => (0, current),
            _ => (0, 0),
        }
    }
}
