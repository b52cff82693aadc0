//! The state of one file while it is read.

use crate::diagnostic::{Diagnostic, Position};
use crate::document::Node;
use crate::loader::CrossFile;
use std::path::Path;
use std::sync::Arc;
use tidegate_core::DeniedHits;

pub(super) struct Context<'a, 'f> {
    pub(super) diagnostics: &'a mut Diagnostics<'f>,
    pub(super) cross_file: &'a mut CrossFile,
    pub(super) file: Arc<Path>,
    pub(super) domain: Arc<str>,
    /// What becomes of denied hits, unless a limit says otherwise.
    pub(super) denied: DeniedHits,
}

/// Collects the errors and warnings of one file.
pub(super) struct Diagnostics<'a> {
    pub(super) file: &'a Path,
    pub(super) source: &'a str,
    pub(super) errors: Vec<Diagnostic>,
    pub(super) warnings: Vec<Diagnostic>,
}

impl Diagnostics<'_> {
    pub(super) fn error(&mut self, position: Position, message: impl Into<String>) {
        self.errors.push(Diagnostic::new(self.file, position, message));
    }

    /// For what is valid but has no effect.
    pub(super) fn warn(&mut self, position: Position, message: impl Into<String>) {
        self.warnings.push(Diagnostic::new(self.file, position, message));
    }

    /// Reports that the value of `key` has the wrong type.
    pub(super) fn wrong_type(&mut self, node: &Node, key: &str, expected: &str) {
        let found = node.describe(self.source);
        self.error(node.position(), format!("`{key}`: expected {expected}, found {found}"));
    }
}
