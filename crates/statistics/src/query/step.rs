//! Steps of an answer: the widths of points, and two between them.

use crate::retention::{Calendar, Width};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    Minute,
    FiveMinutes,
    QuarterHour,
    Hour,
    SixHours,
    Day,
    Week,
}

impl Step {
    pub const ALL: [Step; 7] = [
        Step::Minute,
        Step::FiveMinutes,
        Step::QuarterHour,
        Step::Hour,
        Step::SixHours,
        Step::Day,
        Step::Week,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Step::Minute => "1m",
            Step::FiveMinutes => "5m",
            Step::QuarterHour => "15m",
            Step::Hour => "1h",
            Step::SixHours => "6h",
            Step::Day => "1d",
            Step::Week => "1w",
        }
    }

    /// Its usual length.
    #[must_use]
    pub fn seconds(self) -> i64 {
        match self {
            Step::Minute => 60,
            Step::FiveMinutes => 300,
            Step::QuarterHour => 900,
            Step::Hour => 3_600,
            Step::SixHours => 21_600,
            Step::Day => 86_400,
            Step::Week => 604_800,
        }
    }

    /// The widest points that are in one step each.
    #[must_use]
    pub fn width(self) -> Width {
        match self {
            Step::Minute => Width::Minute,
            Step::FiveMinutes | Step::QuarterHour => Width::FiveMinutes,
            Step::Hour | Step::SixHours => Width::Hour,
            Step::Day => Width::Day,
            Step::Week => Width::Week,
        }
    }

    /// The beginning of the step that a time belongs to, by the clock of the zone.
    #[must_use]
    pub fn floor(self, calendar: &Calendar, at: i64) -> i64 {
        let within = |width: Width| {
            let start = calendar.floor(width, at);
            start + (at - start).div_euclid(self.seconds()) * self.seconds()
        };
        match self {
            Step::Minute => calendar.floor(Width::Minute, at),
            Step::FiveMinutes => calendar.floor(Width::FiveMinutes, at),
            Step::QuarterHour => within(Width::Hour),
            Step::Hour => calendar.floor(Width::Hour, at),
            Step::SixHours => within(Width::Day),
            Step::Day => calendar.floor(Width::Day, at),
            Step::Week => calendar.floor(Width::Week, at),
        }
    }
}
