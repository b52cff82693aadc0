//! Which calls have spans.

use crate::context::Choice;

/// The choice among calls, as the samplers of OpenTelemetry make it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampler {
    parents: Parents,
    /// Of 2^63, see [`Sampler::samples`].
    threshold: u64,
}

/// Whether the choice of a client is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parents {
    Followed,
    Ignored,
}

/// Two to the power of 63.
const ALL: u64 = 1 << 63;

impl Sampler {
    /// Follows the client's choice. Of calls without one, samples this share, 0 to 1.
    #[must_use]
    pub fn by_parent(share: f64) -> Sampler {
        // A cast saturates.
        Sampler { parents: Parents::Followed, threshold: ((share * ALL as f64) as u64).min(ALL) }
    }

    /// Samples this share of all traces, whatever clients have chosen.
    #[must_use]
    pub fn by_itself(share: f64) -> Sampler {
        Sampler { parents: Parents::Ignored, ..Sampler::by_parent(share) }
    }

    /// Whether a call of this trace has a span. All that sample a share choose by the same 63 bits, so a trace is whole
    /// where the shares are the same.
    pub(crate) fn samples(self, choice: Choice, trace_id: u128) -> bool {
        match (self.parents, choice) {
            (Parents::Followed, Choice::Sampled) => true,
            (Parents::Followed, Choice::NotSampled) => false,
            // The cast keeps the low half, which is random wherever the whole is.
            _ => (trace_id as u64) >> 1 < self.threshold,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;

    #[test]
    fn a_choice_of_the_client_is_followed_or_not() {
        for (sampler, choice, expected) in [
            (Sampler::by_parent(0.0), Choice::Sampled, true),
            (Sampler::by_parent(0.0), Choice::NotSampled, false),
            (Sampler::by_parent(0.0), Choice::Open, false),
            (Sampler::by_parent(1.0), Choice::Sampled, true),
            (Sampler::by_parent(1.0), Choice::NotSampled, false),
            (Sampler::by_parent(1.0), Choice::Open, true),
            (Sampler::by_itself(0.0), Choice::Sampled, false),
            (Sampler::by_itself(1.0), Choice::NotSampled, true),
        ] {
            for trace_id in [1, u128::MAX, random::trace_id()] {
                assert_eq!(sampler.samples(choice, trace_id), expected, "{sampler:?} {choice:?}");
            }
        }
    }

    #[test]
    fn a_share_is_that_of_all_traces() {
        let sampler = Sampler::by_parent(0.25);
        let samples = |low: u64| sampler.samples(Choice::Open, u128::from(low));
        assert!(samples(0) && samples((1 << 62) - 1) && !samples(1 << 62) && !samples(u64::MAX));
        let count =
            (0..100_000).filter(|_| sampler.samples(Choice::Open, random::trace_id())).count();
        // 25,000, with a standard deviation of 137.
        assert!((24_000..26_000).contains(&count), "{count}");
    }
}
