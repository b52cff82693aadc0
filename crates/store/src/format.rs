//! The format of a cluster's files (docs/store-format.md).
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
