//! Loads a limits file or a directory of them, each file with the reader for its syntax.

use crate::diagnostic::LoadErrors;
use crate::files::{self, Origin, Pipes, Source};
use crate::frs_map;
use crate::loader::{Defaults, Loaded, Loader};
use crate::yaml;
use std::path::Path;

/// Loads a limits file, or every `*.yaml`, `*.yml` and `*.xml` directly in a directory, except names that
/// start with a dot. `path` itself may also be a pipe.
pub fn load(path: &Path, defaults: impl Into<Defaults>) -> Result<Loaded, LoadErrors> {
    load_source(&Source::read(path, Pipes::Allow), defaults)
}

/// Loads files that have been read already, and touches no others.
pub fn load_source(source: &Source, defaults: impl Into<Defaults>) -> Result<Loaded, LoadErrors> {
    let files = source.listed()?;
    let mut loader = Loader::new(defaults.into());
    for file in files {
        match files::text(file) {
            Ok(text) if frs_map::is_map(&file.path) => {
                frs_map::read_file(&mut loader, &file.path, text);
            }
            Ok(text) => yaml::read_file(&mut loader, &file.path, text),
            Err(error) => loader.errors.push(error),
        }
    }
    loader.rules.set_awaited(source.origin() == Origin::AwaitedFeeds);
    loader.finish()
}
