//! The twin of the store's format, as the store's own tests have it.
#![allow(dead_code, unreachable_pub, reason = "the tests use all of it")]

#[path = "../../crates/store/tests/all/common/directory.rs"]
mod directory;
#[path = "../../crates/store/tests/all/common/format.rs"]
pub(crate) mod format;
#[path = "../../crates/store/tests/all/common/random.rs"]
pub(crate) mod random;

pub(crate) use directory::{Directory, directory};
