//! Limits files: loading, checking, comparing and describing them.
//!
//! Owns the two syntaxes (`yaml`, `frs_map`), the tree that they compile to (`compiled`), and everything
//! about it that needs no counter: errors with positions (`diagnostic`), the effects of a change (`diff`),
//! the path of a descriptor through the tree (`lookup`). Does not decide, count or watch files.

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

mod compiled;
pub mod describe;
mod diagnostic;
pub mod diff;
pub mod document;
pub mod duration;
mod files;
mod frs_map;
mod load;
mod loader;
pub mod lookup;
mod path;
mod statistics;
mod text;
mod time_of_day;
pub mod usage_based;
mod yaml;
mod zone;

pub use compiled::{
    Child, Cidr, CidrError, Limit, Lookup, Match, Matcher, MatcherError, Rule, RuleKind, RuleNode,
    Rules,
};
pub use diagnostic::{Diagnostic, LoadErrors, Position};
pub use files::{Origin, Pipes, Source, SourceFile, each_file, limits_files};
pub use load::{load, load_source};
pub use loader::{Defaults, Loaded, SameDomain};
pub use path::{escaped, segment, unescaped};
pub use statistics::{STATISTIC_KEYS_MAX, STATISTICS_MAX, Statistic};
pub use text::{suggestion, whole_number};
pub use zone::daily_reset;

#[cfg(test)]
mod tests;
