//! The hits of one descriptor, and its name in one piece of memory.

use tidegate_authority::{Fate, Met, Outcome};
use tidegate_core::Entry;

/// What became of hits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hits {
    pub allowed: u64,
    pub denied: u64,
    /// Denied by another limit of the request.
    pub elsewhere: u64,
    /// Of all these, those that the filter decided.
    pub in_envoy: u64,
}

/// What is known of the last of the hits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Last {
    /// When it was decided; see [`now_ms`](crate::now_ms).
    pub at_ms: u64,
    /// When hits fit again, as of the last denial.
    pub retry_at_ms: Option<u64>,
    /// The hits left under the tightest limit, and the capacity of that.
    pub left: Option<(u64, u32)>,
}

/// The hits of a descriptor since the last sum of it.
#[derive(Debug, Clone)]
pub struct Sum<'a> {
    pub domain: &'a str,
    pub entries: Pairs<'a>,
    pub met: Met<'a>,
    pub hits: Hits,
    pub last: Last,
    /// Sums of one number never come from two threads at once.
    pub stripe: usize,
    /// Whether somebody asked, and so no request waits.
    pub is_asked: bool,
}

/// Keys and values of a descriptor.
#[derive(Debug, Clone)]
pub struct Pairs<'a>(Source<'a>);

#[derive(Debug, Clone)]
enum Source<'a> {
    Entries(std::slice::Iter<'a, Entry>),
    /// Parts after each other, each with its length before it.
    Parts(&'a [u8]),
}

impl Hits {
    #[must_use]
    pub fn all(self) -> u64 {
        self.allowed.saturating_add(self.denied).saturating_add(self.elsewhere)
    }

    pub(crate) fn of(fate: Fate, hits: u64) -> Hits {
        match fate {
            Fate::Allowed | Fate::Shadowed => Hits { allowed: hits, ..Hits::default() },
            Fate::Denied => Hits { denied: hits, ..Hits::default() },
            Fate::DeniedElsewhere => Hits { elsewhere: hits, ..Hits::default() },
        }
    }

    pub(crate) fn add(&mut self, other: Hits) {
        self.allowed = self.allowed.saturating_add(other.allowed);
        self.denied = self.denied.saturating_add(other.denied);
        self.elsewhere = self.elsewhere.saturating_add(other.elsewhere);
        self.in_envoy = self.in_envoy.saturating_add(other.in_envoy);
    }
}

impl Last {
    #[must_use]
    pub fn of(outcome: &Outcome<'_>, at_ms: u64) -> Last {
        let mut last = Last { at_ms, ..Last::default() };
        for limit in outcome.limits() {
            if let Some(retry) = limit.retry_after {
                let at = at_ms.saturating_add(retry.as_nanos().div_ceil(1_000_000));
                last.retry_at_ms = last.retry_at_ms.max(Some(at));
            }
            if let Some(remaining) = limit.remaining {
                let left = (remaining, limit.capacity);
                if last.left.is_none_or(|tightest| is_tighter(left, tightest)) {
                    last.left = Some(left);
                }
            }
        }
        last
    }
}

/// Whether less of its capacity is left than of another one.
fn is_tighter((a, of_a): (u64, u32), (b, of_b): (u64, u32)) -> bool {
    u128::from(a) * u128::from(of_b.max(1)) < u128::from(b) * u128::from(of_a.max(1))
}

impl<'a> Pairs<'a> {
    #[must_use]
    pub fn of(entries: &'a [Entry]) -> Pairs<'a> {
        Pairs(Source::Entries(entries.iter()))
    }

    /// Of the rest of a [`Name`], after its domain.
    fn of_parts(parts: &'a [u8]) -> Pairs<'a> {
        Pairs(Source::Parts(parts))
    }
}

impl<'a> Iterator for Pairs<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Source::Entries(entries) => entries.next().map(|entry| (&*entry.key, &*entry.value)),
            Source::Parts(parts) => Some((take_part(parts)?, take_part(parts)?)),
        }
    }
}

/// The domain and the entries of a descriptor, one after the other, each with its length before it. So two descriptors
/// differ in their names if they differ.
#[derive(Debug)]
pub(crate) struct Name {
    bytes: [u8; NAME_BYTES_MAX],
    end: usize,
}

/// Of a name in a table. Longer ones are rare.
pub(crate) const NAME_BYTES_MAX: usize = 512;
type Length = u16;

impl Name {
    pub(crate) const fn new() -> Name {
        Name { bytes: [0; NAME_BYTES_MAX], end: 0 }
    }

    /// None if it is too long. `met` is what the descriptor met, which a name has at its beginning.
    pub(crate) fn set(&mut self, met: u64, domain: &str, entries: &[Entry]) -> Option<&[u8]> {
        self.end = 0;
        self.push(&met.to_le_bytes())?;
        self.part(domain)?;
        for entry in entries {
            self.part(&entry.key)?;
            self.part(&entry.value)?;
        }
        self.bytes.get(..self.end)
    }

    /// What was set last, if it was not too long.
    pub(crate) fn written(&self) -> &[u8] {
        self.bytes.get(..self.end).unwrap_or_default()
    }

    /// The domain and the entries of a name.
    pub(crate) fn read(name: &[u8]) -> (&str, Pairs<'_>) {
        let mut parts = name.get(size_of::<u64>()..).unwrap_or_default();
        let domain = take_part(&mut parts).unwrap_or_default();
        (domain, Pairs::of_parts(parts))
    }

    #[inline]
    fn part(&mut self, part: &str) -> Option<()> {
        self.push(&Length::try_from(part.len()).ok()?.to_le_bytes())?;
        self.push(part.as_bytes())
    }

    #[inline]
    fn push(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.end + bytes.len();
        self.bytes.get_mut(self.end..end)?.copy_from_slice(bytes);
        self.end = end;
        Some(())
    }
}

fn take_part<'a>(parts: &mut &'a [u8]) -> Option<&'a str> {
    let (length, rest) = parts.split_first_chunk()?;
    let (part, rest) = rest.split_at_checked(usize::from(Length::from_le_bytes(*length)))?;
    *parts = rest;
    std::str::from_utf8(part).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_name_is_read_as_it_was_written_or_is_too_long(
            met in any::<u64>(),
            domain in ".{0,20}",
            pairs in prop::collection::vec((".{0,40}", ".{0,40}"), 0..12),
        ) {
            let entries: Vec<Entry> =
                pairs.iter().map(|(key, value)| Entry::new(key, value)).collect();
            let length = 8 + 2 + domain.len() + pairs.iter().map(|(k, v)| 4 + k.len() + v.len()).sum::<usize>();
            let mut name = Name::new();
            match name.set(met, &domain, &entries) {
                None => prop_assert!(length > NAME_BYTES_MAX),
                Some(name) => {
                    prop_assert_eq!(name.len(), length);
                    let (read, found) = Name::read(name);
                    prop_assert_eq!(read, &domain);
                    let found: Vec<_> = found.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
                    prop_assert_eq!(found, pairs);
                }
            }
        }
    }

    #[test]
    fn a_part_longer_than_a_length_is_too_long() {
        let long = "x".repeat(70_000);
        assert!(Name::new().set(0, &long, &[]).is_none());
        assert!(Name::new().set(0, "d", &[Entry::new("k", long)]).is_none());
    }

    #[test]
    fn the_limit_with_the_least_part_left_is_the_tightest() {
        assert!(is_tighter((5, 100), (1, 10)) && !is_tighter((1, 10), (5, 100)));
        assert!(!is_tighter((1, 10), (10, 100)), "as much");
        assert!(is_tighter((0, 0), (1, u32::MAX)));
    }
}
