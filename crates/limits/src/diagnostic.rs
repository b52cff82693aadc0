//! Errors and warnings about limits files, each with its position.

use crate::describe::count;
use std::fmt;
use std::path::{Path, PathBuf};

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
    pub fn new(
        file: &Path,
        position: impl Into<Option<Position>>,
        message: impl Into<String>,
    ) -> Diagnostic {
        Diagnostic { file: file.to_owned(), position: position.into(), message: message.into() }
    }

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
        write!(f, "{} in the limits", count(self.0.len() as u64, "error"))
    }
}

impl std::error::Error for LoadErrors {}
