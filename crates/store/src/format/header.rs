//! The header of every file of a cluster: the role of the file, its cluster, and its geometry.
//!
//! Owns the encoding (docs/internals/store-format.md, "Header") and the check of a header from outside. Pure: bytes in,
//! bytes or an error out. Never repairs a header.

use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{OpenError, OpenFailure};
use crate::format::{Class, Geometry, HEADER_BYTES};

const MAGIC: [u8; 8] = *b"TIDEGATE";
const FORMAT_VERSION: u64 = 4;

/// Word indexes of the fields; the words between `WIDE` and `CHECKSUM` are zero.
const VERSION: usize = 1;
const ROLE: usize = 2;
const FILE: usize = 3;
const CLUSTER_LOW: usize = 4;
const CLUSTER_HIGH: usize = 5;
const SEED: usize = 6;
const STORAGE: usize = 7;
const NARROW: usize = 8;
const WIDE: usize = 12;
const CHECKSUM: usize = HEADER_BYTES / 8 - 1;

/// The common part of the headers of all files of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClusterInfo {
    /// Random: distinguishes the files of one cluster from those of another.
    pub(crate) cluster: u128,
    /// Random and secret: see [`crate::Cluster::seed`].
    pub(crate) seed: u64,
    pub(crate) narrow: Geometry,
    pub(crate) wide: Option<Geometry>,
}

impl ClusterInfo {
    pub(crate) fn geometry(&self, class: Class) -> Option<Geometry> {
        match class {
            Class::Narrow => Some(self.narrow),
            Class::Wide => self.wide,
        }
    }
}

/// Where the files of a directory are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    /// In shared memory.
    Memory = 0,
    /// On disk, as a copy of the memory.
    Snapshot = 1,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Control,
    Nodes { class: Class, file: u32 },
}

impl Role {
    const fn words(self) -> (u64, u64) {
        match self {
            Self::Control => (0, 0),
            Self::Nodes { class: Class::Narrow, file } => (1, file as u64),
            Self::Nodes { class: Class::Wide, file } => (2, file as u64),
        }
    }

    pub(crate) fn file_name(self) -> String {
        match self {
            Self::Control => "control.tide".to_owned(),
            Self::Nodes { class, file } => format!("{}-{file:03}.tide", class.name()),
        }
    }
}

pub(crate) fn encode(info: &ClusterInfo, storage: Storage, role: Role) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
    let (role, file) = role.words();
    let mut set = |index: usize, value: u64| {
        bytes[8 * index..][..8].copy_from_slice(&value.to_le_bytes());
    };
    set(VERSION, FORMAT_VERSION);
    set(ROLE, role);
    set(FILE, file);
    set(CLUSTER_LOW, info.cluster as u64);
    set(CLUSTER_HIGH, (info.cluster >> 64) as u64);
    set(SEED, info.seed);
    set(STORAGE, storage as u64);
    for (at, geometry) in [(NARROW, Some(info.narrow)), (WIDE, info.wide)] {
        let Some(geometry) = geometry else { continue };
        set(at, u64::from(geometry.files()));
        set(at + 1, geometry.key_nodes());
        set(at + 2, u64::from(geometry.chain()));
        set(at + 3, u64::from(geometry.state_words()));
    }
    let checksum = checksum(&bytes);
    bytes[8 * CHECKSUM..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Decodes the header of the file at `path`, which is used in errors only.
///
/// Checks the version before the checksum: another version may keep its checksum elsewhere, and the error
/// should name the version, not damage.
pub(crate) fn decode(
    bytes: &[u8; HEADER_BYTES],
    storage: Storage,
    role: Role,
    path: &Path,
) -> Result<ClusterInfo, OpenError> {
    let (words, _) = bytes.as_chunks::<8>();
    let word = |index: usize| u64::from_le_bytes(words[index]);
    if words[0] != MAGIC {
        return Err(OpenFailure::NotACounterFile { found: words[0], expected: MAGIC }.at(path));
    }
    if word(VERSION) != FORMAT_VERSION {
        let (found, expected) = (word(VERSION), FORMAT_VERSION);
        return Err(OpenFailure::FormatVersion { found, expected }.at(path));
    }
    let (found, expected) = (word(CHECKSUM), checksum(bytes));
    if found != expected {
        return Err(OpenFailure::Checksum { found, expected }.at(path));
    }
    if (word(ROLE), word(FILE)) != role.words() {
        return Err(OpenFailure::WrongFile { actual: "another file of a cluster" }.at(path));
    }
    if word(STORAGE) != storage as u64 {
        let actual = "a file of the same name from elsewhere: memory is no snapshot";
        return Err(OpenFailure::WrongFile { actual }.at(path));
    }
    let geometry = |at: usize| {
        let small = |index: usize| u32::try_from(word(index)).unwrap_or(u32::MAX);
        Geometry::by_count(small(at), word(at + 1), small(at + 2), small(at + 3))
            .map_err(|error| OpenFailure::Geometry(error).at(path))
    };
    Ok(ClusterInfo {
        cluster: u128::from(word(CLUSTER_HIGH)) << 64 | u128::from(word(CLUSTER_LOW)),
        seed: word(SEED),
        narrow: geometry(NARROW)?,
        wide: if word(WIDE) == 0 { None } else { Some(geometry(WIDE)?) },
    })
}

fn checksum(bytes: &[u8; HEADER_BYTES]) -> u64 {
    xxh3_64(&bytes[..8 * CHECKSUM])
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const PATH: &str = "cluster/narrow-001.tide";
    const ROLE_1: Role = Role::Nodes { class: Class::Narrow, file: 1 };

    fn info() -> ClusterInfo {
        ClusterInfo {
            cluster: 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10,
            seed: 42,
            narrow: Geometry::by_count(2, 1000, 35, 4).unwrap(),
            wide: Some(Geometry::by_count(1, 10, 12, 80).unwrap()),
        }
    }

    #[track_caller]
    fn check_refused(change: impl FnOnce(&mut [u8; HEADER_BYTES]), message: &str) {
        let mut bytes = encode(&info(), Storage::Snapshot, ROLE_1);
        change(&mut bytes);
        let error =
            decode(&bytes, Storage::Snapshot, ROLE_1, Path::new(PATH)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{PATH}: {message}")), "{error}");
    }

    fn set(bytes: &mut [u8; HEADER_BYTES], index: usize, value: u64) {
        bytes[8 * index..][..8].copy_from_slice(&value.to_le_bytes());
        let checksum = checksum(bytes);
        bytes[8 * CHECKSUM..].copy_from_slice(&checksum.to_le_bytes());
    }

    #[test]
    fn a_header_reads_as_it_was_written() {
        for role in [Role::Control, ROLE_1, Role::Nodes { class: Class::Wide, file: 0 }] {
            for storage in [Storage::Memory, Storage::Snapshot] {
                let bytes = encode(&info(), storage, role);
                assert_eq!(decode(&bytes, storage, role, Path::new(PATH)).unwrap(), info());
            }
        }
        let (narrow_only, storage) = (ClusterInfo { wide: None, ..info() }, Storage::Memory);
        let bytes = encode(&narrow_only, storage, Role::Control);
        assert_eq!(decode(&bytes, storage, Role::Control, Path::new(PATH)).unwrap(), narrow_only);
    }

    #[test]
    fn other_files_are_refused() {
        check_refused(|bytes| bytes[0] = b't', "not a counter file: found [74, 49, 44, 45");
        check_refused(
            |bytes| set(bytes, VERSION, 3),
            "found format version 3, expected 4; use the release that wrote it",
        );
        // A later format may keep its checksum elsewhere.
        check_refused(
            |bytes| bytes[8] = 5,
            "found format version 5, expected 4; use the release that wrote it",
        );
        check_refused(|bytes| bytes[4000] = 1, "the header is damaged: found checksum 0x");
        check_refused(|bytes| set(bytes, FILE, 0), "is another file of a cluster");
        check_refused(|bytes| set(bytes, STORAGE, 0), "is a file of the same name from elsewhere");
        check_refused(
            |bytes| set(bytes, NARROW + 2, 41),
            "chain length 41 is not allowed (1 to 40)",
        );
        check_refused(
            |bytes| set(bytes, WIDE, u64::MAX),
            "number of files 4294967295 is not allowed (1 to 128)",
        );
    }

    #[test]
    fn no_byte_of_a_header_can_change_unnoticed() {
        let whole = encode(&info(), Storage::Snapshot, ROLE_1);
        for index in 0..HEADER_BYTES {
            let mut bytes = whole;
            bytes[index] ^= 0x10;
            assert!(
                decode(&bytes, Storage::Snapshot, ROLE_1, Path::new(PATH)).is_err(),
                "byte {index}"
            );
        }
    }
}
