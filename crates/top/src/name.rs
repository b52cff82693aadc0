//! The name of a descriptor, in bounded memory: its domain, and its entries.
//!
//! One text and the ends of its parts, so that a name that takes the place of another needs no new memory. Long parts
//! are cut and end with `…`; a name that lacks anything says so.

use tidegate_recent::Pairs;

/// Of a domain, a key or a value.
const PART_BYTES_MAX: usize = 128;
/// Of all parts.
const TEXT_BYTES_MAX: usize = 512;
/// A descriptor of more entries is cut.
const ENTRIES_MAX: usize = 16;
/// What stands for the rest of a part.
const MARK: char = '…';

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Name {
    text: String,
    /// Of the domain, then of the key and the value of each entry.
    ends: Vec<u16>,
    is_cut: bool,
}

impl Name {
    /// The most that a name takes: both allocations may have twice what is in them.
    #[cfg(test)]
    pub(crate) const BYTES_MAX: usize = 2 * (TEXT_BYTES_MAX + 2 * (1 + 2 * ENTRIES_MAX));

    pub(crate) fn set(&mut self, domain: &str, mut entries: Pairs<'_>) {
        self.text.clear();
        self.ends.clear();
        self.is_cut = false;
        self.push(domain);
        for (key, value) in entries.by_ref().take(ENTRIES_MAX) {
            self.push(key);
            self.push(value);
        }
        self.is_cut |= entries.next().is_some();
    }

    fn push(&mut self, part: &str) {
        let room = PART_BYTES_MAX.min(TEXT_BYTES_MAX - self.text.len());
        if part.len() <= room {
            self.text.push_str(part);
        } else {
            self.is_cut = true;
            if let Some(room) = room.checked_sub(MARK.len_utf8()) {
                self.text.push_str(&part[..part.floor_char_boundary(room)]);
                self.text.push(MARK);
            }
        }
        // At most 512.
        self.ends.push(self.text.len() as u16);
    }

    /// Bytes of memory beside the struct.
    pub(crate) fn bytes(&self) -> usize {
        self.text.capacity() + 2 * self.ends.capacity()
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut
    }

    pub(crate) fn domain(&self) -> &str {
        self.parts().next().unwrap_or("")
    }

    /// Keys and values.
    pub(crate) fn entries(&self) -> Vec<(String, String)> {
        let mut parts = self.parts().skip(1);
        let mut entries = Vec::new();
        while let (Some(key), Some(value)) = (parts.next(), parts.next()) {
            entries.push((key.to_owned(), value.to_owned()));
        }
        entries
    }

    fn parts(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let range = |(start, end): (u16, &u16)| usize::from(start)..usize::from(*end);
        starts.zip(&self.ends).map(move |part| self.text.get(range(part)).unwrap_or(""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidegate_core::Entry;

    fn named(domain: &str, entries: &[Entry]) -> Name {
        let mut name = Name::default();
        name.set(domain, Pairs::of(entries));
        name
    }

    #[test]
    fn a_name_has_all_parts() {
        let entries = [Entry::new("app", "web"), Entry::new("user", "")];
        let mut name = named("shop", &entries);
        let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        assert_eq!((name.domain(), name.is_cut()), ("shop", false));
        assert_eq!(name.entries(), pairs(&[("app", "web"), ("user", "")]));
        name.set("other", Pairs::of(&[]));
        assert_eq!((name.domain(), name.entries()), ("other", Vec::new()));
    }

    #[test]
    fn a_long_part_is_cut_with_a_mark_and_between_characters() {
        let name = named("shop", &[Entry::new("k", "é".repeat(5_000)), Entry::new("z", "1")]);
        let [(_, cut), (key, value)] = &name.entries()[..] else { panic!("{name:?}") };
        assert_eq!(*cut, format!("{}…", "é".repeat(62)));
        assert_eq!((key.as_str(), value.as_str(), name.is_cut()), ("z", "1", true));
        assert!(!named("shop", &[Entry::new("k", "v".repeat(128))]).is_cut());
    }

    proptest! {
        #[test]
        fn a_name_is_bounded_whatever_its_parts(
            domain in ".{0,300}",
            pairs in prop::collection::vec((".{0,300}", ".{0,300}"), 0..40),
            before in prop::collection::vec((".{0,300}", ".{0,300}"), 0..40),
        ) {
            let entries = |pairs: Vec<(String, String)>| -> Vec<Entry> {
                pairs.into_iter().map(|(key, value)| Entry::new(key, value)).collect()
            };
            let mut name = named("", &entries(before));
            let entries = entries(pairs);
            name.set(&domain, Pairs::of(&entries));
            prop_assert!(name.bytes() <= Name::BYTES_MAX, "{}", name.bytes());
            prop_assert_eq!(name.entries().len(), entries.len().min(ENTRIES_MAX));
            if !name.is_cut() {
                let shown: Vec<Entry> =
                    name.entries().into_iter().map(|(key, value)| Entry::new(key, value)).collect();
                prop_assert_eq!((name.domain(), shown), (domain.as_str(), entries));
            }
        }
    }
}
