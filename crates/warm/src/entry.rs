//! The value of a counter. Pure.
//!
//! | bytes | meaning |
//! | --- | --- |
//! | 4 | `expires_at`, the highest byte first |
//! | varint | `expires_at`, less `moved_at`; zigzag, as it can be negative |
//! | … | the words of the state, two at a time: a byte with their lengths, the first one in its lower half, and their bytes without leading zeros, the lowest first |
//!
//! Zero words at the end are left out. Varints are LEB128. `remove.lua` reads the first two.
//!
//! Bytes that are no such value are refused as a whole. A guess could open a limit.

use smallvec::SmallVec;
use tidegate_cold::Row;
use tidegate_store::Hashed;

/// More than the widest state needs: 33 words of 8 bytes, 17 of lengths, and 9 of times.
pub(crate) const VALUE_BYTES_MAX: usize = 384;
/// An even number, as words come in pairs.
const WORDS_MAX: usize = VALUE_BYTES_MAX / 8;

/// The value of a row; none if it is longer than one may be.
pub(crate) fn encode(row: &Row) -> Option<Vec<u8>> {
    let mut value = row.expires_at.to_be_bytes().to_vec();
    let left = i64::from(row.expires_at) - i64::from(row.moved_at);
    push_varint(&mut value, (left << 1 ^ left >> 63).cast_unsigned());
    let words = row.state.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
    for pair in row.state.get(..words).unwrap_or_default().chunks(2) {
        value.push(pair.iter().rev().fold(0, |lengths, word| lengths << 4 | length(*word)));
        for word in pair {
            let bytes = word.to_le_bytes();
            value.extend_from_slice(bytes.get(..usize::from(length(*word))).unwrap_or_default());
        }
    }
    (value.len() <= VALUE_BYTES_MAX && words <= WORDS_MAX).then_some(value)
}

/// The row of a key; none if these are not the bytes of a value.
pub(crate) fn decode(key: Hashed, value: &[u8]) -> Option<Row> {
    let (expires_at, mut rest) = value.split_first_chunk::<4>()?;
    let expires_at = u32::from_be_bytes(*expires_at);
    let zigzag = take_varint(&mut rest)?;
    let left = (zigzag >> 1).cast_signed() ^ -((zigzag & 1).cast_signed());
    let moved_at = u32::try_from(i64::from(expires_at).checked_sub(left)?).ok()?;
    let mut state = SmallVec::new();
    while let Some((lengths, words)) = rest.split_first() {
        rest = words;
        for length in [lengths & 15, lengths >> 4] {
            let (bytes, words) = rest.split_at_checked(usize::from(length))?;
            if length > 8 || state.len() >= WORDS_MAX {
                return None;
            }
            rest = words;
            state.push(bytes.iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte)));
        }
    }
    let words = state.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
    state.truncate(words);
    Some(Row { key, state, expires_at, moved_at })
}

/// The bytes of a word without the leading ones that are zero: at most 8.
fn length(word: u64) -> u8 {
    (8 - word.leading_zeros() / 8) as u8
}

fn push_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// A number of at most 35 bits.
fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in [0, 7, 14, 21, 28] {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_value_leads_back_to_its_row(
            hash: u128,
            mut state in proptest::collection::vec(any::<u64>().prop_flat_map(|word| (0..=64_u32)
                .prop_map(move |shift| word.checked_shr(shift).unwrap_or(0))), 0..=33),
            expires_at: u32,
            moved_at: u32,
        ) {
            let words = state.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
            state.truncate(words);
            let (key, state) = (Hashed::wide(hash), state.into());
            let row = Row { key, state, expires_at, moved_at };
            let value = encode(&row).unwrap();
            prop_assert!(value.len() <= 9 + 17 + 264);
            prop_assert_eq!(decode(row.key, &value), Some(row));
        }

        #[test]
        fn any_bytes_are_a_value_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let row = decode(Hashed::narrow(1), &bytes);
            prop_assert!(row.is_none_or(|row| row.state.len() <= WORDS_MAX));
        }
    }

    #[test]
    fn small_counts_take_few_bytes() {
        let row = |state: &[u64]| {
            let (state, moved_at) = (state.into(), 1_795_600_800);
            let key = Hashed::narrow(1);
            Row { key, state, expires_at: moved_at + 86_400, moved_at }
        };
        assert_eq!(encode(&row(&[7])).unwrap().len(), 4 + 3 + 2);
        assert_eq!(encode(&row(&[7, 0, 0, 0])).unwrap().len(), 4 + 3 + 2);
        assert_eq!(encode(&row(&[u64::MAX; 4])).unwrap().len(), 4 + 3 + 2 + 32);
        assert_eq!(encode(&row(&[1; WORDS_MAX + 1])), None);
    }
}
