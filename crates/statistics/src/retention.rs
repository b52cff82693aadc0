//! Widths of points, where they begin in a time zone, and how long each is kept.
//!
//! Minutes and five minutes begin alike everywhere. Hours, days and weeks begin by the clock of the zone, so "today" is the
//! operator's. A day of a clock change is longer or shorter.

use jiff::tz::{Offset, TimeZone, TimeZoneDatabase};
use jiff::{Span, Timestamp, Zoned};
use std::str::FromStr;

/// The time that a point covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Width {
    Minute,
    FiveMinutes,
    Hour,
    Day,
    Week,
}

impl Width {
    pub const ALL: [Width; 5] =
        [Width::Minute, Width::FiveMinutes, Width::Hour, Width::Day, Width::Week];

    /// Its usual length, which also stands for it in the database.
    #[must_use]
    pub fn seconds(self) -> i64 {
        match self {
            Width::Minute => 60,
            Width::FiveMinutes => 300,
            Width::Hour => 3_600,
            Width::Day => 86_400,
            Width::Week => 604_800,
        }
    }

    /// The next wider one; none for the widest.
    #[must_use]
    pub fn wider(self) -> Option<Width> {
        Width::ALL.into_iter().find(|width| *width > self)
    }
}

/// The clock of a time zone.
#[derive(Debug, Clone)]
pub struct Calendar(TimeZone);

impl Default for Calendar {
    fn default() -> Self {
        Calendar(TimeZone::UTC)
    }
}

impl Calendar {
    /// The zone of a name such as `Europe/Berlin`, or an offset such as `+08:00`.
    ///
    /// # Errors
    /// A message, if there is no such zone.
    pub fn parse(text: &str) -> Result<Calendar, String> {
        let zone = match offset(text) {
            Some(offset) => Some(TimeZone::fixed(offset)),
            None => TimeZoneDatabase::bundled().get(text).ok(),
        };
        zone.map(Calendar).ok_or_else(|| {
            let text: String = text.chars().take(64).collect();
            format!(
                "unknown timezone {text:?}; expected UTC, an offset such as +08:00, or a name such as Europe/Berlin"
            )
        })
    }

    /// The beginning of the point of this width that a time (in seconds since 1970) belongs to.
    #[must_use]
    pub fn floor(&self, width: Width, at: i64) -> i64 {
        let even = |offset: i64| at - (at + offset).rem_euclid(width.seconds());
        match width {
            Width::Minute | Width::FiveMinutes => even(0),
            Width::Hour => even(self.offset(at)),
            Width::Day => self.day(at, 0).unwrap_or_else(|| even(self.offset(at))),
            Width::Week => self.monday(at).unwrap_or_else(|| even(self.offset(at))),
        }
    }

    /// The beginning of the day that is `days` before the day of `at`.
    #[must_use]
    pub fn days_before(&self, at: i64, days: u32) -> i64 {
        self.day(at, days).unwrap_or(at - i64::from(days) * Width::Day.seconds())
    }

    /// A time for people: `2026-11-25 10:00`.
    #[must_use]
    pub fn shown(&self, at: i64) -> String {
        self.formatted(at, "%Y-%m-%d %H:%M")
    }

    /// A time for programs: `2026-11-25T10:00:00+01:00`.
    #[must_use]
    pub fn timestamp(&self, at: i64) -> String {
        self.formatted(at, "%Y-%m-%dT%H:%M:%S%:z")
    }

    fn formatted(&self, at: i64, format: &str) -> String {
        self.local(at).map_or_else(|| at.to_string(), |at| at.strftime(format).to_string())
    }

    fn local(&self, at: i64) -> Option<Zoned> {
        Some(Timestamp::from_second(at).ok()?.to_zoned(self.0.clone()))
    }

    /// Seconds east of UTC.
    fn offset(&self, at: i64) -> i64 {
        Timestamp::from_second(at).map_or(0, |at| self.0.to_offset(at).seconds().into())
    }

    fn day(&self, at: i64, days: u32) -> Option<i64> {
        let date = self.local(at)?.date().checked_sub(Span::new().try_days(days).ok()?).ok()?;
        Some(date.to_zoned(self.0.clone()).ok()?.timestamp().as_second())
    }

    fn monday(&self, at: i64) -> Option<i64> {
        let days = self.local(at)?.weekday().to_monday_zero_offset();
        self.day(at, u32::try_from(days).ok()?)
    }
}

fn offset(text: &str) -> Option<Offset> {
    let sign = match text.get(..1)? {
        "+" => 1,
        "-" => -1,
        _ => return None,
    };
    let (hours, minutes) = text.get(1..)?.split_once(':')?;
    let number = |digits: &str| {
        let is_number = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<i32>().ok().filter(|_| is_number)
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    let is_offset = hours <= 18 && minutes < 60;
    is_offset.then(|| Offset::from_seconds(sign * (hours * 3_600 + minutes * 60)).ok())?
}

/// A century.
const DAYS_MAX: u32 = 36_600;

/// For how many days points of each width are kept, today included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    pub minutes: u32,
    pub five_minutes: u32,
    pub hours: u32,
    pub days: u32,
    pub weeks: u32,
}

impl Default for Retention {
    fn default() -> Self {
        Retention { minutes: 1, five_minutes: 2, hours: 31, days: 366, weeks: 3_660 }
    }
}

/// `1h=90d,1d=2000d`: days by width. Those that are not named are the default.
impl FromStr for Retention {
    type Err = String;

    fn from_str(text: &str) -> Result<Retention, String> {
        let expected = || {
            format!(
                "expected days for each width, such as 1m=1d,5m=2d,1h=31d,1d=366d,1w=3660d, found {:?}",
                text.chars().take(64).collect::<String>()
            )
        };
        let mut retention = Retention::default();
        for pair in text.split(',') {
            let (width, days) = pair.trim().split_once('=').ok_or_else(expected)?;
            let place = match width {
                "1m" => &mut retention.minutes,
                "5m" => &mut retention.five_minutes,
                "1h" => &mut retention.hours,
                "1d" => &mut retention.days,
                "1w" => &mut retention.weeks,
                _ => return Err(expected()),
            };
            let days = days.strip_suffix('d').and_then(|days| days.parse().ok());
            *place = days.filter(|days| (1..=DAYS_MAX).contains(days)).ok_or_else(expected)?;
        }
        retention.check()?;
        Ok(retention)
    }
}

impl Retention {
    /// # Errors
    /// A message, if a width is kept for less time than a finer one, or none at all.
    pub fn check(&self) -> Result<(), String> {
        let all = Width::ALL.map(|width| self.days_of(width));
        if all[0] > 0 && all.is_sorted() {
            return Ok(());
        }
        Err(format!("retention {all:?}: expected days from 1, none fewer than the one before"))
    }

    fn days_of(&self, width: Width) -> u32 {
        match width {
            Width::Minute => self.minutes,
            Width::FiveMinutes => self.five_minutes,
            Width::Hour => self.hours,
            Width::Day => self.days,
            Width::Week => self.weeks,
        }
    }

    /// Points of this width that begin before this time are deleted. No point of the next width spans it.
    #[must_use]
    pub fn cutoff(&self, width: Width, calendar: &Calendar, now: i64) -> i64 {
        let day = calendar.days_before(now, self.days_of(width).saturating_sub(1));
        calendar.floor(width.wider().unwrap_or(width), day)
    }

    /// The narrowest points that are kept of a time.
    #[must_use]
    pub fn width_at(&self, calendar: &Calendar, at: i64, now: i64) -> Width {
        let kept = |width: &Width| at >= self.cutoff(*width, calendar, now);
        Width::ALL.into_iter().find(kept).unwrap_or(Width::Week)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_retention_is_read_by_width() {
        let expected = Retention { hours: 90, days: 2_000, ..Retention::default() };
        assert_eq!("1h=90d,1d=2000d".parse(), Ok(expected));
        let all = "1m=1d,5m=2d,1h=31d,1d=366d,1w=3660d";
        assert_eq!(all.parse(), Ok(Retention::default()));
        for wrong in ["", "1h", "2h=3d", "1h=3", "1h=0d", "1h=-1d", "1w=40000d", "1h=3d,"] {
            assert!(
                wrong.parse::<Retention>().unwrap_err().starts_with("expected days"),
                "{wrong}"
            );
        }
        let narrow = "1h=400d".parse::<Retention>().unwrap_err();
        assert!(narrow.contains("none fewer than the one before"), "{narrow}");
    }

    fn at(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_second()
    }

    #[track_caller]
    fn check(zone: &str, width: Width, time: &str, expected: &str) {
        let found = Calendar::parse(zone).unwrap().floor(width, at(time));
        assert_eq!(found, at(expected), "{}", Timestamp::from_second(found).unwrap());
    }

    #[test]
    fn points_begin_by_the_clock_of_the_zone() {
        let time = "2026-11-25T22:47:48Z";
        check("UTC", Width::Minute, time, "2026-11-25T22:47:00Z");
        check("Asia/Kolkata", Width::FiveMinutes, time, "2026-11-25T22:45:00Z");
        check("UTC", Width::Hour, time, "2026-11-25T22:00:00Z");
        check("Asia/Kolkata", Width::Hour, time, "2026-11-25T22:30:00Z");
        check("UTC", Width::Day, time, "2026-11-25T00:00:00Z");
        check("Europe/Berlin", Width::Day, time, "2026-11-24T23:00:00Z");
        check("+08:00", Width::Day, time, "2026-11-25T16:00:00Z");
        check("-03:30", Width::Day, time, "2026-11-25T03:30:00Z");
        check("UTC", Width::Week, time, "2026-11-23T00:00:00Z");
        check("+08:00", Width::Week, "2026-11-29T16:00:00Z", "2026-11-29T16:00:00Z");
        // The day of a clock change has 25 hours.
        check("Europe/Berlin", Width::Day, "2026-10-25T22:59:59Z", "2026-10-24T22:00:00Z");
        check("Europe/Berlin", Width::Day, "2026-10-25T23:00:00Z", "2026-10-25T23:00:00Z");
    }

    #[test]
    fn other_zones_are_refused() {
        for wrong in ["", "Europe/Brelin", "+25:00", "+8:00", "+é", "08:00"] {
            let error = Calendar::parse(wrong).unwrap_err();
            assert!(error.starts_with("unknown timezone"), "{error}");
        }
    }

    #[test]
    fn each_width_has_its_time() {
        let calendar = Calendar::parse("Europe/Berlin").unwrap();
        let now = at("2026-11-25T10:00:00Z");
        let retention = Retention::default();
        retention.check().unwrap();
        for (time, width) in [
            ("2026-11-24T23:00:00Z", Width::Minute),
            ("2026-11-24T22:59:59Z", Width::FiveMinutes),
            ("2026-11-23T23:00:00Z", Width::FiveMinutes),
            ("2026-11-23T22:59:59Z", Width::Hour),
            ("2026-10-25T23:00:00Z", Width::Hour),
            ("2026-10-25T22:59:59Z", Width::Day),
            ("2025-11-23T23:00:00Z", Width::Day),
            ("2025-11-23T22:59:59Z", Width::Week),
            ("1970-01-01T00:00:00Z", Width::Week),
        ] {
            assert_eq!(retention.width_at(&calendar, at(time), now), width, "{time}");
        }
        let none = Retention { minutes: 0, ..retention };
        assert!(none.check().is_err());
        let falling = Retention { hours: 1, ..retention };
        assert!(falling.check().unwrap_err().contains("[1, 2, 1, 366, 3660]"));
    }

    proptest! {
        #[test]
        fn floors_are_stable_and_near(
            time in -4_000_000_000_i64..8_000_000_000,
            zone in prop::sample::select(vec!["UTC", "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe", "-11:15"]),
        ) {
            let calendar = Calendar::parse(zone).unwrap();
            for width in Width::ALL {
                let start = calendar.floor(width, time);
                prop_assert!(start <= time && time - start < width.seconds() + 7_200);
                prop_assert_eq!(calendar.floor(width, start), start, "{:?} {}", width, zone);
            }
        }
    }
}
