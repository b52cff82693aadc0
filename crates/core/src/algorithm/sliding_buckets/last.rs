//! The time of the last hit of a ring, whether taken or forced. It is used only to decide whether a daily
//! reset came since.
//!
//! It is in the last word of the state. With 25 buckets all of this word is free: nanoseconds since the
//! Unix epoch. With 61 buckets the upper half is free: milliseconds modulo 2^32. The newest bucket makes
//! them unambiguous, because a ring of less than a day holds nothing for as long as they take to wrap
//! around (49 days). Zero is a time that was not recorded.

use super::{DAY, SlidingBuckets, WIDE_WORDS, count, put};

const WORD: usize = WIDE_WORDS - 1;
/// The upper half of that word, as a place in the ring.
const PLACE: usize = 61;
const MILLISECOND: u64 = 1_000_000;

impl SlidingBuckets {
    /// When the last hit came; the start of its bucket if not recorded.
    pub(super) fn last_hit(&self, state: &[u64; WIDE_WORDS]) -> Option<u64> {
        let newest = state[0].checked_sub(1).filter(|_| state[1] > 0)?;
        let noted = if self.period < DAY { self.milliseconds(state, newest) } else { state[WORD] };
        Some(if noted > 0 { noted } else { self.begins(newest).as_nanos() })
    }

    fn milliseconds(&self, state: &[u64; WIDE_WORDS], newest: u64) -> u64 {
        let noted = count(state, PLACE);
        if noted == 0 {
            return 0;
        }
        let oldest = self.begins(newest.saturating_sub(60)).as_nanos() / MILLISECOND;
        let since = noted.wrapping_sub(oldest as u32);
        oldest.saturating_add(since.into()).saturating_mul(MILLISECOND)
    }
}

/// Records a hit at `now`, unless a later one is recorded.
#[inline]
pub(super) fn record<const PLACES: u64>(state: &mut [u64; WIDE_WORDS], now: u64) {
    if PLACES < PLACE as u64 {
        state[WORD] = state[WORD].max(now).max(1);
        return;
    }
    let (noted, last) = (count(state, PLACE), ((now / MILLISECOND) as u32).max(1));
    // Times within 24 days of each other are ordered by the sign of their difference.
    if noted == 0 || last.wrapping_sub(noted) < 1 << 31 {
        put(state, PLACE, last);
    }
}

/// Records a hit by a clock that may have stepped back before `newest`, the start of the newest bucket. If
/// no time was recorded, `newest` is recorded instead, because only the newest bucket makes the time
/// unambiguous.
pub(super) fn record_in_newest<const PLACES: u64>(
    state: &mut [u64; WIDE_WORDS],
    now: u64,
    newest: u64,
) {
    let is_noted = state[WORD] >> 32 != 0;
    record::<PLACES>(state, if is_noted { now } else { now.max(newest) });
}
