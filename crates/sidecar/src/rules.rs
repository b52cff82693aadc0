//! Loading limits files: YAML in envoyproxy/ratelimit's schema, extended, to compiled rules.
//!
//! One file is one domain; a directory holds many. Loading reports every mistake of every file,
//! each with its place, and yields rules only when there is none.

mod document;
pub(crate) mod duration;
mod reader;
mod schema;

use std::fmt;
use std::path::{Path, PathBuf};
use tidegate_core::Rules;

/// A mistake, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuleError {
    file: PathBuf,
    /// Line and column, both from 1; none when the file as a whole is at fault.
    place: Option<(u64, u64)>,
    message: String,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if let Some((line, column)) = self.place {
            write!(f, "{line}:{column}:")?;
        }
        write!(f, " {}", self.message)
    }
}

/// Every mistake that was found, one a line.
#[derive(Debug)]
pub(crate) struct RuleErrors(pub(crate) Vec<RuleError>);

impl fmt::Display for RuleErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for error in &self.0 {
            writeln!(f, "{error}")?;
        }
        let count = self.0.len();
        write!(f, "{count} {} in the limits", if count == 1 { "error" } else { "errors" })
    }
}

impl std::error::Error for RuleErrors {}

/// Loads a limits file, or every `*.yaml` and `*.yml` of a directory (not of those below it;
/// names that start with a dot are left out).
pub(crate) fn load(path: &Path) -> Result<Rules, RuleErrors> {
    let whole =
        |file: &Path, message: String| RuleError { file: file.to_owned(), place: None, message };
    let files = match limits_files(path) {
        Ok(files) if files.is_empty() => {
            let message = "no *.yaml or *.yml file in this directory".to_owned();
            return Err(RuleErrors(vec![whole(path, message)]));
        }
        Ok(files) => files,
        Err(error) => {
            return Err(RuleErrors(vec![whole(path, format!("cannot read: {error}"))]));
        }
    };
    let mut loaded = schema::Loaded::default();
    let mut errors = Vec::new();
    for file in &files {
        match std::fs::read_to_string(file) {
            Ok(text) => {
                let mut found = Vec::new();
                loaded.read_file(file, &text, &mut found);
                found.sort_by_key(|error: &RuleError| error.place);
                errors.append(&mut found);
            }
            Err(error) => errors.push(whole(file, format!("cannot read: {error}"))),
        }
    }
    if errors.is_empty() { Ok(loaded.rules) } else { Err(RuleErrors(errors)) }
}

fn limits_files(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if !std::fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let file = entry?.path();
        let hidden = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let yaml =
            file.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        if yaml && !hidden {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests;
