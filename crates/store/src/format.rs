//! The format of a cluster's files (docs/internals/store-format.md).
//!
//! Owns geometry, the encoding of headers, keys, nodes and journals, and how files are created and opened.
//! Maps no memory and takes no lock.

pub(crate) mod files;
pub(crate) mod geometry;
pub(crate) mod header;
pub(crate) mod journal;
pub(crate) mod key;
pub(crate) mod layout;
pub(crate) mod node;

pub(crate) use files::{Access, FileSet, io_error};
pub use geometry::{
    CHAIN_MAX, Class, Geometry, GeometryError, STATE_WORDS_MAX, STATE_WORDS_NARROW,
    STATE_WORDS_WIDE,
};
pub(crate) use geometry::{HEADER_BYTES, WORD_BYTES};
pub(crate) use header::{ClusterInfo, Role, Storage};
pub(crate) use journal::{RECORD_WORDS_BESIDES_IMAGE, Record, read_journal};
pub use key::{Hashed, Key, Parts, StoredKey};
pub(crate) use layout::{KeyNodeId, Layout};
