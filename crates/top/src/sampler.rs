//! How many sums of few hits a busy thread records: all of the first ones of a short time, then one of eight at random,
//! which counts for eight.
//!
//! So a quiet service shows every hit, and the cost for a thread is bounded: some 2,000 records a second, an eighth of what
//! is beyond, and sums of many hits, which cost little for a hit. A record takes some 50 ns, or 260 ns if a descriptor
//! takes the place of another in both sketches. Estimates have no bias. Who has eight hits or more a second is counted hit by
//! hit.

use std::cell::Cell;

/// Of time, in milliseconds.
const SLICE_MS: u64 = 128;
/// Recorded whole in each slice.
const WHOLE: u32 = 256;
/// Beyond that, one of as many.
const ONE_OF: u64 = 8;

#[derive(Debug, Clone, Copy)]
struct Sampler {
    slice: u64,
    seen: u32,
    /// The state of xorshift64, so never 0.
    random: u64,
}

thread_local! {
    static SAMPLER: Cell<Sampler> =
        const { Cell::new(Sampler { slice: 0, seen: 0, random: 0x9e37_79b9_7f4a_7c15 }) };
}

/// For how many sums this one counts; none if it does not.
pub(crate) fn sample(now_ms: u64) -> Option<u64> {
    let mut sampler = SAMPLER.get();
    let weight = sampler.next(now_ms);
    SAMPLER.set(sampler);
    (weight > 0).then_some(weight)
}

impl Sampler {
    fn next(&mut self, now_ms: u64) -> u64 {
        let slice = now_ms / SLICE_MS;
        if self.slice != slice {
            (self.slice, self.seen) = (slice, 0);
        }
        if self.seen < WHOLE {
            self.seen += 1;
            return 1;
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        if (self.random >> 32).is_multiple_of(ONE_OF) { ONE_OF } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_recorded_whole_and_many_without_bias() {
        let mut sampler = Sampler { slice: 0, seen: 0, random: 1 };
        for now_ms in 0..10_000 {
            assert_eq!(sampler.next(now_ms), 1, "at {now_ms}");
        }
        let count = 1_000_000;
        let (mut records, mut sum) = (0, 0);
        for _ in 0..count {
            let weight = sampler.next(20_000);
            records += u64::from(weight > 0);
            sum += weight;
        }
        assert!(records < count / 7, "{records}");
        assert!(sum.abs_diff(count) < count / 50, "{sum}");
    }
}
