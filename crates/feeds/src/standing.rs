//! What became of limits, for operators: where they are from, what the last reloads changed, which were refused and why.

use std::time::SystemTime;
use tidegate_limits::diff::Change;

/// Reloads that are remembered, changes of each, and mistakes of a refused one.
pub(crate) const RELOADS_MAX: usize = 10;
pub(crate) const CHANGES_MAX: usize = 100;
pub(crate) const MISTAKES_MAX: usize = 100;

/// The limits of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    pub sources: Vec<SourceStanding>,
    /// When those in force were read.
    pub loaded_at: Option<SystemTime>,
    pub limits: usize,
    pub domains: usize,
    /// The last ones that changed anything, newest first.
    pub reloads: Vec<Reload>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceStanding {
    /// A path, or the address of a server.
    pub name: String,
    /// Whether any limits of it are in force.
    pub has_arrived: bool,
    /// Whether its last limits are those in force.
    pub is_current: bool,
    /// The last ones, if they were refused.
    pub refused: Option<Refusal>,
}

/// Limits that were not put in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub at: SystemTime,
    pub mistakes: Vec<String>,
    /// Mistakes that are not among them.
    pub more: usize,
}

/// Limits that were put in force in place of others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reload {
    pub at: SystemTime,
    /// How many there are since.
    pub limits: usize,
    pub changes: Vec<Change>,
    /// Changes that are not among them.
    pub more: usize,
}
