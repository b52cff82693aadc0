//! The state of one load: rules, errors and warnings so far, and what its files share.

use crate::compiled::Rules;
use crate::diagnostic::{Diagnostic, LoadErrors, Position};
use crate::statistics::Statistic;
use crate::text::quoted;
use crate::zone::Zones;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidegate_core::{DailyReset, DeniedHits};

/// How two files of one domain are handled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SameDomain {
    /// As an error: a forgotten copy is more likely than intent.
    #[default]
    Refuse,
    /// As one domain with the rules of both.
    Merge,
}

/// Settings for files that do not set them.
#[derive(Debug, Clone, Default)]
pub struct Defaults {
    pub same_domain: SameDomain,
    pub denied: DeniedHits,
    /// The daily reset of the counters of a `map.xml`.
    pub self_update: Option<DailyReset>,
}

impl From<SameDomain> for Defaults {
    fn from(same_domain: SameDomain) -> Defaults {
        Defaults { same_domain, ..Defaults::default() }
    }
}

/// Positions of rules, by path.
pub(crate) type RulePositions = HashMap<String, (Arc<Path>, Position)>;

/// The result of a load without errors.
#[derive(Debug)]
pub struct Loaded {
    pub rules: Rules,
    /// Parts of the files that are valid but have no effect.
    pub warnings: Vec<Diagnostic>,
    pub positions: RulePositions,
}

pub(crate) struct Loader {
    pub(crate) defaults: Defaults,
    pub(crate) rules: Rules,
    /// The first file of each domain.
    files: HashMap<String, PathBuf>,
    pub(crate) cross_file: CrossFile,
    pub(crate) errors: Vec<Diagnostic>,
    pub(crate) warnings: Vec<Diagnostic>,
}

/// State that the readers of all files share.
#[derive(Default)]
pub(crate) struct CrossFile {
    pub(crate) positions: RulePositions,
    pub(crate) zones: Zones,
    /// Names of limits, by domain.
    pub(crate) names: HashMap<Arc<str>, HashSet<String>>,
    /// Names in `replaces`, checked once all files have been read.
    pub(crate) replaced: Vec<Replaced>,
    pub(crate) statistics: Vec<Statistic>,
    /// The first place of each name of a statistic.
    pub(crate) statistic_names: RulePositions,
}

pub(crate) struct Replaced {
    pub(crate) domain: Arc<str>,
    pub(crate) name: String,
    pub(crate) file: Arc<Path>,
    pub(crate) position: Position,
}

impl CrossFile {
    /// Where `path` is already defined: `line:column`, preceded by the file unless it is `file`.
    pub(crate) fn first_definition(&self, path: &str, file: &Path) -> Option<String> {
        let (first, (line, column)) = self.positions.get(path)?;
        let file = if **first == *file { String::new() } else { format!("{}:", first.display()) };
        Some(format!("{file}{line}:{column}"))
    }
}

impl Loader {
    pub(crate) fn new(defaults: Defaults) -> Self {
        Loader {
            defaults,
            rules: Rules::default(),
            files: HashMap::new(),
            cross_file: CrossFile::default(),
            errors: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Creates the domain for the rules of `file`. Fails with a message if another file has defined it
    /// and domains must not be merged.
    pub(crate) fn claim_domain(&mut self, domain: &str, file: &Path) -> Result<(), String> {
        if let Some(other) = self.files.get(domain)
            && self.defaults.same_domain == SameDomain::Refuse
        {
            let (domain, other) = (quoted(domain), other.display());
            return Err(format!("domain {domain} is already defined by {other}"));
        }
        self.files.entry(domain.to_owned()).or_insert_with(|| file.to_owned());
        self.rules.root_mut(domain);
        Ok(())
    }

    /// The rules, if there was no error.
    pub(crate) fn finish(mut self) -> Result<Loaded, LoadErrors> {
        if !self.errors.is_empty() {
            return Err(LoadErrors(self.errors));
        }
        let CrossFile { positions, names, replaced, statistics, .. } = self.cross_file;
        self.rules.set_statistics(statistics);
        for Replaced { domain, name, file, position } in replaced {
            if names.get(&domain).is_some_and(|names| names.contains(&name)) {
                continue;
            }
            let (domain, name) = (quoted(&domain), quoted(&name));
            let message = format!("`replaces`: no limit of domain {domain} has the name {name}");
            self.warnings.push(Diagnostic::new(&file, position, message));
        }
        // Otherwise the first requests would wait for the indexes.
        self.rules.build_indexes();
        self.warnings.sort_by(|a, b| (&a.file, a.position).cmp(&(&b.file, b.position)));
        Ok(Loaded { rules: self.rules, warnings: self.warnings, positions })
    }
}
