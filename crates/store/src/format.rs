//! The format of the files: where everything is and what it means (docs/store-format.md).
//!
//! Owns geometry, headers, keys and how files are made and opened. Maps nothing and locks nothing.

pub(crate) mod files;
pub(crate) mod geometry;
pub(crate) mod header;
pub(crate) mod journal;
pub(crate) mod key;
pub(crate) mod layout;
pub(crate) mod node;
