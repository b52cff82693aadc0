//! The bytes of a bucket: all counters of an owner whose hashes begin with the same bits. Pure; knows no database.
//!
//! | bytes | meaning |
//! | --- | --- |
//! | 1 | version of this format: 2 |
//! | 4 | the low half of the XXH3 of everything behind it, seeded with the id of the row |
//! | 4 | the earliest `moved_at` of the bucket |
//! | … | counters, in ascending order of hash and class |
//!
//! Of a counter:
//!
//! | bytes | meaning |
//! | --- | --- |
//! | varint | the number of state words, times eight; plus two times the model; plus one for the class `wide` |
//! | varint | `moved_at`, less the earliest one; then the bits that the bucket leaves of a byte of the hash |
//! | 12 to 16 | the bytes of the hash behind that, the highest one first |
//! | varint | without a model: `expires_at`, less `moved_at`; zigzag, as it can be negative |
//! | words / 2 | the form of each word, in 4 bits, the first word in the lower ones |
//! | 0 to 8 a word | the words, the lowest byte first |
//!
//! Counters of one limit often end together, and their windows began together. So a counter may have a *model*: one of the
//! last three counters before it that ended at different times, which ends when this one does. 1 is the one used last, 0 is
//! none.
//!
//! A word of the form 0 to 6, or 8, has so many bytes; its leading zero bytes are left out. One of the form 7 has no bytes, and
//! is that of the model. Many words are times, in nanoseconds since the epoch. A word of the form 9 to 15 has 1 to 7 bytes, and
//! is the difference, in zigzag, from the last word before it that has such a form, or from `moved_at` in nanoseconds. The
//! shortest form is used: a counter of a fixed window has 24 to 26 bytes beside others of its limit, in place of 41.
//!
//! Other numbers are little-endian, and varints are LEB128. Zero words at the end of a state are left out.
//!
//! Bytes that this program did not write are refused as a whole. A guess could open a limit.

use crate::Row;
use smallvec::SmallVec;
use tidegate_store::{Class, Hashed};
use xxhash_rust::xxh3::xxh3_64_with_seed;

const VERSION: u8 = 2;
/// Version and checksum.
const HEADER_BYTES: usize = 5;
/// The form of a word that is the model's.
const SAME: u8 = 7;
/// Forms of words above this one are differences.
const DIFFERENCE: u8 = 8;
/// The counters that may be a model.
const MODELS: usize = 3;

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

    /// The bytes of a hash that the bucket implies, the last of them in part.
    fn implied_bytes(self) -> u8 {
        self.bits.div_ceil(8)
    }

    /// How many bits of the last one it does not imply.
    fn open_bits(self) -> u32 {
        u32::from(8 * self.implied_bytes() - self.bits)
    }

    /// Those bits of a hash.
    fn open_part(self, hash: u128) -> u64 {
        let [.., last] = bucket_of(hash, 8 * self.implied_bytes()).to_be_bytes();
        u64::from(last) & ((1 << self.open_bits()) - 1)
    }

    /// The hash of these parts.
    fn hash(self, open: u64, tail: u128) -> u128 {
        let head = u128::from(self.bucket) << self.open_bits() | u128::from(open);
        // Without a bucket there is no head.
        head.checked_shl(128 - 8 * u32::from(self.implied_bytes())).unwrap_or(0) | tail
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
    let mut models = Models::default();
    for (index, row) in rows.iter().enumerate() {
        let number = models.ending_at(row.expires_at);
        encode_row(&mut bytes, place, base, row, (number, models.get(number, rows)));
        models.add(row.expires_at, index);
    }
    let sum = checksum(place.id, bytes.get(HEADER_BYTES..).unwrap_or_default());
    if let Some(place) = bytes.get_mut(1..HEADER_BYTES) {
        place.copy_from_slice(&sum);
    }
    bytes
}

/// `model` is the number of the model, and its row, if there is one.
fn encode_row(
    bytes: &mut Vec<u8>,
    place: Place,
    base: u32,
    row: &Row,
    (number, model): (u64, Option<&Row>),
) {
    let words = row.state.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
    let words = row.state.get(..words).unwrap_or_default();
    let class = u64::from(row.key.class == Class::Wide);
    push_varint(bytes, 8 * words.len() as u64 + 2 * number + class);
    let later = u64::from(row.moved_at - base);
    push_varint(bytes, later << place.open_bits() | place.open_part(row.key.hash));
    let hash = row.key.hash.to_be_bytes();
    bytes.extend_from_slice(hash.get(usize::from(place.implied_bytes())..).unwrap_or_default());
    if model.is_none() {
        push_varint(bytes, zigzag(i64::from(row.expires_at) - i64::from(row.moved_at)));
    }
    let like = model.map_or(&[][..], |model| &model.state);
    let mut near = nanos(row.moved_at);
    let forms = words.iter().enumerate();
    let words: SmallVec<[Word; 4]> =
        forms.map(|(index, word)| Word::of(*word, like.get(index), &mut near)).collect();
    for pair in words.chunks(2) {
        bytes.push(pair.iter().rev().fold(0, |forms, word| forms << 4 | word.form));
    }
    for Word { form, number } in words {
        let length = usize::from(bytes_of_form(form));
        bytes.extend_from_slice(number.to_le_bytes().get(..length).unwrap_or_default());
    }
}

/// The rows that may be the model of the next one, the last one first: when they end, each at another time, and their indices.
#[derive(Default)]
struct Models(SmallVec<[(u32, usize); MODELS + 1]>);

impl Models {
    /// The number of the model that ends then, or 0.
    fn ending_at(&self, expires_at: u32) -> u64 {
        let found = self.0.iter().position(|(end, _)| *end == expires_at);
        found.map_or(0, |index| index as u64 + 1)
    }

    /// None for 0, and for a number without a row.
    fn get<'r>(&self, number: u64, rows: &'r [Row]) -> Option<&'r Row> {
        let place = usize::try_from(number).ok()?.checked_sub(1)?;
        let (_, index) = self.0.get(place)?;
        rows.get(*index)
    }

    /// A row comes after these.
    fn add(&mut self, expires_at: u32, index: usize) {
        self.0.retain(|(end, _)| *end != expires_at);
        self.0.insert(0, (expires_at, index));
        self.0.truncate(MODELS);
    }
}

/// A word of a state as it is stored.
struct Word {
    form: u8,
    number: u64,
}

impl Word {
    /// `model` is the same word of the model, if there is one. `near` is what a time is compared with: the last one.
    fn of(word: u64, model: Option<&u64>, near: &mut u64) -> Word {
        let difference = zigzag(word.wrapping_sub(*near).cast_signed());
        let (plain, apart) = (length(word), length(difference).max(1));
        if word != 0 && model == Some(&word) {
            Word { form: SAME, number: 0 }
        } else if apart < plain {
            *near = word;
            Word { form: DIFFERENCE + apart, number: difference }
        } else {
            Word { form: if plain == SAME { 8 } else { plain }, number: word }
        }
    }

    /// None if the model has no such word.
    fn word(self, model: Option<&u64>, near: &mut u64) -> Option<u64> {
        match self.form {
            SAME => model.copied(),
            ..=DIFFERENCE => Some(self.number),
            _ => {
                *near = near.wrapping_add(unzigzag(self.number).cast_unsigned());
                Some(*near)
            }
        }
    }
}

fn bytes_of_form(form: u8) -> u8 {
    match form {
        SAME => 0,
        ..=DIFFERENCE => form,
        _ => form - DIFFERENCE,
    }
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
    let (mut rows, mut models): (Vec<Row>, _) = (Vec::new(), Models::default());
    while !reader.0.is_empty() {
        let model = |number| models.get(number, &rows);
        let row = decode_row(&mut reader, place, base, model)?;
        if rows.last().is_some_and(|last| last.key >= row.key) || !place.has(row.key.hash) {
            return Err(Flaw::Order);
        }
        models.add(row.expires_at, rows.len());
        rows.push(row);
    }
    Ok(rows)
}

/// `model` finds the row of a number.
fn decode_row<'r>(
    reader: &mut Reader<'_>,
    place: Place,
    base: u32,
    model: impl FnOnce(u64) -> Option<&'r Row>,
) -> Result<Row, Flaw> {
    let head = reader.varint()?;
    let class = if head % 2 == 0 { Class::Narrow } else { Class::Wide };
    let words = usize::try_from(head / 8).map_err(|_| Flaw::Range)?;
    let model = match head / 2 % 4 {
        0 => None,
        number => Some(model(number).ok_or(Flaw::Range)?),
    };
    let later = reader.varint()?;
    let open = later & ((1 << place.open_bits()) - 1);
    let later = u32::try_from(later >> place.open_bits()).map_err(|_| Flaw::Range)?;
    let tail = reader.take(usize::from(16 - place.implied_bytes()))?;
    let tail = tail.iter().fold(0_u128, |tail, byte| tail << 8 | u128::from(*byte));
    let key = Hashed { hash: place.hash(open, tail), class };
    let moved_at = base.checked_add(later).ok_or(Flaw::Range)?;
    let expires_at = match model {
        Some(model) => model.expires_at,
        None => {
            let expires_at = i64::from(moved_at).checked_add(unzigzag(reader.varint()?));
            expires_at.and_then(|at| u32::try_from(at).ok()).ok_or(Flaw::Range)?
        }
    };
    // The forms are there before memory for their words is taken: half a byte for each 8 bytes.
    let forms = reader.take(words.div_ceil(2))?;
    let forms = forms.iter().flat_map(|pair| [pair & 15, pair >> 4]).take(words);
    let like = model.map_or(&[][..], |model| &model.state);
    let mut state = SmallVec::with_capacity(words);
    let mut near = nanos(moved_at);
    for (index, form) in forms.enumerate() {
        let bytes = reader.take(usize::from(bytes_of_form(form)))?;
        let number = bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let word = Word { form, number }.word(like.get(index), &mut near);
        state.push(word.ok_or(Flaw::Range)?);
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
