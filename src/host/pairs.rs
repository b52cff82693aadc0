//! Names and values in the ABI's form: their number, all sizes, then each string with a NUL after it.
//! Numbers have four bytes, the lowest first.
//!
//! Refuses to change or check a name or a value, and to read beyond the bytes that it gets.

use super::Header;

/// These pairs, `own` first.
pub(crate) fn encoded(own: &[Header], added: &[(String, String)]) -> Vec<u8> {
    let size = |part: usize| u32::try_from(part).unwrap_or(u32::MAX).to_le_bytes();
    // The count, then per pair two sizes and two NULs.
    let mut room: usize = 4;
    for_each(own, added, |name, value| {
        let pair = name.len().saturating_add(value.len()).saturating_add(10);
        room = room.saturating_add(pair);
    });
    let mut bytes = Vec::with_capacity(room);
    bytes.extend(size(own.len().saturating_add(added.len())));
    for_each(own, added, |name, value| {
        bytes.extend(size(name.len()));
        bytes.extend(size(value.len()));
    });
    for_each(own, added, |name, value| {
        for part in [name, value] {
            bytes.extend(part.as_bytes());
            bytes.push(0);
        }
    });
    bytes
}

/// Two loops take fewer instructions than one over both lists.
fn for_each(own: &[Header], added: &[(String, String)], mut act: impl FnMut(&str, &str)) {
    for (name, value) in own {
        act(name, value);
    }
    for (name, value) in added {
        act(name, value);
    }
}

/// The values with this name, in order. Pairs after a malformed one are left out.
pub(crate) fn values_of<'a>(pairs: &'a [u8], name: &str) -> impl Iterator<Item = &'a [u8]> {
    let (sizes, mut strings) = parts(pairs).unwrap_or_default();
    let pairs = sizes.iter().map_while(move |[a, b, c, d, e, f, g, h]| {
        let name = take(&mut strings, [*a, *b, *c, *d])?;
        Some((name, take(&mut strings, [*e, *f, *g, *h])?))
    });
    pairs.filter_map(move |(known, value)| (known == name.as_bytes()).then_some(value))
}

/// The sizes of each pair, and the strings.
fn parts(pairs: &[u8]) -> Option<(&[[u8; 8]], &[u8])> {
    let (count, rest) = pairs.split_first_chunk()?;
    let sizes = usize::try_from(u32::from_le_bytes(*count)).ok()?.checked_mul(8)?;
    let (sizes, strings) = rest.split_at_checked(sizes)?;
    Some((sizes.as_chunks().0, strings))
}

/// Takes a string and the NUL after it.
fn take<'a>(strings: &mut &'a [u8], size: [u8; 4]) -> Option<&'a [u8]> {
    let size = usize::try_from(u32::from_le_bytes(size)).ok()?;
    let (string, rest) = strings.split_at_checked(size)?;
    (_, *strings) = rest.split_first()?;
    Some(string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values(pairs: &[u8], name: &str) -> Vec<Vec<u8>> {
        values_of(pairs, name).map(<[u8]>::to_vec).collect()
    }

    #[test]
    fn every_value_of_a_name_is_read_in_order() {
        let own = [("a", "1".to_owned()), ("b", String::new()), ("a", String::new())];
        let added = [("ab".to_owned(), "2".to_owned()), ("a".to_owned(), "3\u{e9}".to_owned())];
        let pairs = encoded(&own, &added);
        assert_eq!(values(&pairs, "a"), ["1".as_bytes(), b"", "3\u{e9}".as_bytes()]);
        assert_eq!(values(&pairs, "b"), [b""]);
        assert_eq!(values(&pairs, "A"), [b""; 0]);
        assert_eq!(values(&encoded(&[], &[]), "a"), [b""; 0]);
        assert_eq!(values(b"", "a"), [b""; 0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// A text that is cut or changed has the values before the change, and does no harm.
        #[test]
        fn malformed_pairs_are_left_out(
            end in 0_usize..64, at in 0_usize..64, byte: u8, bytes: Vec<u8>,
        ) {
            let own = [("a", "1".to_owned()), ("a", "22".to_owned()), ("a", "333".to_owned())];
            let pairs = encoded(&own, &[]);
            let cut = pairs.get(..end).unwrap_or(&pairs);
            let whole = [&b"1"[..], b"22", b"333"];
            prop_assert!(values(cut, "a").iter().zip(whole).all(|(value, known)| value == known));
            let mut changed = pairs.clone();
            if let Some(place) = changed.get_mut(at) {
                *place = byte;
            }
            prop_assert!(values(&changed, "a").len() <= 3);
            prop_assert!(values(&bytes, "a").len() <= bytes.len() / 8);
        }
    }
}
