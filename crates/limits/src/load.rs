//! Loads a limits file or a directory of them, each file by the reader of its syntax.

use crate::files::{self, Pipes, Source};
use crate::frs_map;
use crate::loader::{Defaults, Loaded, Loader};
use crate::report::{RuleError, RuleErrors};
use crate::yaml;
use std::path::Path;

/// Loads a limits file, or every `*.yaml`, `*.yml` and `*.xml` of a directory (not of those below it;
/// names that start with a dot are left out). Also from a pipe, if it is `path` itself.
pub fn load(path: &Path, defaults: impl Into<Defaults>) -> Result<Loaded, RuleErrors> {
    load_source(&Source::read(path, Pipes::Allow), defaults)
}

/// Loads what was read, and reads nothing else.
pub fn load_source(source: &Source, defaults: impl Into<Defaults>) -> Result<Loaded, RuleErrors> {
    let whole = |message: &str| {
        let (file, message) = (source.path.clone(), message.to_owned());
        Err(RuleErrors(vec![RuleError { file, place: None, message }]))
    };
    let files = match source.files() {
        Ok([]) => return whole("no *.yaml, *.yml or *.xml file in this directory"),
        Ok(files) => files,
        Err(cause) => return whole(cause),
    };
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
    loader.finish()
}
