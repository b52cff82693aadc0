//! A limits file as a whole: its domain, and what files of one load know of each other.

use super::descriptor::{Above, read_descriptors};
use super::document::{self, Place};
use super::map_xml;
use super::reader::{Fields, Keys, Reports};
use super::text::{escaped, quoted};
use super::zone::Zones;
use super::{Defaults, Loaded, RuleError, RuleErrors, SameDomain};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidegate_core::{Denied, RuleNode, Rules};

const FILE: Keys = Keys { of: "a limits file", known: &["domain", "descriptors", "count_denied"] };

/// The rules read so far, and what was said of them.
pub(super) struct Loader {
    pub(super) defaults: Defaults,
    pub(super) rules: Rules,
    /// Which file each domain came from first.
    pub(super) files: HashMap<String, PathBuf>,
    pub(super) common: Common,
    pub(super) errors: Vec<RuleError>,
    warnings: Vec<RuleError>,
}

/// What the rules of all files share.
pub(super) struct Common {
    /// Where the rule of each path stands.
    pub(super) places: HashMap<String, (Arc<Path>, Place)>,
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
    pub(super) place: Place,
}

/// One file while it is read.
pub(super) struct Reading<'a, 'f> {
    pub(super) reports: &'a mut Reports<'f>,
    pub(super) common: &'a mut Common,
    pub(super) file: Arc<Path>,
    pub(super) domain: Arc<str>,
    /// What becomes of denied requests, where a limit does not say.
    pub(super) denied: Denied,
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

    /// Reads one more file.
    pub(super) fn read_file(&mut self, file: &Path, text: &str) {
        if map_xml::is_map(file) {
            return map_xml::read_file(self, file, text);
        }
        let root = match document::parse(text) {
            Ok(root) => root,
            Err((place, message)) => {
                self.errors.push(RuleError { file: file.to_owned(), place, message });
                return;
            }
        };
        let mut reports = Reports { file, source: text, errors: Vec::new(), warnings: Vec::new() };
        if let Some(fields) = Fields::read(&root, &FILE, &mut reports) {
            let name = fields.required("domain", &mut reports);
            let name = name.filter(|name| self.is_free(name, &fields, &mut reports));
            self.read_domain(name, &fields, &mut reports);
        }
        let Reports { mut errors, mut warnings, .. } = reports;
        errors.sort_by_key(|error| error.place);
        warnings.sort_by_key(|warning| warning.place);
        self.errors.append(&mut errors);
        self.warnings.append(&mut warnings);
    }

    /// Whether rules of this domain may come from this file; reports it if not.
    fn is_free(&self, name: &str, fields: &Fields<'_>, reports: &mut Reports<'_>) -> bool {
        match self.files.get(name) {
            Some(other) if self.defaults.same_domain == SameDomain::Refuse => {
                let (name, other) = (quoted(name), other.display());
                let message = format!("domain {name} is already defined by {other}");
                reports.report(fields.place_of("domain"), message);
                false
            }
            _ => true,
        }
    }

    /// Reads the rules. Those of no valid domain are read for their mistakes alone.
    fn read_domain(
        &mut self,
        name: Option<String>,
        fields: &Fields<'_>,
        reports: &mut Reports<'_>,
    ) {
        let file: Arc<Path> = reports.file.into();
        let mut nowhere = RuleNode::default();
        let (path, root) = match &name {
            Some(name) => {
                self.files.entry(name.clone()).or_insert_with(|| file.to_path_buf());
                (escaped(name), self.rules.domain_mut(name).root_mut())
            }
            // No path starts like that, so nothing there is called a duplicate of a rule.
            None => (format!("/{}", file.display()), &mut nowhere),
        };
        let denied = denied(fields, reports).unwrap_or(self.defaults.denied);
        let descriptors = fields.list("descriptors", reports);
        let domain = name.unwrap_or_default().into();
        let mut reading = Reading { reports, common: &mut self.common, file, domain, denied };
        read_descriptors(descriptors, root, &Above::top(path), &mut reading);
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

/// What becomes of denied requests, if a limit or a file says.
pub(super) fn denied(fields: &Fields<'_>, reports: &mut Reports<'_>) -> Option<Denied> {
    let counts = fields.truth("count_denied", reports)?;
    Some(if counts { Denied::Count } else { Denied::Spare })
}
