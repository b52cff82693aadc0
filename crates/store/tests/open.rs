//! Opening: what is made, what is kept, and every file that is refused.

use std::fs;
use std::path::Path;

use tidegate_store::{Entry, Key, OpenError, Options, Store};
use xxhash_rust::xxh3::xxh3_64;

const FILE: &str = "counters.tide";

fn options(capacity: u64) -> Options {
    Options { capacity }
}

/// The bytes of a good file of one chain.
fn good_file() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    Store::open(dir.path(), &options(16)).unwrap();
    fs::read(dir.path().join(FILE)).unwrap()
}

/// Opens a store over `bytes`; the error must match, name the path, and leave the file as it is.
#[track_caller]
fn check(bytes: &[u8], expected: &str) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    fs::write(&path, bytes).unwrap();
    // Once more, since a refusal must not make the second try succeed.
    for _ in 0..2 {
        let error = Store::open(dir.path(), &options(16)).unwrap_err();
        let text = error.to_string();
        let text = text.strip_prefix(&format!("{}: ", path.display())).unwrap_or_else(|| {
            panic!("the path is missing: {text}");
        });
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("move"), "no advice: {text}");
        assert_eq!(fs::read(&path).unwrap(), bytes, "the file was changed");
    }
}

/// A good file with the eight bytes at `at` replaced.
fn with_word(at: usize, word: [u8; 8]) -> Vec<u8> {
    let mut bytes = good_file();
    bytes[at..at + 8].copy_from_slice(&word);
    bytes
}

/// As `with_word`, with a checksum that fits.
fn with_checked_word(at: usize, word: u64) -> Vec<u8> {
    let mut bytes = with_word(at, word.to_le_bytes());
    let checksum = xxh3_64(&bytes[..4088]);
    bytes[4088..4096].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

#[test]
fn an_empty_file_is_refused() {
    check(b"", "found 0 bytes, expected at least the 4096 bytes of a header; ");
}

#[test]
fn a_file_cut_inside_its_header_is_refused() {
    let expected = "found 4095 bytes, expected at least the 4096 bytes of a header; ";
    check(&good_file()[..4095], expected);
}

#[test]
fn a_file_cut_inside_its_nodes_is_refused() {
    let expected = "found 6143 bytes, expected the 6144 bytes that its header describes; ";
    check(&good_file()[..6143], expected);
}

#[test]
fn a_file_that_is_too_long_is_refused() {
    let mut bytes = good_file();
    bytes.push(0);
    check(&bytes, "found 6145 bytes, expected the 6144 bytes that its header describes; ");
}

#[test]
fn a_foreign_file_is_refused() {
    let expected = "not a counter file: found [53, 51, 4c, 69, 74, 65, 20, 66] at its start, \
                    expected [54, 49, 44, 45, 47, 41, 54, 45]; ";
    check(&with_word(0, *b"SQLite f"), expected);
}

#[test]
fn nodes_of_random_bytes_are_dropped() {
    let mut bytes = good_file();
    // A multiplicative generator over the 256 words of the chain.
    let words = (1..=256_u64).map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29));
    bytes.splice(4096.., words.flat_map(u64::to_le_bytes));
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    // The 16 keys that the bytes name, from the last to the first.
    let at = (0..16).rev().map(|node| 4096 + node * 128);
    let hashes = at.map(|at| u128::from(word(at + 8)) << 64 | u128::from(word(at)));
    let keys: Vec<_> = hashes.map(Key::from_hash).collect();

    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(FILE), &bytes).unwrap();
    let store = Store::open(dir.path(), &options(16)).unwrap();
    let entry = Entry { state: [1, 2, 3, 4], expires_at: 100 };
    for key in &keys {
        let before =
            store.update_many(&[*key], 10, |entries| std::mem::replace(&mut entries[0], entry));
        assert_eq!(before, Ok(Entry::default()));
    }
    let found = store.update_many(&keys, 10, |entries| entries.to_vec());
    assert_eq!(found, Ok(vec![entry; 16]));
    assert_eq!(store.stats().dropped_invalid, 16);
}

#[test]
fn a_newer_format_is_refused_before_its_checksum_is_judged() {
    check(
        &with_word(8, 2_u64.to_le_bytes()),
        "found format version 2, expected 1; use the release",
    );
}

#[test]
fn a_damaged_header_is_refused() {
    check(&with_word(40, *b"nonsense"), "the header is damaged: found checksum 0x");
    check(&with_word(4000, *b"nonsense"), "the header is damaged: found checksum 0x");
    check(&with_word(4088, [0; 8]), "the header is damaged: found checksum 0x0000000000000000, ");
}

#[test]
fn another_geometry_is_refused() {
    check(&with_checked_word(16, 64), "found node size 64, expected 128 to 128; ");
    check(&with_checked_word(24, 8), "found chain length 8, expected 16 to 16; ");
    check(&with_checked_word(32, 0), "found chain count 0, expected 1 to 268435456; ");
    check(
        &with_checked_word(32, u64::MAX),
        "found chain count 18446744073709551615, expected 1 to 268435456; ",
    );
    // A count which does not fit the file is a matter of length.
    check(
        &with_checked_word(32, 1 << 28),
        "found 6144 bytes, expected the 549755817984 bytes that its header describes; ",
    );
}

#[test]
fn a_directory_in_the_way_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join(FILE)).unwrap();
    let error = Store::open(dir.path(), &options(16)).unwrap_err();
    assert!(matches!(error, OpenError::NotAFile { .. }), "{error:?}");
}

#[test]
fn a_capacity_out_of_range_is_refused_and_makes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for capacity in [0, (1 << 32) + 1, u64::MAX] {
        let error = Store::open(&dir.path().join("store"), &options(capacity)).unwrap_err();
        let expected =
            format!("capacity {capacity} is not allowed (minimum 1, maximum 4294967296)");
        assert_eq!(error.to_string(), expected);
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_path_through_a_file_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), b"").unwrap();
    let path = dir.path().join("file").join("store");
    let text = Store::open(&path, &options(16)).unwrap_err().to_string();
    let expected = format!("{}: cannot create the directory: ", path.display());
    assert!(text.starts_with(&expected), "{text}");
}

#[test]
fn missing_directories_are_made() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a").join("b");
    let store = Store::open(&path, &options(17)).unwrap();
    assert_eq!(store.capacity(), 32);
    assert_eq!(fs::metadata(path.join(FILE)).unwrap().len(), 4096 + 2 * 2048);
}

#[test]
fn an_existing_store_keeps_its_size_its_seed_and_its_entries() {
    let dir = tempfile::tempdir().unwrap();
    let key = Key::from_hash(7);
    let entry = Entry { state: [1, 2, 3, 4], expires_at: 100 };
    let store = Store::open(dir.path(), &options(16)).unwrap();
    let seed = store.seed();
    store.update_many(&[key], 10, |entries| entries[0] = entry).unwrap();
    store.sync().unwrap();
    drop(store);

    let store = Store::open(dir.path(), &options(1000)).unwrap();
    assert_eq!((store.capacity(), store.seed()), (16, seed));
    assert_eq!(store.update_many(&[key], 10, |entries| entries[0]), Ok(entry));
}

#[test]
fn two_stores_have_two_seeds() {
    // Equal by chance once in 2^64 runs.
    let seed = |dir: &Path| Store::open(dir, &options(16)).unwrap().seed();
    assert_ne!(
        seed(tempfile::tempdir().unwrap().path()),
        seed(tempfile::tempdir().unwrap().path())
    );
}
