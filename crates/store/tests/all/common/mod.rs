//! What the integration tests share: random numbers, directories, children, and a twin of the format.
//!
//! The twin is written from docs/internals/store-format.md, slowly and obviously, and shares no code with the crate:
//! where the two differ, one of them is wrong.

pub(crate) mod child;
mod directory;
pub(crate) mod format;
pub(crate) mod random;
pub(crate) mod twin;

pub(crate) use directory::{Directory, directory};

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tidegate_store::{Geometry, Options, UpdateError, View};

/// Reruns a random test with the seed that it printed.
const TEST_SEED: &str = "TIDEGATE_STORE_TEST_SEED";

/// Set to 1 where every test must run.
const MUST_RUN: &str = "TIDEGATE_ROOT_TESTS";

/// Nanoseconds per second.
pub(crate) const SECOND: u64 = 1_000_000_000;

/// The seed of a test: always the same, unless the environment has another one. Printed, which shows when the
/// test fails.
pub(crate) fn test_seed() -> u64 {
    let seed = number_from_env(TEST_SEED).unwrap_or(0x7469_6465);
    println!("{TEST_SEED}={seed}");
    seed
}

/// How often to do something: `default`, unless the environment has another number.
pub(crate) fn repetitions(variable: &str, default: u64) -> u64 {
    number_from_env(variable).unwrap_or(default)
}

fn number_from_env(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}

/// Reports that the test `test` cannot run here. The line goes past the harness, which hides what a test prints
/// that passes.
#[track_caller]
pub(crate) fn not_run(test: &str, needs: &str) {
    assert_ne!(std::env::var(MUST_RUN).as_deref(), Ok("1"), "{test} needs {needs}");
    // The harness may have begun a line.
    io::stderr().write_all(format!("\nnot run: {test}: needs {needs}\n").as_bytes()).unwrap();
}

/// The path of a file of the snapshot in `dir`.
pub(crate) fn file(dir: &Path, name: &str) -> PathBuf {
    dir.join("cluster").join(name)
}

/// The path of a file of the memory of the cluster in `dir`, which is open or was killed.
pub(crate) fn memory_file(dir: &Path, name: &str) -> PathBuf {
    format::memory_dir(dir).expect("it is open, or was killed").join(name)
}

pub(crate) fn geometry(files: u32, key_nodes: u64, chain: u32, state_words: u32) -> Geometry {
    Geometry::by_count(files, key_nodes, chain, state_words).unwrap()
}

/// Narrow nodes in one file.
pub(crate) fn narrow(key_nodes: u64, chain: u32) -> Options {
    Options::narrow(geometry(1, key_nodes, chain, 4))
}

/// Narrow and wide nodes, in a file each.
pub(crate) fn narrow_and_wide(narrow: (u64, u32), wide: (u64, u32), words: u32) -> Options {
    Options {
        wide: Some(geometry(1, wide.0, wide.1, words)),
        ..Options::narrow(geometry(1, narrow.0, narrow.1, 4))
    }
}

/// Retries an update while it meets contention, as on a machine with fewer processors than threads.
pub(crate) fn until_decided<T>(
    mut update: impl FnMut() -> Result<T, UpdateError>,
) -> Result<T, UpdateError> {
    loop {
        match update() {
            Err(error) if error.is_contention() => std::thread::yield_now(),
            result => return result,
        }
    }
}

/// Verifies every node, head, lock and writer slot with a view.
#[track_caller]
pub(crate) fn check_sound(dir: &Path) {
    let findings = View::open(dir).unwrap().verify(SECOND, |_, _| {});
    assert!(findings.is_sound(), "{findings:?}");
}
