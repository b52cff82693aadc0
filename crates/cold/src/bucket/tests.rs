use super::*;
use crate::owner::BITS_MAX;
use proptest::prelude::*;

const NOW: u32 = 1_795_600_800;

fn place(bits: u8, hash: u128) -> Place {
    Place { id: 7 << 32 | i64::from(bucket_of(hash, bits)), bucket: bucket_of(hash, bits), bits }
}

fn words() -> impl Strategy<Value = Vec<u64>> {
    let time = 1_795_600_800_000_000_000_u64;
    let word = prop_oneof![Just(0), 0_u64..300, any::<u64>(), time - 10_000_000..time + 10_000_000];
    prop_oneof![prop::collection::vec(word.clone(), 0..5), prop::collection::vec(word, 0..34)]
}

/// One of few words, of every length.
fn like(word: u64) -> u64 {
    [0, 7, 1_795_600_800_000_000_000, u64::MAX >> 8, u64::MAX, word][word as usize % 6]
}

/// Rows of one bucket, in order.
fn bucket() -> impl Strategy<Value = (Place, Vec<Row>)> {
    let row = (any::<u128>(), any::<bool>(), words(), any::<u32>(), any::<u32>());
    // Of few different ends and words in half of the buckets, as those of one limit have.
    let alike = any::<bool>();
    (0..=BITS_MAX, any::<u128>(), prop::collection::vec(row, 0..20), alike).prop_map(
        |(bits, first, rows, alike)| {
            let prefix = if bits == 0 { 0 } else { u128::MAX << (128 - u32::from(bits)) };
            let rows = rows.into_iter().map(|(hash, is_wide, words, expires_at, moved_at)| Row {
                key: Hashed {
                    hash: first & prefix | hash & !prefix,
                    class: if is_wide { Class::Wide } else { Class::Narrow },
                },
                state: words
                    .into_iter()
                    .map(|word| if alike { like(word) } else { word })
                    .collect(),
                expires_at: if alike { expires_at % 6 } else { expires_at },
                moved_at,
            });
            let rows: std::collections::BTreeMap<Hashed, Row> =
                rows.map(|row| (row.key, row)).collect();
            (place(bits, first), rows.into_values().collect())
        },
    )
}

fn trimmed(mut rows: Vec<Row>) -> Vec<Row> {
    for row in &mut rows {
        while row.state.last() == Some(&0) {
            row.state.pop();
        }
    }
    rows
}

/// What decoding may take: a row has at least 14 bytes, and two of its words 1.
fn bytes_of(rows: &[Row]) -> usize {
    let states: usize = rows.iter().map(|row| 8 * row.state.capacity()).sum();
    size_of_val(rows) + states
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn rows_come_back_as_they_were((place, rows) in bucket()) {
        let bytes = encode(place, &rows);
        prop_assert_eq!(decode(place, &bytes), Ok(trimmed(rows)));
    }

    #[test]
    fn any_changed_byte_is_noticed((place, rows) in bucket(), at in any::<usize>(), by in 1_u8..) {
        let mut bytes = encode(place, &rows);
        let at = at % bytes.len();
        bytes[at] ^= by;
        prop_assert!(decode(place, &bytes).is_err());
        bytes[at] ^= by;
        bytes.truncate(at);
        prop_assert!(decode(place, &bytes).is_err());
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_read(
        bits in 0..=BITS_MAX,
        first in any::<u128>(),
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let place = place(bits, first);
        let _ = decode(place, &bytes);
        // Also where the checksum is right.
        if let Ok(rows) = decode_rows(place, &bytes) {
            prop_assert!(bytes_of(&rows) <= 64 * bytes.len());
        }
    }

    /// Nearly right bytes reach further than arbitrary ones.
    #[test]
    fn damage_behind_the_checksum_never_panics(
        (place, rows) in bucket(),
        changes in prop::collection::vec((any::<usize>(), any::<u8>()), 0..4),
    ) {
        let mut bytes = encode(place, &rows).split_off(HEADER_BYTES);
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        if let Ok(rows) = decode_rows(place, &bytes) {
            prop_assert!(bytes_of(&rows) <= 64 * bytes.len());
        }
    }

    #[test]
    fn numbers_of_varints_come_back(number in any::<u64>(), signed in any::<i64>()) {
        let mut bytes = Vec::new();
        push_varint(&mut bytes, number);
        push_varint(&mut bytes, zigzag(signed));
        let mut reader = Reader(&bytes);
        prop_assert_eq!(reader.varint(), Ok(number));
        prop_assert_eq!(reader.varint().map(unzigzag), Ok(signed));
    }
}

fn usual(hash: u128) -> Row {
    Row {
        key: Hashed::narrow(hash),
        state: [NOW.into(), 17].into_iter().collect(),
        expires_at: NOW + 3_600,
        moved_at: NOW - (hash as u32) % 86_400,
    }
}

#[test]
fn a_usual_counter_takes_at_most_36_bytes() {
    let rows: Vec<Row> = (0..48).map(|index| usual(5 << 108 | index << 70)).collect();
    let bytes = encode(place(20, 5 << 108), &rows).len();
    assert!(bytes <= 20 * rows.len(), "{bytes}");
    // Alone in its bucket, too.
    assert!(encode(place(20, 5 << 108), &rows[..1]).len() <= 36);
}

/// `start` and hits, and `last` where the limit has a reset: times in nanoseconds. Windows of two limits that end soon, and
/// of a third one.
#[test]
fn counters_of_fixed_windows_take_few_bytes_beside_each_other() {
    let counter = |index: u32, is_reset: bool| {
        let window = [3_600, 86_400, 2_592_000][index as usize % 3];
        let start = nanos(NOW - NOW % window);
        let last = if is_reset { start + 59_123_456_789 - u64::from(index) } else { 0 };
        let state = [start, 1 + u64::from(index) % 200, last];
        Row {
            state: state.into_iter().filter(|word| *word != 0).collect(),
            expires_at: NOW - NOW % window + window,
            ..usual(5 << 108 | u128::from(index) << 70)
        }
    };
    let here = place(20, 5 << 108);
    for (is_reset, most) in [(false, 22), (true, 28)] {
        let rows: Vec<Row> = (0..24).map(|index| counter(index, is_reset)).collect();
        let bytes = encode(here, &rows);
        assert!(bytes.len() <= most * rows.len(), "{}", bytes.len());
        assert_eq!(decode(here, &bytes), Ok(rows));
    }
}

#[test]
fn a_model_that_cannot_be_is_refused() {
    let here = place(12, 0);
    let [first, second] = [usual(1), Row { expires_at: usual(1).expires_at, ..usual(2) }];
    let body = |number: u64, model: Option<&Row>| {
        let mut bytes = 0_u32.to_le_bytes().to_vec();
        encode_row(&mut bytes, here, 0, &first, (0, None));
        encode_row(&mut bytes, here, 0, &second, (number, model));
        decode_rows(here, &bytes)
    };
    assert_eq!(body(1, Some(&first)), Ok(vec![first.clone(), second.clone()]));
    // There is one row before it.
    assert_eq!(body(2, Some(&first)), Err(Flaw::Range));
    // A word of a model that has none there.
    let longer =
        Row { state: second.state.iter().map(|_| 9).chain([9]).collect(), ..first.clone() };
    let third = Row { state: longer.state.clone(), ..usual(3) };
    let mut bytes = 0_u32.to_le_bytes().to_vec();
    encode_row(&mut bytes, here, 0, &first, (0, None));
    encode_row(&mut bytes, here, 0, &third, (1, Some(&longer)));
    assert_eq!(decode_rows(here, &bytes), Err(Flaw::Range));
}

#[test]
fn times_around_the_move_come_back() {
    let here = place(0, 0);
    for moved_at in [0, 1, NOW, u32::MAX] {
        let time = nanos(moved_at);
        let state = [time, time.wrapping_sub(1), time + 1, time ^ 1 << 63, time, u64::MAX];
        let row = Row { state: state.into_iter().collect(), moved_at, ..usual(1) };
        assert_eq!(decode(here, &encode(here, std::slice::from_ref(&row))), Ok(vec![row]));
    }
}

#[test]
fn a_word_length_that_cannot_be_takes_no_memory() {
    let mut bytes = 0_u32.to_le_bytes().to_vec();
    push_varint(&mut bytes, u64::MAX << 3);
    bytes.extend([0; 40]);
    assert_eq!(decode_rows(place(0, 0), &bytes), Err(Flaw::Cut));
}

#[test]
fn bytes_of_another_program_or_row_are_refused() {
    let here = place(20, 0);
    let mut bytes = encode(here, &[usual(1)]);
    let there = Place { id: here.id + 1, ..here };
    assert_eq!(decode(there, &bytes), Err(Flaw::Checksum));
    bytes[0] = 1;
    assert_eq!(decode(here, &bytes), Err(Flaw::Version(1)));
    assert_eq!(decode(here, &[]), Err(Flaw::Cut));
}

#[test]
fn keys_out_of_place_or_order_are_refused() {
    let here = place(12, 0);
    let body = |rows: &[Row]| {
        let mut bytes = 0_u32.to_le_bytes().to_vec();
        rows.iter().for_each(|row| encode_row(&mut bytes, here, 0, row, (0, None)));
        bytes
    };
    assert!(decode_rows(here, &body(&[usual(1), usual(2)])).is_ok());
    for rows in [[usual(2), usual(1)], [usual(1), usual(1)], [usual(1), usual(1 << 117)]] {
        assert_eq!(decode_rows(here, &body(&rows)), Err(Flaw::Order));
    }
}
