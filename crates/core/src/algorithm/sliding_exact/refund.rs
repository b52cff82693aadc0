//! Refunds to an exact window: from the current and the oldest minute, because a decision has only the
//! seconds of these.

use super::{HOURS, Levels, Moment, Part, SATURATED, WIDE_WORDS, count, put};

impl Levels<'_> {
    /// Returns up to `hits` of the hits that count.
    pub(super) fn refund(&mut self, hits: u64) {
        let (now, oldest, seconds) = (self.now, self.oldest, self.seconds_now());
        let from_oldest = (oldest.second % 60) as usize;
        let from = if now.minute == oldest.minute { from_oldest } else { 0 };
        let given = self.refund_minute(Self::MINUTES_NOW, seconds, now, from, hits);
        if now.minute != oldest.minute {
            let (minutes, seconds) = (self.minutes_oldest(), self.seconds_oldest());
            self.refund_minute(minutes, seconds, oldest, from_oldest, hits - given);
        }
    }

    /// Returns hits of one minute on all levels, from its last second down to the place `from`, and their
    /// number.
    fn refund_minute(
        &mut self,
        minutes: Part,
        seconds: Part,
        Moment { minute, hour, .. }: Moment,
        from: usize,
        hits: u64,
    ) -> u64 {
        let in_hour = self.hours().find(|(number, _)| *number == hour);
        let minute_place = (minute % 60) as usize;
        let most = self.sum(seconds, minute, from).min(self.total(minutes, hour, minute_place));
        let most = most.min(in_hour.map_or(u64::MAX, |(_, total)| total));
        let given = hits.min(most);
        let mut rest = given;
        for place in (from..60).rev() {
            rest -= subtract(self.words_mut(seconds), place, rest);
        }
        if given > 0 {
            subtract(self.words_mut(minutes), minute_place, given);
            if in_hour.is_some() {
                subtract(self.words_mut(Self::ROOT), (hour % HOURS) as usize, given);
            }
        }
        given
    }
}

/// Subtracts up to `hits`. The result is their number.
fn subtract(words: &mut [u64; WIDE_WORDS], place: usize, hits: u64) -> u64 {
    let total = count(words, place);
    let taken = total.min(u32::try_from(hits).unwrap_or(u32::MAX));
    if total != SATURATED {
        put(words, place, total - taken);
    }
    taken.into()
}
