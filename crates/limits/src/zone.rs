//! `timezone`: a fixed offset such as `+08:00`, `UTC`, or a name of the IANA time zone database.
//!
//! The database is bundled with the `jiff` crate, so it is the same on every machine, with or without
//! system files. Each name is looked up once per load, and all rules share its zone.

use crate::text::{WORD_BYTES_MAX, quoted};
use crate::time_of_day;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use tidegate_core::{Alignment, DailyReset, Nanos, Period, Zone};

/// The end of known changes: 40 years after the release of the bundled data (2026), the end of 2066. By
/// then every government has changed its rules, and no build of today still runs. Two changes a year since
/// 1970 are at most about 200 pairs, some 3 KB a zone.
const CHANGES_UNTIL: i64 = 3_061_065_600;

/// The valid forms, for messages about unknown zones.
const EXPECTED: &str = "expected UTC, an offset such as +08:00, or a name such as Europe/Berlin";

/// The zones of one load, by the text in the files.
pub(super) struct Zones {
    database: TimeZoneDatabase,
    read: HashMap<String, Result<Zone, String>>,
    /// The windows by the clock of a zone, shared by all rules of a zone and period.
    alignments: HashMap<(String, Period), Alignment>,
    /// The daily resets, shared by all rules of a zone and time of day.
    resets: HashMap<(String, Nanos), DailyReset>,
}

impl Default for Zones {
    fn default() -> Self {
        Zones {
            database: TimeZoneDatabase::bundled(),
            read: HashMap::new(),
            alignments: HashMap::new(),
            resets: HashMap::new(),
        }
    }
}

impl Zones {
    /// The zone that `text` names, or an error message.
    pub(super) fn zone(&mut self, text: &str) -> Result<Zone, String> {
        let Zones { database, read, .. } = self;
        read.entry(text.to_owned()).or_insert_with(|| look_up(database, text)).clone()
    }

    /// The windows of `period` by the clock of `zone`, which is called `text` in the files.
    pub(super) fn alignment(
        &mut self,
        text: &str,
        zone: &Zone,
        period: Period,
    ) -> Option<Alignment> {
        match self.alignments.entry((text.to_owned(), period)) {
            Entry::Occupied(made) => Some(made.get().clone()),
            // The limit itself reports a period that is out of range.
            Entry::Vacant(vacant) => {
                Some(vacant.insert(Alignment::new(period, zone).ok()?).clone())
            }
        }
    }

    /// The daily reset at `time` by the clock of the zone that `text` names, or an error message.
    pub(super) fn daily(&mut self, text: &str, time: Nanos) -> Result<DailyReset, String> {
        let key = (text.to_owned(), time);
        if let Some(made) = self.resets.get(&key) {
            return Ok(made.clone());
        }
        let zone = self.zone(text)?;
        let made = DailyReset::new(time, &zone).map_err(|error| error.to_string())?;
        self.resets.insert(key, made.clone());
        Ok(made)
    }
}

fn look_up(database: &TimeZoneDatabase, text: &str) -> Result<Zone, String> {
    if text.starts_with(['+', '-']) {
        return offset(text).map(Zone::fixed).ok_or_else(|| {
            let text = quoted(text);
            format!(
                "{text} is not an offset; expected hours and minutes such as +08:00, up to \
                 18:00 either way"
            )
        });
    }
    match database.get(text) {
        Ok(zone) => {
            let (first, changes) = changes(&zone);
            Ok(Zone::changing(first, changes))
        }
        Err(_) => {
            let (name, meant) = (quoted(text), nearest(database, text));
            Err(format!("unknown timezone {name}{meant}; {EXPECTED}"))
        }
    }
}

/// The nearest known name, by edit distance to the name or to its city alone.
fn nearest(database: &TimeZoneDatabase, text: &str) -> String {
    if text.len() > WORD_BYTES_MAX {
        return String::new();
    }
    let names: Vec<String> = database.available().map(|name| name.to_string()).collect();
    let word = text.to_lowercase();
    let slips = |name: &str| {
        let name = name.to_lowercase();
        let city = name.rsplit('/').next().unwrap_or_default();
        let whole = strsim::damerau_levenshtein(&word, &name);
        whole.min(strsim::damerau_levenshtein(&word, city))
    };
    // Of equally near names the shortest: `UTC`, not `Etc/UTC`.
    match names.iter().min_by_key(|name| (slips(name), name.len())) {
        Some(name) if slips(name) * 2 < text.chars().count() => {
            format!(" (did you mean `{name}`?)")
        }
        _ => String::new(),
    }
}

/// The seconds east of UTC of an offset such as `+08:00`.
fn offset(text: &str) -> Option<i32> {
    let (sign, clock) = match text.split_at_checked(1)? {
        ("+", clock) => (1, clock),
        ("-", clock) => (-1, clock),
        _ => return None,
    };
    let (hours, minutes) = time_of_day::hours_and_minutes(clock)?;
    let seconds = i32::try_from(hours * 3_600 + minutes * 60).ok()?;
    (minutes < 60 && seconds <= 18 * 3_600).then_some(sign * seconds)
}

/// The offset of the zone at the beginning of 1970, and all later changes.
fn changes(zone: &TimeZone) -> (i32, Vec<(i64, i32)>) {
    let first = zone.to_offset(jiff::Timestamp::UNIX_EPOCH).seconds();
    let changes = zone.following(jiff::Timestamp::UNIX_EPOCH);
    let changes = changes.map(|change| (change.timestamp().as_second(), change.offset().seconds()));
    (first, changes.take_while(|(at, _)| *at < CHANGES_UNTIL).collect())
}

/// The daily reset at a time such as `03:00`, by the clock of a zone such as `+08:00`, or an error message.
pub fn daily_reset(time: &str, zone: &str) -> Result<DailyReset, String> {
    let time = time_of_day::parse(time)
        .ok_or_else(|| format!("{} is not a time of day such as 03:00", quoted(time)))?;
    Zones::default().daily(zone, time)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with published dates: German summer time since 1980, and since 1996 by directives of the
    /// European Union.
    #[test]
    fn zones_change_when_governments_say_so() {
        let zone = TimeZoneDatabase::bundled().get("Europe/Berlin").unwrap();
        let (first, changes) = changes(&zone);
        assert_eq!(first, 3_600);
        assert_eq!(changes[0], (323_830_800, 7_200), "6 April 1980, 01:00 UTC");
        assert_eq!(changes[1], (338_950_800, 3_600), "28 September 1980, 01:00 UTC");
        assert!(changes.contains(&(1_774_746_000, 7_200)), "29 March 2026, 01:00 UTC");
        assert!(changes.contains(&(1_792_890_000, 3_600)), "25 October 2026, 01:00 UTC");
        // 87 years; the last is 2066.
        assert_eq!(changes.len(), 87 * 2);
        assert!(changes.is_sorted());
    }

    #[test]
    fn every_known_zone_has_a_bounded_number_of_changes() {
        let database = TimeZoneDatabase::bundled();
        let names: Vec<String> = database.available().map(|name| name.to_string()).collect();
        assert!(names.len() > 400, "{}", names.len());
        for name in names {
            let count = changes(&database.get(&name).unwrap()).1.len();
            assert!(count <= 250, "{name} has {count}");
        }
    }

    #[test]
    fn a_zone_is_looked_up_once() {
        let mut zones = Zones::default();
        let one = zones.zone("Europe/Berlin").unwrap();
        assert_eq!(zones.zone("Europe/Berlin").unwrap(), one);
        let wrong = zones.zone("Europe/Brelin").unwrap_err();
        assert_eq!(zones.zone("Europe/Brelin").unwrap_err(), wrong);
        assert_eq!(zones.read.len(), 2);
    }

    #[track_caller]
    fn check(text: &str, expected: Option<i32>) {
        assert_eq!(offset(text), expected, "for {text:?}");
    }

    #[test]
    fn offsets_are_hours_and_minutes() {
        check("+08:00", Some(28_800));
        check("-03:30", Some(-12_600));
        check("+00:00", Some(0));
        check("+18:00", Some(64_800));
        for wrong in
            ["+18:01", "+19:00", "+8:00", "+08:60", "+0800", "+08", "+08:+1", "08:00", "+", ""]
        {
            check(wrong, None);
        }
    }
}
