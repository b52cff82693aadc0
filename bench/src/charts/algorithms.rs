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
    /// Settings of the limit besides its rate.
    pub(super) setting: &'static str,
    pub(super) quota: Quota,
    /// The most hits in any span of one period, both ends included.
    pub(super) bound: u64,
    pub(super) colour: &'static str,
    /// The dash pattern of its line; empty for a solid one.
    pub(super) dashes: &'static str,
}

impl Algorithm {
    fn new(name: &'static str, quota: Quota, bound: u64, colour: &'static str) -> Algorithm {
        Algorithm { name, setting: "", quota, bound, colour, dashes: "" }
    }

    /// The name of its chart's file.
    pub(super) fn file(&self) -> String {
        self.name.replace(", ", "_") + ".svg"
    }
}

/// All algorithms, in the order of the document.
pub(super) fn all() -> Result<Vec<Algorithm>, QuotaError> {
    let limit = u64::from(LIMIT);
    let fixed = FixedWindow::new(LIMIT, PERIOD)?;
    let borrow = Quota::FixedWindow(fixed.clone().with_borrow(BORROW)?);
    let first_hit = Quota::FirstHitWindow(FirstHitWindow::new(LIMIT, PERIOD)?);
    let bucket = Quota::TokenBucket(TokenBucket::new(LIMIT, PERIOD, LIMIT, LIMIT)?);
    let sliding = Quota::SlidingWindow(SlidingWindow::new(LIMIT, PERIOD)?);
    let ring = Quota::SlidingBuckets(SlidingBuckets::new(LIMIT, PERIOD)?);
    let exact = Quota::SlidingExact(SlidingExact::new(LIMIT, PERIOD)?);
    let most_borrowed = 2 * limit + u64::from(BORROW);
    Ok(vec![
        Algorithm::new("fixed_window", Quota::FixedWindow(fixed), 2 * limit, "#d1495b"),
        Algorithm {
            setting: ", borrow 30",
            ..Algorithm::new("fixed_window, borrow", borrow, most_borrowed, "#a05a2c")
        },
        Algorithm {
            dashes: "7 3",
            ..Algorithm::new("first_hit_window", first_hit, 2 * limit, "#c77d0a")
        },
        Algorithm {
            setting: ", burst 60",
            ..Algorithm::new("token_bucket", bucket, 2 * limit, "#2a9d6f")
        },
        // Q + floor(Q × (P − 1 ns) / P)
        Algorithm::new("sliding_window", sliding, 2 * limit - 1, "#2f81f7"),
        Algorithm::new("sliding_buckets", ring, limit, "#8a63d2"),
        Algorithm {
            setting: ", exact",
            dashes: "7 3",
            ..Algorithm::new("sliding_buckets, exact", exact, limit, "#c2569b")
        },
    ])
}
