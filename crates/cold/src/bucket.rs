//! The bytes of a bucket: all counters of an owner whose hashes begin with the same bits. Pure; knows no database.
//!
//! | bytes | meaning |
//! | --- | --- |
//! | 1 | version of this format: 1 |
//! | 4 | the low half of the XXH3 of everything behind it, seeded with the id of the row |
//! | 4 | the earliest `moved_at` of the bucket |
//! | … | counters, in ascending order of hash and class |
//!
//! Of a counter:
//!
//! | bytes | meaning |
//! | --- | --- |
//! | varint | the number of state words, times two; plus one for the class `wide` |
//! | 16 - `b` / 8 | the hash without the whole bytes that the bucket implies, the highest byte first |
//! | varint | `moved_at`, less the earliest one |
//! | varint | `expires_at`, less `moved_at`; zigzag, as it can be negative |
//! | words / 2 | the form of each word, in 4 bits, the first word in the lower ones |
//! | 0 to 8 a word | the words, the lowest byte first |
//!
//! A word of the form 0 to 8 has so many bytes; its leading zero bytes are left out. Many words are times, in nanoseconds since
//! the epoch. A word of the form 9 to 15 has 1 to 7 bytes, and is the difference, in zigzag, from the last word before it that
//! has such a form, or from `moved_at` in nanoseconds. The shorter form is used: a counter of a fixed window has 36 bytes
//! instead of 41.
//!
//! Other numbers are little-endian, and varints are LEB128. Zero words at the end of a state are left out.
//!
//! Bytes that this program did not write are refused as a whole. A guess could open a limit.

use crate::Row;
use smallvec::SmallVec;
use tidegate_store::{Class, Hashed};
use xxhash_rust::xxh3::xxh3_64_with_seed;

const VERSION: u8 = 1;
/// Version and checksum.
const HEADER_BYTES: usize = 5;
/// Forms of words above this one are differences.
const DIFFERENCE: u8 = 8;

/// What is wrong with the bytes of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Flaw {
    /// Another program wrote them.
    #[error("it has format {0}, and this program knows only format {VERSION}")]
    Version(u8),
    /// They are not those of this row.
    #[error("its checksum is wrong")]
    Checksum,
    /// They end too early.
    #[error("it ends too early")]
    Cut,
    /// A number is out of its range.
    #[error("it has a number that is out of range")]
    Range,
    /// A key does not belong there.
    #[error("it has a key of another bucket, or keys out of order")]
    Order,
}

/// Names a bucket: the bits that its hashes begin with, and the row that it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) id: i64,
    pub(crate) bucket: u32,
    /// How many bits of a hash name the bucket.
    pub(crate) bits: u8,
}

impl Place {
    fn has(self, hash: u128) -> bool {
        bucket_of(hash, self.bits) == self.bucket
    }

    fn implied_bytes(self) -> usize {
        usize::from(self.bits / 8)
    }

    /// The bytes of a hash that the bucket implies, in their place.
    fn implied(self) -> u128 {
        let bytes = u32::from(self.bits / 8);
        if bytes == 0 {
            return 0;
        }
        let bucket = u128::from(self.bucket >> (self.bits % 8));
        bucket << (128 - 8 * bytes)
    }
}

/// The highest `bits` of a hash; at most 32.
pub(crate) fn bucket_of(hash: u128, bits: u8) -> u32 {
    if bits == 0 { 0 } else { u32::try_from(hash >> (128 - u32::from(bits))).unwrap_or(u32::MAX) }
}

/// The bytes of rows, which are in ascending order of their keys, and all of this bucket.
pub(crate) fn encode(place: Place, rows: &[Row]) -> Vec<u8> {
    debug_assert!(
        rows.is_sorted_by(|a, b| a.key < b.key) && rows.iter().all(|row| place.has(row.key.hash))
    );
    // A usual narrow counter has 20 to 30 bytes.
    let mut bytes = Vec::with_capacity(HEADER_BYTES + 4 + 32 * rows.len());
    bytes.push(VERSION);
    bytes.extend_from_slice(&[0; 4]);
    let base = rows.iter().map(|row| row.moved_at).min().unwrap_or(0);
    bytes.extend_from_slice(&base.to_le_bytes());
    for row in rows {
        encode_row(&mut bytes, place, base, row);
    }
    let sum = checksum(place.id, bytes.get(HEADER_BYTES..).unwrap_or_default());
    if let Some(place) = bytes.get_mut(1..HEADER_BYTES) {
        place.copy_from_slice(&sum);
    }
    bytes
}

fn encode_row(bytes: &mut Vec<u8>, place: Place, base: u32, row: &Row) {
    let words = row.state.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
    let words = row.state.get(..words).unwrap_or_default();
    let class = u64::from(row.key.class == Class::Wide);
    push_varint(bytes, 2 * words.len() as u64 + class);
    let hash = row.key.hash.to_be_bytes();
    bytes.extend_from_slice(hash.get(place.implied_bytes()..).unwrap_or_default());
    push_varint(bytes, u64::from(row.moved_at - base));
    push_varint(bytes, zigzag(i64::from(row.expires_at) - i64::from(row.moved_at)));
    let mut near = nanos(row.moved_at);
    let words: SmallVec<[Word; 4]> = words.iter().map(|word| Word::of(*word, &mut near)).collect();
    for pair in words.chunks(2) {
        bytes.push(pair.iter().rev().fold(0, |forms, word| forms << 4 | word.form));
    }
    for Word { form, number } in words {
        let length = usize::from(bytes_of_form(form));
        bytes.extend_from_slice(number.to_le_bytes().get(..length).unwrap_or_default());
    }
}

/// A word of a state as it is stored.
struct Word {
    form: u8,
    number: u64,
}

impl Word {
    /// `near` is what a time is compared with: the last one.
    fn of(word: u64, near: &mut u64) -> Word {
        let difference = zigzag(word.wrapping_sub(*near).cast_signed());
        let (plain, apart) = (length(word), length(difference).max(1));
        if apart < plain {
            *near = word;
            Word { form: DIFFERENCE + apart, number: difference }
        } else {
            Word { form: plain, number: word }
        }
    }

    fn word(self, near: &mut u64) -> u64 {
        if self.form > DIFFERENCE {
            *near = near.wrapping_add(unzigzag(self.number).cast_unsigned());
            *near
        } else {
            self.number
        }
    }
}

fn bytes_of_form(form: u8) -> u8 {
    if form > DIFFERENCE { form - DIFFERENCE } else { form }
}

/// At most 2^62.
fn nanos(seconds: u32) -> u64 {
    u64::from(seconds) * 1_000_000_000
}

/// The rows of a bucket, in ascending order of their keys.
pub(crate) fn decode(place: Place, bytes: &[u8]) -> Result<Vec<Row>, Flaw> {
    let mut reader = Reader(bytes);
    let [version] = reader.array()?;
    if version != VERSION {
        return Err(Flaw::Version(version));
    }
    let sum: [u8; 4] = reader.array()?;
    if sum != checksum(place.id, reader.0) {
        return Err(Flaw::Checksum);
    }
    decode_rows(place, reader.0)
}

fn decode_rows(place: Place, bytes: &[u8]) -> Result<Vec<Row>, Flaw> {
    let mut reader = Reader(bytes);
    let base = u32::from_le_bytes(reader.array()?);
    let mut rows: Vec<Row> = Vec::new();
    while !reader.0.is_empty() {
        let row = decode_row(&mut reader, place, base)?;
        if rows.last().is_some_and(|last| last.key >= row.key) || !place.has(row.key.hash) {
            return Err(Flaw::Order);
        }
        rows.push(row);
    }
    Ok(rows)
}

fn decode_row(reader: &mut Reader<'_>, place: Place, base: u32) -> Result<Row, Flaw> {
    let head = reader.varint()?;
    let class = if head % 2 == 0 { Class::Narrow } else { Class::Wide };
    let words = usize::try_from(head / 2).map_err(|_| Flaw::Range)?;
    let tail = reader.take(16 - place.implied_bytes())?;
    let tail = tail.iter().fold(0_u128, |tail, byte| tail << 8 | u128::from(*byte));
    let key = Hashed { hash: place.implied() | tail, class };
    let later = u32::try_from(reader.varint()?).map_err(|_| Flaw::Range)?;
    let moved_at = base.checked_add(later).ok_or(Flaw::Range)?;
    let expires_at = i64::from(moved_at).checked_add(unzigzag(reader.varint()?));
    let expires_at = expires_at.and_then(|at| u32::try_from(at).ok()).ok_or(Flaw::Range)?;
    // The forms are there before memory for their words is taken: half a byte for each 8 bytes.
    let forms = reader.take(words.div_ceil(2))?;
    let mut state = SmallVec::with_capacity(words);
    let mut near = nanos(moved_at);
    for form in forms.iter().flat_map(|pair| [pair & 15, pair >> 4]).take(words) {
        let bytes = reader.take(usize::from(bytes_of_form(form)))?;
        let number = bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        state.push(Word { form, number }.word(&mut near));
    }
    Ok(Row { key, state, expires_at, moved_at })
}

fn checksum(id: i64, bytes: &[u8]) -> [u8; 4] {
    let [a, b, c, d, ..] = xxh3_64_with_seed(bytes, id.cast_unsigned()).to_le_bytes();
    [a, b, c, d]
}

/// The bytes of a word without the leading ones that are zero.
fn length(word: u64) -> u8 {
    // At most 8.
    (8 - word.leading_zeros() / 8) as u8
}

fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63).cast_unsigned()
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -((number & 1).cast_signed())
}

fn push_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// What is left of the bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Flaw> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(Flaw::Cut)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Flaw> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Flaw::Cut)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn varint(&mut self) -> Result<u64, Flaw> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            let part = u64::from(byte & 0x7f);
            if part << shift >> shift != part {
                break;
            }
            number |= part << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Flaw::Range)
    }
}

#[cfg(test)]
mod tests;
