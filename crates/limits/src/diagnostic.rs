//! Errors and warnings about limits files, each with its position.

use std::fmt;
use std::path::PathBuf;

/// Line and column, both from 1.
pub type Position = (u64, u64);

/// An error or a warning about a limits file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    pub file: PathBuf,
    /// None for the file as a whole.
    pub position: Option<Position>,
    pub message: String,
}

impl Diagnostic {
    /// `file:line:column`, a form that editors open.
    pub fn location(&self) -> String {
        let file = self.file.display();
        match self.position {
            Some((line, column)) => format!("{file}:{line}:{column}"),
            None => file.to_string(),
        }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.location(), self.message)
    }
}

/// Every error of one load. Displayed with one error a line, followed by their number.
#[derive(Debug)]
pub struct LoadErrors(pub Vec<Diagnostic>);

impl fmt::Display for LoadErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for error in &self.0 {
            writeln!(f, "{error}")?;
        }
        let count = self.0.len();
        write!(f, "{count} {} in the limits", if count == 1 { "error" } else { "errors" })
    }
}

impl std::error::Error for LoadErrors {}
