//! The twin of the store's format, as the store's own tests have it.
#![allow(dead_code, unreachable_pub, reason = "the tests use all of it")]

#[path = "../../crates/store/tests/common/format.rs"]
pub(crate) mod format;
#[path = "../../crates/store/tests/common/random.rs"]
pub(crate) mod random;

/// In memory if that is possible.
pub(crate) fn directory() -> tempfile::TempDir {
    let in_memory = tempfile::tempdir_in("/dev/shm");
    in_memory.or_else(|_| tempfile::tempdir()).expect("a directory for a cluster")
}
