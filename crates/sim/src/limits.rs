//! The limits of a scenario, and the limits file for the sidecar.

use crate::meters::{self, METERS};
use crate::rng::Rng;
use std::fmt::Write;

/// Nanoseconds per second.
pub const SECOND: u64 = 1_000_000_000;

/// The algorithm of a limit; variants of one algorithm that matter here are separate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Algorithm {
    /// `fixed_window`
    FixedWindow,
    /// `fixed_window` with `borrow`
    Borrow,
    /// `fixed_window` with `timezone`
    Zone,
    /// `first_hit_window`
    FirstHitWindow,
    /// `token_bucket`
    TokenBucket,
    /// `sliding_window`
    SlidingWindow,
    /// `sliding_buckets`
    SlidingBuckets,
    /// `sliding_buckets` with `exact`
    Exact,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Algorithm; 8] = [
        Algorithm::FixedWindow,
        Algorithm::Borrow,
        Algorithm::Zone,
        Algorithm::FirstHitWindow,
        Algorithm::TokenBucket,
        Algorithm::SlidingWindow,
        Algorithm::SlidingBuckets,
        Algorithm::Exact,
    ];

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::FixedWindow => "fixed_window",
            Algorithm::Borrow => "borrow",
            Algorithm::Zone => "timezone",
            Algorithm::FirstHitWindow => "first_hit_window",
            Algorithm::TokenBucket => "token_bucket",
            Algorithm::SlidingWindow => "sliding_window",
            Algorithm::SlidingBuckets => "sliding_buckets",
            Algorithm::Exact => "exact",
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    pub(crate) algorithm: Algorithm,
    pub(crate) requests: u64,
    /// In nanoseconds; whole seconds.
    pub(crate) period: u64,
    /// For a token bucket.
    pub(crate) burst: u64,
    /// For a token bucket.
    pub(crate) initial: u64,
    /// For a fixed window.
    pub(crate) borrow: u64,
    /// Offset of the local time from UTC, in minutes.
    pub(crate) zone_minutes: u64,
}

impl Limit {
    /// A random limit with this algorithm.
    pub(crate) fn random(algorithm: Algorithm, rng: &mut Rng) -> Limit {
        let requests = match rng.below(4) {
            0 => rng.between(1, 20),
            _ => rng.log_between(8, 4_000),
        };
        let seconds = rng.pick(&[1, 1, 1, 2, 2, 5, 10, 60, 600, 3_600]);
        let burst = match rng.below(3) {
            0 => requests,
            _ => rng.log_between(1, requests * 2),
        };
        Limit {
            algorithm,
            requests,
            period: seconds * SECOND,
            burst,
            initial: if rng.chance(500) { burst } else { rng.between(0, burst) },
            borrow: rng.between(1, requests.div_ceil(2)),
            zone_minutes: rng.pick(&[60, 330, 345, 480]),
        }
    }

    /// The limit at `per_cent` of its numbers.
    #[must_use]
    pub(crate) fn scaled(self, per_cent: u64) -> Limit {
        let scale = |number: u64| (number * per_cent / 100).max(1);
        let burst = scale(self.burst);
        Limit {
            requests: scale(self.requests),
            burst,
            initial: scale(self.initial).min(burst),
            borrow: scale(self.borrow),
            ..self
        }
    }

    /// The maximum of both in every number.
    #[must_use]
    pub(crate) fn max(self, other: Limit) -> Limit {
        Limit {
            requests: self.requests.max(other.requests),
            burst: self.burst.max(other.burst),
            borrow: self.borrow.max(other.borrow),
            ..self
        }
    }

    fn write(&self, name: &str, file: &mut String) {
        let (seconds, requests) = (self.period / SECOND, self.requests);
        let rest = match self.algorithm {
            Algorithm::FixedWindow => "algorithm: fixed_window".to_owned(),
            Algorithm::Borrow => format!("algorithm: fixed_window, borrow: {}", self.borrow),
            Algorithm::Zone => {
                let (hours, minutes) = (self.zone_minutes / 60, self.zone_minutes % 60);
                format!("algorithm: fixed_window, timezone: \"+{hours:02}:{minutes:02}\"")
            }
            Algorithm::FirstHitWindow => "algorithm: first_hit_window".to_owned(),
            Algorithm::TokenBucket => {
                let (burst, initial) = (self.burst, self.initial);
                format!("algorithm: token_bucket, burst: {burst}, initial: {initial}")
            }
            Algorithm::SlidingWindow => "algorithm: sliding_window".to_owned(),
            Algorithm::SlidingBuckets => "algorithm: sliding_buckets".to_owned(),
            Algorithm::Exact => "algorithm: sliding_buckets, exact: true".to_owned(),
        };
        let _ = writeln!(
            file,
            "      - {{ name: {name}, requests: {requests}, period: {seconds}s, {rest} }}"
        );
    }
}

/// The descriptors of one key, and the limits of each value.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    /// Its limits; none for a key without a rule.
    pub(crate) limits: Vec<Limit>,
    pub(crate) values: u32,
    /// The index of the first value's counter.
    pub(crate) first: u32,
    /// The scale of the limits when they change.
    pub(crate) change_per_cent: u64,
}

/// The current form of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// As in the scenario.
    Base,
    /// With other numbers.
    Scaled,
    /// Removed.
    Absent,
    /// With another algorithm.
    Other,
}

/// The limits file of `rules`.
#[must_use]
pub(crate) fn file(rules: &[Rule], forms: &[Form]) -> String {
    let mut file = String::from("domain: sim\ndescriptors:\n");
    // Always present, since an empty file would be refused.
    file.push_str("  - key: other\n    rate_limit: { unit: second, requests_per_unit: 1 }\n");
    for meter in 0..METERS {
        // Limits in quota mode are never leased.
        let is_quota = meter != meters::LEASED;
        let limit = format!("{{ unit: year, requests_per_unit: {} }}", meters::ROOM);
        let _ =
            writeln!(file, "  - {{ key: m{meter}, quota_mode: {is_quota}, rate_limit: {limit} }}");
    }
    for (index, (rule, form)) in rules.iter().zip(forms).enumerate() {
        if rule.limits.is_empty() || *form == Form::Absent {
            continue;
        }
        let _ = writeln!(file, "  - key: k{index}\n    rate_limits:");
        for (number, limit) in rule.limits.iter().enumerate() {
            let mut limit = *limit;
            if *form == Form::Scaled {
                limit = limit.scaled(rule.change_per_cent);
            }
            if *form == Form::Other {
                limit.algorithm = match limit.algorithm {
                    Algorithm::TokenBucket => Algorithm::FixedWindow,
                    _ => Algorithm::TokenBucket,
                };
            }
            limit.write(&format!("l{number}"), &mut file);
        }
    }
    file
}
