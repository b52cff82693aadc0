//! The algorithms on the charts, all with the same limit.

use super::traffic::{LIMIT, PERIOD};
use tidegate_core::{
    FirstHitWindow, FixedWindow, Quota, QuotaError, SlidingBuckets, SlidingExact, SlidingWindow,
    TokenBucket,
};

/// Hits that the window with `borrow` may borrow.
const BORROW: u32 = 30;

/// One algorithm on the charts.
#[derive(Debug)]
pub(super) struct Algorithm {
    pub(super) name: &'static str,
    /// Its file name without the extension.
    pub(super) file: &'static str,
    /// Settings of the limit besides its rate.
    pub(super) setting: &'static str,
    pub(super) quota: Quota,
    /// The most hits in any span of one period, both ends included.
    pub(super) bound: u64,
    pub(super) colour: &'static str,
    /// The dash pattern of its line; empty for a solid one.
    pub(super) dashes: &'static str,
}

/// All algorithms, in the order of the document.
pub(super) fn all() -> Result<Vec<Algorithm>, QuotaError> {
    let limit = u64::from(LIMIT);
    Ok(vec![
        Algorithm {
            name: "fixed_window",
            file: "fixed_window",
            setting: "",
            quota: Quota::FixedWindow(FixedWindow::new(LIMIT, PERIOD)?),
            bound: 2 * limit,
            colour: "#d1495b",
            dashes: "",
        },
        Algorithm {
            name: "fixed_window, borrow",
            file: "fixed_window_borrow",
            setting: ", borrow 30",
            quota: Quota::FixedWindow(FixedWindow::new(LIMIT, PERIOD)?.with_borrow(BORROW)?),
            bound: 2 * limit + u64::from(BORROW),
            colour: "#a05a2c",
            dashes: "",
        },
        Algorithm {
            name: "first_hit_window",
            file: "first_hit_window",
            setting: "",
            quota: Quota::FirstHitWindow(FirstHitWindow::new(LIMIT, PERIOD)?),
            bound: 2 * limit,
            colour: "#c77d0a",
            dashes: "7 3",
        },
        Algorithm {
            name: "token_bucket",
            file: "token_bucket",
            setting: ", burst 60",
            quota: Quota::TokenBucket(TokenBucket::new(LIMIT, PERIOD, LIMIT, LIMIT)?),
            bound: 2 * limit,
            colour: "#2a9d6f",
            dashes: "",
        },
        Algorithm {
            name: "sliding_window",
            file: "sliding_window",
            setting: "",
            quota: Quota::SlidingWindow(SlidingWindow::new(LIMIT, PERIOD)?),
            // Q + floor(Q × (P − 1 ns) / P)
            bound: 2 * limit - 1,
            colour: "#2f81f7",
            dashes: "",
        },
        Algorithm {
            name: "sliding_buckets",
            file: "sliding_buckets",
            setting: "",
            quota: Quota::SlidingBuckets(SlidingBuckets::new(LIMIT, PERIOD)?),
            bound: limit,
            colour: "#8a63d2",
            dashes: "",
        },
        Algorithm {
            name: "sliding_buckets, exact",
            file: "sliding_buckets_exact",
            setting: ", exact",
            quota: Quota::SlidingExact(SlidingExact::new(LIMIT, PERIOD)?),
            bound: limit,
            colour: "#c2569b",
            dashes: "7 3",
        },
    ])
}
