//! Numbers and units as proto-JSON has them: a number also as a text or with an exponent, as long as it is
//! whole and in range; a unit by name or by number.

use serde::de::{self, Deserialize, Deserializer, Unexpected, Visitor};
use std::fmt;
use std::marker::PhantomData;
use tidegate_wire::rls::RateLimitUnit;

/// A whole number of `T`, which is `u32` or `u64`.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Unsigned<T>(pub(super) T);

impl<'de, T: TryFrom<u64> + MostOf> Deserialize<'de> for Unsigned<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Digits(PhantomData))
    }
}

/// The largest value of a type, for those who explain.
pub(super) trait MostOf {
    const MOST: u64;
}

impl MostOf for u32 {
    const MOST: u64 = u32::MAX as u64;
}

impl MostOf for u64 {
    const MOST: u64 = u64::MAX;
}

struct Digits<T>(PhantomData<T>);

impl<T: TryFrom<u64> + MostOf> Visitor<'_> for Digits<T> {
    type Value = Unsigned<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a number from 0 to {}", T::MOST)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
        fitting(number).ok_or_else(|| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Self::Value, E> {
        let wrong = || E::invalid_value(Unexpected::Float(number), &self);
        whole(number).and_then(fitting).ok_or_else(wrong)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        // The grammar is that of a number outside of a text: no plus sign, no spaces, no zeros in front.
        let is_bare = text.trim() == text;
        let number = serde_json::from_str::<serde_json::Number>(text).ok().filter(|_| is_bare);
        let number = number.and_then(|number| number.as_u64().or_else(|| whole(number.as_f64()?)));
        number.and_then(fitting).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

/// A number that says that it is whole.
fn whole(number: f64) -> Option<u64> {
    // 2^64 is the first that does not fit.
    let fits = number.fract() == 0.0 && (0.0..18_446_744_073_709_551_616.0).contains(&number);
    fits.then_some(number as u64)
}

fn fitting<T: TryFrom<u64>>(number: u64) -> Option<Unsigned<T>> {
    T::try_from(number).map(Unsigned).ok()
}

/// A unit; the numbers of overrides and of answers are the same.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Unit(pub(super) i32);

/// The names of units, by number.
pub(super) const UNITS: [(RateLimitUnit, &str); 8] = [
    (RateLimitUnit::Unknown, "UNKNOWN"),
    (RateLimitUnit::Second, "SECOND"),
    (RateLimitUnit::Minute, "MINUTE"),
    (RateLimitUnit::Hour, "HOUR"),
    (RateLimitUnit::Day, "DAY"),
    (RateLimitUnit::Month, "MONTH"),
    (RateLimitUnit::Year, "YEAR"),
    (RateLimitUnit::Week, "WEEK"),
];

impl<'de> Deserialize<'de> for Unit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UnitWords)
    }
}

struct UnitWords;

impl Visitor<'_> for UnitWords {
    type Value = Unit;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a unit by name, such as MINUTE, or by number")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Unit, E> {
        let wrong = || E::invalid_value(Unexpected::Unsigned(number), &self);
        i32::try_from(number).map(Unit).map_err(|_| wrong())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Unit, E> {
        let wrong = || E::invalid_value(Unexpected::Signed(number), &self);
        i32::try_from(number).map(Unit).map_err(|_| wrong())
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Unit, E> {
        let unit = UNITS.iter().find(|(_, known)| *known == name);
        unit.map(|(unit, _)| Unit((*unit).into()))
            .ok_or_else(|| E::invalid_value(Unexpected::Str(name), &self))
    }
}
