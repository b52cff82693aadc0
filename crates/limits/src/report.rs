//! Mistakes in limits files, each with its position.

use std::fmt;
use std::path::PathBuf;

/// Line and column, both from 1.
pub type Position = (u64, u64);

/// A mistake, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleError {
    pub file: PathBuf,
    /// Line and column, both from 1; none when the file as a whole is at fault.
    pub place: Option<Position>,
    pub message: String,
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
pub struct RuleErrors(pub Vec<RuleError>);

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
