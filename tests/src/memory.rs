//! Where the sidecars of the tests keep their counters: shared memory, in a directory for each process of
//! tests. What killed sidecars left there goes with the next process of tests.

use anyhow::Context;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Where every Linux machine has shared memory.
const PARENT: &str = "/dev/shm";
const PREFIX: &str = "tidegate-tests-";

/// The directory of this process.
#[must_use]
pub fn dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let parent = if Path::new(PARENT).is_dir() { PARENT.into() } else { std::env::temp_dir() };
        for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
                continue;
            };
            if !Path::new("/proc").join(pid).exists() {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let dir = parent.join(format!("{PREFIX}{}", std::process::id()));
        let _ = fs::create_dir_all(&dir);
        dir
    })
}

/// Where the memory of a data directory is, which is served or whose sidecar was killed.
///
/// # Errors
/// When there is none.
pub fn of(data: &Path) -> anyhow::Result<PathBuf> {
    let text = fs::read_to_string(data.join("cluster/memory")).context("there is no memory")?;
    let (_, path) = text.trim_end().split_once(' ').context("a number and a path")?;
    Ok(PathBuf::from(path))
}
