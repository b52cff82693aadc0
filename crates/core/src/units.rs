//! Types for time and cost, so that they cannot be confused.
//!
//! Arithmetic saturates by name: every request and every clock must get a decision. Nothing here reads a
//! clock.

use std::fmt;

const NANOS_PER_SEC: u64 = 1_000_000_000;

/// A span of time in nanoseconds; at most about 584 years.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(u64);

impl Nanos {
    /// No time at all.
    pub const ZERO: Nanos = Nanos(0);

    /// A span of `nanos` nanoseconds.
    #[must_use]
    pub const fn new(nanos: u64) -> Self {
        Nanos(nanos)
    }

    /// A span of whole seconds, saturating at the longest representable span.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Nanos(secs.saturating_mul(NANOS_PER_SEC))
    }

    /// The span in nanoseconds.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole seconds, rounded up, so that a waiting client does not return early.
    #[must_use]
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(NANOS_PER_SEC)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", std::time::Duration::from_nanos(self.0))
    }
}

/// A point in time: nanoseconds since the Unix epoch (UTC, no leap seconds).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The point `nanos` nanoseconds after the Unix epoch.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Timestamp(nanos)
    }

    /// The point `secs` seconds after the Unix epoch, saturating.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Timestamp(secs.saturating_mul(NANOS_PER_SEC))
    }

    /// Nanoseconds since the Unix epoch.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This point moved `span` later, saturating.
    #[must_use]
    pub const fn saturating_add(self, span: Nanos) -> Self {
        Timestamp(self.0.saturating_add(span.0))
    }

    /// The time from `earlier` to this point, zero when `earlier` is in fact later.
    #[must_use]
    pub const fn saturating_since(self, earlier: Timestamp) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The cost of a request. Zero is a peek, which takes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hits(u64);

impl Hits {
    /// Asks without taking.
    pub const PEEK: Hits = Hits(0);
    /// The cost of a request that does not specify one.
    pub const ONE: Hits = Hits(1);

    /// A cost of `hits`.
    #[must_use]
    pub const fn new(hits: u64) -> Self {
        Hits(hits)
    }

    /// The cost as a number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The hits that must fit for an allow: a peek answers for one hit.
    #[must_use]
    pub const fn needed(self) -> u64 {
        if self.0 == 0 { 1 } else { self.0 }
    }
}

/// What is done with the hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charge {
    /// Takes all of them, or none if they do not fit.
    Take(Hits),
    /// Counts them even if they do not fit, because they have already happened. The counter is then
    /// overdrawn as far as its algorithm allows. The answer is that of [`Charge::Take`]: whether all of
    /// them fit. A forced charge of zero asks whether a counter that can be overdrawn is.
    Force(Hits),
    /// Returns them, at most what the counter has taken. Always fits.
    Refund(Hits),
}

impl Charge {
    /// Asks without taking.
    pub const PEEK: Charge = Charge::Take(Hits::PEEK);
    /// Takes one hit.
    pub const ONE: Charge = Charge::Take(Hits::ONE);

    /// The number of hits to take; none for a refund.
    #[inline]
    pub(crate) const fn taken(self) -> Option<u64> {
        match self {
            Charge::Take(hits) | Charge::Force(hits) => Some(hits.get()),
            Charge::Refund(_) => None,
        }
    }

    /// The number of hits, taken or returned.
    #[must_use]
    pub const fn hits(self) -> Hits {
        match self {
            Charge::Take(hits) | Charge::Force(hits) | Charge::Refund(hits) => hits,
        }
    }
}

/// The units of an envoyproxy/ratelimit file. Month and year are 30 and 365 days, and all units count from
/// the Unix epoch, so a week starts on a Thursday.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unit {
    /// 1 s
    Second,
    /// 60 s
    Minute,
    /// 3,600 s
    Hour,
    /// 86,400 s
    Day,
    /// 7 days
    Week,
    /// 30 days
    Month,
    /// 365 days
    Year,
}

impl Unit {
    /// Every unit, shortest first.
    pub const ALL: [Unit; 7] =
        [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Month, Unit::Year];

    /// The length of the unit.
    #[must_use]
    pub const fn period(self) -> Nanos {
        const DAY: u64 = 86_400;
        Nanos::from_secs(match self {
            Unit::Second => 1,
            Unit::Minute => 60,
            Unit::Hour => 3_600,
            Unit::Day => DAY,
            Unit::Week => 7 * DAY,
            Unit::Month => 30 * DAY,
            Unit::Year => 365 * DAY,
        })
    }

    /// The unit of exactly this length, if there is one.
    #[must_use]
    pub fn of_period(period: Nanos) -> Option<Unit> {
        Unit::ALL.into_iter().find(|unit| unit.period() == period)
    }

    /// The name in configuration files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Second => "second",
            Unit::Minute => "minute",
            Unit::Hour => "hour",
            Unit::Day => "day",
            Unit::Week => "week",
            Unit::Month => "month",
            Unit::Year => "year",
        }
    }

    /// The unit of this name, ignoring case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Unit> {
        Unit::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }
}
