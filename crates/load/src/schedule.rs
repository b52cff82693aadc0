//! When requests are due, regardless of earlier answers. Times are nanoseconds from the start of the run.
//! Reads no clock.

use crate::random::Random;
use std::time::Duration;

/// The gaps between requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gaps {
    /// Equal.
    Fixed,
    /// Exponential, as with very many independent callers.
    Poisson,
}

/// Requests of all threads together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// Per second.
    pub(crate) rate: f64,
    pub(crate) gaps: Gaps,
    /// Nothing is due after it.
    pub(crate) length: Duration,
}

/// The share of one thread: thread `index` of `of`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    pub(crate) index: u64,
    pub(crate) of: u64,
}

/// The requests of one thread, in the order in which they are due.
#[derive(Debug)]
pub(crate) struct Schedule {
    next_ns: Option<u64>,
    rest: Rest,
}

#[derive(Debug)]
enum Rest {
    /// The number of the next request, out of `total` over all threads.
    Fixed {
        number: u64,
        step: u64,
        total: u64,
        gap_ns: f64,
    },
    Poisson {
        gap_ns: f64,
        end_ns: u64,
        random: Random,
    },
}

impl Schedule {
    pub(crate) fn new(plan: &Plan, share: Share, mut random: Random) -> Schedule {
        let gap_ns = 1e9 / plan.rate;
        let end_ns = plan.length.as_nanos() as u64;
        match plan.gaps {
            Gaps::Fixed => {
                let total = (plan.rate * plan.length.as_secs_f64()).round() as u64;
                let rest = Rest::Fixed { number: share.index, step: share.of, total, gap_ns };
                let next_ns = (share.index < total).then(|| due_ns(share.index, gap_ns));
                Schedule { next_ns, rest }
            }
            Gaps::Poisson => {
                // Each thread has a Poisson process of its own. Their sum is one of the full rate.
                let gap_ns = gap_ns * share.of as f64;
                let first_ns = exponential_ns(gap_ns, &mut random);
                let next_ns = (first_ns < end_ns).then_some(first_ns);
                Schedule { next_ns, rest: Rest::Poisson { gap_ns, end_ns, random } }
            }
        }
    }

    /// A schedule on which nothing is due.
    pub(crate) fn empty() -> Schedule {
        Schedule { next_ns: None, rest: Rest::Fixed { number: 0, step: 1, total: 0, gap_ns: 1.0 } }
    }

    /// When the next request is due. None if there are no more.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.next_ns
    }

    /// Takes the next request if it is due, and returns when it became due.
    pub(crate) fn take(&mut self, now_ns: u64) -> Option<u64> {
        let due = self.next_ns.filter(|&due| due <= now_ns)?;
        self.next_ns = match &mut self.rest {
            Rest::Fixed { number, step, total, gap_ns } => {
                *number += *step;
                (*number < *total).then(|| due_ns(*number, *gap_ns))
            }
            Rest::Poisson { gap_ns, end_ns, random } => {
                let next = due.saturating_add(exponential_ns(*gap_ns, random));
                (next < *end_ns).then_some(next)
            }
        };
        Some(due)
    }
}

/// Exact to the nanosecond up to 2^53 ns, which is 104 days.
fn due_ns(number: u64, gap_ns: f64) -> u64 {
    (number as f64 * gap_ns) as u64
}

fn exponential_ns(mean_ns: f64, random: &mut Random) -> u64 {
    // 1 - fraction is never 0, so the logarithm is finite.
    (-(1.0 - random.fraction()).ln() * mean_ns) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn schedule(rate: f64, gaps: Gaps, seconds: u64, share: Share) -> Schedule {
        let plan = Plan { rate, gaps, length: Duration::from_secs(seconds) };
        Schedule::new(&plan, share, Random::new(3, share.index))
    }

    fn all(mut schedule: Schedule) -> Vec<u64> {
        std::iter::from_fn(|| schedule.take(u64::MAX)).collect()
    }

    const ALONE: Share = Share { index: 0, of: 1 };

    #[test]
    fn a_fixed_rate_is_due_at_equal_gaps_for_as_long_as_told() {
        assert_eq!(
            all(schedule(4.0, Gaps::Fixed, 1, ALONE)),
            [0, SECOND / 4, SECOND / 2, SECOND / 4 * 3]
        );
        for rate in [3.0, 7.0, 0.5, 4_630.0, 20_000.0] {
            let due = all(schedule(rate, Gaps::Fixed, 2, ALONE));
            assert_eq!(due.len() as f64, rate * 2.0, "{rate}");
            assert!(due.iter().all(|&due| due < 2 * SECOND), "{rate}");
        }
    }

    #[test]
    fn nothing_is_due_early_and_what_is_overdue_keeps_its_time() {
        let mut schedule = schedule(10.0, Gaps::Fixed, 1, ALONE);
        assert_eq!(schedule.take(0), Some(0));
        assert_eq!(schedule.next_ns(), Some(SECOND / 10));
        assert_eq!(schedule.take(SECOND / 10 - 1), None);
        // The clock jumps over three requests: each has its own delay.
        let late: Vec<u64> = std::iter::from_fn(|| schedule.take(SECOND * 3 / 10)).collect();
        assert_eq!(late, [SECOND / 10, SECOND / 5, SECOND * 3 / 10]);
    }

    #[test]
    fn threads_share_a_schedule_without_gap_or_overlap() {
        let of = 3;
        let mut shared: Vec<u64> = (0..of)
            .flat_map(|index| all(schedule(1_000.0, Gaps::Fixed, 1, Share { index, of })))
            .collect();
        shared.sort_unstable();
        assert_eq!(shared, all(schedule(1_000.0, Gaps::Fixed, 1, ALONE)));
    }

    #[test]
    fn poisson_gaps_have_the_rate_and_the_spread() {
        let due = all(schedule(1_000.0, Gaps::Poisson, 100, ALONE));
        // The count has a standard deviation of √100,000 = 316; allow five.
        assert!((98_400..101_600).contains(&due.len()), "{}", due.len());
        let gaps: Vec<f64> = due.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let square = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // The standard deviation of exponential gaps is their mean; that of equal gaps is 0.
        assert!((0.97..1.03).contains(&(square.sqrt() / mean)), "{}", square.sqrt() / mean);
        assert!(due.iter().all(|&due| due < 100 * SECOND));
    }

    #[test]
    fn an_empty_schedule_has_nothing_due() {
        assert!(all(Schedule::empty()).is_empty());
        assert!(all(schedule(0.1, Gaps::Fixed, 1, ALONE)).is_empty());
    }
}
