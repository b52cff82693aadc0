//! Hits of an exact window that are charged ahead. They may be spent until the end of their second, so each
//! happens in the second that counts it. The bound is therefore the same: for any time stamps, now those of
//! spending, no window of S seconds admits more than the limit.

use super::{SECOND, SECONDS, SlidingExact, WIDE_WORDS, count};
use crate::units::Timestamp;

impl SlidingExact {
    /// The end of the second that counts a charge at `now`.
    pub(crate) fn spendable_until(&self, now: Timestamp) -> Timestamp {
        second_end(now.as_nanos() / SECOND)
    }

    /// The end of the second that a refund at `now` returns hits from first. It is not the current second
    /// if the clock stepped back, or nothing was taken in it.
    pub(crate) fn refund_spendable_until(&self, state: &[u64], now: Timestamp) -> Timestamp {
        let parts = self.parts(now);
        let (now, _) = self.span(now);
        let part = parts.labels().iter().position(|label| *label == SECONDS | now.minute);
        let seconds = part.and_then(|part| state[part * WIDE_WORDS..].first_chunk());
        let seconds = seconds.expect("the state has a wide one for each part");
        let is_own = seconds[0] == now.minute + 1;
        let newest = (0..60).rev().find(|place| is_own && count(seconds, *place as usize) > 0);
        second_end(newest.map_or(now.second, |place| now.minute * 60 + place))
    }
}

fn second_end(second: u64) -> Timestamp {
    Timestamp::from_secs(second.saturating_add(1))
}
