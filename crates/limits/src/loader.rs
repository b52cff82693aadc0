//! The state of one load: rules, mistakes and warnings so far, and what the files of one load share.
//!
//! Refuses nothing itself but rules with mistakes; the readers of each syntax report those.

use crate::compiled::Rules;
use crate::report::{Position, RuleError, RuleErrors};
use crate::text::quoted;
use crate::zone::Zones;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidegate_core::{DailyReset, Denied};

/// What becomes of two files of one domain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SameDomain {
    /// A mistake, since a copy of a file is more likely than a wish.
    #[default]
    Refuse,
    /// One domain with the rules of both.
    Merge,
}

/// What holds for files that do not say otherwise.
#[derive(Debug, Clone, Default)]
pub struct Defaults {
    pub same_domain: SameDomain,
    /// What becomes of denied requests.
    pub denied: Denied,
    /// When the counters of a `map.xml` are reset.
    pub self_update: Option<DailyReset>,
}

impl From<SameDomain> for Defaults {
    fn from(same_domain: SameDomain) -> Defaults {
        Defaults { same_domain, ..Defaults::default() }
    }
}

/// What was read: rules, and what in the files has no effect though it is no mistake.
#[derive(Debug)]
pub struct Loaded {
    pub rules: Rules,
    pub warnings: Vec<RuleError>,
    /// Where the rule of each path stands.
    pub places: HashMap<String, (Arc<Path>, Position)>,
}

/// The rules read so far, and what was said of them.
pub(super) struct Loader {
    pub(super) defaults: Defaults,
    pub(super) rules: Rules,
    /// Which file each domain came from first.
    pub(super) files: HashMap<String, PathBuf>,
    pub(super) common: Common,
    pub(super) errors: Vec<RuleError>,
    pub(super) warnings: Vec<RuleError>,
}

/// What the rules of all files share.
pub(super) struct Common {
    /// Where the rule of each path stands.
    pub(super) places: HashMap<String, (Arc<Path>, Position)>,
    pub(super) zones: Zones,
    /// Names of limits, by domain.
    pub(super) names: HashMap<Arc<str>, HashSet<String>>,
    /// Names that limits replace, which must be known once all is read.
    pub(super) replaced: Vec<Replaced>,
}

/// A name in `replaces`.
pub(super) struct Replaced {
    pub(super) domain: Arc<str>,
    pub(super) name: String,
    pub(super) file: Arc<Path>,
    pub(super) place: Position,
}

impl Loader {
    pub(super) fn new(defaults: Defaults) -> Self {
        Loader {
            defaults,
            rules: Rules::default(),
            files: HashMap::new(),
            common: Common {
                places: HashMap::new(),
                zones: Zones::new(),
                names: HashMap::new(),
                replaced: Vec::new(),
            },
            errors: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// The rules, unless there was a mistake.
    pub(super) fn finish(mut self) -> Result<Loaded, RuleErrors> {
        if !self.errors.is_empty() {
            return Err(RuleErrors(self.errors));
        }
        for Replaced { domain, name, file, place } in self.common.replaced {
            if self.common.names.get(&domain).is_some_and(|names| names.contains(&name)) {
                continue;
            }
            let (domain, name) = (quoted(&domain), quoted(&name));
            let message = format!("`replaces`: no limit of domain {domain} has the name {name}");
            self.warnings.push(RuleError { file: file.to_path_buf(), place: Some(place), message });
        }
        // Or the first requests would wait for it.
        self.rules.seal();
        self.warnings.sort_by(|a, b| (&a.file, a.place).cmp(&(&b.file, b.place)));
        let places = self.common.places;
        Ok(Loaded { rules: self.rules, warnings: self.warnings, places })
    }
}
