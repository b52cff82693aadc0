//! Statistics: what is counted of the descriptors of a domain, and by which of their values.
//!
//! Knows which descriptors count and with which values. Counts nothing.

use std::sync::Arc;

/// All statistics of a service. Each request is looked at by all of its domain.
pub const STATISTICS_MAX: usize = 64;
/// Keys of `by`. A series is named by a value of each.
pub const STATISTIC_KEYS_MAX: usize = 4;
/// A statistic's name is a part of URLs.
pub(crate) const STATISTIC_NAME_BYTES_MAX: usize = 63;

/// A statistic of a limits file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statistic {
    /// Unique among all files: `[a-z0-9-]`, 63 bytes at most.
    pub name: String,
    pub domain: Arc<str>,
    /// The keys whose values name a series; one to four, all different.
    pub by: Vec<String>,
    /// The key whose different values are counted; none of `by`.
    pub distinct: Option<String>,
}

impl Statistic {
    /// Whether a name is one of a statistic.
    #[must_use]
    pub fn is_name(name: &str) -> bool {
        (1..=STATISTIC_NAME_BYTES_MAX).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    }

    /// The values of `by` in a descriptor, and that of `distinct`, if it has all these keys. Of a key that is there
    /// twice the first value counts.
    #[must_use]
    pub fn values<'e>(
        &self,
        entries: &(impl Iterator<Item = (&'e str, &'e str)> + Clone),
    ) -> Option<(Vec<&'e str>, Option<&'e str>)> {
        let value =
            |key: &String| entries.clone().find(|(is, _)| is == key).map(|(_, value)| value);
        let distinct = match &self.distinct {
            Some(key) => Some(value(key)?),
            None => None,
        };
        Some((self.by.iter().map(value).collect::<Option<_>>()?, distinct))
    }
}
