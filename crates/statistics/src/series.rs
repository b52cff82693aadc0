//! A series of a statistic: its values, and what is counted of it.

use crate::sketch::Sketch;
use std::borrow::Cow;

/// Longer values are cut, and end with [`CUT`].
pub(crate) const VALUE_BYTES_MAX: usize = 256;
const CUT: &str = "…";
/// Between values. None has it: a value's own are replaced, also since PostgreSQL stores none.
const SEPARATOR: char = '\0';
const REPLACED: &str = "␀";

/// The values that name a series, in the order of the statistic's keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Series {
    /// Values with separators between them.
    Values(Box<str>),
    /// All series for which there was no room.
    Other,
    /// The sum of all series, which the database keeps beside them.
    All,
}

/// What is counted of a series.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that were allowed.
    pub allowed: u64,
    /// Requests that were denied.
    pub denied: u64,
    /// What all of them cost.
    pub hits: u64,
}

/// Counts and distinct values of a series in a time.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Tally {
    pub(crate) counts: Counts,
    /// None if the statistic has no `distinct`, or nothing was distinct yet.
    pub(crate) sketch: Option<Sketch>,
}

impl Series {
    #[must_use]
    pub fn new(values: &[&str]) -> Series {
        let mut joined = String::new();
        join(values, &mut joined);
        Series::Values(joined.into())
    }

    /// The values; none for all the others.
    #[must_use]
    pub fn values(&self) -> Option<Vec<&str>> {
        match self {
            Series::Values(joined) => Some(joined.split(SEPARATOR).collect()),
            Series::Other | Series::All => None,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Series::Values(joined) => joined.len(),
            Series::Other | Series::All => 0,
        }
    }
}

/// Writes values as those of a series, each cut to its bound.
pub(crate) fn join(values: &[&str], joined: &mut String) {
    joined.clear();
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            joined.push(SEPARATOR);
        }
        joined.push_str(&bounded(value));
    }
}

/// A value as it is kept.
pub(crate) fn bounded(value: &str) -> Cow<'_, str> {
    let value: Cow<'_, str> = if value.contains(SEPARATOR) {
        value.replace(SEPARATOR, REPLACED).into()
    } else {
        value.into()
    };
    if value.len() <= VALUE_BYTES_MAX {
        return value;
    }
    let end = value.floor_char_boundary(VALUE_BYTES_MAX - CUT.len());
    format!("{}{CUT}", &value[..end]).into()
}

impl Counts {
    pub fn add(&mut self, other: Counts) {
        self.allowed = self.allowed.saturating_add(other.allowed);
        self.denied = self.denied.saturating_add(other.denied);
        self.hits = self.hits.saturating_add(other.hits);
    }

    /// By how much a series is used.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.allowed.saturating_add(self.denied)
    }
}

impl Tally {
    pub(crate) fn add(&mut self, other: Tally) {
        self.counts.add(other.counts);
        match (&mut self.sketch, other.sketch) {
            (Some(sketch), Some(other)) => sketch.merge(&other),
            (none, other @ Some(_)) => *none = other,
            (_, None) => {}
        }
    }

    /// The size in memory.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Tally>() + self.sketch.as_ref().map_or(0, Sketch::bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_cut_and_kept_apart() {
        let series = |values: &[&str]| Series::new(values);
        assert_eq!(series(&["web", "pay"]).values().unwrap(), ["web", "pay"]);
        assert_eq!(series(&["", ""]).values().unwrap(), ["", ""]);
        assert_ne!(series(&["a", "b\0c"]), series(&["a\0b", "c"]));
        assert_eq!(series(&["a\0b"]).values().unwrap(), ["a␀b"]);
        assert_ne!(series(&["(other)"]), Series::Other);
        let whole = "x".repeat(256);
        assert_eq!(series(&[&whole]).values().unwrap(), [&whole]);
        let cut = format!("{}…", "x".repeat(253));
        assert_eq!(series(&[&"x".repeat(257)]).values().unwrap(), [&cut]);
        // Characters stay whole.
        let cut = format!("{}…", "é".repeat(126));
        assert_eq!(series(&[&"é".repeat(200)]).values().unwrap(), [&cut]);
        let zeros = series(&[&"\0".repeat(10_000)]);
        assert!(zeros.bytes() <= VALUE_BYTES_MAX, "{}", zeros.bytes());
    }
}
