//! Numbers and units in proto-JSON: a number also as a string or with an exponent, if it is whole and in
//! range; a unit by name or by number.

use serde::de::{self, Deserialize, Deserializer, Unexpected, Visitor};
use std::fmt;
use std::marker::PhantomData;
use tidegate_wire::rls::RateLimitUnit;

/// A whole number of type `T`, `u32` or `u64`.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Unsigned<T>(pub(super) T);

impl<'de, T: TryFrom<u64>> Deserialize<'de> for Unsigned<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UnsignedVisitor(PhantomData))
    }
}

struct UnsignedVisitor<T>(PhantomData<T>);

impl<T: TryFrom<u64>> Visitor<'_> for UnsignedVisitor<T> {
    type Value = Unsigned<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a number from 0 to {}", u64::MAX >> (64 - 8 * size_of::<T>()))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
        fitting(number).ok_or_else(|| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Self::Value, E> {
        let wrong = || E::invalid_value(Unexpected::Float(number), &self);
        whole(number).and_then(fitting).ok_or_else(wrong)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        // The grammar of a JSON number applies: no plus sign, no spaces, no leading zeros.
        let is_bare = text.trim() == text;
        let number = serde_json::from_str::<serde_json::Number>(text).ok().filter(|_| is_bare);
        let number = number.and_then(|number| number.as_u64().or_else(|| whole(number.as_f64()?)));
        number.and_then(fitting).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

/// The integer of a float without a fraction.
fn whole(number: f64) -> Option<u64> {
    // 2^64 is the first value that does not fit.
    let fits = number.fract() == 0.0 && (0.0..18_446_744_073_709_551_616.0).contains(&number);
    fits.then_some(number as u64)
}

fn fitting<T: TryFrom<u64>>(number: u64) -> Option<Unsigned<T>> {
    T::try_from(number).map(Unsigned).ok()
}

/// A unit; requests and answers use the same numbers.
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
        deserializer.deserialize_any(UnitVisitor)
    }
}

struct UnitVisitor;

impl Visitor<'_> for UnitVisitor {
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
