//! Loading limits files: YAML in envoyproxy/ratelimit's schema, extended, or an FRS's `map.xml`, to
//! compiled rules.
//!
//! One file is one domain; a directory holds many. Loading reports every mistake of every file,
//! each with its place, and yields rules only when there is none. What is no mistake but has no
//! effect comes back as a warning. Nothing here decides how values are matched or counted.

mod algorithm;
mod covered;
mod descriptor;
mod document;
pub(crate) mod duration;
mod files;
mod limit;
mod map_xml;
mod matching;
mod metadata;
mod period;
mod reader;
mod schema;
mod text;
mod zone;

use document::Place;
pub(crate) use files::{Pipes, Source, SourceFile, each_file, limits_files};
pub(crate) use matching::segment;
use schema::Loader;
use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
pub(crate) use text::escaped;
use tidegate_core::{DailyReset, Denied, Nanos, Rules};

/// A mistake, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuleError {
    pub(crate) file: PathBuf,
    /// Line and column, both from 1; none when the file as a whole is at fault.
    pub(crate) place: Option<(u64, u64)>,
    pub(crate) message: String,
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

/// What becomes of two files of one domain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum SameDomain {
    /// A mistake, since a copy of a file is more likely than a wish.
    #[default]
    Refuse,
    /// One domain with the rules of both.
    Merge,
}

/// What holds for files that do not say otherwise.
#[derive(Debug, Clone, Default)]
pub(crate) struct Defaults {
    pub(crate) same_domain: SameDomain,
    /// What becomes of denied requests.
    pub(crate) denied: Denied,
    /// When the counters of a `map.xml` are reset.
    pub(crate) self_update: Option<DailyReset>,
}

impl From<SameDomain> for Defaults {
    fn from(same_domain: SameDomain) -> Defaults {
        Defaults { same_domain, ..Defaults::default() }
    }
}

/// What was read: rules, and what in the files has no effect though it is no mistake.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) rules: Rules,
    pub(crate) warnings: Vec<RuleError>,
    /// Where the rule of each path stands.
    pub(crate) places: HashMap<String, (Arc<Path>, Place)>,
}

/// Loads a limits file, or every `*.yaml`, `*.yml` and `*.xml` of a directory (not of those below it;
/// names that start with a dot are left out). Also from a pipe, if it is `path` itself.
pub(crate) fn load(path: &Path, defaults: impl Into<Defaults>) -> Result<Loaded, RuleErrors> {
    load_source(&Source::read(path, Pipes::Allow), defaults)
}

/// Loads what was read, and reads nothing else.
pub(crate) fn load_source(
    source: &Source,
    defaults: impl Into<Defaults>,
) -> Result<Loaded, RuleErrors> {
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
            Ok(text) => loader.read_file(&file.path, text),
            Err(error) => loader.errors.push(error),
        }
    }
    loader.finish()
}

/// A time of day such as `03:00`.
fn time_of_day(text: &str) -> Option<Nanos> {
    let (hours, minutes) = text.split_once(':')?;
    let two = |digits: &str| {
        let is_plain = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<u64>().ok().filter(|_| is_plain)
    };
    let (hours, minutes) = (two(hours)?, two(minutes)?);
    (hours < 24 && minutes < 60).then(|| Nanos::from_secs(hours * 3_600 + minutes * 60))
}

/// The reset each day at a time such as `03:00`, by the clock of a zone such as `+08:00`; or what to
/// say of them.
pub(crate) fn daily_reset(time: &str, zone: &str) -> Result<DailyReset, String> {
    let time = time_of_day(time)
        .ok_or_else(|| format!("{} is not a time of day such as 03:00", text::quoted(time)))?;
    zone::Zones::new().daily(zone, time)
}

#[cfg(test)]
mod tests;
